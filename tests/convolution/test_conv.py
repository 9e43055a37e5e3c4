"""conv and conv_transpose beyond their cases: hundreds of random geometries against NumPy, and Keras's own results."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from tfuse import cases
from tfuse._core import _op, _row, _windows
from tfuse.cases.convolution.conv import Geometry
from tfuse._tools import _tune
from tfuse.convolution import conv as op


def close(got, want, dtype="float64"):
    want = np.asarray(want)
    assert got.shape == want.shape
    scale = max(np.max(np.abs(want), initial=0), 1e-30)
    limit = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    assert np.max(np.abs(cases.as64(got) - want), initial=0) <= limit * scale


def random_geometry(rng):
    """A geometry, and the sizes of what it is used on: (batch, spatial axes …), channels and outputs of a group."""
    axes = int(rng.integers(1, 4))
    most = {1: 40, 2: 14, 3: 8}[axes]
    size = tuple(int(rng.integers(1, 5)) for _ in range(axes))
    dilation = [int(rng.choice([1, 1, 2, 3])) for _ in range(axes)]
    strides = [int(rng.choice([1, 1, 2, 3])) for _ in range(axes)]
    padding = [rng.choice(["valid", "same", "causal"]), [tuple(map(int, rng.integers(0, 5, 2))) for _ in range(axes)]][
        int(rng.integers(2))]
    groups = int(rng.choice([1, 1, 2, 3]))
    geometry = Geometry(size, strides, str(padding) if isinstance(padding, str) else padding, dilation, groups)
    spatial = [max(int(rng.integers(1, most)), least) for least in geometry.least()]
    return geometry, [int(rng.integers(1, 4)), *spatial], groups * int(rng.integers(1, 7)), groups * int(rng.integers(1, 9))


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("groups", [1, 2])
def test_large_images(device, groups):
    """So many windows that the CPU copies them in parts, and the last part is shorter."""
    rng = np.random.default_rng(9)
    geometry = Geometry((5, 5), 1, "same", 1, groups)
    x, kernel = rng.normal(size=[2, 121, 119, 4]), rng.normal(size=[5, 5, 4 // groups, 6])
    dy = rng.normal(size=[2, 121, 119, 6])
    inputs = [tf.constant(x), tf.constant(kernel)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = tfuse.conv(*inputs, **geometry.options())
    close(y, geometry.forward(x, kernel))
    for got, want in zip(tape.gradient(y, inputs, tf.constant(dy)), [geometry.data(dy, kernel, [121, 119]),
                                                                     geometry.filter(x, dy)]):
        close(got, want)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("seed", range(8))
def test_random_geometries(device, seed):
    """Values and gradients of all that there is, in float64; values in the other types."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        geometry, image, channels, outputs = random_geometry(rng)
        given = geometry.options()
        x, kernel = rng.normal(size=[*image, channels]), rng.normal(size=[*geometry.size, channels // geometry.groups, outputs])
        bias, want = rng.normal(size=outputs), geometry.forward(x, kernel)
        residual, dy = rng.normal(size=want.shape), rng.normal(size=want.shape)
        relu, pre = bool(rng.integers(2)), want + bias + residual
        inputs = [tf.constant(t) for t in (x, kernel, bias, residual)]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = tfuse.conv(*inputs[:3], "relu" if relu else None, inputs[3], **given)
        gradients = tape.gradient(y, inputs, tf.constant(dy))
        close(y, np.maximum(pre, 0) if relu else pre)
        g = dy * (pre > 0) if relu else dy
        for got, wanted in zip(gradients, [geometry.data(g, kernel, image[1:]), geometry.filter(x, g),
                                           g.reshape(-1, outputs).sum(0), g]):
            close(got, wanted)
        for dtype in ("float32", "float16", "bfloat16"):
            narrow = [tf.cast(t, dtype) for t in inputs[:2]]
            close(tfuse.conv(*narrow, **given), geometry.forward(*map(cases.as64, narrow)), dtype)


@pytest.mark.parametrize("seed", range(4))
def test_random_geometries_transposed(device, seed):
    rng = np.random.default_rng(100 + seed)
    for _ in range(30):
        geometry, image, channels, outputs = random_geometry(rng)
        padding = str(rng.choice(["valid", "same"]))
        more = None if rng.integers(2) else [int(rng.integers(0, s)) for s in geometry.strides]
        both = Geometry(geometry.size, geometry.strides, padding, geometry.dilation)
        x, kernel = rng.normal(size=[*image, channels]), rng.normal(size=[*geometry.size, outputs, channels])
        large = [op._spread_size(n, k, s, d, padding, None if more is None else more[i]) for i, (n, k, s, d) in enumerate(
            zip(image[1:], geometry.size, geometry.strides, geometry.dilation))]
        if list(both.out(large)) != image[1:]:  # sizes that no convolution has: TensorFlow refuses them
            continue
        dy, inputs = rng.normal(size=[image[0], *large, outputs]), [tf.constant(x), tf.constant(kernel)]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = tfuse.conv_transpose(*inputs, strides=geometry.strides, padding=padding, output_padding=more,
                                     dilation=geometry.dilation)
        close(y, both.data(x, kernel, large))
        for got, want in zip(tape.gradient(y, inputs, tf.constant(dy)), [both.forward(dy, kernel), both.filter(dy, x)]):
            close(got, want)


# ---- images of few channels, at stride 2, which a GPU may take in quads ----

STEMS = {"ResNet": ((7, 7), [(3, 3), (3, 3)], (2, 20, 24, 3, 8)), "odd sizes": ((7, 7), [(3, 3)] * 2, (3, 33, 19, 3, 64)),
         "same": ((3, 3), "same", (2, 16, 18, 3, 16)), "same, odd sizes": ((3, 3), "same", (2, 15, 17, 3, 32)),
         "valid": ((4, 5), "valid", (2, 17, 16, 4, 24)), "a channel": ((5, 3), [(0, 2), (2, 1)], (1, 12, 11, 1, 8)),
         "two": ((2, 7), "same", (5, 9, 30, 2, 40))}


@pytest.fixture
def in_quads():
    """Quads are taken wherever they can be, also where they are not faster."""
    choice, = [c for c in _tune.tunables() if (c.stem, c.name) == ("conv_quads", "in_quads")]
    choice.put(2)
    yield
    choice.put(choice.value)


@pytest.mark.usefixtures("as_on_a_gpu", "in_quads")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("name", STEMS)
def test_few_channels_at_stride_2(device, jit, name, activation, dtype):
    """Values and the kernel's gradient, and who computed them."""
    size, padding, (*image, channels, outputs) = STEMS[name]
    rng, geometry = np.random.default_rng(5), Geometry(size, 2, padding)
    x, kernel = (tf.cast(rng.normal(size=s), dtype) for s in ([*image, channels], [*size, channels, outputs]))
    bias = tf.cast(rng.normal(size=outputs), dtype) if activation else None
    want = geometry.forward(cases.as64(x), cases.as64(kernel)) + (cases.as64(bias) if activation else 0)
    dy = tf.cast(rng.normal(size=want.shape), dtype)

    @tf.function(jit_compile=jit)
    def f(x, kernel, dy):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            y = tfuse.conv(x, kernel, bias, activation, strides=2, padding=padding)
        return y, tape.gradient(y, kernel, dy)

    y, dkernel = f(x, kernel, dy)
    close(y, np.maximum(want, 0) if activation else want, dtype)
    slope = cases.as64(y) > 0 if activation else 1
    close(dkernel, geometry.filter(cases.as64(x), cases.as64(dy) * slope), dtype)
    if "GPU" in device and not jit:
        kernels = {row["op"]: row["kernel"] for row in tfuse.explain() if row["when"] == "ran"}
        assert "quads" in kernels["Conv"] and "quads" in kernels["ConvFilter"]


def room(stem, dtype, inputs, output, kernel_dtype=None, strides=1, **options):
    """Bytes beside the row's own; all in one dtype but a kernel, and sizes."""
    fused = next(fused for fused in _op.registry.values() if fused.stem == stem)
    arguments = [*fused._definition.input_arg, fused._definition.output_arg[0]]
    dtypes = [{"kernel": kernel_dtype or dtype, "sizes": "bool"}.get(argument.name, dtype) for argument in arguments]
    specs = [tf.TensorSpec([0] if shape is None else shape, dtype) for shape, dtype in zip([*inputs, output], dtypes)]
    attributes = fused._scalars({"strides": _windows.word([strides] * 2), **options})
    return _row.more_room(stem, specs[:-1], attributes, specs[-1:])


def test_room_for_quads():
    x, kernel, y = [None, 224, 224, 3], [7, 7, 3, 64], [None, 112, 112, 64]
    of = lambda x=x, dtype="bfloat16", kernel=kernel, y=y, strides=2, **options: room(
        "conv", dtype, [x, kernel, None, None, [112, 112, 0]], y, strides=strides, **options)
    assert of() == (256 * 115 * 115 + 4 * 4 * 64) * 32 + 512
    assert of([2, 224, 224, 3], "float16") == (2 * 115 * 115 + 4 * 4 * 64) * 32 + 512
    assert of([2, None, None, 3]) == of([2, 224, 224, 3])
    assert room("conv_filter", "bfloat16", [x, y, [*kernel, 0]], kernel, strides=2) == of()
    assert room("conv_data", "bfloat16", [y, kernel, [224, 224, 3, 0]], x, strides=2) == 0
    assert of(strides=1) == of(dtype="float32") == of(y=[2, None, 112, 64]) == of(dilation=_windows.word([2, 2])) == 0
    assert of([2, 224, 224, 5], kernel=[7, 7, 5, 64]) == of([2, 224, 224, None]) == of([2, 224, 224, 6], strides=2) == 0


# ---- a kernel that is kept in float32 ----


WIDE = {"3x3": ((3, 3), {"padding": "same"}, (2, 9, 8, 16, 24)), "1x1": ((1, 1), {"strides": 2}, (2, 9, 8, 16, 24)),
        "an output": ((3, 3), {}, (1, 5, 6, 8, 1)), "a channel": ((1,), {}, (3, 7, 1, 40)),
        "groups": ((3, 2), {"groups": 4, "dilation": 2}, (2, 9, 8, 16, 24)), "stem": ((7, 7), {"strides": 2}, (2, 21, 24, 3, 8)),
        "by depth": ((3, 3), {"groups": 16, "padding": "same"}, (2, 9, 8, 16, 16)),
        "films": ((2, 3, 2), {"padding": "same"}, (1, 4, 5, 6, 8, 16)), "nothing": ((3, 3), {}, (0, 5, 5, 8, 8))}


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", WIDE)
def test_a_kernel_in_float32(device, jit, name, dtype):
    """Is rounded as a cast rounds it, and has its gradient in float32; also where that is differentiated again."""
    size, options, (*image, channels, outputs) = WIDE[name]
    rng, geometry = np.random.default_rng(6), Geometry(size, **options)
    x = tf.cast(rng.normal(size=[*image, channels]), dtype)
    kernel = tf.constant(rng.normal(size=[*size, channels // geometry.groups, outputs]), tf.float32)
    dy = tf.cast(rng.normal(size=[image[0], *geometry.out(image[1:]), outputs]), dtype)

    @tf.function(jit_compile=jit)
    def f(x, kernel, dy):
        with tf.GradientTape() as outer:
            outer.watch([x, dy])
            with tf.GradientTape() as tape:
                tape.watch([x, kernel])
                y = tfuse.conv(x, kernel, **options)
            dx, dkernel = tape.gradient(y, [x, kernel], dy)
        return y, dx, dkernel, *outer.gradient(dkernel, [x, dy], kernel)

    y, dx, dkernel, again_x, again_dy = f(x, kernel, dy)
    assert dkernel.dtype == tf.float32 and {t.dtype.name for t in (y, dx, again_x, again_dy)} == {dtype}
    rounded, x, dy = cases.as64(tf.cast(kernel, dtype)), cases.as64(x), cases.as64(dy)
    close(y, geometry.forward(x, rounded), dtype)
    close(dx, geometry.data(dy, rounded, image[1:]), dtype)
    close(dkernel, geometry.filter(x, dy), dtype)
    close(again_x, geometry.data(dy, rounded, image[1:]), dtype)  # of dkernel * kernel, of which both are factors
    close(again_dy, geometry.forward(x, rounded), dtype)


def test_a_transposed_kernel_in_float32(device):
    rng = np.random.default_rng(7)
    x, kernel = tf.cast(rng.normal(size=[2, 5, 6, 8]), "bfloat16"), tf.constant(rng.normal(size=[3, 3, 4, 8]), tf.float32)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, kernel])
        y, want = (tfuse.conv_transpose(x, k, strides=2, padding="same") for k in (kernel, tf.cast(kernel, x.dtype)))
    for got, wanted in zip([y, *tape.gradient(y, [x, kernel])], [want, *tape.gradient(want, [x, kernel])]):
        close(got, cases.as64(wanted), "bfloat16")
        assert got.dtype == wanted.dtype


def test_numbers_as_a_kernel():
    """Of integers, too: they are taken in x's dtype."""
    x, ones = tf.cast(tf.random.normal([1, 4, 4, 8], seed=1), "bfloat16"), np.ones([3, 3, 8, 8])
    want = tfuse.conv(x, tf.cast(ones, "bfloat16"))
    for kernel in (ones, ones.astype("float32"), ones.astype(int), ones.tolist()):
        np.testing.assert_array_equal(tfuse.conv(x, kernel), want)


def test_room_for_copies_of_a_kernel():
    x, y, kernel, elements = [2, 8, 8, 16], [2, 8, 8, 32], [3, 3, 16, 32], 3 * 3 * 16 * 32
    calls = {"conv": ([x, kernel, None, None, [8, 8, 0]], y), "conv_filter": ([x, y, [*kernel, 0]], kernel),
             "conv_data": ([y, kernel, [8, 8, 16, 0]], x)}
    for stem, call in calls.items():
        assert room(stem, "bfloat16", *call) == 0
        assert room(stem, "bfloat16", *call, "float32") == 4 * elements
    assert room("conv", "float16", [x, [3, 3, None, 32], None, None, [8, 8, 0]], y, "float32") == 0


def test_other_dtypes_of_kernels_are_refused():
    x = tf.ones([1, 4, 4, 8], tf.bfloat16)
    with pytest.raises(ValueError, match="kernel must be bfloat16 or float32, got float64; cast it"):
        tfuse.conv(x, tf.ones([3, 3, 8, 8], tf.float64))
    with pytest.raises(ValueError, match="kernel must be float32 like x, got float16; cast one of them"):
        tfuse.conv(tf.cast(x, "float32"), tf.ones([3, 3, 8, 8], tf.float16))


# ---- as Keras ----

_KERAS = [(axes, padding, strides, dilation, n) for axes, padding, (strides, dilation), n in itertools.product(
    (1, 2, 3), ("valid", "same"), ((1, 1), (2, 1), (3, 1), (1, 2)), (7, 8))]


@pytest.mark.parametrize("served", ["by TensorFlow", "by tfuse"])
def test_as_keras(request, served):
    """keras.ops.conv for every padding, and channels first."""
    if served == "by tfuse":
        request.getfixturevalue("as_on_a_gpu")
    rng = np.random.default_rng(0)
    for axes, padding, strides, dilation, n in _KERAS:
        x, kernel = (tf.constant(rng.normal(size=s), tf.float32) for s in ([2, *[n] * axes, 4], [*[3] * axes, 4, 6]))
        want = keras.ops.conv(x, kernel, strides, padding, "channels_last", dilation)
        close(tfuse.conv(x, kernel, strides=strides, padding=padding, dilation=dilation), want, "float32")
        first = tf.transpose(x, [0, axes + 1, *range(1, axes + 1)])
        got = tfuse.conv(first, kernel, strides=strides, padding=padding, dilation=dilation, data_format="channels_first")
        close(tf.transpose(got, [0, *range(2, axes + 2), 1]), want, "float32")


def test_transposed_as_keras(device):
    rng = np.random.default_rng(1)
    for axes, padding, strides, dilation, n in _KERAS:
        for k, more in [(3, None), (2, None), (4, None), (3, strides - 1), (3, 0)]:
            if dilation > 1 and (padding == "same" or axes == 3 or more):  # TensorFlow has not all of these on a CPU
                continue
            x, kernel = (tf.constant(rng.normal(size=s), tf.float32) for s in ([2, *[n] * axes, 4], [*[k] * axes, 6, 4]))
            try:
                want = keras.ops.conv_transpose(x, kernel, strides, padding, more, "channels_last", dilation)
            except (tf.errors.OpError, ValueError):  # sizes that it refuses
                continue
            close(tfuse.conv_transpose(x, kernel, strides=strides, padding=padding, output_padding=more, dilation=dilation), want,
                  "float32")


def test_explains_who_computes_on_a_cpu():
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU")
    tfuse.conv(tf.ones([1, 5, 5, 4]), tf.ones([3, 3, 4, 4]))
    assert "TensorFlow's own convolution is faster" in tfuse.explain(1)[0]["why"]
    tfuse.conv(tf.ones([1, 5, 5, 4]), tf.ones([3, 3, 2, 4]), groups=2)
    assert any(row["op"] == "Conv" and row["when"] == "ran" and row["input"] == "float32[1, 5, 5, 4]" for row in tfuse.explain())


@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_is_known_while_tracing():
    traced = tf.function(lambda x, k: tfuse.conv(x, k, strides=2, padding="same"),
                         input_signature=[tf.TensorSpec([None, None, 9, 4]), tf.TensorSpec([3, 3, 4, 6])])
    assert traced.get_concrete_function().output_shapes.as_list() == [None, None, 5, 6]
    anything = tf.function(lambda x, k: tfuse.conv(x, k, padding="causal"), input_signature=[tf.TensorSpec(None)] * 2)
    x, kernel = tf.random.normal([2, 9, 4]), tf.random.normal([3, 4, 6])
    close(anything(x, kernel), cases.as64(tfuse.conv(x, kernel, padding="causal")), "float32")


@pytest.mark.usefixtures("as_on_a_gpu")
def test_nan_stays(device):
    x = tf.constant(np.array([[[np.nan], [1.0], [-1.0]]]), tf.float32)
    y = tfuse.conv(x, tf.ones([1, 1, 1]), tf.zeros([1]), "relu")
    assert np.array_equal(y[0, :, 0], [np.nan, 1.0, 0.0], equal_nan=True)
