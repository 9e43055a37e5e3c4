"""tfuse.batch_norm and its layer beside Keras's own: statistics of large means, every argument, masks, strategies, files; and
what its gradient is given: two tensors for dy, signs for y."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import ROUTES, since_now, skip_broken_xla
from tfuse._core._op import sized
from tfuse.convolution import batch_norm as module

OPTIONS = {
    "plain": {},
    "channels first": {"axis": 1},
    "an axis between": {"axis": 2, "momentum": 0.9, "epsilon": 1e-5},
    "no scale": {"scale": False},
    "no center": {"center": False},
    "bare": {"scale": False, "center": False, "momentum": 0.5},
    "synchronized": {"synchronized": True},
    "renorm": {"renorm": True, "renorm_clipping": {"rmax": 2.0, "rmin": 0.5, "dmax": 1.0}},
}
POLICIES = {"float32": ("float32", 2e-5), "mixed_bfloat16": ("bfloat16", 2e-2), "mixed_float16": ("float16", 4e-3)}


def normal(*shape, seed=0, dtype="float32"):
    return tf.cast(np.random.default_rng(seed).normal(size=shape) * 2 + 1, dtype)


def close(got, want, tolerance):
    got, want = (np.asarray(tf.cast(t, "float64")) for t in (got, want))
    assert np.max(np.abs(got - want), initial=0) <= tolerance * max(1, np.max(np.abs(want), initial=0))


def pair(options, shape, **more):
    """tfuse's layer and Keras's, with the same weights that are not trivial."""
    layers = [make(**options, **more) for make in (tfuse.BatchNormalization, keras.layers.BatchNormalization)]
    for layer in layers:
        layer.build(shape)
        layer.set_weights([np.random.default_rng(i).uniform(0.5, 2, w.shape) for i, w in enumerate(layer.weights)])
    return layers


def step_of(layer, dy, **call):
    """Of x: the result and all gradients. The running statistics are the layer's."""
    weights = [w.value for w in layer.trainable_weights]

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, **call)
            loss = tf.reduce_sum(tf.cast(y, "float32") * dy)
        return [y, *tape.gradient(loss, [x, *weights])]

    return step


def compare(layers, x, route, tolerance, *trainings, **call):
    """After one call for each of `trainings`. Keras's own layer is called eagerly, whatever the route."""
    dy = normal(*x.shape, seed=9)
    ways = list(zip((route, ROUTES["eager"]), layers))
    steps = {training: [way(step_of(layer, dy, training=training, **call)) for way, layer in ways] for training in trainings}
    for training in trainings:
        for got, want in zip(*(step(x) for step in steps[training]), strict=True):
            assert got.dtype == want.dtype
            close(got, want, tolerance)
        for got, want in zip(*(layer.weights for layer in layers), strict=True):
            assert got.dtype == want.dtype
            close(got, want, 1e-5 if got.dtype == "float32" else tolerance)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", OPTIONS)
def test_layer_follows_keras(device, name, route, policy):
    if route == "xla":
        skip_broken_xla()
    compute, tolerance = POLICIES[policy]
    x = normal(6, 5, 4, 7, dtype=compute)
    layers = pair(OPTIONS[name], x.shape, dtype=policy)
    compare(layers, x, ROUTES[route], tolerance, True, False, True)


def test_frozen_layer_infers(device):
    layers = pair({}, (6, 7))
    for layer in layers:
        layer.trainable = False
    before = [w.numpy() for w in layers[0].weights]
    compare(layers, normal(6, 7), ROUTES["eager"], 2e-5, True)
    for was, now in zip(before, layers[0].weights):
        np.testing.assert_array_equal(was, now)


# All of a layer, its variables too.
DTYPES = pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-5), ("float16", 4e-3), ("bfloat16", 2e-2)])


@DTYPES
@pytest.mark.parametrize("channels", [7, 1])
@pytest.mark.parametrize("route", ["eager", "graph"])
def test_mask(device, route, channels, dtype, tolerance):
    mask, x = tf.constant(np.random.default_rng(1).random((6, 5)) < 0.6), normal(6, 5, channels, dtype=dtype)
    for training in (True, False):
        compare(pair({}, x.shape, dtype=dtype), x, ROUTES[route], tolerance, training, mask=mask)


@DTYPES
@pytest.mark.parametrize("options", [{}, {"synchronized": True}], ids=["plain", "synchronized"])
def test_layer_of_one_dtype(device, options, dtype, tolerance):
    x = normal(6, 5, 7, dtype=dtype)
    for training in (True, False):
        compare(pair(options, x.shape, dtype=dtype), x, ROUTES["graph"], tolerance, training)


def test_odd_mask():
    with pytest.raises(ValueError, match="mask provided should be one dimension less"):
        tfuse.BatchNormalization()(normal(6, 5, 7), training=True, mask=tf.ones([6, 5, 7], tf.bool))


def test_synchronized_in_a_strategy():
    """The replicas' moments are those of both batches; without it each has its own."""
    results = {}
    x = np.random.default_rng(0).normal(size=(8, 5)).astype("float32")
    for synchronized in (True, False):
        for make in (tfuse.BatchNormalization, keras.layers.BatchNormalization):
            strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
            with strategy.scope():
                layer = make(synchronized=synchronized, momentum=0.5)
                layer.build((None, 5))
            data = strategy.experimental_distribute_values_from_function(
                lambda c: tf.constant(x[4 * c.replica_id_in_sync_group:][:4]))
            y = strategy.run(tf.function(lambda x: layer(x, training=True)), [data])
            results[synchronized, make] = [*strategy.experimental_local_results(y)]
        ours, stock = (results[synchronized, make] for make in (tfuse.BatchNormalization, keras.layers.BatchNormalization))
        for got, want in zip(ours, stock, strict=True):
            close(got, want, 2e-5)
    both = np.concatenate(results[True, tfuse.BatchNormalization])
    close(both, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3), 2e-5)


@pytest.mark.parametrize("axis", [-1, 1])
def test_large_means_do_not_cancel(device, axis):
    """Where the mean is 10^4 deviations, also where the first value is far from all others."""
    rng = np.random.default_rng(0)
    x = (1e4 + rng.normal(size=(64, 6, 40))).astype("float32")
    x[0, :, 0] = x[0, 0, :6] = 0
    axes = tuple(a for a in range(3) if a != axis % 3)
    mean, variance = x.astype("float64").mean(axes), x.astype("float64").var(axes)
    zeros = tf.zeros(mean.shape)
    y, new_mean, new_variance = tfuse.batch_norm(x, None, None, zeros, zeros, True, axis=axis, momentum=0.0)
    np.testing.assert_allclose(new_mean, mean, rtol=1e-6)
    np.testing.assert_allclose(new_variance, variance, rtol=1e-5)
    wide = [-1 if a == axis % 3 else 1 for a in range(3)]
    np.testing.assert_allclose(y, (x - mean.reshape(wide)) / np.sqrt(variance + 1e-3).reshape(wide), atol=5e-3)


def test_running_statistics(device):
    """As Keras moves them; they have no gradient, and stay where there is nothing to learn from."""
    x, mean, variance = normal(9, 4), tf.constant([1.0, 2, 3, 4]), tf.constant([4.0, 3, 2, 1])
    with tf.GradientTape() as tape:
        tape.watch(x)
        _, new_mean, new_variance = tfuse.batch_norm(x, None, None, mean, variance, True)
    assert tape.gradient(new_mean, x) is None
    np.testing.assert_allclose(new_mean, mean * 0.99 + np.mean(x, 0) * 0.01, rtol=1e-6)
    np.testing.assert_allclose(new_variance, variance * 0.99 + np.var(x, 0) * 0.01, rtol=1e-6)
    for empty in (x[:0], tf.zeros([0, 4, 3]), tf.zeros([2, 4, 0])):
        y, *same = tfuse.batch_norm(empty, None, None, mean, variance, True, axis=1)
        assert y.shape == empty.shape
        np.testing.assert_array_equal(same, [mean, variance])
    _, *same = tfuse.batch_norm(x, None, None, mean, variance, False)
    np.testing.assert_array_equal(same, [mean, variance])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_statistics_of_shifted_values(device, dtype):
    """The running mean is that of x with the shift as it would have been added: rounded to the dtype of x."""
    x = tf.cast(normal(9, 4, 3), dtype)
    real = tf.float64 if dtype == "float64" else tf.float32
    old, shift = tf.zeros([4], real), tf.constant([1.001, -3.0039, 0.1, 100.3], real)
    new_mean, _, mean, _ = module._statistics(x, old, old, shift, update=1.0)
    exact = tf.cast(mean, tf.float64) + tf.cast(tf.cast(shift, dtype), tf.float64)
    np.testing.assert_allclose(new_mean, exact, rtol=1e-6 if real == tf.float32 else 1e-14)


def test_files(tmp_path):
    x = normal(4, 3, 3, 5)
    model = keras.Sequential([keras.Input((3, 3, 5)), tfuse.BatchNormalization(momentum=0.7, name="norm")])
    model(x, training=True)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert type(again.layers[0]) is tfuse.BatchNormalization
    np.testing.assert_array_equal(again(x), model(x))
    stock = keras.saving.load_model(tmp_path / "m.keras", custom_objects={
        "tfuse>BatchNormalization": keras.layers.BatchNormalization})
    close(stock(x), model(x), 2e-5)
    options = keras.layers.BatchNormalization(momentum=0.7, name="norm").get_config()
    assert tfuse.BatchNormalization(momentum=0.7, name="norm").get_config() == options


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_training_follows_keras(jit):
    if jit:
        skip_broken_xla()
    x = np.random.default_rng(0).normal(size=(48, 8, 8, 3)).astype("float32")
    losses = []
    for layers in (tfuse, keras.layers):
        keras.utils.set_random_seed(1)
        h = inputs = keras.Input((8, 8, 3))
        for strides in (1, 2):
            h = layers.BatchNormalization()(keras.layers.Conv2D(8, 3, strides, use_bias=False)(h))
            h = keras.layers.ReLU()(h)
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling2D()(h)))
        model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=jit)
        history = model.fit(x, x.mean((1, 2, 3)), batch_size=16, epochs=3, shuffle=False, verbose=0).history["loss"]
        losses.append([*history, model.evaluate(x, x.mean((1, 2, 3)), verbose=0)])
    np.testing.assert_allclose(*losses, rtol=1e-3)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("route", ["graph", "xla"])
@pytest.mark.parametrize("act", ["relu", "silu"])
@pytest.mark.parametrize("added", [False, True], ids=["alone", "added"])
def test_enable_joins_what_follows(device, route, act, added, training):
    """The activation, and the addition before it, with the batch norm; which leaves the statistics as they are."""
    if route == "xla":
        skip_broken_xla()
    x, other, results = normal(6, 5, 5, 7), normal(6, 5, 5, 7, seed=3), []
    for enabled in (True, False):
        layer = keras.layers.BatchNormalization()
        layer.build(x.shape)
        layer.set_weights([np.random.default_rng(i).uniform(0.5, 2, w.shape) for i, w in enumerate(layer.weights)])

        def step(x, other):
            with tf.GradientTape() as tape:
                tape.watch([x, other])
                y = layer(x + 0, training=training)
                y = keras.activations.get(act)(keras.layers.Add()([y, other + 0]) if added else y)
                loss = tf.reduce_sum(y * normal(*x.shape, seed=9))
            wanted = [x, *([other] if added else []), layer.gamma.value, layer.beta.value]
            return [y, *tape.gradient(loss, wanted)]

        if enabled:
            told = since_now()
            with tfuse.enabled():
                got = ROUTES[route](step)(x, other)
            why = "%s of a batch norm%s" % (act, " and another tensor" * added)
            assert why in [row["why"] for row in told(route="joined by looking back")]
            if route == "graph":
                assert sum(row["calls"] for row in told(when="ran") if row["op"] in ("BatchNorm", "FrozenBatchNorm")) == 1
        else:
            got = ROUTES[route](step)(x, other)
        results.append([*got, *layer.weights])
    for got, want in zip(*results, strict=True):
        close(got, want, 2e-5)


# ---- a gradient that comes as two tensors ----


def parts_of_gradient(x, dtype, kept, seed=5):
    """dy and dy_more, x and all that belongs to the channels, and what was kept: an output of relu, or None."""
    channels = x.shape[1]
    dy, more = (normal(*x.shape, seed=seed + i, dtype=dtype) for i in range(2))
    kept = tf.nn.relu(normal(*x.shape, seed=seed + 2, dtype=dtype) - 1) if kept else None
    real = "float64" if dtype == "float64" else "float32"
    weights = [tf.constant(np.random.default_rng(i).uniform(0.5, 2, channels), real) for i in range(4)]
    return dy, more, [x, *weights, kept]


def differentiate(op, dy, rest, more, by_signs=False):
    *rest, kept = rest
    if op is module._frozen_grad:
        return op(dy, *rest, kept, more, activation="relu")
    kept, signs = (None, module._signs(kept)) if by_signs else (kept, None)
    return op(dy, *rest, kept, more, signs, activation="relu")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(37, 5, 1), (64, 24, 1), (6, 7, 9), (2, 3000, 1), (3, 4, 1100), (0, 4, 3)])
@pytest.mark.parametrize("op, kept", [("_grad", "kept"), ("_grad", "signs"), ("_grad", ""), ("_frozen_grad", "kept"),
                                      ("_frozen_grad", "")])
def test_gradient_of_two_tensors(device, op, kept, shape, dtype):
    """What it would be of their sum in float64: with an error of at most twice that of adding them first, in dtype."""
    compute = functools.partial(differentiate, getattr(module, op), by_signs=kept == "signs")
    dy, more, rest = parts_of_gradient(normal(*shape, dtype=dtype), dtype, kept)
    wide = lambda t: None if t is None else tf.cast(t, "float64")
    exact = compute(wide(dy) + wide(more), [*map(wide, rest)], None)
    both, first = compute(dy, rest, more), compute(dy + more, rest, None)
    step = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}[dtype]
    for got, naive, want in zip(both, first, exact, strict=True):
        assert got.dtype == naive.dtype and got.shape == naive.shape == want.shape
        error, as_naive = (np.max(np.abs(wide(t) - want), initial=0) for t in (got, naive))
        assert error <= 2 * as_naive + 2 * step * np.max(np.abs(want), initial=0)


@pytest.mark.parametrize("by_signs", [False, True], ids=["kept", "signs"])
@pytest.mark.parametrize("route", ROUTES)
def test_gradient_of_two_tensors_on_every_route(device, route, by_signs):
    if route == "xla":
        skip_broken_xla()
    dy, more, rest = parts_of_gradient(normal(6, 8, 5), "float32", True)
    rest[3:5] = tf.nn.moments(rest[0], [0, 2])  # x's own: a composition, as XLA has it where it lacks the op, computes them
    results = [ROUTES[route](lambda dy, more: differentiate(module._grad, dy, rest, more, by_signs))(dy, more),
               differentiate(module._grad, dy + more, rest, None)]
    for got, want in zip(*results, strict=True):
        close(got, want, 2e-6)


def test_gradient_refuses_another_shape(device):
    dy, more, rest = parts_of_gradient(normal(4, 3, 2), "float32", False)
    for op in (module._grad, module._frozen_grad):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError),
                           match=r"dy_more must have the shape of x, \[4, 3, 2\], got \[4, 2, 3\]"):
            differentiate(op, dy, rest, tf.reshape(more, [4, 2, 3]))
        with pytest.raises(ValueError, match="dy_more must be float32 like dy, got float16"):
            differentiate(op, dy, rest, tf.cast(more, "float16"))


def residual_model(blocks):
    """As ResNet has it: each sum is read by the next convolution, and by the next sum."""
    h = inputs = keras.Input((6, 6, 8))
    h = keras.layers.ReLU()(keras.layers.BatchNormalization()(h))
    for _ in range(blocks):
        z = keras.layers.BatchNormalization()(keras.layers.Conv2D(8, 3, padding="same", use_bias=False)(h))
        h = keras.layers.ReLU()(keras.layers.Add()([z, h]))
    return keras.Model(inputs, h)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_sums_of_gradients_are_left_without_a_reader(device):
    """In a Keras model, too: all batch norms but the last are read twice, and take both gradients as they are."""
    blocks, x, dy = 3, normal(4, 6, 6, 8), normal(4, 6, 6, 8, seed=9)
    keras.utils.set_random_seed(1)
    model = residual_model(blocks)
    weights = [w.value for w in model.trainable_weights]

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) * dy)
        return tape.gradient(loss, weights)

    start, results, readers = model.get_weights(), [], []
    for enabled in (True, False):
        model.set_weights(start)
        with tfuse.enabled() if enabled else contextlib.nullcontext():
            function = tf.function(step)
            graph = function.get_concrete_function(x).graph
        results.append(function(x))
        sums = [op.outputs[0] for op in graph.get_operations() if op.type == "AddN" and op.outputs[0].shape.rank == 4]
        readers.append(sum(reader.type != "Reshape" or bool(reader.outputs[0].consumers())
                           for y in sums for reader in y.consumers()))
        given = [op for op in graph.get_operations() if op.type == "Tfuse>BatchNormGrad" and op.inputs[7].shape.rank == 3]
        assert len(given) == (blocks if enabled else 0)
        assert all(op.inputs[6].shape == [0] and op.inputs[8].shape.rank == 2 for op in given[:-1])  # not y, but its signs
    assert readers[0] == 0 and readers[1] >= blocks
    for got, want in zip(*results, strict=True):
        close(got, want, 1e-4)


def test_a_sum_that_is_dresidual_too_stays_one(device):
    """Without an activation dresidual is dy itself: the sum is needed."""
    x, skip = normal(4, 8), normal(4, 8, seed=1)

    @tf.function
    def step(x, skip):
        y = tfuse.batch_norm(x, None, None, tf.zeros([8]), tf.ones([8]), True, None, skip)[0]
        return tf.gradients(tf.reduce_sum(y * y * y) + tf.reduce_sum(tf.sin(y)), [x, skip])

    graph = step.get_concrete_function(x, skip).graph
    assert all(op.inputs[7].shape == [0] for op in graph.get_operations() if op.type == "Tfuse>BatchNormGrad")


# ---- signs ----


def unpacked(signs, y):
    """Where signs say that y > 0, and all of their bits that are nobody's."""
    pack = 16 // y.dtype.size
    bits = np.unpackbits(np.asarray(signs).astype("<i8").view(np.uint8).ravel(), bitorder="little").reshape(-1, 8)
    values = bits[:, :pack].ravel()
    count = int(tf.size(y))
    return values[:count].reshape(y.shape), [*values[count:], *bits[:, pack:].ravel()]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (37, 5, 1), (64, 24, 1), (6, 7, 9), (2, 3000, 1), (3, 4, 1100), (70001, 3, 1),
                                   (0, 4, 3)])
@pytest.mark.parametrize("act", ["relu", "linear"])
def test_signs(device, act, shape, dtype):
    """Those of y as it is stored: too small for its dtype is not above 0."""
    x, residual = (normal(*shape, seed=i, dtype=dtype) - 1 for i in range(2))
    residual = tf.where(tf.range(shape[1])[:, None] == 1, tf.zeros_like(residual), residual)
    real = "float64" if dtype == "float64" else "float32"
    gamma = tf.constant([1e-9 if c == 1 else 1.5 for c in range(shape[1])], real)
    zeros, ones = tf.zeros(shape[1:2], real), tf.ones(shape[1:2], real)
    inputs = [x, gamma, zeros, zeros, ones, residual]
    y, signs = module._batch_norm(*inputs, sized(module._words(x)), activation=act)
    assert signs.shape == [-(-x.dtype.size * int(tf.size(x)) // 128), 1]
    got, others = unpacked(signs, y)
    np.testing.assert_array_equal(got, y > 0)
    assert not np.any(others)
    np.testing.assert_array_equal(signs, module._signs(y))
    np.testing.assert_array_equal(module._from_signs(signs, y), y > 0)
    without, none = module._batch_norm(*inputs, None, activation=act)
    assert none.shape == [0]
    np.testing.assert_array_equal(y, without)


@pytest.mark.parametrize("outer", [0, 1, 31, 32, 33, 70000, 70013])
@pytest.mark.parametrize("columns", [1, 7, 32, 45, 40000, 40001])
def test_words_of_unknown_sizes(monkeypatch, outer, columns):
    """As many as of known ones; also where the product of the sizes is too large for the type that sizes have."""
    x = tf.TensorSpec([outer, columns, 1], "bfloat16")
    known = module._words(x)
    monkeypatch.setattr(module._rows, "size", lambda x, axis: tf.constant(x.shape[axis]))
    assert known == -(-outer * columns // 64) == int(module._words(x))


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("route", ["graph", "xla"])
def test_gradient_by_signs_where_the_batch_is_unknown(device, route, axis, dtype):
    if route == "xla":
        skip_broken_xla()
    x, skip, dy = (normal(5, 6, 7, 3, seed=i, dtype=dtype) for i in range(3))
    channels = x.shape[axis]
    weights = [tf.constant(np.random.default_rng(i).uniform(0.5, 2, channels), "float32") for i in range(4)]

    def step(x, skip, dy):
        with tf.GradientTape() as tape:
            tape.watch([x, skip])
            with tf.GradientTape() as inner:
                inner.watch([x, skip])
                y = tfuse.batch_norm(x, *weights, True, "relu", skip, axis=axis)[0]
            first = inner.gradient(y, [x, skip], dy)
            total = tf.reduce_sum(tf.square(tf.cast(first[0], "float32")))
        return [y, *first, tape.gradient(total, x)]

    spec = tf.TensorSpec([None, 6, None, 3] if axis == -1 else [None, 6, 7, 3], dtype)
    traced = tf.function(step, input_signature=[spec] * 3, jit_compile=route == "xla")
    if route == "graph":
        gradients = [op for op in traced.get_concrete_function().graph.get_operations() if op.type == "Tfuse>BatchNormGrad"]
        assert gradients and all(op.inputs[8].shape.rank == 2 for op in gradients)
    for n in (5, 2, 0):
        for got, want in zip(traced(x[:n], skip[:n], dy[:n]), step(x[:n], skip[:n], dy[:n]), strict=True):
            close(got, want, 2e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("route", ["graph", "xla"])
def test_residual_of_unknown_sizes(route):
    """The op sees all axes but the channels' as one, in which [1, 5] and [5, 1] are alike; a residual that can be stretched to
    x is, and any other is refused."""
    if route == "xla":
        skip_broken_xla()
    weights = [normal(3, seed=i) ** 2 for i in range(4)]
    f = tf.function(lambda x, residual: tfuse.batch_norm(x, *weights, False, "relu", residual)[0],
                    input_signature=[tf.TensorSpec([None, None, 3])] * 2, jit_compile=route == "xla")
    for sizes in [(4, 5), (4, 5)], [(4, 5), (4, 1)], [(1, 5), (5, 1)]:
        x, residual = (normal(*size, 3, seed=len(size)) for size in sizes)
        if sizes[0] == (1, 5):
            with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="shape"):
                f(x, residual)
        else:
            want = tfuse.batch_norm(x, *weights, False)[0] + residual
            close(f(x, residual), tf.nn.relu(want), 2e-5)


def test_signs_refused(device):
    dy, more, rest = parts_of_gradient(normal(4, 8, 3), "float32", True)
    *rest, kept = rest
    failures, grad = (ValueError, tf.errors.InvalidArgumentError), functools.partial(module._grad, dy, *rest)
    with pytest.raises(failures, match="there must be 3 words of signs, got 2"):
        grad(None, None, module._signs(kept)[:2], activation="relu")
    with pytest.raises(failures, match=r"signs must be \[words, 1\], got shape \[3, 2\]"):
        grad(None, None, tf.zeros([3, 2], tf.int64), activation="relu")
    for act, beside in (("relu", kept), ("elu", None)):
        with pytest.raises(failures, match="signs are for relu, and in the place of kept"):
            grad(beside, None, module._signs(kept), activation=act)
    with pytest.raises(failures, match="there must be 3 words of signs, got 7"):
        module._batch_norm(*rest, kept, sized(7), activation="relu")
    with pytest.raises(failures, match="signs are those of a sum with a residual"):
        module._batch_norm(*rest, None, sized(3), activation="relu")
