"""Keras's EinsumDense by tfuse.linear: which equations it serves, the same results and files as Keras's own."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import check_files_go_both_ways, check_lora

RNG = np.random.default_rng(8)
X = tf.constant(RNG.normal(size=(3, 5, 6)), tf.float32)
close = lambda got, want, tolerance=1e-5: np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)

EQUATIONS = {  # output_shape and bias_axes, by equation; whether tfuse.linear serves it
    "abc,cd->abd": ((None, 4), "d", True),
    "abc,cde->abde": ((None, 2, 3), "de", True),
    "abc,cdf->abdf": ((None, 2, 3), "f", True),
    "abc,cdg->abdg": ((None, 2, 3), "d", True),
    "abc,bcd->ad": ((4,), None, True),
    "...x,xy->...y": (4, "y", True),
    "...xy,xyz->...z": (4, "z", True),
    "abc,dc->abd": ((None, 4), "d", False),  # the kernel lies the other way round
    "abc,cd->adb": ((4, 5), "d", False),
    "abc,bcd->abd": ((5, 4), None, False),  # a product for each b
    "abc,cd->abdc": ((5, 4, 6), None, False),
    "abc,cbd->ad": ((4,), None, False),
}


def einsum_pair(equation, **options):
    """Ours, and Keras's with the same weights."""
    shape, bias, _ = EQUATIONS[equation]
    pair = [c(equation, shape, bias_axes=bias, **options) for c in (tfuse.EinsumDense, keras.layers.EinsumDense)]
    for layer in pair:
        layer.build((None, 5, 6))
    pair[1].set_weights([RNG.normal(size=w.shape) for w in pair[1].get_weights()])
    pair[0].set_weights(pair[1].get_weights())
    return pair


def layer_gradients(layer, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    dy = tf.reshape(tf.cos(tf.cast(tf.range(tf.size(y)), y.dtype)), tf.shape(y))
    return [y, *tape.gradient(y, [x, *(v.value for v in layer.trainable_weights)], dy)]


@pytest.mark.parametrize("options", [{}, {"activation": "gelu"}, {"activation": "softmax", "dtype": "float64"},
                                     {"activation": "relu", "dtype": "mixed_bfloat16"}], ids=str)
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_dense_is_keras_einsum_dense(as_on_a_gpu, device, equation, options):
    ours, theirs = einsum_pair(equation, **options)
    x = tf.cast(X, ours.compute_dtype)
    tolerance = 0.1 if ours.compute_dtype == "bfloat16" else 1e-5
    for got, want in zip(layer_gradients(ours, x), layer_gradients(theirs, x), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        close(tf.cast(got, tf.float32), tf.cast(want, tf.float32), tolerance)


@pytest.mark.parametrize("equation", EQUATIONS)
def test_which_equations_are_served(as_on_a_gpu, equation):
    layer = einsum_pair(equation)[0]
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec([None, 5, 6])).graph
    assert ("Tfuse>Linear" in {op.type for op in graph.get_operations()}) == EQUATIONS[equation][2]


def test_einsum_dense_bias_of_other_axes(as_on_a_gpu):
    """Which is no bias of the outputs: Keras's own call does that."""
    layers = [c("abc,cd->abd", (5, 4), bias_axes="bd") for c in (tfuse.EinsumDense, keras.layers.EinsumDense)]
    for layer in layers:
        layer.build((None, 5, 6))
    layers[1].set_weights([RNG.normal(size=w.shape) for w in layers[0].get_weights()])
    layers[0].set_weights(layers[1].get_weights())
    close(layers[0](X), layers[1](X))


def test_einsum_dense_with_unknown_sizes(as_on_a_gpu, device, jit):
    ours, theirs = einsum_pair("abc,cde->abde", activation="silu")
    f = tf.function(lambda x: layer_gradients(ours, x), jit_compile=jit, input_signature=[tf.TensorSpec([None, None, 6])])
    for got, want in zip(f(X), layer_gradients(theirs, X), strict=True):
        close(got, want)


def test_einsum_dense_config_and_files_go_both_ways(tmp_path):
    ours, theirs = einsum_pair("abc,cde->abde", activation="gelu", kernel_regularizer="l2", name="layer")
    config = ours.get_config()
    json.dumps(config)
    assert config == theirs.get_config()
    for c in (tfuse.EinsumDense, keras.layers.EinsumDense):
        assert c.from_config(config).get_config() == config
    models = [keras.Sequential([keras.Input((5, 6)), layer]) for layer in einsum_pair("abc,cde->abde")]
    check_files_go_both_ways(models, X, tmp_path, close)


def test_einsum_dense_with_lora(as_on_a_gpu):
    check_lora(*einsum_pair("abc,cde->abde", activation="relu"), X, close)
