"""Batched products beyond the cases: batches of all kinds, the CPU's own way, what is wanted, unknown shapes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from tfuse._core import _library
from tfuse import cases
from tfuse.products.batched_matmul import composed, fused

RNG = np.random.default_rng(7)
normal = lambda *shape, dtype="float32": tf.constant(RNG.normal(size=shape), dtype)
close = lambda got, want, tolerance=1e-5: np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
A, B = normal(2, 3, 4, 5), normal(3, 5, 6)


def stock(a, b, transpose_a=False, transpose_b=False, scale=1.0):
    return scale * tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def gradients(f, *inputs, **options):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = f(*inputs, **options)
    return [y, *tape.gradient(y, inputs, tf.cos(y))]


@pytest.mark.parametrize("call", [tfuse.batched_matmul, fused, composed])
@pytest.mark.parametrize("batch_a, batch_b", [
    ((), ()), ((7,), ()), ((), (7,)), ((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (3, 1)), ((2, 1, 4), (1, 3, 1)), ((1, 1), (2,)),
    ((2, 3, 1, 2), (3, 4, 1)), ((2, 1, 2, 1, 2, 1), (1, 2, 1, 2, 1, 2)), ((0, 2), (1, 2)), ((3, 1), (3, 0))], ids=str)
@pytest.mark.parametrize("turn", [{}, {"transpose_a": True}, {"transpose_b": True}, {"transpose_a": True, "transpose_b": True}],
                         ids=lambda turn: " ".join(turn) or "plain")
def test_values_and_gradients(device, call, batch_a, batch_b, turn):
    matrix = lambda batch, rows, cols, transposed: normal(
        *batch, *((cols, rows) if transposed else (rows, cols)), dtype="float64")
    a, b = matrix(batch_a, 3, 5, "transpose_a" in turn), matrix(batch_b, 5, 2, "transpose_b" in turn)
    for got, want in zip(gradients(call, a, b, **turn, scale=0.5), gradients(stock, a, b, **turn, scale=0.5), strict=True):
        assert got.shape == want.shape
        close(got, want, 1e-12)


@pytest.mark.parametrize("batch_a, batch_b", [((70000,), (70000,)), ((30, 1, 8), (40, 8))], ids=str)
def test_more_products_than_cublaslt_takes(device, batch_a, batch_b):
    """At once: 65,535 of them; and so many batches of them that their workspaces must be one."""
    a, b = normal(*batch_a, 8, 3, dtype="float64"), normal(*batch_b, 3, 2, dtype="float64")
    for got, want in zip(gradients(fused, a, b), gradients(stock, a, b), strict=True):
        close(got, want, 1e-12)


@pytest.mark.parametrize("wanted", [0, 1])
def test_only_what_is_wanted(device, wanted):
    """In a graph, the gradient of the other is not computed at all."""
    inputs = [A, B]

    @tf.function
    def f():
        with tf.GradientTape() as tape:
            tape.watch(inputs[wanted])
            y = fused(*inputs)
        return tape.gradient(y, inputs[wanted], tf.cos(y))

    products = [op for op in f.get_concrete_function().graph.get_operations() if op.type == "Tfuse>BatchedMatmul"]
    assert len(products) == 2
    close(f(), gradients(stock, *inputs)[1 + wanted])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_slices(device, dtype):
    """Parts of larger tensors. TensorFlow copies what does not begin on 64 bytes; products_test.c has addresses in between."""
    a, b = normal(5, 3, 7, 33, dtype=dtype), normal(5, 3, 33, 19, dtype=dtype)
    for i in range(1, 4):
        close(tf.cast(fused(a[i], b[i]), "float32"), tf.cast(stock(a[i], b[i]), "float32"), 1e-5 if dtype == "float32" else 0.2)


@pytest.mark.parametrize("terms", [1, 100_003])
def test_short_and_long_sums(device, terms):
    a, b = RNG.normal(size=(2, 3, terms)), RNG.normal(size=(2, terms, 5))
    assert cases.error(fused(tf.constant(a, tf.float32), tf.constant(b, tf.float32)), a @ b) < 1e-5


LONG = 1_000_000


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("result, m, k, n", [(0, 4, LONG, 2), (1, 4, 2, LONG), (2, LONG, 4, 2)], ids=["y", "da", "db"])
def test_sums_of_a_million(device, dtype, result, m, k, n):
    a, b, dy = (normal(2, *shape, dtype=dtype) for shape in [(m, k), (k, n), (m, n)])

    def step(f):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            y = f(a, b)
        return [y, *tape.gradient(y, [a, b], dy)][result]

    left, right = ((a, b), (dy, tf.linalg.matrix_transpose(b)), (tf.linalg.matrix_transpose(a), dy))[result]
    want = cases.as64(left) @ cases.as64(right)
    assert cases.error(step(fused), want) <= cases.allowed(step(stock), want, dtype)


def test_a_sum_that_is_longer_than_its_terms(device):
    """16-bit products that are summed over the batch are not rounded before."""
    a, b = normal(8, 4, dtype="bfloat16"), normal(512, 4, 8, dtype="bfloat16")
    _, da, _ = gradients(lambda a, b: fused(a, b), a, b)
    dy = np.cos(cases.as64(fused(a, b)))
    want = np.einsum("bmn,bkn->mk", cases.as64(tf.cast(dy, "bfloat16")), cases.as64(b))
    assert cases.error(da, want) < 2**-7


def test_unknown_shapes(device, jit):
    spec = lambda *shape: tf.TensorSpec(shape)
    f = tf.function(lambda a, b: gradients(fused, a, b, transpose_b=True), autograph=False, jit_compile=jit,
                    input_signature=[spec(None, None, 5), spec(None, None, 5)])
    a, b = normal(3, 4, 5), normal(3, 6, 5)
    for got, want in zip(f(a, b), gradients(stock, a, b, transpose_b=True)):
        close(got, want)
    if jit and not _library.xla_status():
        routes = [row["route"] for row in tfuse.explain() if row["when"] == "traced"]
        assert routes[-3:] == ["XLA custom call"] * 3
    if not jit:
        g = tf.function(fused, input_signature=[tf.TensorSpec(None)] * 2)
        close(g(A, B), stock(A, B))
        assert g.get_concrete_function().output_shapes.rank is None
    shape = lambda *specs: tf.function(fused, input_signature=specs).get_concrete_function().output_shapes.as_list()
    assert shape(spec(None, 1, None, 5), spec(7, None, 3)) == [None, 7, None, 3]
    assert shape(spec(2, None, 4, 5), spec(7, None, 3)) == [2, 7, 4, 3]
    assert shape(spec(2, None, 4, 5), spec(1, 5, 3)) == [2, None, 4, 3]


def test_on_symbolic_tensors():
    x = keras.Input((4, 5))
    model = keras.Model(x, tfuse.batched_matmul(x, x, transpose_b=True, scale=0.5))
    a = normal(3, 4, 5)
    close(model(a), 0.5 * tf.matmul(a, a, transpose_b=True))


def test_what_runs_without_a_gpu(monkeypatch):
    """Large matrices of float32 and float64 go to TensorFlow, whose product is faster there; all others to the op."""
    monkeypatch.setattr(_library, "without_gpu", lambda: True)

    def ops(*inputs):
        graph = tf.function(lambda: tfuse.batched_matmul(*inputs)).get_concrete_function().graph
        return [op.type for op in graph.get_operations() if "matmul" in op.type.lower()]

    assert ops(normal(2, 65, 65), normal(2, 65, 65)) == ["BatchMatMulV2"]
    row = [row for row in tfuse.explain() if row["when"] == "called"][-1]
    assert row["op"] == "BatchedMatmul" and row["route"] == "plain TensorFlow" and "no GPU" in row["why"]
    for dtype, size in [("float32", 64), ("bfloat16", 65), ("float16", 65)]:
        assert ops(normal(2, size, size, dtype=dtype), normal(2, size, size, dtype=dtype)) == ["Tfuse>BatchedMatmul"]


def test_scale_of_nothing(device):
    """Infinities times 0 are NaN, as in TensorFlow, and so is what flows back to the other factor."""
    assert not np.any(fused(A, B, scale=0.0))
    a = tf.tensor_scatter_nd_update(A, [[0, 1, 2, 3]], [np.inf])
    b = tf.tensor_scatter_nd_update(B, [[2, 1, 4], [0, 0, 0]], [-np.inf, np.nan])
    for got, want in zip(gradients(fused, a, b, scale=0.0), gradients(stock, a, b, scale=0.0), strict=True):
        assert np.any(np.isnan(want)) and np.any(want == 0)
        np.testing.assert_array_equal(got, want)
