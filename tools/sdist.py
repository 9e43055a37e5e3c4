"""The source distribution, as a backend of PEP 517. It is what is committed, with PKG-INFO; same files, same bytes.

tfuse is built by Bazel, with a compiler and with packages that pip's isolated builds do not bring, so build_wheel says how.
"""
import gzip
import io
import pathlib
import subprocess
import sys
import tarfile

import metadata

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOW = """
pip cannot build tfuse from its sources. Wheels are for Linux with glibc 2.17 or later, on x86_64 and aarch64.
To build one, on Debian or Ubuntu:

  tar xzf tfuse-*.tar.gz && cd tfuse-*/
  ./run wheel                       # installs Bazel by apt, and NVIDIA's run-time compiler by pip into .venv
  pip install dist/tfuse-*.whl
"""


def write(out, version, paths, root=ROOT):
    """Writes the archive of these paths under a root."""
    top = f"tfuse-{version}"
    info = metadata.text(version, (root / "README.md").read_text()).encode()
    with open(out, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed, tarfile.open(
            mode="w", fileobj=packed, format=tarfile.PAX_FORMAT) as archive:
        for path, data in [("PKG-INFO", info), *((path, (root / path).read_bytes()) for path in sorted(paths))]:
            entry = tarfile.TarInfo(f"{top}/{path}")
            entry.size = len(data)
            entry.mode = 0o755 if path != "PKG-INFO" and (root / path).stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(data))


def build_sdist(directory, config_settings=None):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    version = metadata.version_in((ROOT / "python/tfuse/_version.py").read_text())
    name = f"tfuse-{version}.tar.gz"
    write(pathlib.Path(directory) / name, version, listed.split("\0")[:-1])
    return name


def build_wheel(directory, config_settings=None, metadata_directory=None):
    sys.exit(HOW)
