"""Device code for the library: compiles CUDA C with NVRTC, no nvcc and no host compiler, and writes the C that carries it.

  nvrtc.py compile --nvidia DIR --arch ARCH --out FILE [--unused FILE] [--cost FILE] [--include DIR]
                   [--quick] SOURCE [HEADER ...]
      ARCH sm_NN gives a cubin, compute_NN gives PTX, packed. --unused lists the headers SOURCE does not reach, so that Bazel
      compiles it again for its own headers only. --cost says what it took: seconds and bytes. --include names a folder to
      look for headers in before the usual ones. --quick takes half the time, for code that is compiled to see that it can be,
      and not run: it is several times as large and slow.
  nvrtc.py table --stem STEM --out FILE [IMAGE ...]
      IMAGE is STEM.ARCH.lzma; the C file defines tfu_STEM_images[] of kernels/core/gpu/images.h.
  nvrtc.py costs --out FILE [COST ...]
      COST is STEM.ARCH.cost; FILE is a table of all of them, the slowest first.
  nvrtc.py info --nvidia DIR --version-file FILE --out FILE [ARCH ...]
      The C file defines tfu_build_info[], a JSON text.
  DIR is the folder `nvidia` of the pip packages in tools/requirements_nvrtc.txt.
"""
import argparse
import ctypes
import hashlib
import json
import lzma
import os
import pathlib
import re
import struct
import sys
import time

INCLUDES = [".", "kernels", "ops"]
NVIDIA_INCLUDES = ["cuda_runtime/include", "cuda_cccl/include"]
OPTIONS = ["--std=c++17", "--device-as-default-execution-space", "-DTFU_DEVICE"]
# 9.0 is the only one of its major version, so a cubin for it may have what later ones have not (wgmma).
ALONE = {"sm_90": "sm_90a"}
# NVRTC has no switch for these. sm_70 is served on purpose, and how fast quick code is does not matter.
KNOWN_WARNING = re.compile(r"nvrtc: warning: Architectures prior to \S+ are deprecated.*\n?")
QUICK_WARNING = re.compile(r"ptxas info +: \(C75\d\d\) Potential Performance Loss.*\n?")
# NVRTC has no C library: the headers that device code shares with C are given in memory.
C_HEADERS = {
    "stdint.h": """
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned uint32_t;
typedef unsigned long long uint64_t, uintptr_t; typedef long long intptr_t;
""",
    "stddef.h": """
typedef __SIZE_TYPE__ size_t; typedef __PTRDIFF_TYPE__ ptrdiff_t;
#ifndef NULL
#define NULL 0
#endif
#define offsetof(type, member) __builtin_offsetof(type, member)
""",
}


def load(nvidia):
    return ctypes.CDLL(os.path.join(nvidia, "cuda_nvrtc/lib/libnvrtc.so.12"))


def strings(items):
    return (ctypes.c_char_p * len(items))(*(i.encode() for i in items))


def fetch(nvrtc, program, what):
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, data)
    return data.raw


def compile_image(nvidia, source, arch, include=(), quick=False):
    """The image of one file for one architecture. NVRTC's log goes to stderr: as the error, or as warnings."""
    nvrtc, program = load(nvidia), ctypes.c_void_p()
    text = pathlib.Path(source).read_bytes()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), len(C_HEADERS), strings(C_HEADERS.values()), strings(C_HEADERS))
    includes = [*include, *INCLUDES] + [os.path.join(nvidia, i) for i in NVIDIA_INCLUDES]
    options = [*OPTIONS, f"--gpu-architecture={ALONE.get(arch, arch)}", *(f"-I{i}" for i in includes),
               *["--Ofast-compile=max"] * quick]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), strings(options))
    log = KNOWN_WARNING.sub("", fetch(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace"))
    log = (QUICK_WARNING.sub("", log) if quick else log).strip()
    if log:
        print(f"NVRTC, {source} for {arch}:\n{log}", file=sys.stderr)
    if failed:
        sys.exit(1)
    if re.search(rb"^\s*trap;", fetch(nvrtc, program, "PTX"), re.M):
        sys.exit(f"NVRTC, {source} for {arch}: a function ends in a trap, as one without a return does: an intrinsic of CUDA's "
                 "headers that is empty here?")
    image = fetch(nvrtc, program, "CUBIN" if arch.startswith("sm_") else "PTX")
    return packed(image, arch, quick)


def packed(image, arch, quick=False):
    """A .lzma file that states its size, for kernels/core/gpu/lzma.h. Instructions are 16 bytes long: what a byte of a cubin is
    likely to be depends on its place among them, in PTX on the letter before it."""
    likely = dict(lc=0, lp=4, pb=4) if arch.startswith("sm_") else dict(lc=4, lp=0, pb=0)
    filters = [dict(id=lzma.FILTER_LZMA1, preset=0 if quick else 6 | lzma.PRESET_EXTREME, dict_size=max(len(image), 4096), **likely)]
    data = lzma.compress(image, lzma.FORMAT_ALONE, filters=filters)
    return data[:5] + struct.pack("<Q", len(image)) + data[13:]


def reached(source, headers):
    """Those of headers that source includes, directly or not; all of them where an #include is not a plain name."""
    known = {os.path.normpath(h): h for h in headers}
    todo, seen = [source], set()
    while todo:
        here = todo.pop()
        for name in re.findall(r"^\s*#\s*include\s+(.+)", pathlib.Path(here).read_text(), re.M):
            plain = re.match(r'["<]([^">]+)[">]', name)
            if not plain:
                return set(headers)
            for folder in [os.path.dirname(here), *INCLUDES]:
                path = os.path.normpath(os.path.join(folder, plain[1]))
                if path in known and path not in seen:
                    seen.add(path)
                    todo.append(path)
    return {known[path] for path in seen}


def table(stem, images):
    """C for one stem: the bytes through the assembler, the rows in C. The digest makes Bazel assemble again when an image
    changes: the compiler's list of dependencies, by which Bazel drops unused inputs, does not know .incbin."""
    rows = []
    for path in images:
        _, arch, _ = os.path.basename(path).rsplit(".", 2)
        rows.append((arch.startswith("compute_"), int(re.search(r"\d+", arch)[0]), f"tfu_{stem}_{arch}", path))
    rows.sort()
    out = ['#include "kernels/core/gpu/images.h"', ""]
    for _, _, symbol, path in rows:
        out += [
            f"/* sha256 {hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()} */",
            f"extern const unsigned char {symbol}[];",
            f'__asm__(".pushsection .rodata\\n.balign 64\\n.globl {symbol}\\n.hidden {symbol}\\n"',
            f'        "{symbol}: .incbin \\"{path}\\"\\n.popsection");',
        ]
    out += ["", f"extern const tfu_image tfu_{stem}_images[];", f"const tfu_image tfu_{stem}_images[] = {{"]
    out += [f"  {{{capability}, {int(ptx)}, {symbol}, {os.path.getsize(path)}}}," for ptx, capability, symbol, path in rows]
    return "\n".join([*out, "  {0, 0, 0, 0},", "};", ""])


def info(nvidia, version_file, architectures):
    major, minor = ctypes.c_int(), ctypes.c_int()
    load(nvidia).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    version = re.search(r'__version__ = "([^"]+)"', pathlib.Path(version_file).read_text())[1]
    text = json.dumps({"version": version, "nvrtc": f"{major.value}.{minor.value}", "architectures": architectures})
    return f"extern const char tfu_build_info[];\nconst char tfu_build_info[] = {json.dumps(text)};\n"


def costs(paths):
    """A line for each source: its seconds and kilobytes in every architecture, and in all."""
    found = {}
    for path in paths:
        stem, arch, _ = os.path.basename(path).rsplit(".", 2)
        seconds, size = pathlib.Path(path).read_text().split()
        found.setdefault(stem, {})[arch] = float(seconds), int(size)
    architectures = sorted({arch for own in found.values() for arch in own})
    total = {arch: tuple(sum(own[arch][i] for own in found.values()) for i in (0, 1)) for arch in architectures}
    whole = lambda own: tuple(sum(pair[i] for pair in own.values()) for i in (0, 1))
    line = lambda name, pairs: "%-24s" % name + "".join("%8.1f s %6d KB" % (pair[0], pair[1] / 1024) for pair in pairs)
    lines = [line(stem, [*(own[arch] for arch in architectures), whole(own)])
             for stem, own in sorted(found.items(), key=lambda item: -whole(item[1])[0])]
    title = "%-24s" % "source" + "".join("%20s" % name for name in [*architectures, "all"])
    return "\n".join([title, *lines, line("all", [*total.values(), whole(total)]), ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, rest in ("compile", "files"), ("table", "images"), ("info", "architectures"), ("costs", "costs"):
        command = commands.add_parser(name)
        command.add_argument("--out", required=True, type=pathlib.Path)
        if name in ("compile", "info"):
            command.add_argument("--nvidia", required=True)
        if name == "compile":
            command.add_argument("--arch", required=True)
            command.add_argument("--unused", type=pathlib.Path)
            command.add_argument("--cost", type=pathlib.Path)
            command.add_argument("--include", action="append", default=[])
            command.add_argument("--quick", action="store_true")
        if name == "info":
            command.add_argument("--version-file", required=True)
        if name == "table":
            command.add_argument("--stem", required=True)
        command.add_argument(rest, nargs="+" if name == "compile" else "*")
    a = parser.parse_args()
    if a.command == "compile":
        source, *headers = a.files
        start = time.monotonic()
        a.out.write_bytes(compile_image(a.nvidia, source, a.arch, a.include, a.quick))
        if a.cost:
            a.cost.write_text("%.2f %d\n" % (time.monotonic() - start, a.out.stat().st_size))
        if a.unused:
            used = reached(source, headers)
            a.unused.write_text("".join(f"{h}\n" for h in headers if h not in used))
    elif a.command == "table":
        a.out.write_text(table(a.stem, a.images))
    elif a.command == "costs":
        a.out.write_text(costs(a.costs))
    else:
        a.out.write_text(info(a.nvidia, a.version_file, a.architectures))


if __name__ == "__main__":
    main()
