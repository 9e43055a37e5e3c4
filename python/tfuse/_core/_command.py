"""Imported first: `python -m tfuse` imports the package, and TensorFlow with it, before any line of a command runs."""

import os
import sys


def _say(kind, error, trace):
    """One line for an ImportError that says what is missing; a name that a module of tfuse lacks is a bug, and keeps its trace."""
    if issubclass(kind, ImportError) and not (error.name or "").startswith("tfuse"):
        print("tfuse cannot be used here: %s" % error, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


_words = getattr(sys, "orig_argv", [])  # Python 3.9 has none
if ["-m", "tfuse"] in [_words[i:i + 2] for i in range(len(_words))]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # nobody wants TensorFlow's log of a command
    sys.excepthook = _say  # the package is imported before tfuse/__main__.py, which could catch nothing of that
