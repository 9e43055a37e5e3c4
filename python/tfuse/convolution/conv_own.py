"""x convolved with kernel by tfuse's own kernels: the ladder from a direct one to tensor cores, beside which cuDNN is measured."""

from tfuse._core import _rows
from tfuse._core._op import FusedOp, composite
from tfuse.convolution import conv as _conv

RUNGS = ("tensor", "shared", "constant", "direct")


def _gradient(node, dy):
    x, kernel, _ = node.inputs
    dx = _conv._data(dy, kernel, _conv._shape_of(x, 1), **node.attrs(*_conv._OPTIONS)) if node.wanted(0) else None
    dkernel = _conv._filter(x, dy, _conv._shape_of(kernel), **node.attrs(*_conv._OPTIONS)) if node.wanted(1) else None
    return dx, dkernel, None


_own = FusedOp("ConvOwn", gradient=_gradient, axes=_conv._axes, plain=(
    lambda x, kernel, sizes, tf32=False, rung="tensor", **options: _conv._plain_linear(x, kernel, sizes, **options)))


@composite
def conv_own(x, kernel, rung="tensor", strides=1, padding="valid", dilation=1, groups=1):
    """Returns x convolved with kernel, by one of tfuse's own kernels.

    They are there to be read and measured (kernels/convolution/conv_own.h says where each is), and as what tfuse.conv runs
    where cuDNN is missing or the environment variable TFUSE_CUDNN is 0. tfuse.conv, by cuDNN, is faster. Sums are in
    float32, in float64 for float64; the order of adding is fixed. Gradients are those of tfuse.conv. On a CPU all rungs are
    one.

    Args:
      x: float tensor, [batch, spatial axes, channels], of one to three spatial axes.
      kernel: [spatial axes, channels / groups, outputs].
      rung: "direct", a thread per result; "constant", with the kernel in constant memory, for kernels of at most 64 KiB;
        "shared", with tiles of x in shared memory, for one or two spatial axes; or "tensor", on tensor cores, for float16,
        bfloat16, and float32 where TF32 is allowed, with channels and outputs in multiples of 16 bytes. Where "tensor"
        cannot serve, "shared" does; where that or "constant" cannot, "direct" does. tfuse.explain() says why.
      strides, padding, dilation, groups: as in tfuse.conv.

    Returns:
      [batch, spatial axes, outputs].

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, or an unknown word.

    Example:
      x, kernel = tf.random.normal([8, 32, 32, 16]), tf.random.normal([3, 3, 16, 64])
      y = tfuse.conv_own(x, kernel, rung="shared", padding="same")
    """
    if rung not in RUNGS:
        raise ValueError("conv_own: rung must be one of %s, got %r" % (", ".join(RUNGS), rung))
    x, kernel, _ = _own.tensors(_rows.tensor(x), kernel, None)
    window = _conv._window_of("conv_own", x, kernel, strides, padding, dilation)
    _conv._check_channels("conv_own", x, kernel, groups)
    return _own(x, kernel, _conv._result_sizes("conv_own", x, kernel, window), tf32=_conv._tf32(), rung=rung, **window.options)
