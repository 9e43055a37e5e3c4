"""What commands ask of files before they begin long work: whether one can be read as a model, and whether one can be written."""

import os
import pathlib
import tempfile


def first_line(error):
    """An error in one line, with its type, which is all that some say."""
    return ("%s: %s" % (type(error).__name__, (str(error).strip().splitlines() or [""])[0][:300])).rstrip(": ")


def loaded(path, load, exists=None):
    """What load() makes of a file, or a SystemExit: a damaged file is met with any exception, by zipfile, h5py, json or Keras.
    exists: the file to look for, where that is another."""
    if not os.path.exists(exists or path):
        raise SystemExit("there is no %s" % path)
    try:
        return load(path)
    except Exception as error:
        raise SystemExit("%s cannot be loaded: %s" % (path, first_line(error))) from error


def check_folder(option, path):
    """Makes a folder, and refuses one that nothing can be written into."""
    try:
        os.makedirs(path, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise SystemExit("%s: nothing can be written into %s: %s" % (option, path, error.strerror))


def check_writable(option, path):
    """Refuses a file that could not be written: what it would hold may take long to compute."""
    path = pathlib.Path(path).absolute()
    if not path.parent.is_dir():
        raise SystemExit("%s: there is no folder %s for %s" % (option, path.parent, path.name))
    if path.is_dir():
        raise SystemExit("%s: %s is a folder, and a file is wanted" % (option, path))
    try:
        if path.exists():
            open(path, "ab").close()
        else:
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise SystemExit("%s: %s cannot be written: %s" % (option, path, error.strerror))
