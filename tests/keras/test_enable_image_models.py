"""Image models of keras.applications under tfuse.enable(): what of a training step is left to TensorFlow, and results."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from enabling import all_reasons, close, left_as_it_was
from looking_back import needed
from tfuse._keras import _look_back

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")
MODELS = {  # what TensorFlow computes of images, and what is joined how often
    "ResNet50": (set(), {"relu of a batch norm": 33, "relu of a batch norm and another tensor": 16,
                         "a bias that the batch norm takes away again: its gradient is 0": 53,
                         "zeros around the input as padding": 2}),
    "MobileNetV2": (set(), {"relu6 of a batch norm": 35, "the sum of a batch norm and another tensor": 10,
                            "zeros around the input as padding": 4}),
    # Sums after stochastic depth, and the mean and variance of the input.
    "EfficientNetB0": ({"Mul", "AddV2", "RealDiv", "Sub"}, {
        "silu of a batch norm": 33, "zeros around the input as padding": 5, "silu of a convolution": 0}),
    "ConvNeXtTiny": ({"AddV2", "RealDiv", "Sub"}, {"gelu of a product": 18}),
}
MOVES_NOTHING = {"Reshape", "Squeeze", "Identity", "Placeholder", "Const", "StopGradient", "ReadVariableOp"}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_left(name, monkeypatch):
    (left, wanted), joined = MODELS[name], collections.Counter()
    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, name)(weights=None, input_shape=(32, 32, 3), classes=10)
    images = np.random.default_rng(0).normal(size=[2, 32, 32, 3]).astype("float32")
    infer = lambda: tf.function(lambda x: model(x, training=False), autograph=False)(images)
    want = infer()
    with tfuse.enabled():
        got = infer()
        monkeypatch.setattr(_look_back, "note", lambda op, why, x: joined.update([why]))
        graph = tf.function(lambda x: model(x, training=True), autograph=False).get_concrete_function(
            tf.TensorSpec(images.shape)).graph
    close(got, want, 1e-4)
    assert not all_reasons()
    ops = needed(graph)
    stock = {op.type for op in ops if not op.type.startswith("Tfuse>") and op.outputs and op.outputs[0].shape.rank == 4 and
             op.outputs[0].shape[1] > 1}
    assert stock - MOVES_NOTHING == left
    assert not {op.type for op in ops} & {"Conv2D", "DepthwiseConv2dNative", "MaxPool", "FusedBatchNormV3", "Relu", "Relu6"}
    assert {why: joined[why] for why in wanted} == wanted


def test_squeeze_and_excitation_of_any_number_of_images():
    model = keras.applications.EfficientNetB0(weights=None, input_shape=(64, 64, 3), classes=10)
    counts = []
    with tfuse.enabled():
        for images in (2, None):
            traced = tf.function(lambda x: model(x, training=True), autograph=False)
            graph = traced.get_concrete_function(tf.TensorSpec([images, 64, 64, 3])).graph
            counts.append(sum(op.type == "Tfuse>ScaleChannels" for op in graph.get_operations()))
    assert counts == [25, 25]  # 16 of squeeze-and-excitation, 9 of dropped images
