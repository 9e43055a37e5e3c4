"""tfuse.calibrate of functional models with convolutions: norms, sums and relu become part of them, and int8 flows between."""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from tfuse.__main__ import main

pytestmark = pytest.mark.skipif(tuple(map(int, keras.__version__.split(".")[:2])) < (3, 15),
                                reason="this Keras has other formats")
RNG = np.random.default_rng(0)
SIZE = 20


def part(x, filters, size, strides=1, relu=True, name=None):
    x = keras.layers.Conv2D(filters, size, strides, "same", name=name)(x)
    x = keras.layers.BatchNormalization(name=name + "_norm")(x)
    return keras.layers.Activation("relu")(x) if relu else x


def resnet(dtype="float32"):
    """A stem, a block with a convolution beside it, one without, and a head; the norms have numbers of their own."""
    keras.utils.set_random_seed(1)
    with _policy(dtype):
        inputs = keras.Input((SIZE, SIZE, 3))
        x = keras.layers.MaxPooling2D()(part(inputs, 16, 3, name="stem"))
        beside = part(x, 32, 1, 2, relu=False, name="beside")
        x = part(part(x, 16, 1, 2, name="a1"), 32, 3, relu=False, name="a2")
        x = keras.layers.ReLU()(keras.layers.Add()([beside, x]))
        y = part(part(x, 16, 1, name="b1"), 32, 3, relu=False, name="b2")
        x = keras.layers.Activation("relu")(keras.layers.Add()([x, y]))
        x = keras.layers.GlobalAveragePooling2D()(x)
        model = keras.Model(inputs, keras.layers.Dense(10, name="head")(x))
    rng = np.random.default_rng(2)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            n = layer.gamma.shape[0]
            layer.gamma.assign(rng.uniform(0.5, 1.5, n)), layer.beta.assign(rng.normal(size=n) / 4)
            layer.moving_mean.assign(rng.normal(size=n) / 4), layer.moving_variance.assign(rng.uniform(0.3, 2, n))
    return model


class _policy:
    def __init__(self, dtype):
        self.dtype = dtype

    def __enter__(self):
        self.before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.dtype)

    def __exit__(self, *_):
        keras.config.set_dtype_policy(self.before)


def images(n=16):
    return np.random.default_rng(1).normal(size=(n, SIZE, SIZE, 3)).astype("float32")


def apart(got, want):
    got, want = np.asarray(tf.cast(got, "float32"), "float64"), np.asarray(tf.cast(want, "float32"), "float64")
    return np.sqrt(np.mean((got - want)**2) / np.mean(want**2))


def kinds(model):
    return [type(layer).__name__ for layer in model.layers]


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_small_resnet(dtype, tmp_path):
    made, x = resnet(dtype), images()
    before = made.predict(x, verbose=0)
    found = tfuse.calibrate(made, x, "max")
    names = ["stem", "a1", "beside", "a2", "b1", "b2", "head"]
    rows = {row.layer.split("/")[-1]: row for row in found.rows}
    assert sorted(rows) == sorted(names) and [rows[n].quantized for n in names] == [False] + [True] * 6, str(found)
    assert rows["stem"].why == "its 3 channels are no multiple of 16"
    assert all(0 < rows[n].error < 0.05 for n in names[1:]), str(found)
    # One Quantize for the first two, and the last makes floats for the pooling.
    assert sorted(kinds(found.model)) == sorted(
        ["InputLayer", "Conv2D", "BatchNormalization", "Activation", "MaxPooling2D", "Quantize", *["QuantizedConv2D"] * 5,
         "GlobalAveragePooling2D", "Dense"])
    convs = {layer.name: layer for layer in found.model.layers if isinstance(layer, tfuse.QuantizedConv2D)}
    narrow = {name: layer.output.dtype == "int8" for name, layer in convs.items()}
    assert narrow == {"a1": True, "beside": True, "a2": True, "b1": True, "b2": False}
    after = found.model.predict(x, verbose=0)
    assert after.dtype == before.dtype and 0 < apart(after, before) < 0.05
    assert apart(tf.function(found.model, jit_compile=True)(x), after) < 0.01
    # The model that was given still computes in floats, but for its head, also by what was traced before.
    assert 0 < apart(made.predict(x, verbose=0), before) < 0.02
    found.model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "model.keras").predict(x, verbose=0), after, atol=1e-6)
    found.plot(tmp_path / "ranges.png")
    assert (tmp_path / "ranges.png").stat().st_size > 1000


def test_float16():
    """Convolutions have it, and Keras's Dense has not."""
    made, x = resnet("mixed_float16"), images(4)
    before, found = made.predict(x, verbose=0), tfuse.calibrate(made, x, "max")
    rows = {row.layer.split("/")[-1]: row for row in found.rows}
    assert not rows["head"].quantized and rows["head"].why == "Keras has no int8 in float16"
    assert kinds(found.model).count("QuantizedConv2D") == 5
    assert 0 < apart(found.model.predict(x, verbose=0), before) < 0.05


def test_norms_are_in_the_kernel():
    """Of a single convolution: as close as 8 bits are, with the norm, the sum and relu in either order of the sum."""
    for first in (True, False):
        keras.utils.set_random_seed(2)
        inputs = keras.Input((9, 9, 16))
        y = part(inputs, 16, 3, relu=False, name="conv")
        model = keras.Model(inputs, keras.layers.ReLU()(keras.layers.Add()([inputs, y] if first else [y, inputs])))
        norm = model.get_layer("conv_norm")
        for weight in norm.weights:
            weight.assign(np.random.default_rng(3).uniform(0.5, 2, weight.shape))
        x = RNG.normal(size=(8, 9, 9, 16)).astype("float32")
        want, found = model.predict(x, verbose=0), tfuse.calibrate(model, x, "max")
        assert kinds(found.model) == ["InputLayer", "Quantize", "QuantizedConv2D"]
        assert apart(found.model.predict(x, verbose=0), want) < 0.02


def test_parts_that_lose_too_much_stay():
    made, x = resnet(), images()
    before = made.predict(x, verbose=0)
    errors = sorted(row.error for row in tfuse.calibrate(resnet(), x, "max").rows[1:6])
    limit = (errors[1] + errors[2]) / 2
    found = tfuse.calibrate(made, x, "max", most_error=limit)
    stayed = [row for row in found.rows if not row.quantized]
    assert {row.why for row in stayed} == {"its 3 channels are no multiple of 16", "its error is larger"}
    assert kinds(found.model).count("QuantizedConv2D") == sum(row.quantized for row in found.rows if "head" not in row.layer) == 2
    assert apart(found.model.predict(x, verbose=0), before) < 0.03
    none = tfuse.calibrate(resnet(), x, "max", most_error=1e-9)
    assert not any(row.quantized for row in none.rows) and "QuantizedConv2D" not in kinds(none.model)
    np.testing.assert_allclose(none.model.predict(x, verbose=0), before, rtol=1e-4, atol=1e-5)


def test_images_of_several_sizes():
    """The error is of those that have the size of the first at every place: here both have results of one size."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None, None, 16))
    made = keras.Model(inputs, keras.layers.Conv2D(16, 3, 2, "same", activation="relu")(inputs))
    row, = tfuse.calibrate(made, [RNG.normal(size=(1, size, size, 16)).astype("float32") for size in (19, 20)], "max").rows
    assert row.quantized and row.error < 0.05


def test_what_others_see_is_a_float():
    """A result of the model, and what a layer of floats takes, beside convolutions that take the same as int8; a Sequential."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8, 8, 16))
    first = keras.layers.Conv2D(16, 3, activation="relu", name="first")(inputs)
    second = keras.layers.Conv2D(16, 3, activation="gelu", name="second")(first)
    third = keras.layers.Conv2D(32, 1, name="third")(first)
    model = keras.Model(inputs, {"mean": keras.layers.GlobalMaxPooling2D()(third), "first": first, "second": second})
    x = RNG.normal(size=(8, 8, 8, 16)).astype("float32")
    want, found = model.predict(x, verbose=0), tfuse.calibrate(model, x, "max")
    assert {row.layer: row.why for row in found.rows} == {"first": "", "second": "int8 has no such activation", "third": ""}
    got = found.model.predict(x, verbose=0)
    assert got.keys() == want.keys() and all(0 < apart(got[name], want[name]) < 0.03 for name in want)
    stack = keras.Sequential([keras.Input((8, 8, 16)), keras.layers.Conv2D(16, 3, strides=2, name="one"),
                              keras.layers.BatchNormalization(), keras.layers.ReLU(), keras.layers.Conv2D(16, 2, padding="same")])
    want, found = stack.predict(x, verbose=0), tfuse.calibrate(stack, x, "max")
    assert kinds(found.model) == ["InputLayer", "Quantize", "QuantizedConv2D", "QuantizedConv2D"]
    assert apart(found.model.predict(x, verbose=0), want) < 0.05


def test_layers_are_called_as_before():
    """A convolution that is called twice stays, and so does a norm that takes the batch's own statistics."""
    keras.utils.set_random_seed(5)
    inputs, twice = keras.Input((6, 6, 16)), keras.layers.Conv2D(16, 3, padding="same", name="twice")
    x = keras.layers.Conv2D(16, 1, name="once")(twice(twice(inputs)))
    model = keras.Model(inputs, keras.layers.BatchNormalization()(x, training=True))
    data = RNG.normal(size=(8, 6, 6, 16)).astype("float32")
    found = tfuse.calibrate(model, data, "max")
    assert {row.layer: row.why for row in found.rows} == {"twice": "it is called more than once", "once": ""}
    assert sorted(kinds(found.model)) == ["BatchNormalization", "Conv2D", "InputLayer", "Quantize", "QuantizedConv2D"]
    assert 0 < apart(found.model(data), model(data)) < 0.03


def test_what_stays():
    keras.utils.set_random_seed(4)
    inputs = keras.Input((6, 6, 32))
    x = keras.layers.Conv2D(32, 3, groups=2, name="groups")(inputs)
    x = keras.layers.Conv2D(12, 1, name="filters")(x)
    model = keras.Model(inputs, keras.layers.Conv2D(16, 1, name="channels")(x))
    data = RNG.normal(size=(4, 6, 6, 32)).astype("float32")
    found = tfuse.calibrate(model, data, "max")
    assert [row.why for row in found.rows] == ["it has groups", "its 12 filters are no multiple of 16",
                                               "its 12 channels are no multiple of 16"] and found.model is model
    with pytest.raises(ValueError, match="calibrate: .*: there are .* that are infinite or no numbers"):
        tfuse.calibrate(resnet(), images() * np.nan)


def test_the_example(monkeypatch, tmp_path):
    """examples/resnet50_int8.py with the small model, by calls and by predict()."""
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
    import resnet50_int8

    monkeypatch.setattr(keras.applications, "ResNet50", lambda **_: resnet())
    before = keras.config.dtype_policy()
    for more in ([], ["--predict", "--plain"]):
        options = resnet50_int8.parse(["--image=%d" % SIZE, "--batch=4", "--calls=1", "--json=%s" % (tmp_path / "json"), *more])
        with tfuse.enabled():
            measured = resnet50_int8.main(options)
        assert 0 < measured["error"] < 0.05 and measured["ms"] > 0 and measured["ms_int8"] > 0
        assert json.loads((tmp_path / "json").read_text())["speedup"] == pytest.approx(measured["speedup"])
    tfuse.disable()
    keras.config.set_dtype_policy(before)


def test_the_command(tmp_path, capsys):
    made, x = resnet(), images()
    made.save(tmp_path / "model.keras")
    np.save(tmp_path / "data.npy", x)
    assert main(["calibrate", str(tmp_path / "model.keras"), "--data", str(tmp_path / "data.npy"), "--method", "max",
                 "--save", str(tmp_path / "small.keras")]) == 0
    assert "no multiple of 16" in capsys.readouterr().out
    small = keras.saving.load_model(tmp_path / "small.keras")
    assert "QuantizedConv2D" in kinds(small) and apart(small.predict(x, verbose=0), made.predict(x, verbose=0)) < 0.05
