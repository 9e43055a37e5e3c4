"""GPT-2 in Keras, in two wordings: Keras's own, and tfuse's.

The model is plain Keras, and tfuse.enable() alone puts fused ops behind its layers. `Stock` and `Fused` name the five places
where more than that is gained, and how each of the two says it.
"""

import functools

import keras
import tensorflow as tf
from keras import layers, ops

import tfuse


class Stock:
    AdamW = keras.optimizers.AdamW

    def gelu(x):
        return keras.activations.gelu(x, approximate=True)

    def add_norm(x, update, norm):
        """The sum of both, normalised, and the sum."""
        x = x + update
        return norm(x), x

    def loss(x, embeddings, labels):
        """The mean cross entropy; the logits are x times the embeddings, [batch, length, vocabulary]."""
        logits = ops.matmul(x, ops.transpose(ops.cast(embeddings, x.dtype)))
        return ops.mean(ops.sparse_categorical_crossentropy(labels, ops.cast(logits, "float32"), from_logits=True))

    def attend_to_cache(query, keys, values, steps):
        seen = ops.arange(keys.shape[1]) < steps
        return ops.dot_product_attention(query, keys, values, mask=seen[None, None, None])


class Fused:
    AdamW = tfuse.optimizers.AdamW  # all variables in a few kernels
    gelu = tfuse.gelu  # as a Dense layer's activation, part of its matrix product

    def add_norm(x, update, norm):
        return tfuse.layer_norm(update, norm.gamma, norm.beta, epsilon=norm.epsilon, residual=x)

    def loss(x, embeddings, labels):
        return tfuse.linear_cross_entropy(  # in chunks: the logits never exist as a whole
            x, ops.cast(embeddings, x.dtype), labels, transpose_kernel=True, reduction="mean")

    def attend_to_cache(query, keys, values, steps):
        return tfuse.attention(query, keys, values, key_lengths=tf.fill([query.shape[0]], steps))


# ---- the model ----


class Block(layers.Layer):
    """Attention and a perceptron, each added to the stream x. What is to be added last is handed on, so that the addition
    and the norm behind it are one step."""

    def __init__(self, parts, width, heads, depth, **kwargs):
        super().__init__(**kwargs)
        self.parts, self.heads = parts, heads
        dense = functools.partial(layers.Dense, kernel_initializer=keras.initializers.RandomNormal(stddev=0.02))
        last = keras.initializers.RandomNormal(stddev=0.02 / (2 * depth)**0.5)
        self.norm1 = layers.LayerNormalization(epsilon=1e-5, name="norm1")
        self.query, self.key, self.value = (dense(width, name=name) for name in ("query", "key", "value"))
        self.project = dense(width, kernel_initializer=last, name="project")
        self.norm2 = layers.LayerNormalization(epsilon=1e-5, name="norm2")
        self.expand = dense(4 * width, activation=parts.gelu, name="expand")
        self.contract = dense(width, kernel_initializer=last, name="contract")

    def build(self, shape, _=None):
        for layer in (self.norm1, self.query, self.key, self.value, self.project, self.norm2, self.expand):
            layer.build(shape)
        self.contract.build((*shape[:-1], 4 * shape[-1]))

    def call(self, x, update, cache=None, steps=None):
        y, x = self.parts.add_norm(x, update, self.norm1)
        batch, length, width = y.shape
        query, key, value = (ops.reshape(layer(y), (batch or -1, length, self.heads, width // self.heads))
                             for layer in (self.query, self.key, self.value))
        if cache is None:
            y = ops.dot_product_attention(query, key, value, is_causal=True)
        else:  # y is step number `steps` alone; those before it are in the cache
            now = ops.reshape(ops.arange(cache[0].shape[1]) == steps - 1, (1, -1, 1, 1))
            cache = [ops.where(now, new, old) for old, new in zip(cache, (key, value))]
            y = self.parts.attend_to_cache(query, *cache, steps)
        update = self.project(ops.reshape(y, (batch or -1, length, width)))
        y, x = self.parts.add_norm(x, update, self.norm2)
        return x, self.contract(self.expand(y)), cache


class GPT2(keras.Model):
    def __init__(self, parts=Stock, vocabulary=50304, length=1024, depth=12, width=768, heads=12):
        super().__init__(name="gpt2")
        self.parts, self.length, self.width, self.heads = parts, length, width, heads
        self.normal = keras.initializers.RandomNormal(stddev=0.02)
        self.tokens = layers.Embedding(vocabulary, width, embeddings_initializer=self.normal, name="tokens")
        self.blocks = [Block(parts, width, heads, depth, name="block%d" % i) for i in range(depth)]
        self.norm = layers.LayerNormalization(epsilon=1e-5, name="norm")

    def build(self, shape=None):
        self.steps = self.add_weight(name="steps", dtype="int64", initializer="zeros", trainable=False)  # trained so far
        self.positions = self.add_weight(name="positions", shape=(self.length, self.width), initializer=self.normal)
        for layer in (self.tokens, *self.blocks, self.norm):
            layer.build((None, self.length, self.width))

    def call(self, tokens, caches=None, steps=None):
        """What the model makes of each token, [batch, length, width]; with caches, of one new token, and the new caches."""
        x = self.tokens(tokens)
        first = 0 if steps is None else steps - 1
        update = ops.slice(self.positions, (first, 0), (tokens.shape[1], self.width))
        update = ops.broadcast_to(update[None], ops.shape(x))
        new = []
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks)):
            x, update, cache = block(x, update, cache, steps)
            new.append(cache)
        x, _ = self.parts.add_norm(x, update, self.norm)
        return x if caches is None else (x, new)

    def mean_loss(self, tokens, labels):
        return self.parts.loss(self(tokens, training=True), self.tokens.embeddings, labels)

    def generate(self, prompt, count, temperature=0.7, seed=0):
        """Yields `count` tokens that go on behind the prompt, each from the one before it and the cache. The model has learned
        no position behind the cache's end: there it reads the last tokens once more, half a cache of them, and goes on."""
        shape = (1, self.length, self.heads, self.width // self.heads)
        caches = [[tf.zeros(shape, self.compute_dtype)] * 2 for _ in self.blocks]

        @tf.function
        def following(token, caches, steps, drawn):
            x, caches = self(ops.reshape(token, (1, 1)), caches, steps)
            logits = tf.matmul(tf.cast(x[:, 0], tf.float32), self.tokens.embeddings, transpose_b=True)
            seeds = tf.stack([tf.constant(seed, tf.int64), drawn])
            return tf.random.stateless_categorical(logits / temperature, 1, seeds)[0, 0], caches

        tokens, first, steps = list(prompt), 0, 0  # `first` is the token at the beginning of the cache
        while len(tokens) < len(prompt) + count:
            if steps == self.length:
                first, steps = len(tokens) - max(1, self.length // 2), 0
            token, steps = tokens[first + steps], steps + 1
            drawn = tf.constant(first + steps, tf.int64)
            token, caches = following(tf.constant(token, tf.int64), caches, tf.constant(steps), drawn)
            if first + steps == len(tokens):
                tokens.append(int(token))
                yield tokens[-1]
