"""Tensors with their channels first, [batch, channels, spatial axes], for ops that take them last: moved, and moved back."""

from tfuse._core import _made, _rows
from tfuse.layout.transpose import transpose


def to_last(x):
    return transpose(x, [0, *range(2, x.shape.rank), 1])


def to_first(y, turn=to_last):
    """y with its channels, which are last, first; whoever looks back finds y itself, and what y can be joined with. turn: as
    to_last, for what is then added."""
    rank = y.shape.rank
    first = _made.keep(transpose(y, [0, rank - 1, *range(1, rank - 1)]), _made.Turned(y))
    made = None if not hasattr(y, "graph") else _made.of(y, _made.Unfinished)
    if made is not None:
        again = lambda name, residual: to_first(made.again(name, None if residual is None else turn(residual)), turn)
        _made.keep(first, made._replace(again=again))
    return first


def by_last(op, f, data_format, *images, turn=to_last):
    """f(*images) for f that takes and gives channels last, and images, some of which may be None, as data_format says."""
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError("%s: data_format must be channels_last or channels_first, got %r" % (op, data_format))
    if data_format == "channels_last":
        return f(*images)
    images = [x if x is None else _rows.tensor(x) for x in images]
    if any(x is not None and x.shape.rank is None for x in images):
        raise ValueError("%s: x must have a known number of dimensions where data_format is channels_first" % op)
    return to_first(f(*(x if x is None else turn(x) for x in images)), turn)
