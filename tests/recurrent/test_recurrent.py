"""Recurrent layers beyond their cases: what is not given, Keras's layers with all their options, and what is left to Keras."""

import contextlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import two_streams

import tfuse
from conftest import since_now
from tfuse import cases

RECURRENT = "Recurrence", "Rnn"  # the latter by cuDNN, where that is faster
LAYERS = {"lstm": (keras.layers.LSTM, tfuse.LSTM), "gru": (keras.layers.GRU, tfuse.GRU)}


def draw(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape) / 2, tf.float32)


@pytest.mark.parametrize("gates, function", [(4, tfuse.lstm), (3, tfuse.gru)], ids=["lstm", "gru"])
def test_what_is_not_given(device, gates, function):
    """States and biases are zeros then, and all steps count."""
    x, kernel, recurrent_kernel = draw(5, 4, 3), draw(3, 7 * gates, seed=1), draw(7, 7 * gates, seed=2)
    nothing = {"h": tf.zeros([5, 7]), "bias": tf.zeros([7 * gates]), "mask": tf.ones([5, 4], tf.bool)}
    nothing.update({"c": tf.zeros([5, 7])} if gates == 4 else {"recurrent_bias": tf.zeros([7 * gates])})
    results = []
    for options in ({}, nothing):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel, recurrent_kernel])
            y = function(x, kernel, recurrent_kernel, **options)
        results.append([*y, *tape.gradient(y, [x, kernel, recurrent_kernel])])
    for bare, given in zip(*results):
        assert np.allclose(bare, given, atol=1e-6)


@pytest.mark.parametrize("function", [tfuse.lstm, tfuse.gru], ids=["lstm", "gru"])
def test_sequences_alone(device, function):
    """A sequence's results are the same bits whatever other sequences there are, and however many; and what is masked may be
    anything."""
    gates = 4 if function is tfuse.lstm else 3
    x, kernel, recurrent_kernel = draw(70, 6, 5), draw(5, 33 * gates, seed=1), draw(33, 33 * gates, seed=2)
    lengths = np.random.default_rng(3).integers(0, 7, [70])
    mask = np.arange(6) < lengths[:, None]
    clean, dirty = (tf.where(mask[..., None], x, other) for other in (0.0, np.nan))
    gradients = []
    for some in (clean, dirty):
        with tf.GradientTape() as tape:
            tape.watch(some)
            y = function(some, kernel, recurrent_kernel, mask=mask)[0]
        gradients.append((y, tf.where(mask[..., None], tape.gradient(y, some), 0.0)))
    assert np.array_equal(*(y for y, _ in gradients)) and np.array_equal(*(g for _, g in gradients))
    if "CPU" in device:
        alone = function(clean[41:42], kernel, recurrent_kernel, mask=mask[41:42])[0]
        assert np.array_equal(gradients[0][0][41:42], alone)


# ---- Keras's layers ----

_OPTIONS = [
    {"return_sequences": True},
    {"go_backwards": True, "return_state": True},
    {"stateful": True, "use_bias": False},
    {"activation": "relu", "recurrent_activation": "tanh", "unroll": True},
    {"return_sequences": True, "zero_output_for_mask": True, "dtype": "mixed_bfloat16"},
    {"return_sequences": True, "reset_after": False},
    {"use_bias": False, "reset_after": False, "go_backwards": True},
]


@pytest.mark.parametrize("options", _OPTIONS, ids=lambda options: " ".join(options))
@pytest.mark.parametrize("cell", LAYERS)
def test_as_in_keras(device, cell, options):
    """With masks that have holes and sequences without steps, eagerly and compiled by XLA; weights are Keras's."""
    if cell == "lstm" and "reset_after" in options:
        pytest.skip("an option of the GRU")
    options = {"units": 6, "bias_initializer": "random_normal", **options}
    stock, ours = (layer(**options, use_cudnn=False) for layer in LAYERS[cell])
    x, mask = draw(4, 5, 3), tf.constant(np.random.default_rng(1).random([4, 5]) < [[0.6], [0.6], [0], [1]])
    states = [draw(4, 6, seed=2 + i) for i in range(2 if cell == "lstm" else 1)]
    for layer in (stock, ours):
        layer.build(x.shape)
    ours.set_weights(stock.get_weights())
    step = lambda layer: layer(x, mask=mask, initial_state=states)
    tolerance = 2e-2 if "dtype" in options else 1e-5
    for run in (step, tf.function(step, jit_compile=True)):
        results = run(ours), step(stock)
        tf.nest.assert_same_structure(*results)
        for got, want in zip(*map(tf.nest.flatten, results)):
            assert got.dtype == want.dtype and np.allclose(tf.cast(got, "float32"), tf.cast(want, "float32"), atol=tolerance)
    assert any(row["op"] == "Recurrence" for row in tfuse.explain())


_MASKS = {"right": [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], "left": [[0, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]],
          "holes": [[1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]}
_WRAPPED = {
    "Bidirectional": lambda: keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True, use_cudnn=False)),
    "Bidirectional, states": lambda: keras.layers.Bidirectional(keras.layers.GRU(4, return_state=True, use_cudnn=False),
                                                                merge_mode="sum"),
    "RNN": lambda: keras.layers.RNN(keras.layers.LSTMCell(5), return_state=True, unroll=True),
    "stacked": lambda: keras.layers.RNN([keras.layers.LSTMCell(5), keras.layers.GRUCell(4, activation="relu")],
                                        return_sequences=True, return_state=True, go_backwards=True),
    "stateful": lambda: keras.layers.RNN([keras.layers.GRUCell(3), keras.layers.GRUCell(4)], stateful=True),
}


@pytest.mark.parametrize("mask", [None, *_MASKS])
@pytest.mark.parametrize("made", _WRAPPED)
def test_wrapped_layers(made, mask):
    """Under enable(), eagerly and compiled by XLA, twice, as layers may have states that stay: what Keras gives."""
    x, mask = draw(3, 4, 2), None if mask is None else tf.cast(_MASKS[mask], tf.bool)
    layer, ran = _WRAPPED[made](), since_now()
    layer.build(x.shape)
    step = lambda: layer(x, mask=mask)

    def twice(run):
        for state in keras.tree.flatten(getattr(layer, "states", None) or []):
            state.assign(0 * state.value)
        return run(), run()

    want = twice(step)
    with tfuse.enabled():
        got = [twice(run) for run in (step, tf.function(step, jit_compile=True))]
    assert any(row["op"] in RECURRENT for row in ran())
    for some in got:
        tf.nest.assert_same_structure(some, want)
        for a, b in zip(tf.nest.flatten(some), tf.nest.flatten(want)):
            assert np.allclose(a, b, atol=1e-5)


def test_first_states_of_a_stack():
    """A state that is in no list comes back in none."""
    layer, x = keras.layers.RNN([keras.layers.LSTMCell(5), keras.layers.GRUCell(4)], return_state=True), draw(3, 4, 2)
    states = [[draw(3, 5), draw(3, 5)], draw(3, 4)]
    want, ran = layer(x, initial_state=states), since_now()
    with tfuse.enabled():
        got = layer(x, initial_state=states)
    assert any(row["op"] in RECURRENT for row in ran(when="ran"))
    tf.nest.assert_same_structure(got, want)
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want)):
        assert np.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("layer, given, error", [(keras.layers.LSTM, 1, IndexError), (keras.layers.GRU, 2, None)])
def test_first_states_that_are_too_few_or_too_many(layer, given, error):
    """Keras takes the first of too many, and says that there are too few."""
    made, x, states, ran = layer(5), draw(3, 4, 2), [draw(3, 5) for _ in range(given)], since_now()
    with pytest.raises(error) if error else contextlib.nullcontext():
        want = made(x, initial_state=states)
    with tfuse.enabled(), pytest.raises(error) if error else contextlib.nullcontext():
        assert np.allclose(made(x, initial_state=states), want, atol=1e-6)
    assert any("not as many as the cells have" in row["why"] for row in ran())


def test_activations_that_keras_takes_for_its_own():
    """jit_compile=True stays on for them: were they left to Keras, it would call cuDNN where XLA cannot."""
    layer, x, ran = keras.layers.LSTM(5, activation=tf.tanh, recurrent_activation=keras.ops.sigmoid), draw(3, 4, 2), since_now()
    want = layer(x)
    with tfuse.enabled():
        assert np.allclose(layer(x), want, atol=1e-5) and any(row["op"] in RECURRENT for row in ran(when="ran"))


@pytest.mark.parametrize("cell", [keras.layers.LSTMCell, keras.layers.GRUCell])
def test_a_stack_of_one(cell):
    """Its states are in a list of their own, as those of each cell of a stack are."""
    layer, x = keras.layers.RNN([cell(5)], return_state=True), draw(3, 4, 2)
    want = layer(x)
    with tfuse.enabled():
        got = layer(x)
    tf.nest.assert_same_structure(got, want)
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want)):
        assert np.allclose(a, b, atol=1e-5)


def test_files_and_names():
    layer = tfuse.LSTM(4, return_sequences=True)
    model = keras.Sequential([keras.Input([3, 2]), keras.layers.Bidirectional(layer), tfuse.GRU(3)])
    copy = keras.Sequential.from_config(model.get_config())
    copy.set_weights(model.get_weights())
    assert isinstance(copy.layers[0].backward_layer, tfuse.LSTM) and isinstance(copy.layers[1], tfuse.GRU)
    x = draw(2, 3, 2)
    assert np.array_equal(copy(x), model(x))


def test_fit():
    """A language model of two layers learns the same as Keras's, masks by the way, which have holes: Keras's cuDNN refuses them."""
    ids = np.random.default_rng(0).integers(0, 9, [8, 6])
    losses = []
    for enabled in (False, True):
        keras.utils.set_random_seed(1)
        lstm = keras.layers.LSTM(6, return_sequences=True, use_cudnn=False)
        gru = keras.layers.Bidirectional(keras.layers.GRU(4, use_cudnn=False))
        model = keras.Sequential([keras.Input([None], dtype="int32"), keras.layers.Embedding(9, 5, mask_zero=True), lstm, gru,
                                  keras.layers.Dense(9)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=enabled)
        with tfuse.enabled() if enabled else tf.name_scope("stock"):
            losses.append(model.fit(ids, ids[:, -1], batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"])
    assert np.allclose(*losses, rtol=1e-4)


def test_jit_compile():
    """Keras turns it off for layers that it may run by cuDNN, where there is a GPU; what takes their place may be compiled."""
    def compiled(layer, asked, use_cudnn="auto"):
        model = keras.Sequential([keras.Input([3, 2]), layer])
        for inner in (layer.forward_layer, layer.backward_layer) if hasattr(layer, "forward_layer") else (layer,):
            inner.supports_jit, inner.use_cudnn = False, use_cudnn
        model.compile("sgd", "mse", jit_compile=asked)
        return model.jit_compile

    with tfuse.enabled():
        assert compiled(keras.layers.LSTM(3), True) and compiled(keras.layers.Bidirectional(keras.layers.GRU(3)), True)
        assert not compiled(keras.layers.LSTM(3), "auto")
        with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
            assert not compiled(keras.layers.LSTM(3), True, use_cudnn=True)
        with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
            layer = keras.layers.LSTM(3)
            layer.cell = _Formula(3)  # what takes Keras's place does not take this one's
            assert not compiled(layer, True)
    assert compiled(tfuse.LSTM(3), True)
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        assert not compiled(keras.layers.GRU(3), True)


@pytest.mark.parametrize("options", [{"recurrent_dropout": 0.4}, {"dropout": 0.4}, {"dropout": 0.4, "recurrent_dropout": 0.4},
                                     {"dropout": 1.0, "recurrent_dropout": 1.0}], ids=str)
@pytest.mark.parametrize("cell", [*LAYERS, "gru, reset before"])
def test_dropout(device, cell, options):
    """Of inputs and of states, by the factors that Keras draws for all steps of a call. At a rate of 1 cells drop none."""
    if 1.0 in options.values():
        try:
            keras.random.dropout(draw(1), 1.0)
        except ValueError:
            pytest.skip("older releases of Keras refuse it")
    cell, options = cell.split(",")[0], {**options, **({"reset_after": False} if "," in cell else {})}
    stock, ours = (layer(6, return_sequences=True, seed=3, use_cudnn=False, **options) for layer in LAYERS[cell])
    x = draw(4, 5, 3)
    results = []
    for layer in (stock, ours):
        layer.build(x.shape)
        layer.set_weights(stock.get_weights())
        with tf.GradientTape() as tape:
            y = layer(x, training=True)
        results.append([y, *tape.gradient(y, [w.value for w in layer.trainable_weights])])
    assert np.allclose(results[0][0], stock(x), atol=1e-3) == (1.0 in options.values())
    for got, want in zip(*results):
        assert np.allclose(got, want, atol=1e-5)


def test_left_to_keras():
    with tfuse.enabled():
        keras.layers.GRU(3, activation="exponential")(draw(2, 4, 3), training=True)
        assert any("exponential is not in the" in row["why"] for row in tfuse.explain())


class _Formula(keras.layers.LSTMCell):
    """Another one, behind Keras's call()."""

    def _compute_carry_and_output_fused(self, z, c_tm1):
        c, o = super()._compute_carry_and_output_fused(z, c_tm1)
        return c, o + c


class _Stack(keras.layers.StackedRNNCells):
    def call(self, inputs, states, **options):
        y, states = super().call(inputs, states, **options)
        return 2 * y, states


_OTHERS = {
    "SimpleRNNCell": lambda: [keras.layers.LSTMCell(3), keras.layers.SimpleRNNCell(3)],
    "_Formula": lambda: _Formula(3),
    "_Stack": lambda: _Stack([keras.layers.GRUCell(3), keras.layers.LSTMCell(3)]),
}


@pytest.mark.parametrize("name", _OTHERS)
def test_other_cells_are_left_to_keras(name):
    """Also classes made of Keras's cells, which may compute something else."""
    layer, x, ran = keras.layers.RNN(_OTHERS[name]()), draw(2, 4, 3), since_now()
    want = layer(x)
    with tfuse.enabled():
        assert np.array_equal(layer(x), want)
    assert ["its cell is a %s," % name in row["why"] for row in ran(op="RNN.inner_loop")] == [True]


def test_dropout_of_older_cells_is_left_to_keras():
    """Before 3.8 they have one mask of the state for all gates."""
    layer, x, ran = keras.layers.LSTM(3, recurrent_dropout=0.5), draw(4, 4, 3), since_now()
    layer.build(x.shape)
    vars(layer.cell).pop("dropout_mask_count", None)
    with tfuse.enabled():
        layer(x, training=True)
        assert all("before Keras 3.8" in row["why"] for row in ran(kernel="Keras's own code")) and not ran(op="Recurrence")
        layer(x)
    assert ran(op="Recurrence") or ran(op="Rnn")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("gates, function", [(4, tfuse.lstm), (3, tfuse.gru)], ids=["lstm", "gru"])
def test_ways(device, gates, function, dtype):
    """A mask that has all steps chooses the other way: without it, on a GPU, that is cuDNN for few sequences of float32 and
    float16, whose weights are in another order. Sizes are those at which it may keep them between steps."""
    batch = 3 if dtype == "float32" else 16
    x, weights = draw(batch, 5, 128), [draw(128, 128 * gates, seed=1) / 8, draw(128, 128 * gates, seed=2) / 8]
    weights += [draw(128 * gates, seed=3)] + [draw(128 * gates, seed=4)] * (gates == 3)
    states = [draw(batch, 128, seed=5 + i) for i in range(gates - 2 if gates == 4 else 1)]
    inputs, ran = [tf.cast(t, dtype) for t in (x, *weights, *states)], since_now()
    for compiled in (False, True):
        results = []
        for mask in (None, tf.ones([batch, 5], tf.bool)):
            def step(*inputs):
                with tf.GradientTape() as tape:
                    tape.watch(inputs)
                    y = function(*inputs, mask=mask)
                return [*y, *tape.gradient(y, inputs)]
            results.append(tf.function(step, jit_compile=compiled)(*inputs))
            if "GPU" in device and mask is None and dtype != "float16":
                served = [row for row in ran(when="ran") if row["op"].startswith("Rnn")]
                kernel = "cuDNN recurrent layer" if dtype == "float32" else "recurrence_persistent"
                assert len(served) >= 2 and all(kernel in row["kernel"] for row in served), served
        for a, b in zip(*results):
            scale = np.max(np.abs(tf.cast(b, "float32")))
            bound = {"float32": 5e-3, "float16": 2e-2, "bfloat16": 1e-1}[dtype]  # float32 by TF32, on a GPU
            assert np.allclose(tf.cast(a, "float32") / scale, tf.cast(b, "float32") / scale, atol=bound)


@pytest.mark.parametrize("timed", cases.all_timed()["rnn"], ids=lambda timed: timed.name)
def test_what_is_timed_computes_what_its_rival_does(device, timed):
    *inputs, dy = timed.case.tensors((4, 5, 6, 7), "float32")
    options = timed.options[0]
    for got, want in zip(*(timed.case.step(f, inputs, dy, options) for f in (timed.case.run, timed.rival))):
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)  # products by TF32, on a GPU


# Units, sequences and steps of the persistent kernels.
_SIZES = [(512, 64, 6), (512, 1, 33), (1024, 8, 5), (96, 70, 7), (40, 3, 33)]


@pytest.mark.parametrize("options", ["usual", "elu", "both", "scaled"])
@pytest.mark.parametrize("gates, function", [(4, tfuse.lstm), (3, tfuse.gru)], ids=["lstm", "gru"])
@pytest.mark.parametrize("units, batch, steps", _SIZES)
def test_persistent(device, units, batch, steps, gates, function, options):
    """On a GPU all steps are one launch, whose blocks wait for each other: it is the one that runs, forward and back, with the
    results that float64 has, and the same bits every time."""
    rng, weights = np.random.default_rng(3), [draw(3, units * gates, seed=1), draw(units, units * gates, seed=2) / units ** 0.5]
    inputs = [draw(batch, steps, 3), *weights, draw(batch, units, seed=4), draw(batch, steps, units, seed=5)]
    mask, scale = rng.random([batch, steps]) < 0.8, 1.25 * (rng.random([batch, gates * units]) < 0.8)

    def run(dtype):
        x, kernel, recurrent_kernel, h, dy = (tf.cast(t, dtype) for t in inputs)
        how = {"usual": {}, "elu": {"activation": "elu"}, "both": {"activation": "sigmoid", "recurrent_activation": "tanh"},
               "scaled": {"recurrent_scale": tf.cast(scale, dtype)}}[options]
        with tf.GradientTape() as tape:
            tape.watch([x, recurrent_kernel, h])
            y = function(x, kernel, recurrent_kernel, h=h, mask=mask, **how)[0]
        return [y, *tape.gradient(y, [x, recurrent_kernel, h], dy)]

    got = run("float32")
    if "GPU" in device:
        ran = [row for row in tfuse.explain() if row["op"].startswith("Recurrence") and row["when"] == "ran"][-2:]
        assert all("recurrence_persistent" in row["kernel"] for row in ran) and len({row["op"] for row in ran}) == 2, ran
        for _ in range(10):
            assert all(np.array_equal(a, b) for a, b in zip(got, run("float32")))
    with tf.device("CPU:0"):
        want = run("float64")
    for a, b in zip(got, want):
        assert np.max(np.abs(a.numpy() - b.numpy())) < 3e-6 * np.max(np.abs(b))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("values", [[0, 1.25], [0.5, -0.25, 0, 2], [0]], ids=["dropout", "any", "zeros"])
def test_persistent_with_scales(device, dtype, values):
    """Those of dropout are bits in shared memory; others are read."""
    rng = np.random.default_rng(3)
    inputs = [draw(37, 6, 3), draw(3, 4 * 520, seed=1), draw(520, 4 * 520, seed=2) / 520 ** 0.5,
              tf.constant(rng.choice(values, [37, 4 * 520]), tf.float32), draw(37, 6, 520, seed=5)]
    inputs = [tf.cast(t, dtype) for t in inputs]

    def run(dtype):
        x, kernel, recurrent_kernel, scale, dy = (tf.cast(t, dtype) for t in inputs)
        with tf.GradientTape() as tape:
            tape.watch([x, recurrent_kernel])
            y = tfuse.lstm(x, kernel, recurrent_kernel, recurrent_scale=scale)[0]
        return [y, *tape.gradient(y, [x, recurrent_kernel], dy)]

    got = run(dtype)
    with tf.device("CPU:0"):
        want = run("float64")
    for a, b in zip(got, want):
        bound = {"float32": 3e-6, "float16": 1e-2, "bfloat16": 6e-2}[dtype]
        assert np.max(np.abs(tf.cast(a, "float64") - b)) < bound * max(np.max(np.abs(b)), 1e-3)


def test_two_at_once(device):
    """Two launches whose blocks wait for each other, on two streams: neither takes multiprocessors that the other waits for."""
    if "CPU" in device:
        two_streams.run(["CPU:0", "CPU:1"], units=64, steps=8)
    else:
        subprocess.run([sys.executable, two_streams.__file__], check=True, timeout=300)
