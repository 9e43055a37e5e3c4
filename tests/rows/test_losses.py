"""Cross entropy beyond the cases: Keras's losses, odd sizes and values, labels of every kind."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse

RNG = np.random.default_rng(7)
LOGITS = RNG.normal(size=(4, 3, 5)).astype("float32") * 3
LABELS = RNG.integers(0, 5, (4, 3))
SOFT = RNG.dirichlet(np.ones(5), (4, 3)).astype("float32")
MASK = np.array([[True, True, False], [True, False, False], [True, True, True], [False, False, False]])
PAIRS = {  # ours, Keras's, targets
    "sparse": (tfuse.SparseCategoricalCrossentropy, keras.losses.SparseCategoricalCrossentropy, LABELS),
    "dense": (tfuse.CategoricalCrossentropy, keras.losses.CategoricalCrossentropy, SOFT),
}


def taken(reduction):
    """Whether this Keras has it."""
    try:
        return bool(keras.losses.MeanSquaredError(reduction=reduction))
    except ValueError:
        return False


REDUCTIONS = [r for r in ("sum_over_batch_size", "sum", None, "mean", "mean_with_sample_weight") if taken(r)]


def step(loss, targets, logits, weight=None, mask=None):
    """Value and gradient of a Keras loss."""
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        given = tf.identity(logits)
        if mask is not None:
            given._keras_mask = tf.constant(mask)
        value = loss(targets, given, sample_weight=weight)
    return value, tape.gradient(value, logits)


def close(got, want, rtol=1e-5, atol=1e-6):
    for g, w in zip(got, want):
        assert g.shape == w.shape
        np.testing.assert_allclose(*(np.asarray(tf.cast(t, tf.float64)) for t in (g, w)), rtol=rtol, atol=atol)


# ---- against Keras's own losses ----


@pytest.mark.parametrize("mask", [None, MASK], ids=["", "mask"])
@pytest.mark.parametrize("weight", [None, (4, 3), (4, 1), ()], ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", PAIRS)
def test_reductions_weights_and_masks(device, kind, reduction, weight, mask):
    ours, keras_own, targets = PAIRS[kind]
    weight = None if weight is None else np.asarray(RNG.random(weight), "float32")
    got, want = (step(loss(from_logits=True, reduction=reduction), targets, LOGITS, weight, mask)
                 for loss in (ours, keras_own))
    assert got[0].dtype == want[0].dtype
    close(got, want)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("mask", [None, MASK], ids=["", "mask"])
@pytest.mark.parametrize("ignored", [0, 3, -1, 255])
def test_ignored_class(device, ignored, mask, reduction):
    """Also where it is a class like others, and its rows hold what would spread by way of a factor of 0."""
    labels = np.where(RNG.random(LABELS.shape) < 0.4, ignored, LABELS)
    labels[0, 0], labels[0, 1] = ignored, (ignored + 1) % 5
    logits = np.where(labels[..., None] == ignored, np.float32([np.nan, np.inf, 1, -np.inf, np.nan]), LOGITS)
    ours, keras_own = (loss(from_logits=True, ignore_class=ignored, reduction=reduction) for loss in PAIRS["sparse"][:2])
    close(step(ours, labels, logits, mask=mask), step(keras_own, labels, LOGITS, mask=mask))


def test_nothing_but_the_ignored_class(device):
    loss, gradient = step(tfuse.SparseCategoricalCrossentropy(ignore_class=-1), -np.ones((4, 3), "int32"), LOGITS)
    assert float(loss) == 0 and not np.any(gradient)


def test_ignored_rows_may_hold_anything(device):
    logits = np.array([[np.nan, np.inf, -np.inf], [1, 2, 3]], "float32")
    loss, gradient = step(tfuse.SparseCategoricalCrossentropy(ignore_class=-1, reduction=None), np.array([-1, 2]), logits)
    want, _ = step(keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None), np.array([2]), logits[1:])
    close([loss[1:]], [want])
    assert float(loss[0]) == 0 and not np.any(gradient[0]) and np.all(np.isfinite(gradient))


@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_label_smoothing(device, smoothing):
    want = step(keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing),
                np.eye(5, dtype="float32")[LABELS], LOGITS)
    close(step(tfuse.CategoricalCrossentropy(label_smoothing=smoothing), np.eye(5)[LABELS], LOGITS), want)
    close(step(tfuse.SparseCategoricalCrossentropy(label_smoothing=smoothing), LABELS, LOGITS), want)


def test_z_loss(device):
    extra = 0.1 * tf.reduce_mean(tf.reduce_logsumexp(LOGITS, -1)**2)
    for ours, keras_own, targets in PAIRS.values():
        close([ours(z_loss=0.1)(targets, LOGITS)], [keras_own(from_logits=True)(targets, LOGITS) + extra])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32"])
@pytest.mark.parametrize("last", [False, True], ids=["", "trailing axis"])
def test_labels_of_every_kind(device, dtype, last):
    labels = tf.cast(LABELS[..., None] if last else LABELS, dtype)
    close(*(step(loss(from_logits=True), labels, LOGITS) for loss in PAIRS["sparse"][:2]))
    if not last and dtype != "float32":
        close([tfuse.sparse_cross_entropy(LOGITS, labels)], [tfuse.sparse_cross_entropy(LOGITS, LABELS)])


def test_unsigned_labels_know_no_negative_class():
    labels = tf.constant([255, 0], tf.uint8)
    logits = tf.constant(RNG.normal(size=(2, 256)), tf.float32)
    loss = tfuse.SparseCategoricalCrossentropy(ignore_class=-1)(labels, logits)
    close([loss], [keras.losses.SparseCategoricalCrossentropy(from_logits=True)(tf.cast(labels, tf.int32), logits)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", PAIRS)
def test_16_bits(device, kind, dtype):
    """Taken as they are; the arithmetic and the loss are in float32. Gradients come in the logits' dtype."""
    ours, keras_own, targets = PAIRS[kind]
    logits, targets = tf.cast(LOGITS, dtype), tf.cast(targets, dtype if kind == "dense" else "int32")
    got, want = step(ours(), targets, logits), step(keras_own(from_logits=True), targets, logits)
    last = [row for row in tfuse.explain() if row["when"] == "ran"][-1]
    assert last["input"] == dtype + "[4, 3, 5]"
    assert got[0].dtype == tf.float32 and got[1].dtype == dtype
    close(got[:1], want[:1])
    close(got[1:], want[1:], rtol=2.0**-7, atol=1e-4)


@pytest.mark.parametrize("kind", PAIRS)
def test_float64(device, kind):
    ours, keras_own, targets = PAIRS[kind]
    logits = LOGITS.astype("float64")
    assert ours()(targets, logits).dtype == tf.float32  # as Keras's
    got, want = (step(loss(from_logits=True, dtype="float64"), targets, logits) for loss in (ours, keras_own))
    assert got[0].dtype == tf.float64
    close(got, want, rtol=1e-12)
    assert ours(dtype="float64")(targets, LOGITS).dtype == tf.float64


@pytest.mark.parametrize("kind", PAIRS)
def test_from_probabilities_is_keras_own(kind):
    ours, keras_own, targets = PAIRS[kind]
    probabilities = tf.nn.softmax(LOGITS)
    close([ours(from_logits=False)(targets, probabilities)], [keras_own(from_logits=False)(targets, probabilities)])


def test_what_needs_logits():
    with pytest.raises(ValueError, match="SparseCategoricalCrossentropy: label_smoothing needs from_logits=True, got 0.1"):
        tfuse.SparseCategoricalCrossentropy(from_logits=False, label_smoothing=0.1)
    with pytest.raises(ValueError, match="CategoricalCrossentropy: z_loss needs from_logits=True, got 0.5"):
        tfuse.CategoricalCrossentropy(from_logits=False, z_loss=0.5)
    with pytest.raises(ValueError, match="CategoricalCrossentropy: label_smoothing must be from 0 to 1, got 2"):
        tfuse.CategoricalCrossentropy(label_smoothing=2)


@pytest.mark.parametrize("axis", [1, -2])
def test_axis(device, axis):
    moved = np.moveaxis(LOGITS, -1, 1)
    close(step(tfuse.SparseCategoricalCrossentropy(axis=axis), LABELS, moved)[:1],
          step(tfuse.SparseCategoricalCrossentropy(), LABELS, LOGITS)[:1])
    close(step(tfuse.CategoricalCrossentropy(axis=axis), np.moveaxis(SOFT, -1, 1), moved)[:1],
          step(tfuse.CategoricalCrossentropy(), SOFT, LOGITS)[:1])
    close([tfuse.cross_entropy(moved, np.moveaxis(SOFT, -1, 1), axis=axis)], [tfuse.cross_entropy(LOGITS, SOFT)])


def test_weights(device):
    for weights in (2.0, RNG.random((4, 1)), RNG.random((4, 3)).astype("float32")):
        for f, targets in ((tfuse.sparse_cross_entropy, LABELS), (tfuse.cross_entropy, SOFT)):
            close([f(LOGITS, targets, weights=weights)], [f(LOGITS, targets) * np.asarray(weights, "float32")])


# ---- configurations, models ----

CONFIGURED = [
    tfuse.SparseCategoricalCrossentropy(ignore_class=-1, label_smoothing=0.1, z_loss=1e-3, reduction="sum", name="tokens"),
    tfuse.SparseCategoricalCrossentropy(axis=1, dtype="float64"),
    tfuse.SparseCategoricalCrossentropy(from_logits=False),
    tfuse.CategoricalCrossentropy(label_smoothing=0.2, z_loss=0.5, axis=1, name="classes"),
]


@pytest.mark.parametrize("loss", CONFIGURED, ids=lambda loss: loss.name)
def test_config_round_trip(loss):
    json.dumps(loss.get_config())
    for again in (type(loss).from_config(loss.get_config()), keras.losses.deserialize(keras.losses.serialize(loss))):
        assert type(again) is type(loss) and again.get_config() == loss.get_config() and again.dtype == loss.dtype


def classifier(loss, policy="float32"):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu", dtype=policy),
                              keras.layers.Dense(5, dtype=policy)])
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def fit(model, y, jit, **options):
    model.compile(keras.optimizers.SGD(0.1), model.loss, jit_compile=jit)
    x = np.random.default_rng(0).normal(size=(len(y), 6)).astype("float32")
    return model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, **options).history["loss"]


@pytest.mark.parametrize("kind", PAIRS)
def test_training_follows_keras(kind, jit):
    ours, keras_own, _ = PAIRS[kind]
    labels = np.random.default_rng(1).integers(0, 5, 24)
    y = labels if kind == "sparse" else np.eye(5, dtype="float32")[labels]
    weight = np.linspace(0.1, 2, 24)
    got, want = (fit(classifier(loss(from_logits=True)), y, jit, sample_weight=weight) for loss in (ours, keras_own))
    assert got[-1] < got[0]
    np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_training_in_mixed_precision(policy):
    y = np.random.default_rng(1).integers(0, 5, 24)
    got, want = (fit(classifier(loss(from_logits=True), policy), y, False) for loss in PAIRS["sparse"][:2])
    np.testing.assert_allclose(got, want, rtol=2e-2)
    assert any(row["op"] == "SparseCrossEntropy" and row["input"].startswith(policy[len("mixed_"):])
               for row in tfuse.explain(64))


def test_compiled_model_is_saved(tmp_path):
    y = np.random.default_rng(1).integers(0, 5, 24)
    model = classifier(tfuse.SparseCategoricalCrossentropy(ignore_class=4, z_loss=0.01))
    fit(model, y, False)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    x = np.ones((24, 6), "float32")
    assert again.loss.get_config() == model.loss.get_config()
    np.testing.assert_allclose(again.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0), rtol=1e-6)


def test_on_symbolic_tensors(tmp_path):
    logits, labels = keras.Input((3, 5)), keras.Input((3,), dtype="int32")
    model = keras.Model([logits, labels], tfuse.sparse_cross_entropy(logits, labels, label_smoothing=0.1))
    assert model.output_shape == (None, 3)
    want = tfuse.sparse_cross_entropy(LOGITS, LABELS, label_smoothing=0.1)
    np.testing.assert_allclose(model([LOGITS, LABELS]), want, rtol=1e-6)
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "model.keras")([LOGITS, LABELS]), want, rtol=1e-6)


# ---- odd sizes and values ----


def test_one_row_and_none(device):
    for rows in (1, 0):
        logits, labels = tf.constant(LOGITS[0, :rows]), LABELS[0, :rows]
        got, want = (step(loss(from_logits=True, reduction=None), labels, logits) for loss in PAIRS["sparse"][:2])
        close(got, want)
    loss, gradient = step(tfuse.SparseCategoricalCrossentropy(reduction=None), np.array(2), LOGITS[0, 0])  # no axis of rows
    assert loss.shape == () and gradient.shape == (5,)
    close([loss], [tf.nn.sparse_softmax_cross_entropy_with_logits([2], LOGITS[0, :1])[0]])


def test_one_class(device):
    loss, gradient = step(tfuse.SparseCategoricalCrossentropy(reduction=None), np.zeros(3, "int32"),
                          np.array([[5.0], [-1e30], [1e30]], "float32"))
    assert not np.any(loss) and not np.any(gradient)


def test_a_million_classes(device):
    logits = np.random.default_rng(3).normal(size=(2, 1_000_003)).astype("float32") * 4
    labels = np.array([1_000_002, 17])
    exact = np.log(np.sum(np.exp(logits.astype("float64")), -1)) - logits[[0, 1], labels]
    loss, gradient = step(tfuse.SparseCategoricalCrossentropy(reduction=None), labels, logits)
    np.testing.assert_allclose(loss, exact, rtol=1e-6)
    np.testing.assert_allclose(np.sum(np.asarray(gradient, "float64"), -1), 0, atol=1e-5)
    np.testing.assert_allclose(np.asarray(gradient)[[0, 1], labels], -1, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_large_logits(device, dtype):
    """Far from zero, all at the edge of the range, and one towering above the others."""
    top = float(tf.as_dtype(dtype).max) / 4
    logits = tf.constant([[1e4, 1e4 + 64, 1e4 - 64], [-top, -top, -top], [top, 0, -top]], dtype)
    loss = tfuse.sparse_cross_entropy(logits, [0, 1, 0])
    x = np.asarray(tf.cast(logits, tf.float64))
    exact = [np.log(np.sum(np.exp(row - row.max()))) + (row.max() - row[label]) for row, label in zip(x, [0, 1, 0])]
    np.testing.assert_allclose(loss, exact, rtol=1e-6)


def test_infinite_logits(device):
    """A class of logit -inf has probability 0: free unless it is the label."""
    inf = np.inf
    logits = np.array([[1, -inf, 2], [-inf, -inf, 2], [1, -inf, 2]], "float32")
    (loss, gradient) = step(tfuse.SparseCategoricalCrossentropy(reduction=None), np.array([0, 2, 1]), logits)
    np.testing.assert_allclose(loss, [np.log(1 + np.e), 0, inf], rtol=1e-6)
    np.testing.assert_allclose(gradient[1], [0, 0, 0], atol=1e-7)
    np.testing.assert_allclose(gradient[0], [1 / (1 + np.e) - 1, 0, np.e / (1 + np.e)], rtol=1e-5)
    dense = tfuse.cross_entropy(logits[:2], np.array([[1, 0, 0], [0, 0, 1]], "float32"))
    np.testing.assert_allclose(dense, [np.log(1 + np.e), 0], rtol=1e-6)
    for row in ([inf, 1, 2], [np.nan, 1, 2], [-inf, -inf, -inf]):
        assert np.isnan(tfuse.sparse_cross_entropy(np.array([row], "float32"), [1])[0])


@pytest.mark.parametrize("label", [5, -1, 2**31 - 1, -2**31])
def test_label_that_is_no_class(device, label):
    labels = np.array([0, label], "int32")
    if "CPU" in device:
        with pytest.raises(tf.errors.InvalidArgumentError, match="label.*%d" % label):
            tfuse.sparse_cross_entropy(LOGITS[0, :2], labels)
        return
    loss, gradient = step(tfuse.SparseCategoricalCrossentropy(reduction=None), labels, LOGITS[0, :2])
    assert np.isfinite(loss[0]) and np.isnan(loss[1])
    assert np.any(gradient[0]) and not np.any(gradient[1])


def test_targets_gradient_only_where_wanted(device):
    logits, targets = tf.constant(LOGITS), tf.constant(SOFT)
    with tf.GradientTape() as tape:
        tape.watch([logits, targets])
        loss = tf.reduce_sum(tfuse.cross_entropy(logits, targets))
    dx, dt = tape.gradient(loss, [logits, targets])
    np.testing.assert_allclose(dt, -tf.nn.log_softmax(logits), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, tf.nn.softmax(logits) - targets, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype, close", [("float32", 4e-6), ("float16", 2e-3), ("bfloat16", 1.6e-2)])
def test_every_small_number_of_classes(device, dtype, close):
    """Rows that may begin within a word, in whole blocks and parts of one; classes that are ignored; the same bits again."""
    rng = np.random.default_rng(5)
    for classes in [*range(1, 71), 127]:
        x = tf.cast(tf.constant(rng.normal(size=[389, classes]) * 3), dtype)
        labels = tf.constant(rng.integers(-1, classes, 389), [tf.int32, tf.int64][classes % 2])
        options = dict(ignore_class=-1, label_smoothing=0.1 * (classes % 3), z_loss=0.01 * (classes % 5))
        steps = []
        for _ in range(2):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tfuse.sparse_cross_entropy(x, labels, **options)
            steps.append([loss, tape.gradient(loss, x)])
        assert all(np.array_equal(a, b) for a, b in zip(*steps)), classes
        wide, kept = np.asarray(tf.cast(x, tf.float64)), np.asarray(labels)[:, None] >= 0
        lse = np.log(np.sum(np.exp(wide), -1, keepdims=True))
        targets = (np.asarray(labels)[:, None] == np.arange(classes)) * (1 - options["label_smoothing"])
        targets = targets + options["label_smoothing"] / classes
        want = np.sum(targets * (lse - wide), -1, keepdims=True) + options["z_loss"] * lse**2
        slope = (1 + 2 * options["z_loss"] * lse) * np.exp(wide - lse) - targets
        np.testing.assert_allclose(steps[0][0], np.where(kept, want, 0)[:, 0], rtol=4e-6, atol=4e-6)
        np.testing.assert_allclose(tf.cast(steps[0][1], tf.float64), np.where(kept, slope, 0), rtol=close, atol=close)
