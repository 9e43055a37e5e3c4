"""tfuse.enable() behind Keras's own optimizers: the same training as without it, in few ops."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import skip_broken_xla
from optimizing import OPTIONS, RULES, errors, explained, gradients, make, trained, variables
from tfuse._core import _library

# The option that each rule is tried with on each route; every option with a rule at least.
TRIED = {
    "adam": {"eager": "plain", "graph": "decay", "xla": "clipnorm"},
    "amsgrad": {"eager": "global_clipnorm", "graph": "clipnorm", "xla": "clipvalue"},
    "adamw": {"eager": "numbers", "graph": "ema", "xla": "global_clipnorm"},
    "lamb": {"eager": "ema", "graph": "ema apart", "xla": "accumulation"},
    "lion": {"eager": "schedule", "graph": "accumulation", "xla": "loss scale"},
    "sgd": {"eager": "plain", "graph": "decay", "xla": "schedule"},
    "momentum": {"eager": "decay", "graph": "clipnorm", "xla": "clipvalue"},
    "nesterov": {"eager": "numbers", "graph": "clipvalue", "xla": "global_clipnorm"},
}


def test_every_rule_and_option_is_tried():
    assert set(TRIED) == set(RULES) and {option for by_route in TRIED.values() for option in by_route.values()} == set(OPTIONS)


def steps_of(optimizer, weights, count=3):
    for t in range(count):
        optimizer.apply(gradients(t), weights)
    return [np.asarray(v) for v in weights]


@pytest.mark.parametrize("rule, option, route", [
    (rule, option, route) for rule, by_route in TRIED.items() for route, option in by_route.items()])
def test_like_keras(as_on_a_gpu, rule, option, route):
    want = trained(keras.optimizers, rule, OPTIONS[option])
    with tfuse.enabled():
        got = trained(keras.optimizers, rule, OPTIONS[option], route=route)
    if max(errors(got, want)) >= 1e-6:  # as in check_like_keras
        exact = trained(keras.optimizers, rule, OPTIONS[option], dtype="float64")
        assert all(e < 1e-6 or ours <= 2 * theirs
                   for e, ours, theirs in zip(errors(got, want), errors(got, exact), errors(want, exact)))


@pytest.mark.parametrize("clip", [{}, {"global_clipnorm": 1.0}, {"clipnorm": 1.0}])
def test_loss_scale(clip):
    """Gradients that are not finite among them."""
    scaled, how = {"initial_scale": 64.0, "dynamic_growth_steps": 3}, {"steps": 8, "bad": (2, 5)}
    want = trained(keras.optimizers, "adamw", clip, scaled=scaled, **how)
    with tfuse.enabled():
        got = trained(keras.optimizers, "adamw", clip, scaled=scaled, **how)
    assert max(errors(got, want)) < 1e-6


class Loud(keras.optimizers.Adam):
    pass


@pytest.mark.parametrize("kind, says", [(Loud, "Loud is a subclass of Adam"),
                                        (keras.optimizers.RMSprop, "tfuse has no step for RMSprop")])
def test_other_classes_are_left_to_keras(kind, says):
    since, (ours, theirs) = explained(), (variables(), variables())
    with tfuse.enabled():
        got = steps_of(kind(), ours)
    decided, ran = since()
    assert {(row["op"], row["why"]) for row in decided} == {(kind.__name__, says)}
    assert not [row for row in ran if row["op"] == "TensorsUpdate"]
    for a, b in zip(got, steps_of(kind(), theirs)):
        np.testing.assert_array_equal(a, b)


def test_tfuse_optimizers_see_to_themselves():
    since, (a, b) = explained(), (variables(), variables())
    with tfuse.enabled():
        got = steps_of(tfuse.optimizers.AdamW(), a)
    assert not [row for row in since()[0] if "Keras" in row["route"]]
    for x, y in zip(got, steps_of(tfuse.optimizers.AdamW(), b)):
        np.testing.assert_array_equal(x, y)


BOTH = pytest.mark.parametrize("library", [keras.optimizers, tfuse.optimizers], ids=["enabled", "tfuse.optimizers"])


def norms(optimizer, size=10.0):
    """Of two gradients that the optimizer has clipped."""
    return [float(tf.norm(g)) for g in optimizer._clip_gradients([tf.fill([4], size), tf.fill([4], -size)])]


@BOTH
@pytest.mark.parametrize("option, bound", [("clipnorm", 1.0), ("clipvalue", 2.0), ("global_clipnorm", 0.5 ** 0.5)])
def test_clips_outside_of_apply(library, option, bound):
    """Also after an apply() that has failed half-way."""
    with tfuse.enabled():
        optimizer = library.AdamW(**{option: 1.0})
        assert norms(optimizer) == pytest.approx([bound] * 2)
        weights = variables([(4,), (4,)])
        optimizer.build(weights)
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            optimizer.apply([tf.ones([4]), tf.ones([3])], weights)
        assert norms(optimizer) == pytest.approx([bound] * 2)


@BOTH
def test_parts_of_a_step_by_hand(library):
    """Clipped and decayed once, as Keras does it."""
    def run(optimizer):
        weights, grads = variables(), gradients(0)
        optimizer.build(weights)
        grads = optimizer._clip_gradients(grads)
        optimizer._apply_weight_decay(weights)
        optimizer._backend_update_step(grads, weights, optimizer.learning_rate)
        return [np.asarray(v) for v in weights]

    options = {"learning_rate": 0.1, "weight_decay": 0.1, "clipvalue": 0.5}
    want = run(keras.optimizers.SGD(**options))
    with tfuse.enabled():
        got = run(library.SGD(**options))
    for a, b in zip(got, want):
        np.testing.assert_array_equal(a, b)


@BOTH
def test_other_threads_clip_while_apply_runs(library):
    """And other optimizers do, in the same thread."""
    seen = []

    def rate():
        thread = threading.Thread(target=lambda: seen.append(norms(optimizer)))
        thread.start()
        thread.join()
        seen.append(norms(other))
        return 0.1

    optimizer, other = (library.SGD(rate, clipnorm=1.0) for _ in range(2))
    with tfuse.enabled():
        steps_of(optimizer, variables(), count=1)
    assert seen and seen == [pytest.approx([1.0, 1.0])] * len(seen)


def test_fit(as_on_a_gpu, jit):
    """A model that is compiled with a name, through fit()."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 8)).astype("float32"), rng.integers(0, 3, 64)

    def losses():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit)
        return model.fit(x, y, batch_size=16, epochs=3, verbose=0, shuffle=False).history["loss"]

    want, since = losses(), explained()
    with tfuse.enabled():
        got = losses()
    assert any(row["op"] == "TensorsUpdate" for rows in since() for row in rows)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_xla_on_the_cpu_is_left_to_keras(monkeypatch):
    monkeypatch.setattr(_library, "without_gpu", lambda: True)
    skip_broken_xla()
    since, weights = explained(), variables()
    optimizer = keras.optimizers.AdamW(clipnorm=1.0)
    optimizer.build(weights)
    with tfuse.enabled():
        tf.function(lambda: optimizer.apply(gradients(0), weights), autograph=False, jit_compile=True)()
    want = variables()
    keras.optimizers.AdamW(clipnorm=1.0).apply(gradients(0), want)
    assert [(row["op"], row["why"]) for row in since()[0]] == [("AdamW", "there is no GPU: XLA's own code is faster")]
    for a, b in zip(weights, want):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_two_replicas():
    def run():
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            weights = variables([(3, 5), (7,)])
            optimizer = keras.optimizers.AdamW(1e-2)
            optimizer.build(weights)

        @tf.function
        def step():
            def one():
                share = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group + 1, tf.float32)
                optimizer.apply([share * tf.ones([3, 5]), share * tf.ones([7])], weights)
            strategy.run(one)

        for _ in range(3):
            step()
        return [np.asarray(tf.convert_to_tensor(w)) for w in weights]

    want = run()
    with tfuse.enabled():
        got = run()
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_disable_restores():
    names = ("apply", "_clip_gradients", "_apply_weight_decay", "_backend_update_step")
    before = [getattr(keras.optimizers.Adam, name) for name in names]
    with tfuse.enabled():
        assert all(getattr(keras.optimizers.Adam, name) is not own for name, own in zip(names, before))
    assert [getattr(keras.optimizers.Adam, name) for name in names] == before
    since = explained()
    steps_of(make(keras.optimizers, "adam"), variables())
    assert not [row for rows in since() for row in rows if row["op"] == "TensorsUpdate"]
