"""Rows of the tables of tfuse.enable() that cannot be installed, and why: another release of Keras or KerasHub may keep what a
row names in another place. Keras's own code then runs, so tfuse.enable() warns, and explain() and the doctor list the rows."""

import functools
import sys
import warnings

from tfuse._core._explain import reason

ABSENT = object()
# By package: its name, and the newest release that all rows are tested with. Of an older one it is known what it lacks.
TESTED = {"keras": ("Keras", (3, 15)), "keras_hub": ("KerasHub", (0, 32))}


def release(version):
    """The first two numbers of a version."""
    return tuple(int(number) for number in version.split(".")[:2])


def root(row):
    return row.module.partition(".")[0]


def place(row):
    """What a row replaces: the module or class that has it, its name there, and what it is, or ABSENT. The first is None where
    there is no such module or class."""
    *path, name = row.attribute.split(".")
    owner = functools.reduce(lambda owner, part: getattr(owner, part, None), path, sys.modules.get(row.module))
    return owner, name, ABSENT if owner is None else vars(owner).get(name, ABSENT)


@reason
def why_missing(row):
    """Why a row has nothing to replace, or ""."""
    owner, _, there = place(row)
    if there is ABSENT and not (owner is not None and isinstance(row.serve, property)):
        package = sys.modules[root(row)]
        release = "%s %s" % (TESTED.get(root(row), [package.__name__])[0], getattr(package, "__version__", ""))
        yield row.module not in sys.modules and "%s has no %s" % (release, row.module)
        yield "%s has no such name in %s" % (release, row.module)


def missing(table):
    """{row: why it is not installed}, of the packages that are imported."""
    rows = [row for row in table if root(row) in sys.modules]
    found = {row: why for row in rows for why in [why_missing(row)] if why}
    parts = {row.part_of: why for row, why in found.items() if row.part_of}
    together = {row: "%s is replaced as a whole, and %s" % (row.part_of, parts[row.part_of])
                for row in rows if row.part_of in parts and row not in found}
    return {**found, **together}


def is_newer(package):
    """Whether a package is newer than what was tested."""
    return release(sys.modules[package].__version__) > TESTED[package][1]


@functools.lru_cache(None)
def warn_once(text):
    warnings.warn(text, RuntimeWarning, stacklevel=5)


def warn(table):
    """Warns of rows that a release should have: one that is older than those that were tested never had them."""
    odd = {row: why for row, why in missing(table).items()
           if release(sys.modules[root(row)].__version__) >= TESTED.get(root(row), [0, (0,)])[1]}
    if odd:
        warn_once("tfuse.enable() leaves to Keras what it finds no place for. %s. python -m tfuse doctor and tfuse.explain() "
                  "list it" % summary(odd))


def summary(rows):
    """{row: why} in a line."""
    reasons = {}
    for row, why in rows.items():
        reasons.setdefault(why, []).append(row.attribute)
    return "; ".join("%s: %s" % (why, ", ".join(names)) for why, names in reasons.items())
