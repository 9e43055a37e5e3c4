"""Images times a number for each image and channel, as squeeze-and-excitation has it; the gradient in one pass."""

import tensorflow as tf

from tfuse._core import _rows
from tfuse._core._op import MOST_AXES, FusedOp, composite, vjp


def _plain(x, scale, drop=False):
    return tf.where(tf.equal(scale, 0), tf.zeros([], x.dtype), x * scale) if drop else x * scale


def _gradient(node, dy):
    x, scale = node.inputs
    if node.attr("drop"):  # what is dropped is drawn, and has no gradient
        return [_scale(dy, scale, drop=True), None]
    return _grad(dy, x, scale)


_BROADCAST = range(1, MOST_AXES - 1)  # axes of positions, of which scale has 1
_grad = FusedOp("ScaleChannelsGrad", plain=vjp(_plain), stretched=_BROADCAST, like={"dscale": "scale"})
_scale = FusedOp("ScaleChannels", plain=_plain, gradient=_gradient, stretched=_BROADCAST, stretching=["scale"])


@composite
def scale_channels(x, scale):
    """Returns x * scale, with a number for each image and channel; and its gradients in one pass over memory.

    Args:
      x: float tensor [images, positions …, channels].
      scale: [images, channels], or the same with axes of 1 between them, as the rank of x has.

    Raises:
      ValueError or InvalidArgumentError: a wrong shape or dtype.

    Example:
      x = tf.random.normal([8, 14, 14, 64])
      gate = tf.sigmoid(tf.random.normal([8, 64]))
      y = tfuse.scale_channels(x, gate)
    """
    x, scale = _scale.tensors(x, scale)
    if scale.shape.rank == 2 and x.shape.rank not in (None, 2):
        scale = tf.reshape(scale, [_rows.size(scale, 0), *[1] * (x.shape.rank - 2), _rows.size(scale, 1)])
    return _scale(x, scale)


def fits(x, scale):
    """Whether scale has the rank of x, three or more, the same last axis, and 1 for all but the first and the last."""
    a, b = x.shape, scale.shape
    if a.rank is None or not 3 <= a.rank <= MOST_AXES or a.rank != b.rank or x.dtype != scale.dtype:
        return False
    return a[-1] == b[-1] is not None and all(size == 1 for size in b[1:-1]) and any(size != 1 for size in a[1:-1])


def drop_images(x, kept):
    """x times `kept`, [images, 1 …, 1], a number for each image; 0 drops the image, whatever is in it."""
    kept = tf.broadcast_to(kept, [_rows.size(x, 0), *[1] * (x.shape.rank - 2), _rows.size(x, -1)])
    return _scale(x, kept, drop=True)
