"""Where the sizes of results come from, by type of TensorFlow's ops. See _sizes.py. An op that is not here makes sizes of its
own, which is never wrong.

A rule is called with the Sizes, the result and the axis, whose size is not known. It returns a list of (tensor, axis), of which
those of size 1 are stretched to the others; or a size; or None where it does not know.
"""

from tfuse._core._size_values import constant, number, plus, quotient, times


def _one(v, rank):
    """A constant axis, counted from 0; or None."""
    found = constant(v)
    return None if found is None or rank is None else found[0] % rank


# ---- axes ----


def _elementwise(sizes, y, axis):
    if any(x.shape.rank is None for x in y.op.inputs):
        return None
    places = [(x, axis - y.shape.rank + x.shape.rank) for x in y.op.inputs]
    return [(x, a) for x, a in places if a >= 0]


def _matmul(sizes, y, axis):
    a, b = y.op.inputs
    if a.shape.rank is None or b.shape.rank is None:
        return None
    flags = [y.op.get_attr(name) for name in (("transpose_a", "transpose_b") if y.op.type == "MatMul" else ("adj_x", "adj_y"))]
    if axis == y.shape.rank - 2:
        return [(a, a.shape.rank - (1 if flags[0] else 2))]
    if axis == y.shape.rank - 1:
        return [(b, b.shape.rank - (2 if flags[1] else 1))]
    return _elementwise(sizes, y, axis)


def _einsum(sizes, y, axis):
    inputs, output = y.op.get_attr("equation").decode().replace(" ", "").split("->")
    if "." in inputs + output:
        return None
    return next(([(x, labels.index(output[axis]))] for x, labels in zip(y.op.inputs, inputs.split(","))
                 if output[axis] in labels), None)


def _reshape(sizes, y, axis):
    wanted = sizes.values(y.op.inputs[1])
    x = y.op.inputs[0]
    if wanted is None:
        return None
    if wanted[axis] != number(-1):
        return None if sizes.may_be_negative(wanted[axis]) else wanted[axis]
    others = wanted[:axis] + wanted[axis + 1:]
    if x.shape.rank is None or any(map(sizes.may_be_negative, others)):
        return None
    total, rest = times(*sizes.shape(x)), times(*others)
    found = quotient(total, rest)
    return sizes.named(("/", total, rest)) if found is None else found


def _by_shape(argument):
    """Of an op that makes a tensor of a shape; a BroadcastTo takes -1 for what x has."""
    def rule(sizes, y, axis):
        wanted = sizes.values(y.op.inputs[argument])
        return None if wanted is None or sizes.may_be_negative(wanted[axis]) else wanted[axis]

    return rule


def _range(sizes, y, axis):
    start, limit, delta = y.op.inputs
    count = sizes.values(limit)
    return count[0] if count and constant(start) == [0] and constant(delta) == [1] else None


def _without(x, gone, axis):
    """An axis of x without those that are gone."""
    gone = {a % x.shape.rank for a in gone}
    return [(x, [a for a in range(x.shape.rank) if a not in gone][axis])]


def _squeeze(sizes, y, axis):
    x, gone = y.op.inputs[0], y.op.get_attr("squeeze_dims")
    return _without(x, gone, axis) if gone and x.shape.rank is not None else None


def _reduce(sizes, y, axis):
    x, axes = y.op.inputs[0], constant(y.op.inputs[1])
    if axes is None or x.shape.rank is None:
        return None
    keeps = "keep_dims" in y.op.node_def.attr and y.op.get_attr("keep_dims")
    return [(x, axis)] if keeps else _without(x, axes, axis)  # of what is kept, what is reduced is 1, and known


def _concat(sizes, y, axis):
    parts, rank = list(y.op.inputs), y.shape.rank
    along = _one(parts.pop(), rank) if y.op.type == "ConcatV2" else y.op.get_attr("axis") % rank
    if along is None or any(x.shape.rank is None for x in parts):
        return None
    return plus(*(sizes.size(x, axis) for x in parts)) if axis == along else [(parts[0], axis)]


def _put_in(along):
    """An axis was put in, whose number along(y) says, or None."""
    def rule(sizes, y, axis):
        new = along(y)
        return None if new is None else [(y.op.inputs[0], axis - (axis > new))]

    return rule


def _unpack(sizes, y, axis):
    x = y.op.inputs[0]
    return None if x.shape.rank is None else [(x, axis + (axis >= y.op.get_attr("axis") % x.shape.rank))]


def _split(value, along):
    def rule(sizes, y, axis):
        x = y.op.inputs[value]
        where = _one(y.op.inputs[along], x.shape.rank)
        return None if where is None or where == axis else [(x, axis)]

    return rule


def _strided_slice(sizes, y, axis):
    """An axis that is taken whole."""
    x, begin, end, strides = y.op.inputs
    begin, strides = constant(begin), constant(strides)
    if begin is None or strides is None or x.shape.rank is None:
        return None
    masks = {name: y.op.get_attr(name + "_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    has = lambda name, i: masks[name] >> i & 1
    named = sum(not has("new_axis", i) and not has("ellipsis", i) for i in range(len(begin)))
    axes, at = [], 0  # of the result: the axis of x that is there whole, or None
    for i, (first, step) in enumerate(zip(begin, strides)):
        if has("ellipsis", i):
            axes += range(at, at + x.shape.rank - named)
            at += x.shape.rank - named
        elif has("new_axis", i):
            axes.append(None)
        else:
            whole = has("end", i) and step == 1 and (has("begin", i) or first == 0)
            axes += [] if has("shrink_axis", i) else [at if whole else None]
            at += 1
    axes += range(at, x.shape.rank)
    return None if axes[axis] is None else [(x, axes[axis])]


def _slice(sizes, y, axis):
    x, begin, size = y.op.inputs
    begin, size = constant(begin), constant(size)
    return [(x, axis)] if begin and size and begin[axis] == 0 and size[axis] == -1 else None


def _gather(sizes, y, axis):
    x, indices, along = y.op.inputs
    along = _one(along, x.shape.rank)
    if along is None or indices.shape.rank is None:
        return None
    before = y.op.get_attr("batch_dims")
    before += indices.shape.rank if before < 0 else 0
    more = indices.shape.rank - before
    if axis < along:
        return [(x, axis)]
    return [(indices, axis - along + before)] if axis < along + more else [(x, axis - more + 1)]


def _of_indices(last):
    """All axes of the indices but the `last` of them, and then those of something else."""
    def rule(sizes, y, axis):
        x, indices = y.op.inputs[:2]
        return [(indices, axis)] if indices.shape.rank is not None and axis < indices.shape.rank - last else None

    return rule


def _pad(sizes, y, axis):
    pairs = constant(y.op.inputs[1])
    if pairs is None:
        return None
    return plus(sizes.size(y.op.inputs[0], axis), number(pairs[2 * axis] + pairs[2 * axis + 1]))


def _tile(sizes, y, axis):
    counts = sizes.values(y.op.inputs[1])
    return None if counts is None else times(sizes.size(y.op.inputs[0], axis), counts[axis])


def _window(sizes, y, axis):
    """Of a convolution or of pooling: images stay, and places where there is one for each."""
    alone = all(n == 1 for n in y.op.get_attr("strides")) and y.op.get_attr("padding") == b"SAME"
    channels = y.shape.rank - 1 if y.op.get_attr("data_format").endswith(b"C") else 1
    return [(y.op.inputs[0], axis)] if axis == 0 or alone and axis != channels else None


_SAME = """Abs Acos Acosh AddN Asin Asinh Atan Atanh BiasAdd Cast Ceil CheckNumerics ClipByValue Cos Cosh Cumprod Cumsum Digamma
Elu EnsureShape Erf Erfc Erfinv Exp Expm1 FakeQuantWithMinMaxVars Floor Identity Inv Invert IsFinite IsInf IsNan LeakyRelu
Lgamma Log Log1p LogSoftmax LogicalNot MatrixBandPart Neg OnesLike PreventGradient Reciprocal Relu Relu6 ReverseV2 Rint Roll
Round Rsqrt Selu Sigmoid Sign Sin Sinh Snapshot Softmax Softplus Softsign Sqrt Square StopGradient Tan Tanh ZerosLike""".split()
_STRETCHED = """Add AddV2 Atan2 BitwiseAnd BitwiseOr BitwiseXor Div DivNoNan Equal FloorDiv FloorMod Greater GreaterEqual Less
LessEqual LogicalAnd LogicalOr Maximum Minimum Mod Mul MulNoNan NotEqual Pow RealDiv SelectV2 SquaredDifference Sub TruncateDiv
Xdivy Xlogy""".split()
_RANDOM = """RandomStandardNormal RandomUniform RandomUniformInt StatelessRandomNormal StatelessRandomNormalV2
StatelessRandomUniform StatelessRandomUniformV2 StatelessTruncatedNormal StatelessTruncatedNormalV2 TruncatedNormal""".split()
_WINDOWS = "AvgPool AvgPool3D Conv2D Conv3D DepthwiseConv2dNative MaxPool MaxPool3D".split()

RULES = {
    **dict.fromkeys(_SAME, lambda sizes, y, axis: [(y.op.inputs[0], axis)]),
    **dict.fromkeys(_STRETCHED, _elementwise),
    **dict.fromkeys(["Fill", "Empty", *_RANDOM], _by_shape(0)),
    **dict.fromkeys(["All", "Any", "ArgMax", "ArgMin", "Max", "Mean", "Min", "Prod", "Sum"], _reduce),
    **dict.fromkeys(["MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"], _matmul),
    **dict.fromkeys(["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"],
                    lambda sizes, y, axis: [(y.op.inputs[0], axis)] if y.value_index == 0 else None),
    **dict.fromkeys(["Pad", "PadV2", "MirrorPad"], _pad),
    **dict.fromkeys(_WINDOWS, _window),
    **dict.fromkeys(["ConcatV2", "Tfuse>Concat"], _concat),
    "BroadcastTo": _by_shape(1), "Einsum": _einsum, "GatherNd": _of_indices(1), "GatherV2": _gather, "Range": _range,
    "Reshape": _reshape, "ResourceGather": _of_indices(0), "Slice": _slice, "Split": _split(1, 0), "SplitV": _split(0, 2),
    "Squeeze": _squeeze, "StridedSlice": _strided_slice, "Tile": _tile, "Unpack": _unpack,
    "ExpandDims": _put_in(lambda y: _one(y.op.inputs[1], y.shape.rank)),
    "Pack": _put_in(lambda y: y.op.get_attr("axis") % y.shape.rank),
    "IdentityN": lambda sizes, y, axis: [(y.op.inputs[y.value_index], axis)],
    "OneHot": lambda sizes, y, axis: (
        [(y.op.inputs[0], axis)] if y.op.get_attr("axis") == -1 and axis < y.shape.rank - 1 else None),
    "Transpose": lambda sizes, y, axis: (order := constant(y.op.inputs[1])) and [(y.op.inputs[0], order[axis])],
}
