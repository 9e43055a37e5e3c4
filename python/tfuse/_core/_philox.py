"""Which elements dropout drops, as kernels/core/philox.h decides it: for TensorFlow, and for NumPy references."""

import keras
import numpy as np
import tensorflow as tf

_MASK = 0xFFFFFFFF
_ROUNDS = 7


def kept(shape, seed, rate):
    """Which elements of a tensor of `shape` are kept; a boolean tensor. seed: int64 scalar tensor."""
    count = tf.reduce_prod(tf.cast(shape, tf.int64))
    lanes = tf.stack(_lanes(tf.range((count + 7) // 8), seed, tf.bitwise.right_shift), -1)
    return tf.reshape(tf.reshape(lanes, [-1])[:count] >= _drop_below(rate), shape)


def kept_at(elements, seed, rate):
    """Which of the elements with these numbers are kept; int64 and boolean tensors of one shape."""
    lanes = tf.stack(_lanes(elements // 8, seed, tf.bitwise.right_shift), -1)
    return tf.reduce_sum(tf.where(tf.one_hot(elements % 8, 8, True, False), lanes, 0), -1) >= _drop_below(rate)


def kept_numpy(shape, seed, rate):
    """The same as an array, from an integer seed."""
    count = int(np.prod(shape))
    lanes = np.stack(_lanes(np.arange((count + 7) // 8, dtype=np.int64), np.int64(seed), np.right_shift), -1)
    return lanes.reshape(-1)[:count].reshape(shape) >= _drop_below(rate)


def dropped(x, seed, rate):
    """Dropout of x in plain TensorFlow: x / (1 - rate) where kept, else 0."""
    rate = float(np.float32(rate))  # the op's attribute is a float
    return tf.where(kept(tf.shape(x), seed, rate), x * tf.cast(1 / (1 - rate), x.dtype), tf.zeros([], x.dtype))


def seed_tensor(seed):
    """An int64 scalar from what users give as a seed: an integer, a tensor, a keras.random.SeedGenerator, or None, which
    draws one anew at every call, also in every call of a traced function."""
    if seed is None:
        return tf.random.uniform([], tf.int64.min, tf.int64.max, tf.int64)
    if isinstance(seed, keras.random.SeedGenerator):
        return tf.bitcast(tf.cast(seed.next(), tf.uint32), tf.int64)
    if isinstance(seed, (int, np.integer)):  # any number of 64 bits, signed or not
        return tf.constant(np.array(int(seed) & (2**64 - 1), np.uint64).astype(np.int64))
    return tf.cast(seed, tf.int64)


def _lanes(counter, key, shift):
    """The eight 16-bit numbers of each counter. Words of 32 bits are kept in int64, whose products wrap as unsigned ones."""
    high = lambda v: shift(v, 32) & _MASK
    a, b, c, d = counter & _MASK, high(counter), counter * 0, counter * 0
    k0, k1 = key & _MASK, high(key)
    for _ in range(_ROUNDS):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = high(q) ^ b ^ k0, q & _MASK, high(p) ^ d ^ k1, p & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return [lane for word in (a, b, c, d) for lane in (word & 0xFFFF, shift(word, 16))]


def _drop_below(rate):
    return int(np.float32(rate) * np.float32(65536) + np.float32(0.5))
