"""What every op refuses, and in which words; and what every gradient op does."""

import functools

import pytest
import tensorflow as tf

import tfuse
from case_runs import ALL, full_name, graphs, on
from tfuse._core import _op

REJECTS = [(case, pattern, make) for case in ALL for pattern, make in case.rejects]


@pytest.mark.parametrize("route", ["eager", "graph", "xla"])
@pytest.mark.parametrize("case, pattern, make", REJECTS, ids=["%s: %s" % (full_name(c), p[:40]) for c, p, _ in REJECTS])
def test_rejects(route, case, pattern, make):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=pattern):
        on(route)(make)()
    assert float(tf.add(1.0, 1.0)) == 2.0  # nothing aborted


GRADIENTS = sorted(name for name in _op.registry if name.endswith("Grad"))
# Axes of which any size will do: labels do not tell how many classes there are, results not how many values were reduced,
# along one axis or the other, nor, where there is padding, how large windows were; how many inputs a kernel has is its own
# matter, and on which axis depends on its order; groups by index may be any number, and histories of any length.
_FREE = {"SparseCrossEntropyGrad": {"x": [1]}, "ReduceGrad": {"x": [0, 1], "room": [1]},
         "DepthwiseConvGrad": {"kernel": [0, 1]}, "AveragePoolGrad": {"dy": [0, 4]},
         "QuantizedLinearGrad": {"dy": [0, 1], "kernel": [0, 1], "scale": [0]},
         "Float8LinearGrad": {"dy": [0, 1], "kernel": [0, 1], "x_history": [0], "kernel_history": [0], "dy_history": [0]},
         "ResizeGrad": {"dy": [-5, -4, -3, -2, -1], "size": [-4, -3, -2]},  # any sizes become any others
         "WeightedBincountGrad": {"dsums": [-1], "ids": [-1]}}
# Where not the argument itself is said to be wrong, since others are held against it: these.
_HELD = {"AttentionGrad": {"query": "doutput|bias|mask", "value": "doutput"}, "GatedGrad": {"a": "dy", "b": "dy"},
         "ReduceGrad": {"room": "dy"}, "RnnGrad": {"x": "h|dy"}}


@functools.lru_cache(None)
def gradient_calls():
    """By gradient op, the (attributes, inputs) that the cases call it with."""
    def of_lse(query, dlse):
        with tf.GradientTape() as tape:
            tape.watch(query)
            lse = tfuse.attention(query, query, query, return_lse=True)[1]
        return tape.gradient(lse, query, dlse)

    def read_twice(x, training):
        y = tfuse.batch_norm(x, None, None, tf.zeros([3]), tf.ones([3]), training)[0]
        return tf.gradients(tf.sin(y) + tf.cos(y), x)

    def by_signs(x):
        ones = [tf.ones([3])] * 4
        return tf.gradients(_op.registry["BatchNorm"](x, *ones, tf.identity(x), _op.sized(1), activation="relu")[0], x)

    def spread(dy):
        return _op.registry["ReduceGrad"](dy, None, None, _op.sized(2, 3, 4), kind="sum", axes=2)

    calls = {}
    more = [(spread, tf.ones([2, 4])), (of_lse, tf.ones([2, 5, 4, 8]), tf.ones([2, 4, 5])), (read_twice, tf.ones([4, 3]), True),
            (read_twice, tf.ones([4, 3]), False), (by_signs, tf.ones([4, 3, 1]))]
    for graph in [*graphs().values(), *(tf.function(f).get_concrete_function(*inputs).graph for f, *inputs in more)]:
        for node in graph.get_operations():
            name = node.type.rpartition(">")[2]
            if name in GRADIENTS:
                attributes = {a: _op.registry[name]._attribute(node, a) for a in _op.registry[name]._attributes}
                calls.setdefault(name, []).append((attributes, [tf.zeros(i.shape, i.dtype) for i in node.inputs]))
    return calls


@pytest.mark.parametrize("name", GRADIENTS, ids=lambda name: _op.registry[name].stem)
def test_gradients_reject(device, name):
    """Whatever argument has another size on some axis, or an axis more, and what that is said to be."""
    op, given = _op.registry[name], set()
    arguments = [a.name for a in op._definition.input_arg]
    for attributes, inputs in gradient_calls()[name]:
        op(*inputs, **attributes)
        for i, (argument, tensor) in enumerate(zip(arguments, inputs)):
            if tensor.shape == [0]:
                continue
            given.add(argument)
            shapes = [[size + 7 * (a == axis) for a, size in enumerate(tensor.shape)] for axis in range(tensor.shape.rank)]
            for axis, shape in enumerate([*shapes, [*tensor.shape, 3]]):
                if {axis, axis - tensor.shape.rank} & set(_FREE.get(name, {}).get(argument, [])):
                    continue
                names = "|".join(filter(None, [argument, _HELD.get(name, {}).get(argument)]))
                wrong = r"%s: .*\b(%s)\b.*got" % (name, names)
                with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=wrong):
                    op(*inputs[:i], tf.zeros(shape, tensor.dtype), *inputs[i + 1:], **attributes)
    assert given == set(arguments)
