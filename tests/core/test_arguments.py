"""What a careless user hands to a public function: it works as TensorFlow's own of that name, or is refused in clear words."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import core

import tfuse
from tfuse._core import _op

X = tf.constant([[3.0, 1.0, 2.0], [6.0, 5.0, 4.0]])
BYTES = tf.constant(np.arange(32).reshape(1, 4, 4, 2), tf.uint8)
RAGGED = tf.ragged.constant([[1.0, 2.0], [3.0]])


@pytest.mark.parametrize("name, arguments", [
    ("sort", (X, tf.constant(0))), ("argmax", (X, tf.constant(1))), ("reduce_sum", (X, tf.constant([0, 1]))),
    ("concat", ([[1.0, 2.0], [3]], 0)), ("concat", ([[1], [3]], 0)),
    ("histogram_fixed_width", (np.arange(5) / 5, tf.constant([0.0, 1.0], tf.float64), 3)),
    ("transpose", (BYTES, [0, 3, 1, 2])), ("transpose", (tf.complex(X, X), None, True)), ("concat", ([BYTES, BYTES], -1))])
def test_as_in_tensorflow(name, arguments):
    got, want = (getattr(module, name)(*arguments) for module in (tfuse, tf))
    assert got.dtype == want.dtype and np.array_equal(got, want)


def test_lists_of_tensors(jit):
    """Of one that is traced, no value is known."""
    f = tf.function(lambda x: tfuse.concat([[x[0, 0], x[0, 1]], [x[1, 2], 7]], 0), jit_compile=jit)
    assert np.array_equal(f(X), [3, 1, 4, 7])


def test_blocks_of_bytes():
    y = tfuse.space_to_depth(BYTES, 2)
    assert np.array_equal(y, tf.nn.space_to_depth(BYTES, 2)) and np.array_equal(tfuse.depth_to_space(y, 2), BYTES)
    assert "no kernels for uint8" in repr(tfuse.explain())


def test_a_range_of_another_dtype():
    counts = tfuse.histogram_fixed_width(np.arange(5) / 5, tf.constant([0.0, 1.0]), 5)
    assert counts.dtype == tf.int32 and tf.reduce_sum(counts) == 5


@pytest.mark.parametrize("message, call", [
    ("sort: axis must be an integer, or several, got 1.0", lambda: tfuse.sort(X, 1.0)),
    ("reduce_sum: axis must be an integer, or several, got '1'", lambda: tfuse.reduce_sum(X, "1")),
    ("argmax: axis must be one integer, got [0, 1]", lambda: tfuse.argmax(X, [0, 1])),
    ("argmin: axis must be known when a function is traced", lambda: tf.function(
        lambda axis: tfuse.argmin(X, axis), autograph=False)(tf.constant(1))),
    ("top_k: k must be an integer, got 2.0", lambda: tfuse.top_k(X, 2.0)),
    ("top_k: k must be one integer, got [2]", lambda: tfuse.top_k(X, [2])),
    ("top_k: index_type must be a dtype of integers, got float32", lambda: tfuse.top_k(X, 2, index_type=tf.float32)),
    ("histogram_fixed_width: dtype must be a dtype of integers, got float32",
     lambda: tfuse.histogram_fixed_width(X, [0.0, 1.0], dtype=tf.float32)),
    ("histogram: nbins must be an integer, got 2.5", lambda: tfuse.histogram(X, [0.0, 1.0], 2.5)),
    ("unsorted_segment_sum: num_segments must be an integer, got 2.7", lambda: tfuse.unsorted_segment_sum(X, [0, 1], 2.7)),
    ("bincount: minlength must be an integer, got 2.5", lambda: tfuse.bincount([1], minlength=2.5)),
    ("reduce_mean: input_tensor must be float32", lambda: tfuse.reduce_mean(BYTES)),
    ("argmax: input must be float32", lambda: tfuse.argmax(BYTES)),
    ("global_average_pool: x must be float32", lambda: tfuse.global_average_pool(BYTES)),
    ("histogram_fixed_width: values must be float32", lambda: tfuse.histogram_fixed_width(BYTES, [0, 1])),
    ("unique_with_counts: x must be float32", lambda: tfuse.unique_with_counts(BYTES[0, 0, 0])),
    ("conv: activation must be one of linear", lambda: tfuse.conv(tf.ones([1, 4, 4, 2]), tf.ones([1, 1, 2, 2]), activation="no")),
    ("reduce_sum: input_tensor must be a dense tensor, got a RaggedTensor", lambda: tfuse.reduce_sum(RAGGED)),
    ("sort: values must be a dense tensor, got a RaggedTensor", lambda: tfuse.sort(RAGGED)),
    ("max_pool: x must be a dense tensor, got a RaggedTensor", lambda: tfuse.max_pool(RAGGED, 2)),
    ("bincount: arr must be a dense tensor, got a SparseTensor", lambda: tfuse.bincount(tf.sparse.from_dense([1, 2])))])
def test_refused_in_clear_words(message, call):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value).startswith(message)


# ---- what fails in an eager call ----


class Counted:
    """Counts the runs of an op: by the short way, and by the wrapper that TensorFlow generates."""

    def __init__(self, monkeypatch, op, fails=None):
        self.runs, self.fails = 0, fails
        monkeypatch.setattr(_op, "execute", self.counting(_op.execute))
        monkeypatch.setattr(op, "_raw", self.counting(op._raw))

    def counting(self, run):
        def call(*arguments, **options):
            self.runs += 1
            if self.fails:
                raise self.fails
            return run(*arguments, **options)
        return call


@pytest.mark.parametrize("name, arguments", [("Softmax", [X, None]), ("ScaleBiasAct", [X, X[0], X[0]]),
                                             ("CrossEntropy", [X, X])])
@pytest.mark.parametrize("code, error", [(tf.errors.RESOURCE_EXHAUSTED, tf.errors.ResourceExhaustedError),
                                         (tf.errors.INVALID_ARGUMENT, tf.errors.InvalidArgumentError),
                                         (None, RuntimeError)])
def test_an_op_that_fails_runs_once(name, arguments, code, error, monkeypatch):
    fails = RuntimeError("no luck") if code is None else core._NotOkStatusException("no luck", code, None)
    counted = Counted(monkeypatch, _op.registry[name], fails)
    with pytest.raises(error, match="no luck"):
        _op.registry[name](*arguments)
    assert counted.runs == 1


def test_what_an_op_refuses_it_refuses_once(monkeypatch):
    op = _op.registry["ScaleBiasAct"]
    counted = Counted(monkeypatch, op)
    with pytest.raises(tf.errors.InvalidArgumentError, match="scale must have 3 values"):
        op(X, X[:, 0], X[:, 0])
    assert counted.runs == 1
    with pytest.raises(ValueError, match="scale_bias_act: bias must be float32 like x, got float64; cast one of them"):
        op(X, X[0], tf.cast(X[0], tf.float64))
    assert counted.runs <= 2
    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        op(X)


@pytest.mark.parametrize("name, arguments", [
    ("CrossEntropy", [X, X]), ("Softmax", [X, None]), ("ScaleBiasAct", [X, X[0], None]),
    ("ScaleBiasAct", [X, [1, 2, 3], None])])
def test_an_op_that_works_runs_once(name, arguments, monkeypatch):
    """An op whose outputs have a type that no input has is no exception."""
    counted = Counted(monkeypatch, _op.registry[name])
    _op.registry[name](*arguments)
    assert counted.runs == 1
