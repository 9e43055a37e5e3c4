"""What every op of the library is to Python: its definition, and how it is called from inside XLA, or left to TensorFlow there."""

import functools
import re

from tensorflow.python.framework import op_def_registry

from tfuse._core import _explain, _library, _xla

registry = {}  # by name


class Registered:
    """An op by its name, CamelCase, as in its row; and what is the same in plain TensorFlow."""

    def __init__(self, name, plain):
        self.name, self.plain = name, plain
        self.stem, self._registered = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), "Tfuse>" + name
        self._raw = _library.raw(self.stem)
        self._definition = op_def_registry.get(self._registered)
        inputs, outputs = self._definition.input_arg, self._definition.output_arg
        numbers = {a.number_attr for a in inputs}  # how long lists are
        self._attributes = [a.name for a in self._definition.attr if a.type != "type" and a.name not in numbers]
        # TensorFlow infers a type from inputs; one that only outputs have must be told.
        self._told = ({a.type_attr for a in outputs} - {a.type_attr for a in inputs}) & {"S", "K"}
        registry[name] = self

    def _left(self, why, inputs):
        """`plain`, which serves inside XLA for this reason."""
        _explain.note(self.name, "plain TensorFlow", why, inputs)
        return self.plain

    def _custom_call(self, inputs, specs, dims, attributes, gradient, aliases=(), more_room=lambda: 0):
        """The outputs of an XLA custom call. gradient: as _xla.differentiable takes it, or None. more_room: how many bytes of
        scratch a call that has some wants beside."""
        _explain.note(self.name, "XLA custom call", "traced inside jit_compile=True", inputs)
        target, room = _library.xla_target(self.stem)
        more = more_room() if room else 0
        if more < 0:
            target, room, more = "tfuse." + self.stem, 0, 0
        call = functools.partial(_xla.custom_call, target, specs=specs, dims=dims, attributes=attributes, aliases=aliases,
                                 room=room + more)
        return _xla.differentiable(call, gradient, inputs) if gradient else call(inputs)


def given(tensor):
    """Whether an optional input is given, in a plain composition: it is not the empty vector."""
    return tensor.shape.rank != 1 or tensor.shape[0] != 0
