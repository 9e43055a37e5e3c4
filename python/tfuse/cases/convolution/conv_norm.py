import tensorflow as tf

import tfuse
from tfuse.cases import AHEAD, Case, by_name, each, ones, refusing
from tfuse.cases.convolution import batch_norm, conv
from tfuse.cases.rows.norm import EPSILON

# Of the convolution, without what a batch norm has no use for: few values, whose variance is mostly rounding.
_SHAPES = [(2, 9, 7, 8, 5), (0, 4, 5, 4, 6), (2, 4, 5, 4, 0), (3, 12, 11, 6, 34), (1, 5, 40, 34, 8)]


def _plain(x, kernel, geometry, convolve=conv.naive, **rest):
    return batch_norm._plain(convolve(geometry, x, kernel), **rest)


def _reference(x, kernel, geometry, **rest):
    return batch_norm._reference(geometry.forward(x, kernel), **rest)


def _gradient(dy, x, kernel, geometry, **rest):
    """Of z, which is rounded, the gradient is one with terms; those of x and kernel are sums of them."""
    dz, *others = batch_norm._gradient(dy, geometry.forward(x, kernel), **rest)
    return [*geometry.gradients(dz, x, kernel), *others]


def _run(geometry, training, **rest):
    results = tfuse.conv_norm(training=training, momentum=batch_norm._MOMENTUM, epsilon=EPSILON, **geometry.options(), **rest)
    return list(results) if training else results[0]


def _case(name, geometry, training=True, residual=False, activations=("linear", "relu"), shapes=_SHAPES, **more):
    out, channels = conv.out_of(geometry), lambda shape: shape[-1:]
    inputs = {"x": lambda shape: shape[:-1], "kernel": conv.kernel_of(geometry), **batch_norm.statistics(channels, training),
              **({"residual": out} if residual else {})}
    of = lambda f, *first: by_name(f, [*first, *inputs], geometry=geometry, training=training)
    return Case(name=name, run=of(_run), plain=of(_plain), reference=of(_reference), gradient=of(_gradient, "dy"),
                fit=conv.fit_of(len(geometry.size)), summed=conv.positions, special=False, shapes=shapes, inputs=inputs,
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
_TIMED = _case("conv_norm, speed", _SAME, activations=("relu",))
# z is written and read twice; backward its gradient too, and dy is read twice.
TIMES = [conv.timed(_TIMED, _SAME, [_SPEED], results=4, bars={("float16", _SPEED): {"ms": 1.0, **AHEAD}},
                    rival=by_name(_plain, _TIMED.inputs, geometry=_SAME, convolve=conv.by_stock, moments=tf.nn.moments))]
