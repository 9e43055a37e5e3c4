"""tfuse.enable(): Keras computes the same as before, by tfuse's ops; what tfuse does not serve is left to Keras
and explained; and disable() leaves no trace."""

import concurrent.futures
import functools
import inspect
import re
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import GPUS, skip_broken_xla
from enabling import (LINEAR, RNG, SPARSE, TOLERANCE, all_reasons, check_declined, close, layer, left_as_it_was, normal,
                      outcome, places, ran, reasons, reasons_in, same, start, tokens)
from tfuse._keras import _behind, _enable
from tfuse._core import _library

# ---- the same results, by tfuse ----

X, GAMMA, BETA = normal(3, 5, 8), normal(8), normal(8)
Q, K, V = normal(2, 6, 4, 8), normal(2, 7, 2, 8), normal(2, 7, 2, 8)
MASK, LABELS = RNG.random((2, 1, 6, 7)) < 0.7, RNG.integers(0, 8, (3, 5))
MASK[..., 0] = True
TARGETS = keras.utils.to_categorical(LABELS, 8)
KEEPS = RNG.random((3, 1, 8)) < 0.6
KEEPS[..., 0] = True

NORM = layer(keras.layers.LayerNormalization, 3, 5, 8)
NORM2 = layer(lambda: keras.layers.LayerNormalization([1, 2]), 3, 5, 8)
GROUPS = layer(lambda: keras.layers.GroupNormalization(4), 3, 5, 8)
SOFTMAX, SOFTMAX2 = keras.layers.Softmax(), keras.layers.Softmax([1, 2])
CALLS = {  # a call of Keras, its inputs, the op that serves it
    "gelu": (keras.ops.gelu, [X], "ScaleBiasAct"),
    "gelu by erf": (lambda x: keras.ops.gelu(x, approximate=False), [X], "ScaleBiasAct"),
    "activations.gelu": (keras.activations.get("gelu"), [X], "ScaleBiasAct"),
    "silu": (keras.ops.silu, [X], "ScaleBiasAct"),
    "softplus": (keras.ops.softplus, [X], "ScaleBiasAct"),
    "hard_silu": (keras.ops.hard_silu, [X], "ScaleBiasAct"),
    "mish": (keras.activations.mish, [X], "ScaleBiasAct"),
    "softmax": (keras.ops.softmax, [X], "Softmax"),
    "softmax along 1": (lambda x: keras.ops.softmax(x, 1), [X], "Softmax"),
    "log_softmax": (keras.ops.log_softmax, [X], "Softmax"),
    "Softmax": (SOFTMAX, [X], "Softmax"),
    "Softmax with a mask": (lambda x: SOFTMAX(x, mask=KEEPS), [X], "Softmax"),
    "Softmax with a mask of numbers": (lambda x: SOFTMAX(x, mask=KEEPS.astype("int32")), [X], "Softmax"),
    "Softmax over two axes": (SOFTMAX2, [X], "Softmax"),
    "sparse cross entropy": (lambda x: keras.ops.sparse_categorical_crossentropy(LABELS, x, from_logits=True), [X],
                             "SparseCrossEntropy"),
    "of a column of labels": (lambda x: keras.losses.sparse_categorical_crossentropy(
        LABELS[..., None].astype("float32"), x, from_logits=True), [X], "SparseCrossEntropy"),
    "of a softmax": (lambda x: keras.ops.sparse_categorical_crossentropy(LABELS, keras.ops.softmax(x)), [X],
                     "SparseCrossEntropy"),
    "cross entropy": (lambda x: keras.losses.CategoricalCrossentropy(from_logits=True)(TARGETS, x), [X], "CrossEntropy"),
    "LayerNormalization": (NORM, [X], "Norm"),
    "LayerNormalization over two axes": (NORM2, [X], "Norm"),
    "GroupNormalization": (GROUPS, [X], "GroupNorm"),
}
if hasattr(keras.ops, "layer_normalization"):
    CALLS["layer_normalization"] = (keras.ops.layer_normalization, [X, GAMMA, BETA], "Norm")
    CALLS["layer_normalization, bare"] = (lambda x: keras.ops.layer_normalization(x, axis=(0, 2), epsilon=0.1), [X], "Norm")
if hasattr(keras.ops, "rms_normalization"):
    CALLS["rms_normalization"] = (lambda x, scale: keras.ops.rms_normalization(x, scale=scale), [X, GAMMA], "Norm")
    CALLS["RMSNormalization"] = (layer(keras.layers.RMSNormalization, 3, 5, 8), [X], "Norm")
if hasattr(keras.ops, "dot_product_attention"):
    CALLS["attention"] = (keras.ops.dot_product_attention, [Q, Q, Q], "Attention")
    CALLS["attention, all options"] = (lambda q, k, v, bias: keras.ops.dot_product_attention(
        q, k, v, bias=bias, mask=MASK, scale=0.3, is_causal=True),
        [Q, *normal(2, 2, 7, 4, 8), normal(1, 4, 6, 7)], "Attention")
# Keras 3.7 has it, and layers that can be served.
ATTENTION = {"Attention", "AttentionGrad"} if "attention" in CALLS else set()


def value_and_gradients(f, inputs, enabled, jit=None):
    def both(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = f(*inputs)
            places = tf.cast(tf.range(1, tf.size(y) + 1) / tf.size(y), tf.float32)  # so that no two weigh the same
            total = tf.tensordot(tf.reshape(tf.cast(y, tf.float32), [-1]), places, 1)
        return y, tape.gradient(total, inputs)

    with tfuse.enabled() if enabled else threading.Lock():
        return (both if jit is None else tf.function(both, jit_compile=jit))(*map(tf.constant, inputs))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CALLS)
def test_same_as_keras(name, dtype):
    f, inputs, op = CALLS[name]
    inputs = [tf.cast(x, dtype) for x in inputs]
    want, dwant = value_and_gradients(f, inputs, False)
    assert not reasons()
    got, dgot = value_and_gradients(f, inputs, True)
    assert op in ran() and not reasons()
    assert got.dtype == want.dtype
    close(got, want, TOLERANCE[dtype])
    for a, b in zip(dgot, dwant, strict=True):
        close(a, b, 4 * TOLERANCE[dtype], "gradient")


DEFAULTS = {  # with Keras's own epsilon; of layers, also that of tfuse's layer of the name
    "layer_normalization": lambda: keras.ops.layer_normalization,
    "rms_normalization": lambda: keras.ops.rms_normalization,
    "LayerNormalization": lambda: keras.layers.LayerNormalization(),
    "RMSNormalization": lambda: keras.layers.RMSNormalization(),
    "GroupNormalization": lambda: keras.layers.GroupNormalization(2),
}


@pytest.mark.parametrize("epsilon", [None, 1e-4], ids=["as it is", "changed"])
@pytest.mark.parametrize("name", DEFAULTS)
def test_default_epsilon(name, epsilon):
    """Rows of all sizes: in some of them all is in epsilon, whichever it is."""
    if not (hasattr(keras.ops, name) or hasattr(keras.layers, name)):
        pytest.skip("this Keras has no such function")
    x, before = tf.constant(normal(8, 16) * 10.0 ** -np.arange(8)[:, None], tf.float32), keras.config.epsilon()
    try:
        keras.config.set_epsilon(epsilon or before)
        f = DEFAULTS[name]()
        want = f(x)
        with tfuse.enabled():
            got = f(x)
    finally:
        keras.config.set_epsilon(before)
    assert ran() in ({"Norm"}, {"GroupNorm"}) and not reasons()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-7)
    if name[0].isupper():
        ours = getattr(tfuse, name)(*[2] * (name == "GroupNormalization"))
        assert ours.epsilon == f.epsilon
        np.testing.assert_allclose(ours(x), want, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["gelu", "softmax", "Softmax with a mask", "sparse cross entropy", "LayerNormalization",
                                  "attention, all options"])
def test_same_as_keras_in_graphs(name, jit):
    if name not in CALLS:
        pytest.skip("this Keras has no dot_product_attention")
    f, inputs, op = CALLS[name]
    (want, dwant), (got, dgot) = (value_and_gradients(f, inputs, enabled, jit) for enabled in (False, True))
    if not (jit and _library.xla_status()):
        assert op in ran()
    close(got, want, 1e-5)
    for a, b in zip(dgot, dwant, strict=True):
        close(a, b, 4e-5)


@pytest.mark.parametrize("jit", [None, False, True], ids=["eager", "graph", "xla"])
def test_targets_that_do_not_sum_to_one(jit):
    """Of several classes at once, and of none: the gradient is softmax - targets all the same, as in TensorFlow."""
    if jit:
        skip_broken_xla()
    targets = (RNG.random(X.shape) < 0.4).astype("float32")
    targets[0, 0], targets[1, 2] = 0, 0.3
    f = lambda x, t: keras.ops.categorical_crossentropy(t, x, from_logits=True)
    (want, dwant), (got, dgot) = (value_and_gradients(f, [X, targets], enabled, jit) for enabled in (False, True))
    if not (jit and _library.xla_status()):
        assert {"CrossEntropy", "CrossEntropyGrad"} <= ran()
    close(got, want, 1e-5)
    for a, b in zip(dgot, dwant, strict=True):
        close(a, b, 4e-5)
    # Called by name, it has the gradient of what it computes.
    _, (own,) = value_and_gradients(lambda x: tfuse.cross_entropy(x, targets), [X], True, jit)
    _, (composed,) = value_and_gradients(lambda x: -tf.reduce_sum(targets * tf.nn.log_softmax(x), -1), [X], False, jit)
    close(own, composed, 4e-5)
    assert np.abs(own - dgot[0]).max() > 0.1


def test_second_gradients_of_targets_that_do_not_sum_to_one():
    targets = (RNG.random(X.shape) < 0.4).astype("float32")

    def second(f):
        x = tf.constant(X)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = f(x)
            total = tf.reduce_sum(tf.sin(inner.gradient(loss, x)))
        return outer.gradient(total, x)

    f = lambda x: keras.ops.categorical_crossentropy(targets, x, from_logits=True)
    want = second(f)
    with tfuse.enabled():
        close(second(f), want, 4e-5)
    close(second(lambda x: tfuse.cross_entropy(x, targets)),
          second(lambda x: -tf.reduce_sum(targets * tf.nn.log_softmax(x), -1)), 4e-5)


@pytest.mark.skipif(not ATTENTION, reason="this Keras has no dot_product_attention")
def test_shared_heads():
    """Which Keras repeats, or up to 3.9 does not take."""
    want, dwant = value_and_gradients(
        lambda q, k, v: keras.ops.dot_product_attention(q, *(keras.ops.repeat(x, 2, 2) for x in (k, v))), [Q, K, V], False)
    got, dgot = value_and_gradients(keras.ops.dot_product_attention, [Q, K, V], True)
    assert "AttentionGrad" in ran()
    for a, b in zip([got, *dgot], [want, *dwant], strict=True):
        close(a, b, 1e-5)


@pytest.mark.skipif(not ATTENTION, reason="this Keras has no dot_product_attention")
def test_a_query_without_keys():
    """The one difference: where nothing may be attended to, Keras takes the mean of all values."""
    mask = np.ones((1, 1, 6, 7), bool)
    mask[..., 2, :] = False
    with tfuse.enabled():
        got = keras.ops.dot_product_attention(Q, K, V, mask=mask).numpy()
    assert not got[:, 2].any() and np.all(got[:, [0, 1, 3, 4, 5]])


# ---- linear layers, where there is a GPU ----

LAYERS = {
    "Dense": lambda **more: keras.layers.Dense(6, **more),
    "Dense, gelu": lambda **more: keras.layers.Dense(6, "gelu", **more),
    "Dense, softmax": lambda **more: keras.layers.Dense(6, "softmax", use_bias=False, **more),
    "EinsumDense": lambda **more: keras.layers.EinsumDense("abc,cde->abde", (None, 2, 3), "relu", bias_axes="e", **more),
    "EinsumDense of two axes": lambda **more: keras.layers.EinsumDense("...bc,bcd->...d", 4, bias_axes="d", **more),
}


def layer_results(layer, x, jit=None):
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        weights = [w.value for w in layer.trainable_weights]
        return y, *tape.gradient(y, [x, *weights], tf.cos(y))

    return (both if jit is None else tf.function(both, jit_compile=jit))(x)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_linear_layers(as_on_a_gpu, device, name, policy):
    """Against stock in float32. Products of whole eighths are exact in 16 bits too, so that relu's inputs have the same sign."""
    made, exact = (layer(lambda: LAYERS[name](dtype=dtype), 3, 5, 8) for dtype in (policy, "float32"))
    x, weights = np.round(2 * X), exact.get_weights()
    for one in (made, exact):
        one.set_weights([(np.round(2 * w) + 0.5 * (w.ndim == 1)) / 8 for w in weights])
    want = layer_results(exact, tf.constant(x))
    with tfuse.enabled():
        got = layer_results(made, tf.constant(x))
    assert {"Linear", "LinearGrad"} <= ran() and not [row for row in tfuse.explain(64) if row["when"] == "called"]
    assert got[0].dtype == made.compute_dtype and {g.dtype for g in got[1:]} == {tf.float32}
    for a, b in zip(got, want, strict=True):
        close(a, b, 4 * TOLERANCE[made.compute_dtype])


def test_linear_layers_in_graphs(as_on_a_gpu, device, jit):
    made = layer(LAYERS["EinsumDense"], 3, 5, 8)
    want = layer_results(made, tf.constant(X), jit)
    with tfuse.enabled():
        for a, b in zip(layer_results(made, tf.constant(X), jit), want, strict=True):
            close(a, b, 1e-5)
    if not (jit and _library.xla_status()):
        assert "LinearGrad" in ran()


def test_linear_layers_without_a_gpu(monkeypatch):
    monkeypatch.setattr(_library, "without_gpu", lambda: True)
    made = [layer(LAYERS[name], 3, 5, 8) for name in ("Dense, gelu", "EinsumDense")]
    want = [one(X) for one in made]
    with tfuse.enabled():
        for one, expected in zip(made, want):
            close(one(X), expected, 1e-5)
    rows = {row["op"]: row for row in tfuse.explain(64) if row["when"] == "called"}
    assert set(rows) == set(LINEAR) and all("there is no GPU" in row["why"] for row in rows.values())


# ---- whatever Keras takes ----

seeded = keras.initializers.RandomNormal(seed=1)
UNKNOWN = dict(input_signature=[tf.TensorSpec(None)], autograph=False)
TAKES = {  # for each row of the table, and what comes with a comma behind its name
    "gelu": lambda x: keras.ops.gelu(x),
    "silu": lambda x: keras.ops.silu(x),
    "softplus": lambda x: keras.ops.softplus(x),
    "hard_silu": lambda x: keras.ops.hard_silu(x),
    "Mish.static_call": lambda x: keras.activations.mish(x),
    "softmax": lambda x, axis=-1: keras.ops.softmax(x, axis),
    "log_softmax": lambda x, axis=-1: keras.ops.log_softmax(x, axis),
    "Softmax.call": lambda x, axis=-1: keras.layers.Softmax(axis)(x),
    "Softmax.call, mask": lambda x, axis=-1: keras.layers.Softmax(axis)(x, mask=keras.ops.greater(x, 0)),
    "sparse_categorical_crossentropy": lambda x, axis=-1: keras.ops.sparse_categorical_crossentropy(
        keras.ops.sum(0 * x, -1), x, from_logits=True, axis=axis),
    "categorical_crossentropy": lambda x, axis=-1: keras.ops.categorical_crossentropy(
        keras.ops.abs(x), keras.ops.softmax(x), axis=axis),
    "categorical_crossentropy, list": lambda x: keras.ops.categorical_crossentropy([[0.25] * 8], x, from_logits=True),
    "_layer_normalization": lambda x, axis=-1: keras.ops.layer_normalization(x, axis=axis),
    "_layer_normalization, list": lambda x, axis=-1: keras.ops.layer_normalization(x, [2.0], axis=axis),
    "_rms_normalization": lambda x, axis=-1: keras.ops.rms_normalization(x, axis=axis),
    "_rms_normalization, layer": lambda x, axis=-1: keras.layers.RMSNormalization(axis)(x),
    "_rms_normalization, number": lambda x, axis=-1: keras.ops.rms_normalization(x, 2.0, axis),
    "LayerNormalization.call": lambda x, axis=-1: keras.layers.LayerNormalization(axis)(x),
    "GroupNormalization.call": lambda x, axis=-1: keras.layers.GroupNormalization(2, axis)(x),
    "Dense.call": lambda x: keras.layers.Dense(3, "gelu", kernel_initializer=seeded)(x),
    "EinsumDense.call": lambda x: keras.layers.EinsumDense("...a,ab->...b", 3, kernel_initializer=seeded)(x),
    "dot_product_attention": lambda x: keras.ops.dot_product_attention(x, x, x),
    "dot_product_attention, lists": lambda x: keras.ops.dot_product_attention(x, x, x, bias=[0.5, 1.0, -0.5], mask=[[True]]),
    "MultiHeadAttention._compute_attention": lambda x: keras.layers.MultiHeadAttention(
        2, 4, attention_axes=len(x.shape) - 2, kernel_initializer=seeded)(x, x),
    "GroupedQueryAttention._compute_attention": lambda x: keras.layers.GroupQueryAttention(
        4, 2, 1, kernel_initializer=seeded)(x, x),
}
SHAPES = [(), (8,), (2, 8), (3, 0), (0, 8), (2, 3, 8), (2, 3, 2, 8), (2,) * 8, (2,) * 9]
NO_TENSORS = {"number": 0.5, "NumPy's": np.float32(0.5), "list": [0.5, -1.0], "rows": [[0.5, -1.0], [2.0, 0.0]],
              "integers": np.arange(8).reshape(2, 4), "variable": tf.Variable(X)}
AXES = [0, 1, -2, np.int64(0), np.int32(-1), np.array(1), (0,), [1], (0, 1), [0, 1], (-1, -2), (-1, 0), (1, 1),
        (np.int64(0), np.int64(1)), np.array([0, 1]), (), None, 5, -5, 1.0]


def test_every_row_is_called_with_whatever_keras_takes():
    without_input = {"_compute_attention_mask", "num_repeats"}  # which hand over what the attention behind them gets
    rows = {row.attribute for row in _behind.TABLE if row.attribute.split(".")[-1] not in without_input}
    assert {name.split(",")[0] for name in TAKES} == rows


@pytest.mark.filterwarnings("ignore:You are using a softmax")
@pytest.mark.parametrize("name", TAKES)
def test_whatever_keras_takes(as_on_a_gpu, name):
    """Is served, or is left to Keras with a reason: the result is Keras's, or both raise."""
    of_keras, row = TAKES[name], name.split(",")[0]
    rng, calls = np.random.default_rng(0), {}
    tensors = {shape: tf.constant(rng.normal(size=shape), tf.float32) for shape in SHAPES}
    for what, x in {**tensors, **NO_TENSORS}.items():
        calls[what] = functools.partial(of_keras, x)
    for shape in (2, 8), (2,) * 9:
        calls["unknown rank", shape] = lambda x=tensors[shape]: tf.function(of_keras, **UNKNOWN)(x)
    if "axis" in inspect.signature(of_keras).parameters:
        for axis in AXES:
            calls["axis", str(axis)] = functools.partial(of_keras, tensors[2, 3, 8], axis=axis)
        for shape in (), (8,), (2,) * 9:
            calls["axis", shape] = functools.partial(of_keras, tensors[shape], axis=np.int64(0))
    served, stock = 0, []
    for what, call in calls.items():
        want = outcome(call)
        stock.append(want)
        start()
        with tfuse.enabled():
            got = outcome(call)
        assert same(got, want), (what, got, want)
        if not isinstance(want, Exception):
            assert ran() or row in all_reasons() or row.split(".")[0] in all_reasons(), what
            served += row not in all_reasons()
    if all(isinstance(want, AttributeError) for want in stock):
        pytest.skip("this Keras has no such function")
    assert served or "," in name


# ---- what tfuse does not serve ----

NINE = tf.ones([1] * 8 + [8])
dense_of = lambda x, **more: layer(lambda: keras.layers.Dense(4, **more), *x.shape)(x)
einsum_of = lambda equation, *shape, **more: layer(lambda: keras.layers.EinsumDense(equation, *shape, **more), 3, 5, 8)


class OwnSoftmax(keras.layers.MultiHeadAttention):
    def _masked_softmax(self, scores, mask=None):
        return super()._masked_softmax(scores, mask)


def attended(make=keras.layers.MultiHeadAttention, inputs=(X, X), call={}, **options):
    made = make(2, 4, kernel_initializer=keras.initializers.RandomNormal(seed=1), **options)
    return made(*inputs, **call)


def attended_directly(x, **more):
    """By the method that enable() replaces."""
    made = keras.layers.MultiHeadAttention(2, 4)
    made.build(X.shape, X.shape)
    return made._compute_attention(x, x, x, **more)[0]


DECLINED = [  # what explain() calls it, why it is left to Keras, the call
    ("gelu", "a list is no tensor", lambda: keras.ops.gelu([1.0, 2.0])),
    ("silu", "a SparseTensor is not dense", lambda: keras.src.backend.tensorflow.nn.silu(tf.sparse.from_dense(X[0]))),
    ("softplus", "tfuse takes float32, float16, bfloat16 and float64, got int32",
     lambda: keras.ops.softplus(tf.constant([1, 2]))),
    ("hard_silu", "the number of dimensions is not known", lambda: tf.function(keras.ops.hard_silu, **UNKNOWN)(X)),
    ("Mish.static_call", "tfuse takes up to 8 dimensions, got 9", lambda: keras.activations.mish(NINE)),
    ("softmax", "softmax over all axes at once", lambda: keras.ops.softmax(X, None)),
    ("softmax", "x has no axis 3", lambda: keras.ops.softmax(X, 3)),
    ("log_softmax", "softmax over all axes at once", lambda: keras.ops.log_softmax(X, None)),
    ("log_softmax", "x has no axis -4", lambda: keras.ops.log_softmax(X, -4)),
    ("log_softmax", "tfuse does not know these arguments: 'float' object cannot be interpreted as an integer",
     lambda: keras.ops.log_softmax(X, 1.0)),
    ("Softmax.call", "softmax over all axes at once", lambda: keras.layers.Softmax(None)(X)),
    ("Softmax.call", "the inputs have not the axes [1, 3]", lambda: keras.layers.Softmax([1, 3])(X)),
    ("Softmax.call", "the mask does not broadcast to the inputs", lambda: SOFTMAX(X, mask=np.ones((2, 3, 5, 8), bool))),
    ("sparse_categorical_crossentropy", "the output is probabilities, not logits",
     lambda: keras.ops.sparse_categorical_crossentropy(LABELS, abs(X))),
    ("sparse_categorical_crossentropy", "there are no classes",
     lambda: keras.ops.sparse_categorical_crossentropy(LABELS[:0], X[:0, :, :0], from_logits=True)),
    ("sparse_categorical_crossentropy", "the target's shape does not match the output's",
     lambda: keras.ops.sparse_categorical_crossentropy(LABELS[:2], X, from_logits=True)),
    ("sparse_categorical_crossentropy", "the classes are not the last axis",
     lambda: keras.ops.sparse_categorical_crossentropy(LABELS, X, from_logits=True, axis=1)),
    ("categorical_crossentropy", "the output is probabilities, not logits",
     lambda: keras.ops.categorical_crossentropy(TARGETS, abs(X))),
    ("categorical_crossentropy", "there are no classes",
     lambda: keras.ops.categorical_crossentropy(TARGETS[..., :0], X[..., :0], from_logits=True)),
    ("categorical_crossentropy", "the target's shape does not match the output's",
     lambda: keras.ops.categorical_crossentropy(TARGETS[:2], X, from_logits=True)),
    ("categorical_crossentropy", "the classes are not the last axis", lambda: keras.ops.categorical_crossentropy(
        np.moveaxis(TARGETS, -1, 1), np.moveaxis(X, -1, 1), from_logits=True, axis=1)),
    ("_layer_normalization", "rms_scaling divides by the deviation",
     lambda: keras.ops.layer_normalization(X, GAMMA, rms_scaling=True)),
    ("_layer_normalization", "the axis is a range", lambda: keras.ops.layer_normalization(X, axis=range(1, 3))),
    ("_layer_normalization", "the axes (0, -1) are not those of x, in order",
     lambda: keras.ops.layer_normalization(X, axis=(0, -1))),
    ("_layer_normalization", "weights are not of the axes' shape [8]", lambda: keras.ops.layer_normalization(X, GAMMA[:1])),
    ("_layer_normalization", "epsilon is not a number",
     lambda: keras.ops.layer_normalization(X, epsilon=tf.constant(0.5))),
    ("_rms_normalization", "the axis is a int64", lambda: keras.ops.rms_normalization(X, axis=np.int64(1))),
    ("_rms_normalization", "the axes 3 are not those of x, in order", lambda: keras.ops.rms_normalization(X, axis=3)),
    ("_rms_normalization", "weights are not of the axes' shape [8]", lambda: keras.ops.rms_normalization(X, X[0])),
    ("_rms_normalization", "the axes 1 are not the last", lambda: keras.ops.rms_normalization(X, axis=1)),
    ("_rms_normalization", "epsilon is not a number", lambda: keras.ops.rms_normalization(X, epsilon=tf.constant(0.5))),
    ("LayerNormalization.call", "rms_scaling divides by the deviation",
     lambda: layer(lambda: keras.layers.LayerNormalization(rms_scaling=True), 3, 5, 8)(X)),
    ("LayerNormalization.call", "weights are not of the axes' shape [1]", lambda: NORM(X[..., :1])),
    ("GroupNormalization.call", "the channels are the axis of the samples",
     lambda: keras.layers.GroupNormalization(3, axis=0)(X)),
    ("Dense.call", "there is no GPU, and TensorFlow's own product is faster on the CPU", lambda: dense_of(X)),
    ("EinsumDense.call", "there is no GPU, and TensorFlow's own product is faster on the CPU",
     lambda: einsum_of("abc,cd->abd", (5, 4))(X)),
    ("Dense.call", "a SparseTensor is not dense", lambda: dense_of(tf.sparse.from_dense(X[0]))),
    ("Dense.call", "the input is float16, the layer computes in float32",
     lambda: dense_of(tf.cast(X, "float16"), autocast=False)),
    ("Dense.call", "the number of dimensions is not known", lambda: tf.function(
        layer(lambda: keras.layers.Dense(4), 3, 5, 8).call, **UNKNOWN)(X)),
    ("Dense.call", "tfuse.linear takes 2 to 8 dimensions, got 9", lambda: dense_of(NINE)),
    ("EinsumDense.call", "abc,bcd->abd is not one matrix product", lambda: einsum_of("abc,bcd->abd", (5, 4))(X)),
    ("EinsumDense.call", "the bias is not per output of the kernel: bd of abc,cd->abd",
     lambda: einsum_of("abc,cd->abd", (5, 4), bias_axes="bd")(X)),
    ("EinsumDense.call", "the input has not the axes of abc,cd->abd, and more before them",
     lambda: tf.function(einsum_of("abc,cd->abd", (5, 4)).call, **UNKNOWN)(X)),
    ("dot_product_attention", "query, key and value are not all [batch, time, heads, head_dim]",
     lambda: keras.ops.dot_product_attention(X, X, X)),
    ("dot_product_attention", "4 heads of the query cannot share 3 of the key",
     lambda: keras.ops.dot_product_attention(Q, Q[:, :, :3], Q[:, :, :3])),
    ("dot_product_attention", "the bias does not broadcast to [batch, heads, queries, keys]",
     lambda: keras.ops.dot_product_attention(Q, Q, Q, bias=[0.5] * 6)),
    ("dot_product_attention", "the mask does not broadcast to [batch, heads, queries, keys]",
     lambda: keras.ops.dot_product_attention(Q[:1], Q[:1], Q[:1], mask=MASK[..., :6])),
    ("dot_product_attention", "the mask is not boolean",
     lambda: keras.ops.dot_product_attention(Q, Q, Q, mask=tf.constant(MASK[..., :6].astype("int32")))),
    ("dot_product_attention", "tfuse.attention has no soft cap",
     lambda: keras.src.backend.tensorflow.nn.dot_product_attention(Q, Q, Q, attn_logits_soft_cap=5.0)),
    ("dot_product_attention", "the scale is a tensor",
     lambda: keras.ops.dot_product_attention(Q, Q, Q, scale=tf.constant(0.5))),
    ("MultiHeadAttention", "tfuse does not know extra", lambda: attended_directly(Q, extra=1)),
    ("MultiHeadAttention", "return_attention_scores", lambda: attended(call=dict(return_attention_scores=True))[1]),
    ("MultiHeadAttention", "attention_axes are not the one before the last",
     lambda: attended(inputs=(X[None], X[None]), attention_axes=(1, 2))),
    ("MultiHeadAttention", "OwnSoftmax has a softmax of its own", lambda: attended(OwnSoftmax)),
    ("MultiHeadAttention", "dropout leaves nothing", lambda: attended(call=dict(training=True), dropout=1.0)),
    ("MultiHeadAttention", "tfuse takes float32, float16, bfloat16 and float64, got <dtype: 'int32'>",
     lambda: attended_directly(tf.ones([2, 5, 2, 4], tf.int32))),
]
# Of a Keras that is older than what tells whether scores are wanted: test_attention_layers.py, wherever that is installed.
OF_OLDER_KERAS = "this Keras computes attention without saying whether the scores are wanted; 3.7 says it"


def test_every_reason_has_a_call():
    """A reason that no row of the table is declined for would not be tested."""
    whys = [why for _, why, _ in DECLINED] + [OF_OLDER_KERAS]
    for name in ("_keras._behind", "_keras._enable", "products.einsum_dense", "products.linear",
                 "attention.multi_head_attention"):
        for pattern in reasons_in(sys.modules["tfuse." + name]):
            assert any(re.fullmatch(pattern, why) for why in whys), (name, pattern)


@pytest.mark.filterwarnings("ignore:You passed `rms_scaling")
@pytest.mark.parametrize("op, why, call", DECLINED, ids=["%s: %s" % row[:2] for row in DECLINED])
def test_the_rest_is_left_to_keras(monkeypatch, op, why, call):
    if op == "MultiHeadAttention" and not ATTENTION:
        pytest.skip(OF_OLDER_KERAS)
    monkeypatch.setattr(_library, "without_gpu", lambda: why.startswith("there is no GPU"))
    check_declined(op, why, call)


def test_integers_are_left_to_keras():
    with tfuse.enabled():
        for _ in range(3):
            keras.ops.softplus(tf.ones([2], tf.float64))
            with pytest.raises(Exception):
                keras.ops.softplus(tf.constant([1, 2]))
    row, = [row for row in tfuse.explain(64) if row["op"] == "softplus"]
    assert row["route"] == "Keras's own code" and row["calls"] == 3
    assert row["input"] == "int32[2]" and "got int32" in row["why"]
    assert "softplus" in repr(tfuse.explain())


def test_arguments_of_a_later_keras():
    """A function that has grown an argument goes its own way when it is used."""
    nn, seen = keras.src.backend.tensorflow.nn, []
    stock = nn.silu
    nn.silu = lambda x, beta=1.0: seen.append(beta) or stock(x)
    try:
        with tfuse.enabled():
            assert nn.silu(X) is not None and not seen
            nn.silu(X, beta=2.0)
    finally:
        nn.silu = stock
    assert seen == [2.0] and "beta" in reasons()["silu"]


@pytest.mark.skipif(not ATTENTION, reason="this Keras has no dot_product_attention")
def test_flash_attention_may_be_asked_for():
    """Keras on TensorFlow refuses it; with tfuse it is there."""
    layer = keras.layers.MultiHeadAttention(2, 4, flash_attention=True)
    with pytest.raises(ValueError, match="[Ff]lash"):
        layer(X, X)
    with tfuse.enabled():
        assert layer(X, X).shape == X.shape and keras.ops.dot_product_attention(Q, Q, Q, flash_attention=True).shape == Q.shape
    assert "Attention" in ran() and not reasons()


# ---- on and off ----


def test_on_and_off():
    stock = places()
    gelu = keras.src.backend.tensorflow.nn.gelu
    tfuse.disable()  # without enable(): nothing
    tfuse.enable()
    ours = keras.src.backend.tensorflow.nn.gelu
    assert ours is not gelu and ours.__wrapped__ is gelu and ours.__name__ == "gelu"
    tfuse.enable()
    assert keras.src.backend.tensorflow.nn.gelu is ours  # and not ours around ours
    with tfuse.enabled():
        with tfuse.enabled():
            pass
        assert keras.src.backend.tensorflow.nn.gelu is ours
    assert keras.src.backend.tensorflow.nn.gelu is ours  # enable() is still in force
    with tfuse.enabled():
        tfuse.disable()
        assert keras.src.backend.tensorflow.nn.gelu is ours  # the block is
    assert keras.src.backend.tensorflow.nn.gelu is gelu
    assert all(value is stock[place] for place, value in places().items())
    with pytest.raises(ZeroDivisionError), tfuse.enabled():
        1 / 0
    assert keras.src.backend.tensorflow.nn.gelu is gelu and _enable._AFTER_IMPORT not in sys.meta_path


def test_blocks_of_threads_overlap():
    """Whoever is in a block has tfuse, however others come and go."""
    nn, seen = keras.src.backend.tensorflow.nn, []

    def work(_):
        for _ in range(50):
            with tfuse.enabled():
                seen.append(hasattr(nn.gelu, "__wrapped__"))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(seen) == 400 and all(seen) and not hasattr(nn.gelu, "__wrapped__")


def test_other_backends_are_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="jax"):
        tfuse.enable()


# ---- whole models ----


def transformer(seed=3):
    keras.utils.set_random_seed(seed)
    tokens = keras.Input((12,), dtype="int32")
    x = keras.layers.Embedding(32, 16, mask_zero=True)(tokens)
    h = keras.layers.LayerNormalization()(x)
    x = x + keras.layers.MultiHeadAttention(4, 4)(h, h, use_causal_mask=True)
    x = x + keras.layers.Dense(16)(keras.layers.Dense(32, "gelu")(x))
    return keras.Model(tokens, keras.layers.Dense(32)(x))


TOKENS = tokens(RNG)


def losses(make, jit_compile):
    model = make()
    model.compile(keras.optimizers.SGD(1.0), SPARSE(ignore_class=0), jit_compile=jit_compile)
    return model.fit(TOKENS, TOKENS, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]


def test_training_follows_stock_keras(jit):
    want = losses(transformer, jit)
    with tfuse.enabled():
        got = losses(transformer, jit)
    assert got[-1] < got[0]
    np.testing.assert_allclose(got, want, rtol=1e-3)
    if not (jit and _library.xla_status()):
        linear = {"Linear", "LinearGrad"} if not _library.without_gpu() else {"ScaleBiasAct"}  # gelu is in Linear, or is not
        assert ATTENTION | linear | {"Norm", "NormGrad", "SparseCrossEntropyGrad"} <= ran()
        assert {row["route"] for row in tfuse.explain(4) if row["when"] == "ran"} == {
            "XLA custom call" if jit else "TensorFlow op"}
    assert not ATTENTION or not reasons()


@functools.lru_cache(None)
def float32_losses(seeds):
    """Of stock Keras."""
    return [losses(functools.partial(transformer, seed), "auto") for seed in seeds]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_with_automatic_jit(policy):
    """As Keras compiles by default: with XLA where there is a GPU. At most twice as far from float32's losses as stock, which
    of one model may be near them by luck."""
    models, before = [functools.partial(transformer, seed) for seed in range(3, 7)], keras.mixed_precision.global_policy()
    exact = float32_losses(range(3, 7))
    keras.mixed_precision.set_global_policy(policy)
    try:
        want = [losses(model, "auto") for model in models]
        with tfuse.enabled():
            got = [losses(model, "auto") for model in models]
    finally:
        keras.mixed_precision.set_global_policy(before)
    assert all(losses[-1] < losses[0] for losses in got)
    off = lambda losses: np.max(np.abs(np.subtract(losses, exact)))
    assert off(got) <= 2 * off(want), (got, want, exact)
    if not (GPUS and _library.xla_status()):
        assert ATTENTION | {"NormGrad"} <= ran()


def test_what_is_saved_is_stock(tmp_path):
    want = transformer()(TOKENS).numpy()
    with tfuse.enabled():
        model = transformer()
        model.save(tmp_path / "model.keras")
        enabled = model(TOKENS).numpy()
    assert "tfuse" not in model.to_json()
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert np.array_equal(loaded(TOKENS), want)
    close(enabled[TOKENS > 0], want[TOKENS > 0], 1e-5)
