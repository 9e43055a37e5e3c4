"""Tests the built wheel in every TensorFlow release it supports, and in the next one: one environment each, kept under
.venv/matrix.

  matrix.py --wheel FILE_OR_FOLDER [--json FILE] [--cuda] [VERSION ...]

In each: installs the wheel, runs pytest over tests/ against the installed package, and `python -m tfuse doctor`. The table
comes at the end, progress while it runs. Exits 1 when anything failed.
"""
import argparse
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
# TensorFlow releases, and the Python 3 minors they have wheels for.
RELEASES = {
    "2.16.2": (9, 12),
    "2.17.1": (9, 12),
    "2.18.1": (9, 12),
    "2.19.1": (9, 12),
    "2.20.0": (9, 13),
    "2.21.0": (10, 13),
}
# The next release with the Keras that it asks for, whose failures hold no release of tfuse up; and a newer Python, where there
# is one.
NEXT = {
    "2.22.0rc0": (10, 13),
    "2.22.0rc0-py3.14": (14, 14),
}
ALL = {**RELEASES, **NEXT}
COLUMNS = ["tensorflow", "passed", "failed", "skipped", "doctor", "seconds"]


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def say(text):
    print(f"matrix: {text}", file=sys.stderr, flush=True)


def call(command, log, **options):
    """Runs a command with its output in a file. If it fails, shows the file's end, or from where Python says it crashed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TFUSE_LIBRARY")}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with open(log, "w") as out:
        status = subprocess.run([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT, env=environment, **options).returncode
    if status:
        lines = pathlib.Path(log).read_text(errors="replace").splitlines()
        crash = [i for i, line in enumerate(lines) if "Fatal Python error" in line]
        shown = lines[crash[0] : crash[0] + 15] if crash else lines[-25:]
        say(f"status {status}, in {log}:\n" + "\n".join(shown))
    return status


def find_python(version):
    """This interpreter if the release has wheels for it, else one from the PATH."""
    low, high = ALL[version]
    if low <= sys.version_info[1] <= high:
        return sys.executable
    for minor in range(high, low - 1, -1):
        if path := shutil.which(f"python3.{minor}"):
            return path
    if version in NEXT:
        raise Skipped(f"skipped: there is no python3.{high} on the PATH")
    raise Failed(f"needs Python 3.{low} to 3.{high}")


def environment(version, cuda):
    """The environment's folder, made on first use."""
    home = ROOT / ".venv" / "matrix" / version
    wanted = [f"tensorflow{'[and-cuda]' if cuda else ''}=={version.partition('-')[0]}", "pytest"]
    stamp = home / "stamp"
    if not stamp.exists() or stamp.read_text() != " ".join(wanted):
        base = find_python(version)
        say(f"{version}: making its environment")
        home.mkdir(parents=True, exist_ok=True)
        subprocess.run([base, "-m", "venv", "--clear", home], check=True)
        if call([home / "bin/python", "-m", "pip", "install", *wanted], home / "install.log"):
            raise Failed("pip install")
        stamp.write_text(" ".join(wanted))
    return home


def test(version, wheel, cuda):
    home = environment(version, cuda)
    python, report = home / "bin/python", home / "report.xml"
    install = [python, "-m", "pip", "install", "--no-deps", "--force-reinstall", wheel]
    if call(install, home / "wheel.log"):
        raise Failed("pip install of the wheel")
    say(f"{version}: testing")
    report.unlink(missing_ok=True)
    pytest = call([python, "-m", "pytest", "tests", "-q", "-p", "no:cacheprovider", "--junitxml", report], home / "pytest.log", cwd=ROOT)
    doctor = call([python, "-m", "tfuse", "doctor"], home / "doctor.log", cwd=home)
    suites = ElementTree.parse(report).getroot().iter("testsuite") if report.exists() else []
    total = {key: 0 for key in ("tests", "failures", "errors", "skipped")}
    for suite in suites:
        total = {key: value + int(suite.get(key, 0)) for key, value in total.items()}
    failed = total["failures"] + total["errors"]
    return {
        "passed": total["tests"] - failed - total["skipped"],
        "failed": failed or int(pytest != 0),  # a crash or an empty run leaves no case to blame
        "skipped": total["skipped"],
        "doctor": "failed" if doctor else "ok",
    }


def about(wheel, cuda):
    """What a table is of, by which a release knows its own."""
    return {"wheel": wheel.name, "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(), "machine": platform.machine(),
            "cuda": cuda}


def is_bad(row):
    """Whether something failed. A row of NEXT whose Python is not there says so in the doctor's place, and has not failed."""
    return bool(row["failed"]) or row["doctor"] != "ok" and not row["doctor"].startswith("skipped")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", required=True, type=pathlib.Path, help="or a folder that has the one for this machine")
    parser.add_argument("--json", type=pathlib.Path, help="also write the table here")
    parser.add_argument("--cuda", action="store_true", help="install tensorflow[and-cuda]")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(ALL)}; all by default")
    a = parser.parse_args()
    for version in a.versions:
        if version not in ALL:
            parser.error(f"{version} is not one of {', '.join(ALL)}")
    if a.wheel.is_dir():
        found = list(a.wheel.glob(f"*_{platform.machine()}.whl"))
        if len(found) != 1:
            parser.error(f"{a.wheel} has {len(found)} wheels for {platform.machine()}")
        a.wheel = found[0]

    rows = []
    for version in a.versions or ALL:
        start = time.time()
        try:
            row = test(version, a.wheel.resolve(), a.cuda)
        except (Failed, Skipped) as why:
            row = {"passed": 0, "failed": int(isinstance(why, Failed)), "skipped": 0, "doctor": str(why)}
        rows.append({"tensorflow": version, **row, "seconds": round(time.time() - start)})
        say(", ".join(f"{value}" if key == "tensorflow" else f"{key} {value}" for key, value in rows[-1].items()))
        if a.json:
            a.json.write_text(json.dumps({**about(a.wheel, a.cuda), "rows": rows}, indent=2) + "\n")
    for row in [dict(zip(COLUMNS, COLUMNS)), *rows]:
        print("  ".join(f"{row[column]!s:>16}" for column in COLUMNS))
    sys.exit(any(map(is_bad, rows)))


if __name__ == "__main__":
    main()
