import numpy as np
import tensorflow as tf

import tfuse
from tfuse._core import _rows
from tfuse._core._op import sized
from tfuse.cases import Case, Input, Timed, bars, each, fitting, ones, refusing, sums, volume
from tfuse.convolution.resize import _plain

_SHAPES = [(2, 9, 8, 12), (1, 7, 7, 1), (3, 8, 15, 5), (0, 9, 8, 4), (2, 12, 12, 64), (1, 3, 70, 8), (1, 1, 5, 3)]
_VOLUMES = [(2, 3, 4, 5, 8), (1, 2, 2, 2, 3), (0, 4, 5, 5, 2)]
_RADIUS = {"bilinear": 1, "bicubic": 2, "lanczos3": 3, "lanczos5": 5}
_f = np.float32


def _cubic(x, a):
    return np.where(x < 1, ((a + 2) * x - (a + 3)) * x * x + 1, np.where(x < 2, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a, 0))


def weights(n, m, interpolation="bilinear", convention="half_pixel", antialias=False):
    """[m, n] in float64, of positions in float32."""
    table, i, half = np.zeros((m, n)), np.arange(n), convention == "half_pixel"
    spans = antialias and interpolation != "nearest" or interpolation.startswith("lanczos")
    if n == m:
        return np.eye(n)
    scale = _f(n - 1) / _f(m - 1) if convention == "align_corners" and m > 1 else _f(n) / _f(m)
    scale = _f(1 / float(_f(m) / _f(n))) if spans else scale
    inside = lambda at: min(max(int(at), 0), n - 1)
    for o, row in enumerate(table):
        s = _f(o + 0.5 * half) * scale
        p = s - _f(0.5 * half)
        base, lerp = int(np.floor(p)), float(p - np.floor(p))
        place = np.rint(lerp * 1024) / 1024
        if interpolation == "nearest":
            row[inside(np.floor(s + _f(0.5 * (convention == "align_corners"))))] = 1
        elif spans:
            radius, wide = _RADIUS[interpolation], max(scale, _f(1)) if antialias else _f(1)
            x = np.abs(i + 0.5 - float(s)) * float(1 / wide)
            raw = (np.maximum(1 - x, 0) if radius == 1 else _cubic(x, -0.5) if radius == 2 else
                   np.where(x <= 1e-3, 1, np.sinc(x) * np.sinc(x / radius)) * (x <= radius))
            row[:] = raw / raw.sum()
        elif interpolation == "bilinear":
            row[inside(base)] += 1 - lerp
            row[inside(np.ceil(p))] += lerp
        elif half:
            raw = _cubic(np.abs(i - base - place), -0.5) * (np.abs(i - base - 0.5) < 2)
            row[:] = raw / raw.sum()
        else:
            for k in range(-1, 3):
                row[inside(base + k)] += _cubic(abs(k - place), -0.75)
    return table


def along(x, tables):
    """x [batch, sizes, channels] with each table's map along its axis."""
    for axis, table in enumerate(tables, 1):
        x = np.moveaxis(np.tensordot(table, x, (1, axis)), 0, axis)
    return x


def _tables(x, size, back=False, **options):
    tables = [weights(n, m, **options) for n, m in zip(x.shape[1:-1], size(x.shape[1:-1]))]
    return [table.T for table in tables] if back else tables


def _inner(x, axes):
    return _rows.sizes(tf.ensure_shape(x, [None] * (axes + 2)) if x.shape.rank is None else x)[1:-1]


def _composed(size, axes):
    """By tfuse's own composition: gradients of stock TensorFlow's kernels have none, and it has no volumes."""
    def call(x, interpolation="bilinear", convention="half_pixel", antialias=False):
        (batch, channels), ones = (_rows.size(x, 0), _rows.size(x, -1)), [1] * (3 - axes)
        inner = _inner(x, axes)
        y = _plain(tf.reshape(x, [batch, *ones, *inner, channels]), sized(*ones, *size(inner)), interpolation, convention,
                   antialias)
        return tf.reshape(y, [batch, *size(inner), channels])

    return call


def _stock(size):
    return lambda x, interpolation: tf.cast(tf.image.resize(x, size(x.shape[1:-1]), interpolation), x.dtype)


def _case(name, size, options=({},), shapes=_SHAPES, **more):
    """size: of the result, from that of x."""
    axes = len(shapes[0]) - 2
    return Case(
        name=name, run=lambda x, **options: tfuse.resize(x, size(_inner(x, axes)), **options), plain=_composed(size, axes),
        reference=lambda x, **options: sums(lambda x, *tables: along(x, tables), x, *_tables(x, size, **options)),
        gradient=lambda dy, x, **options: [
            sums(lambda dy, *tables: along(dy, tables), dy, *_tables(x, size, back=True, **options))],
        outputs={"value": Input(lambda shape: (shape[0], *size(shape[1:-1]), shape[-1]))}, options=list(options),
        shapes=shapes, fit=fitting(axes + 2, lambda rows, columns: (min(rows, 2), *(9, 8, 7)[:axes], min(columns, 34))),
        summed=lambda shape: 64, special=False, **more)


_ALL = [{"interpolation": interpolation, "antialias": antialias}
        for interpolation in ("bilinear", "bicubic", "lanczos3", "lanczos5") for antialias in (False, True)]
_LEGACY = [{"interpolation": interpolation, "convention": convention}
           for interpolation in ("nearest", "bilinear", "bicubic") for convention in ("align_corners", "asymmetric")]
_twice = lambda sizes: tuple(2 * n for n in sizes)


def _odd(sizes):
    return tuple(size for size, _ in zip((5, 13, 3), sizes))


_refused = refusing(tfuse.resize, images=ones(2, 3, 3, 1), size=(6, 6))
CASES = [
    _case("resize", _odd, _ALL, rejects=[
        _refused("resize: interpolation must be one of nearest.*got 'area'", interpolation="area"),
        _refused("resize: convention must be one of half_pixel.*got 'corners'", convention="corners"),
        _refused("resize: convention must be half_pixel with antialias.*got align_corners", convention="align_corners",
                 antialias=True),
        _refused(r"resize: size must be 1 to 2\^24 along each axis, got \[0, 6\]", size=(0, 6)),
        _refused("resize: size must be integers, got 1.5", size=(1.5, 6)),
        _refused(r"resize: images must be .*got shape \(2, 3, 3, 1\) and size \[6\]", size=(6,)),
        _refused(r"(?i)resize: x must not be empty along the height, got shape \[2, 1, 0, 3, 1\] for a size of 6",
                 images=ones(2, 0, 3, 1)),
        _refused("resize: images must be float32.*got int32", images=ones(2, 3, 3, 1, dtype=tf.int32)),
    ]),
    _case("resize, nearest", _odd, each("interpolation", ["nearest"])),
    _case("resize, twice as large", _twice, each("interpolation", ["nearest", "bilinear", "bicubic"])),
    _case("resize, other conventions", _odd, _LEGACY),
    _case("resize, of volumes", _twice, each("interpolation", ["nearest"]), _VOLUMES),
]
_LARGE = [(128, 64, 64, 64), (128, 64, 64, 256), (32, 128, 128, 256)]
TIMES = [Timed(_case(name, _twice, each("interpolation", [interpolation])), _LARGE,
               rival=_stock(_twice), cpu_sizes=[(8, 32, 32, 64)], elements=lambda shape: [volume(shape) * 5] * 2,
               xla_can=interpolation != "nearest", bars=bars(*_LARGE, dtypes=["bfloat16"], forward=85, backward=85))
         for name, interpolation in (("resize, speed", "bilinear"), ("resize, nearest, speed", "nearest"))]
