"""Writes the generated parts of README.md and docs/, between their markers; --check only says whether they are up to date.

  ./run python tools/readme.py [--check]
"""
import json
import pathlib
import re
import sys

from tfuse import _bench, _ops

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Files, and what commands print between the markers <!-- name --> and <!-- /name --> in each.
TABLES = {
    "README.md": {"ops": _ops.markdown},
    "docs/benchmarks.md": {"bench": lambda: _bench.table(json.loads((ROOT / "benchmarks/nvidia_h200.json").read_text()))},
}


def filled(text, tables):
    for name, table in tables.items():
        between = r"(<!-- %s -->\n).*?(<!-- /%s -->)" % (name, name)
        text = re.sub(between, lambda m: m[1] + table() + "\n" + m[2], text, flags=re.S)
    return text


def main():
    for name, tables in TABLES.items():
        before = (ROOT / name).read_text()
        after = filled(before, tables)
        if after != before and "--check" in sys.argv:
            return name + ": run ./run python tools/readme.py"
        (ROOT / name).write_text(after)


if __name__ == "__main__":
    sys.exit(main())
