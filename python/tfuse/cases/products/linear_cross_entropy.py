import functools

import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, longest_axis, of_terms, ones, refusing, squares, sums, total, volume
from tfuse.cases.products.linear import fit, gradients, product
from tfuse.cases.rows import cross_entropy
from tfuse.rows.cross_entropy import plain_sparse

# A case's shape is (…, inputs, classes): x is all of it but the last. Chunks have 512 rows on the CPU, on the GPU 1024 or
# more: some shapes have several, the last one short.
_SHAPES = [(2, 3, 8, 5), (1, 1, 1, 1), (0, 4, 8, 5), (2, 3, 0, 5), (1, 7, 3, 129), (1, 129, 130, 67), (3, 43, 257, 16),
           (2, 260, 40, 200), (1, 513, 24, 50), (2, 1041, 40, 67), (1, 1300, 16, 24)]
_SIZE = (16384, 768, 50304)
_SOFT = {"label_smoothing": 0.1, "z_loss": 1e-2}


def _turn(kernel, transpose_kernel):
    return kernel.T if transpose_kernel else kernel


def _parts(x, kernel, labels, bias, label_smoothing, z_loss, transpose_kernel):
    """Logits, how large the terms are that they are sums of, log(sum(exp)), targets, z_loss."""
    both = product(x, _turn(kernel, transpose_kernel), bias)
    targets, lse, _, z_loss = cross_entropy.parts(
        np.asarray(both), cross_entropy.one_hot(both, labels), label_smoothing, z_loss)
    return np.asarray(both), both.terms, lse, targets, z_loss


def _losses(x, kernel, labels, bias=None, label_smoothing=0.0, z_loss=0.0, ignore_class=None, transpose_kernel=False):
    logits, terms, lse, targets, z_loss = _parts(x, kernel, labels, bias, label_smoothing, z_loss, transpose_kernel)
    kept = (labels != ignore_class)[..., None]
    loss = total(np.where(kept, np.concatenate([targets * (lse - logits), z_loss * lse**2], -1), 0), -1)
    rounded = np.where(kept, targets, 0) * terms
    return of_terms(loss, squares(loss) + (rounded * rounded).sum(-1))


def _gradient(dloss, x, kernel, labels, bias=None, label_smoothing=0.0, z_loss=0.0, ignore_class=None,
              transpose_kernel=False):
    """What the rounding of logits does to their gradient is a term, too."""
    logits, terms, lse, targets, z_loss = _parts(x, kernel, labels, bias, label_smoothing, z_loss, transpose_kernel)
    dloss = np.where(labels != ignore_class, dloss, 0)[..., None]
    softmax = np.exp(logits - lse)
    d = dloss * ((1 + 2 * z_loss * lse) * softmax - targets)
    d = of_terms(d, d * d + (dloss * softmax * (1 + terms))**2)
    dx, dkernel, *dbias = gradients(d, x, _turn(kernel, transpose_kernel), bias)
    return [dx, sums(lambda t: _turn(t, transpose_kernel), dkernel), *dbias]


def _scale(labels, reduction, ignore_class=None, **_):
    return 1 if reduction == "sum" else 1 / max(np.sum(labels != ignore_class), 1)


def _reduced(x, kernel, labels, bias, weights, reduction, **options):
    losses, scale = _losses(x, kernel, labels, bias, **options), _scale(labels, reduction, **options)
    return sums(lambda losses, weights, scale: scale * np.sum(weights * losses), losses, weights, scale)


def _reduced_gradient(dloss, x, kernel, labels, bias, weights, reduction, **options):
    dloss = dloss * _scale(labels, reduction, **options)
    return [*_gradient(dloss * weights, x, kernel, labels, bias, **options),
            sums(np.multiply, dloss, _losses(x, kernel, labels, bias, **options))]


def _plain(x, kernel, labels, bias=None, label_smoothing=0.0, z_loss=0.0, ignore_class=None, transpose_kernel=False):
    logits = tf.tensordot(x, kernel, [[-1], [1 if transpose_kernel else 0]])
    logits = logits if bias is None else logits + bias
    return plain_sparse(logits, labels, label_smoothing, z_loss, *([] if ignore_class is None else [ignore_class]))[0]


def _plain_reduced(x, kernel, labels, bias, weights, reduction, ignore_class=None, **options):
    loss = tf.reduce_sum(_plain(x, kernel, labels, bias, ignore_class=ignore_class, **options) * weights)
    kept = labels == labels if ignore_class is None else labels != ignore_class
    return loss if reduction == "sum" else tf.math.divide_no_nan(loss, tf.reduce_sum(tf.cast(kept, loss.dtype)))


def _run_reduced(x, kernel, labels, bias, weights, **options):
    return tfuse.linear_cross_entropy(x, kernel, labels, bias, weights=weights, **options)


def _stock_mean(x, kernel, labels):
    """As users write it."""
    logits = tf.cast(tf.matmul(x, kernel), tf.float32)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def _labels(dtype, first=0):
    return Input(lambda shape: shape[:-2], lambda rng, own, shape: rng.integers(first, shape[-1], own), dtype, False)


def _weights(rng, own, shape):
    """So that logits are about as large as what they are made of."""
    return rng.normal(size=own) / np.sqrt(max(shape[-2], 1))


_KERNEL, _TRANSPOSED = Input(lambda shape: shape[-2:], _weights), Input(lambda shape: shape[:-3:-1], _weights)
_X, _BIAS = (lambda shape: shape[:-1]), (lambda shape: shape[-1:])
_ROWS, _ONE = Input(lambda shape: shape[:-2], dtype="real"), Input(lambda shape: (), dtype="real")
# Of one sign: losses that cancel to nearly 0 would leave of their sum what chance leaves of their roundings.
_SHARES = Input(lambda shape: shape[:-2], lambda rng, own, _: np.abs(rng.normal(size=own)), "real")
_ALL = {"x": _X, "kernel": _KERNEL, "labels": _labels("int64"), "bias": _BIAS, "weights": _SHARES}
_EMBEDDINGS = {**_ALL, "kernel": _TRANSPOSED, "labels": _labels("int32", -1)}


def _case(name, inputs, names, run=tfuse.linear_cross_entropy, plain=_plain, reference=_losses, gradient=_gradient, loss=_ROWS,
          **more):
    return Case(name=name, run=run, plain=plain, reference=reference, gradient=gradient, outputs={"loss": loss}, fit=fit,
                inputs={n: inputs[n] for n in ("x", "kernel", "labels", *names)}, special=False, summed=longest_axis,
                shapes=_SHAPES, **more)


_REDUCED = {"run": _run_reduced, "plain": _plain_reduced, "reference": _reduced, "gradient": _reduced_gradient, "loss": _ONE}
_TIED = {"transpose_kernel": True, "ignore_class": -1}
_refused = refusing(tfuse.linear_cross_entropy, x=ones(2, 3), kernel=ones(3, 5), labels=[1, 2])
CASES = [
    _case("linear_cross_entropy", _ALL, ["bias"], options=[{}, _SOFT, {"label_smoothing": 0.3, "ignore_class": 0}], rejects=[
        _refused("the last axis of x and the inputs of kernel, .inputs, classes., must be of one size, got shapes "
                 ".2, 3. and .4, 5.", kernel=ones(4, 5)),
        _refused("the last axis of x and the inputs of kernel, .classes, inputs., must be of one size, got shapes "
                 ".2, 3. and .3, 5.", transpose_kernel=True),
        _refused("x must be ...., inputs. with two dimensions or more, got shape .3.", x=ones(3)),
        _refused("kernel must be .inputs, classes., got shape .3.", kernel=ones(3)),
        _refused("kernel must have one class or more, got shape .3, 0.", kernel=ones(3, 0)),
        _refused("bias must be a vector with one value per class of kernel .3, 5., got shape .4.", bias=ones(4)),
        _refused("labels must have the shape of the rows of x, .2., got .3.", labels=[1, 2, 3]),
        _refused("linear_cross_entropy: labels must be int32 or int64, got float32", labels=ones(2)),
        _refused("linear_cross_entropy: kernel must be float32 like x, got float16", kernel=ones(3, 5, dtype=tf.float16)),
        _refused("linear_cross_entropy: label_smoothing must be from 0 to 1, got 1.5", label_smoothing=1.5),
        _refused("reduction must be None, 'sum' or 'mean', got 'average'", reduction="average"),
    ]),
    _case("linear_cross_entropy, embeddings", _EMBEDDINGS, [], options=[_TIED, {**_SOFT, **_TIED}]),
    _case("linear_cross_entropy, reduced", _ALL, ["bias", "weights"], **_REDUCED, options=[
        {"reduction": "sum"}, {**_SOFT, "reduction": "mean", "ignore_class": 1}, {"reduction": "mean"}]),
    _case("linear_cross_entropy, embeddings, reduced", _EMBEDDINGS, ["bias", "weights"], **_REDUCED,
          options=[{"reduction": "mean", **_TIED}]),
]
_mean = functools.partial(tfuse.linear_cross_entropy, reduction="mean")
TIMES = [Timed(
    _case("linear_cross_entropy, speed", _ALL, [], _mean, _stock_mean, loss=_ONE), [_SIZE], cpu_sizes=[(2048, 256, 8192)],
    elements=lambda shape: [2 * shape[1] * (shape[0] + shape[2])] * 2,
    flops=lambda shape, options: (6 * volume(shape), 0),
    bars={("bfloat16", _SIZE): {"of_XLA": 1.0, "memory": 0.15 * 2 * _SIZE[0] * _SIZE[2] / 1e6}})]  # 15% of the logits
