"""python -m tfuse new-op NAME: writes the files of a new op into a checkout of tfuse, ready to be edited.

Writes all of an op: kernels for CPU and GPU, its gradient, the Python function, and the case that tests and benchmark
read. What it computes is a stand-in until you put your own formula there. The files build, and pass the shared tests, as
they are. docs/new_op.md tells what is in them. Kinds:

  elementwise  formulas, written once for CPU and GPU; inputs after the first are weights per channel, at most 4
  rows         kernels that see a whole row, the last axis, before they write it; one input
  map          kernels of the op's own over the elements; at most 2 inputs, of one shape

Examples, in a checkout:

  ./run python -m tfuse new-op softsign
  ./run python -m tfuse new-op rational --inputs "x, a, b" --layer
"""

import argparse
import builtins
import keyword
import math
import pathlib
import re
import string
import sys

TEMPLATES = pathlib.Path(__file__).with_name("new_op")
FAMILIES = {"elementwise": "elementwise", "rows": "rows", "map": "elementwise"}
MOST_INPUTS = {"elementwise": 5, "rows": 1, "map": 2}
_C_WORDS = set("""auto bool case char class const default delete do double enum extern float goto inline int long main
namespace new operator register restrict short signed sizeof static struct switch template this typedef union unsigned
void volatile""".split())
_OURS = {"dy", "dtype", "value", "y"}  # names that the files use themselves


class Refused(Exception):
    pass


def checkout():
    """The checkout that the current folder is in."""
    here = pathlib.Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "ops/ops.def").exists() and (folder / "python/tfuse/__init__.py").exists():
            return folder
    raise Refused("%s is not in a checkout of tfuse: an op is added to the sources; python -m tfuse build-op is for "
                  "ops of your own outside of them" % here)


def _check_word(what, word, most):
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z][a-z0-9]*)*", word) or len(word) > most:
        raise Refused("%s must be small letters and digits, as in scale_bias, at most %d, and each part must begin with "
                      "a letter; got %r" % (what, most, word))
    if keyword.iskeyword(word) or word in _C_WORDS:
        raise Refused("%s must not be a word of Python, C or CUDA, got %r" % (what, word))


def check(root, stem, names, kind):
    _check_word("NAME", stem, 24)
    if hasattr(math, stem) or hasattr(builtins, stem) or stem.endswith("_grad"):
        raise Refused("NAME must not be that of a function of C or Python, nor end in _grad, got %r" % stem)
    public = (root / "python/tfuse/__init__.py").read_text()
    known = set(re.findall(r"X\((\w+)\)", (root / "ops/ops.def").read_text())) | set(re.findall(r"\w+", public))
    taken = sorted(known & {stem, stem + "_grad", camel(stem)}) + [str(path) for path in root.glob("*/*/%s.*" % stem)]
    if taken:
        raise Refused("there is %s already: take another name" % ", ".join(taken))
    for name in names:
        _check_word("a name in --inputs", name, 12)
        if name in _OURS or name == stem:
            raise Refused("an input must not be called %r: the files use this name themselves" % name)
    gradients = ["d" + name for name in names]
    if len({*names, *gradients}) < 2 * len(names):
        raise Refused("--inputs must be names that differ from each other and from their gradients, %s; got %s" % (
            ", ".join(gradients), ", ".join(names)))
    if len(names) > MOST_INPUTS[kind]:
        raise Refused("an op of kind %s has at most %d input%s here, got %d: %s. docs/new_op.md says which op to copy "
                      "for more" % (kind, MOST_INPUTS[kind], "s" * (MOST_INPUTS[kind] > 1), len(names), ", ".join(names)))


def camel(stem):
    return "".join(part.capitalize() for part in stem.split("_"))


def _filled(template, words):
    return string.Template((TEMPLATES / (template + ".txt")).read_text()).substitute(words)


def _words(stem, names, kind, layer):
    """What the templates' placeholders stand for."""
    first, *rest = names
    weights = rest if kind == "elementwise" else []
    tensors = [name for name in names if name not in weights]
    factor = _sum(weights) + " * " if weights else ""
    if kind == "rows":
        written = lambda absolute, root, mean: "%s / %s(1 + %s)" % (first, root, mean % first)
    else:
        written = lambda absolute, *_: factor + " + ".join("%s / (1 + %s)" % (t, absolute % t) for t in tensors)
    words = {
        "stem": stem, "name": camel(stem), "upper": stem.upper(), "family": FAMILIES[kind], "first": first,
        "args": ", ".join(names), "count": len(names), "weights": len(weights),
        "formula": written("|%s|", "sqrt", "mean(%s^2)"),
        "plain": written("tf.abs(%s)", "tf.sqrt", "tf.reduce_mean(tf.square(%s), -1, keepdims=True)"),
        "reference": written("np.abs(%s)", "np.sqrt", "np.mean(%s**2, -1, keepdims=True)"),
        "sum": _sum(["w[%d]" % i for i in range(len(weights))] or ["1"]),
    }
    words.update(_row_words(names, weights, kind))
    words["shapes"] = _filled("shapes.c", words) if words["checks"] else ""
    words.update(_python_words(names, weights, tensors, layer))
    words.update(_case_words(stem, names, weights, kind, factor))
    return words


def _sum(terms):
    return terms[0] if len(terms) == 1 else "(%s)" % " + ".join(terms)


def _row_words(names, weights, kind):
    first, *rest = names
    typed = lambda prefix: ", ".join('"%s%s: %s"' % (prefix, n, "S" if n in weights else "T") for n in names)
    check = {"elementwise": 'tfu_per_channel(&in[0], "{0}", &in[{1}], err)',
             "map": 'tfu_match("{0}", &in[{1}], "%s", &in[0], err)' % first}
    checks = ['tfu_has_rows("%s", &in[0], err)' % first] if kind == "rows" else [
        check[kind].format(name, i) for i, name in enumerate(rest, 1)]
    about = "\n * %s %s per channel, the last axis of %s." % (" and ".join(weights), "are" if rest[1:] else "is", first)
    return {
        "about": about if weights else "", "checks": "\n".join("  TFU_TRY(%s);" % c for c in checks),
        "inputs": typed(""), "gradients": typed("d"), "types": "TFU_T_FLOATS" + ", TFU_S_REALS" * bool(weights),
        "capturable": "" if weights else "    .capturable = 1,\n",  # partial sums need scratch
        "forward_shape": "forward_shape" if checks else "tfu_shape_like_input",
        "grad_shape": "grad_shape" if checks else "tfu_shape_gradient",
    }


def _python_words(names, weights, tensors, layer):
    first, listed = names[0], ", ".join(names)
    what = lambda n: ("one value per channel, the last axis of " + first if n in weights else
                      "float tensor" + (" of the same shape" if n != first else ""))
    axes = '_AXES = {**dict.fromkeys(["%s", "dy"], "abcdefgc"), **dict.fromkeys([%s], "c")}\n' % (
        first, ", ".join('"%s"' % w for w in weights))
    build = """
    def build(self, input_shape):
        weight = lambda name: self.add_weight(name=name, shape=input_shape[-1:], initializer="ones", autocast=False)
        %s
""" % "\n        ".join('self.%s = weight("%s")' % (w, w) for w in weights)
    several = "%s = (tf.cast(value, real(dtype)) for value in (%s))" % (listed, listed)
    return {
        "cast": several if names[1:] else "%s = tf.cast(%s, real(dtype))" % (first, first),
        "axes": axes if weights else "", "with_axes": ", axes=_AXES" if weights else "",
        "docs": "\n".join("      %s: %s." % (n, what(n)) for n in names),
        "example": ", ".join("tf.ones([64])" if n in weights else "tf.random.normal([32, 64])" for n in names),
        "call": ", ".join([*tensors, *("tf.cast(%s, real(%s.dtype))" % (w, first) for w in weights)]),
        "and_layer": ", and the Keras layer" if layer else "", "import_keras": "import keras\n" if layer else "",
        # the layer
        "learned": ", with %s learned per channel, the last axis" % " and ".join(weights) if weights else "",
        "build": build if weights else "", "tensors": ", ".join(tensors),
        "layer_call": ", ".join([*tensors, *("self." + w for w in weights)]),
        "tensors_example": ", ".join(["tf.random.normal([32, 64])"] * len(tensors)),
        "shapes_of": ", ".join(t + "_shape" for t in tensors) if tensors[1:] else "input_shape",
        "first_shape": first + "_shape" if tensors[1:] else "input_shape",
        "forward_passes": len(tensors) + 1, "backward_passes": 2 * len(tensors) + 1,
    }


def _case_words(stem, names, weights, kind, factor):
    first, *rest = names
    if kind == "rows":
        gradient = ["r = 1 / np.sqrt(1 + np.mean({0}**2, -1, keepdims=True))",
                    "return [cancelling(dy * r, -{0} * r**3 * np.mean(dy * {0}, -1, keepdims=True))]"]
    elif weights:
        gradient = ["r, rows = 1 / (1 + np.abs({0})), tuple(range({0}.ndim - 1))",
                    "return [dy * %sr * r%s]" % (factor, ", total(dy * {0} * r, rows)" * len(weights))]
    else:
        gradient = ["return [%s]" % ", ".join("dy / (1 + np.abs(%s))**2" % n for n in names)]
    integers = ["[1.0]" if n in weights else "[[1]]" for n in names]
    rejects = [("%s: %s must be float32.*got int32" % (stem, first), integers)]
    for wrong in rest:
        ones = ["tf.ones([%s])" % ("4" if n == wrong else "3" if n in weights else "2, 3") for n in names]
        what = "3 values, one per channel" if wrong in weights else "the shape of " + first
        rejects.append(("%s must have %s" % (wrong, what), ones))
    if kind == "rows":
        rejects.append((first + " must have at least one dimension", ["tf.constant(1.0)"]))
    return {
        "case_imports": "Case" + (", Input, total" if weights else ", cancelling" if kind == "rows" else ""),
        "gradient": "".join("    %s\n" % line.format(first) for line in gradient),
        "channels": '\n_channels = Input(lambda shape: shape[-1:], dtype="real")\n' if weights else "",
        "case_inputs": ", ".join(
            '"%s": %s' % (n, "_channels" if n in weights else "lambda shape: shape") for n in names),
        "summed": " summed=lambda shape: shape[-1]," if kind == "rows" else "",
        "rejects": ",\n".join('             ("%s",\n              lambda: tfuse.%s(%s))' % (
            message, stem, ", ".join(values)) for message, values in rejects),
    }


def _new_files(stem, kind, words, layer):
    """Path below the root -> text."""
    family, header = FAMILIES[kind], "weights.h" if words["weights"] else kind + ".h"
    files = {"ops/%s/%s.c" % (family, stem): _filled("row.c", words),
             "kernels/%s/%s.h" % (family, stem): _filled(header, words),
             "python/tfuse/%s/%s.py" % (family, stem): "".join(
                 _filled(part, words) for part in ["op.py"] + ["layer.py"] * layer),
             "python/tfuse/cases/%s/%s.py" % (family, stem): _filled("case.py", words)}
    for ending in ("_cpu.c", "_gpu.c", ".cu"):
        files["kernels/%s/%s%s" % (family, stem, ending)] = _filled(kind + ending, words)
    return files


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


def _changed_files(root, stem, names, words, layer):
    """The lists that are edited: path below the root -> new text."""
    family, axes = words["family"], ["x", *["c" if words["weights"] else "x"] * (len(names) - 1)]
    public = (camel(stem) + ", ") * layer + stem
    inputs = lambda letters: ", ".join('"%s"' % letter for letter in letters)
    read = lambda path: (root / path).read_text()
    changed = {
        "ops/ops.def": _inserted(read("ops/ops.def"), "X(%s)\nX(%s_grad)\n" % (stem, stem), r"^X\((\w+)\)\n", stem),
        "python/tfuse/__init__.py": _inserted(
            read("python/tfuse/__init__.py"), "from tfuse.%s.%s import %s\n" % (family, stem, public),
            r"^from tfuse\.%s\.(\w+) import " % family, stem),
        "python/tfuse/_tools/_ops.py": _in_family(read("python/tfuse/_tools/_ops.py"), family, stem),
        "tests/core/kernels_test.c": _inserted(
            read("tests/core/kernels_test.c"), '    {&tfu_%s, {%s}, ""},\n    {&tfu_%s_grad, {%s}, ""},\n' % (
                stem, inputs(axes), stem, inputs(["x", *axes])), r"^    \{&tfu_(\w+),", stem),
    }
    if words["weights"]:
        head = "Those that have not, and why:\n\n| op | why it is not captured |\n|---|---|\n"
        row = "| `%s_grad` | partial sums, more of them for more channels |\n" % stem
        changed["docs/design.md"] = read("docs/design.md").replace(head, head + row)
    return changed


def new_op(root, stem, names, kind, layer=False):
    """Writes the op's files below the root; returns the paths of those that are new, and of those that were changed.
    Refuses before anything is written."""
    check(root, stem, names, kind)
    words = _words(stem, names, kind, layer)
    new, changed = _new_files(stem, kind, words, layer), _changed_files(root, stem, names, words, layer)
    for path, text in {**new, **changed}.items():
        (root / path).write_text(text)
    return list(new), list(changed)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse new-op", description=__doc__.partition("\n\n")[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME",
                        help="of the op, its files and its function, in small letters, as in scale_bias_act")
    parser.add_argument("--kind", choices=FAMILIES, default="elementwise", help="see above; elementwise if not said")
    parser.add_argument("--inputs", default="x", metavar="NAMES",
                        help='of the inputs, with commas, as in "x, scale"; x if not said')
    parser.add_argument("--layer", action="store_true", help="write a Keras layer, too")
    chosen = parser.parse_args(arguments)
    names = [name.strip() for name in chosen.inputs.split(",")]
    try:
        new, changed = new_op(checkout(), chosen.name, names, chosen.kind, chosen.layer)
    except Refused as error:
        print("new-op: %s" % error, file=sys.stderr)
        return 1
    print("\n".join(["new:", *("  " + path for path in new), "changed:", *("  " + path for path in changed), "next:",
                     "  ./run python tools/readme.py",
                     "  ./run python -m pytest -q tests/test_ops.py -k %s" % chosen.name,
                     "  ./run bench %s" % chosen.name, "then put in your own formulas: docs/new_op.md"]))
    return 0
