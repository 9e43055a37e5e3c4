"""python -m tfuse cache: what was chosen by timing on this machine's GPUs, and where it is kept (kernels/core/tuned.h)."""

import argparse
import os

from tfuse import _library

FIRST_LINE = "tfuse tuned 1"


def path():
    """The file, or "" where there is no place for one."""
    return _library.library.tfu_tuned_path().decode()


def rows():
    """(what was asked, microseconds, the choice's name) of every whole line. None: there is no such file."""
    try:
        with open(path(), errors="replace") as file:
            first, *lines = file.read().split("\n")
    except OSError:
        return None
    if first != FIRST_LINE:
        return []
    fields = [line.split("\t") for line in lines]
    return [(asked, float(time), name) for asked, time, _, name, sum in (f for f in fields if len(f) == 5)
            if int(sum, 16) == _hash("\t".join((asked, time, _, name)))]


def _hash(text):
    """FNV-1a, as the library computes it."""
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tfuse cache", formatter_class=argparse.RawDescriptionHelpFormatter, description=(
            "Matrix products are timed once per shape, dtype and GPU, to choose the fastest of several ways. The choices are\n"
            "kept in a file of the user's. TFUSE_CACHE names another folder for it, TFUSE_AUTOTUNE=0 switches timing and\n"
            "file off."))
    parser.add_argument("--clear", action="store_true", help="delete the file; what is needed again is timed again")
    parser.add_argument("--path", action="store_true", help="say where the file is, and nothing else")
    chosen = parser.parse_args(arguments)
    if chosen.path:
        print(path())
        return 0
    if not path():
        print("there is no place for a cache: set TFUSE_CACHE, XDG_CACHE_HOME or HOME to a folder")
        return 1
    known = rows()
    if chosen.clear:
        if known is not None:
            os.remove(path())
        print("%s: %s" % (path(), "there was none" if known is None else "deleted, with %d choices" % len(known)))
        return 0
    print("%s: %s" % (path(), "not there yet" if known is None else "%d choices" % len(known)))
    for asked, time, name in sorted(known or []):
        print("%10.1f us  %s\n               %s" % (time, asked, name))
    return 0
