"""python -m tfuse COMMAND: doctor, bench, demo, generate, calibrate, profile, export, serve, check, … (COMMANDS has all)."""

import argparse
import contextlib
import io
import os
import signal
import sys

COMMANDS = {
    "doctor": "check this machine: TensorFlow, the library, GPUs, NVIDIA's libraries, and every op against NumPy",
    "bench": "time ops beside stock TensorFlow and XLA, in milliseconds and as a share of memory bandwidth",
    "demo": "train GPT-2 in Keras, stock and with tfuse, side by side: losses, time, memory, and what it writes",
    "generate": "continue a text with a saved language model of KerasHub: its text as it comes, and tokens a second",
    "calibrate": "quantise a saved model to 8 bits, with ranges of activations that are measured on data",
    "profile": "run a script's steps under the profiler: where the time goes, and how much of it tfuse could serve",
    "export": "write a model of Keras, or a SavedModel, into a folder of models that Triton serves",
    "serve": "start a Triton Inference Server for a folder of models: SavedModels, with or without tfuse's ops",
    "check": "look at a model as a server runs it: which ops are tfuse's, whether they run here, and how fast",
    "config": "print the flags that a C program which runs models is compiled and linked with",
    "tune": "for authors of ops: find the best launch parameters on this GPU by measurement, or list them",
    "ops": "list the ops that the library registers",
    "cache": "show or clear what is kept between runs: autotuning results and compiled jit kernels",
    "new-op": "write the files of a new op, ready to edit, into a checkout of tfuse or your own repository",
    "build-op": "build a library of your own ops for tfuse.load()",
}


def main(arguments=None):
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # paths that are not UTF-8 are printed as they are
    try:
        try:
            return run(arguments)
        finally:
            if sys.stdout:
                sys.stdout.flush()  # here, where a reader that has gone, as head goes, is met in one place
    except BrokenPipeError:
        return left(128 + signal.SIGPIPE)  # as a shell says it of other commands
    except KeyboardInterrupt:
        return left(128 + signal.SIGINT)
    except OSError as error:
        if error.errno is None:  # it is not the system's, whose words name the file and what is wrong with it
            raise
        print("python -m tfuse: %s" % error, file=sys.stderr)
        return left(1)


def left(status):
    """The status, after what is left over for stdout is given up: it is written when Python ends."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there is no stdout, or it is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def run(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse", description="Fused operations for TensorFlow and Keras.",
                                     epilog="Start with doctor. COMMAND --help says more.",
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND",
                        help="\n".join("%-9s %s" % row for row in COMMANDS.items()))
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="the command's own arguments")
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help()
        return 2
    chosen = parser.parse_args(arguments)
    if any("\0" in word for word in chosen.rest):
        parser.error("an argument has a NUL in it, which no file's name can have")
    try:
        command = __import__("tfuse._tools._" + chosen.command.replace("-", "_"), fromlist=["main"])
    except ImportError as error:
        if (error.name or "").startswith("tfuse"):
            raise
        print("tfuse cannot be used here: %s" % error, file=sys.stderr)
        return 1
    return command.main(chosen.rest)


if __name__ == "__main__":
    sys.exit(main())
