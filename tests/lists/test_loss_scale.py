"""tfuse.optimizers.LossScaleOptimizer against Keras's own, around our optimizers and around Keras's."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from optimizing import (OPTIONS, RULES, SHAPES, all_together, check_like_keras, data, gradients, graph_ops, largest_error, make,
                        model, move, on_others, train, variables)

CLIPS = ["plain", "clipnorm", "clipvalue", "global_clipnorm"]
DYNAMIC = {"initial_scale": 1024.0, "dynamic_growth_steps": 4}  # grows and shrinks within a few steps


@pytest.mark.parametrize("rule, option, route", [(rule, option, "graph") for rule in RULES for option in CLIPS] + on_others(CLIPS))
def test_loss_scale_like_keras(device, rule, option, route):
    """Weights, slots, and a scale that grows, and shrinks after steps that are left out."""
    check_like_keras(rule, OPTIONS[option], route, scaled=DYNAMIC, steps=14, bad=(0, 7, 8))


@pytest.mark.parametrize("option", ["ema", "accumulation", "schedule"])
def test_loss_scale_beside_others(device, option):
    check_like_keras("adam", OPTIONS[option], scaled=DYNAMIC, steps=14, bad=(7,))


@pytest.mark.parametrize("around", [keras.optimizers, tfuse.optimizers])
@pytest.mark.parametrize("library", [keras.optimizers, tfuse.optimizers])
def test_loss_scale_over_steps(device, library, around):
    """Bad steps are left out and halve the scale, two good ones double it; around our optimizers and around Keras's."""
    weights, scales = variables([(3,)]), []
    optimizer = around.LossScaleOptimizer(library.Adam(), 2.0**15, dynamic_growth_steps=2)
    optimizer.build(weights)
    for bad in (True, False, False, False, True, True):
        before = weights[0].numpy()
        optimizer.apply([tf.constant([1.0, np.nan if bad else 2.0, 0.0])], weights)
        assert np.array_equal(weights[0].numpy(), before) == bad
        scales.append(optimizer.dynamic_scale.numpy() / 2**15)
    assert scales == [0.5, 0.5, 1, 1, 0.5, 0.25] and optimizer.inner_optimizer.iterations.numpy() == 3


@pytest.mark.parametrize("option", CLIPS)
@pytest.mark.parametrize("rule", ["adam", "lamb"])
def test_loss_scale_copies_no_gradients(rule, option):
    """A graph has no op for each of them, as it has with Keras's wrapper around the same optimizer."""
    counts = []
    for library in (keras.optimizers, tfuse.optimizers):
        weights, optimizer = variables(), library.LossScaleOptimizer(make(tfuse.optimizers, rule, **OPTIONS[option]))
        optimizer.build(weights)
        counts.append(graph_ops(lambda *g: optimizer.apply(list(g), weights), *gradients(0)))
    assert counts[0]["RealDiv"] - counts[1]["RealDiv"] == len(SHAPES) and counts[1]["RealDiv"] <= 1  # of the scale itself
    assert counts[0]["IsFinite"] == len(SHAPES) and counts[1]["IsFinite"] <= 1
    assert sum((counts[1] - counts[0]).values()) <= 5  # and none in their place: a norm, and what is asked of it


class AtMostOne(tfuse.optimizers.SGD):
    """Somebody's own, who looks at gradients."""

    def apply(self, grads, trainable_variables=None):
        super().apply([tf.minimum(g, 1.0) for g in grads], trainable_variables)


@pytest.mark.parametrize("case", ["sparse", "integer", "narrow", "wide", "missing", "overwritten", "array", "kerass", "own"])
def test_loss_scale_where_gradients_are_divided_first(device, case):
    """Or where some are not there, or not for the optimizer."""
    results = []
    for library in (keras.optimizers, tfuse.optimizers):
        dtype = {"integer": "int64", "narrow": "float16"}.get(case, "float32")
        weights = [tf.Variable(tf.cast([[1, 2], [3, 4], [5, 6]], dtype)), *variables([(4,)])]
        inner = {"kerass": keras.optimizers.SGD, "own": AtMostOne}.get(case, library.SGD)(0.5, clipnorm=4.0)
        optimizer = library.LossScaleOptimizer(inner, 2.0**20)
        optimizer.build(weights)
        if case == "overwritten":
            weights[1].overwrite_with_gradient = True
        g = tf.constant([[2.0, -4.0], [0, 2.0], [0, 6.0]]) * 2**20  # more than float16 holds
        g = {"sparse": tf.IndexedSlices(g[:2], tf.constant([2, 0]), tf.constant([3, 2])), "integer": tf.cast(g, tf.int64),
             "wide": tf.cast(g, tf.float64), "missing": None, "array": g.numpy()}.get(case, g)
        for _ in range(3):
            optimizer.apply([g, tf.ones([4]) * 2**20], weights)
        results.append([v.numpy() for v in [*weights, optimizer.dynamic_scale, inner.iterations]])
    assert np.all(np.isfinite(results[1][0])) and int(results[1][-1]) == 3
    assert all(np.allclose(got, want, rtol=5e-3 if case == "narrow" else 1e-6) for got, want in zip(*results))


@pytest.mark.parametrize("option", CLIPS)
def test_loss_scale_of_norms_that_overflow(device, option):
    """They are those of scaled gradients: where these are finite and a norm is not, the scale is too large."""
    weights, optimizer = variables([(4,)]), tfuse.optimizers.LossScaleOptimizer(
        make(tfuse.optimizers, "sgd", **OPTIONS[option], learning_rate=1.0), 2.0**100)
    before = weights[0].numpy()
    optimizer.apply([tf.fill([4], 2.0**98)], weights)
    too_large = "norm" in option
    assert optimizer.dynamic_scale.numpy() == 2.0**(99 if too_large else 100)
    assert np.allclose(weights[0].numpy(), before if too_large else before - 0.25)


@pytest.mark.parametrize("way", ["own_variables", "checkpoint"])
@pytest.mark.parametrize("to_us", [True, False])
def test_loss_scale_checkpoint_moves_both_ways(to_us, way, tmp_path):
    libraries = [keras.optimizers, tfuse.optimizers] if to_us else [tfuse.optimizers, keras.optimizers]
    first, second = (library.LossScaleOptimizer(library.Adam(), **DYNAMIC) for library in libraries)
    weights, moved = variables(), variables(seed=9)
    train(first, weights, steps=6, bad=(2,))
    move(first, second, weights, moved, way, tmp_path)
    assert largest_error(train(second, moved, 6, 6), train(first, weights, 6, 6)) < 1e-6


def test_loss_scale_around_a_step_that_is_left_to_keras():
    """Gradients are handed on undivided only to a step that divides them: not where the inner optimizer's is Keras's own."""
    inner, variable = tfuse.optimizers.SGD(0.5), keras.Variable([1.0])
    inner.assign_sub = functools.partial(type(inner).assign_sub, inner)
    wrapper = tfuse.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    wrapper.build([variable])
    wrapper.apply([tf.constant([8.0])], [variable])
    assert variable.numpy() == [0.5]


def test_loss_scale_config():
    ours = tfuse.optimizers.LossScaleOptimizer(tfuse.optimizers.AdamW(0.1, clipnorm=2.0), **DYNAMIC, name="mine")
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW(0.1, clipnorm=2.0), **DYNAMIC, name="mine")
    assert {**ours.get_config(), "inner_optimizer": 0} == {**theirs.get_config(), "inner_optimizer": 0}
    again = keras.optimizers.deserialize(keras.optimizers.serialize(ours))
    assert type(again) is type(ours) and type(again.inner_optimizer) is tfuse.optimizers.AdamW
    assert again.get_config() == ours.get_config()


def test_loss_scale_fit(jit, tmp_path):
    """In a model of mixed precision, which does not wrap it again; it comes back from a file."""
    x, y = data()
    curves = []
    for library in (keras.optimizers, tfuse.optimizers):
        keras.config.set_dtype_policy("mixed_float16")
        try:
            m = model()
        finally:
            keras.config.set_dtype_policy("float32")
        optimizer = library.LossScaleOptimizer(library.AdamW(0.01, global_clipnorm=1.0), dynamic_growth_steps=10)
        m.compile(optimizer, "mse", jit_compile=jit)
        assert m.optimizer is optimizer
        with all_together(library):
            curves.append(m.fit(x, y, 32, epochs=4, shuffle=False, verbose=0).history["loss"])
        scale = optimizer.dynamic_scale.numpy()
    assert curves[1][-1] < 0.8 * curves[1][0] and np.allclose(*curves, rtol=2e-2)
    m.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert type(again.optimizer) is tfuse.optimizers.LossScaleOptimizer and again.optimizer.dynamic_scale.numpy() == scale


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm"])
def test_loss_scale_mirrored(option, devices):
    x, y = data(128)
    results = []
    for library in (keras.optimizers, tfuse.optimizers):
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"][:devices]).scope():
            m = model()
            m.compile(library.LossScaleOptimizer(make(library, "adam", **OPTIONS[option]), **DYNAMIC), "mse", jit_compile=False)
        with all_together(library):
            m.fit(x, y, 32, epochs=2, shuffle=False, verbose=0)
        results.append([*m.get_weights(), m.optimizer.dynamic_scale.numpy()])
    assert largest_error(results[1], results[0]) < 1e-5
