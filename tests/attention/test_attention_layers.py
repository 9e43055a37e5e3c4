"""tfuse.MultiHeadAttention and tfuse.GroupedQueryAttention against Keras's layers: results and gradients for every option,
saved files both ways, and what is left to Keras."""

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import since_now, skip_broken_xla
from tfuse._core import _library

RNG = np.random.default_rng(0)
BATCH, QUERIES, KEYS, WIDTH = 2, 7, 9, 12

KINDS = {
    "MultiHeadAttention": (tfuse.MultiHeadAttention, keras.layers.MultiHeadAttention, dict(num_heads=4, key_dim=6)),
    "GroupedQueryAttention": (tfuse.GroupedQueryAttention, keras.layers.GroupQueryAttention,
                              dict(head_dim=6, num_query_heads=4, num_key_value_heads=2)),
}
both = pytest.mark.parametrize("kind", KINDS)
_SCORES_TOLD = hasattr(keras.ops, "dot_product_attention")  # since 3.7; before, the layers leave all to Keras


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


QUERY, VALUE, KEY = normal(BATCH, QUERIES, WIDTH), normal(BATCH, KEYS, WIDTH), normal(BATCH, KEYS, WIDTH)
MASK = RNG.random((BATCH, QUERIES, KEYS)) < 0.6
MASK[..., 0] = True
LENGTHS = np.arange(KEYS) < np.array([[9], [4]])
KEY_GAPS = np.arange(KEYS) % 3 != np.array([[1], [2]])  # of some that LENGTHS keeps
QUERY_LENGTHS = np.arange(QUERIES) < np.array([[5], [7]])


def pair(kind, **options):
    """A layer of ours and one of Keras's with the same weights."""
    ours, stock, needed = KINDS[kind]
    supported = inspect.signature(stock.__init__).parameters
    for name in options:
        if name not in supported and name != "dtype":
            pytest.skip("Keras %s has no %s" % (keras.__version__, name))
    ours, stock = ours(**needed, **options), stock(**needed, **options)
    for layer in (ours, stock):
        layer.build(QUERY.shape, VALUE.shape, KEY.shape)
    stock.set_weights([0.3 * normal(*w.shape) for w in stock.get_weights()])
    ours.set_weights(stock.get_weights())
    return ours, stock


def results(layer, *inputs, rows=None, **options):
    """The output where `rows` is true, and the gradients for inputs and weights."""
    inputs = [tf.constant(x) for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = layer(*inputs, **options)
        y = y if rows is None else tf.boolean_mask(y, rows)
        weights = tf.cast(tf.reshape(tf.range(tf.size(y)), tf.shape(y)) % 7 - 3, y.dtype)
        loss = tf.reduce_sum(y * weights)
    return [y, *tape.gradient(loss, [*inputs, *(w.value for w in layer.trainable_weights)])]


def compare(ours, stock, *inputs, tolerance=1e-5, **options):
    """Outputs, and gradients by the size of the largest: that of the key's bias is nothing but rounding."""
    got, want = ([np.asarray(tf.cast(x, tf.float32)) for x in results(layer, *inputs, **options)] for layer in (ours, stock))
    np.testing.assert_allclose(got[0], want[0], rtol=tolerance, atol=tolerance)
    largest = max(np.abs(x).max() for x in want[1:])
    for a, b in zip(got[1:], want[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest)


@pytest.fixture(autouse=True)
def start():
    """What served() and reasons() tell is what comes after this."""
    global _told
    _told = since_now()


def served():
    return bool(_told(op="Attention", when="ran"))


def reasons():
    return {row["op"]: row["why"] for row in _told(when="called")}


# ---- the same as Keras ----

CALLS = {
    "plain": {},
    "causal": dict(use_causal_mask=True),
    "mask": dict(attention_mask=MASK),
    "mask for all": dict(attention_mask=MASK[:1]),
    "mask of numbers": dict(attention_mask=MASK.astype("int32")),
    "value mask": dict(value_mask=LENGTHS),
    "key mask": dict(key_mask=KEY_GAPS),
    "both masks": dict(value_mask=LENGTHS, key_mask=KEY_GAPS),
    "both masks, causal": dict(value_mask=LENGTHS, key_mask=KEY_GAPS, use_causal_mask=True),
    "all masks": dict(value_mask=LENGTHS, key_mask=KEY_GAPS, attention_mask=MASK, use_causal_mask=True),
}


@both
@pytest.mark.parametrize("name", CALLS)
def test_same_as_keras(kind, name):
    ours, stock = pair(kind)
    compare(ours, stock, QUERY, VALUE, KEY, **CALLS[name])
    assert served() == _SCORES_TOLD and bool(reasons()) != _SCORES_TOLD
    compare(ours, stock, QUERY, VALUE, **CALLS[name])


@both
@pytest.mark.parametrize("options", [dict(use_bias=False), dict(sliding_window=3), dict(use_gate=True), dict(dropout=0.5)],
                         ids=lambda options: next(iter(options)))
def test_options(kind, options):
    ours, stock = pair(kind, **options)
    for causal in (False, True):
        compare(ours, stock, QUERY, VALUE, KEY, use_causal_mask=causal)
    assert served() == _SCORES_TOLD


@both
@pytest.mark.skipif(not _SCORES_TOLD, reason="this Keras has no flash_attention")
def test_flash_attention(kind):
    """Which Keras on TensorFlow refuses; here it is what there is."""
    ours, asked = pair(kind)[0], pair(kind, flash_attention=True)[0]
    asked.set_weights(ours.get_weights())
    np.testing.assert_array_equal(asked(QUERY, VALUE, use_causal_mask=True), ours(QUERY, VALUE, use_causal_mask=True))
    with pytest.raises(ValueError, match="[Ff]lash"):
        asked(QUERY, VALUE, return_attention_scores=True)


def test_options_of_multi_head():
    ours, stock = pair("MultiHeadAttention", value_dim=5, output_shape=(3, 2))
    compare(ours, stock, QUERY, VALUE, KEY, use_causal_mask=True)
    assert ours(QUERY, VALUE).shape == (BATCH, QUERIES, 3, 2) and served() == _SCORES_TOLD


@both
@pytest.mark.parametrize("policy,tolerance", [("mixed_float16", 1e-2), ("mixed_bfloat16", 6e-2), ("float64", 1e-5)])
def test_policies(kind, policy, tolerance):
    ours, stock = pair(kind, dtype=policy)
    compare(ours, stock, QUERY, VALUE, KEY, tolerance=tolerance, value_mask=LENGTHS)
    assert ours(QUERY, VALUE).dtype == stock(QUERY, VALUE).dtype


@both
def test_masks_of_keras(kind):
    """Masks that come with the inputs. Rows of queries that are padding are not compared: Keras averages there."""
    ours, stock = pair(kind)

    def masked(layer):
        query, value = keras.Input((QUERIES, WIDTH)), keras.Input((KEYS, WIDTH))
        marked = [keras.layers.Masking()(x) for x in (query, value)]
        return keras.Model([query, value], layer(*marked))

    padded = [np.where(QUERY_LENGTHS[..., None], QUERY, 0), np.where(LENGTHS[..., None], VALUE, 0)]
    got, want = masked(ours)(padded).numpy(), masked(stock)(padded).numpy()
    np.testing.assert_allclose(got[QUERY_LENGTHS], want[QUERY_LENGTHS], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not _SCORES_TOLD, reason="this Keras computes the scores in any case")
def test_a_query_that_attends_to_nothing():
    ours, _ = pair("MultiHeadAttention", use_bias=False)
    mask = MASK.copy()
    mask[0, 3] = False
    y, dquery, *_ = results(ours, QUERY, VALUE, attention_mask=mask)
    assert not np.any(y[0, 3]) and not np.any(dquery[0, 3]) and np.all(y[1, 3])
    y, dquery, *_ = results(ours, QUERY, VALUE, query_mask=QUERY_LENGTHS)
    if np.any(y[0, 6]):  # newer layers read this mask from the query itself
        query = tf.constant(QUERY)
        query._keras_mask = tf.constant(QUERY_LENGTHS)
        y = ours(query, VALUE)
    assert not np.any(y.numpy()[~QUERY_LENGTHS]) and np.all(y.numpy()[QUERY_LENGTHS])


@both
@pytest.mark.skipif(not _SCORES_TOLD, reason="this Keras computes the scores in any case")
def test_no_mask_is_spelled_out(kind):
    """Padding, causality and a window leave nothing of size queries x keys in the graph."""
    options = {"sliding_window": 5} if "sliding_window" in inspect.signature(KINDS[kind][1].__init__).parameters else {}
    ours, _ = pair(kind, dropout=0.1, **options)

    @tf.function
    def step(query, value, mask):
        with tf.GradientTape() as tape:
            tape.watch([query, value])
            y = ours(query, value, value_mask=mask, use_causal_mask=True, training=True)
        return tape.gradient(y, [query, value])

    graph = step.get_concrete_function(tf.TensorSpec([2, 701, WIDTH]), tf.TensorSpec([2, 703, WIDTH]),
                                       tf.TensorSpec([2, 703], tf.bool)).graph
    shapes = [output.shape for op in graph.get_operations() for output in op.outputs if output.shape.rank is not None]
    assert any(op.type == "Tfuse>Attention" for op in graph.get_operations())
    assert not any(701 in shape.as_list() and 703 in shape.as_list() for shape in shapes)


# ---- dropout ----


@both
@pytest.mark.skipif(not _SCORES_TOLD, reason="this Keras computes the scores in any case")
def test_dropout(kind, jit):
    """With values of 1 a row of weights sums to the share that was kept: the mean is 1, and rows differ."""
    ours = KINDS[kind][0](**KINDS[kind][2], dropout=0.4, seed=7, use_bias=False)
    again = KINDS[kind][0](**KINDS[kind][2], dropout=0.4, seed=7, use_bias=False)
    rows = {}
    for layer in (ours, again):
        layer.build((4, 64, WIDTH), (4, 64, WIDTH))
        layer.set_weights([np.ones(w.shape, "float32") / (WIDTH if i < 3 else 24) for i, w in enumerate(layer.weights)
                           if w.dtype == "float32"] + [np.asarray(w) for w in layer.weights if w.dtype != "float32"])
        step = tf.function(functools.partial(layer, training=True), jit_compile=jit)
        x = tf.ones([4, 64, WIDTH])
        rows[layer] = [step(x, x).numpy()[..., 0] for _ in range(2)]
    first, second = rows[ours]
    assert abs(first.mean() - 1) < 0.02 and 0.03 < first.std() < 0.2
    assert not np.array_equal(first, second)
    assert np.array_equal(rows[again], rows[ours])  # the same seed
    np.testing.assert_allclose(ours(x, x, training=False)[..., 0], np.ones((4, 64)), rtol=1e-5)
    assert not reasons()


# ---- what is left to Keras ----


@both
@pytest.mark.parametrize("training", [False, True])
def test_dropout_of_everything(kind, training):
    """Keras takes a rate of 1, and gives the output's bias while training; tfuse.attention does not take it."""
    ours, stock = pair(kind, dropout=1.0)
    got, want = (layer(QUERY, VALUE, use_causal_mask=True, training=training) for layer in (ours, stock))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    bias, = [w for w in stock.weights if w.path.endswith("attention_output/bias")]
    assert np.allclose(got, np.broadcast_to(bias, got.shape)) == training
    assert not served() and (not _SCORES_TOLD or reasons()[kind] == "dropout leaves nothing")


@both
def test_scores(kind):
    ours, stock = pair(kind)
    got, want = (layer(QUERY, VALUE, attention_mask=MASK, use_causal_mask=True, return_attention_scores=True)
                 for layer in (ours, stock))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert got[1].shape == (BATCH, 4, QUERIES, KEYS)
    assert not served() and list(reasons()) == [kind]
    if _SCORES_TOLD:
        assert reasons()[kind] == "return_attention_scores"


@pytest.mark.parametrize("axes", [(2,), (1, 2)])
def test_attention_axes(axes):
    x = normal(2, 3, 4, WIDTH)
    ours = tfuse.MultiHeadAttention(2, 5, attention_axes=axes)
    stock = keras.layers.MultiHeadAttention(2, 5, attention_axes=axes)
    for layer in (ours, stock):
        layer.build(x.shape, x.shape)
    ours.set_weights(stock.get_weights())
    np.testing.assert_allclose(ours(x, x), stock(x, x), rtol=1e-5, atol=1e-6)
    assert not served() and reasons()


@both
def test_a_class_with_attention_of_its_own(kind):
    """It gets what Keras's layers would give it: a mask, and heads that are repeated."""
    seen = {}

    class Own(KINDS[kind][0]):
        def _compute_attention(self, query, key, value, attention_mask=None, *others, **options):
            seen.update(mask=attention_mask, heads=key.shape[2])
            return query, None

    Own(**KINDS[kind][2])(QUERY, VALUE, value_mask=LENGTHS, use_causal_mask=True)
    assert seen["mask"].shape == (BATCH, QUERIES, KEYS) and seen["heads"] == 4
    np.testing.assert_array_equal(seen["mask"], LENGTHS[:, None] & np.tri(QUERIES, KEYS, dtype=bool))


# ---- models ----


def model_of(layer):
    """A model with one attention layer, and weights that do not depend on its class."""
    x = keras.Input((QUERIES, WIDTH))
    model = keras.Model(x, keras.layers.Dense(1)(layer(x, x, use_causal_mask=True)))
    model.set_weights([np.random.default_rng(i).normal(size=w.shape) * 0.3 for i, w in enumerate(model.get_weights())])
    return model


@both
def test_training_follows_keras(kind, jit):
    ours, stock, needed = KINDS[kind]
    losses = []
    for make in (ours, stock):
        model = model_of(make(**needed))
        model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=jit)
        x = np.random.default_rng(1).normal(size=(16, QUERIES, WIDTH)).astype("float32")
        losses.append(model.fit(x, x[..., :1], batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"])
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    if _SCORES_TOLD and not (jit and _library.xla_status()):
        assert served()


@both
def test_saved_files_both_ways(kind, tmp_path):
    ours, stock, needed = KINDS[kind]
    for first, second in (ours, stock), (stock, ours):
        model, other = model_of(first(**needed)), model_of(second(**needed))
        other.set_weights([np.zeros(w.shape) for w in other.get_weights()])
        model.save_weights(tmp_path / "model.weights.h5")
        other.load_weights(tmp_path / "model.weights.h5")
        want = model(QUERY).numpy()
        np.testing.assert_allclose(other(QUERY), want, rtol=1e-5, atol=1e-5)
        model.save(tmp_path / "model.keras")
        same = keras.saving.load_model(tmp_path / "model.keras")
        assert type(same.layers[1]) is first and np.array_equal(same(QUERY), want)
    # A file of Keras's layers, loaded with ours in their place.
    name = stock.__name__
    loaded = keras.saving.load_model(tmp_path / "model.keras", custom_objects={name: ours})
    assert np.array_equal(loaded(QUERY), want) and [w.path for w in same.weights] == [w.path for w in loaded.weights]


@both
def test_config(kind):
    ours, stock, needed = KINDS[kind]
    options = {**needed, "dropout": 0.1, "use_bias": False, "kernel_initializer": "zeros", "name": "a"}
    config = ours(**options).get_config()
    assert config == stock(**options).get_config()
    assert ours.from_config(config).get_config() == config
    assert inspect.signature(ours.__init__) == inspect.signature(stock.__init__)
    assert keras.saving.get_registered_name(ours) == "tfuse>" + ours.__name__


@both
def test_functional_model_of_unknown_lengths(kind):
    ours, stock = pair(kind)
    query, value = keras.Input((None, WIDTH)), keras.Input((None, WIDTH))
    got, want = (keras.Model([query, value], layer(query, value, use_causal_mask=True)) for layer in (ours, stock))
    for queries, keys in (QUERIES, KEYS), (3, 2):
        inputs = [QUERY[:, :queries], VALUE[:, :keys]]
        np.testing.assert_allclose(got.predict(inputs, verbose=0), want.predict(inputs, verbose=0), rtol=1e-5, atol=1e-5)


def test_unknown_lengths_in_xla():
    skip_broken_xla()
    ours, stock = pair("GroupedQueryAttention")
    spec = tf.TensorSpec([None, None, WIDTH])
    f = tf.function(lambda q, v: ours(q, v, use_causal_mask=True), input_signature=[spec, spec], jit_compile=True)
    np.testing.assert_allclose(f(QUERY, VALUE), stock(QUERY, VALUE, use_causal_mask=True), rtol=1e-5, atol=1e-5)
