"""a . b by tfuse's own kernels: the ladder from a naive one to tensor cores, beside which cuBLASLt's is measured."""

import tensorflow as tf

from tfuse._core._op import FusedOp, function

KINDS = ("tensor", "tiled", "naive")


def _grad_gradient(node, dda, ddb):
    """Of da = dy . b^T and db = a^T . dy. What these give to a and b is the gradient of a product again."""
    dy, a, b = node.inputs
    kind = node.attr("kind")
    ddb = tf.zeros_like(b) if ddb is None else ddb
    return _matmul(dda, b, kind=kind) + _matmul(a, ddb, kind=kind), *_grad(dy, dda, ddb, kind=kind)


# Axes by letters: those before the last two, rows, inner, columns.
_AXES = {"a": "abcdefri", "b": "abcdefic", "dy": "abcdefrc"}

_grad = FusedOp("MatmulOwnGrad", gradient=_grad_gradient, axes=_AXES, plain=lambda dy, a, b, kind="tensor": (
    tf.matmul(dy, b, transpose_b=True), tf.matmul(a, dy, transpose_a=True)))
_matmul = FusedOp("MatmulOwn", plain=lambda a, b, kind="tensor": tf.matmul(a, b), axes=_AXES,
                  gradient=lambda node, dy: _grad(dy, *node.inputs, kind=node.attr("kind")))


@function
def matmul_own(a, b, kind="tensor"):
    """Returns a . b, by one of tfuse's own kernels.

    They are there to be read and measured (kernels/products/matmul_own.cu), and as what tfuse.linear runs where cuBLASLt is missing
    or the environment variable TFUSE_CUBLASLT is 0. tfuse.linear, by cuBLASLt, is faster. Sums are in float32, in float64
    for float64; the order of adding is fixed. On a CPU all kinds are one.

    Args:
      a: float tensor, [..., rows, inner].
      b: [..., inner, columns], with the same axes before the last two.
      kind: "naive", a thread per result; "tiled", in shared memory, 8 x 8 results per thread; or "tensor", on tensor cores,
        for float16 and bfloat16 in rows of multiples of 16 bytes, where "tiled" serves the rest.

    Returns:
      [..., rows, columns].

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, or an unknown kind.

    Example:
      y = tfuse.matmul_own(tf.random.normal([64, 32]), tf.random.normal([32, 16]), kind="tiled")
    """
    if kind not in KINDS:
        raise ValueError("matmul_own: kind must be one of %s, got %r" % (", ".join(KINDS), kind))
    return _matmul(a, b, kind=kind)
