"""tfuse.LanguageModelHead: trained beside logits and a loss; saved, copied and quantized with the embedding it shares."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import GPUS
from tfuse import cases

RNG = np.random.default_rng(5)
X, LABELS = tf.constant(RNG.normal(size=(3, 7, 6)), tf.float32), tf.constant(RNG.integers(0, 11, (3, 7)))
TEXT = RNG.integers(1, 37, (64, 13)).astype("int32")


def close(got, want, tolerance=1e-5):
    assert cases.error(tf.convert_to_tensor(got), cases.as64(tf.convert_to_tensor(want))) <= tolerance


def language_model(head=None, mask=False, dtype=None):
    """A model that trains, one that gives logits, and the head, a LanguageModelHead on tied embeddings unless given."""
    keras.utils.set_random_seed(1)
    tokens, labels = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(37, 16, mask_zero=mask, dtype=dtype)
    hidden = keras.layers.Dense(16, "tanh", dtype=dtype)(embedding(tokens))
    head = head or tfuse.LanguageModelHead(embedding, use_bias=True, dtype=dtype)
    return keras.Model([tokens, labels], head(hidden, labels)), keras.Model(tokens, head(hidden)), head


@pytest.mark.parametrize("dtype", [None, "mixed_bfloat16"])
def test_head_trains_like_logits_and_a_loss(jit, dtype):
    training, logits, head = language_model(dtype=dtype)
    training.compile(keras.optimizers.SGD(0.5), jit_compile=jit)
    ours = training.fit([TEXT[:, :-1], TEXT[:, 1:]], epochs=3, batch_size=16, shuffle=False, verbose=0).history["loss"]
    _, stock_model, _ = language_model(dtype=dtype)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    stock_model.compile(keras.optimizers.SGD(0.5), loss, jit_compile=jit)
    theirs = stock_model.fit(TEXT[:, :-1], TEXT[:, 1:], epochs=3, batch_size=16, shuffle=False, verbose=0).history["loss"]
    assert ours[-1] < ours[0]
    close(ours, theirs, 1e-2 if dtype else 1e-3 if GPUS else 1e-4)
    assert len(training.trainable_weights) == 4  # the table is one weight
    close(training.evaluate([TEXT[:, :-1], TEXT[:, 1:]], verbose=0), training([TEXT[:, :-1], TEXT[:, 1:]]), 1e-2)


def test_head_saves_and_loads(tmp_path):
    training, logits, _ = language_model()
    training.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    head = next(layer for layer in again.layers if isinstance(layer, tfuse.LanguageModelHead))
    assert head.embedding is next(layer for layer in again.layers if type(layer) is keras.layers.Embedding)
    inputs = [TEXT[:, :-1], TEXT[:, 1:]]
    assert np.array_equal(again(inputs), training(inputs))
    json.dumps(head.get_config())
    own = tfuse.LanguageModelHead(vocabulary=9, label_smoothing=0.1, ignore_class=0, z_loss=1e-4, name="own")
    assert tfuse.LanguageModelHead.from_config(own.get_config()).get_config() == own.get_config()


def quantize(embedding, mode):
    """Quantizes an embedding, if this Keras can."""
    embedding._tracker.unlock()
    try:
        if "groups" in mode:
            embedding.quantize("int4", config=keras.quantizers.Int4QuantizationConfig(block_size=8))
        else:
            embedding.quantize(mode.split()[0])
        if "lora" in mode:
            embedding.enable_lora(2)
            embedding.lora_embeddings_b.assign(RNG.normal(size=(2, 16)))
    except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
        pytest.skip("this Keras has no %s: %s" % (mode, error))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("mode", ["int8", "int4", "int4 in groups", "int8 with lora", "int4 in groups with lora"])
def test_head_of_a_quantized_embedding(mode, dtype):
    """Logits and losses are of the table that the embedding itself looks up, whatever it is stored as."""
    embedding = keras.layers.Embedding(37, 16, dtype=dtype, embeddings_initializer="random_normal")
    head, hidden = tfuse.LanguageModelHead(embedding, dtype=dtype), tf.constant(RNG.normal(size=(5, 16)), tf.float32)
    head(hidden)
    quantize(embedding, mode)
    table = tf.cast(embedding(np.arange(37)), tf.float32)
    labels, tolerance = np.arange(5), 2e-2 if dtype == "mixed_bfloat16" else 1e-3 if GPUS else 1e-5
    logits = tf.matmul(hidden, table, transpose_b=True)
    close(tf.cast(head(hidden), tf.float32), logits, tolerance)
    close(head(hidden, labels), tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)), tolerance)


def test_head_of_a_quantized_model(tmp_path):
    training, model, head = language_model()
    embedding = head.embedding
    embedding.embeddings.assign(RNG.normal(size=(37, 16)))
    tokens, before = TEXT[:4, :-1], model(TEXT[:4, :-1])
    model.quantize("int8")
    assert keras.backend.standardize_dtype(embedding.embeddings.dtype) == "int8"
    close(model(tokens), before, 0.1)
    close(training([tokens, TEXT[:4, 1:]]), keras.ops.mean(keras.losses.sparse_categorical_crossentropy(
        TEXT[:4, 1:], model(tokens), from_logits=True)), 1e-3 if GPUS else 1e-5)
    model.save(tmp_path / "model.keras")
    assert np.array_equal(keras.saving.load_model(tmp_path / "model.keras")(tokens), model(tokens))


def sequential_model():
    embedding = keras.layers.Embedding(37, 16)
    return keras.Sequential([keras.Input((None,), dtype="int32"), embedding, keras.layers.Dense(16),
                             tfuse.LanguageModelHead(embedding)])


def model_of_models():
    """The embedding is in one inside, the head outside."""
    tokens, inner = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(37, 16)
    backbone = keras.Model(inner, keras.layers.Dense(16)(embedding(inner)))
    other = keras.layers.Embedding(37, 16)(tokens)
    return keras.Model(tokens, tfuse.LanguageModelHead(embedding)(backbone(tokens) + other))


@keras.saving.register_keras_serializable("tfuse_tests")
class Tokens(keras.layers.Layer):
    """The embedding's name is another one in every instance."""

    def __init__(self, **options):
        super().__init__(**options)
        self.embedding = keras.layers.Embedding(37, 16)

    def build(self, tokens_shape):
        self.embedding.build(tokens_shape)

    def call(self, tokens):
        return self.embedding(tokens)


def model_of_layers():
    tokens, layer = keras.Input((None,), dtype="int32"), Tokens()
    return keras.Model(tokens, tfuse.LanguageModelHead(layer.embedding)(keras.layers.Dense(16)(layer(tokens))))


TIED = {"training": lambda: language_model()[0], "logits": lambda: language_model()[1], "sequential": sequential_model,
        "embedding inside a model": model_of_models, "embedding inside a layer": model_of_layers}
COPIES = {"clone_model": keras.models.clone_model,
          "clone_model, recursive": lambda model: keras.models.clone_model(model, recursive=True),
          "from_config": lambda model: type(model).from_config(model.get_config()),
          "from_json": lambda model: keras.models.model_from_json(model.to_json()),
          "twice": lambda model: keras.models.clone_model(keras.models.model_from_json(model.to_json()))}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("kind", TIED)
def test_head_stays_tied_in_a_copy(kind, copy, tmp_path):
    model = TIED[kind]()
    again = COPIES[copy](model)
    *before, head = again.layers
    assert any(head.embedding is layer for part in before for layer in part._flatten_layers())
    assert again.count_params() == model.count_params()
    assert [w.shape for w in again.trainable_weights] == [w.shape for w in model.trainable_weights]
    table = model.layers[-1].embedding.embeddings
    assert not any(w is table for w in again.weights)
    inputs = [TEXT[:, :-1], TEXT[:, 1:]] if kind == "training" else TEXT[:, :-1]
    outputs = np.asarray(model(inputs))
    model.save_weights(tmp_path / "model.weights.h5")
    again.load_weights(tmp_path / "model.weights.h5")
    assert np.array_equal(again(inputs), outputs)
    again.save_weights(tmp_path / "again.weights.h5")
    model.set_weights([0 * w for w in model.get_weights()])
    model.load_weights(tmp_path / "again.weights.h5")
    assert np.array_equal(model(inputs), outputs)
    again.save(tmp_path / "again.keras")
    saved = keras.saving.load_model(tmp_path / "again.keras")
    assert np.array_equal(saved(inputs), outputs) and saved.count_params() == model.count_params()


def test_head_that_finds_no_embedding():
    """What shares a table in a model does not get one of its own unasked."""
    model = sequential_model()
    alone = tfuse.LanguageModelHead.from_config(model.layers[-1].get_config())
    with pytest.raises(ValueError, match="shares the table of layer 'embedding.*', and of the layers before it 0 can"):
        alone(X)
    tokens = keras.Input((None,), dtype="int32")
    two = keras.layers.Embedding(37, 16)(tokens) + keras.layers.Embedding(37, 16)(tokens)
    with pytest.raises(ValueError, match="of the layers before it 2 can"):
        tfuse.LanguageModelHead.from_config(model.layers[-1].get_config())(two)
    apart = tfuse.LanguageModelHead(keras.layers.Embedding(11, 6))  # of no model: a copy has its own
    again = tfuse.LanguageModelHead.from_config(apart.get_config())
    assert again(X).shape == [3, 7, 11] and again.embedding is not apart.embedding


def test_head_with_a_kernel_of_its_own():
    head = tfuse.LanguageModelHead(vocabulary=11, ignore_class=3)
    logits, loss = head(X), head(X, LABELS)
    assert logits.shape == [3, 7, 11] and loss.shape == [] and len(head.trainable_weights) == 1
    close(loss, tfuse.SparseCategoricalCrossentropy(ignore_class=3)(LABELS, logits), 1e-3 if GPUS else 1e-5)
    close(head.losses, [loss])
    with pytest.raises(ValueError, match="either embedding or vocabulary"):
        tfuse.LanguageModelHead()


@pytest.mark.parametrize("shape", [(3, 7), (3, 1), ()], ids=str)
def test_head_weighs_its_losses(shape):
    head, weight = tfuse.LanguageModelHead(vocabulary=11), tf.constant(RNG.random(shape), tf.float32)
    losses = keras.losses.sparse_categorical_crossentropy(LABELS, head(X), from_logits=True)
    loss = head(X, LABELS, sample_weight=weight)
    close(loss, tf.reduce_mean(losses * weight), 1e-3 if GPUS else 1e-5)
    close(head.losses, [loss])


def test_head_leaves_masked_rows_out():
    training, logits, _ = language_model(mask=True)
    tokens, labels = TEXT[:2, :-1].copy(), TEXT[:2, 1:]
    tokens[0, 5:] = 0
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits(tokens), from_logits=True)
    close(training([tokens, labels]), np.mean(losses.numpy()[tokens != 0]), 1e-3 if GPUS else 1e-5)


@pytest.mark.skipif(not hasattr(keras.quantizers, "Int8QuantizationConfig"), reason="this Keras has other formats")
def test_a_kernel_of_its_own_is_quantized(tmp_path):
    """To what keras.layers.Dense would keep; logits and loss are those of these values, and so is a copy from a file."""
    keras.utils.set_random_seed(1)
    hidden, labels = np.random.default_rng(0).normal(size=[4, 16]).astype("float32"), np.array([0, 3, 5, 9])
    head, dense = tfuse.LanguageModelHead(vocabulary=10, use_bias=True), keras.layers.Dense(10)
    model = keras.Sequential([keras.Input((16,)), head])
    dense.build((None, 16))
    dense.set_weights([head.kernel, head.bias])
    before = model(hidden)
    for layer in (dense, model):
        layer.quantize("int8")
    np.testing.assert_array_equal(head.kernel, dense._kernel)
    kernel = np.asarray(dense._kernel, "float32") / np.asarray(dense.kernel_scale)
    want = hidden @ kernel + np.asarray(head.bias)
    np.testing.assert_allclose(model(hidden), want, atol=1e-5)
    assert not np.allclose(before, want, atol=1e-5)
    loss = keras.losses.sparse_categorical_crossentropy(labels, want, from_logits=True)
    np.testing.assert_allclose(head(hidden, labels), np.mean(loss), rtol=1e-5)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.layers[-1].kernel.dtype == "int8"
    np.testing.assert_allclose(again(hidden), want, atol=1e-5)
    tied = tfuse.LanguageModelHead(keras.layers.Embedding(4, 16))
    tied(hidden)
    with pytest.raises(NotImplementedError, match="only a kernel of its own is quantised, to int8"):
        tied.quantize("int8")
