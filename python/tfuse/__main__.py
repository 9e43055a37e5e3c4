"""python -m tfuse COMMAND: doctor, bench, demo, generate, calibrate, profile, export, serve, check, … (COMMANDS has all)."""

import argparse
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
    try:
        try:
            return run(arguments)
        finally:
            sys.stdout.flush()  # here, where a reader that has gone, as head goes, is met in one place
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left over is written when Python ends
        return 128 + signal.SIGPIPE  # as a shell says it of other commands


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
    try:
        command = __import__("tfuse._tools._" + chosen.command.replace("-", "_"), fromlist=["main"])
    except ImportError as error:
        print("tfuse cannot be used here: %s" % error, file=sys.stderr)
        return 1
    return command.main(chosen.rest)


if __name__ == "__main__":
    sys.exit(main())
