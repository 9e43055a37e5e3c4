"""Sums of segments against NumPy, sorted and not; what is dropped and what is refused; the same bits."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from tfuse._core import _library
from tfuse.cases import as64

CLOSE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-13, "int32": 0, "int64": 0}


@pytest.mark.parametrize("dtype", CLOSE)
def test_against_numpy(device, dtype):
    rng = np.random.default_rng(5)
    for _ in range(60):
        rows, segments = int(rng.choice([0, 1, 6, 130, 2500])), int(rng.choice([1, 3, 40, 900]))
        inner = [(), (1,), (3, 2), (4, 16), (513,)][rng.integers(5)]
        data = tf.cast(tf.constant(rng.normal(size=(rows, *inner)) * 9), dtype)
        ids = rng.integers(-2, segments, rows)
        wide = as64(data)
        for sorted in (False, True):
            ids = np.sort(np.maximum(ids, 0)) if sorted else ids
            want, size = np.zeros((2, segments, *inner))
            np.add.at(want, ids[ids >= 0], wide[ids >= 0])
            np.add.at(size, ids[ids >= 0], np.abs(wide[ids >= 0]))
            given = tf.constant(ids, [tf.int32, tf.int64][rng.integers(2)])
            if sorted:
                last = int(ids[-1]) + 1 if rows else 0
                got, again = tfuse.segment_sum(data, given), tfuse.segment_sum(data, given, num_segments=segments)
                assert got.shape == [last, *inner] and np.array_equal(as64(got), as64(again)[:last])
                got = again
            else:
                got = tfuse.unsorted_segment_sum(data, given, segments)
                assert np.array_equal(as64(got), as64(tfuse.unsorted_segment_sum(data, given, segments)))
            assert got.dtype == data.dtype and got.shape == want.shape
            assert np.all(np.abs(as64(got) - want) <= CLOSE[dtype] * size), (rows, segments, inner, sorted)


def test_integers_wrap(device):
    data = tf.constant([2**31 - 1, 5, 7], tf.int32)
    assert tfuse.segment_sum(data, [0, 0, 1]).numpy().tolist() == [-2**31 + 4, 7]


def test_ids_of_several_axes(device):
    data, ids = tf.reshape(tf.range(24.0), [2, 3, 4]), tf.constant([[0, 2, 0], [-1, 2, 1]])
    assert np.array_equal(tfuse.unsorted_segment_sum(data, ids, 4), tf.math.unsorted_segment_sum(data, ids, 4))


def test_number_of_segments_may_be_a_tensor(device):
    data, ids = tf.ones([5, 2]), tf.constant([0, 0, 1, 3, 3])
    one = tf.function(lambda data, ids: tfuse.segment_sum(data, ids), autograph=False)
    assert np.array_equal(one(data, ids), tf.math.segment_sum(data, ids))
    two = tf.function(lambda data, ids, n: tfuse.unsorted_segment_sum(data, ids, n), autograph=False)
    assert np.array_equal(two(data, ids, tf.constant(6)), tf.math.unsorted_segment_sum(data, ids, 6))


def test_a_long_segment_among_short_ones(device):
    rng = np.random.default_rng(2)
    ids = np.sort(np.concatenate([np.full(20000, 5), rng.integers(0, 300, 3000)]))
    data = tf.constant(rng.normal(size=(23000, 5)), tf.float32)
    want = np.zeros((300, 5))
    np.add.at(want, ids, as64(data))
    assert np.allclose(tfuse.segment_sum(data, tf.constant(ids), num_segments=300), want, atol=1e-4)


def test_two_million_values_in_a_segment(device):
    """Whole numbers, whose sum double precision has to the last digit."""
    values = np.random.default_rng(3).integers(0, 1 << 17, 2_000_003).astype(np.float32)
    got = tfuse.segment_sum(tf.constant(values), tf.zeros(values.shape, tf.int32))
    assert np.array_equal(got, [np.float32(values.sum(dtype=np.float64))])


def test_nothing_comes_from_the_host(device, monkeypatch):
    """An int32 constant lives in the host's memory, and waiting for it takes longer than the sum."""
    monkeypatch.setattr(_library, "without_gpu", lambda: False)
    f = tf.function(lambda data, ids: tfuse.segment_sum(data, ids, num_segments=2), autograph=False)
    data, ids = tf.ones([3, 4]), tf.constant([0, 1, 1], tf.int64)
    node = next(o for o in f.get_concrete_function(data, ids).graph.get_operations() if o.type == "Tfuse>SegmentSum")
    assert node.inputs[2].op.type != "Const" and node.inputs[2].shape == [0]
    assert np.array_equal(f(data, ids), [[1] * 4, [2] * 4])


def test_refused_on_the_cpu():
    with tf.device("CPU:0"):
        for message, call in [
                ("segment_ids must be sorted, got 2 before 1", lambda: tfuse.segment_sum(tf.ones([3]), [0, 2, 1])),
                ("segment_ids must be from 0 up to the 3 segments, got -1",
                 lambda: tfuse.segment_sum(tf.ones([3]), [-1, 0, 2])),
                ("segment_ids must be from 0 up to the 3 segments, got 3",
                 lambda: tfuse.unsorted_segment_sum(tf.ones([3]), [0, 3, 1], 3))]:
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                call()
    with pytest.raises(ValueError, match="segment_sum: num_segments must be given inside jit_compile=True"):
        tf.function(lambda data, ids: tfuse.segment_sum(data, ids), jit_compile=True, autograph=False)(
            tf.ones([3]), tf.constant([0, 1, 2]))
