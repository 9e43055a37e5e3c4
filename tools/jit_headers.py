"""What tfuse.jit compiles with a user's source, as C that carries the text.

  jit_headers.py --out FILE HEADER ...
      The C file defines jit_headers[] of kernels/jit/nvrtc.h. A header is known by its place in the repository; those of
      kernels/jit and ops by their names alone. Comments are left out, since they would be read in vain each time.
"""
import argparse
import json
import os
import pathlib
import re

from nvrtc import C_HEADERS

# Where core's headers say pack.cuh, which wants CUDA's own, they get jit's types, which do not.
ALIASES = {"kernels/core/device/pack.cuh": '#include "jit_types.cuh"\n'}
COMMENT = re.compile(r"/\*.*?\*/", re.S)


def texts(paths):
    found = {**C_HEADERS, **ALIASES}
    for path in paths:
        name = os.path.basename(path) if os.path.dirname(path) in ("kernels/jit", "ops") else path
        found[name] = COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), pathlib.Path(path).read_text())
    quoted = lambda text: json.dumps(text, ensure_ascii=False).replace("?", "\\?")
    rows = ["  {%s,\n%s}," % (quoted(name), "\n".join("   " + quoted(line) for line in text.splitlines(True)))
            for name, text in found.items()]
    first = ['#include "kernels/jit/nvrtc.h"', "", "const jit_header jit_headers[] = {"]
    return "\n".join([*first, *rows, "  {0, 0},", "};", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("headers", nargs="+")
    a = parser.parse_args()
    a.out.write_text(texts(a.headers))


if __name__ == "__main__":
    main()
