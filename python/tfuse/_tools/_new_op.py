"""python -m tfuse new-op NAME: writes the files of a new op, into a checkout of tfuse or a repository of your own.

Writes all of an op: kernels for CPU and GPU, its gradient, the Python function, and the case that tests and benchmark
read. It computes a placeholder until you put in your own formula. The files build, and pass the shared tests, as
they are. docs/new_op.md describes them. Kinds:

  elementwise  formulas, written once for CPU and GPU; inputs after the first are weights per channel, at most 4
  rows         kernels that see a whole row, the last axis, before they write it; one input
  map          kernels of the op's own over the elements; at most 2 inputs, of one shape

Examples, in a checkout, and for a repository of your own:

  ./run python -m tfuse new-op softsign
  ./run python -m tfuse new-op rational --inputs "x, a, b" --layer
  python -m tfuse new-op my_bend --attributes "alpha: float = 0.5" --into my_ops
"""

import argparse
import builtins
import importlib.util
import keyword
import math
import pathlib
import re
import shlex
import sys

import tfuse
from tfuse._core import _library
from tfuse._tools._new_op_words import FAMILIES, Op, camel, filled, words

MOST_INPUTS = {"elementwise": 5, "rows": 1, "map": 2}
MOST_NUMBERS = 5  # weights and attributes, TFU_CHANNEL_WEIGHTS of kernels/core/channels.h
_C_WORDS = set("""auto bool case char class const default delete do double enum extern float goto inline int long main
namespace new operator register restrict short signed sizeof static struct switch template this typedef union unsigned
void volatile""".split())
_OURS = {"dy", "dtype", "value", "y"}  # names that the files use themselves
# And those of functions' bodies, beside single letters.
_LOCALS = set("""arg at begin bits call channels col cols dx each end in inputs job left module node np out plan products range real
result ring root row rows run share shape squares sum sums task tf tfuse tile walk xs ys ds gs""".split())


class Refused(Exception):
    pass


def checkout():
    """The checkout that the current folder is in."""
    here = pathlib.Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "ops/ops.def").exists() and (folder / "python/tfuse/__init__.py").exists():
            return folder
    raise Refused("%s is not in a checkout of tfuse, to whose sources an op is added: --into FOLDER writes it into a "
                  "repository of your own" % here)


def _check_word(what, word, most):
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z][a-z0-9]*)*", word) or len(word) > most:
        raise Refused("%s must be small letters and digits, as in scale_bias, at most %d, and each part must begin with "
                      "a letter; got %r" % (what, most, word))
    if keyword.iskeyword(word) or word in _C_WORDS:
        raise Refused("%s must not be a word of Python, C or CUDA, got %r" % (what, word))


def check(op, taken):
    """Refuses names that cannot be; `taken` are those of other ops, functions and files."""
    _check_word("NAME", op.stem, 24)
    if hasattr(math, op.stem) or hasattr(builtins, op.stem) or op.stem.endswith("_grad"):
        raise Refused("NAME must not be that of a function of C or Python, nor end in _grad, got %r" % op.stem)
    if taken:
        raise Refused("there is %s already: take another name" % ", ".join(taken))
    for name in op.inputs:
        _check_word("a name in --inputs", name, 12)
        if name in _OURS or name == op.stem:
            raise Refused("an input must not be called %r: the files use this name themselves" % name)
    gradients = ["d" + name for name in op.inputs]
    if len({*op.inputs, *gradients}) < 2 * len(op.inputs):
        raise Refused("--inputs must be names that differ from each other and from their gradients, %s; got %s" % (
            ", ".join(gradients), ", ".join(op.inputs)))
    most = MOST_INPUTS[op.kind]
    if len(op.inputs) > most:
        raise Refused("an op of kind %s has at most %d input%s here, got %d: %s. docs/new_op.md says which op to copy "
                      "for more" % (op.kind, most, "s" * (most > 1), len(op.inputs), ", ".join(op.inputs)))
    for name in op.attributes:
        _check_word("a name in --attributes", name, 12)
        if len(name) == 1 or name in {*_OURS, *_LOCALS, *op.inputs, *gradients, op.stem}:
            raise Refused("an attribute must not be called %r: the files use this name themselves" % name)
    if len(op.weights) + len(op.attributes) > MOST_NUMBERS:
        raise Refused("an op has at most %d weights and attributes here, got %d: %s. docs/new_op.md says which op to copy for "
                      "more" % (MOST_NUMBERS, len(op.weights) + len(op.attributes), ", ".join([*op.weights, *op.attributes])))


def attributes_of(text):
    """{name: default} of what --attributes was given."""
    found = {}
    for part in filter(None, map(str.strip, (text or "").split(","))):
        parts = re.fullmatch(r"(\w+)\s*:\s*float\s*=\s*(-?\d+(?:\.\d*)?(?:e-?\d+)?)", part)
        if not parts or parts[1] in found:
            raise Refused("--attributes must be floats with a default, each with a name of its own, as in \"alpha: float = "
                          "0.5, beta: float = 1\"; got %r. docs/new_op.md#attributes tells of others" % part)
        found[parts[1]] = parts[2]
    return found


def taken_in_checkout(root, stem):
    public = (root / "python/tfuse/__init__.py").read_text()
    known = set(re.findall(r"X\((\w+)\)", (root / "ops/ops.def").read_text())) | set(re.findall(r"\w+", public))
    return sorted(known & {stem, stem + "_grad", camel(stem)}) + [str(path) for path in root.glob("*/*/%s.*" % stem)]


def taken_in_repository(folder, stem):
    """tfuse's own names, too: its ops and those of the user are registered side by side."""
    ours = [name for name in (stem, stem + "_grad", camel(stem))
            if hasattr(tfuse, name) or _library.library.tfu_doc(b"tfuse." + name.encode())]
    module = importlib.util.find_spec(stem) if re.fullmatch(r"\w+", stem) else None
    there = [str(path) for path in sorted(folder.glob("**/%s*" % stem)) if re.fullmatch(
        r"(test_)?%s((_cpu|_gpu)?\.c|\.h|\.cu|\.py)" % re.escape(stem), path.name)]
    return ours + (there or ["a Python module " + stem] * (module is not None))


def _sources(op, found):
    """The C and CUDA files: the end of their names -> text."""
    header = "weights.h" if op.weights or op.attributes and op.kind == "elementwise" else op.kind + ".h"
    return {".h": filled(header, found), **{end: filled(op.kind + end, found) for end in ("_cpu.c", "_gpu.c", ".cu")}}


def _python(op, found):
    return "".join(filled(part, found) for part in ["op.py"] + ["layer.py"] * op.layer)


def _new_files(op, found):
    """Path below the root -> text."""
    files = {"ops/%s/%s.c" % (op.family, op.stem): filled("row.c", found),
             "python/tfuse/%s/%s.py" % (op.family, op.stem): _python(op, found),
             "python/tfuse/cases/%s/%s.py" % (op.family, op.stem): filled("case.py", found)}
    for end, text in _sources(op, found).items():
        files["kernels/%s/%s%s" % (op.family, op.stem, end)] = text
    return files


def new_op_of_ones_own(folder, op):
    """The same in a folder of the user's: all files side by side, with a test of their own."""
    check(op, taken_in_repository(folder, op.stem))
    found, ops = words(op), folder / "ops.def"
    texts = {op.stem + ".c": filled("row.c", found), op.stem + ".py": _python(op, found),
             "test_%s.py" % op.stem: filled("test.py", found),
             **{op.stem + end: text for end, text in _sources(op, found).items()}}
    folder.mkdir(parents=True, exist_ok=True)
    was = ops.read_text() if ops.exists() else ""
    ops.write_text(was + "X(%s)\nX(%s_grad)\n" % (op.stem, op.stem))
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [*texts, *["ops.def"] * (not was)], ["ops.def"] * bool(was)


def _inserted(text, lines, pattern, key):
    """text with lines before the first line whose name, the pattern's group, comes after the key, else after the last
    of them and what belongs to it."""
    found = [m for m in re.finditer(pattern, text, re.MULTILINE)]
    after = [m.start() for m in found if m[1] > key]
    at = after[0] if after else re.compile(r"^(?=\S)|\Z", re.MULTILINE).search(text, found[-1].end()).start()
    return text[:at] + lines + text[at:]


def _in_family(text, family, stem):
    """The list of modules with one more, on a line of its own where the last has no room."""
    start, members = re.search(r'^( *"%s": \[)([^\]]*)' % family, text, re.MULTILINE).groups()
    full = len((start + members).split("\n")[-1]) + len(stem) > 110
    longer = '%s,%s"%s"' % (start + members, "\n" + " " * len(start) if full else " ", stem)
    return text.replace(start + members, longer)


def _changed_files(root, op):
    """The lists that are edited: path below the root -> new text."""
    stem, axes = op.stem, ["x", *["c" if op.weights else "x"] * (len(op.inputs) - 1)]
    public = (op.name + ", ") * op.layer + stem
    inputs = lambda letters: ", ".join('"%s"' % letter for letter in letters)
    read = lambda path: (root / path).read_text()
    changed = {
        "ops/ops.def": _inserted(read("ops/ops.def"), "X(%s)\nX(%s_grad)\n" % (stem, stem), r"^X\((\w+)\)\n", stem),
        "python/tfuse/__init__.py": _inserted(
            read("python/tfuse/__init__.py"), "from tfuse.%s.%s import %s\n" % (op.family, stem, public),
            r"^from tfuse\.%s\.(\w+) import " % op.family, stem),
        "python/tfuse/_tools/_ops.py": _in_family(read("python/tfuse/_tools/_ops.py"), op.family, stem),
        "tests/core/kernels_test.c": _inserted(
            read("tests/core/kernels_test.c"), '    {&tfu_%s, {%s}, ""},\n    {&tfu_%s_grad, {%s}, ""},\n' % (
                stem, inputs(axes), stem, inputs(["x", *axes])), r"^    \{&tfu_(\w+),", stem),
    }
    if op.weights:
        head = "These ops do not have it:\n\n| op | why it is not captured |\n|---|---|\n"
        row = "| `%s_grad` | partial sums, more of them for more channels |\n" % stem
        changed["docs/design.md"] = read("docs/design.md").replace(head, head + row)
    return changed


def new_op(root, op):
    """Writes the op's files below the root; returns the paths of those that are new, and of those that were changed.
    Refuses before anything is written."""
    check(op, taken_in_checkout(root, op.stem))
    new, changed = _new_files(op, words(op)), _changed_files(root, op)
    for path, text in {**new, **changed}.items():
        (root / path).write_text(text)
    return list(new), list(changed)


def _places(op, paths):
    """The files that spell the placeholder out, and where in them."""
    kernels = [".h"] if op.kind == "elementwise" else ["_cpu.c", ".cu"]
    where = {**dict.fromkeys(["/%s%s" % (op.stem, end) for end in kernels], "the formulas"),
             "/%s.py" % op.stem: "_plain, and the docstrings",
             "/cases/%s/%s.py" % (op.family, op.stem): "reference and _gradient",
             "/test_%s.py" % op.stem: "reference and _gradient",
             "/%s.c" % op.stem: "the first line, and .doc"}
    wide, found = max(map(len, paths)), {}
    for end, what in where.items():
        found.update({path: what for path in paths if ("/" + path).endswith(end)})
    return ["%-*s  %s" % (wide, path, what) for path, what in found.items()]


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse new-op", description=__doc__.partition("\n\n")[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME",
                        help="of the op, its files and its function, in lower case, for example scale_bias_act")
    parser.add_argument("--kind", choices=FAMILIES, default="elementwise", help="see above; default: elementwise")
    parser.add_argument("--inputs", default="x", metavar="NAMES",
                        help='comma-separated, for example "x, scale"; default: x')
    parser.add_argument("--attributes", metavar="LIST", help='numbers that are constant during a call and used by '
                        'formulas, with their defaults: "alpha: float = 0.5, beta: float = 1"')
    parser.add_argument("--layer", action="store_true", help="write a Keras layer, too")
    parser.add_argument("--into", metavar="FOLDER", type=pathlib.Path, help="write into this folder of your own repository, "
                        "new or with ops in it, rather than into a checkout of tfuse")
    chosen = parser.parse_args(arguments)
    names = [name.strip() for name in chosen.inputs.split(",")]
    try:
        op = Op(chosen.name, names, chosen.kind, attributes_of(chosen.attributes), chosen.layer, chosen.into is not None)
        new, changed = new_op_of_ones_own(chosen.into.resolve(), op) if op.own else new_op(checkout(), op)
    except Refused as error:
        print("new-op: %s" % error, file=sys.stderr)
        return 1
    into = shlex.quote(str(chosen.into))
    following = ["python -m tfuse build-op " + into, "python -m pytest " + into] if op.own else [
        "./run format", "./run python -m pytest -q tests/ops -k %s" % op.stem, "./run python tools/readme.py",
        "./run bench %s" % op.stem]
    printed = {"new": new, "changed": changed, "put in your own formulas, where there is %s now" % words(op)["formula"]:
               _places(op, new), "then": following}
    for head, lines in printed.items():
        if lines:
            print("\n  ".join([head + ":", *lines]))
    print("docs/new_op.md tells of all of these")
    return 0
