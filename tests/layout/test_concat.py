"""concat against NumPy, on hundreds of random shapes, and its way back: bits are moved, all is exact."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from moving import DTYPES, some, values
from tfuse.layout.concat import split_as


def drawn(rng, dtype):
    """Tensors of random sizes that fit together, and the axis."""
    rank = int(rng.integers(1, 9))
    axis, most = int(rng.integers(rank)), [0, 3000, 60, 20, 8, 6, 4, 3, 3][rank]
    shape = [int(rng.choice([1, 2, 3, 8, most, rng.integers(0, most + 1)])) for _ in range(rank)]
    sizes = rng.choice([0, 1, 2, 3, 8, 16, most], size=rng.choice([2, 3, 5, 17, 40] if rank < 5 else [2, 3]))
    return [some(rng, [*shape[:axis], int(n), *shape[axis + 1:]], dtype) for n in sizes], axis, rank


@pytest.mark.parametrize("dtype", DTYPES)
def test_there_and_back(device, dtype):
    rng = np.random.default_rng(DTYPES.index(dtype))
    for _ in range(40):
        x, axis, rank = drawn(rng, dtype)
        spelled = axis - rank if rng.integers(2) else axis
        y = tfuse.concat(x, spelled)
        assert y.dtype == x[0].dtype
        assert np.array_equal(values(y), np.concatenate([values(v) for v in x], axis)), ([v.shape for v in x], axis)
        for got, want in zip(split_as(y, x, spelled), x, strict=True):
            assert got.dtype == want.dtype and np.array_equal(values(got), values(want))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large(device, dtype):
    """More than a task of the CPU, or a block of a GPU: short rows, long ones, and one."""
    rng = np.random.default_rng(5)
    for sizes, axis in [([(4096, 32), (4096, 32)], 1), ([(3, 70001), (3, 50003)], 1), ([(300001,), (0,), (200003,)], 0),
                        ([(65537, 1), (65537, 2), (65537, 5)], -1), ([(5, 7, 900), (5, 3, 900)], 1),
                        ([(7, 64), (0, 64), (9, 64)], 0)]:
        x = [some(rng, size, dtype) for size in sizes]
        y = tfuse.concat(x, axis)
        assert np.array_equal(values(y), np.concatenate([values(v) for v in x], axis))
        assert all(np.array_equal(values(a), values(b)) for a, b in zip(split_as(y, x, axis), x))


def test_what_is_known_while_tracing():
    spec = tf.TensorSpec
    f = tf.function(lambda *x: tfuse.concat(x, -1), input_signature=[spec([None, 3, 4]), spec([2, None, 5])])
    assert f.get_concrete_function().output_shapes.as_list() == [2, 3, 9]
    f = tf.function(lambda *x: tfuse.concat(x, 0), input_signature=[spec([None, 3]), spec([2, None])])
    assert f.get_concrete_function().output_shapes.as_list() == [None, 3]
    f = tf.function(lambda *x: tfuse.concat(x, 1), input_signature=[spec(None), spec(None)])
    assert f.get_concrete_function().output_shapes.rank is None
    assert f(tf.ones([2, 1]), tf.zeros([2, 2])).numpy().tolist() == [[1, 0, 0]] * 2
    late = tf.function(lambda a, b, axis: tfuse.concat([a, b], axis))
    assert late(tf.ones([2]), tf.zeros([1]), tf.constant(0)).numpy().tolist() == [1, 1, 0]
    row = [row for row in tfuse.explain() if row["op"] == "Concat" and row["when"] == "called"][-1]
    assert row["route"] == "plain TensorFlow" and row["why"] == "the axis is known when the function runs, and not before"


@pytest.mark.parametrize("shapes, axis, message", [
    ([[2, 3], [2]], 1, r"Concat: values\[1\] must have as many axes as values\[0\] \[2, 3\], got shape \[2\]"),
    ([[2, 3], [4, 3]], -1,
     r"Concat: values\[1\] must have the sizes of values\[0\] \[2, 3\] but along axis 1, got shape \[4, 3\]"),
    ([[2, 3], [2, 3]], 2, r"Concat: axis must be from -2 to 1 for values\[0\] \[2, 3\], got 2"),
    ([[], []], 0, r"Concat: values\[0\] must have an axis, got a single number")])
def test_what_is_wrong_and_known_late(shapes, axis, message):
    f = tf.function(lambda *x: tfuse.concat(x, axis), input_signature=[tf.TensorSpec(None)] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        f(*map(tf.ones, shapes))


def test_one_and_many_axes():
    x = tf.random.normal([2, 3])
    assert np.array_equal(tfuse.concat([x], 1), x) and np.array_equal(tfuse.concat(x, 0), x)
    with pytest.raises(ValueError, match="concat: axis must be from -2 to 1"):
        tfuse.concat([x], 2)
    many = tf.reshape(x, [1] * 7 + [2, 3])
    assert np.array_equal(tfuse.concat([many, many], -1), tf.concat([many, many], -1))
    assert tfuse.concat([x, [[1, 2, 3]]], 0).dtype == tf.float32


@pytest.mark.parametrize("known", [True, False])
def test_gradients_of_any_order(known):
    """Also of sizes that are known late, of parts that nobody uses, and of slices."""
    shapes = [[2, 3], [2, 0], [2, 5]]
    x = [tf.random.normal(shape) for shape in shapes]

    def third(concat):
        def f(*x):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = concat(x, 1)
                    loss = tf.reduce_sum(y**3 * tf.range(8.0)) + tf.reduce_sum(tf.gather(y, [1, 1]))
                first = inner.gradient(loss, x)
            return first, outer.gradient(first[0], x, unconnected_gradients="zero")
        return tf.function(f, input_signature=[tf.TensorSpec(s if known else [None, None]) for s in shapes])

    for got, want in zip(tf.nest.flatten(third(tfuse.concat)(*x)), tf.nest.flatten(third(tf.concat)(*x)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_inputs_are_not_kept_for_their_sizes():
    """Where these are known, what goes back reads nothing but the gradient."""
    @tf.function
    def step(a, b):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            y = tfuse.concat([a, b], -1)
        return tape.gradient(y, [a, b])

    graph = step.get_concrete_function(tf.TensorSpec([None, 3]), tf.TensorSpec([None, 5])).graph
    split, = [op for op in graph.get_operations() if op.type == "Tfuse>ConcatSplit"]
    assert [i.shape.as_list() for i in split.inputs[1:]] == [[3, 0], [5, 0]]
    assert {i.op.type for i in split.inputs[1:]} == {"Const"}
    assert [y.shape.as_list() for y in split.outputs] == [[None, 3], [None, 5]]
