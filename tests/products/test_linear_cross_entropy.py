"""linear_cross_entropy and gated_linear, beyond what their cases say, and GatedDense."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import GPUS, needs_xla, since_now, skip_broken_xla
from tfuse import cases

RNG = np.random.default_rng(5)


def normal(*shape, dtype="float32"):
    return tf.constant(RNG.normal(size=shape), dtype)


def close(got, want, tolerance=1e-5):
    assert cases.error(tf.convert_to_tensor(got), cases.as64(tf.convert_to_tensor(want))) <= tolerance


X, KERNEL, BIAS = normal(3, 7, 6), normal(6, 11), normal(11)
LABELS = tf.constant(RNG.integers(0, 11, (3, 7)))


def stock(x, kernel, labels, bias=None):
    logits = tf.tensordot(x, kernel, 1)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits if bias is None else logits + bias)


def gradients(f, *inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = f(*inputs)
    return [y, *tape.gradient(y, inputs)]


# ---- linear_cross_entropy ----


@pytest.mark.parametrize("rows", [1, 127, 511, 512, 513, 1023, 1024, 1025, 2049])
@pytest.mark.parametrize("transposed", [False, True])
def test_around_chunks(device, rows, transposed):
    x, kernel, bias, labels = normal(rows, 5), normal(5, 9), normal(9), RNG.integers(0, 9, rows)
    ours = lambda x, k, b: tfuse.linear_cross_entropy(x, tf.transpose(k) if transposed else k, labels, b,
                                                      transpose_kernel=transposed, reduction="mean")
    for got, want in zip(gradients(ours, x, kernel, bias),
                         gradients(lambda x, k, b: tf.reduce_mean(stock(x, k, labels, b)), x, kernel, bias)):
        close(got, want, 2e-5)


@pytest.mark.parametrize("reduction", [None, "sum", "mean"])
def test_no_rows(device, reduction):
    x, labels = tf.zeros([0, 6]), tf.zeros([0], tf.int32)
    loss, dx, dkernel = gradients(lambda x, k: tfuse.linear_cross_entropy(x, k, labels, reduction=reduction), x, KERNEL)
    assert loss.shape == ([0] if reduction is None else []) and dx.shape == [0, 6]
    assert np.all(loss.numpy() == 0) and np.all(dkernel.numpy() == 0)


def test_mean_is_over_rows_that_count(device):
    labels = tf.where(LABELS > 7, -1, LABELS)
    losses = tfuse.linear_cross_entropy(X, KERNEL, labels, ignore_class=-1)
    mean = tfuse.linear_cross_entropy(X, KERNEL, labels, ignore_class=-1, reduction="mean")
    close(mean, np.sum(losses) / np.sum(labels.numpy() >= 0))
    keras_loss = tfuse.SparseCategoricalCrossentropy(ignore_class=-1)
    close(mean, keras_loss(labels, tf.tensordot(X, KERNEL, 1)), 1e-5 if "CPU" in device else 1e-3)
    none = tfuse.linear_cross_entropy(X, KERNEL, tf.fill([3, 7], -1), ignore_class=-1, reduction="mean")
    assert none.numpy() == 0


def test_weights(device):
    weights = tf.constant([[1.0], [0.0], [2.5]])
    losses = tfuse.linear_cross_entropy(X, KERNEL, LABELS)
    close(tfuse.linear_cross_entropy(X, KERNEL, LABELS, weights=weights), losses * weights)
    close(tfuse.linear_cross_entropy(X, KERNEL, LABELS, weights=weights, reduction="sum"), tf.reduce_sum(losses * weights))
    close(tfuse.linear_cross_entropy(X, KERNEL, LABELS, weights=weights, reduction="mean"), tf.reduce_mean(losses * weights))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint32"])
def test_other_integers(kind):
    close(tfuse.linear_cross_entropy(X, KERNEL, tf.cast(LABELS, kind)), stock(X, KERNEL, LABELS))


def test_a_label_that_is_no_class(device):
    labels = tf.tensor_scatter_nd_update(LABELS, [[1, 2]], [11])
    if "CPU" in device:
        skip_broken_xla()
        for route in (lambda f: f, tf.function, lambda f: tf.function(f, jit_compile=True)):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"labels must be in \[0, 11\) .*got 11 at row 9"):
                route(lambda: tfuse.linear_cross_entropy(X, KERNEL, labels))()
        return
    loss, dx = gradients(lambda x: tfuse.linear_cross_entropy(x, KERNEL, labels), X)
    assert np.array_equal(np.argwhere(np.isnan(loss)), [[1, 2]])
    assert np.all(dx.numpy()[1, 2] == 0) and np.all(np.isfinite(dx))


@pytest.mark.parametrize("reduction", [None, "sum"])
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "graph"])
def test_only_what_is_wanted(device, reduction, wanted, traced):
    inputs = [X, KERNEL, BIAS]

    def f():
        watched = [inputs[i] for i in wanted]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            loss = tf.reduce_sum(tfuse.linear_cross_entropy(X, KERNEL, LABELS, BIAS, reduction=reduction))
        return tape.gradient(loss, watched)

    want = gradients(lambda x, k, b: tf.reduce_sum(stock(x, k, LABELS, b)), *inputs)[1:]
    for got, i in zip((tf.function(f) if traced else f)(), wanted):
        close(got, want[i], 1e-5 if "CPU" in device else 2e-3)


def kept(f):
    """The shapes of the gradients that the op in a traced f keeps."""
    ops = tf.function(f).get_concrete_function().graph.get_operations()
    return [output.shape.as_list() for op in ops if op.type == "Tfuse>LinearCrossEntropy" for output in op.outputs[1:]]


def test_nothing_is_kept_for_nobody(monkeypatch):
    mean = lambda training: kept(lambda: tfuse.linear_cross_entropy(X, KERNEL, LABELS, reduction="mean", training=training))
    assert mean(None) == mean(True) == [[3, 7, 6], [6, 11], [0]]
    assert mean(False) == [[0], [0], [0]]
    given = []
    module = sys.modules["tfuse.products.linear_cross_entropy"]
    monkeypatch.setattr(module, "_forward", Recording(module._forward, given))
    tfuse.linear_cross_entropy(X, KERNEL, LABELS, reduction="mean")
    with tf.GradientTape() as tape:
        tape.watch(KERNEL)
        tfuse.linear_cross_entropy(X, KERNEL, LABELS, reduction="mean")
    assert given == [[False, False, False], [False, True, False]]


class Recording:
    """An op that writes down which gradients it is asked for."""

    def __init__(self, op, given):
        self.op, self.given, self.tensors = op, given, op.tensors

    def __call__(self, *inputs, **attributes):
        self.given.append([i is not None for i in inputs[5:]])
        return self.op(*inputs, **attributes)


def test_gradients_where_none_were_kept(device):
    f = tf.function(lambda x: tfuse.linear_cross_entropy(x, KERNEL, LABELS, reduction="sum", training=False))
    for got, want in zip(gradients(f, X), gradients(lambda x: tf.reduce_sum(stock(x, KERNEL, LABELS)), X)):
        close(got, want, 1e-5 if "CPU" in device else 2e-3)


@pytest.mark.parametrize("reduction", [None, "mean"])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "graph"])
def test_second_gradients(device, reduction, traced):
    x, kernel = tf.cast(X, tf.float64), tf.cast(KERNEL, tf.float64)

    def second(f):
        with tf.GradientTape() as outer:
            outer.watch([x, kernel])
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = f(x, kernel)
            loss = tf.reduce_sum(tf.sin(inner.gradient(y, x)))
        return outer.gradient(loss, [x, kernel])

    ours = lambda: second(lambda x, k: tf.reduce_mean(tfuse.linear_cross_entropy(x, k, LABELS, reduction=reduction)))
    for got, want in zip((tf.function(ours) if traced else ours)(),
                         second(lambda x, k: tf.reduce_mean(stock(x, k, LABELS)))):
        close(got, want, 1e-6)


def test_half_precision_keeps_small_gradients(device):
    """The gradient of a mean over many rows is below what float16 can hold, until the loss is scaled up."""
    rows, scale = 3000, 2.0**14
    x, kernel, labels = normal(rows, 8, dtype="float16"), normal(8, 500, dtype="float16"), RNG.integers(0, 500, rows)
    ours = lambda x, k: scale * tfuse.linear_cross_entropy(x, k, labels, reduction="mean")
    wide = lambda x, k: scale * tf.reduce_mean(stock(x, k, labels))
    want = gradients(wide, *(tf.cast(t, tf.float32) for t in (x, kernel)))
    for got, w in zip(gradients(ours, x, kernel), want, strict=True):
        close(tf.cast(got, tf.float32), w, 5e-3)


@pytest.mark.parametrize("route", ["eager", "graph", "xla"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_half_precision_has_gradients_of_many_rows(device, reduction, route):
    """What is summed over 140,000 rows is beyond float16, and its mean is not; nor is a sum that is scaled down later."""
    if route == "xla":
        skip_broken_xla()
    rows, scale = 140_000, 1024.0
    x, kernel = tf.ones([rows, 2], tf.float16), tf.zeros([2, 3], tf.float16)
    bias, labels = tf.zeros([3], tf.float16), tf.tile([1, 1, 1, -1], [rows // 4])
    kept = 0.75 * rows if reduction == "mean" else rows

    def ours(*t):
        loss = tfuse.linear_cross_entropy(*t[:2], labels, t[2], ignore_class=-1, reduction=reduction)
        return scale * (loss if reduction == "mean" else loss / rows)

    f = lambda *t: gradients(ours, *t)
    loss, dx, dkernel, dbias = (f if route == "eager" else tf.function(f, jit_compile=route == "xla"))(x, kernel, bias)
    part = 0.75 * rows / kept * scale
    close(loss, part * np.log(3), 1e-4)
    close(dbias, part * np.array([1, -2, 1]) / 3, 1e-3)
    close(dkernel, part * np.array([[1, -2, 1]] * 2) / 3, 1e-3)
    assert np.all(dx.numpy() == 0)


@pytest.mark.parametrize("route", ["eager", "graph", "xla"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_classes_that_fill_no_packs(as_on_a_gpu, device, dtype, transposed, biased, route):
    """As exact as with a number of classes that is a multiple of 8. By the mean of some draws: of one, a loss is one number,
    and the naive one's error in it may be nothing by chance."""
    if route == "xla":
        skip_broken_xla()
    classes, rows, draws = 1027, 40, 6
    labels = np.append(RNG.integers(0, classes, rows - 3), [classes - 1, classes - 2, 5])

    def naive(x, kernel, bias=0):
        logits = tf.matmul(x, kernel, transpose_b=transposed) + bias
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_sum(tf.where(labels == 5, tf.zeros_like(losses), losses)) / 1024

    ours = lambda x, kernel, bias=None: tfuse.linear_cross_entropy(
        x, kernel, labels, bias, transpose_kernel=transposed, reduction="sum", ignore_class=5) / 1024
    f = lambda *t: gradients(ours, *t)
    f = f if route == "eager" else tf.function(f, jit_compile=route == "xla")
    errors = []
    for _ in range(draws):
        inputs = [normal(rows, 16, dtype=dtype), normal(*(classes, 16) if transposed else (16, classes), dtype=dtype)]
        inputs += [normal(classes, dtype=dtype)] * biased
        exact = [cases.as64(t) for t in gradients(naive, *(tf.cast(t, tf.float64) for t in inputs))]
        got, own = f(*inputs), gradients(naive, *inputs)
        assert [t.shape for t in got] == [t.shape for t in exact]
        errors.append([[cases.error(t, want) for t, want in zip(some, exact, strict=True)] for some in (got, own)])
    got, own = np.mean(errors, axis=0)
    assert np.all(got <= 2 * own + 1e-6), (got, own)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_bias_that_fills_packs_costs_no_product(as_on_a_gpu, jit, transposed):
    """Gradients come with the loss, as without it: nothing is computed again."""
    x, kernel = normal(4, 16, dtype="bfloat16"), normal(*(1027, 16) if transposed else (16, 1027), dtype="bfloat16")
    f = lambda *t: gradients(lambda x, k: tfuse.linear_cross_entropy(x, k, [1, 2, 3, 4], transpose_kernel=transposed,
                                                                     reduction="mean"), *t)
    told = since_now()
    tf.function(f, autograph=False, jit_compile=jit)(x, kernel)
    ops = {row["op"] for row in told(when="ran")}
    assert "LinearCrossEntropyGrad" not in ops and ("LinearCrossEntropy" in ops or jit)


def test_no_class_stays_none_beside_classes_that_fill_no_packs(device):
    x, kernel, labels = normal(4, 16, dtype="bfloat16"), normal(16, 1027, dtype="bfloat16"), [1026, 1027, 1031, 1032]
    if "CPU" in device:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"labels must be in \[0, 10.*got 10"):
            tfuse.linear_cross_entropy(x, kernel, labels)
        return
    loss, dx = gradients(lambda x: tfuse.linear_cross_entropy(x, kernel, labels), x)
    assert list(np.isnan(loss)) == [False, True, True, True]
    assert np.all(cases.as64(dx)[1:] == 0) and np.all(np.isfinite(cases.as64(dx)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_million_inputs(device, dtype):
    """Loss and gradients are off by no more than twice what TensorFlow's own product and loss are."""
    rows, inputs, classes = 8, 1_000_000, 8
    x, kernel, labels = normal(rows, inputs, dtype=dtype), normal(inputs, classes) / 500, RNG.integers(0, classes, rows)
    kernel = tf.cast(kernel, dtype)
    got, naive = (gradients(lambda *t: f(*t, labels), x, kernel) for f in (tfuse.linear_cross_entropy, stock))
    wide = cases.as64(x), cases.as64(kernel)
    logits = wide[0] @ wide[1]
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    right = labels[:, None] == np.arange(classes)
    d = shares - right
    for g, n, want in zip(got, naive, [-np.log(shares[right]), d @ wide[1].T, wide[0].T @ d], strict=True):
        assert cases.error(g, want) <= cases.allowed(n, want, n.dtype.name)


def test_unknown_shapes(device):
    f = tf.function(lambda x, k, l: gradients(lambda x, k: tfuse.linear_cross_entropy(x, k, l, reduction="mean"), x, k),
                    autograph=False, input_signature=[tf.TensorSpec(None), tf.TensorSpec(None), tf.TensorSpec(None, tf.int64)])
    want = gradients(lambda x, k: tf.reduce_mean(stock(x, k, LABELS)), X, KERNEL)
    for got, w in zip(f(X, KERNEL, LABELS), want):
        close(got, w, 1e-5 if "CPU" in device else 2e-3)


@needs_xla
@pytest.mark.parametrize("transposed", [False, True])
def test_unknown_inputs_inside_xla(device, transposed):
    """How many inputs there are the kernel says, where x does not, as behind Keras's product of a batch of unknown size."""
    inputs = [tf.TensorSpec([None, None]), tf.TensorSpec([7, 5] if transposed else [5, 7]), tf.TensorSpec([None], tf.int64)]
    step = lambda x, kernel, labels: tfuse.linear_cross_entropy(
        x, kernel, labels, transpose_kernel=transposed, reduction="mean")
    tensors = tf.random.normal([3, 5]), tf.random.normal(inputs[1].shape), tf.constant([1, 6, 0], tf.int64)
    got = tf.function(step, input_signature=inputs, jit_compile=True)(*tensors)
    np.testing.assert_allclose(got, step(*tensors), rtol=1e-5)
    assert [row["route"] for row in tfuse.explain() if row["when"] == "traced"][-1] == "XLA custom call"


def test_on_symbolic_tensors():
    x, labels = keras.Input((7, 6)), keras.Input((7,), dtype="int64")
    model = keras.Model([x, labels], tfuse.linear_cross_entropy(x, KERNEL.numpy(), labels, BIAS.numpy()))
    close(model([X, LABELS]), stock(X, KERNEL, LABELS, BIAS), 2e-3 if GPUS else 1e-5)


# ---- linear_cross_entropy and gated_linear: what is multiplied, and how exactly ----


def plain_gated(x, kernel):
    gate, up = tf.split(tf.tensordot(x, kernel, 1), 2, -1)
    return tf.nn.silu(gate) * up


CLASSES = tf.constant(RNG.integers(0, 6, 64))
# Ours and TensorFlow's, of x with 64 rows or fewer and a kernel with an even number of columns, 6 or more.
BOTH = {
    "linear_cross_entropy": (lambda x, k: tfuse.linear_cross_entropy(x, k, CLASSES[:x.shape[0]]),
                             lambda x, k: stock(x, k, CLASSES[:x.shape[0]])),
    "its mean": (lambda x, k: tfuse.linear_cross_entropy(x, k, CLASSES[:x.shape[0]], reduction="mean"),
                 lambda x, k: tf.reduce_mean(stock(x, k, CLASSES[:x.shape[0]]))),
    "gated_linear": (tfuse.gated_linear, plain_gated),
    "gated_linear, two kernels": (lambda x, k: tfuse.gated_linear(x, tf.split(k, 2, -1)), plain_gated),
}

# What is multiplied, of two square matrices.
VIEWS = {"x transposed": lambda x, kernel: (tf.transpose(x), kernel),
         "kernel transposed": lambda x, kernel: (x, tf.transpose(kernel)),
         "both transposed": lambda x, kernel: (tf.transpose(x), tf.transpose(kernel)),
         "every other input": lambda x, kernel: (x[:, ::2], kernel[::2]),
         "every other output, backwards": lambda x, kernel: (x[::-2], kernel[:, ::-2])}


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("route", ["eager", "graph", "xla"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
def test_turned_and_strided(as_on_a_gpu, device, route, view, name):
    """Gradients go back to what the views are of."""
    if route == "xla":
        skip_broken_xla()
    x, kernel, (ours, plain) = normal(12, 12), normal(12, 12), BOTH[name]
    f = lambda x, kernel: gradients(lambda *t: ours(*view(*t)), x, kernel)
    traced = f if route == "eager" else tf.function(f, autograph=False, jit_compile=route == "xla")
    want = gradients(lambda *t: plain(*view(*t)), *(tf.cast(t, tf.float64) for t in (x, kernel)))
    for got, w in zip(traced(x, kernel), want, strict=True):
        close(got, w, 1e-4)


@pytest.mark.parametrize("name", ["linear_cross_entropy", "gated_linear"])
def test_tf32_as_tensorflow_has_it_by_default(tf32, as_on_a_gpu, device, name):
    """On a GPU that has it, factors then have 10 bits after the point, and errors show it; switched off, they do not."""
    x, kernel, (ours, plain) = normal(64, 512), normal(512, 64), BOTH[name]
    want = cases.as64(plain(tf.cast(x, tf.float64), tf.cast(kernel, tf.float64)))
    error = lambda: cases.error(ours(x, kernel), want)
    has_it = "GPU" in device and tf.config.experimental.get_device_details(GPUS[0])["compute_capability"] >= (8, 0)
    assert 2e-5 < error() < 3e-3 if has_it else error() < 2e-6
    tf.config.experimental.enable_tensor_float_32_execution(False)
    assert error() < 2e-6


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("name, products", [("linear_cross_entropy", ["LinearCrossEntropy", "LinearCrossEntropyGrad"]),
                                            ("its mean", ["LinearCrossEntropy"]), ("gated_linear", ["Linear", "LinearGrad"])])
def test_gradients_are_as_exact_as_the_results(tf32, as_on_a_gpu, name, products, on):
    """Each product is told what the switch was when the first one ran."""
    inputs = normal(12, 6), normal(6, 8)

    @tf.function(autograph=False)
    def f():
        tf.config.experimental.enable_tensor_float_32_execution(on)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = BOTH[name][0](*inputs)
        tf.config.experimental.enable_tensor_float_32_execution(not on)
        return tape.gradient(y, inputs)

    ops = f.get_concrete_function().graph.get_operations()
    told = {op.type: op.get_attr("tf32") for op in ops if op.type.startswith("Tfuse>Linear")}
    assert told == {"Tfuse>" + product: on for product in products}


# ---- gated_linear ----


@pytest.mark.parametrize("options", [{}, {"activation": "gelu", "use_bias": False}, {"activation": "relu", "dtype": "float64"},
                                     {"dtype": "mixed_bfloat16"}], ids=str)
def test_gated_dense(options, tmp_path):
    layer = tfuse.GatedDense(5, **options)
    model = keras.Sequential([keras.Input((7, 6)), layer])
    layer.set_weights([RNG.normal(size=w.shape) for w in layer.get_weights()])
    x = tf.cast(X, layer.compute_dtype)
    kernel, *bias = (tf.cast(w, x.dtype) for w in layer.get_weights())
    gate, up = tf.split(tf.tensordot(x, kernel, 1) + (bias[0] if bias else 0), 2, -1)
    want = getattr(keras.activations, options.get("activation", "silu"))(gate) * up
    got = model(X)
    assert got.dtype == x.dtype and got.shape == [3, 7, 5] == list(layer.compute_output_shape((3, 7, 6)))
    close(tf.cast(got, tf.float64), tf.cast(want, tf.float64), 0.05 if x.dtype == tf.bfloat16 else 2e-3 if GPUS else 1e-5)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert np.array_equal(cases.as64(again(X)), cases.as64(got))
    assert again.layers[0].get_config() == layer.get_config()


def test_gated_linear_with_two_biases(device):
    gate, up, b, c = normal(6, 5), normal(6, 5), normal(5), normal(5)
    together = tfuse.gated_linear(X, tf.concat([gate, up], 1), tf.concat([b, c], 0), "gelu_tanh")
    close(tfuse.gated_linear(X, (gate, up), (b, c), "gelu_tanh"), together, 1e-5 if "CPU" in device else 2e-3)
