"""Writes a stand-in for libtensorflow_framework.so.2, to link against where the real one is missing or another machine's:
an empty function for each function of TensorFlow's C API that the sources name.

  tf_stub.py --out stub.c FILE ...     .c files name functions, TensorFlow's .h files say which names are functions
"""
import argparse
import pathlib
import re

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("files", nargs="+")
    a = parser.parse_args()
    declared, named = set(), set()
    for path in a.files:
        code = COMMENT.sub("", pathlib.Path(path).read_text())
        if path.endswith(".h"):
            declared |= set(re.findall(r"\bTF_\w+(?=\()", code))
        else:
            named |= set(re.findall(r"\bTF_\w+", code))
    a.out.write_text("".join(f"void {name}(void) {{}}\n" for name in sorted(declared & named)))


if __name__ == "__main__":
    main()
