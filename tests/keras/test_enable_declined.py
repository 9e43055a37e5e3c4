"""tfuse.enable(): whatever Keras takes is served, or is left to Keras and explained. Every reason to leave a call has a call
here."""

import functools
import importlib
import inspect
import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from enabling import (ATTENTION, GAMMA, LABELS, MASK, NN, NORM, Q, SOFTMAX, TARGETS, X, all_reasons, check_declined, layer,
                      left_as_it_was, needs_attention, normal, outcome, ran, reasons, reasons_in, same, start, told)
from tfuse._core import _library
from tfuse._keras import _enable, _replaced, _replaced_images, _replaced_nn

# ---- whatever Keras takes ----

seeded = keras.initializers.RandomNormal(seed=1)
UNKNOWN = dict(input_signature=[tf.TensorSpec(None)], autograph=False)
KERNELS = [normal(2, 2, 8, 3), normal(2, 2, 3, 8), normal(2, 2, 8, 2), normal(1, 1, 16, 3)]
TAKES = {  # for each row of the table, and what comes with a comma after its name
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
    "BatchNormalization.call": lambda x, axis=-1: keras.layers.BatchNormalization(axis)(x, training=True),
    "Dense.call": lambda x: keras.layers.Dense(3, "gelu", kernel_initializer=seeded)(x),
    "EinsumDense.call": lambda x: keras.layers.EinsumDense("...a,ab->...b", 3, kernel_initializer=seeded)(x),
    "BaseConv.call": lambda x: keras.layers.Conv2D(3, 2, padding="same", activation="relu", kernel_initializer=seeded)(x),
    "Conv1D.call": lambda x: keras.layers.Conv1D(3, 2, padding="causal", kernel_initializer=seeded)(x),
    "BaseConvTranspose.call": lambda x: keras.layers.Conv2DTranspose(3, 2, strides=2, kernel_initializer=seeded)(x),
    "BaseDepthwiseConv.call": lambda x: keras.layers.DepthwiseConv2D(2, depthwise_initializer=seeded)(x),
    "BaseSeparableConv.call": lambda x: keras.layers.SeparableConv2D(
        3, 2, depthwise_initializer=seeded, pointwise_initializer=seeded)(x),
    "GlobalAveragePooling1D.call": lambda x: keras.layers.GlobalAveragePooling1D()(x),
    "GlobalAveragePooling2D.call": lambda x: keras.layers.GlobalAveragePooling2D()(x),
    "GlobalAveragePooling3D.call": lambda x: keras.layers.GlobalAveragePooling3D()(x),
    "GlobalMaxPooling1D.call": lambda x: keras.layers.GlobalMaxPooling1D()(x),
    "GlobalMaxPooling2D.call": lambda x: keras.layers.GlobalMaxPooling2D()(x),
    "GlobalMaxPooling3D.call": lambda x: keras.layers.GlobalMaxPooling3D()(x),
    "UpSampling1D.call": lambda x: keras.layers.UpSampling1D(2)(x),
    "UpSampling2D.call": lambda x: keras.layers.UpSampling2D(2, interpolation="bilinear")(x),
    "UpSampling3D.call": lambda x: keras.layers.UpSampling3D(2)(x),
    "resize": lambda x: keras.ops.image.resize(x, (4, 6)),
    "LayerScale.call": lambda x: keras.src.applications.convnext.LayerScale(0.5, 8)(x),
    "conv": lambda x: keras.ops.conv(x, KERNELS[0], padding="same"),
    "conv_transpose": lambda x: keras.ops.conv_transpose(x, KERNELS[1], 2),
    "depthwise_conv": lambda x: keras.ops.depthwise_conv(x, KERNELS[2], padding="same"),
    "separable_conv": lambda x: keras.ops.separable_conv(x, KERNELS[2], KERNELS[3]),
    "max_pool": lambda x: keras.ops.max_pool(x, 2, 1, "same"),
    "average_pool": lambda x: keras.ops.average_pool(x, 2, 1, "same"),
    "dot_product_attention": lambda x: keras.ops.dot_product_attention(x, x, x),
    "dot_product_attention, lists": lambda x: keras.ops.dot_product_attention(x, x, x, bias=[0.5, 1.0, -0.5], mask=[[True]]),
    "MultiHeadAttention._compute_attention": lambda x: keras.layers.MultiHeadAttention(
        2, 4, attention_axes=len(x.shape) - 2, kernel_initializer=seeded)(x, x),
    "GroupedQueryAttention._compute_attention": lambda x: keras.layers.GroupQueryAttention(
        4, 2, 1, kernel_initializer=seeded)(x, x),
    "Dropout.call": lambda x: keras.layers.Dropout(1e-6, seed=1)(x, training=True),
    "dropout": lambda x: keras.random.dropout(x, 0.5, (None, *[1] * (len(x.shape) - 1)), seed=1),
}
NO_REASONS = {"dropout"}  # of which tfuse serves a special case, and leaves the rest to Keras without a word
SHAPES = [(), (8,), (2, 8), (3, 0), (0, 8), (2, 3, 8), (2, 3, 2, 8), (2, 1, 3, 2, 8), (2,) * 8, (2,) * 9]
NO_TENSORS = {"number": 0.5, "NumPy's": np.float32(0.5), "list": [0.5, -1.0], "rows": [[0.5, -1.0], [2.0, 0.0]],
              "integers": np.arange(8).reshape(2, 4), "variable": tf.Variable(X)}
AXES = [0, 1, -2, np.int64(0), np.int32(-1), np.array(1), (0,), [1], (0, 1), [0, 1], (-1, -2), (-1, 0), (1, 1),
        (np.int64(0), np.int64(1)), np.array([0, 1]), (), None, 5, -5, 1.0]


def test_every_row_is_called_with_whatever_keras_takes():
    without_input = {"_compute_attention_mask", "num_repeats"}  # which hand over what the attention after them gets
    rows = {row.attribute for row in _replaced_nn.TABLE + _replaced_images.TABLE if row.attribute.split(".")[-1] not in without_input}
    assert {name.split(",")[0] for name in TAKES} == rows


def test_arguments_have_the_names_that_keras_gives_them():
    """Whoever calls a function with them by name is served, too."""
    checked = 0
    for row in _enable._TABLE:
        try:
            own = functools.reduce(getattr, row.attribute.split("."), importlib.import_module(row.module))
        except (ImportError, AttributeError):
            continue
        for serve in filter(None, [row.serve, row.guard]):
            found = inspect.signature(serve).parameters.values()
            if not callable(own) or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in found):
                continue  # which hands on what it gets
            names = [p.name for p in found][serve is row.serve and not row.in_place:]
            wanted = list(inspect.signature(own).parameters)
            wanted = names[:1] * (wanted[:1] == ["self"]) + wanted[wanted[:1] == ["self"]:]
            assert names[:len(wanted)] == wanted, row.attribute
            checked += 1
    assert checked > 40


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
        if what == (3, 0) and row == "categorical_crossentropy" and tf.__version__ < "2.2":
            continue  # stock TensorFlow 2.16 dies where there are no classes; "2.20" is no less than "2.2"
        want = outcome(call)
        stock.append(want)
        start()
        with tfuse.enabled():
            got = outcome(call)
        assert same(got, want), (what, got, want)
        if not isinstance(want, Exception) and np.size(want):  # where nothing comes out, nothing runs
            assert ran() or row in all_reasons() or row.split(".")[0] in all_reasons() or row in NO_REASONS, what
            served += bool(ran()) and row not in all_reasons()
    if all(isinstance(want, AttributeError) for want in stock):
        pytest.skip("this Keras has no such function")
    assert served or "," in name


# ---- what tfuse does not serve ----

NINE = tf.ones([1] * 8 + [8])
dense_of = lambda x, **more: layer(lambda: keras.layers.Dense(4, **more), *x.shape)(x)
einsum_of = lambda equation, *shape, **more: layer(lambda: keras.layers.EinsumDense(equation, *shape, **more), 3, 5, 8)


class OwnConvolution(keras.layers.Conv2D):
    def convolution_op(self, inputs, kernel):
        return 2 * super().convolution_op(inputs, kernel)


def conv_of(x, make=keras.layers.Conv2D, **more):
    return layer(lambda: make(4, 2, **more), *x.shape)(x)


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


def upsampled(interpolation):
    """A layer that was told so after it was made, which refuses it then."""
    made = keras.layers.UpSampling2D(2)
    made.interpolation = interpolation
    return made


DECLINED = [  # what explain() calls it, why it is left to Keras, the call
    ("gelu", "a list is no tensor", lambda: keras.ops.gelu([1.0, 2.0])),
    ("silu", "a SparseTensor is not dense", lambda: NN.silu(tf.sparse.from_dense(X[0]))),
    ("softplus", "tfuse takes float32, float16, bfloat16 and float64, got int32",
     lambda: keras.ops.softplus(tf.constant([1, 2]))),
    ("hard_silu", "the number of dimensions is not known", lambda: tf.function(keras.ops.hard_silu, **UNKNOWN)(X)),
    ("Mish.static_call", "tfuse takes up to 8 dimensions, got 9", lambda: keras.activations.mish(NINE)),
    ("Dropout.call", "a RaggedTensor is not dense", lambda: keras.src.layers.Dropout(1e-6, seed=1).call(
        tf.RaggedTensor.from_row_lengths(X[0], [2, 3]), training=True).values),
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
    ("BatchNormalization.call", "there are fewer than two dimensions", lambda: keras.layers.BatchNormalization()(X[0, 0])),
    ("BatchNormalization.call", "the number of channels is not known", lambda: tf.function(
        layer(keras.layers.BatchNormalization, 3, 8).call, input_signature=[tf.TensorSpec([None, None])])(X[0, :, :1])),
    ("BatchNormalization.call", "renorm=True corrects the statistics",
     lambda: keras.layers.BatchNormalization(renorm=True)(X)),
    ("BatchNormalization.call", "training is a tensor", lambda: layer(keras.layers.BatchNormalization, 3, 5, 8).call(
        tf.constant(X), training=tf.constant(True))),
    ("BatchNormalization.call", "the mask has not one axis less than the inputs",
     lambda: keras.layers.BatchNormalization()(X, mask=tf.ones([3]))),
    ("Dense.call", "there is no GPU, and TensorFlow's own product is faster on the CPU", lambda: dense_of(X)),
    ("EinsumDense.call", "there is no GPU, and TensorFlow's own product is faster on the CPU",
     lambda: einsum_of("abc,cd->abd", (5, 4))(X)),
    ("Dense.call", "a SparseTensor is not dense", lambda: dense_of(tf.sparse.from_dense(X[0]))),
    ("Dense.call", "the input is float16, the layer computes in float32",
     lambda: dense_of(tf.cast(X, "float16"), autocast=False)),
    ("Dense.call", "the number of dimensions is not known", lambda: tf.function(
        layer(lambda: keras.layers.Dense(4), 3, 5, 8).call, **UNKNOWN)(X)),
    ("Dense.call", "tfuse.linear takes 2 to 8 dimensions, got 9", lambda: dense_of(NINE)),
    ("BaseConv.call", "there is no GPU, and TensorFlow's own convolution is faster on the CPU", lambda: conv_of(Q)),
    ("BaseConv.call", "OwnConvolution has a convolution_op of its own", lambda: conv_of(Q, OwnConvolution)),
    ("BaseConv.call", "the input is float16, the layer computes in float32",
     lambda: conv_of(tf.cast(Q, "float16"), name="one", autocast=False)),
    ("BaseConvTranspose.call", "the layer takes 4 dimensions, got None", lambda: tf.function(
        layer(lambda: keras.layers.Conv2DTranspose(4, 2), *Q.shape).call, **UNKNOWN)(Q)),
    ("Conv1D.call", "a SparseTensor is not dense", lambda: layer(lambda: keras.layers.Conv1D(4, 2), *X.shape)(
        tf.sparse.from_dense(X))),
    ("BaseDepthwiseConv.call", "a SparseTensor is not dense", lambda: layer(
        lambda: keras.layers.DepthwiseConv2D(2), *Q.shape)(tf.sparse.from_dense(Q))),
    ("BaseDepthwiseConv.call", "the input is float16, the layer computes in float32", lambda: layer(
        lambda: keras.layers.DepthwiseConv2D(2, autocast=False), *Q.shape)(tf.cast(Q, "float16"))),
    ("BaseSeparableConv.call", "the layer takes 4 dimensions, got None", lambda: tf.function(
        layer(lambda: keras.layers.SeparableConv2D(4, 2), *Q.shape).call, **UNKNOWN)(Q)),
    ("BaseDepthwiseConv.call", "there is no GPU, and TensorFlow's own convolution is faster on the CPU", lambda: layer(
        lambda: keras.layers.DepthwiseConv2D(2), *Q.shape)(Q)),
    ("GlobalAveragePooling1D.call", "a mask says what is averaged",
     lambda: keras.layers.GlobalAveragePooling1D()(X, mask=np.arange(15).reshape(3, 5) % 2 == 0)),
    ("GlobalAveragePooling2D.call", "a SparseTensor is not dense",
     lambda: keras.layers.GlobalAveragePooling2D().call(tf.sparse.from_dense(Q))),
    ("GlobalMaxPooling2D.call", "XLA joins a reduction with what comes before it",
     lambda: tf.function(keras.layers.GlobalMaxPooling2D().call, autograph=False, jit_compile=True)(tf.constant(Q))),
    ("LayerScale.call", "the scale is not per channel", lambda: keras.src.applications.convnext.LayerScale(0.5, 8)(X[..., :1])),
    ("GlobalMaxPooling1D.call", "tfuse takes float32, float16, bfloat16 and float64, got int32",
     lambda: keras.layers.GlobalMaxPooling1D(dtype="int32").call(tf.ones([2, 3, 4], tf.int32))),
    ("GlobalAveragePooling2D.call", "the number of dimensions is not known",
     lambda: tf.function(keras.layers.GlobalAveragePooling2D().call, **UNKNOWN)(Q)),
    ("conv", "shapes of [3, 5, 8] and [2, 2, 8, 3] are not those of images", lambda: keras.ops.conv(X, KERNELS[0])),
    ("conv", "dtypes differ", lambda: keras.ops.conv(tf.cast(Q, "float16"), KERNELS[0])),
    ("UpSampling1D.call", "the inputs have 2 axes", lambda: keras.layers.UpSampling1D(2).call(Q[0, 0])),
    ("UpSampling1D.call", "an axis of the result has none or more than 1048576 positions",
     lambda: keras.layers.UpSampling1D(2)(tf.ones([2, 0, 3]))),
    ("UpSampling2D.call", "interpolation is area", lambda: upsampled("area")(Q)),
    ("resize", "interpolation is area", lambda: keras.ops.image.resize(Q, (3, 4), interpolation="area")),
    *(("resize", why, lambda x=x, size=size, more=more: keras.src.backend.image.resize(x, size, **more)) for why, x, size, more in [
        ("fill_mode is reflect", Q, (3, 4), {"fill_mode": "reflect"}),
        ("the images have 5 axes", Q[None], (3, 4), {}),
        ("size has 3 numbers", Q, (3, 4, 5), {}),
        ("size is (0, 4)", Q, (0, 4), {}),
        ("the images are empty", Q[:, :0], (3, 4), {})]),
    ("resize", "crop_to_aspect_ratio=True cuts before it resizes",
     lambda: keras.ops.image.resize(Q, (3, 4), crop_to_aspect_ratio=True)),
    ("resize", "pad_to_aspect_ratio=True pads before it resizes",
     lambda: keras.ops.image.resize(Q, (3, 4), pad_to_aspect_ratio=True)),
    ("resize", "channels come first in a single image",
     lambda: keras.ops.image.resize(Q[0], (3, 4), data_format="channels_first")),
    ("max_pool", "padding is causal", lambda: keras.ops.max_pool(Q, 2, padding="causal")),
    ("conv", "the number of channels is not known", lambda: tf.function(
        lambda x: keras.ops.conv(x, KERNELS[0]), input_signature=[tf.TensorSpec([None] * 4)], autograph=False)(Q)),
    ("conv", "the window does not fit into the input", lambda: keras.ops.conv(tf.constant(Q[:, :1]), KERNELS[0])),
    ("conv", "the channels are not those of the kernel", lambda: keras.ops.conv(Q[..., :3], KERNELS[0])),
    ("max_pool", "a window has more than 256 elements", lambda: keras.ops.max_pool(tf.ones([1, 20, 20, 1]), 17)),
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
    ("dot_product_attention", "the soft cap is a tensor",
     lambda: keras.ops.dot_product_attention(Q, Q, Q, attn_logits_soft_cap=tf.constant(5.0))),
    ("dot_product_attention", "of symbolic tensors, Keras would forget the soft cap where tfuse is not enabled",
     lambda: keras.ops.dot_product_attention(*[keras.Input([6, 4, 8])] * 3, attn_logits_soft_cap=5.0)),
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
    for name in ("_keras._replaced", "_keras._replaced_nn", "_keras._enable", "products.einsum_dense", "products.linear",
                 "_keras._replaced_images", "convolution.conv_layers", "convolution.depthwise_conv", "convolution.pool",
                 "attention.multi_head_attention"):
        for pattern in reasons_in(sys.modules["tfuse." + name]):
            assert any(re.fullmatch(pattern, why) for why in whys), (name, pattern)


@pytest.mark.filterwarnings("ignore:You passed `rms_scaling")
@pytest.mark.parametrize("op, why, call", DECLINED, ids=["%s: %s" % row[:2] for row in DECLINED])
def test_the_rest_is_left_to_keras(monkeypatch, op, why, call):
    if op == "MultiHeadAttention" and not ATTENTION:
        pytest.skip(OF_OLDER_KERAS)
    if (op, why) == ("categorical_crossentropy", "there are no classes") and tf.__version__.startswith("2.16."):
        pytest.skip("TensorFlow 2.16 divides by zero there, and dies")
    monkeypatch.setattr(_library, "without_gpu", lambda: why.startswith("there is no GPU"))
    check_declined(op, why, call)


def test_integers_are_left_to_keras():
    with tfuse.enabled():
        for _ in range(3):
            keras.ops.softplus(tf.ones([2], tf.float64))
            with pytest.raises(Exception):
                keras.ops.softplus(tf.constant([1, 2]))
    row, = told(op="softplus")
    assert row["route"] == "Keras's own code" and row["calls"] == 3
    assert row["input"] == "int32[2]" and "got int32" in row["why"]
    assert "softplus" in repr(tfuse.explain())


def test_guards_by_name(monkeypatch):
    """A guard by name is handed what a call of the function would be, without the price of inspect's binding."""
    guard = _replaced.by_name(lambda own, x, y, z=3: None, lambda a: (a.x, a.y, a.z))
    bound, bind = [], inspect.Signature.bind
    monkeypatch.setattr(inspect.Signature, "bind", lambda *inputs, **options: bound.append(1) or bind(*inputs, **options))
    assert guard(1, 2) == guard(1, y=2) == (1, 2, 3) and guard(1, z=5, y=2) == (1, 2, 5)
    assert not bound
    for inputs, options in [((1,), {}), ((1, 2, 3, 4), {}), ((1, 2), {"w": 1}), ((1, 2), {"x": 1})]:
        with pytest.raises(TypeError):
            guard(*inputs, **options)


def test_arguments_of_a_later_keras():
    """A function that has grown an argument goes its own way when it is used."""
    seen, stock = [], NN.silu
    NN.silu = lambda x, beta=1.0: seen.append(beta) or stock(x)
    try:
        with tfuse.enabled():
            assert NN.silu(X) is not None and not seen
            NN.silu(X, beta=2.0)
    finally:
        NN.silu = stock
    assert seen == [2.0] and "beta" in reasons()["silu"]


@needs_attention
def test_flash_attention_may_be_asked_for():
    """Keras on TensorFlow refuses it; with tfuse it is there."""
    layer = keras.layers.MultiHeadAttention(2, 4, flash_attention=True)
    with pytest.raises(ValueError, match="[Ff]lash"):
        layer(X, X)
    with tfuse.enabled():
        assert layer(X, X).shape == X.shape
        assert keras.ops.dot_product_attention(Q, Q, Q, flash_attention=True).shape == Q.shape
    assert "Attention" in ran() and not reasons()
