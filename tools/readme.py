"""Writes the generated tables into README.md, between their markers; --check only says whether they are up to date.

  ./run python tools/readme.py [--check]
"""
import json
import pathlib
import re
import sys

from tfuse import _bench, _ops

ROOT = pathlib.Path(__file__).resolve().parent.parent


def filled(text):
    tables = {"bench": _bench.table(json.loads((ROOT / "benchmarks/nvidia_h200.json").read_text())), "ops": _ops.markdown()}
    for name, table in tables.items():
        text = re.sub(r"(<!-- %s -->\n).*?(<!-- /%s -->)" % (name, name), lambda m: m[1] + table + "\n" + m[2], text, flags=re.S)
    return text


def main():
    path = ROOT / "README.md"
    before = path.read_text()
    after = filled(before)
    if "--check" in sys.argv:
        return "README.md: run ./run python tools/readme.py" if after != before else 0
    path.write_text(after)


if __name__ == "__main__":
    sys.exit(main())
