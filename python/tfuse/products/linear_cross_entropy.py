"""The cross entropy of softmax(x . kernel + bias) against labels, in chunks of rows: the logits, the largest tensor of a
language model, never exist as a whole; and a Keras layer for a model's head that ends in this loss."""

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, record

from tfuse._core import _library, _rows
from tfuse._core._layer import Layer, as_kept
from tfuse._core._op import FusedOp, composite, given, real, vjp
from tfuse.products.linear import linear
from tfuse.products.quantized_layers import whole_table, why_not_looked_up
from tfuse.products.quantized_linear import quantized_linear
from tfuse.rows.cross_entropy import NOTHING, check_smoothing, integers, plain_sparse

_REDUCTIONS = (None, "sum", "mean")


# ---- plain TensorFlow ----


def _losses(x, kernel, bias, labels, smoothing=0.0, z_loss=0.0, ignore=NOTHING, transposed=False, tf32=False):
    logits = tf.tensordot(x, kernel, [[-1], [1 if transposed else 0]])
    return plain_sparse(logits + bias if given(bias) else logits, labels, smoothing, z_loss, ignore)[0]


def _plain_grad(x, kernel, bias, labels, dloss, *wanted, **attributes):
    gradients = vjp(lambda *inputs: _losses(*inputs, labels, **attributes))(dloss, x, kernel, bias)
    return [g if given(w) else tf.zeros([0], x.dtype) for g, w in zip(gradients, wanted)]


def _plain(x, kernel, bias, labels, weights, *wanted, **attributes):
    loss = _losses(x, kernel, bias, labels, **attributes)
    if not given(weights):
        return loss, *([tf.zeros([0], x.dtype)] * 3)
    weights = tf.squeeze(weights, -1)
    if any(map(given, wanted)):
        gradients = _plain_grad(x, kernel, bias, labels, weights, *wanted, **attributes)
    else:
        gradients = [tf.zeros([0], x.dtype)] * 3
    return tf.reduce_sum(loss * weights), *gradients


# ---- the ops ----


def _gradient(node, dloss, *dkept):
    """dkept are those of gradients that were kept, which only the gradient of this gradient asks for. Eagerly TensorFlow
    makes up zeros where nobody does, and they cannot be told from others: so there, where a tape records, nothing that was
    kept is used."""
    x, kernel, bias, labels, weights, *_ = node.inputs
    attributes = node.attrs("smoothing", "z_loss", "ignore", "transposed", "tf32")
    summed, kept, eager = given(weights), node.outputs[1:], context.executing_eagerly()
    some = any(map(given, kept))  # then nobody wants what was not kept: so it is of a bias that only fills packs
    wanted = [given(i) and node.wanted(n) and (given(k) or not some) for n, (i, k) in enumerate(zip((x, kernel, bias), kept))]
    rows = dloss * tf.squeeze(weights, -1) if summed else dloss
    wants = [i if w else None for i, w in zip((x, kernel, bias), wanted)]
    of_weights = [None]
    if all(given(k) or not w for k, w in zip(kept, wanted)) and not (eager and record.could_possibly_record()):
        gradients = [_scale(k, dloss) if w else None for k, w in zip(kept, wanted)]
    else:
        gradients = _grad(x, kernel, bias, labels, rows, *wants, **attributes)
    if summed and node.wanted(4):
        losses = _forward(x, kernel, bias, labels, None, None, None, None, **attributes)[0]
        of_weights = [(dloss * losses)[..., None]]
    if not eager and any(d is not None for d in dkept):
        again = vjp(_plain_grad)([d if given(k) else None for d, k in zip(dkept, kept)], x, kernel, bias, labels,
                                 tf.squeeze(weights, -1), *node.inputs[5:], **attributes)
        gradients = [a + b if w else None for a, b, w in zip(gradients, again, wanted)]
        of_weights = [None if of_weights[0] is None else of_weights[0] + again[4][..., None]]
    return [*(g if w else None for g, w in zip(gradients, wanted)), None, *of_weights, None, None, None]


# Axes by letters: i inputs, those before them, and one of weights. The kernel's are known, or else nothing is said of them:
# which is which depends on an attribute.
_ROWS = "abcdefg"
_AXES = {**dict.fromkeys(["x", "dx_for"], _ROWS + "i"), **dict.fromkeys(["labels", "dloss"], _ROWS), "weights": _ROWS + "w",
         **dict.fromkeys(["kernel", "dkernel_for"], "yz"), **dict.fromkeys(["bias", "dbias_for"], "o")}

_scale = FusedOp("ScaleLinearCrossEntropy", lambda x, by: tf.cast(tf.cast(x, by.dtype) * by, x.dtype))
_grad = FusedOp("LinearCrossEntropyGrad", _plain_grad, axes=_AXES)
_forward = FusedOp("LinearCrossEntropy", _plain, _gradient, axes=_AXES)


@composite
def linear_cross_entropy(x, kernel, labels, bias=None, label_smoothing=0.0, ignore_class=None, z_loss=0.0, weights=None,
                         transpose_kernel=False, reduction=None, training=None):
    """Returns the cross entropy of softmax(x . kernel + bias) against labels.

    Logits are made some thousand rows at a time, forward and backward, so that memory grows with x and kernel alone. With
    reduction="sum" or "mean" the gradients are computed while the logits are there: that takes three matrix products, where
    the losses of every row (reduction=None) and their gradient take four. In float16 sums and means take four, too: a
    gradient must not be rounded before it is multiplied by what is its own, 1 / rows and a loss scale, or one that is summed
    over many rows is infinite.

    Args:
      x: float tensor, [..., inputs], with two axes or more.
      kernel: [inputs, classes].
      labels: integers with x's shape but the last axis. A label that is no class is an error on the CPU; on the GPU its
        loss is NaN and its gradient 0.
      bias: [classes], or None.
      label_smoothing, ignore_class, z_loss: as in tfuse.sparse_cross_entropy.
      weights: one number per row, or what broadcasts to that; multiplies the losses.
      transpose_kernel: kernel is [classes, inputs], as a table of embeddings is.
      reduction: None, the loss of every row; "sum", that of weights times losses; "mean", that divided by the number of
        rows that are not ignored, as Keras's "sum_over_batch_size" does. The mean of no rows is 0.
      training: in a graph, False says that no gradients will be asked for, so that a sum or a mean need not compute them.
        If they are after all, that costs another product. Eagerly, what a tape watches tells which are wanted.

    Returns:
      Losses, or one number, in float32; in float64 for float64 x.

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, an unknown reduction.

    Example:
      hidden, table = tf.random.normal([4, 16, 64]), tf.random.normal([1000, 64])
      labels = tf.zeros([4, 16], tf.int32)
      loss = tfuse.linear_cross_entropy(hidden, table, labels, transpose_kernel=True, reduction="mean")
    """
    check_smoothing("linear_cross_entropy", label_smoothing)
    if reduction not in _REDUCTIONS:
        raise ValueError("linear_cross_entropy: reduction must be None, 'sum' or 'mean', got %r" % (reduction,))
    x, labels = _rows.tensor(x), integers(labels)
    attributes = {"smoothing": float(label_smoothing), "z_loss": float(z_loss), "transposed": bool(transpose_kernel),
                  "ignore": NOTHING if ignore_class is None else int(ignore_class),
                  "tf32": tf.config.experimental.tensor_float_32_execution_enabled()}
    x, kernel, bias, labels, *_ = _forward.tensors(x, kernel, bias, labels, None, None, None, None)
    if kernel.shape.rank == 2 and x.shape.rank and x.shape[-1] is None:  # as Keras's products of unknown batches leave it
        x.set_shape([*x.shape[:-1], kernel.shape[1 if transpose_kernel else 0]])
    has_bias = given(bias)
    if not _library.without_gpu():
        kernel, bias, labels = _whole_packs(kernel, bias, labels, attributes)
    if reduction is None:
        loss = _forward(x, kernel, bias, labels, None, None, None, None, **attributes)[0]
        return loss if weights is None else loss * tf.cast(weights, loss.dtype)
    kind = real(x.dtype)
    weights = tf.broadcast_to(tf.cast(1 if weights is None else weights, kind), tf.shape(labels))[..., None]
    wants = [i if _is_kept(i, training) else None for i in (x, kernel, bias if has_bias else tf.zeros([0], x.dtype))]
    total = _forward(x, kernel, bias, labels, weights, *wants, **attributes)[0]
    if reduction == "sum":
        return total
    if ignore_class is None:
        count = tf.size(labels, tf.int64)
    else:
        count = tf.math.count_nonzero(tf.not_equal(tf.cast(labels, tf.int64), tf.constant(ignore_class, tf.int64)))
    return tf.math.divide_no_nan(total, tf.cast(count, kind))


def _whole_packs(kernel, bias, labels, attributes):
    """Kernel, bias and labels with some classes more, so that rows of logits begin at multiples of 16 bytes: products of 16 bits
    take several times as long where they do not. The logits of these classes are -infinity, so that they change nothing."""
    classes = kernel.shape[0 if attributes["transposed"] else 1] if kernel.shape.rank == 2 else None
    more = -(classes or 0) % 8
    if not more or classes < 1024 or kernel.dtype.size != 2 or attributes["smoothing"] or attributes["ignore"] >= classes:
        return kernel, bias, labels
    if not given(bias):
        bias = tf.zeros([classes], kernel.dtype)
    elif not bias.shape.is_compatible_with([classes]):
        return kernel, bias, labels  # the op says what is wrong
    kernel = tf.pad(kernel, [[0, more], [0, 0]] if attributes["transposed"] else [[0, 0], [0, more]])
    bias = tf.pad(bias, [[0, more]], constant_values=-np.inf)
    return kernel, bias, tf.where(labels < classes, labels, labels + more)  # what is no class stays none


def _is_kept(tensor, training):
    """Whether its gradient may be asked for, and may be rounded before it is known what it is multiplied by: float16 has not
    the range, neither for sums over all rows nor, were these divided first, for what one row adds to a mean."""
    if not given(tensor) or tensor.dtype == tf.float16:
        return False
    return record.should_record_backprop([tensor]) if context.executing_eagerly() else training is not False


@keras.saving.register_keras_serializable("tfuse")
class LanguageModelHead(Layer):
    """The last layer of a language model together with its loss: logits of hidden states, or their mean cross entropy.

    head(hidden) are the logits, for generating text. head(hidden, labels) is tfuse.linear_cross_entropy's mean, one number,
    and is added to the model's losses, so that compile() needs none.

    A mask of the hidden states (Embedding(mask_zero=True)) leaves rows out of the loss. Of an embedding that is quantized,
    the head takes the values that it stands for.

    Where the embedding is before the head in a functional or sequential model, copies of the model by clone_model,
    from_config or model_from_json have a head that shares their own embedding: it is found when the head is first called, by
    its name, or else as the only one of its size. A head that does not find it raises ValueError. Elsewhere, in a subclassed
    model, or with the head in an inner model that the embedding is not in, a head is copied together with its embedding.

    Args:
      embedding: a keras.layers.Embedding whose table is the head's kernel as well (tied embeddings); or None:
      vocabulary: number of classes, for a kernel of the head's own.
      use_bias: whether logits have a bias.
      label_smoothing, ignore_class, z_loss: as in tfuse.linear_cross_entropy.
      kernel_initializer, bias_initializer: of weights that are the head's own.

    Call arguments:
      hidden: [..., inputs].
      labels: integers with hidden's shape but the last axis, or None.
      sample_weight: one number per label, or what broadcasts to that; multiplies the losses.

    Example:
      tokens, labels = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
      embedding = keras.layers.Embedding(256, 32)
      hidden = keras.layers.Dense(32, "gelu")(embedding(tokens))  # in the place of a transformer
      head = tfuse.LanguageModelHead(embedding)
      training = keras.Model([tokens, labels], head(hidden, labels))
      training.compile("adamw")
      text = np.random.randint(256, size=[8, 65])
      training.fit([text[:, :-1], text[:, 1:]], verbose=0)
      model = keras.Model(tokens, head(hidden))  # the same weights, for generating text
    """

    ARGUMENTS = ("vocabulary", "use_bias", "label_smoothing", "ignore_class", "z_loss")

    def __init__(self, embedding=None, vocabulary=None, use_bias=False, label_smoothing=0.0, ignore_class=None, z_loss=0.0,
                 kernel_initializer="glorot_uniform", bias_initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        if (embedding is None) == (vocabulary is None):
            raise ValueError("LanguageModelHead: give either embedding or vocabulary, got %r and %r" % (embedding, vocabulary))
        check_smoothing("LanguageModelHead", label_smoothing)
        self.embedding, self.vocabulary, self.use_bias = embedding, vocabulary, use_bias
        self.label_smoothing, self.ignore_class, self.z_loss = label_smoothing, ignore_class, z_loss
        self._ask("kernel", kernel_initializer)
        self._ask("bias", bias_initializer)
        self.supports_masking = False
        self._stands_in = False  # the embedding, for one of the model that the head will be called in

    def __call__(self, *inputs, **options):
        if self._stands_in:
            self._find_embedding(_before(inputs, options))
        return super().__call__(*inputs, **options)

    def _find_embedding(self, layers):
        own, kinds = self.embedding, (keras.layers.Embedding, type(self.embedding))
        sizes = lambda layer: (layer.input_dim, layer.output_dim)
        alike = [layer for layer in layers if isinstance(layer, kinds) and sizes(layer) == sizes(own)]
        found = [layer for layer in alike if layer is own] or [layer for layer in alike if layer.name == own.name] or alike
        if len(found) != 1:
            raise ValueError("LanguageModelHead: by its configuration it shares the table of layer %r, and of the layers "
                             "before it %d can be that one; make a head with the embedding" % (own.name, len(found)))
        locked = self._tracker.locked  # a head that is built has its layers
        self._tracker.unlock()
        self._tracker.untrack(own)
        self.embedding, self._stands_in = found[0], False
        if locked:
            self._tracker.lock()

    def build(self, hidden_shape):
        self.kernel = self.bias = None
        if self.embedding is None and self._mode() is None:
            self.kernel = self._weight("kernel", (hidden_shape[-1], self.vocabulary))
        elif self.embedding is None:
            self._build_int8((hidden_shape[-1], self.vocabulary))
        elif not self.embedding.built:
            self.embedding.build()
        if self.use_bias:
            classes = self.vocabulary or self.embedding.input_dim
            self.bias = self._weight("bias", (classes,))
        self.built = True

    def quantize(self, mode, type_check=True, config=None):
        """Keeps a kernel of the head's own in 8 bits, each class by itself, as keras.layers.Dense does; hidden states are not
        rounded. A table of embeddings is its layer's, which Keras quantises."""
        if self.embedding is not None or mode != "int8" or type_check and type(self) is not LanguageModelHead:
            raise NotImplementedError("LanguageModelHead: only a kernel of its own is quantised, to int8; got %r" % (mode,))
        codes, scale = keras.quantizers.abs_max_quantize(self.kernel, axis=0, to_numpy=True)
        del self.kernel
        self._build_int8(codes.shape)
        self.kernel.assign(codes)
        self.kernel_scale.assign(keras.ops.squeeze(scale, 0))
        if self._mode() is None:
            self.dtype_policy = keras.dtype_policies.get("int8_from_" + self.dtype_policy.name)

    def _build_int8(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer="zeros", dtype="int8", trainable=False)
        self.kernel_scale = self.add_weight(name="kernel_scale", shape=shape[1:], initializer="ones", trainable=False)
        self._is_quantized = True  # or Keras would quantise a layer that gets a quantised policy

    def _mode(self):
        return getattr(self.dtype_policy, "quantization_mode", None)

    def quantized_call(self, *inputs, **options):
        return self.call(*inputs, **options)

    def _in_8_bits(self):
        """What quantized_linear takes of a kernel that is kept in 8 bits; None where it is not."""
        kernel, scale, order = getattr(self, "kernel", None), getattr(self, "kernel_scale", None), "rows"
        if self.embedding is not None and getattr(self.embedding.dtype_policy, "quantization_mode", None) == "int8":
            if self.embedding.lora_enabled:
                return None
            kernel, scale, order = self.embedding._embeddings, self.embedding.embeddings_scale, "columns"
        elif self._mode() is None:
            return None
        with as_kept():
            return dict(kernel=tf.convert_to_tensor(kernel.value), scale=tf.convert_to_tensor(scale.value), order=order)

    def call(self, hidden, labels=None, sample_weight=None, hidden_mask=None, training=None):
        tied, quantized = self.embedding is not None, self._in_8_bits()
        bias = None if self.bias is None else keras.ops.convert_to_tensor(self.bias, hidden.dtype)
        if labels is None and quantized:
            return quantized_linear(hidden, bias=bias, divide=True, **quantized)
        if tied or not quantized:
            kernel = keras.ops.convert_to_tensor(table_of(self.embedding) if tied else self.kernel, hidden.dtype)
        else:
            wide = quantized["scale"]
            kernel = tf.cast(tf.cast(quantized["kernel"], wide.dtype) / wide, hidden.dtype)
        if labels is None:
            return linear(hidden, tf.transpose(kernel) if tied else kernel, bias)
        ignore = self.ignore_class
        if hidden_mask is not None:
            ignore = -1 if ignore is None else ignore
            labels = tf.where(hidden_mask, labels, tf.cast(ignore, labels.dtype))
        loss = linear_cross_entropy(hidden, kernel, labels, bias, self.label_smoothing, ignore, self.z_loss, sample_weight,
                                    transpose_kernel=tied, reduction="mean", training=training)
        self.add_loss(loss)
        return loss

    def compute_mask(self, *inputs, **options):
        return None

    def get_config(self):
        embedding = self.embedding and keras.saving.serialize_keras_object(self.embedding)
        calls = [node.input_tensors for node in self._inbound_nodes]
        shared = self._stands_in or any(layer is self.embedding for layer in _before(calls))
        return {**super().get_config(), "embedding": embedding, "shared": shared}

    @classmethod
    def from_config(cls, config):
        embedding = config["embedding"] and keras.saving.deserialize_keras_object(config["embedding"])
        head = cls(**{name: value for name, value in {**config, "embedding": embedding}.items() if name != "shared"})
        head._stands_in = config.get("shared", False)
        return head


def table_of(embedding):
    """The rows that an embedding looks up; of one that is quantized, not what it stores."""
    if getattr(embedding.dtype_policy, "quantization_mode", None) is None:
        return embedding.embeddings
    if not why_not_looked_up(embedding):
        return whole_table(embedding)
    with as_kept():  # scales in the dtype they have: that of logits may lack digits, or range
        return embedding.quantized_call(tf.range(embedding.input_dim))


def _before(*inputs):
    """The layers, and those inside them, by which symbolic tensors among the inputs of a call were made."""
    tensors = [t for t in tf.nest.flatten(inputs) if hasattr(t, "_keras_history")]
    nodes, layers = set(), {}
    while tensors:
        operation, index, _ = tensors.pop()._keras_history
        node = operation._inbound_nodes[index]
        if node not in nodes:
            nodes.add(node)
            tensors += node.input_tensors
            if isinstance(operation, keras.layers.Layer):
                layers.update((id(layer), layer) for layer in operation._flatten_layers())
    return list(layers.values())
