import numpy as np

import tfuse
from tfuse.cases import Case, Input, Timed, bars, ones, refusing
from tfuse.elementwise.rope import plain

_SHAPES = [(2, 5, 3, 8), (1, 1, 1, 4), (0, 3, 2, 8), (2, 0, 2, 8), (3, 7, 5, 130), (2, 515, 4, 64),
           (1, 4099, 1, 4), (1, 1, 1, 100004)]
_SIZE = (4, 4096, 64, 128)


def _fit(shape):
    """[batch, time, heads, head_dim] of any shape."""
    if len(shape) == 4:
        return shape
    return (*shape[:-1], *(3, 2)[len(shape) - 2:], max(shape[-1] + shape[-1] % 2, 4))


def _turn(x, positions=0, base=10000.0, pairing="half", rotary=None, scale=1.0, inverse=False, frequencies=None):
    d, (batch, time) = rotary or x.shape[-1], x.shape[:2]
    positions = np.asarray(positions)
    if positions.ndim < 2:
        positions = positions.reshape(-1, 1) + np.arange(time)
    base, scale = (float(np.float32(value)) for value in (base, scale))  # the op's attributes are floats
    # Many turns, of which only the fraction counts: float64 would lose the digits that the turns have.
    turns = np.broadcast_to(positions, (batch, time))[..., None, None] * np.longdouble(scale)
    if frequencies is None:
        frequencies = np.longdouble(base)**(-2 * np.arange(d // 2, dtype=np.longdouble) / d)
    turns = turns * frequencies
    angles = np.fmod(turns, 8 * np.arctan(np.longdouble(1))).astype(float)
    first, second = (slice(0, d // 2), slice(d // 2, d)) if pairing == "half" else (slice(0, d, 2), slice(1, d, 2))
    pairs = (x[..., first] + 1j * x[..., second]) * np.exp(-1j * angles if inverse else 1j * angles)
    y = x.copy()
    y[..., first], y[..., second] = pairs.real, pairs.imag
    return y


def _case(name, inputs, **options):
    """A case of a query, with what else it takes."""
    return Case(name=name, run=lambda query, positions=0, **o: tfuse.rope(query, None, positions, **o), plain=_plain,
                reference=_turn, gradient=lambda dy, query, *p, **o: [_turn(dy, *p, inverse=True, **o)],
                inputs={"query": lambda shape: shape, **inputs}, shapes=_SHAPES, fit=_fit, **options)


def _plain(query, positions=0, rotary=None, **options):
    return plain(query, positions, rotary=rotary or 0, **options)


def _given(f):
    """f with frequencies as an input, at some position."""
    return lambda query, frequencies, **options: f(query, positions=7, frequencies=frequencies, **options)


def _positions(dtype, shape):
    return {"positions": Input(shape, lambda rng, own, _: rng.integers(0, 4096, own), dtype, False)}


def _both(f):
    return lambda query, key, **options: (f(query, **options), f(key, **options))


_PAIR = {"query": lambda shape: shape, "key": lambda shape: (*shape[:2], 1, shape[3])}
_refused, _two = refusing(tfuse.rope, query=ones(1, 2, 3, 4)), refusing(tfuse.rope, query=ones(2, 3, 5, 4))
CASES = [
    _case("rope", {}, options=[{}, {"pairing": "interleaved"}, {"positions": 1000, "base": 500000.0, "scale": 0.25},
                               {"rotary": 4}, {"rotary": 4, "pairing": "interleaved"}], rejects=[
        _refused("query must be .batch, time, heads, head_dim., got shape .2, 3.", query=ones(2, 3)),
        _refused("head_dim of query must be even, got shape .1, 2, 3, 5.", query=ones(1, 2, 3, 5)),
        _refused("head_dim of key must be even", key=ones(1, 2, 3, 5)),
        _refused("key must have the shape of query up to the heads, .1, 2, 3, 4., got .1, 2, 3, 6.", key=ones(1, 2, 3, 6)),
        _two("key must have the shape of query up to the heads, .2, 3, 1, 4., got .1, 3, 1, 4.", key=ones(1, 3, 1, 4)),
        _two("key must have the shape of query up to the heads, .2, 3, 1, 4., got .2, 7, 1, 4.", key=ones(2, 7, 1, 4)),
        _two("key must be .batch, time, heads, head_dim., got shape .2, 3, 4.", key=ones(2, 3, 4)),
        _two("query must be .batch, time, heads, head_dim., got shape .0.", query=ones(0), key=ones(2, 3, 5, 4)),
        _refused("rotary must be even and at most head_dim, 4, got 6", rotary=6),
        _refused("rotary must be even and at most head_dim, 4, got 3", rotary=3),
        _refused("positions must have the shape of .batch. of query, .2., got .3.",
                 query=ones(2, 2, 3, 4), positions=[1, 2, 3]),
        _refused("positions must have the shape of .batch, time. of query, .2, 2., got .2, 3.",
                 query=ones(2, 2, 3, 4), positions=[[1, 2, 3], [4, 5, 6]]),
        _refused("positions must be a number, .batch. or .batch, time., got shape .1, 1, 1.",
                 query=ones(1, 1, 3, 4), positions=[[[1]]]),
        _refused("rope: positions must be int32 or int64, got float64", positions=0.5),
        _refused("frequencies must be one for each pair that is rotated, 2, got shape .3.", frequencies=ones(3)),
        _refused("frequencies must be one for each pair that is rotated, 1, got shape .2.", frequencies=ones(2), rotary=2),
        _refused("rope: frequencies must be float32, got float64", frequencies=ones(2, dtype="float64")),
        _refused("rope: pairing must be one of half, interleaved, got 'thirds'", pairing="thirds"),
    ]),
    _case("rope, offsets", _positions("int32", lambda shape: shape[:1])),
    Case(name="rope, frequencies", run=_given(tfuse.rope), plain=_given(_plain), reference=_given(_turn),
         gradient=lambda dy, query, frequencies, **o: [_given(_turn)(dy, frequencies, inverse=True, **o)],
         inputs={"query": lambda shape: shape,
                 "frequencies": Input(lambda shape: (shape[3] // 2,), lambda rng, own, _: rng.uniform(0.01, 1, own), "float32",
                                      False)},
         shapes=_SHAPES, fit=_fit, options=[{}, {"pairing": "interleaved", "scale": 0.5}]),
    _case("rope, positions", _positions("int64", lambda shape: shape[:2])),
    Case(name="rope, key", run=tfuse.rope, plain=_both(_plain), reference=_both(_turn), fit=_fit, shapes=_SHAPES,
         gradient=lambda dy, query, key, **o: [_turn(d, inverse=True, **o) for d in dy], inputs=_PAIR, outputs=_PAIR,
         options=[{}, {"positions": 17, "pairing": "interleaved"}]),
]
TIMES = [Timed(CASES[0], [_SIZE], [{}, {"pairing": "interleaved"}], passes=(2, 2), bars=bars(_SIZE, forward=90, backward=90))]
