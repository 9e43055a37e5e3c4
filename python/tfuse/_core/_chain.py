"""Chains: ops that run one after the other as one op (ops/core/chain.h), on a GPU as one CUDA graph.

  chain = Chain()
  x, weight = chain.input(x), chain.input(weight)
  y, _, _ = chain.call("norm", x, None, weight, None, None, kind="rms")
  chain.call("scale_bias_act", y, None, None, into=[x], activation="silu")
  chain.run(times=8)                                # x = silu(rms_norm(x)), eight times over

What a chain reads and writes lies in tensors that it is given, and whose memory it keeps: results are those that it has written
there. It allocates nothing while it runs, and Python is not asked between its ops.
"""

import ctypes
import functools

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfuse._core import _library, _row

_chain = _library.raw("chain")


class Operand:
    """A tensor of a chain: one that it was given, or what an op of it makes.

    It does not know its chain, which knows its operands: in a cycle, the GPU memory that a chain keeps would only be released
    when Python next looks for cycles."""

    def __init__(self, value, shape=None):
        self.value, self.shape = value, shape

    def seen_as(self, *shape):
        """The same elements in another shape."""
        return Operand(self.value, shape)


class Chain:
    """invariant: a row of an op's result is the same, bit by bit, whatever other rows there are, and however many."""

    def __init__(self, invariant=False):
        self._invariant = invariant
        self._inputs, self._calls, self._made, self._text, self._memory = [], [], 0, None, None

    def input(self, tensor):
        """A tensor that is read, or written in place: an eager one, in whose memory the chain will write."""
        self._inputs.append(tensor)
        return Operand(("i", len(self._inputs)))  # 0 is the chain's memory

    def call(self, stem, *inputs, into=(), **attributes):
        """Adds an op. Its outputs go to temporaries, but for the first ones, which go into these inputs of the chain.

        Returns its outputs, or its output. None is an input that is not given."""
        outputs = list(into)
        while len(outputs) < len(_definition(stem).output_arg):
            outputs.append(Operand(("t", self._made)))
            self._made += 1
        self._calls.append((stem, outputs, inputs, attributes))
        return outputs if len(outputs) > 1 else outputs[0]

    def run(self, times=1):
        """Queues the whole chain so many times."""
        if self._memory is None:
            self._memory = tf.zeros([self.written()[2]], tf.uint8)
        return _chain([self._memory, *self._inputs], text=self._text, times=times)

    def written(self):
        """What the op Chain is told: a text, the inputs after the memory, and how many bytes the memory has."""
        if self._text is None:
            self._text = self._written()
        return self._text, self._inputs, max(self._bytes(), 1)

    def places(self, tensors):
        """Where the chain has some of these tensors: pairs of an input's number and one of the list."""
        known = {id(tensor): i for i, tensor in enumerate(tensors)}
        return [(i, known[id(tensor)]) for i, tensor in enumerate(self._inputs) if id(tensor) in known]

    def exchange(self, places, tensors):
        """Reads other tensors in these places, of the dtypes and shapes that the chain was written for. None: keeps nothing."""
        for i, j in places:
            self._inputs[i] = tensors[j]

    def _bytes(self):
        tensors, found = [tf.TensorSpec([0], tf.uint8), *self._inputs], ctypes.c_size_t()
        wrong = _library.library.tfu_chain_bytes(self._text.encode(), _row.specs(tensors), len(tensors), ctypes.byref(found))
        if wrong:
            raise ValueError("a chain: %s" % wrong.decode())
        return found.value

    def _written(self):
        """The chain's text. Temporaries of values that nobody reads any more serve for others."""
        last = {}
        for i, (_, outputs, inputs, _) in enumerate(self._calls):
            last.update((operand.value, i) for operand in (*outputs, *inputs) if operand is not None)
        free, taken, lines = [], {}, ["invariant"] if self._invariant else []
        for i, (stem, outputs, inputs, attributes) in enumerate(self._calls):
            for operand in outputs:
                if operand.value[0] == "t" and operand.value not in taken:
                    taken[operand.value] = free.pop() if free else len(taken)
            named = lambda operands: " ".join(_named(operand, taken) for operand in operands)
            lines.append("%s %s = %s | %s" % (stem, named(outputs), named(inputs), _attributes(stem, attributes)))
            done = {operand.value for operand in (*outputs, *inputs) if operand is not None and last[operand.value] == i}
            free.extend(sorted(taken[value] for value in done if value[0] == "t"))
        return "\n".join(lines)


def _named(operand, taken):
    if operand is None:
        return "-"
    kind, number = operand.value
    shape = "" if operand.shape is None else ":" + "x".join(map(str, operand.shape))
    return "%s%d%s" % (kind, number if kind == "i" else taken[operand.value], shape)


@functools.lru_cache(None)
def _definition(stem):
    return op_def_registry.get("Tfuse>" + "".join(word.capitalize() for word in stem.split("_")))


def _attributes(stem, given):
    """All attributes but types, as a chain's text has them."""
    words, known = [], {attr.name: attr for attr in _definition(stem).attr if attr.type not in ("type", "list(type)")}
    for name in given:
        if name not in known:
            raise TypeError("%s has no attribute %s; it has %s" % (stem, name, ", ".join(known)))
    for name, attr in known.items():
        default = getattr(attr.default_value, {"string": "s", "int": "i", "float": "f", "bool": "b"}[attr.type])
        value = given.get(name, default.decode() if isinstance(default, bytes) else default)
        words.append("%s=%s" % (name, int(value) if isinstance(value, bool) else value))
    return " ".join(words)
