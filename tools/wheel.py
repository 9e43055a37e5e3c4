"""Writes the wheel: the Python package with the shared library inside, for every Python 3 of one machine kind.

  wheel.py --library libtfuse.so [--library …] --out DIR [--text README.md] [--text LICENSE] FILE ...
      Of FILEs under a folder python/, the part after it is their path in the wheel; others are what libraries of ops are built
      with, and go to tfuse/include. tfuse/_version.py names the version.

The file's tag states the oldest C library that has every symbol the libraries want. Same inputs, same bytes.
"""
import argparse
import base64
import hashlib
import pathlib
import re
import subprocess
import zipfile

import metadata

WHEEL = """\
Wheel-Version: 1.0
Generator: tfuse
Root-Is-Purelib: false
Tag: {tag}
"""
MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}  # e_machine of an ELF header
OLDEST_GLIBC = 17  # manylinux_2_17 is the first tag that pip knows on both machines


def platform_tag(libraries):
    machine, = {MACHINES[int.from_bytes(library.read_bytes()[18:20], "little")] for library in libraries}
    wanted = subprocess.run(["readelf", "--version-info", "--wide", *libraries], check=True, capture_output=True, text=True)
    minors = [int(m) for m in re.findall(r"Name: GLIBC_2\.(\d+)", wanted.stdout)]
    return f"py3-none-manylinux_2_{max([OLDEST_GLIBC, *minors])}_{machine}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, action="append", type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--text", action="append", default=[], type=pathlib.Path)
    parser.add_argument("files", nargs="+")
    a = parser.parse_args()

    place = lambda path: re.sub(r"^(.*/)?python/", "", path) if "python/" in path else "tfuse/include/" + path
    content = {place(path): pathlib.Path(path).read_bytes() for path in a.files}
    content.update({"tfuse/" + library.name: library.read_bytes() for library in a.library})
    version = metadata.version_in(content["tfuse/_version.py"].decode())
    tag, info = platform_tag(a.library), f"tfuse-{version}.dist-info"

    texts = {text.name: text.read_bytes() for text in a.text}
    content[f"{info}/METADATA"] = metadata.text(version, texts.pop("README.md", b"").decode()).encode()
    content.update({f"{info}/{name}": text for name, text in texts.items()})
    content[f"{info}/WHEEL"] = WHEEL.format(tag=tag).encode()

    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, data in sorted(content.items()))
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()

    a.out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(a.out / f"tfuse-{version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(content.items(), key=lambda item: (item[0].startswith(info), item[0])):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, data)


if __name__ == "__main__":
    main()
