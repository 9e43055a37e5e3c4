"""What the placeholders of new-op's templates stand for."""

import dataclasses
import pathlib
import string

TEMPLATES = pathlib.Path(__file__).with_name("new_op")
FAMILIES = {"elementwise": "elementwise", "rows": "rows", "map": "elementwise"}


@dataclasses.dataclass
class Op:
    """What is asked for.

    Attributes:
      stem: its name.
      inputs: their names.
      kind: a key of FAMILIES.
      attributes: {name: its default, as it is written}.
      layer: whether there is a Keras layer.
      own: whether it is written into a repository of the user's own, where all files lie side by side.
    """
    stem: str
    inputs: list
    kind: str = "elementwise"
    attributes: dict = dataclasses.field(default_factory=dict)
    layer: bool = False
    own: bool = False

    @property
    def weights(self):
        return self.inputs[1:] if self.kind == "elementwise" else []

    @property
    def tensors(self):
        return [name for name in self.inputs if name not in self.weights]

    @property
    def name(self):
        return camel(self.stem)

    @property
    def family(self):
        return FAMILIES[self.kind]


def camel(stem):
    return "".join(part.capitalize() for part in stem.split("_"))


def filled(template, words):
    return string.Template((TEMPLATES / (template + ".txt")).read_text()).substitute(words)


def words(op):
    first, scale = op.inputs[0], _scale(op)
    factor = scale + (_sum(op.weights) + " * " if op.weights else "")
    if op.kind == "rows":
        written = lambda absolute, root, mean: "%s%s / %s(1 + %s)" % (scale, first, root, mean % first)
    else:
        written = lambda absolute, *_: " + ".join("%s%s / (1 + %s)" % (factor, t, absolute % t) for t in op.tensors)
    folder = "" if op.own else "kernels/%s/" % op.family
    found = {
        "stem": op.stem, "name": op.name, "upper": op.stem.upper(), "family": op.family, "first": first, "scale": scale,
        "args": ", ".join(op.inputs), "count": len(op.inputs), "weights": len(op.weights),
        "folder": folder, "header": "%s%s.h" % (folder, op.stem),
        "parameters": ", ".join([*op.inputs, *("%s=%s" % pair for pair in op.attributes.items())]),
        "formula": written("|%s|", "sqrt", "mean(%s^2)"),
        "plain": written("tf.abs(%s)", "tf.sqrt", "tf.reduce_mean(tf.square(%s), -1, keepdims=True)"),
        "reference": written("np.abs(%s)", "np.sqrt", "np.mean(%s**2, -1, keepdims=True)"),
    }
    found.update(_formula_words(op, scale))
    found.update(_row_words(op))
    found["shapes"] = filled("shapes.c", found) if found["checks"] else ""
    found.update(_python_words(op))
    found.update(_layer_words(op))
    found.update(_case_words(op, factor, scale))
    return found


def _sum(terms):
    return terms[0] if len(terms) == 1 else "(%s)" % " + ".join(terms)


def _scale(op):
    """What the stand-in is multiplied by, so that every attribute is read."""
    return _sum(list(op.attributes)) + " * " if op.attributes else ""


def _formula_words(op, scale):
    """Of the C and CUDA files."""
    names, count = list(op.attributes), len(op.weights)
    declared = lambda kind, value: "  const %s %s;\n" % (
        kind, ", ".join("%s = %s" % (name, value % (name if "%s" in value else i)) for i, name in enumerate(names)))
    named = "\n  const REAL %s;" % ", ".join("%s = w[%d]" % (name, count + i) for i, name in enumerate(names))
    call, args = ("j->call", "a->") if op.kind == "rows" else ("call", "a.")
    row_gradient = "dy[k] * r - x[k] * share"
    weights = ["w[%d]" % i for i in range(count)]
    return {
        "sum": _sum([*weights] or ["1"]) if not names else scale[:-3] + (" * " + _sum(weights) if weights else ""),
        "with": "_WITH" if names else "", "attributes": "%d, " % len(names) if names else "",
        "named": named + "\n " if names else "", "end": "\n" if names else " ", "named_grad": named if names else "",
        "summed_words": ", and s what is summed over a channel" if count else "",
        "weight_sums": "".join("\n  s[%d] = %sdy * x[1] * r; /* d%s */" % (i, scale, w) for i, w in enumerate(op.weights)),
        "row_gradient": "%s(%s)" % (scale, row_gradient) if scale else row_gradient,
        "fields": "  float %s;\n" % ", ".join(names) if names else "",
        "on_device": declared("R", "a.%s") if names else "",
        "on_cpu": declared("REAL", "(REAL)%s->attr[%%d].f" % call) if names else "",
        "at_launch": "".join("  %s%s = call->attr[%d].f;\n" % (args, name, i) for i, name in enumerate(names)),
    }


def _row_words(op):
    first, *rest = op.inputs
    typed = lambda prefix: ", ".join('"%s%s: %s"' % (prefix, n, "S" if n in op.weights else "T") for n in op.inputs)
    check = {"elementwise": 'tfu_given_per_channel(&in[0], "{0}", &in[{1}], err)',
             "map": 'tfu_match("{0}", &in[{1}], "%s", &in[0], err)' % first}
    checks = ['tfu_has_rows("%s", &in[0], err)' % first] if op.kind == "rows" else [
        check[op.kind].format(name, i) for i, name in enumerate(rest, 1)]
    about = "\n * %s %s per channel, the last axis of %s." % (" and ".join(op.weights), "are" if rest[1:] else "is", first)
    types = [*('"%s: float = %s"' % pair for pair in op.attributes.items()), "TFU_T_FLOATS", *["TFU_S_REALS"] * bool(op.weights)]
    return {
        "about": about if op.weights else "", "checks": "\n".join("  TFU_TRY(%s);" % c for c in checks),
        "inputs": typed(""), "gradients": typed("d"), "types": ", ".join(types),
        "capturable": "" if op.weights else "    .capturable = 1,\n",  # partial sums need scratch
        "forward_shape": "forward_shape" if checks else "tfu_shape_like_input",
        "grad_shape": "grad_shape" if checks else "tfu_shape_gradient",
    }


def _python_words(op):
    first, listed = op.inputs[0], ", ".join(op.inputs)
    what = lambda n: ("one value per channel, the last axis of " + first if n in op.weights else
                      "float tensor" + (" of the same shape" if n != first else ""))
    docs = ["      %s: %s." % (n, what(n)) for n in op.inputs] + ["      %s: a number." % n for n in op.attributes]
    axes = '_AXES = {**dict.fromkeys(["%s", "dy"], "abdefghc"), **dict.fromkeys([%s], "c")}\n' % (
        first, ", ".join('"%s"' % w for w in op.weights))
    several = "%s = (tf.cast(value, real(dtype)) for value in (%s))" % (listed, listed)
    rounded = "    %s = (float(np.float32(value)) for value in (%s))  # as the op's attributes hold them\n"
    one = "    %s = float(np.float32(%s))  # as the op's attribute holds it\n"
    names = ", ".join(op.attributes)
    here = ("import tfuse\nfrom tfuse.own import FusedOp, composite, real, vjp\n\n"
            "FOLDER = pathlib.Path(__file__).resolve().parent\n"
            'tfuse.load(FOLDER / ("lib%s.so" % FOLDER.name))  # as build-op calls it\n')
    return {
        "import_op": here if op.own else "\nfrom tfuse._core._op import FusedOp, composite, real, vjp\n",
        "public": "" if op.own else "tfuse.",
        "cast": several if op.inputs[1:] else "%s = tf.cast(%s, real(dtype))" % (first, first),
        "rounded": "" if not names else (rounded if len(op.attributes) > 1 else one) % (names, names),
        "of_node": "".join(', %s=node.attr("%s")' % (name, name) for name in op.attributes),
        "break_": "\n" + " " * len("_%s = FusedOp(" % op.stem) if names else " ",
        "axes": axes if op.weights else "", "with_axes": ", axes=_AXES" if op.weights else "",
        "docs": "\n".join(docs),
        "example": ", ".join("tf.ones([64])" if n in op.weights else "tf.random.normal([32, 64])" for n in op.inputs),
        "call": ", ".join([*op.tensors, *("tf.cast(%s, real(%s.dtype))" % (w, first) for w in op.weights),
                           *("%s=float(%s)" % (name, name) for name in op.attributes)]),
        "and_layer": ", and the Keras layer" if op.layer else "",
        "import_keras": "import pathlib\n\n" * op.own + "import keras\n" * op.layer,
        "import_numpy": "import numpy as np\n" if names else "",
    }


def _layer_words(op):
    first, tensors = op.inputs[0], op.tensors
    build = """
    def build(self, input_shape):
        weight = lambda name: self.add_weight(name=name, shape=input_shape[-1:], initializer="ones", autocast=False)
        %s
""" % "\n        ".join('self.%s = weight("%s")' % (w, w) for w in op.weights)
    config = """
    def get_config(self):
        return {**super().get_config(), %s}
""" % ", ".join('"%s": self.%s' % (name, name) for name in op.attributes)
    return {
        "package": op.stem if op.own else "tfuse",
        "learned": ", with %s learned per channel, the last axis" % " and ".join(op.weights) if op.weights else "",
        "build": build if op.weights else "", "tensors": ", ".join(tensors),
        "layer_parameters": "".join("%s=%s, " % pair for pair in op.attributes.items()),
        "kept": "".join("        self.%s = %s\n" % (name, name) for name in op.attributes),
        "config": config if op.attributes else "",
        "layer_call": ", ".join([*tensors, *("self." + w for w in op.weights),
                                 *("%s=self.%s" % (name, name) for name in op.attributes)]),
        "tensors_example": ", ".join(["tf.random.normal([32, 64])"] * len(tensors)),
        "shapes_of": ", ".join(t + "_shape" for t in tensors) if tensors[1:] else "input_shape",
        "first_shape": first + "_shape" if tensors[1:] else "input_shape",
        "forward_passes": len(tensors) + 1, "backward_passes": 2 * len(tensors) + 1,
    }


def _case_words(op, factor, scale):
    first, *rest = op.inputs
    if op.kind == "rows":
        gradient = ["r = 1 / np.sqrt(1 + np.mean({0}**2, -1, keepdims=True))",
                    "return [cancelling(%sdy * r, -%s{0} * r**3 * np.mean(dy * {0}, -1, keepdims=True))]" % (scale, scale)]
    elif op.weights:
        gradient = ["r, rows = 1 / (1 + np.abs({0})), tuple(range({0}.ndim - 1))",
                    "return [dy * %sr * r%s]" % (factor, (", total(%sdy * {0} * r, rows)" % scale) * len(op.weights))]
    else:
        gradient = ["return [%s]" % ", ".join("%sdy / (1 + np.abs(%s))**2" % (scale, n) for n in op.inputs)]
    rejects = [("%s: %s must be float32.*got int32" % (op.stem, first), "=[[1]], ".join(op.tensors) + "=[[1]]")]
    for wrong in rest:
        what = "3 values, one per channel" if wrong in op.weights else "the shape of " + first
        rejects.append(("%s must have %s" % (wrong, what), wrong + "=ones(4)"))
        rejects += [(wrong + " must be given", wrong + "=ones(0)")] * (wrong in op.weights)
    if op.kind == "rows":
        rejects.append((first + " must have at least one dimension", first + "=ones()"))
    tried = ", ".join('"%s": %s' % (name, 0.75 - 0.5 * i) for i, name in enumerate(op.attributes))  # exact in float32
    return {
        "case_imports": ", ".join(name for name, used in [
            ("Case", True), ("Input", op.weights), ("Timed", not op.own), ("cancelling", op.kind == "rows"), ("ones", True),
            ("refusing", True), ("total", op.weights)] if used),
        "right": ", ".join("%s=ones(%s)" % (n, "3" if n in op.weights else "2, 3") for n in op.inputs),
        "gradient": "".join("    %s\n" % line.format(first) for line in gradient),
        "channels": '\n_channels = Input(lambda shape: shape[-1:], dtype="real")\n' if op.weights else "",
        "case_inputs": ", ".join(
            '"%s": %s' % (n, "_channels" if n in op.weights else "lambda shape: shape") for n in op.inputs),
        "summed": ", summed=lambda shape: shape[-1]" if op.kind == "rows" else "",
        "options": ", options=[{%s}]" % tried if tried else "",
        "rejects": ",\n".join('%s_refused("%s", %s)' % (" " * (16 if op.own else 13), *pair) for pair in rejects),
    }
