"""transpose, space_to_depth and depth_to_space against NumPy, on hundreds of random shapes: bits are moved, all is exact."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from moving import DTYPES, some, values


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_permutations(device, dtype):
    rng = np.random.default_rng(DTYPES.index(dtype))
    for _ in range(60):
        rank = int(rng.integers(1, 9))
        most = [0, 300, 70, 30, 12, 8, 6, 5, 4][rank]
        shape = [int(rng.choice([1, 2, 3, most, rng.integers(1, most + 1)])) for _ in range(rank)]
        perm = rng.permutation(rank).tolist()
        x = some(rng, shape, dtype)
        y = tfuse.transpose(x, perm)
        assert y.dtype == x.dtype
        assert np.array_equal(values(y), np.transpose(values(x), perm)), (shape, perm)
        spelled = [axis - rank if rng.integers(2) else axis for axis in perm]
        assert np.array_equal(values(tfuse.transpose(x, spelled)), values(y))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_and_what_is_left_of_them(device, dtype):
    """Sizes around those of tiles and packs, with an axis beside them."""
    rng = np.random.default_rng(100 + DTYPES.index(dtype))
    for shape, perm in [((64, 64), (1, 0)), ((65, 63), (1, 0)), ((3, 5000), (1, 0)), ((5000, 3), (1, 0)),
                        ((3, 128, 256), (0, 2, 1)), ((128, 3, 256), (2, 1, 0)), ((37, 5, 129), (2, 1, 0)),
                        ((257, 130), (1, 0)), ((3, 33, 5, 64), (0, 2, 1, 3)), ((2, 9, 11, 31), (0, 3, 1, 2)),
                        ((1, 1), (1, 0)), ((0, 4), (1, 0)), ((191, 255), (1, 0)), ((130, 3, 65), (2, 1, 0)),
                        ((3, 7, 41, 33), (0, 3, 1, 2)), ((2, 200, 129), (0, 2, 1)), ((63, 127), (1, 0)), ((509, 32), (1, 0)),
                        ((70000, 2), (0, 1)), ((300000,), (0,))]:
        x = some(rng, shape, dtype)
        assert np.array_equal(values(tfuse.transpose(x, perm)), np.transpose(values(x), perm)), shape


def test_many_axes(device):
    """More than the library has: joined where they stay neighbours, or of one element."""
    x = some(np.random.default_rng(1), [2, 1, 3, 2, 2, 1, 3, 2, 2, 2], "float32")
    for perm in [[0, 1, 2, 3, 7, 8, 9, 4, 5, 6], list(range(10)), [5, 1, 0, 2, 3, 4, 9, 8, 7, 6]]:
        assert np.array_equal(tfuse.transpose(x, perm), np.transpose(x, perm))


def test_what_is_known_while_tracing():
    traced = tf.function(lambda x: tfuse.transpose(x, [2, 0, 1]), input_signature=[tf.TensorSpec([None, 3, 4])])
    assert traced.get_concrete_function().output_shapes.as_list() == [4, None, 3]
    anything = tf.function(lambda x: tfuse.transpose(x, [1, 0]), input_signature=[tf.TensorSpec(None)])
    assert anything.get_concrete_function().output_shapes.as_list() == [None, None]
    assert np.array_equal(anything(tf.constant([[1.0, 2.0]])), [[1.0], [2.0]])
    late = tf.function(lambda x, perm: tfuse.transpose(x, perm))
    assert np.array_equal(late(tf.constant([[1.0, 2.0]]), tf.constant([1, 0])), [[1.0], [2.0]])


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_blocks(device, data_format):
    """There and back is the same, for every dtype and blocks of several sizes; and there is what stock TensorFlow has."""
    rng = np.random.default_rng(2)
    for _, dtype in zip(range(40), itertools.cycle(DTYPES)):
        size = int(rng.integers(2, 5))
        b, h, w, c = (int(rng.integers(1, 6)) for _ in range(4))
        shape = [b, h * size, w * size, c] if data_format == "NHWC" else [b, c, h * size, w * size]
        x = some(rng, shape, dtype)
        y = tfuse.space_to_depth(x, size, data_format)
        assert np.array_equal(values(tfuse.depth_to_space(y, size, data_format)), values(x))
        last = values(x) if data_format == "NHWC" else np.transpose(values(x), [0, 2, 3, 1])
        stock = tf.nn.space_to_depth(tf.constant(last.astype(np.float64)), size)
        want = stock if data_format == "NHWC" else tf.transpose(stock, [0, 3, 1, 2])
        assert np.array_equal(values(y).astype(np.float64), want)
