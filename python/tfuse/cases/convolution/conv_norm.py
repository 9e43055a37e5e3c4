import tensorflow as tf

import tfuse
from tfuse.cases import AHEAD, Case, each, ones, refusing
from tfuse.cases.convolution import batch_norm, conv
from tfuse.cases.rows.norm import EPSILON

# Of the convolution, without what a batch norm has no use for: few values, whose variance is mostly rounding.
_SHAPES = [(2, 9, 7, 8, 5), (0, 4, 5, 4, 6), (2, 4, 5, 4, 0), (3, 12, 11, 6, 34), (1, 5, 40, 34, 8)]


def _plain(geometry, training, residual, convolve=conv.naive, moments=batch_norm.moments):
    def plain(x, kernel, *rest, activation="linear"):
        return batch_norm._plain(convolve(geometry, x, kernel), *rest, *[None] * (not residual), training, activation,
                                 moments=moments)
    return plain


def _case(name, geometry, training=True, residual=False, activations=("linear", "relu"), shapes=_SHAPES, **more):
    out, channels = conv.out_of(geometry), lambda shape: shape[-1:]

    def reference(x, kernel, *rest, activation="linear"):
        return batch_norm._reference(geometry.forward(x, kernel), *rest, *[None] * (not residual), training, activation)

    def gradient(dy, x, kernel, *rest, activation="linear"):
        """Of z, which is rounded, the gradient is one with terms; those of x and kernel are sums of them."""
        z = geometry.forward(x, kernel)
        dz, *others = batch_norm._gradient(dy, z, *rest, *[None] * (not residual), training, activation)
        return [*geometry.gradients(dz, x, kernel), *others]

    def run(x, kernel, gamma, beta, mean, variance, skip=None, activation="linear"):
        results = tfuse.conv_norm(x, kernel, gamma, beta, mean, variance, training, activation, skip,
                                  momentum=batch_norm._MOMENTUM, epsilon=EPSILON, **geometry.options())
        return list(results) if training else results[0]

    return Case(name=name, run=run, plain=_plain(geometry, training, residual), reference=reference, gradient=gradient,
                fit=conv.fit_of(len(geometry.size)), summed=conv.places, special=False, shapes=shapes,
                inputs={"x": lambda shape: shape[:-1], "kernel": conv.kernel_of(geometry),
                        **batch_norm.statistics(channels, training), **({"residual": out} if residual else {})},
                outputs=batch_norm.results(out, channels, training), options=each("activation", activations), **more)


_SPEED, _SAME = (64, 56, 56, 256, 256), conv.Geometry((3, 3), padding="same")
_refused = refusing(tfuse.conv_norm, x=ones(2, 5, 5, 4), kernel=ones(3, 3, 4, 6), gamma=None, beta=None, mean=ones(6),
                    variance=ones(6), training=True)
CASES = [
    _case("conv_norm", _SAME, rejects=[
        _refused("conv_norm: x and kernel must have the same number of dimensions, got shapes .2, 5, 4. and .3, 3, 4, 6.",
                 x=ones(2, 5, 4)),
        _refused("mean must have the shape of x's channels, .6., got .4.", mean=ones(4))]),
    _case("conv_norm, residual", conv.Geometry((3, 2), strides=2, padding=[(1, 2), (0, 1)]), residual=True,
          activations=("relu",)),
    _case("conv_norm, frozen", conv.Geometry((3, 3), padding="same", groups=2), training=False, residual=True,
          activations=("relu",), shapes=[(2, 9, 7, 8, 6), (0, 4, 5, 4, 6), (2, 4, 5, 4, 0), (3, 12, 11, 6, 34)]),
]
# z is written and read twice; backward its gradient too, and dy is read twice.
TIMES = [conv.timed(_case("conv_norm, speed", _SAME, activations=("relu",)), _SAME, [_SPEED], results=4,
                    rival=_plain(_SAME, True, False, conv.by_stock, tf.nn.moments),
                    bars={("float16", _SPEED): {"ms": 1.0, **AHEAD}})]
