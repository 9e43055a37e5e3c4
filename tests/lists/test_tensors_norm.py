"""global_norm, clip_by_global_norm and all_finite beyond their cases: empty and mixed lists, slices, bad values."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse


def test_norms_of_lists(device):
    assert float(tfuse.global_norm([])) == 0 and bool(tfuse.all_finite([])) and tfuse.clip_by_global_norm([], 1.0)[0] == []
    mixed = [tf.ones([3]), None, 2 * tf.ones([2], tf.float16), tf.constant(3.0, tf.float64)]
    assert float(tfuse.global_norm(mixed)) == pytest.approx(np.sqrt(3 + 8 + 9))
    clipped, norm = tfuse.clip_by_global_norm(mixed, 1.0)
    assert clipped[1] is None and [c.dtype for c in clipped if c is not None] == [m.dtype for m in mixed if m is not None]
    assert float(tfuse.global_norm(clipped)) == pytest.approx(1, rel=1e-3)
    slices = tf.IndexedSlices(2 * tf.ones([2, 2]), tf.constant([0, 3]), tf.constant([5, 2]))
    (half,), norm = tfuse.clip_by_global_norm([slices], 2.0)
    assert float(norm) == 4 and np.array_equal(half.values, np.ones([2, 2])) and half.dense_shape is slices.dense_shape


@pytest.mark.parametrize("use_norm", [0.5, 8.0, np.inf])
def test_clipping_by_a_norm_that_is_given(device, use_norm):
    """It counts in the place of the list's own."""
    tensors = [tf.constant([3.0, -4.0]), tf.constant([[12.0]])]
    want, _ = tf.clip_by_global_norm(tensors, 2.0, use_norm=tf.constant(use_norm))
    for norm in (use_norm, tf.constant(use_norm)):
        got, got_norm = tfuse.clip_by_global_norm(tensors, 2.0, use_norm=norm)
        assert float(got_norm) == use_norm
        assert all(np.allclose(g, w, rtol=1e-6, equal_nan=True) for g, w in zip(got, want))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_finite(device, bad):
    for dtype in ("float32", "float16", "bfloat16", "float64"):
        for size, at in [(1, 0), (7, 6), (100003, 100002), (100003, 0)]:
            x = np.zeros(size)
            assert bool(tfuse.all_finite([tf.ones([5], dtype), tf.constant(x, dtype)]))
            x[at] = bad
            tensors = [tf.ones([5], dtype), tf.constant(x, dtype), tf.constant([2])]
            assert not bool(tfuse.all_finite(tensors))
            if dtype == "float32":
                got, want = tfuse.clip_by_global_norm(tensors[:2], 1.0)[0], tf.clip_by_global_norm(tensors[:2], 1.0)[0]
                assert all(np.array_equal(np.isnan(g), np.isnan(w)) for g, w in zip(got, want))
    top = tf.constant([3e38])  # finite, though its square is not
    assert bool(tfuse.all_finite([top]))
