"""python -m tfuse ops: what there is to call, and what the library registers; --markdown as docs/ops.md shows it."""

import argparse
import importlib
import inspect
import re
import textwrap

import keras
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

import tfuse
from tfuse._core import _library, _list_op, _op

# The modules of each family, in the order in which they are read.
FAMILIES = {
    "elementwise": ["scale_bias_act", "gated", "dropout", "rope", "add_constant", "square"],
    "rows": ["softmax", "norm", "group_norm", "cross_entropy"],
    "reductions": ["reduce", "arg_reduce", "segment_sum"],
    "attention": ["attention", "multi_head_attention"],
    "products": ["linear", "einsum_dense", "gated_linear", "batched_matmul", "linear_cross_entropy", "matmul_own",
                 "quantized_linear", "quantized_layers", "static_quantizer", "float8_linear", "float8_layers"],
    "convolution": ["conv", "conv_layers", "depthwise_conv", "batch_norm", "conv_norm", "pool", "resize", "scale_channels",
                    "conv_own", "quantized_conv", "quantized_conv_layer", "channels_first"],
    "layout": ["transpose", "concat"],
    "scans": ["scan", "scan_linear", "selective_scan"],
    "recurrent": ["rnn", "recurrent_layers", "linear_recurrence", "recurrence"],
    "lists": ["tensors_norm", "tensors_update", "slices", "together"],
    "sorting": ["sort", "top_k", "unique", "bincount", "histogram"],
}


# ---- the registered ops ----


def rows(names=None):
    """(name, inputs, outputs, attributes, doc) of each registered op, as texts."""
    for name in sorted(_op.registry if names is None else names):
        d = op_def_registry.get("Tfuse>" + name)
        attributes = ["%s (%s)" % (a.name, _written(_op.default(a))) for a in d.attr if a.type != "type"]
        doc = _library.library.tfu_doc(name.encode()).decode()
        yield (name, ", ".join(_typed(a, d) for a in d.input_arg), ", ".join(_typed(a, d) for a in d.output_arg),
               ", ".join(attributes) or "none", doc)


def _typed(argument, definition):
    """An argument and its type: T, S and K stay letters, any other letter is spelled out."""
    kind = argument.type_attr or tf.as_dtype(argument.type).name
    if kind not in ("T", "S", "K"):
        allowed = [a.allowed_values.list.type for a in definition.attr if a.name == kind]
        kind = " or ".join(tf.as_dtype(t).name for t in allowed[0]) if allowed else kind
    return "%s: %s%s" % (argument.name, "list of " * bool(argument.number_attr), kind)


def _written(value):
    """Floats as they were said: attributes are float32."""
    return "%g" % value if isinstance(value, float) else str(value)


def _gradient(name):
    """What gives the gradient of a registered op, in words."""
    op = _op.registry[name]
    if isinstance(op, _list_op.ListOp):
        return "its own" if op._gradient else "none"
    if op._gradient == op._plain_gradient:
        return "of the plain composition"
    return "`%sGrad`" % name if name + "Grad" in _op.registry else "its own"


def op_table(names):
    """The registered ops in Markdown. What would end a cell or a line is written otherwise."""
    lines = ["| op | inputs | outputs | attributes | what it computes | gradient |", "|---|---|---|---|---|---|"]
    for row in rows(names):
        lines.append("| `%s` | %s | %s | %s | %s | %s |" % (*map(cell, row), _gradient(row[0])))
    return "\n".join(lines)


def cell(text):
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")


# ---- the functions and layers ----


def path_of(module, package="tfuse"):
    """A module's full name: it is in its family's folder."""
    return ".".join([package, next(family for family, modules in FAMILIES.items() if module in modules), module])


def public(module):
    """The public functions, then the classes of a module, by name, in the order in which they are written."""
    found = [(name, value) for name, value in vars(importlib.import_module(path_of(module))).items()
             if callable(value) and getattr(tfuse, name, None) is value and value.__module__ == path_of(module)]
    return dict(sorted(found, key=lambda pair: isinstance(pair[1], type)))


def _registered(module):
    """The names of the ops that a module puts into the registry."""
    ops = {id(op): name for name, op in _op.registry.items()}
    return [ops[id(value)] for value in vars(importlib.import_module(path_of(module))).values() if id(value) in ops]


def markdown(family):
    """The reference of a family in Markdown: its functions and layers, then the ops that the library registers."""
    parts, ops = [], []
    for module in FAMILIES[family]:
        ops += _registered(module)
        short = []
        for name, value in public(module).items():
            sections = sections_of(inspect.getdoc(value))
            if len(sections) == 1:
                text = " ".join(sections[""].split())
                short.append("- `tfuse.%s%s` %s" % (name, signature(value), text[0].lower() + text[1:]))
                continue
            parts.append(entry("tfuse." + name, value, sections, kind(value)))
            if facts := not kind(value) and _facts(module, name, value):
                parts.append(facts)
        if short:
            parts.append("\n".join(["And, with the same dtypes and gradients:", "", *short]))
    parts.append("What TensorFlow registers, as `Tfuse>Name`:\n\n" + op_table(ops))
    return "\n\n".join(parts)


def entry(name, value, sections, note=""):
    """A function or class under a heading of its own."""
    lines = ["### %s%s" % (name, note), "", "`%s%s`" % (name, signature(value)), "", sections[""].strip()]
    for title, text in sections.items():
        if title == "Example":
            lines += ["", "```python", text.rstrip(), "```"]
        elif title in ("Args", "Call arguments"):
            lines += ["", "Arguments:" if title == "Args" else title + ":", "", _items(text)]
        elif title:
            lines += ["", "%s: %s" % (title, " ".join(text.split()))]
    return "\n".join(lines)


def kind(value):
    """What a heading says of a class."""
    if not isinstance(value, type):
        return ""
    return " (loss)" if issubclass(value, keras.losses.Loss) else " (layer)"


def signature(value):
    """Of a class that has Keras's own arguments, "(…)": they are not the same in every release of it."""
    if not isinstance(value, type):
        return str(inspect.signature(value))
    if "__init__" not in vars(value):
        return "(…)"
    parameters = list(inspect.signature(value.__init__).parameters.values())[1:]
    return str(inspect.Signature(parameters))


def sections_of(doc):
    """A docstring's parts by title; what comes before the first title is that of ""."""
    parts = re.split(r"^(Args|Call arguments|Returns|Raises|Example):\n", doc + "\n", flags=re.MULTILINE)
    return {"": parts[0], **{title: textwrap.dedent(text).strip() for title, text in zip(parts[1::2], parts[2::2])}}


def _items(text):
    """A list of arguments: an item for each line that is not indented."""
    items = re.split(r"\n(?=\S)", text)
    return "\n".join("- `%s`: %s" % tuple(part.strip() for part in " ".join(item.split()).split(":", 1)) for item in items)


def _facts(module, name, value):
    """Dtypes as the function's own attribute or else the op says, and the arguments that the cases, and so the tests,
    differentiate."""
    try:
        found = importlib.import_module(path_of(module, "tfuse.cases")).CASES
    except ModuleNotFoundError:
        return ""
    text = "Dtypes: %s." % ", ".join(tf.as_dtype(t).name for t in getattr(value, "dtypes", None) or _floats(module))
    inputs = [i for case in found if case.name.split(",")[0].split(" ")[0] == name for i in case.inputs.items()]
    differentiated = list(dict.fromkeys(argument for argument, i in inputs if i.gradient))
    own = [argument for argument in differentiated if argument in inspect.signature(value).parameters]
    if own:
        return text + " Gradients: %s." % ", ".join("`%s`" % argument for argument in own)
    return text + " Gradients: every tensor of the list." if differentiated else text


def _floats(module):
    """What the data of a module's ops may be; of one that only calls other modules' ops, what these take."""
    for name in sorted(_registered(module), key=lambda name: name.endswith("Grad")):  # which may take fewer
        definition = op_def_registry.get("Tfuse>" + name)
        kinds = {a.name: a.allowed_values.list.type for a in definition.attr}
        return kinds.get("T") or kinds[definition.input_arg[0].type_attr]
    return _op.FLOATS


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse ops", description="Lists the ops that the library registers.")
    parser.add_argument("--markdown", choices=FAMILIES, metavar="FAMILY",
                        help="a family's functions, layers and ops as docs/ops.md shows them: " + ", ".join(FAMILIES))
    chosen = parser.parse_args(arguments)
    if chosen.markdown:
        print(markdown(chosen.markdown))
        return 0
    for name, inputs, outputs, attributes, doc in rows():
        print("%s(%s) -> %s\n    %s\n    attributes: %s" % (name, inputs, outputs, doc, attributes))
    return 0
