"""Sparse gradients in an optimizer's step, with rows that come several times: Keras's results, and nothing is left to Keras."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import skip_broken_xla
from optimizing import OPTIONS, RULES, explained, graph_ops, largest_error, make, variables
from tfuse.lists import slices as sparse

SHAPES = [(20, 6), (5, 3)]
INDICES = [3, 7, 3, 0, 19, 3, 7]
# Adam, whose squares are the ones that matter, with every option; every other rule twice.
CASES = [
    ("adam", "plain", "eager"), ("adam", "decay", "graph"), ("adam", "clipnorm", "xla"), ("adam", "clipvalue", "eager"),
    ("adam", "global_clipnorm", "graph"), ("adam", "accumulation", "xla"), ("adam", "ema", "eager"),
    ("amsgrad", "clipnorm", "graph"), ("amsgrad", "clipvalue", "xla"),
    ("adamw", "global_clipnorm", "xla"), ("adamw", "accumulation", "eager"),
    ("lamb", "ema", "eager"), ("lamb", "plain", "graph"), ("lion", "decay", "graph"), ("lion", "clipnorm", "xla"),
    ("sgd", "clipvalue", "xla"), ("sgd", "global_clipnorm", "eager"),
    ("momentum", "accumulation", "eager"), ("momentum", "ema", "graph"),
    ("nesterov", "plain", "graph"), ("nesterov", "decay", "xla"),
]


@contextlib.contextmanager
def all_served():
    """While tfuse is enabled, and no step is Keras's own."""
    since = explained()
    with tfuse.enabled():
        yield
    assert not [row for row in since()[0] if row["route"] == "Keras's own step"]


def gradients(t, indices, dtype="float32", bad=False):
    """The values of a sparse gradient, their rows, and a dense gradient. `bad`: a row that comes again is not finite at first."""
    values = 3 * np.random.default_rng(100 + t).normal(size=(len(indices), SHAPES[0][1]))
    values[:1] *= np.inf if bad else 1
    return (tf.cast(tf.constant(values, "float32"), dtype), tf.constant(indices, [tf.int32, tf.int64][t % 2]),
            tf.fill(SHAPES[1], tf.cast(0.5 * (t + 1), dtype)))


def train(optimizer, route="graph", indices=INDICES, steps=5, dtype="float32", grad_dtype=None, bad=()):
    if route == "xla":
        skip_broken_xla()
    weights = variables(SHAPES, dtype)
    optimizer.build(weights)

    def step(values, indices, dense):
        table = tf.IndexedSlices(optimizer.scale_loss(values), indices, tf.constant(SHAPES[0]))
        optimizer.apply([table, optimizer.scale_loss(dense)], weights)

    if route != "eager":
        step = tf.function(step, autograph=False, jit_compile=route == "xla")
    for t in range(steps):
        step(*gradients(t, indices, grad_dtype or dtype, bad=t in bad))
    return [np.asarray(tf.cast(v, tf.float64)) for v in [*weights, *optimizer.variables]]


@pytest.mark.parametrize("rule, kind, route", CASES)
def test_like_keras(as_on_a_gpu, rule, kind, route):
    want = train(make(keras.optimizers, rule, **OPTIONS[kind]))
    with all_served():
        got = train(make(keras.optimizers, rule, **OPTIONS[kind]), route)
    assert largest_error(got, want) < 2e-6


@pytest.mark.parametrize("rule", ["adam", "sgd"])
@pytest.mark.parametrize("indices", [[], [4], [2] * 9])
def test_few_rows(device, rule, indices):
    """None at all, too: slots decay."""
    want = train(make(keras.optimizers, rule, clipnorm=1.0), indices=indices)
    assert largest_error(train(make(tfuse.optimizers, rule, clipnorm=1.0), indices=indices), want) < 2e-6


@pytest.mark.parametrize("rule", ["adam", "sgd"])
@pytest.mark.parametrize("dtype, grad_dtype", [("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("float16", "float32"),
                                               ("float64", "float64")])
def test_dtypes(device, rule, dtype, grad_dtype):
    """Of weights and gradients. Where weights have 16 bits, no further from float32's than twice as far as Keras is."""
    options = {"indices": [3, 7, 3, 0, 19], "steps": 3, "grad_dtype": grad_dtype}
    exact, want = (train(make(keras.optimizers, rule, epsilon=1e-3), dtype=d, **options) for d in ("float32", dtype))
    got = train(make(tfuse.optimizers, rule, epsilon=1e-3), dtype=dtype, **options)
    assert largest_error(got, want) < 2e-6 or largest_error(got, exact) <= 2 * largest_error(want, exact)


@pytest.mark.parametrize("kind", ["clipnorm", "clipvalue", "global_clipnorm"])
def test_loss_scale(as_on_a_gpu, kind):
    """A step is left out where a value is not finite; also where its row comes again, and Keras looks at the last alone."""
    def run(indices):
        inner = make(keras.optimizers, "adamw", **OPTIONS[kind])
        outer = keras.optimizers.LossScaleOptimizer(inner, 64.0, dynamic_growth_steps=3)
        return train(outer, indices=indices, steps=7, bad=(2, 5))

    want = run([11, *INDICES[1:]])
    with all_served():
        assert largest_error(run([11, *INDICES[1:]]), want) < 2e-6
        assert all(np.all(np.isfinite(v)) for v in run(INDICES))


@pytest.mark.parametrize("decay, touched", [(None, False), (0.01, True)])
def test_sgd_writes_rows_with_gradients_alone(decay, touched):
    """Nothing as large as the variable is made, but where weight decay changes all of it."""
    weights, optimizer = variables(SHAPES[:1]), tfuse.optimizers.SGD(0.1, clipvalue=1.0, weight_decay=decay)
    optimizer.build(weights)

    @tf.function(autograph=False)
    def step(values, indices):
        optimizer.apply([tf.IndexedSlices(values, indices, tf.constant(SHAPES[0]))], weights)

    graph = step.get_concrete_function(*gradients(0, INDICES)[:2]).graph
    made = [y for op in graph.get_operations() for y in op.outputs if y.dtype == tf.float32]
    assert any(y.shape.is_compatible_with(SHAPES[0]) for y in made) == touched


@pytest.mark.parametrize("rule", ["adam", "sgd"])
def test_repeats_bit_for_bit(device, rule):
    indices = np.random.default_rng(0).integers(0, 4, 3000)
    first, second = (train(make(tfuse.optimizers, rule), indices=indices, steps=2) for _ in range(2))
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["plain", "global_clipnorm", "accumulation"])
def test_nothing_is_added_up_in_any_order(as_on_a_gpu, kind):
    """As TensorFlow's own sums are, on a GPU."""
    weights, optimizer = variables(SHAPES[:1]), make(keras.optimizers, "adam", **OPTIONS[kind])
    optimizer.build(weights)
    step = lambda values, indices: optimizer.apply([tf.IndexedSlices(values, indices, tf.constant(SHAPES[0]))], weights)
    assert graph_ops(step, *gradients(0, INDICES)[:2])["UnsortedSegmentSum"]
    with tfuse.enabled():
        assert not graph_ops(step, *gradients(0, INDICES)[:2])["UnsortedSegmentSum"]


@pytest.mark.parametrize("rule", ["adam", "lion"])
def test_rows_that_are_not_there(rule):
    """As in TensorFlow: below 0 they are left out, and above a CPU says so; what is behind the last row is nobody's square."""
    with tf.device("CPU:0"):
        got = train(make(tfuse.optimizers, rule), indices=[3, -1, 3])
        assert largest_error(got, train(make(keras.optimizers, rule), indices=[3, -1, 3])) < 2e-6
        with pytest.raises(tf.errors.InvalidArgumentError):
            train(make(tfuse.optimizers, rule), indices=[3, SHAPES[0][0], 3], steps=1)


def test_rows_that_a_gpu_leaves_out(monkeypatch):
    """Above the last row, too, where the squares of other rows are added up."""
    in_range = lambda data, ids, count: tf.math.unsorted_segment_sum(data, tf.where(ids < count, ids, -1), count)
    monkeypatch.setattr(sparse, "unsorted_segment_sum", in_range)
    for outside in (-1, 4, 5, 8, 100):
        both = sparse.summed(tf.IndexedSlices(tf.constant([[2.0], [3.0]]), tf.constant([1, outside])), 4, squares=True)
        np.testing.assert_array_equal(both[:, 0], [0, 2, 0, 0, 0, 4, 0, 0])


@pytest.mark.parametrize("option", ["plain", "global_clipnorm"])
def test_two_replicas(option):
    def run():
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            weights = variables(SHAPES)
            optimizer = make(keras.optimizers, "adam", **OPTIONS[option])
            optimizer.build(weights)

        @tf.function
        def step():
            def one():
                share = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group + 1, tf.float32)
                values, indices, dense = gradients(0, INDICES)
                optimizer.apply([tf.IndexedSlices(share * values, indices, tf.constant(SHAPES[0])), share * dense], weights)
            strategy.run(one)

        for _ in range(3):
            step()
        return [np.asarray(tf.convert_to_tensor(w)) for w in weights]

    want = run()
    with all_served():
        assert largest_error(run(), want) < 2e-6


@pytest.mark.parametrize("policy, jit", [("float32", False), ("mixed_float16", True)])
def test_fit(as_on_a_gpu, policy, jit):
    """An Embedding through fit(), tokens of which come again and again."""
    if jit:
        skip_broken_xla()
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, (64, 5)), rng.integers(0, 3, 64)

    def weights():
        keras.utils.set_random_seed(1)
        with contextlib.ExitStack() as undo:
            undo.callback(keras.config.set_dtype_policy, keras.config.dtype_policy())
            keras.config.set_dtype_policy(policy)
            model = keras.Sequential([keras.layers.Embedding(12, 8), keras.layers.Flatten(), keras.layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit)
        model.fit(x, y, batch_size=16, epochs=3, verbose=0, shuffle=False)
        return [np.asarray(w) for w in model.trainable_variables]

    want = weights()
    with all_served():
        got = weights()
    assert largest_error(got, want) < (1e-4 if policy == "float32" else 2e-2)


@pytest.mark.parametrize("accumulates", [None, 2])
@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_parts_that_are_no_tensors(as_on_a_gpu, name, accumulates):
    """Whatever can be one: Keras takes them so."""
    def trained():
        optimizer = getattr(keras.optimizers, name)(0.1, gradient_accumulation_steps=accumulates)
        weight = keras.Variable(np.ones((5, 2), "float32"))
        for _ in range(2):
            optimizer.apply([tf.IndexedSlices(tf.constant([[1.0, 2.0]] * 3), (0, 4, 0), (5, 2))], [weight])
        return weight.numpy()

    want = trained()
    with all_served():
        np.testing.assert_allclose(trained(), want, rtol=1e-6)


def test_a_method_of_its_own(as_on_a_gpu):
    """Whoever replaces a part of one optimizer's step has it called."""
    optimizer, weight, seen = keras.optimizers.SGD(0.5), keras.Variable(np.ones((5, 2), "float32")), []
    own = optimizer.assign_sub
    optimizer.assign_sub = lambda variable, value: seen.append(1) or own(variable, value)
    with tfuse.enabled():
        optimizer.apply([tf.ones([5, 2])], [weight])
    assert seen and np.all(weight.numpy() == 0.5)
