"""Writes tools/locked/*.txt: every package that ./run installs, with its version and the hashes of its files.

  python tools/lock.py     # after a change of tools/requirements*.txt; uv must be on the PATH or beside this Python

The hashes are those of wheels for Linux on x86_64 and aarch64, of Python 3.10 to 3.13: pip installs nothing else.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOCKED = ROOT / "tools/locked"
# The lock's name: the requirements in it, the oldest Python that it serves, and options of uv.
LOCKS = {
    "python": ("requirements.txt", "3.10"),
    "hub": ("requirements_hub.txt", "3.11", "--no-deps"),
    "nvrtc": ("requirements_nvrtc.txt", "3.10"),
    "release": ("requirements_release.txt", "3.10"),
    "uv": ("requirements_uv.txt", "3.10"),
}
WHEEL = re.compile(r".+-(py3|py2\.py3|cp3\d*|cp3\d*\.abi3)-(none|abi3|cp31[0-3])-(any|.*manylinux\S*_(x86_64|aarch64)\S*)\.whl")
HEAD = "# By tools/lock.py, from tools/%s: pip install --require-hashes -r takes it.\n"


def index():
    """Where pip looks for packages."""
    from pip._internal.models.index import PyPI
    told = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True)
    return (told.stdout.strip() or PyPI.simple_url).rstrip("/")


def files_of(name):
    """The SHA-256 of every wheel of a package that may be installed here."""
    with urllib.request.urlopen("%s/%s/" % (index(), name)) as answer:
        files = re.findall(r'href="[^"]*#sha256=(\w+)"[^>]*>([^<]+)</a>', answer.read().decode())
    return {digest for digest, file in files if WHEEL.fullmatch(file)}


def locked(requirements, python, *options):
    """The text of a lock."""
    uv = shutil.which("uv") or str(pathlib.Path(sys.executable).with_name("uv"))
    text = subprocess.run([uv, "pip", "compile", "--quiet", "--generate-hashes", "--universal", "--no-header", "--no-annotate",
                           "--python-version", python, *options, ROOT / "tools" / requirements],
                          check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = []
    for line in text.splitlines():
        if "==" in line:
            elsewhere = line.endswith("; sys_platform == 'win32' \\")
            wheels = set() if elsewhere else files_of(re.match(r"[\w.-]+", line)[0])
            lines += [] if elsewhere else [line.rstrip(" \\")]
        elif line.strip(" \\").partition("sha256:")[2] in wheels:
            lines[-1] += " \\"
            lines.append(line.rstrip(" \\"))
    return HEAD % requirements + "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name, wanted in LOCKS.items():
        (LOCKED / (name + ".txt")).write_text(locked(*wanted))
