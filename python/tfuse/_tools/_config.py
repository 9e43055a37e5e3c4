"""python -m tfuse config --cflags --libs: what a C program that runs models is compiled and linked with."""

import argparse
import shlex
import sys

from tfuse._tools import _build_op, _model

EXAMPLE = """example:
  cc serve.c -o serve $(python -m tfuse config --cflags --libs)

Paths are quoted for the shell where they have to be, and then the whole line wants an eval."""


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse config", epilog=EXAMPLE,
                                     description="Prints the flags for a C program that includes model.h.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cflags", action="store_true", help="where the headers are")
    parser.add_argument("--libs", action="store_true", help="the library, and where a program finds it when it runs")
    chosen = parser.parse_args(arguments)
    flags = []
    try:
        if chosen.cflags or not chosen.libs:
            flags += ["-I%s" % (_build_op.include() / folder) for folder in ("ops", "serving")]
        if chosen.libs or not chosen.cflags:
            home = _model.file("libtfuse_model.so").parent
            flags += ["-L%s" % home, "-ltfuse_model", "-Wl,-rpath,%s" % home]
    except _model.NotThere as error:
        print(error, file=sys.stderr)
        return 1
    print(shlex.join(flags))
    return 0
