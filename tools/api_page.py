"""The generated parts of docs/api.md, from docstrings: a table of every public name, and entries of those that docs/ops.md,
which has the families, has not."""
import functools
import inspect
import re

import tfuse
from tfuse._tools import _ops

# Where names are that no family has, and the heading they come under.
OTHERS = {"Keras and diagnostics": tfuse, "tfuse.jit": tfuse.jit, "tfuse.optimizers": tfuse.optimizers, "tfuse.own": tfuse.own,
          "tfuse.generation": tfuse.generation, "tfuse.calibration": tfuse.calibration}
NOT_RUN = {"tfuse.load": "it needs a library of ops", "tfuse.own.load": "it needs a library of ops",
           "tfuse.jit.raw": "it needs a GPU", "tfuse.generate": "it needs a model",
           "tfuse.generation.Engine": "it needs a model"}


def anchor(heading):
    """As GitHub, and the site, make it."""
    return "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")


@functools.cache
def families():
    """{full name: (function or class, its place in ops.md)} of what the families export."""
    found = {}
    for family, modules in _ops.FAMILIES.items():
        for name, value in (pair for module in modules for pair in _ops.public(module).items()):
            whole = len(_ops.sections_of(inspect.getdoc(value))) > 1  # else it is in a list
            found["tfuse." + name] = value, "ops.md#" + anchor("tfuse.%s%s" % (name, _ops.kind(value)) if whole else family)
    return found


def others(module):
    """{full name: function or class} of what a module exports beside the families."""
    known = families()
    found = {"%s.%s" % (module.__name__, name): value for name, value in vars(module).items()
             if callable(value) and not name.startswith("_")}
    return {name: value for name, value in found.items() if name not in known}


def names():
    """The table, with the first sentence of each docstring."""
    places = dict(families())
    for module in OTHERS.values():
        places.update({name: (value, "#" + anchor(name)) for name, value in others(module).items()})
    lines = ["| name | what it is |", "|---|---|"]
    for name, (value, place) in sorted(places.items(), key=lambda item: (item[0].count("."), item[0].lower())):
        first = re.split(r"(?<=\S)[.:] (?=[A-Z])", " ".join(inspect.getdoc(value).split("\n\n")[0].split()))[0].rstrip(".:")
        lines.append("| [`%s`](%s) | %s. |" % (name, place, _ops.cell(first)))
    return "\n".join(lines)


def entries():
    parts = []
    for heading, module in OTHERS.items():
        parts += ["## " + heading] + ([] if module is tfuse else [inspect.getdoc(module)])
        parts += [entry(name, value) for name, value in others(module).items()]
    return "\n\n".join(parts)


def entry(name, value):
    sections = _ops.sections_of(inspect.getdoc(value))
    if name.startswith("tfuse.optimizers."):
        sections = {"": sections[""].split("\n\n")[0]}  # what follows is Keras's own text
    text = _ops.entry(name, value, sections)
    return text.replace("```python", "<!-- not run: %s -->\n```python" % NOT_RUN[name]) if name in NOT_RUN else text
