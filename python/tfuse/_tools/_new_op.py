"""python -m tfuse new-op NAME: writes the files of a new op into a checkout of tfuse, ready to be edited.

What the op computes is a stand-in, which is right with its gradient. The files build, and pass the shared tests, as they are.
docs/new_op.md tells what is in them. Kinds:

  elementwise  formulas, written once for CPU and GPU; inputs after the first are weights per channel, at most 4
  rows         kernels that see a whole row, the last axis, before they write it; one input
  map          kernels of the op's own over the elements; at most 2 inputs, of one shape
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
_C_WORDS = set("""auto bool case char class const default delete do double enum extern float goto inline int long main namespace new
operator register restrict short signed sizeof static struct switch template this typedef union unsigned void volatile""".split())
_OURS = {"dy", "dtype", "value", "y"}  # names that the files use themselves


class Refused(Exception):
    pass


def checkout():
    """The checkout that the current folder is in."""
    here = pathlib.Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "ops/ops.def").exists() and (folder / "python/tfuse/__init__.py").exists():
            return folder
    raise Refused("%s is not in a checkout of tfuse: an op is added to the sources; python -m tfuse build-op is for ops of your "
                  "own outside of them" % here)


def _check_word(what, word, most):
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z][a-z0-9]*)*", word) or len(word) > most:
        raise Refused("%s must be small letters and digits, as in scale_bias, at most %d, and each part must begin with a letter; "
                      "got %r" % (what, most, word))
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
        raise Refused("an op of kind %s has at most %d input%s here, got %d: %s. docs/new_op.md says which op to copy for more" % (
            kind, MOST_INPUTS[kind], "s" * (MOST_INPUTS[kind] > 1), len(names), ", ".join(names)))


def camel(stem):
    return "".join(part.capitalize() for part in stem.split("_"))


def _filled(template, words):
    return string.Template((TEMPLATES / (template + ".txt")).read_text()).substitute(words)


def _words(stem, names, kind, layer):
    """What the templates' placeholders stand for."""
    first, *rest = names
    weights = rest if kind == "elementwise" else []
    tensors = [name for name in names if name not in weights]
    total = lambda terms: terms[0] if len(terms) == 1 else "(%s)" % " + ".join(terms)
    factor = total(weights) + " * " if weights else ""
    each = lambda absolute: " + ".join("%s / (1 + %s)" % (t, absolute % t) for t in tensors)
    written = (lambda absolute: factor + each(absolute)) if kind != "rows" else None
    formula = written("|%s|") if written else "%s / sqrt(1 + mean(%s^2))" % (first, first)
    checks = {"rows": ['tfu_has_rows("%s", &in[0], err)' % first],
              "map": ['tfu_match("%s", &in[%d], "%s", &in[0], err)' % (t, i, first) for i, t in enumerate(rest, 1)],
              "elementwise": ['tfu_per_channel(&in[0], "%s", &in[%d], err)' % (w, i) for i, w in enumerate(weights, 1)]}[kind]
    typed = lambda prefix: ", ".join('"%s%s: %s"' % (prefix, n, "S" if n in weights else "T") for n in names)
    if kind == "rows":
        gradient = ["r = 1 / np.sqrt(1 + np.mean({0}**2, -1, keepdims=True))", "return [cancelling(dy * r, -{0} * r**3 * np.mean("
                    "dy * {0}, -1, keepdims=True))]"]
    elif weights:
        gradient = ["r, rows = 1 / (1 + np.abs({0})), tuple(range({0}.ndim - 1))",
                    "return [dy * %sr * r%s]" % (factor, ", total(dy * {0} * r, rows)" * len(weights))]
    else:
        gradient = ["return [%s]" % ", ".join("dy / (1 + np.abs(%s))**2" % n for n in names)]
    refused = ['("%s: %s must be float32.*got int32", lambda: tfuse.%s(%s))' % (
        stem, first, stem, ", ".join(["[[1]]"] + ["[[1]]" if n in tensors else "[1.0]" for n in rest]))]
    ones = lambda name, wrong: "tf.ones([%s])" % ("4" if name == wrong else "3" if name in weights else "2, 3")
    for name in rest:
        message = "%s must have 3 values, one per channel" % name if name in weights else "%s must have the shape of %s" % (
            name, first)
        refused.append('("%s",\n              lambda: tfuse.%s(%s))' % (message, stem, ", ".join(ones(n, name) for n in names)))
    if kind == "rows":
        refused.append('("%s must have at least one dimension", lambda: tfuse.%s(tf.constant(1.0)))' % (first, stem))
    words = {
        "stem": stem, "name": camel(stem), "upper": stem.upper(), "family": FAMILIES[kind], "first": first, "formula": formula,
        "args": ", ".join(names), "count": len(names),
        # the row
        "about": "\n * %s per channel, the last axis of %s." % (" and ".join(weights) + (" are" if rest[1:] else " is"), first)
                 if weights else "",
        "checks": "\n".join("  TFU_TRY(%s);" % c for c in checks), "inputs": typed(""), "gradients": typed("d"),
        "types": "TFU_T_FLOATS" + ", TFU_S_REALS" * bool(weights), "capturable": "" if weights else "    .capturable = 1,\n",
        "forward_shape": "forward_shape" if checks else "tfu_shape_like_input",
        "grad_shape": "grad_shape" if checks else "tfu_shape_gradient",
        # the formulas
        "weights": len(weights), "sum": total(["w[%d]" % i for i in range(len(weights))] or ["1"]),
        # Python
        "cast": "%s = tf.cast(%s, real(dtype))" % (first, first) if not rest else "%s = (tf.cast(value, real(dtype)) for value in (%s))" % (
            (", ".join(names),) * 2),
        "plain": written("tf.abs(%s)") if written else "%s * tf.math.rsqrt(1 + tf.reduce_mean(%s * %s, -1, keepdims=True))" % (
            first, first, first),
        "axes": "_AXES = {**dict.fromkeys([\"%s\", \"dy\"], \"abcdefgc\"), **dict.fromkeys(%s, \"c\")}\n" % (
            first, str(weights).replace("'", '"')) if weights else "",
        "with_axes": ", axes=_AXES" if weights else "",
        "docs": "\n".join("      %s: %s." % (n, "one value per channel, the last axis of %s" % first if n in weights else
                                             "float tensor" + (" of the same shape" if n != first else "")) for n in names),
        "example": ", ".join("tf.%s" % ("ones([64])" if n in weights else "random.normal([32, 64])") for n in names),
        "call": ", ".join([*tensors, *("tf.cast(%s, real(%s.dtype))" % (w, first) for w in weights)]),
        "and_layer": ", and the Keras layer" if layer else "", "import_keras": "import keras\n" if layer else "",
        # the layer
        "learned": ", with %s learned per channel, the last axis" % " and ".join(weights) if weights else "",
        "build": """
    def build(self, input_shape):
        weight = lambda name: self.add_weight(name=name, shape=input_shape[-1:], initializer="ones", autocast=False)
        %s
""" % "\n        ".join('self.%s = weight("%s")' % (w, w) for w in weights) if weights else "",
        "tensors": ", ".join(tensors), "layer_call": ", ".join([*tensors, *("self." + w for w in weights)]),
        "tensors_example": ", ".join(["tf.random.normal([32, 64])"] * len(tensors)),
        "shapes_of": ", ".join(t + "_shape" for t in tensors) if tensors[1:] else "input_shape",
        "first_shape": first + "_shape" if tensors[1:] else "input_shape",
        # the case
        "case_imports": "Case" + (", Input, total" if weights else ", cancelling" if kind == "rows" else ""),
        "gradient": "".join("    %s\n" % line.format(first) for line in gradient),
        "reference": written("np.abs(%s)") if written else "%s / np.sqrt(1 + np.mean(%s**2, -1, keepdims=True))" % (first, first),
        "case_inputs": ", ".join('"%s": %s' % (n, "_channels" if n in weights else "lambda shape: shape") for n in names),
        "channels": '\n_channels = Input(lambda shape: shape[-1:], dtype="real")\n' if weights else "",
        "forward_passes": len(tensors) + 1, "backward_passes": 2 * len(tensors) + 1,
        "rejects": ",\n".join("             " + pair for pair in refused),
    }
    words["shapes"] = _filled("shapes.c", words) if checks else ""
    return words


def _new_files(stem, kind, words, layer):
    """Path below the root -> text."""
    family, header = FAMILIES[kind], "weights.h" if words["weights"] else kind + ".h"
    files = {"ops/%s/%s.c" % (family, stem): _filled("row.c", words),
             "kernels/%s/%s.h" % (family, stem): _filled(header, words),
             "python/tfuse/%s/%s.py" % (family, stem): _filled("op.py", words) + (_filled("layer.py", words) if layer else ""),
             "python/tfuse/cases/%s/%s.py" % (family, stem): _filled("case.py", words)}
    for ending in ("_cpu.c", "_gpu.c", ".cu"):
        files["kernels/%s/%s%s" % (family, stem, ending)] = _filled(kind + ending, words)
    return files


def _inserted(text, lines, pattern, key):
    """text with lines before the first line whose name, the pattern's group, comes after the key, else after the last of
    them and what belongs to it."""
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
    family, axes = words["family"], ["x" if n not in names[1:] or not words["weights"] else "c" for n in names]
    inputs = lambda letters: ", ".join('"%s"' % letter for letter in letters)
    read = lambda path: (root / path).read_text()
    changed = {
        "ops/ops.def": _inserted(read("ops/ops.def"), "X(%s)\nX(%s_grad)\n" % (stem, stem), r"^X\((\w+)\)\n", stem),
        "python/tfuse/__init__.py": _inserted(
            read("python/tfuse/__init__.py"), "from tfuse.%s.%s import %s\n" % (family, stem, (camel(stem) + ", ") * layer + stem),
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
    """Writes the op's files below the root; returns the paths of those that are new, and of those that were changed. Refuses
    before anything is written."""
    check(root, stem, names, kind)
    words = _words(stem, names, kind, layer)
    new, changed = _new_files(stem, kind, words, layer), _changed_files(root, stem, names, words, layer)
    for path, text in {**new, **changed}.items():
        (root / path).write_text(text)
    return list(new), list(changed)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse new-op", description=__doc__.partition("\n\n")[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="in small letters, as in scale_bias_act")
    parser.add_argument("--kind", choices=FAMILIES, default="elementwise")
    parser.add_argument("--inputs", default="x", metavar="NAMES", help='with commas, as in "x, scale"; x if not said')
    parser.add_argument("--layer", action="store_true", help="with a Keras layer")
    chosen = parser.parse_args(arguments)
    try:
        new, changed = new_op(checkout(), chosen.name, [n.strip() for n in chosen.inputs.split(",")], chosen.kind, chosen.layer)
    except Refused as error:
        print("new-op: %s" % error, file=sys.stderr)
        return 1
    print("\n".join(["new:", *("  " + path for path in new), "changed:", *("  " + path for path in changed), "next:",
                     "  ./run python tools/readme.py", "  ./run python -m pytest -q tests/test_ops.py -k %s" % chosen.name,
                     "  ./run bench %s" % chosen.name, "then put in your own formulas: docs/new_op.md"]))
    return 0
