"""python -m tfuse build-op FOLDER: builds a library of your own ops, which tfuse.load() loads.

The folder has ops.def, with a line X(stem) for each op, and, in any folders below it, the ops' C files and .cu files,
made by the same rules as tfuse's own (docs/new_op.md).
"""

import argparse
import concurrent.futures
import importlib.util
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

import tensorflow as tf

from tfuse._core import _library

_PACKAGE = pathlib.Path(__file__).parents[1]
FLAGS = ["-std=gnu11", "-O3", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=fast",
         "-fno-math-errno", "-fno-trapping-math"]
_NVRTC = ["cuda_nvrtc/lib/libnvrtc.so.12", "cuda_runtime/include/cuda_fp16.h", "cuda_cccl/include/nv/target"]


class Failed(Exception):
    pass


def include():
    """The folder of ops/, kernels/core/ and tools/nvrtc.py: the wheel's copy, or the checkout itself."""
    return next(folder for folder in (_PACKAGE / "include", _PACKAGE.parents[1]) if (folder / "ops/tfuse.h").exists())


def nvidia():
    """The folder with NVRTC and the headers that it needs, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = [os.path.join(os.environ.get("TFUSE_NVRTC") or os.path.join(sys.prefix, "nvrtc"), "nvidia"),
               *(spec.submodule_search_locations if spec else [])]
    return next((f for f in folders if all(os.path.exists(os.path.join(f, part)) for part in _NVRTC)), None)


def architectures_here():
    found = [tf.config.experimental.get_device_details(gpu).get("compute_capability")
             for gpu in tf.config.list_physical_devices("GPU")]
    return sorted({"sm_%d%d" % capability for capability in found if capability})


def _run(command):
    try:
        done = subprocess.run(list(map(str, command)), text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise Failed("%s cannot be run: %s" % (command[0], error.strerror))
    if done.returncode:
        raise Failed("%s failed:\n%s" % (os.path.basename(command[0]), done.stdout))
    if done.stdout:
        print(done.stdout, end="", file=sys.stderr)  # warnings


def _device_code(source, architectures, folder, build):
    """The C file that carries a .cu file's device code; without architectures, none."""
    images, tool = [], include() / "tools/nvrtc.py"
    if architectures and not nvidia():
        raise Failed("device code is compiled by NVRTC, which was not found with the headers that it needs: pip "
                     "install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12 nvidia-cuda-cccl-cu12, or --arch none to "
                     "build for the CPU alone")
    for arch in architectures:
        images.append(build / ("%s.%s.lzma" % (source.stem, arch)))
        folders = [part for path in (folder, include(), include() / "ops") for part in ("--include", path)]
        _run([sys.executable, tool, "compile", "--nvidia", nvidia(), "--arch", arch, "--out", images[-1], *folders,
              source])
    table = build / (source.stem + "_images.c")
    _run([sys.executable, tool, "table", "--stem", source.stem, "--out", table, *images])
    return table


def build(folder, out=None, architectures=()):
    """Builds the library of a folder; returns its path."""
    folder = pathlib.Path(folder).resolve()
    compiler = shlex.split(os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or "")
    if not (folder / "ops.def").is_file():
        raise Failed("there is no %s: it names the folder's ops, a line X(stem) for each" % (folder / "ops.def"))
    if not compiler:
        raise Failed("a C compiler is needed: install gcc, or let CC name one")
    out = pathlib.Path(out or folder / ("lib%s.so" % folder.name)).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        own = pathlib.Path(temporary)
        (own / "library.c").write_text("#include <library.h>\n")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            tables = list(pool.map(lambda source: _device_code(source, architectures, folder, own),
                                   sorted(folder.rglob("*.cu"))))
        paths = ["-I%s" % path for path in (folder, include(), include() / "ops")]
        _run([*compiler, *FLAGS, *paths, own / "library.c", *tables, *sorted(folder.rglob("*.c")),
              "-o", own / "library.so", "-Wl,--no-undefined", _library.path, "-lm"])
        shutil.copy(own / "library.so", str(out) + ".new")
        os.replace(str(out) + ".new", out)  # a process that has the old one loaded keeps it
    return out


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse build-op", description=__doc__.partition("\n\n")[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", help="with ops.def and the ops' files")
    parser.add_argument("--out", metavar="FILE", help="the library; default: FOLDER/libFOLDER.so")
    parser.add_argument("--arch", metavar="LIST", help="what to compile device code for, such as "
                        "sm_80,sm_90,compute_90, or none; default: this machine's GPUs")
    chosen = parser.parse_args(arguments)
    named = [] if chosen.arch == "none" else chosen.arch.split(",") if chosen.arch else architectures_here()
    try:
        path = build(chosen.folder, chosen.out, named)
    except Failed as error:
        print("build-op: %s" % error, file=sys.stderr)
        return 1
    print("%s, %s" % (path, "for the CPU and " + ", ".join(named) if named else "for the CPU alone"))
    return 0
