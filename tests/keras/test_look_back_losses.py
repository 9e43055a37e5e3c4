"""Losses that tfuse.enable() joins with the product that makes their logits: results are Keras's, and the logits are not made."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import skip_broken_xla
from enabling import RNG, SPARSE, close, jit_of_ours, left_as_it_was, outcome, ran, same, start, told
from looking_back import DENSE, X, joined, results, runs
from tfuse._core import _library
from tfuse._keras import _replaced_joined

pytestmark = pytest.mark.usefixtures("as_on_a_gpu", "few_classes")


@pytest.fixture
def few_classes(monkeypatch):
    """The loss is joined with its product however small the logits are."""
    monkeypatch.setattr(_replaced_joined, "LEAST_CLASSES", 1)


TOKENS = RNG.integers(1, 32, (8, 6))
TOKENS[::3, 4:] = 0
LABELS = np.roll(TOKENS, -1, 1)


def tied(head):
    """A small model that ends in logits, or in probabilities."""
    keras.utils.set_random_seed(1)
    tokens = keras.Input((6,), dtype="int32")
    embedding = keras.layers.Embedding(32, 8)
    x = keras.layers.Dense(8, "gelu")(embedding(tokens))
    return keras.Model(tokens, head(x, embedding))


class TiedHead(keras.layers.Layer):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings))


class ReversedHead(TiedHead):
    def call(self, x):
        return self.embedding(x, reverse=True)


HEADS = {
    "tied": lambda x, embedding: TiedHead(embedding)(x),
    "dense": lambda x, embedding: keras.layers.Dense(32)(x),
    "no bias": lambda x, embedding: keras.layers.Dense(32, use_bias=False)(x),
    "einsum": lambda x, embedding: keras.layers.EinsumDense("abc,cd->abd", (None, 32), bias_axes="d")(x),
}
LOSSES = {
    "mean": (SPARSE, None),
    "sum": (lambda: SPARSE(reduction="sum"), None),
    "by weights": (lambda: SPARSE(reduction="mean_with_sample_weight"), RNG.random((3, 5))),
    "weighted": (SPARSE, RNG.random((3, 5))),
    "weighted samples": (SPARSE, RNG.random((3, 1))),
    "ignored": (lambda: SPARSE(ignore_class=0), None),
    "ignored and weighted": (lambda: SPARSE(ignore_class=0), RNG.random((3, 5))),
}


def in_a_model():
    """As in compute_loss() of a model without metrics."""
    return _replaced_joined._computing_loss_of(types.SimpleNamespace(_compile_metrics=None), True)


def trained(make, loss, jit, policy="float32", labels=LABELS, metrics=None, **options):
    """Losses of two epochs and of an evaluation, and the weights that came of it."""
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(policy)
    try:
        model = make()
        model.compile(keras.optimizers.SGD(0.5), loss, metrics=metrics, jit_compile=jit_of_ours(jit))
        history = model.fit(TOKENS, labels, batch_size=4, epochs=2, shuffle=False, verbose=0, **options).history
        last = model.evaluate(TOKENS, labels, batch_size=4, verbose=0, **options)
    finally:
        keras.mixed_precision.set_global_policy(before)
    return [*history["loss"], last[0] if isinstance(last, list) else last], model.get_weights()


def check_trained(got, want, tolerance=1e-5):
    for g, w in zip([*got[0], *got[1]], [*want[0], *want[1]], strict=True):
        close(g, w, tolerance)


def check_joined(jit):
    assert any("its logits are not made" in why for why in joined())
    if not (jit and _library.xla_status()):
        assert "LinearCrossEntropy" in ran() and "SparseCrossEntropy" not in ran()


@pytest.mark.parametrize("head, jit", [*((head, False) for head in HEADS), ("tied", True), ("dense", True)])
def test_loss_of_a_product(head, jit):
    if jit:
        skip_broken_xla()
    make = lambda: tied(HEADS[head])
    want = trained(make, SPARSE(), jit)
    with tfuse.enabled():
        got = trained(make, SPARSE(), jit)
    check_trained(got, want)
    check_joined(jit)


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("loss", LOSSES)
def test_reductions(loss, masked):
    make, weight = LOSSES[loss]
    labels, mask = RNG.integers(0, 16, (3, 5)), tf.constant(RNG.random((3, 5)) < 0.7)
    labels[1] = 0

    def f(x):
        y = DENSE(x)
        if masked:
            y._keras_mask = mask
        with in_a_model():
            return make()(labels, y, weight)

    weights = [w.value for w in DENSE.trainable_weights]
    want = results(f, X, weights, False)
    start()
    with tfuse.enabled():
        got = results(f, X, weights, False)
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)
    check_joined(False)


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", keras.losses.SparseCategoricalCrossentropy()],
                         ids=["by name", "by class"])
def test_loss_of_probabilities(jit, loss):
    make = lambda: tied(lambda x, _: keras.layers.Dense(32, activation="softmax")(x))
    want = trained(make, loss, jit)
    with tfuse.enabled():
        got = trained(make, loss, jit, labels=LABELS[..., None])
    check_trained(got, want)
    check_joined(jit)


@pytest.mark.skipif(not hasattr(keras.layers, "ReversibleEmbedding"), reason="this Keras has no ReversibleEmbedding")
def test_loss_of_a_reversed_embedding(jit):
    def make():
        keras.utils.set_random_seed(1)
        tokens = keras.Input((6,), dtype="int32")
        embedding = keras.layers.ReversibleEmbedding(32, 8)
        return keras.Model(tokens, ReversedHead(embedding)(keras.layers.Dense(8, "gelu")(embedding(tokens))))

    want = trained(make, SPARSE(), jit)
    with tfuse.enabled():
        got = trained(make, SPARSE(), jit)
    check_trained(got, want)
    check_joined(jit)


@pytest.mark.parametrize("policy, head, jit", [
    ("mixed_bfloat16", "tied", False), ("mixed_bfloat16", "dense", False), ("mixed_bfloat16", "dense", True),
    ("mixed_float16", "tied", False)])
def test_loss_in_mixed_precision(policy, head, jit):
    """At most twice as far from float32 as stock without XLA, which on a GPU leaves out roundings to 16 bits."""
    if jit:
        skip_broken_xla()
    make = lambda: tied(HEADS[head])
    exact, want = trained(make, SPARSE(), False), trained(make, SPARSE(), False, policy)
    with tfuse.enabled():
        got = trained(make, SPARSE(), jit, policy)
    off = lambda found: max(np.abs(np.asarray(a) - b).max() for a, b in zip([*found[0], *found[1]], [*exact[0], *exact[1]]))
    assert off(got) <= 2 * off(want)
    if policy == "mixed_bfloat16":
        check_joined(jit)
    else:
        assert "in float16 the gradient would take the product once more" in {row["why"] for row in told()}


def test_small_logits_stay(monkeypatch):
    make = lambda: tied(HEADS["dense"])
    for least, ops in (33, {"SparseCrossEntropy"}), (32, {"LinearCrossEntropy"}):
        monkeypatch.setattr(_replaced_joined, "LEAST_CLASSES", least)
        start()
        with tfuse.enabled():
            trained(make, SPARSE(), False)
        assert ops <= ran() and len(ran() & {"SparseCrossEntropy", "LinearCrossEntropy"}) == 1


@pytest.mark.parametrize("why, make, loss, options", [
    ("a metric reads the logits, and the product is not worth repeating", lambda: tied(HEADS["dense"]), SPARSE(),
     {"metrics": ["accuracy"]}),
    ("the logits are relu of a product", lambda: tied(lambda x, _: keras.layers.Dense(32, "relu")(x)), SPARSE(), {}),
])
def test_losses_that_stay(why, make, loss, options):
    want = trained(make, loss, False, **options)
    with tfuse.enabled():
        got = trained(make, loss, False, **options)
    check_trained(got, want)
    assert told(why=why) and "LinearCrossEntropy" not in ran()


@pytest.mark.parametrize("why, loss, labels", [
    ("the losses are not reduced to one number", SPARSE(reduction=None), LABELS[:3, :5] % 16),
    ("the classes are not the last axis", SPARSE(axis=1), RNG.integers(0, 5, (3, 16))),
    ("the target's shape does not match the output's", SPARSE(), RNG.integers(0, 5, (3, 4))),
], ids=lambda value: value if isinstance(value, str) else "")
def test_losses_that_are_not_served(why, loss, labels):
    """They give what Keras gives, errors too."""
    def f(x):
        with in_a_model():
            return loss(labels, DENSE(x))

    want = outcome(lambda: tf.function(f, autograph=False)(X))
    with tfuse.enabled():
        got = outcome(lambda: tf.function(f, autograph=False)(X))
    assert same(got, want) and why in {row["why"] for row in told()}


def test_a_loss_outside_of_compile_stays(jit):
    """Who computes it may ask for its gradient by the logits."""
    loss, labels = SPARSE(), RNG.integers(0, 16, (3, 5))

    @tf.function(autograph=False, jit_compile=jit)
    def step(x):
        with tf.GradientTape() as tape:
            logits = DENSE(x)
            total = loss(labels, logits)
        return total, tape.gradient(total, logits)

    want = step(X)
    with tfuse.enabled():
        got = tf.function(step.python_function, autograph=False, jit_compile=jit)(X)
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)
    assert not joined()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_that_keras_casts(jit, dtype):
    """The loss reads them as they are; those that somebody else has cast, as they come: a gradient by them is found."""
    labels = RNG.integers(0, 16, (3, 5))
    by_keras = lambda x: SPARSE()(labels, tf.cast(x, dtype))

    def by_oneself(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            wide = tf.cast(tf.cast(x, dtype), tf.float32)
            total = SPARSE()(labels, wide)
        return tape.gradient(total, wide)

    x = tf.cast(tf.cast(np.repeat(X, 2, -1), tf.bfloat16), tf.float32)  # XLA on a GPU leaves out casts that round
    for f, read in (by_keras, dtype), (by_oneself, "float32"):
        run = lambda: tf.function(f, autograph=False, jit_compile=jit)(x)
        want = run()
        start()
        with tfuse.enabled():
            close(run(), want, 1e-5)
        if not (jit and _library.xla_status()):
            assert {row["input"].split("[")[0] for row in runs("SparseCrossEntropy")} == {read}


def test_eagerly_nothing_is_joined():
    with tfuse.enabled():
        SPARSE()(RNG.integers(0, 16, (3, 5)), DENSE(X))
    assert not joined()
