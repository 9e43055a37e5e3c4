"""scale * a . b over batches that broadcast, strided: nothing is copied, stretched or transposed in memory."""

import tensorflow as tf

from tfuse._core import _explain, _library, _rows
from tfuse._core._op import FusedOp, composite, given, mark


def _plain(a, b, like, transpose_a, transpose_b, scale=1.0, tf32=False):
    y = tf.matmul(a, b, transpose_a=given(transpose_a), transpose_b=given(transpose_b))
    y = y if scale == 1 else y * tf.cast(scale, y.dtype)
    if not given(like):
        return y
    _, axes = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(y), s1=tf.shape(like))
    return tf.ensure_shape(tf.reshape(tf.reduce_sum(y, axes), tf.shape(like)), like.shape)


def _gradient(node, dy):
    """The op is its own gradient: what a or b was stretched along is summed over by `like`."""
    a, b, _, transpose_a, transpose_b = node.inputs
    transpose_a, transpose_b = given(transpose_a), given(transpose_b)
    product = lambda *inputs: _product(*inputs, node.attr("scale"), node.attr("tf32"))
    da = db = None
    if node.wanted(0):
        da = product(b, dy, a, transpose_b, True) if transpose_a else product(dy, b, a, False, not transpose_b)
    if node.wanted(1):
        db = product(dy, a, b, True, transpose_a) if transpose_b else product(a, dy, b, not transpose_a, False)
    return da, db, None, None, None


_BATCH = "abcdef"


def _axes(inputs):
    """Axes by letters: m rows, n columns, k terms, and those of the batch before them."""
    transpose_a, transpose_b = (given(transpose) for transpose in inputs[3:])
    return {"a": _BATCH + ("km" if transpose_a else "mk"), "b": _BATCH + ("nk" if transpose_b else "kn"), "like": _BATCH + "mn",
            "transpose_a": "wx", "transpose_b": "yz"}


_batched = FusedOp("BatchedMatmul", _plain, _gradient, axes=_axes, stretched=_BATCH, like={"y": "like"})


def _product(a, b, like, transpose_a, transpose_b, scale, tf32):
    """By the op; like is None, or a tensor with the batch that the result is to have."""
    marks = [mark(a.dtype) if transpose else None for transpose in (transpose_a, transpose_b)]
    return _batched(a, b, like, *marks, scale=scale, tf32=tf32)


def fused(a, b, transpose_a=False, transpose_b=False, scale=1.0):
    """tfuse.batched_matmul by the op, wherever it runs."""
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    return _product(_rows.tensor(a), b, None, bool(transpose_a), bool(transpose_b), float(scale), tf32)


def composed(a, b, transpose_a=False, transpose_b=False, scale=1.0):
    """The same by TensorFlow's own product."""
    a, b, *others = _batched.tensors(a, b, None, None, None)
    if not _fit(a, b, transpose_a, transpose_b):
        return fused(a, b, transpose_a, transpose_b, scale)  # says what is wrong
    others = [mark(a.dtype) if transpose else nothing for transpose, nothing in zip((False, transpose_a, transpose_b), others)]
    return _plain(a, b, *others, scale=float(scale))


def _better_composed(a, b):
    """Whether TensorFlow's own product is faster on a CPU: in float32 and float64 it is. 16-bit types, and matrices of 64 x 64
    elements or fewer, are faster by the op."""
    sizes = [x.shape[-2:].num_elements() if x.shape.rank else None for x in (a, b)]
    return a.dtype in (tf.float32, tf.float64) and (None in sizes or max(sizes) > 64 * 64)


def _fit(a, b, transpose_a, transpose_b):
    """Whether shapes are known to belong together."""
    if not all(x.shape.rank and x.shape.rank >= 2 for x in (a, b)):
        return False
    try:
        tf.broadcast_static_shape(a.shape[:-2], b.shape[:-2])
    except ValueError:
        return False
    last, first = a.shape[-2 if transpose_a else -1], b.shape[-1 if transpose_b else -2]
    return last is None or first is None or last == first


@composite
def batched_matmul(a, b, transpose_a=False, transpose_b=False, scale=1.0):
    """Returns scale * a . b, products of the matrices in the last two axes; the axes before them broadcast.

    Gradients of what is stretched are summed within the products where that is one larger product, as for weights that all
    of a batch share: [batch, m, k] . [k, n]; on a GPU, in float32 without TF32, in products of one matrix's terms, or 16.
    Products are summed in float32, in float64 for float64. float32 is rounded to TF32 before it is multiplied only where
    tf.config.experimental.enable_tensor_float_32_execution() allows that, as it does by default, and the GPU has it. Where
    there is no GPU, TensorFlow's own product is used where that is faster: for matrices of float32 and float64 that are not
    small.

    Args:
      a: float tensor, [..., m, k], or [..., k, m] where transpose_a is set.
      b: [..., k, n], or [..., n, k] where transpose_b is set.
      transpose_a, transpose_b: whether the matrices are stored the other way round.
      scale: number, rounded to float32.

    Returns:
      [..., m, n].

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together.

    Example:
      a, b = tf.random.normal([8, 16, 64]), tf.random.normal([32, 64])
      y = tfuse.batched_matmul(a, b, transpose_b=True)  # [8, 16, 32]: b serves the whole batch
    """
    if not _library.without_gpu():
        return fused(a, b, transpose_a, transpose_b, scale)
    a, b = _batched.tensors(a, b)
    if not _better_composed(a, b):
        return fused(a, b, transpose_a, transpose_b, scale)
    _explain.note("BatchedMatmul", "plain TensorFlow", "there is no GPU, and TensorFlow's own product is faster on the CPU",
                  [a, b], "called")
    return composed(a, b, transpose_a, transpose_b, scale)
