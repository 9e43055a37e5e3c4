"""tfuse.enable(): Keras computes the same as before, by tfuse's ops; and disable() leaves no trace."""

import concurrent.futures
import contextlib
import sys
import threading
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import new_process, skip_broken_xla
from enabling import (ATTENTION, GAMMA, LABELS, MASK, NN, NORM, Q, RNG, SOFTMAX, TARGETS, TOLERANCE, X, close, jit_of_ours, layer,
                      left_as_it_was, needs_attention, normal, places, ran, reasons, start, told)
from tfuse._core import _explain, _library
from tfuse._keras import _enable, _missing
from tfuse._tools import _doctor

# ---- the same results, by tfuse ----

BETA, K, V = normal(8), normal(2, 7, 2, 8), normal(2, 7, 2, 8)
KEEPS = RNG.random((3, 1, 8)) < 0.6
KEEPS[..., 0] = True
NORM2 = layer(lambda: keras.layers.LayerNormalization([1, 2]), 3, 5, 8)
GROUPS = layer(lambda: keras.layers.GroupNormalization(4), 3, 5, 8)
BATCH = layer(lambda: keras.layers.BatchNormalization(1), 3, 5, 8)
SOFTMAX2 = keras.layers.Softmax([1, 2])
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
    "BatchNormalization": (BATCH, [X], "FrozenBatchNorm"),
    "BatchNormalization in training": (lambda x: BATCH(x, training=True), [X], "BatchNorm"),
}
if hasattr(keras.ops, "layer_normalization"):
    CALLS["layer_normalization"] = (keras.ops.layer_normalization, [X, GAMMA, BETA], "Norm")
    CALLS["layer_normalization, bare"] = (lambda x: keras.ops.layer_normalization(x, axis=(0, 2), epsilon=0.1), [X], "Norm")
if hasattr(keras.ops, "rms_normalization"):
    CALLS["rms_normalization"] = (lambda x, scale: keras.ops.rms_normalization(x, scale=scale), [X, GAMMA], "Norm")
    CALLS["RMSNormalization"] = (layer(keras.layers.RMSNormalization, 3, 5, 8), [X], "Norm")
if ATTENTION:
    CALLS["attention"] = (keras.ops.dot_product_attention, [Q, Q, Q], "Attention")
    CALLS["attention, all options"] = (lambda q, k, v, bias: keras.ops.dot_product_attention(
        q, k, v, bias=bias, mask=MASK, scale=0.3, is_causal=True),
        [Q, *normal(2, 2, 7, 4, 8), normal(1, 4, 6, 7)], "Attention")


def value_and_gradients(f, inputs, enabled, jit=None):
    def both(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = f(*inputs)
            places = tf.cast(tf.range(1, tf.size(y) + 1) / tf.size(y), tf.float32)  # so that no two weigh the same
            total = tf.tensordot(tf.reshape(tf.cast(y, tf.float32), [-1]), places, 1)
        return y, tape.gradient(total, inputs)

    with tfuse.enabled() if enabled else threading.Lock():
        return (both if jit is None else tf.function(both, jit_compile=jit_of_ours(jit)))(*map(tf.constant, inputs))


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


@needs_attention
def test_shared_heads():
    """Which Keras repeats, or up to 3.9 does not take."""
    want, dwant = value_and_gradients(
        lambda q, k, v: keras.ops.dot_product_attention(q, *(keras.ops.repeat(x, 2, 2) for x in (k, v))), [Q, K, V], False)
    got, dgot = value_and_gradients(keras.ops.dot_product_attention, [Q, K, V], True)
    assert "AttentionGrad" in ran()
    for a, b in zip([got, *dgot], [want, *dwant], strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("jit", [None, False, True])
@needs_attention
def test_a_soft_cap(jit):
    """Keras refuses it on TensorFlow; with tfuse it comes before bias and mask."""
    bias, options = normal(1, 4, 6, 7), dict(mask=MASK, scale=0.3, is_causal=True)
    if jit:
        skip_broken_xla()

    def want(q, k, v, bias):
        s = 2 * keras.ops.tanh(keras.ops.einsum("bqhd,bkhd->bhqk", q, k) * 0.3 / 2) + bias
        s = keras.ops.where(np.tril(MASK), s, -np.inf)
        return keras.ops.einsum("bhqk,bkhd->bqhd", keras.ops.softmax(s), v)

    def got(q, k, v, bias):
        return keras.ops.dot_product_attention(q, k, v, bias=bias, attn_logits_soft_cap=2.0, **options)

    inputs = [Q, *normal(2, 2, 7, 4, 8), bias]
    with pytest.raises(Exception, match="attn_logits_soft_cap"):
        got(*inputs)
    want, dwant = value_and_gradients(want, inputs, False)
    start()
    got, dgot = value_and_gradients(got, inputs, True, jit)
    assert {"Attention", "AttentionGrad"} <= ran() and not reasons()
    for a, b in zip([got, *dgot], [want, *dwant], strict=True):
        close(a, b, 1e-5)


@needs_attention
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
    """Against stock in float32. Products of whole eighths are exact in 16 bits too, so that relu's inputs have the same
    sign."""
    made, exact = (layer(lambda: LAYERS[name](dtype=dtype), 3, 5, 8) for dtype in (policy, "float32"))
    x, weights = np.round(2 * X), exact.get_weights()
    for one in (made, exact):
        one.set_weights([(np.round(2 * w) + 0.5 * (w.ndim == 1)) / 8 for w in weights])
    want = layer_results(exact, tf.constant(x))
    with tfuse.enabled():
        got = layer_results(made, tf.constant(x))
    assert {"Linear", "LinearGrad"} <= ran() and not told(when="called")
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
    rows = {row["op"]: row for row in told(when="called")}
    assert set(rows) == {"Dense.call", "EinsumDense.call"} and all("there is no GPU" in row["why"] for row in rows.values())


# ---- on and off ----


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout(jit, dtype):
    """Elements by tfuse's rule: as many as Keras drops, others at every call, and the gradient of what is left; and the seed
    generator goes on as with Keras."""
    stock, served = (keras.layers.Dropout(0.3, seed=5, dtype=dtype) for _ in range(2))
    x = tf.ones([64, 1000], dtype)

    @tf.function(jit_compile=jit)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = served(x, training=True)
        return y, tape.gradient(y, x), served(x)

    with tfuse.enabled():
        got = [step(x) for _ in range(2)]
    for y, dx, kept in got:
        np.testing.assert_array_equal(y, dx)
        np.testing.assert_array_equal(kept, x)
        values = np.unique(tf.cast(y, tf.float32))
        np.testing.assert_allclose(values, [0, 1 / 0.7], rtol=4e-3)
        assert abs(np.mean(np.asarray(y) == 0) - 0.3) < 0.01
    assert 0.3 < np.mean(np.asarray(got[0][0]) != np.asarray(got[1][0])) < 0.5  # 2 * 0.3 * 0.7 of them
    for _ in range(2):
        stock(x, training=True)
    np.testing.assert_array_equal(served.seed_generator.state, stock.seed_generator.state)
    assert not reasons() and (jit or "Dropout" in ran())


@pytest.mark.parametrize("options", [dict(rate=0.0), dict(rate=1.0), dict(rate=0.5, noise_shape=(None, 1))], ids=str)
def test_dropout_of_keras_own(options):
    drop = lambda: keras.layers.Dropout(**options, seed=3)(X[:, 0], training=True)
    want = drop()
    with tfuse.enabled():
        np.testing.assert_array_equal(drop(), want)


def test_on_and_off():
    stock = places()
    gelu = NN.gelu
    tfuse.disable()  # without enable(): nothing
    tfuse.enable()
    ours = NN.gelu
    assert ours is not gelu and ours.__wrapped__ is gelu and ours.__name__ == "gelu"
    tfuse.enable()
    assert NN.gelu is ours  # and not ours around ours
    with tfuse.enabled():
        with tfuse.enabled():
            pass
        assert NN.gelu is ours
    assert NN.gelu is ours  # enable() is still in force
    with tfuse.enabled():
        tfuse.disable()
        assert NN.gelu is ours  # the block is
    assert NN.gelu is gelu
    assert all(value is stock[place] for place, value in places().items())
    with pytest.raises(ZeroDivisionError), tfuse.enabled():
        1 / 0
    assert NN.gelu is gelu and _enable._AFTER_IMPORT not in sys.meta_path


def test_explain_says_to_compile_again(capsys):
    """Where tfuse is switched on after the model was traced, whatever has called it before."""
    model = keras.Sequential([keras.Input([4]), keras.layers.LayerNormalization(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    fit = lambda: model.fit(np.ones([8, 4]), np.ones([8, 1]), verbose=0)
    fit()
    tfuse.gelu([1.0])
    assert not tfuse.explain().unused
    tfuse.enable()
    fit()
    told = repr(tfuse.explain())
    assert "ScaleBiasAct" in told  # of the call before
    assert "tfuse has not been called since tfuse.enable()" in told and "Call the model's compile() again" in told
    assert repr(_explain.Explanation(unused=True)).startswith("tfuse has not been called since")
    model.compile("sgd", "mse", jit_compile=False)
    fit()
    assert "has not been called" not in repr(tfuse.explain()) and "Norm" in repr(tfuse.explain())
    tfuse.disable()
    assert not tfuse.explain().unused


def test_blocks_of_threads_overlap():
    """Whoever is in a block has tfuse, however others come and go."""
    seen = []

    def work(_):
        for _ in range(50):
            with tfuse.enabled():
                seen.append(hasattr(NN.gelu, "__wrapped__"))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(seen) == 400 and all(seen) and not hasattr(NN.gelu, "__wrapped__")


@contextlib.contextmanager
def without(owner, name):
    """A Keras that has this elsewhere, as a later one may; and no warning has been given yet."""
    _missing.warn_once.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(owner, name) if isinstance(owner, dict) else patch.delattr(owner, name)
        yield patch
        tfuse.disable()


def check_missing_is_told(names):
    """That enable() warns once and goes on, that explain() and the doctor have these names, and that all else is served; and
    why, as explain() has it."""
    with pytest.warns(RuntimeWarning, match="tfuse.enable.. leaves to Keras what it finds no place for") as warned:
        tfuse.enable()
        tfuse.disable()
        tfuse.enable()
    assert len(warned) == 1 and all(name in str(warned[0].message) for name in names)
    rows = [row for row in tfuse.explain() if row["when"] == "enabled"]
    assert names <= {row["op"] for row in rows} and {row["route"] for row in rows} == {"Keras's own code"}
    assert hasattr(keras.layers.LayerNormalization.call, "__wrapped__") and "enabled" in repr(tfuse.explain())
    line, = [line for line in _doctor.software() if line["check"] == "enable()"]
    assert line["state"] == "note" and line["found"].startswith("%d of " % len(rows))
    assert all(name in line["advice"] for name in names)
    tfuse.disable()
    assert "enabled" not in {row["when"] for row in tfuse.explain()}
    return {row["op"]: row["why"] for row in rows}


def test_a_module_that_is_elsewhere():
    with without(sys.modules, NN.__name__):
        whys = check_missing_is_told({"gelu", "softmax", "conv", *["dot_product_attention"] * bool(ATTENTION)})
    assert whys["gelu"] == "Keras %s has no %s" % (keras.__version__, NN.__name__)


def test_a_method_that_is_elsewhere():
    """What belongs to one step is left to Keras as a whole."""
    with without(keras.src.optimizers.base_optimizer.BaseOptimizer, "_clip_gradients"):
        whys = check_missing_is_told({"BaseOptimizer._clip_gradients", "BaseOptimizer.apply", "TFOptimizer._backend_update_step"})
    why = "Keras %s has no such name in keras.src.optimizers.base_optimizer" % keras.__version__
    assert whys["BaseOptimizer._clip_gradients"] == why
    assert whys["BaseOptimizer.apply"] == "the step of an optimizer is replaced as a whole, and " + why


def test_an_older_keras_is_not_warned_of():
    """It never had what it lacks; explain() lists it all the same."""
    with without(sys.modules, NN.__name__) as patch, warnings.catch_warnings():
        patch.setattr(keras, "__version__", "3.9.2")
        warnings.simplefilter("error", RuntimeWarning)
        tfuse.enable()
        assert "Keras 3.9.2 has no " + NN.__name__ in repr(tfuse.explain())


def test_nothing_is_missing():
    """In a release of Keras that tfuse is made for; older ones lack some of the attention and the quantised layers."""
    if _missing.release(keras.__version__) >= _missing.TESTED["keras"][1]:
        assert not _missing.missing(_enable._TABLE)


def test_other_backends_are_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="jax"):
        tfuse.enable()


# ---- what is written to files ----

LOADS = """
import sys
import numpy as np, tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
np.save(sys.argv[2], loaded.serve(tf.ones([3, 8])))
assert "tfuse" not in sys.modules
"""


def test_a_saved_model_that_needs_no_tfuse(tmp_path):
    """Exported after disable(), though the model was traced and trained with tfuse; while it is enabled, there are its ops."""
    model = keras.Sequential([keras.Input([8]), keras.layers.LayerNormalization(), keras.layers.Dense(4, "gelu")])
    model.compile("adam", "mse")
    tfuse.enable()
    model.fit(np.ones([8, 8]), np.ones([8, 4]), verbose=0)
    model.predict(np.ones([3, 8]), verbose=0)
    model.export(str(tmp_path / "ours"), verbose=False)
    tfuse.disable()
    model.export(str(tmp_path / "stock"), verbose=False)
    done = new_process(LOADS, tmp_path / "stock", tmp_path / "y.npy")
    assert done.returncode == 0, done.stdout
    close(np.load(tmp_path / "y.npy"), model(tf.ones([3, 8])), 1e-5)
    done = new_process(LOADS, tmp_path / "ours", tmp_path / "y.npy")
    assert done.returncode != 0 and "Tfuse>" in done.stdout
