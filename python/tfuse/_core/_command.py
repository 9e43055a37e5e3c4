"""Imported first: `python -m tfuse` imports the package, and TensorFlow with it, before any line of a command runs."""

import os
import sys

if ["-m", "tfuse"] in [sys.orig_argv[i:i + 2] for i in range(len(sys.orig_argv))]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # nobody wants TensorFlow's log of a command
