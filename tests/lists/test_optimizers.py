"""tfuse.optimizers against Keras's own: every rule and option over 50 steps, checkpoints both ways, what falls back."""

import functools
import gc
import itertools
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import FULL, skip_broken_xla
from optimizing import (OPTIONS, RULES, SHAPES, all_together, check_like_keras, data, explained, gradients, largest_error, make,
                        model, move, on_others, train, trained, variables)
from tfuse.lists import tensors_update

# Every option in a graph; on the other routes those that take all there is: slots, norms, decay, a step that is held back.
WHOLE = "clipnorm", "global_clipnorm", "numbers", "accumulation"


@pytest.mark.parametrize("rule, option, route", [(rule, option, "graph") for rule in RULES for option in OPTIONS] + on_others(WHOLE))
def test_like_keras(device, rule, option, route):
    check_like_keras(rule, OPTIONS[option], route)


@pytest.mark.parametrize("rule", list(RULES))
def test_float64(device, rule):
    shapes = [(5, 3), (4,)]
    results = []
    for library in (keras.optimizers, tfuse.optimizers):
        weights = variables(shapes, "float64")
        results.append(train(make(library, rule), weights, shapes=shapes, dtype="float64"))
    # Keras keeps the learning rate in float32; so do both.
    assert largest_error(results[1], results[0]) < 1e-12


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rule", list(RULES))
def test_half_gradients_of_float32_weights(device, rule, dtype):
    """The weights are the master copy: a step is that of the gradient, widened."""
    wide = make(keras.optimizers, rule), variables()
    step = lambda t: [tf.cast(g, tf.float32) for g in gradients(t, dtype=dtype)]
    for t in range(10):
        wide[0].apply(step(t), wide[1])
    own = make(tfuse.optimizers, rule), variables()
    train(*own, steps=10, dtype=dtype)
    assert largest_error([v.numpy() for v in own[1]], [v.numpy() for v in wide[1]]) < 1e-6


@pytest.mark.parametrize("clip", [{}, {"clipnorm": 1.0}, {"global_clipnorm": 1.0}], ids=lambda clip: next(iter(clip), "none"))
@pytest.mark.parametrize("jit", [False, True])
def test_gradients_are_not_cast_for_the_step(device, jit, clip):
    """What mixed precision casts to float32 is taken as it was before, and is worth the same."""
    if jit:
        skip_broken_xla()
    weights, optimizer = variables(), make(tfuse.optimizers, "adam", **clip)
    optimizer.build(weights)

    @tf.function(autograph=False, jit_compile=jit)
    def step(*x):
        optimizer.apply([tf.cast(t, tf.float32) for t in x], weights)

    narrow = [gradients(t, dtype="bfloat16") for t in range(3)]
    for g in narrow:
        step(*g)
    graph = step.get_concrete_function(*narrow[0]).graph
    taken = [op for op in graph.get_operations() if op.type in ("Tfuse>TensorsUpdate", "XlaCallModule")]
    assert taken and all(tensor.dtype == tf.bfloat16 for op in taken for tensor in op.inputs[:1])
    want, theirs = make(keras.optimizers, "adam", **clip), variables()
    for g in narrow:
        want.apply([tf.cast(t, tf.float32) for t in g], theirs)
    assert largest_error([v.numpy() for v in weights], [v.numpy() for v in theirs]) < 1e-5


def test_a_cast_that_rounds_is_not_undone(device):
    weights, optimizer = variables([(3,)]), make(tfuse.optimizers, "sgd")
    before = weights[0].numpy()

    @tf.function(autograph=False)
    def step(x):
        optimizer.apply([tf.cast(x, tf.float16)], weights)

    step(tf.constant([1e-9, 0.0, -1e-9], tf.bfloat16))  # nothing is left of them in float16
    assert np.array_equal(weights[0].numpy(), before)
    step(tf.constant([1e6, 0.0, -1e6], tf.bfloat16))
    assert np.array_equal(weights[0].numpy()[[0, 2]], [-np.inf, np.inf])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rule", ["adam", "momentum"])
def test_half_weights(device, rule, dtype):
    """Weights and slots of 16 bits are computed with in float32, and stored rounded: nearer to float32 than Keras's, which
    computes in 16 bits, where Adam's epsilon is nothing."""
    weights, reference = variables(dtype=dtype), variables()
    for w, r in zip(weights, reference):
        r.assign(tf.cast(w.value, tf.float32))
    train(make(tfuse.optimizers, rule, learning_rate=0.01), weights, steps=3, dtype=dtype)
    want = make(keras.optimizers, rule, learning_rate=0.01)
    for t in range(3):
        want.apply([tf.cast(g, tf.float32) for g in gradients(t, dtype=dtype)], reference)
    limit = {"float16": 4e-3, "bfloat16": 3e-2}[dtype]
    got = [np.asarray(tf.cast(v.value, tf.float32)) for v in weights]
    assert largest_error(got, [v.numpy() for v in reference]) < limit


# ---- state ----


@pytest.mark.parametrize("rule", list(RULES))
def test_state_is_kerass(rule):
    weights = variables()
    ours, theirs = make(tfuse.optimizers, rule), make(keras.optimizers, rule)
    for optimizer in (ours, theirs):
        optimizer.build(weights)
    name = lambda v: v.path.split("/", 1)[1]
    assert [(name(v), v.shape, v.dtype) for v in ours.variables] == [(name(v), v.shape, v.dtype) for v in theirs.variables]
    assert isinstance(ours, type(theirs))
    assert {k: v for k, v in ours.get_config().items() if k != "name"} == {
        k: v for k, v in theirs.get_config().items() if k != "name"}
    again = keras.optimizers.deserialize(keras.optimizers.serialize(ours))
    assert type(again) is type(ours) and again.get_config() == ours.get_config()


@pytest.mark.parametrize("to_us", [True, False])
@pytest.mark.parametrize("rule", list(RULES))
def test_checkpoint_moves_both_ways(rule, to_us, tmp_path):
    """By a checkpoint of TensorFlow, and by the variables that Keras's files have."""
    libraries = [keras.optimizers, tfuse.optimizers] if to_us else [tfuse.optimizers, keras.optimizers]
    weights = variables()
    first = make(libraries[0], rule)
    train(first, weights, steps=5)
    others = {way: (make(libraries[1], rule), variables(seed=9)) for way in ("own_variables", "checkpoint")}
    for way, (second, moved) in others.items():
        move(first, second, weights, moved, way, tmp_path)
    want = train(first, weights, 5, 5)
    for way, (second, moved) in others.items():
        assert largest_error(train(second, moved, 5, 5), want) < 1e-6, way


@pytest.mark.parametrize("rule", ["adamw", "lamb"])
def test_keras_file(rule, jit, tmp_path):
    """Training goes on from a saved model as if it had not stopped."""
    x, y = data()
    m = model()
    m.compile(make(tfuse.optimizers, rule), "mse", jit_compile=jit)
    m.fit(x, y, 64, epochs=2, shuffle=False, verbose=0)
    m.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert type(again.optimizer) is type(m.optimizer)
    losses = [n.fit(x, y, 64, epochs=1, shuffle=False, verbose=0).history["loss"][0] for n in (m, again)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@functools.lru_cache(None)
def fitted(library, rule, policy, jit):
    """Losses of a small model. Keras's own are asked for without XLA, whatever the route of ours."""
    keras.config.set_dtype_policy(policy)
    try:
        m = model()
    finally:
        keras.config.set_dtype_policy("float32")
    m.compile(make(library, rule, learning_rate=0.01, global_clipnorm=1.0), "mse", jit_compile=jit)
    assert (policy == "mixed_float16") == isinstance(m.optimizer, keras.optimizers.LossScaleOptimizer)
    with all_together(library):
        return m.fit(*data(), 32, epochs=4, shuffle=False, verbose=0).history["loss"]


@pytest.mark.parametrize("rule, policy", [
    *(("adamw", policy) for policy in ("float32", "mixed_float16", "mixed_bfloat16")), ("momentum", "mixed_float16"),
    *[("momentum", "float32"), ("momentum", "mixed_bfloat16")] * FULL])
def test_fit(rule, policy, jit):
    """Losses of a small model are Keras's, with its dynamic loss scale where the policy asks for one."""
    curves = fitted(keras.optimizers, rule, policy, False), fitted(tfuse.optimizers, rule, policy, jit)
    assert curves[1][-1] < 0.8 * curves[1][0]
    assert np.allclose(*curves, rtol=1e-4 if policy == "float32" else 2e-2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("option", ["plain", "clipnorm", "clipvalue", "global_clipnorm"])
@pytest.mark.parametrize("rule", list(RULES))
def test_bad_gradients(device, rule, option, bad):
    """They come out as in Keras: the same values are NaN, infinite or neither."""
    results = []
    for library in (keras.optimizers, tfuse.optimizers):
        weights, optimizer = variables([(4,), (3,)]), make(library, rule, **OPTIONS[option])
        for _ in range(2):
            optimizer.apply([tf.constant([1.0, bad, 0.0, -2.0]), tf.constant([1.0, 2.0, 3.0])], weights)
        results.append(np.concatenate([v.numpy() for v in weights]))
    assert np.array_equal(*[np.nan_to_num(r, nan=7e7, posinf=8e7, neginf=9e7) > 6e7 for r in results])
    assert np.allclose(*results, rtol=1e-5, equal_nan=True)


# ---- many, few, other ----


def test_no_variables():
    optimizer = tfuse.optimizers.Adam()
    optimizer.apply([], [])
    optimizer.build([])
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        weights = variables([(3,)])
        tfuse.optimizers.Adam().apply([None], weights)


def test_empty_and_missing_gradients(device):
    weights = variables([(0, 4), (3,), (2,)])
    before = weights[1].numpy()
    tfuse.optimizers.Adam().apply([tf.zeros([0, 4]), None, tf.ones([2])], weights)
    assert np.array_equal(weights[1].numpy(), before) and weights[0].shape == (0, 4)


def test_many_variables(device):
    """Several groups; in the full tests as many as TensorFlow traces in a minute."""
    count = 10000 if FULL else 1100
    weights = [tf.Variable(tf.fill([1 + i % 3], float(i))) for i in range(count)]
    optimizer = tfuse.optimizers.SGD(0.5)
    optimizer.apply([tf.fill([1 + i % 3], 2.0) for i in range(count)], weights)
    assert all(np.array_equal(w.numpy(), np.full([1 + i % 3], i - 1.0, np.float32)) for i, w in enumerate(weights))


def test_many_variables_in_a_function(device):
    """Groups of them, with slots. 10,000 would take TensorFlow minutes to trace."""
    weights = [tf.Variable(tf.fill([1 + i % 3], float(i))) for i in range(2000 if FULL else 600)]
    optimizer = tfuse.optimizers.SGD(0.5, momentum=0.5)
    optimizer.build(weights)
    step = tf.function(lambda: optimizer.apply([2.0 * tf.ones_like(w) for w in weights], weights), autograph=False)
    step()
    step()
    assert all(np.array_equal(w.numpy(), np.full([1 + i % 3], i - 2.5, np.float32)) for i, w in enumerate(weights))


@pytest.mark.parametrize("route", ["eager", "graph"])
@pytest.mark.parametrize("option", ["plain", "clipnorm", "global_clipnorm"])
def test_variables_on_two_devices(option, route):
    results = []
    for library in (keras.optimizers, tfuse.optimizers):
        weights = []
        for i, start in enumerate(variables([(5,), (3, 2), (), (4,)])):
            with tf.device("CPU:%d" % (i % 2)):
                weights.append(keras.Variable(start.numpy(), name="v%d" % i))
        optimizer = make(library, "adam", **OPTIONS[option])
        optimizer.build(weights)
        results.append(train(optimizer, weights, steps=5, route=route, shapes=[w.shape for w in weights]))
        places = [v.value.device[-5:] for v in [*weights, *optimizer._momentums]]
        assert places == ["CPU:0", "CPU:1"] * 4
    assert largest_error(*results) < 1e-6


def test_mixed_dtypes(device):
    """Variables of each dtype go by themselves; gradients are cast where their own is not the variable's."""
    types = ["float32", "float64", "float16", "float32"]
    results = []
    for library in (keras.optimizers, tfuse.optimizers):
        weights = [tf.Variable(tf.ones([3], t) * (i + 1)) for i, t in enumerate(types)]
        optimizer = library.SGD(0.5)
        optimizer.apply([tf.ones([3], t) for t in ("float16", "float64", "float16", "float64")], weights)
        results.append([w.numpy() for w in weights])
    for got, want in zip(*results):
        assert np.allclose(got, want, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["complex64", "int64"])
def test_variables_of_other_dtypes(dtype):
    """Go Keras's way, beside others that do not; tfuse.explain() says which."""
    results, since = [], explained()
    for library in (keras.optimizers, tfuse.optimizers):
        with tf.device("CPU:0"):  # on a GPU, TensorFlow has not every op for them
            odd = [tf.Variable(tf.cast([1, 2, 3], dtype), name=name) for name in ("odd", "odder")]
            even, = variables([(4,)])
            optimizer = library.SGD(1.0)
            for _ in range(2):
                optimizer.apply([tf.cast([1, 0, 2], dtype), tf.ones([4]), tf.cast([0, 1, 2], dtype)], [odd[0], even, odd[1]])
        results.append([v.numpy() for v in (*odd, even)])
    assert largest_error(*results) < 1e-6
    decided, ran = since()
    assert {row["why"] for row in decided} == {"2 of 3 variables (odd:0, …): its dtype is %s" % dtype}
    assert "TensorsUpdate" in [row["op"] for row in ran]


def test_a_number_that_is_a_tensor(device):
    results, since = [], explained()
    for library in (keras.optimizers, tfuse.optimizers):
        weights = variables([(4,)])
        optimizer = library.Adam(0.1)
        optimizer.beta_1 = tf.constant(0.8)
        optimizer.apply([tf.ones([4])], weights)
        results.append([weights[0].numpy()])
    assert largest_error(*results) < 1e-6
    decided, ran = since()
    assert {row["why"] for row in decided} == {"1 of 1 variables (v0): beta_1 is not a number"} and not ran


def test_numbers_may_change(device):
    """As in Keras: between eager steps, and the learning rate at any time."""
    results = []
    for library in (keras.optimizers, tfuse.optimizers):
        weights, optimizer = variables([(4,)]), library.Adam(0.1)
        for step in range(4):
            optimizer.beta_1 = 0.5 + step / 10
            optimizer.learning_rate = 0.1 * (step + 1)
            optimizer.apply([tf.ones([4]) * step], weights)
        results.append([weights[0].numpy()])
    assert largest_error(*results) < 1e-6


@pytest.mark.parametrize("scaled", [False, True])
def test_eager_steps_keep_nothing_alive(device, scaled):
    """Weights and slots go with their model and optimizer."""
    m, optimizer = model(), make(tfuse.optimizers, "adam", global_clipnorm=1.0)
    outer = tfuse.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer
    for _ in range(2):
        outer.apply([tf.ones_like(v) for v in m.trainable_variables], m.trainable_variables)
    held = [weakref.ref(v.value.handle) for v in [*m.trainable_variables, *optimizer._momentums, *optimizer._velocities]]
    assert all(handle() is not None for handle in held)
    del m, optimizer, outer
    gc.collect()
    assert [handle() for handle in held] == [None] * len(held)


def test_eager_steps_are_traced_once(device, monkeypatch):
    """For each set of variables and each set of numbers, the last few of which are kept."""
    traced, build = [], tensors_update._build
    monkeypatch.setattr(tensors_update, "_build", lambda *arguments: traced.append(len(arguments[1])) or build(*arguments))
    monkeypatch.setattr(tensors_update, "_MOST_FUNCTIONS", 2)
    weights, optimizer = variables([(4,), (3,)]), make(tfuse.optimizers, "adam")
    optimizer.build(weights)

    def steps(count, *taken):
        del traced[:]
        for _ in range(count):
            optimizer.apply([tf.ones(v.shape) for v in taken], taken)
        return traced

    assert steps(3, *weights) == [2] and steps(2, *weights) == []
    assert steps(3, weights[0]) == [1] and steps(1, *weights) == []
    optimizer.beta_1 = 0.5
    assert steps(2, *weights) == [2]  # the function of one variable has not run for longest
    optimizer.beta_1 = 0.9
    assert steps(2, *weights) == [] and steps(2, weights[0]) == [1]


@pytest.mark.parametrize("rule, option, route", [(rule, "decay", "eager") for rule in RULES] + [
    ("adamw", option, route) for option in ("clipnorm", "global_clipnorm", "accumulation")
    for route in ("eager", "graph", "xla")])
def test_a_variable_listed_twice(rule, option, route):
    """Is stepped twice, as in Keras: by the one gradient, then by the other."""
    if route == "xla":
        skip_broken_xla()
    results = []
    for library in (keras.optimizers, tfuse.optimizers):
        a, b = variables([(3,), (4,)])
        optimizer, since = make(library, rule, **OPTIONS[option], learning_rate=0.1), explained()
        optimizer.build([a, b])
        step = lambda *g: optimizer.apply(list(g), [a, b, a])
        step = step if route == "eager" else tf.function(step, autograph=False, jit_compile=route == "xla")
        for t in range(4):
            step(*gradients(t, [(3,), (4,), (3,)]))
        results.append([v.numpy() for v in [a, b, *optimizer.variables]])
    assert largest_error(results[1], results[0]) < 1e-6
    decided, ran = since()
    assert {row["why"] for row in decided if row["route"] == "Keras's own step"} == {
        "2 of 3 variables (v0, …): it is listed more than once"}
    assert "TensorsUpdate" in [row["op"] for row in decided + ran]  # the other one


def test_snapshots_keep_their_values(device):
    """What was read before a step does not change with it."""
    weights = variables([(1000,)])
    optimizer = tfuse.optimizers.Adam(0.1)
    optimizer.build(weights)

    @tf.function
    def step():
        before = weights[0].value + 0.0
        raw = tf.raw_ops.ReadVariableOp(resource=weights[0].value.handle, dtype=tf.float32)
        optimizer.apply([tf.ones([1000])], weights)
        return before, raw, weights[0].value + 0.0

    held = weights[0].value.read_value()
    was = held.numpy().copy()
    before, raw, after = step()
    assert np.array_equal(held, was) and np.array_equal(before, was) and np.array_equal(raw, was)
    assert not np.array_equal(after, was)


@pytest.mark.parametrize("rule", list(RULES))
def test_new_weights_take_the_memory_of_gradients(device, rule):
    """Where nobody else needs them; the results are the same, bit for bit."""
    on_cpu = device.startswith("CPU")  # where Python sees a tensor's own memory, unless it is a scalar's
    address = lambda x: tf.numpy_function(lambda a: np.int64(a.ctypes.data), [tf.reshape(x, [-1])], tf.int64)
    results = []
    for kept in (False, True):
        weights, optimizer = variables(), make(tfuse.optimizers, rule, global_clipnorm=1.0, weight_decay=0.01)
        optimizer.build(weights)

        @tf.function(autograph=False)
        def step(*x):
            g = [3.0 * t for t in x]
            where = [address(t) for t in g]
            with tf.control_dependencies(where):
                optimizer.apply(g, weights)
            return where, g if kept else []

        for t in range(3):
            where, g = step(*gradients(t))
        assert all(np.array_equal(a, 3.0 * b) for a, b in zip(g, gradients(2)))
        now = tf.function(lambda: [address(w.value.read_value()) for w in weights], autograph=False)()
        shared = [int(a) == int(b) for a, b in zip(where, now)]
        assert not on_cpu or shared == [not kept] * len(SHAPES)
        results.append([np.asarray(v) for v in [*weights, *optimizer.variables]])
    assert all(np.array_equal(a, b) for a, b in zip(*results))


def test_memory_in_flight(monkeypatch):
    """Groups are cut by bytes and by number, and one waits for another where both are too much at a time."""
    monkeypatch.setattr(tensors_update, "GROUP_BYTES", 4000)
    monkeypatch.setattr(tensors_update, "FLIGHT_BYTES", 8000)
    monkeypatch.setattr(tensors_update, "GROUP_TENSORS", 3)
    shapes = [(100,)] * 9 + [(5,)] * 7 + [(3000,)]
    weights = variables(shapes)
    optimizer = tfuse.optimizers.Adam()
    optimizer.build(weights)
    graph = tf.function(lambda *g: optimizer.apply(list(g), weights), autograph=False).get_concrete_function(
        *gradients(0, shapes)).graph
    ops = [op for op in graph.get_operations() if op.type == "Tfuse>TensorsUpdate"]
    sizes = [op.get_attr("N") for op in ops]
    assert max(sizes) <= 3 and sum(sizes) == len(shapes)
    waits = sum(any(c.type == "NoOp" for c in op.control_inputs) for op in ops)
    assert waits == 2  # the third group of large ones, and the last, which is more than may be under way
    want = make(keras.optimizers, "adam")
    theirs = variables(shapes)
    assert largest_error(train(optimizer, weights, steps=3, shapes=shapes), train(want, theirs, steps=3, shapes=shapes)) < 1e-6


def test_groups_inside_xla(monkeypatch):
    """There they are cut by number alone."""
    skip_broken_xla()
    monkeypatch.setattr(tensors_update, "GROUP_BYTES", 1)
    monkeypatch.setattr(tensors_update, "GROUP_TENSORS", 3)
    weights, optimizer = variables(), make(tfuse.optimizers, "adam")
    optimizer.build(weights)
    graph = tf.function(lambda *g: optimizer.apply(list(g), weights), autograph=False, jit_compile=True).get_concrete_function(
        *gradients(0)).graph
    assert [op.type for op in graph.get_operations()].count("XlaCallModule") == len(SHAPES) / 3
    want = train(make(keras.optimizers, "adam"), variables(), steps=3)
    assert largest_error(train(optimizer, weights, steps=3, route="xla"), want) < 1e-5


def test_constraints(device):
    weights = [keras.Variable(np.ones([4], "float32"), name="a")]
    weights[0].constraint = keras.constraints.NonNeg()
    tfuse.optimizers.SGD(10.0).apply([tf.ones([4])], weights)
    assert np.array_equal(weights[0].numpy(), np.zeros([4]))


def test_repeats_bit_for_bit(device):
    runs = [trained(tfuse.optimizers, "lamb", OPTIONS["global_clipnorm"], steps=5) for _ in range(2)]
    assert all(np.array_equal(a, b) for a, b in zip(*runs))


# ---- several devices ----


# Every rule and every option; their product in full tests.
COVERING = [("adam", "plain"), ("adam", "global_clipnorm"), ("lamb", "decay"), ("lamb", "clipnorm"),
            ("momentum", "global_clipnorm")]
PRODUCT = list(itertools.product(["adam", "lamb", "momentum"], ["plain", "decay", "clipnorm", "global_clipnorm"]))


@pytest.mark.parametrize("rule, option", PRODUCT if FULL else COVERING)
def test_mirrored(rule, option):
    x, y = data(128)
    results = []
    for library in (keras.optimizers, tfuse.optimizers):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            m = model()
            m.compile(make(library, rule, **OPTIONS[option]), "mse", jit_compile=False)
        with all_together(library):
            m.fit(x, y, 32, epochs=2, shuffle=False, verbose=0)
        results.append(m.get_weights())
    assert largest_error(results[1], results[0]) < 1e-5


def test_one_device_strategy():
    x, y = data(128)
    results = []
    for library in (keras.optimizers, tfuse.optimizers):
        with tf.distribute.OneDeviceStrategy("CPU:1").scope():
            m = model()
            m.compile(library.AdamW(0.01, clipnorm=0.1), "mse", jit_compile=False)
        with all_together(library):
            m.fit(x, y, 32, epochs=1, shuffle=False, verbose=0)
        results.append(m.get_weights())
    assert largest_error(*results) < 1e-5
