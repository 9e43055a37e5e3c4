"""Products by our own kernels beyond the case: odd sizes, long sums, slices, second gradients, and what explain() says."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import GPUS, new_process, skip_broken_xla
from tfuse import cases
from tfuse.products.matmul_own import KINDS

RNG = np.random.default_rng(6)
needs_gpu = pytest.mark.skipif(not GPUS, reason="needs a GPU")
every_kind = pytest.mark.parametrize("kind", KINDS)
every_dtype = pytest.mark.parametrize("dtype", cases.DTYPES)


def normal(*shape, dtype="float32"):
    return tf.constant(RNG.normal(size=shape), dtype)


def check(got, a, b):
    """Against the product in float64 of what a and b are after rounding."""
    want = cases.as64(a) @ cases.as64(b)
    scale = np.sqrt((cases.as64(a) ** 2) @ (cases.as64(b) ** 2)).max(initial=0) + np.abs(want).max(initial=0)
    unit = {"float64": 1e-13, "float32": 1e-5, "float16": 5e-4, "bfloat16": 4e-3}[got.dtype.name]
    assert got.dtype == a.dtype and got.shape == want.shape
    assert np.abs(cases.as64(got) - want).max(initial=0) <= unit * scale


@every_kind
@every_dtype
@pytest.mark.parametrize("m, k, n", [(1, 129, 7), (7, 1, 129), (129, 7, 1), (1, 1, 129), (129, 1, 129), (1, 7, 1), (129, 129, 7)])
def test_odd_sizes(device, kind, dtype, m, k, n):
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
    check(tfuse.matmul_own(a, b, kind), a, b)


@every_kind
@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFC00000])  # NaN as GPUs make it, and as processors do
def test_nan_stays(tf32, device, kind, on, bits):
    tf.config.experimental.enable_tensor_float_32_execution(on)
    a, b = (np.array(normal(16, 16)) for _ in range(2))
    a[3, 5] = np.array(bits, np.uint32).view(np.float32)
    y = tfuse.matmul_own(a, b, kind).numpy()
    assert np.all(np.isnan(y[3])) and np.all(np.isfinite(np.delete(y, 3, 0)))


@pytest.mark.parametrize("jit", [False, True])
def test_more_matrices_than_pieces_of_scratch(device, jit):
    if jit:
        skip_broken_xla()
    a, b = normal(2, 30, 3, 5, dtype="float64"), normal(2, 30, 5, 4, dtype="float64")

    @tf.function(jit_compile=jit)
    def step(a, b):
        y = tfuse.matmul_own(a, b)
        return y, *tf.gradients(y, [a, b], tf.cos(y))

    y, da, db = step(a, b)
    check(y, a, b)
    check(da, tf.cos(y), tf.linalg.matrix_transpose(b))
    check(db, tf.linalg.matrix_transpose(a), tf.cos(y))


@every_kind
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("m, n", [(1, 1), (3, 5), (8, 16)])
def test_a_sum_of_a_million(device, kind, dtype, m, n):
    a, b = normal(m, 1_000_000, dtype=dtype), normal(1_000_000, n, dtype=dtype)
    check(tfuse.matmul_own(a, b, kind), a, b)


@every_kind
@pytest.mark.parametrize("a, b", [((0, 3), (3, 4)), ((2, 3), (3, 0)), ((0, 2, 3), (0, 3, 4)), ((0, 0), (0, 0))])
def test_empty_results(device, kind, a, b):
    a, b = tf.ones(a), tf.ones(b)
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        y = tfuse.matmul_own(a, b, kind)
    assert y.shape == (*a.shape[:-1], b.shape[-1])
    for gradient, of in zip(tape.gradient(y, [a, b]), [a, b]):
        assert gradient.shape == of.shape and not np.any(gradient)


@every_kind
def test_empty_sums_are_zero(device, kind):
    y = tfuse.matmul_own(tf.ones([3, 0]), tf.ones([0, 5]), kind)
    assert y.shape == (3, 5) and not np.any(y)


@every_kind
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("k", [32, 33])
def test_slices(device, kind, dtype, k):
    """Parts of larger tensors. TensorFlow copies what does not begin on 64 bytes; products_test.c has addresses in between."""
    a, b = normal(9, 7, k, dtype=dtype), normal(5, k, 19, dtype=dtype)
    for i in range(1, 4):
        check(tfuse.matmul_own(a[i], b[i], kind), a[i], b[i])
        check(tfuse.matmul_own(a[i, :, i:], b[i, i:], kind), a[i, :, i:], b[i, i:])


@every_kind
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("m, k, n", [(7, 33, 5), (136, 264, 72)], ids=["odd", "in chunks"])
def test_turned(device, kind, dtype, m, k, n):
    """Inputs that were transposed; and the gradients, which read a factor by its columns."""
    a, b, dy = normal(k, m, dtype=dtype), normal(n, k, dtype=dtype), normal(m, n, dtype=dtype)
    a, b = tf.transpose(a), tf.transpose(b)
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        y = tfuse.matmul_own(a, b, kind)
    check(y, a, b)
    da, db = tape.gradient(y, [a, b], dy)
    check(da, dy, tf.transpose(b))
    check(db, tf.transpose(a), dy)


@every_kind
@pytest.mark.parametrize("through", [(0,), (1,), (0, 1)])
def test_second_gradient_by_our_own_kernels(device, kind, through):
    """Of the gradient of a, of b or of both; computed by the same kernels again."""
    a, b = normal(2, 5, 6, dtype="float64"), normal(2, 6, 7, dtype="float64")
    results = []
    for f in (lambda a, b: tfuse.matmul_own(a, b, kind), tf.matmul):
        with tf.GradientTape() as outer:
            outer.watch([a, b])
            with tf.GradientTape() as inner:
                inner.watch([a, b])
                y = tf.sin(f(a, b))
            first = inner.gradient(y, [a, b])
            loss = tf.add_n([tf.reduce_sum(tf.sin(first[i])) for i in through])
        results.append(outer.gradient(loss, [a, b]))
    for got, want in zip(*results):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)

    def second(a, b):
        with tf.GradientTape() as outer:
            outer.watch(a)
            with tf.GradientTape() as inner:
                inner.watch([a, b])
                y = tf.sin(tfuse.matmul_own(a, b, kind))
            first = inner.gradient(y, [a, b])
        return outer.gradient([first[i] for i in through], a)

    ops = tf.function(second).get_concrete_function(a, b).graph.get_operations()
    assert not [op.name for op in ops if "MatMul" in op.type and "Tfuse" not in op.type]


def test_a_mismatch_that_only_running_shows(device):
    f = tf.function(tfuse.matmul_own, autograph=False,
                    input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None, None])])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"got shapes \[2, 3\] and \[4, 5\]"):
        f(tf.ones([2, 3]), tf.ones([4, 5]))


@pytest.mark.parametrize("kind", ["fast", "", None, 0])
def test_unknown_kinds(kind):
    with pytest.raises(ValueError, match="kind must be one of tensor, tiled, naive, got %r" % (kind,)):
        tfuse.matmul_own(tf.ones([2, 3]), tf.ones([3, 4]), kind=kind)


@needs_gpu
@pytest.mark.parametrize("kind, dtype, shape, kernel, why", [
    ("tensor", "bfloat16", (64, 64, 64), "matmul_tensor_nn", ""),
    ("tensor", "bfloat16", (64, 63, 64), "matmul_tiled", "tiled, since the tensor kernel takes rows of multiples of 16 bytes"),
    ("tensor", "float32", (64, 64, 64), "matmul_tiled", "tiled, since the tensor kernel takes float16 and bfloat16"),
    ("tiled", "bfloat16", (64, 64, 64), "matmul_tiled", ""),
    ("naive", "bfloat16", (64, 64, 64), "matmul_naive", ""),
])
def test_explain(kind, dtype, shape, kernel, why):
    with tf.device("GPU:0"):
        tfuse.matmul_own(normal(*shape[:2], dtype=dtype), normal(*shape[1:], dtype=dtype), kind)
    last = tfuse.explain()[-1]
    small = "too little shared memory" in last["why"]  # on this GPU
    assert last["op"] == "MatmulOwn" and (kernel in last["kernel"] or small), last
    assert last["why"] == "; ".join(filter(None, ["its inputs are on the GPU", why])) or small, last


@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_linear_without_cublaslt(monkeypatch, dtype):
    monkeypatch.setenv("TFUSE_CUBLASLT", "0")
    done = new_process("""if True:
        import sys, numpy as np, tensorflow as tf, tfuse
        from tfuse.products.linear import fused
        rng, dtype = np.random.default_rng(1), sys.argv[1]
        for inputs in (64, 65):
            x, kernel, bias, residual = (tf.constant(rng.normal(size=s) / 8, dtype)
                                         for s in [(48, inputs), (inputs, 40), (40,), (48, 40)])
            for act in (None, "relu", "gelu_tanh"):
                with tf.GradientTape() as tape:
                    tape.watch([x, kernel, bias])
                    y = fused(x, kernel, bias, act, residual)
                got = [y, *tape.gradient(y, [x, kernel, bias], tf.ones_like(y))]
                wide = [tf.cast(t, tf.float64) for t in (x, kernel, bias, residual)]
                with tf.GradientTape() as tape:
                    tape.watch(wide)
                    z = wide[0] @ wide[1] + wide[2]
                    z = {None: tf.identity, "relu": tf.nn.relu, "gelu_tanh": lambda z: tf.nn.gelu(z, True)}[act](z) + wide[3]
                want = [z, *tape.gradient(z, wide[:3])]
                for g, w in zip(got, want):
                    error = np.abs(tf.cast(g, tf.float64) - w).max() / np.abs(w).max()
                    assert error < (1e-5 if dtype == "float32" else 0.03), (act, error)
        assert any("TFUSE_CUBLASLT=0" in row["why"] and "matmul" in row["kernel"] for row in tfuse.explain(64))
    """, dtype)
    assert done.returncode == 0, done.stdout
