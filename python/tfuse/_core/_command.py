"""Imported first: `python -m tfuse` imports the package, and TensorFlow with it, before any line of a command runs."""

import os
import sys

_words = getattr(sys, "orig_argv", [])  # Python 3.9 has none
if ["-m", "tfuse"] in [_words[i:i + 2] for i in range(len(_words))]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # nobody wants TensorFlow's log of a command
