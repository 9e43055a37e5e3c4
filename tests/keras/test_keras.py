"""Layers and functions in models of Keras, trained, saved, and loaded in a new process. On a machine with a GPU everything
but the two-replica test runs there."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import new_process
from tfuse._core import _library
from tfuse.elementwise.scale_bias_act import PLAIN


def data(rows=48, features=6):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, features)).astype("float32")
    return x, np.tanh(x @ rng.normal(size=(features, 1))).astype("float32")


# ---- training, against the same model of stock layers ----


class StockScaleBiasAct(keras.layers.Layer):
    def __init__(self, activation, **kwargs):
        super().__init__(**kwargs)
        self.activation = keras.activations.get(activation)

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=shape[-1:], initializer="ones")
        self.bias = self.add_weight(name="bias", shape=shape[-1:], initializer="zeros")

    def call(self, x):
        return self.activation(x * self.scale + self.bias)


def sequential(fused):
    keras.utils.set_random_seed(1)
    return keras.Sequential([
        keras.Input((6,)),
        keras.layers.Dense(16),
        (tfuse.ScaleBiasAct if fused else StockScaleBiasAct)("elu"),  # stock silu aborts in graphs on Arm, up to 2.18
        tfuse.AddConstant(0.25) if fused else keras.layers.Rescaling(1.0, 0.25),
        keras.layers.Dense(1),
    ])


def functional(fused):
    keras.utils.set_random_seed(1)
    x = keras.Input((6,))
    h = keras.layers.Dense(16)(x)
    h = tfuse.gelu(h) if fused else keras.ops.gelu(h)  # on a symbolic tensor, and with the same default form
    h = h + (tfuse.ScaleBiasAct if fused else StockScaleBiasAct)("tanh")(h)
    h = tfuse.AddConstant(-0.5)(h) if fused else h - 0.5
    return keras.Model(x, keras.layers.Dense(1)(tfuse.square(h) if fused else h * h))


def train(model, jit, epochs=3):
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse", jit_compile=jit)
    return model.fit(*data(), batch_size=16, epochs=epochs, shuffle=False, verbose=0).history["loss"]


@pytest.mark.parametrize("make", [sequential, functional])
def test_training_follows_stock_keras(make, jit):
    want, got = train(make(fused=False), False), train(make(fused=True), jit)
    assert got[-1] < got[0]
    np.testing.assert_allclose(got, want, rtol=1e-3)
    if jit and not _library.xla_status():
        assert {"ScaleBiasAct", "ScaleBiasActGrad", "AddConstant"} <= {
            row["op"] for row in tfuse.explain(64) if row["route"] == "XLA custom call" and row["when"] == "ran"}


def test_two_replicas():
    cpus = [d.name for d in tf.config.list_logical_devices("CPU")]
    assert len(cpus) == 2
    with tf.device("CPU:0"):
        want = train(sequential(fused=True), False)
    with tf.distribute.MirroredStrategy(cpus).scope():
        model = sequential(fused=True)
        got = train(model, False)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    model.layers[2].set_constant(1e3)  # reaches both copies
    assert np.all(np.abs(model.predict(data()[0], verbose=0)) > 10)


# ---- layers ----


def test_config_round_trip():
    layer = tfuse.ScaleBiasAct(
        keras.activations.silu, name="affine", scale_initializer=keras.initializers.RandomUniform(1, 2, seed=3),
        bias_initializer="ones", scale_regularizer=keras.regularizers.L2(0.1), bias_regularizer="l1",
        scale_constraint=keras.constraints.MaxNorm(3), bias_constraint="non_neg", dtype="mixed_bfloat16")
    config = layer.get_config()
    json.dumps(config)
    again = tfuse.ScaleBiasAct.from_config(config)
    assert again.get_config() == config and again.activation == "silu" and again.name == "affine"
    assert again.compute_dtype == "bfloat16"
    assert isinstance(again.scale_constraint, keras.constraints.MaxNorm)
    again.build((None, 3))
    scale, bias = again.get_weights()
    assert np.all((1 <= scale) & (scale <= 2)) and np.array_equal(bias, np.ones(3))
    assert [w.name for w in again.weights] == ["scale", "bias"]
    np.testing.assert_allclose(sum(float(loss) for loss in again.losses), 0.1 * np.sum(scale**2) + 0.01 * 3, rtol=1e-3)

    bare = tfuse.ScaleBiasAct.from_config(tfuse.ScaleBiasAct(use_scale=False, use_bias=False).get_config())
    assert not bare.use_scale and not bare.use_bias
    constant = tfuse.AddConstant.from_config(tfuse.AddConstant(2.5, trainable=False).get_config())
    assert float(constant.constant) == 2.5 and constant.get_config()["constant"] == 2.5
    assert not constant.trainable_weights


def test_constraint_holds_in_training():
    model = keras.Sequential([keras.Input((6,)), tfuse.ScaleBiasAct(bias_constraint="non_neg"), keras.layers.Dense(1)])
    train(model, False, epochs=1)
    assert np.all(model.layers[0].get_weights()[1] >= 0)


@pytest.mark.parametrize("name", [n for n in [*PLAIN, "hard_silu", "swish"] if hasattr(keras.activations, n)])
def test_activation_may_be_a_keras_function(name):
    function = getattr(keras.activations, name)
    x = np.linspace(-5, 5, 44, dtype="float32").reshape(4, 11)
    got = tfuse.ScaleBiasAct(function, use_scale=False, use_bias=False)(x)
    np.testing.assert_allclose(got, keras.ops.convert_to_numpy(function(tf.constant(x))), atol=1e-5)


def test_activation_is_not_guessed_from_a_name():
    """A function that only shares its name with one of the table must not be taken for it."""
    x = np.linspace(-3, 3, 12, dtype="float32").reshape(4, 3)

    def relu(x):
        return -x

    for function in (relu, tfuse.gelu, tfuse.relu, keras.ops.gelu):
        try:
            layer = tfuse.ScaleBiasAct(function)
        except ValueError as error:
            assert "activation must be one of" in str(error)
            continue
        np.testing.assert_allclose(layer(x), keras.ops.convert_to_numpy(function(x)), atol=1e-6)


@pytest.mark.parametrize("function", [tfuse.gelu, tfuse.mish])
def test_function_as_the_activation_of_a_stock_layer(function, tmp_path):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation=function)])
    x, _ = data()
    want = model.predict(x, verbose=0)
    np.testing.assert_allclose(want, function(x @ model.layers[0].get_weights()[0]), rtol=1e-2, atol=1e-2)  # TF32
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "model.keras").predict(x, verbose=0), want, atol=1e-5)


@pytest.mark.parametrize("use_scale, use_bias, names", [(True, False, ["scale"]), (False, True, ["bias"]),
                                                        (False, False, [])])
def test_scale_and_bias_are_optional(use_scale, use_bias, names):
    layer = tfuse.ScaleBiasAct("relu", use_scale, use_bias, scale_initializer="ones", bias_initializer="ones")
    y = layer(tf.constant([[-2.0, 3.0]]))
    assert [w.name for w in layer.weights] == names
    assert np.array_equal(y, [[0.0, 3.0 + use_bias]])


def test_mask_passes_through():
    tokens = np.array([[3, 1, 0, 0], [2, 2, 2, 0]])
    model = keras.Sequential([
        keras.Input((4,), dtype="int32"), keras.layers.Embedding(5, 3, mask_zero=True), tfuse.ScaleBiasAct("relu"),
        tfuse.AddConstant(1.0), keras.layers.GlobalAveragePooling1D()])
    table = model.layers[0].get_weights()[0]
    want = [np.mean(np.maximum(table[row[row > 0]], 0) + 1, axis=0) for row in tokens]
    np.testing.assert_allclose(model.predict(tokens, verbose=0), want, rtol=1e-5)


@pytest.mark.parametrize("layer", [tfuse.AddConstant, tfuse.ScaleBiasAct])
def test_shapes(layer):
    layer = layer()
    assert tuple(layer.compute_output_shape((None, 5, 3))) == (None, 5, 3)
    x = keras.Input((None, 3))
    model = keras.Model(x, layer(x))
    assert model.output_shape == (None, None, 3)
    for shape in [(1, 1, 3), (4, 7, 3), (0, 2, 3)]:
        assert np.array_equal(model(tf.ones(shape)), np.ones(shape))


def test_channels_must_be_known():
    with pytest.raises(ValueError, match="ScaleBiasAct: the last axis of the input must be known"):
        tfuse.ScaleBiasAct()(keras.Input((3, None)))


@pytest.mark.parametrize("call, want", [
    (lambda x: tfuse.gelu(x), lambda x: keras.ops.gelu(x)),
    (lambda x: tfuse.gelu(x, approximate=False), lambda x: keras.ops.gelu(x, approximate=False)),
    (lambda x: tfuse.square(x), lambda x: x * x),
    (lambda x: tfuse.add_constant(x, 1.5), lambda x: x + 1.5),
    (lambda x: tfuse.add_constant(x, np.float64(1.5)), lambda x: x + 1.5),
    (lambda x: tfuse.scale_bias_act(x, 2.0, None, "relu"), lambda x: keras.ops.relu(x * 2)),
    (lambda x: tfuse.scale_bias_act(x, np.arange(3.0), np.ones(3), "tanh"),
     lambda x: keras.ops.tanh(x * np.arange(3, dtype="float32") + 1)),
    (lambda x: tfuse.scale_bias_act(x, bias=[1.0, 2.0, 3.0]), lambda x: x + np.array([1, 2, 3], "float32")),
    (lambda x: tfuse.scale_bias_act(x, keras.ops.mean(x), x[0, 0]), lambda x: x * keras.ops.mean(x) + x[0, 0]),
], ids=["gelu", "gelu by erf", "square", "add number", "add NumPy number", "one scale", "arrays", "list",
        "symbolic operands"])
def test_functions_on_symbolic_tensors(call, want, tmp_path):
    x = keras.Input((None, 3))
    y = call(x)
    assert y.shape == x.shape and y.dtype == x.dtype
    model = keras.Model(x, y)
    value = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    expected = keras.ops.convert_to_numpy(want(tf.constant(value)))
    np.testing.assert_allclose(model.predict(value, verbose=0), expected, atol=1e-5)
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "model.keras")(value), expected, atol=1e-5)


def test_wrong_symbolic_tensors():
    with pytest.raises(ValueError, match="scale must have 3 values, .* got 4"):
        tfuse.scale_bias_act(keras.Input((3,)), np.ones(4, "float32"))
    with pytest.raises((TypeError, ValueError), match="float32, float16, bfloat16"):
        tfuse.square(keras.Input((3,), dtype="int32"))


# ---- mixed precision ----


@pytest.mark.parametrize("policy, compute", [("float32", "float32"), ("mixed_float16", "float16"),
                                             ("mixed_bfloat16", "bfloat16"), ("float64", "float64")])
def test_precision(policy, compute):
    x = tf.constant(np.random.default_rng(0).normal(size=(64, 5)))
    results = []
    for layers in ([tfuse.ScaleBiasAct("silu", dtype=policy), tfuse.AddConstant(0.5, dtype=policy)],
                   [StockScaleBiasAct("silu", dtype=policy), keras.layers.Rescaling(1.0, 0.5, dtype=policy)]):
        layers[0].build((None, 5))
        layers[0].set_weights([np.linspace(0.5, 2, 5), np.linspace(-1, 1, 5)])
        with tf.GradientTape() as tape:
            y = layers[1](layers[0](x))
            loss = tf.reduce_mean(tf.cast(y, tf.float64)**2)
        gradients = tape.gradient(loss, [w.value for w in layers[0].trainable_weights])
        results.append([y, *gradients])
        assert y.dtype == compute
        assert {w.dtype for w in layers[0].weights} == {"float64" if policy == "float64" else "float32"}
    epsilon = float(np.finfo(compute).eps) if compute != "bfloat16" else 2.0**-7
    for got, want in zip(*results):
        got, want = (np.asarray(tf.cast(t, tf.float64)) for t in (got, want))
        assert np.all(np.isfinite(got))
        np.testing.assert_allclose(got, want, rtol=4 * epsilon, atol=8 * epsilon)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_training_in_mixed_precision(policy):
    want = train(sequential(fused=True), False)
    keras.mixed_precision.set_global_policy(policy)
    try:
        model = sequential(fused=True)
        got = train(model, False)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert model.layers[1].compute_dtype == policy[len("mixed_"):]
    np.testing.assert_allclose(got, want, rtol=0.05)


# ---- a constant that changes ----


def test_constant_changes_without_a_new_trace(jit):
    variable = tf.Variable(1.0)
    f = tf.function(lambda x: tfuse.add_constant(x, variable), jit_compile=jit)
    g = tf.function(lambda x, constant: tfuse.add_constant(x, constant), jit_compile=jit)
    x = tf.constant([1.0, 2.0])
    for value in (1.0, 10.0, -3.5):
        variable.assign(value)
        assert np.array_equal(f(x), x + value) and np.array_equal(g(x, tf.constant(value)), x + value)
        assert np.array_equal(tfuse.add_constant(x, value), x + value)  # a Python number, eagerly
    assert f.experimental_get_tracing_count() == g.experimental_get_tracing_count() == 1


def test_gradient_reaches_the_variable():
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tfuse.add_constant(tf.ones([2, 3]), variable)**2)
    assert float(tape.gradient(y, variable)) == 2 * 2 * 6


def test_constant_of_a_running_model(jit):
    traces = []

    class Counting(tfuse.AddConstant):
        def call(self, x):
            traces.append(x)
            return super().call(x)

    layer = Counting(1.0)
    model = keras.Sequential([keras.Input((2,)), layer])
    model.compile("sgd", "mse", jit_compile=jit)
    x = np.zeros((4, 2), "float32")
    assert np.all(model.predict(x, verbose=0) == 1)
    before = len(traces)
    layer.set_constant(-7.5)
    assert np.all(model.predict(x, verbose=0) == -7.5) and len(traces) == before

    change = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: layer.set_constant(epoch))
    history = model.fit(x, x, epochs=3, batch_size=4, callbacks=[change], verbose=0).history
    assert history["loss"] == [0.0, 1.0, 4.0]
    assert len(traces) <= before + 2


# ---- saving ----


@pytest.mark.parametrize("make", [sequential, functional])
def test_keras_file(make, tmp_path):
    model, (x, _) = make(fused=True), data()
    train(model, False, epochs=1)
    next(layer for layer in model.layers if isinstance(layer, tfuse.AddConstant)).set_constant(3.0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert np.array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    assert [w.name for w in loaded.weights] == [w.name for w in model.weights]
    assert loaded.to_json() == model.to_json()


class Module(tf.Module):
    def __init__(self):
        self.constant = tf.Variable(0.5)
        self.scale = tf.Variable([1.0, -2.0, 3.0, 0.5, 1.5, -1.0])

    def __call__(self, x):
        return tfuse.add_constant(tfuse.scale_bias_act(x, self.scale, activation="gelu"), self.constant)

    @tf.function(input_signature=[tf.TensorSpec([None, 6])])
    def graph(self, x):
        return self(x)

    @tf.function(input_signature=[tf.TensorSpec([48, 6])], jit_compile=True)
    def xla(self, x):
        return self(x)

    @tf.function(input_signature=[tf.TensorSpec([None, 6])])
    def gradient(self, x):
        with tf.GradientTape() as tape:
            y = self(x)
        return tape.gradient(y, self.scale)


LOAD = """
import sys
import numpy as np
import tfuse
import tensorflow as tf

folder, functions = sys.argv[1], sys.argv[2:]
x = tf.constant(np.load(folder + "/x.npy"))
results = {}
module = tf.saved_model.load(folder + "/module")
for name in functions:
    results[name] = getattr(module, name)(x)
module.constant.assign(-20.0)
results["module changed"] = module.graph(x)
model = tf.saved_model.load(folder + "/model")
results["model"] = model.serve(x)
constant, = [v for v in model.variables if v.shape.rank == 0]
constant.assign(-20.0)
results["model changed"] = model.serve(x)
np.savez(folder + "/results.npz", **results)
"""


def test_saved_models_in_a_new_process(tmp_path):
    model, (x, _) = sequential(fused=True), data()
    module = Module()
    functions = ["graph", "gradient"] + ["xla"] * (not _library.xla_status())
    want = {name: getattr(module, name)(x) for name in functions}
    want["model"] = model.predict(x, verbose=0)
    np.save(tmp_path / "x.npy", x)
    if _library.xla_status():
        module.xla = None  # there the plain composition would be saved, which is not ours to test
    tf.saved_model.save(module, str(tmp_path / "module"))
    model.export(str(tmp_path / "model"))

    module.constant.assign(-20.0)
    want["module changed"] = module.graph(x)
    model.layers[2].set_constant(-20.0)
    want["model changed"] = model.predict(x, verbose=0)

    done = new_process(LOAD, tmp_path, *functions)
    assert done.returncode == 0, done.stdout
    got = np.load(tmp_path / "results.npz")
    assert sorted(got.files) == sorted(want)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert not np.allclose(want["model"], want["model changed"])
