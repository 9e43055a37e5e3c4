"""The table of cells: what the tests in tests/ops meet. Each number counts the pairs of options and dtype (of
test_rejects: the rejected inputs) that a test meets of a case on a route; on the CPU, and on a GPU where there is one.

  ./run cells [--list]
      --list prints one cell per line instead, so that two trees can be compared.
"""

import argparse
import collections
import importlib
import itertools
import pathlib
import sys

Cell = collections.namedtuple("Cell", ["test", "case", "options", "dtype", "route"])


def of(*tests):
    """The cells that test functions are called for, as pytest makes them of their parametrize marks."""
    for test in tests:
        marks = [mark.args for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        for values in itertools.product(*(rows for _, rows in marks)):
            parameters = {"options": {}, "dtype": "any", "route": "eager"}
            for (names, _), value in zip(marks, values):
                names = names.split(", ")
                parameters.update(zip(names, value if len(names) > 1 else [value]))
            if "case" in parameters:
                yield Cell(test.__name__, *(parameters[name] for name in Cell._fields[1:]))


def words(options):
    """Options as text."""
    return ", ".join("%s=%s" % pair for pair in options.items())


def main():
    parser = argparse.ArgumentParser(prog="./run cells", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="one cell per line")
    arguments = parser.parse_args()
    folder = pathlib.Path(__file__).resolve().parent / "ops"
    sys.path.append(str(folder))
    import case_runs

    modules = [importlib.import_module(path.stem) for path in sorted(folder.glob("test_*.py"))]
    table = list(of(*(test for module in modules for name, test in vars(module).items() if name.startswith("test_"))))
    if arguments.list:
        for cell in table:
            print(" | ".join([cell.test, cell.case.name, words(cell.options), cell.dtype, cell.route]))
        return
    columns = list(dict.fromkeys((cell.test, cell.route) for cell in table))
    for number, column in enumerate(columns):
        print("%3d  %s, %s" % (number, *column))
    rows = [["case", *map(str, range(len(columns))), "ops"]]
    for case in case_runs.ALL:
        count = collections.Counter((cell.test, cell.route) for cell in table if cell.case is case)
        rows.append([case_runs.full_name(case), *(str(count[column]) for column in columns),
                     " ".join(sorted(case_runs.ops()[case.name]))])
    widths = [max(map(len, column)) for column in zip(*rows)]
    print()
    for row in rows:
        print("  ".join([row[0].ljust(widths[0]), *(n.rjust(w) for n, w in zip(row[1:-1], widths[1:])), row[-1]]))
    print("\n%d cells of %d ops" % (len(table), len(set().union(*case_runs.ops().values()))))


if __name__ == "__main__":
    sys.exit(main())
