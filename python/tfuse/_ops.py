"""python -m tfuse ops: what the library registers."""

import argparse

from tensorflow.python.framework import op_def_registry

from tfuse import _library, _op


def markdown():
    """The table of ops, as README.md carries it."""
    lines = ["| op | inputs | outputs | attributes | what it computes |", "|---|---|---|---|---|"]
    for row in rows():
        lines.append("| `%s` | %s | %s | %s | %s |" % row)
    return "\n".join(lines)


def rows():
    for name in sorted(_op.registry):
        d = op_def_registry.get("Tfuse>" + name)
        attributes = ["%s (%s)" % (a.name, _written(_op.default(a))) for a in d.attr if a.type != "type"]
        doc = _library.library.tfu_doc(name.encode()).decode()
        yield (name, ", ".join(a.name for a in d.input_arg), ", ".join(a.name for a in d.output_arg),
               ", ".join(attributes) or "none", doc)


def _written(value):
    """Floats as they were said: attributes are float32."""
    return "%g" % value if isinstance(value, float) else str(value)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse ops", description="Lists the ops that the library registers.")
    parser.add_argument("--markdown", action="store_true", help="as the table in README.md")
    if parser.parse_args(arguments).markdown:
        print(markdown())
        return 0
    for name, inputs, outputs, attributes, doc in rows():
        print("%s(%s) -> %s\n    %s\n    attributes: %s" % (name, inputs, outputs, doc, attributes))
    return 0
