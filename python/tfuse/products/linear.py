"""act(x . kernel + bias) + residual: a matrix product with all that comes after it in one op; and Keras's Dense by it."""

import inspect

import keras
import tensorflow as tf
from tensorflow.python.eager import context, record

from tfuse._core import _explain, _library, _made, _rows
from tfuse._core._explain import reason
from tfuse._core._layer import not_computed_in
from tfuse._core._op import MOST_AXES, FusedOp, composite, given, mark, may_record
from tfuse.elementwise.scale_bias_act import (PLAIN, SLOPE_FROM_RESULT, activation_name, gelu, known_activation, plain_behind,
                                              scale_bias_act)

# ---- plain TensorFlow ----


def _plain(x, kernel, bias, residual, keep, activation="linear", tf32=False):
    pre = tf.tensordot(x, kernel, 1)
    pre = pre + bias if given(bias) else pre
    y = PLAIN[activation](pre)
    return y + residual if given(residual) else y, pre if given(keep) else tf.zeros([0], x.dtype)


def _plain_grad(dy, x, kernel, bias, pre, activation="linear", tf32=False):
    dpre, nothing = plain_behind(dy, pre, activation), tf.zeros([0], dy.dtype)
    dx = tf.tensordot(dpre, kernel, [[-1], [1]]) if given(kernel) else nothing
    dkernel = tf.matmul(_matrix(x), _matrix(dpre), transpose_a=True) if given(x) else nothing
    return dx, dkernel, tf.reduce_sum(_matrix(dpre), 0) if given(bias) else nothing


def _matrix(x):
    """All axes but the last as one."""
    shape = tf.shape(x)
    return tf.reshape(x, [tf.reduce_prod(shape[:-1]), shape[-1]])


# ---- the ops ----


def _gradient(node, dy, dpre):
    """dpre is that of what was kept, which only the gradient of this gradient asks for. Eagerly TensorFlow makes up zeros
    where nobody does, and they cannot be told from others: so there the gradient of this gradient goes another way, by what
    is computed anew."""
    x, kernel, bias, residual, _ = node.inputs
    y, pre = node.outputs
    activation, tf32 = node.attr("activation"), node.attr("tf32")
    eager = context.executing_eagerly()
    if activation == "linear":
        pre = None
    elif activation in SLOPE_FROM_RESULT and not given(residual):
        pre = y
    elif not given(pre) or eager and record.could_possibly_record():
        pre = _linear(x, kernel, bias, None, None, tf32=tf32)[0]
    wanted = [node.wanted(i) for i in range(3)]
    needed = x if wanted[1] else None, kernel if wanted[0] else None, bias if wanted[2] else None
    gradients = _grad(dy, *needed, pre, activation=activation, tf32=tf32)
    if dpre is not None and not eager:
        gradients = [a + b for a, b in zip(gradients, _grad(dpre, *needed, None, tf32=tf32))]
    return [*(g if w else None for g, w in zip(gradients, wanted)), dy if given(residual) else None, None]


# Axes by letters: i inputs, o outputs, and those before them.
_AXES = {**dict.fromkeys(["dy", "residual", "pre"], "abcdefgo"), "x": "abcdefgi", "kernel": "io", "bias": "o", "keep": "yz"}

_grad = FusedOp("LinearGrad", _plain_grad, axes=_AXES)
_linear = FusedOp("Linear", _plain, _gradient, axes=_AXES)


def fused(x, kernel, bias=None, activation=None, residual=None, training=None):
    """tfuse.linear by the op, wherever it runs.

    Where gradients may be asked for, what the activation is taken of is kept for them: eagerly where a tape records, in a
    graph unless training is False. Where it was not kept, the gradient computes it again.
    """
    activation, keep = activation_name(activation), None
    if activation != "linear" and (activation not in SLOPE_FROM_RESULT or residual is not None) and may_record(training):
        x = _rows.tensor(x)
        keep = mark(x.dtype)
    if not context.executing_eagerly():  # whoever looks back finds the tensors: Keras casts a variable where it is read
        x, kernel, *others = _linear.tensors(x, kernel, bias, residual, keep)
        bias, residual, keep = (tensor if given(tensor) else None for tensor in others)
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    y = _linear(x, kernel, bias, residual, keep, activation=activation, tf32=tf32)[0]
    if residual is None:
        _made.keep(y, _made.Product(x, kernel, bias, activation, training=training))
    return y


def composed(x, kernel, bias=None, activation=None, residual=None, training=None):
    """The same by TensorFlow's own product and tfuse.scale_bias_act, which is faster on a CPU: TensorFlow's
    libraries use processors' own instructions for products."""
    inputs = x, kernel, bias, residual, _ = _linear.tensors(x, kernel, bias, residual, None)
    if not _fit(x, kernel, bias, residual):
        return fused(*inputs[:3], activation, residual)  # says what is wrong
    y = tf.matmul(x, kernel) if x.shape.rank == 2 else tf.tensordot(x, kernel, 1)
    if given(bias) or activation_name(activation) != "linear":
        y = scale_bias_act(y, bias=bias if given(bias) else None, activation=activation)
    return y + residual if given(residual) else y


def _fit(x, kernel, bias, residual):
    """Whether shapes belong together, as far as they are known."""
    if x.shape.rank is None or x.shape.rank < 2 or kernel.shape.rank != 2:
        return False
    out = x.shape[:-1].concatenate(kernel.shape[1:])
    return (x.shape[-1:].is_compatible_with(kernel.shape[:1]) and
            (not given(bias) or bias.shape.is_compatible_with(kernel.shape[1:])) and
            (not given(residual) or residual.shape.is_compatible_with(out)))


def apply(x, *inputs):
    if not _library.without_gpu():
        return fused(x, *inputs)
    _explain.note("Linear", "plain TensorFlow", "there is no GPU, and TensorFlow's own product is faster on the CPU", [x],
                  "called")
    return composed(x, *inputs)


@composite
def linear(x, kernel, bias=None, activation=None, residual=None):
    """Returns act(x . kernel + bias) + residual.

    Products are summed in float32, in float64 for float64. float32 is rounded to TF32 before it is multiplied only where
    tf.config.experimental.enable_tensor_float_32_execution() allows that, as it does by default, and the GPU has it. Where
    there is no GPU, TensorFlow's own product is used, and tfuse.scale_bias_act.

    Args:
      x: float tensor, [..., inputs], with two axes or more.
      kernel: [inputs, outputs].
      bias: [outputs], or None.
      activation: as in tfuse.scale_bias_act.
      residual: tensor of the result's shape, or None; is added last.

    Returns:
      [..., outputs].

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, or an unknown activation.

    Example:
      x, kernel, bias = tf.random.normal([8, 16, 64]), tf.random.normal([64, 128]), tf.zeros([128])
      y = tfuse.linear(x, kernel, bias, "gelu")
    """
    return apply(x, kernel, bias, activation, residual)


@keras.saving.register_keras_serializable("tfuse")
class Dense(keras.layers.Dense):
    """keras.layers.Dense in one op: same arguments, weights and results.

    An activation that is not in tfuse's table is applied after it. "gelu_tanh" is one more name for it.

    Example:
      layer = tfuse.Dense(128, "gelu")
    """

    def __init__(self, units, activation=None, **kwargs):
        super().__init__(units, activation=gelu if activation == "gelu_tanh" else activation, **kwargs)

    def call(self, inputs, training=None):
        if why_not_dense(self, inputs):
            return super().call(inputs)
        return dense(self, inputs, training)

    def quantize(self, mode, **options):
        """As in Keras."""
        super().quantize(mode, **not_by_type(self, Dense, options))

    def quantized_call(self, inputs, *others, **options):
        return quantized_call(self, super().quantized_call, inputs, *others, **options)


def quantized_call(layer, own, inputs, *others, **options):
    """What a quantised layer computes, by products in 8 or 4 bits where these serve it."""
    from tfuse.products import float8_layers, quantized_layers  # which are made of this module

    if layer.quantization_mode == "float8":
        if float8_layers.why_not(layer, inputs):
            return own(inputs, *others, **options)
        return float8_layers.serve(layer, inputs, *others, **options)
    if quantized_layers.why_not(layer, inputs):
        return own(inputs, *others, **options)
    return quantized_layers.serve(layer, inputs)


def not_by_type(layer, ours, options):
    """The options of quantize() that let Keras quantize a layer of `ours`. It leaves out what is made of its classes, for
    they may compute something else; before 3.5 there is no option that says otherwise."""
    if type(layer) is ours and "type_check" in inspect.signature(keras.layers.Dense.quantize).parameters:
        return {**options, "type_check": False}
    return options


@reason
def why_not_dense(layer, x):
    """Why tfuse does not serve a layer of Keras's, for this input."""
    yield not_computed_in(layer, x)
    yield x.shape.rank is None and "the number of dimensions is not known"
    fits = 2 <= x.shape.rank <= MOST_AXES
    yield not fits and "tfuse.linear takes 2 to %d dimensions, got %d" % (MOST_AXES, x.shape.rank)


def dense(layer, x, training=None):
    """What a Keras Dense layer computes, by linear."""
    return of_layer(layer, x, *(None if w is None else keras.ops.convert_to_tensor(w, x.dtype)
                                for w in (layer.kernel, layer.bias)), training)


def of_layer(layer, x, kernel, bias, training, shape=None):
    """linear with a layer's activation, which is applied after it, to a result of that shape, where it is not in the table."""
    name, after = known_activation(layer.activation)
    y = apply(x, kernel, bias, name, None, training)
    y = y if shape is None else tf.reshape(y, shape)
    return y if after is None else after(y)
