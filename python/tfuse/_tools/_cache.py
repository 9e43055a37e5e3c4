"""python -m tfuse cache: what was chosen by timing on this machine's GPUs (kernels/core/gpu/tuned.h) and what was compiled there
(kernels/jit/cubins.h), and where it is kept."""

import argparse
import os
import pathlib

from tfuse._core import _library

FIRST_LINE = "tfuse tuned 1"


def path():
    """The file, or "" where there is no place for one."""
    return _library.library.tfu_tuned_path().decode()


def rows():
    """(what was asked, microseconds, the choice's name) of every whole line. None: there is no such file."""
    try:
        with open(path(), "rb") as file:
            first, *lines = file.read().split(b"\n")[:-1] or [b""]
    except FileNotFoundError:
        return None
    return [row for row in map(_row, lines) if row] if first == FIRST_LINE.encode() else []


def _row(line):
    """What rows() gives of a line; None where it is damaged."""
    whole, _, checksum = line.rpartition(b"\t")
    fields = whole.decode(errors="replace").split("\t")
    if len(fields) != 4 or checksum != b"%016x" % _hash(whole):
        return None
    try:
        time = float(fields[1])
    except ValueError:
        return None
    return (fields[0], time, fields[3]) if 0 < time < float("inf") else None


def _hash(line):
    """FNV-1a, as the library computes it."""
    value = 0xcbf29ce484222325
    for byte in line:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value


def kernels():
    """The files of compiled kernels. Another program's, in the same folder, are none of them: --clear deletes these."""
    folder = pathlib.Path(_library.library.tfu_jit_folder().decode())
    try:
        return sorted(file for file in folder.iterdir() if _library.library.tfu_jit_is_own(os.fsencode(file.name))) if (
            str(folder) != ".") else []
    except OSError:
        return []


def _show_kernels(files, what):
    size = sum(file.stat().st_size for file in files)
    count = sum(not file.name.startswith("nvrtc-") for file in files)  # those say which NVRTC has compiled
    if files:
        print("%s: %s%d compiled kernels, %.1f KB" % (files[0].parent, what, count, size / 1000))


def _clear_kernels():
    files = kernels()
    _show_kernels(files, "deleted, with ")
    for file in files:
        file.unlink(missing_ok=True)


def _clear():
    if not os.path.lexists(path()):
        print("%s: there was none" % path())
        return 0
    if not _library.library.tfu_tuned_is_own():
        print("%s: is not deleted, since it is not a file that tfuse wrote and may read: remove it, or set TFUSE_CACHE to a "
              "folder for tfuse alone" % path())
        return 1
    try:
        known = rows()
        os.remove(path())
    except OSError as error:
        print("%s: cannot be deleted: %s" % (path(), error.strerror))
        return 1
    else:
        print("%s: deleted%s" % (path(), ", with %d choices" % len(known) if known else ""))
    return 0


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tfuse cache", formatter_class=argparse.RawDescriptionHelpFormatter, description=(
            "Shows what tfuse keeps between runs, and where.\n\n"
            "Matrix products and convolutions are timed once per shape, dtype and GPU, to find the fastest of several\n"
            "algorithms. The results are kept in a file per user; TFUSE_AUTOTUNE=0 turns timing and file off. Compiled\n"
            "kernels of tfuse.jit are in the folder jit beside the file. TFUSE_CACHE names another folder for both."))
    parser.add_argument("--clear", action="store_true", help="delete everything; it is timed or compiled again when needed")
    parser.add_argument("--path", action="store_true", help="print only the path of the file")
    chosen = parser.parse_args(arguments)
    if chosen.path:
        print(path())
        return 0
    if not path():
        print("there is no place for a cache: set TFUSE_CACHE, XDG_CACHE_HOME or HOME to a folder")
        return 1
    if chosen.clear:
        _clear_kernels()
        return _clear()
    try:
        known = rows()
    except OSError as error:
        print("%s: cannot be read: %s" % (path(), error.strerror))
        return 1
    print("%s: %s" % (path(), "not there yet" if known is None else "%d choices" % len(known)))
    for asked, time, name in sorted(known or []):
        print("%10.1f us  %s\n               %s" % (time, asked, name))
    _show_kernels(kernels(), "")
    return 0
