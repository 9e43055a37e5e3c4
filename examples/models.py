"""Whole models of Keras and KerasHub, or as they are commonly written in Keras, trained with tfuse and without.

  python examples/models.py --model vit --mode tfuse+xla             # by fit(), and its step alone
  python examples/models.py --model vit --evaluate                   # by evaluate() and predict() too
  python examples/models.py --model gpt2 --batch 1                   # of another size
  python examples/models.py --model gpt2 --reads                     # what it costs to read losses
  python examples/models.py --model llama --float8                   # Dense layers in float8, by model.quantize("float8")
  python examples/models.py --model llama --mode tfuse --small       # on a CPU, in seconds

Nothing here is written for tfuse: its modes add tfuse.enable(), and that is all. workloads.py has the sizes and the data,
fitting.py what is measured.
"""
import functools
import itertools
import warnings

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import tfuse
import workloads
from fitting import on_the_device, reads, ways
from training import MODES, peak_memory, reset_peak

LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
OPTIMIZERS = {
    "adamw": functools.partial(keras.optimizers.AdamW, weight_decay=workloads.DECAY, epsilon=workloads.EPSILON),
    "sgd": functools.partial(keras.optimizers.SGD, momentum=workloads.MOMENTUM, weight_decay=workloads.SGD_DECAY),
}


# ---- GPT-2: one product for query, key and value, and a head that shares the embedding, as in most programs on the Web ----


class Block(layers.Layer):
    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        dense = functools.partial(layers.Dense, kernel_initializer=keras.initializers.RandomNormal(stddev=0.02))
        self.norm1, self.norm2 = layers.LayerNormalization(epsilon=1e-5), layers.LayerNormalization(epsilon=1e-5)
        self.qkv, self.project = dense(3 * width), dense(width)
        self.expand = dense(4 * width, activation=lambda x: keras.activations.gelu(x, approximate=True))
        self.contract = dense(width)

    def call(self, x):
        _, length, width = x.shape
        split = lambda t: ops.reshape(t, (-1, length, self.heads, width // self.heads))
        query, key, value = map(split, ops.split(self.qkv(self.norm1(x)), 3, axis=-1))
        y = ops.dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(ops.reshape(y, (-1, length, width)))
        return x + self.contract(self.expand(self.norm2(x)))


class GPT2(keras.Model):
    def __init__(self, sizes, **kwargs):
        super().__init__(**kwargs)
        embedding = functools.partial(layers.Embedding, embeddings_initializer=keras.initializers.RandomNormal(stddev=0.02))
        self.tokens = embedding(sizes.vocabulary, sizes.width)
        self.positions = embedding(sizes.length, sizes.width)
        self.blocks = [Block(sizes.width, sizes.heads) for _ in range(sizes.layers)]
        self.norm = layers.LayerNormalization(epsilon=1e-5)

    def call(self, tokens):
        x = self.tokens(tokens) + self.positions(ops.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return ops.matmul(self.norm(x), ops.transpose(self.tokens.embeddings))


def gpt2(sizes):
    model = GPT2(sizes)
    model(np.zeros((1, sizes.length), "int64"))  # makes its weights
    return model


# ---- ViT ----


class ClassAndPositions(layers.Layer):
    """Puts a learned token before the patches, and adds what is learned of each place."""

    def build(self, shape):
        _, patches, width = shape
        self.token = self.add_weight(name="token", shape=(1, 1, width), initializer="zeros")
        self.positions = self.add_weight(name="positions", shape=(1, patches + 1, width), initializer="random_normal")

    def call(self, x):
        token = ops.broadcast_to(self.token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([token, x], axis=1) + self.positions


def vit(sizes):
    inputs = keras.Input((sizes.image, sizes.image, 3))
    x = layers.Conv2D(sizes.width, sizes.patch, strides=sizes.patch)(inputs)
    x = layers.Reshape((-1, sizes.width))(x)
    x = ClassAndPositions()(x)
    for _ in range(sizes.layers):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.Add()([x, layers.MultiHeadAttention(sizes.heads, sizes.width // sizes.heads)(y, y)])
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.Dense(4 * sizes.width, activation="gelu")(y)
        x = layers.Add()([x, layers.Dense(sizes.width)(y)])
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return keras.Model(inputs, layers.Dense(sizes.classes)(x[:, 0]))


# ---- KerasHub's, with random weights ----


def bert(sizes):
    import keras_hub
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=sizes.vocabulary, num_layers=sizes.layers, num_heads=sizes.heads, hidden_dim=sizes.width,
        intermediate_dim=4 * sizes.width, dropout=sizes.dropout, max_sequence_length=sizes.length)
    return keras.Model(backbone.input, layers.Dense(sizes.vocabulary)(backbone.output["sequence_output"]))


def llama(sizes):
    import keras_hub
    backbone = keras_hub.models.LlamaBackbone(
        vocabulary_size=sizes.vocabulary, num_layers=sizes.layers, num_query_heads=sizes.heads,
        num_key_value_heads=sizes.shared_heads, hidden_dim=sizes.width, intermediate_dim=sizes.inner,
        layer_norm_epsilon=1e-5)
    return keras.Model(backbone.input, backbone.token_embedding(backbone.output, reverse=True))


def t5(sizes):
    import keras_hub
    backbone = keras_hub.models.T5Backbone(
        vocabulary_size=sizes.vocabulary, num_layers=sizes.layers, num_heads=sizes.heads, hidden_dim=sizes.width,
        intermediate_dim=sizes.inner, dropout=sizes.dropout, use_gated_activation=True, tie_embedding_weights=False,
        activation=functools.partial(keras.activations.gelu, approximate=True))
    return keras.Model(backbone.input, backbone.token_embedding(backbone.output["decoder_sequence_output"], reverse=True))


# ---- a language model of LSTMs ----


def lstm(sizes):
    inputs = x = keras.Input((sizes.length,), dtype="int64")
    x = layers.Embedding(sizes.vocabulary, sizes.width)(x)
    for _ in range(sizes.layers):
        x = layers.LSTM(sizes.width, return_sequences=True)(x)
    return keras.Model(inputs, layers.Dense(sizes.vocabulary)(x))


# ---- convolutional networks: Keras's own, with random weights, and a U-Net ----


def application(name):
    """A model of keras.applications, which gives logits. Some normalise their input, of 0 to 255, themselves."""
    return lambda sizes: getattr(keras.applications, name)(
        weights=None, input_shape=(sizes.image, sizes.image, 3), classes=sizes.classes, classifier_activation=None)


def unet(sizes):
    """A class for each pixel: on the way down images are halved and channels doubled, and on the way up the other way round,
    each time beside what was there on the way down."""
    def twice(x, width):
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    inputs = x = keras.Input((sizes.image, sizes.image, 3))
    passed = []
    for level in range(sizes.levels):
        passed.append(twice(x, sizes.width << level))
        x = layers.MaxPooling2D()(passed[-1])
    x = twice(x, sizes.width << sizes.levels)
    for level in reversed(range(sizes.levels)):
        x = layers.Conv2DTranspose(sizes.width << level, 2, strides=2)(x)
        x = twice(layers.Concatenate()([passed[level], x]), sizes.width << level)
    return keras.Model(inputs, layers.Conv2D(sizes.classes, 1)(x))


BUILDERS = {
    "gpt2": gpt2, "vit": vit, "bert": bert, "llama": llama, "t5": t5, "lstm": lstm,
    "resnet50": application("ResNet50"), "convnext": application("ConvNeXtTiny"),
    "efficientnet": application("EfficientNetB0"), "mobilenet": application("MobileNetV2"), "unet": unet,
}


# ---- training ----


def set_up(mode, policy):
    """What a process does before it makes a model."""
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    keras.config.set_dtype_policy(policy)
    if mode.startswith("tfuse"):
        tfuse.enable()


def build(name, sizes, float8=False):
    """The model, with the same weights every time."""
    keras.utils.set_random_seed(1)
    model = BUILDERS[name](sizes)
    if float8:
        with warnings.catch_warnings():  # Keras names each layer that has no float8
            warnings.simplefilter("ignore")
            model.quantize("float8")
    return model


def compile_model(model, jit_compile, optimizer="adamw", rate=None):
    optimizer = OPTIMIZERS[optimizer](rate or workloads.RATES[optimizer])
    model.compile(optimizer, LOSS(), jit_compile=jit_compile)
    optimizer.build(model.trainable_variables)


def train_function(model, batches, jit_compile, optimizer="adamw", rate=None):
    """A function that trains one step as fit() does, on the next batch, and returns its loss, for which it does not wait.
    After the last batch comes the first."""
    compile_model(model, jit_compile, optimizer, rate)
    model.make_train_function()
    batches = itertools.cycle(batches)

    def step():
        model.reset_metrics()  # or the loss were the mean of all steps
        return model.train_function(iter([next(batches)]))["loss"]

    return step


def main(options):
    set_up(options.mode, "mixed_bfloat16")
    workload = workloads.WORKLOADS[options.model]
    sizes = workload.sizes(options.small, batch=options.batch)
    batches = [workload.batch(sizes, i) for i in range(workloads.BATCHES)]
    model = build(options.model, sizes, options.float8)
    compile_model(model, options.mode.endswith("xla"), workload.optimizer)
    if options.reads:
        print(reads(model, batches, "%s, %s, %s" % (workload.title, workload.step(options.small, batch=options.batch),
                                                    options.mode), options.steps))
    else:
        workloads.measure(options, workload.count(batches[0][1]), ways(model, batches, options.evaluate), reset_peak,
                          peak_memory)


if __name__ == "__main__":
    main(workloads.parse(__doc__, MODES, ("--evaluate", "measure evaluate() too, and predict() of one class for each image"),
                         ("--reads", "show what fit() takes where losses are read, and end"),
                         ("--float8", "quantise the model to float8 before it is trained")))
