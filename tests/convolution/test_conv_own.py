"""The rungs of conv_own beyond their cases: random geometries, one kernel after the other, TF32, what explain() says, and
conv without cuDNN."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import GPUS, new_process
from tfuse import cases
from tfuse.cases.convolution.conv import Geometry
from tfuse.convolution.conv_own import RUNGS

needs_gpu = pytest.mark.skipif(not GPUS, reason="needs a GPU")
every_rung = pytest.mark.parametrize("rung", RUNGS)
every_dtype = pytest.mark.parametrize("dtype", cases.DTYPES)


def check(got, geometry, x, kernel, unit=None):
    """Against the convolution in float64 of what x and kernel are after rounding."""
    x, kernel = cases.as64(x), cases.as64(kernel)
    want = geometry.forward(x, kernel)
    scale = np.sqrt(geometry.forward(x * x, kernel * kernel)).max(initial=0) + np.abs(want).max(initial=0)
    unit = unit or {"float64": 1e-13, "float32": 1e-5, "float16": 5e-4, "bfloat16": 4e-3}[got.dtype.name]
    assert got.shape == want.shape
    assert np.abs(cases.as64(got) - want).max(initial=0) <= unit * scale


def random_plane(rng):
    """A geometry of two spatial axes, and shapes of x and kernel whose channels and outputs are packs in one draw of two."""
    size, strides, dilation = ([int(rng.integers(1, most)) for _ in range(2)] for most in (6, 4, 4))
    padding = ["valid", "same", [(2, 1), (0, 3)]][int(rng.integers(3))]
    groups, pack = int(rng.choice([1, 1, 2])), int(rng.choice([1, 8]))
    geometry = Geometry(tuple(size), strides, padding, dilation, groups)
    own, outputs = pack * int(rng.integers(1, 6)), groups * pack * int(rng.integers(1, 10))
    image = [int(rng.integers(1, 4)), *(max(int(rng.integers(1, 40)), least) for least in geometry.least())]
    return geometry, [*image, groups * own], [*size, own, outputs]


@every_rung
@every_dtype
def test_random_geometries(device, rung, dtype):
    rng = np.random.default_rng(RUNGS.index(rung))
    for _ in range(25):
        geometry, *shapes = random_plane(rng)
        x, kernel = (tf.constant(rng.normal(size=shape), dtype) for shape in shapes)
        check(tfuse.conv_own(x, kernel, rung, **geometry.options()), geometry, x, kernel)


@every_rung
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_kernel_after_the_other(device, rung, dtype):
    """There is one constant memory for all calls. Nothing is read until all are queued."""
    rng, geometry = np.random.default_rng(3), Geometry((3, 3), padding="same")
    x = tf.constant(rng.normal(size=[4, 32, 32, 8]), dtype)
    kernels = [tf.constant(rng.normal(size=[3, 3, 8, 16]), dtype) for _ in range(16)]
    for kernel, y in zip(kernels, [tfuse.conv_own(x, kernel, rung, padding="same") for kernel in kernels]):
        check(y, geometry, x, kernel)


@every_rung
@pytest.mark.parametrize("x, kernel", [
    ((0, 5, 5, 8), (3, 3, 8, 8)), ((2, 5, 5, 8), (3, 3, 8, 0)), ((2, 2, 2, 8), (3, 3, 8, 8))])
def test_empty_results(device, rung, x, kernel):
    x, kernel = tf.ones(x), tf.ones(kernel)
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = tfuse.conv_own(x, kernel, rung)
    assert tf.size(y) == 0
    for gradient, of in zip(tape.gradient(y, [x, kernel]), [x, kernel]):
        assert gradient.shape == of.shape and not np.any(gradient)


@every_rung
def test_empty_sums_are_zero(device, rung):
    y = tfuse.conv_own(tf.ones([2, 5, 5, 0]), tf.ones([3, 3, 0, 8]), rung)
    assert y.shape == (2, 3, 3, 8) and not np.any(y)


@every_rung
@pytest.mark.parametrize("on", [False, True])
def test_tf32_only_where_it_is_allowed(tf32, device, rung, on):
    """And NaN stays NaN: that of GPUs has all bits set, which rounding must not carry over."""
    tf.config.experimental.enable_tensor_float_32_execution(on)
    rng, geometry = np.random.default_rng(4), Geometry((3, 3), padding="same")
    x, kernel = rng.normal(size=[2, 16, 16, 64]).astype("float32"), rng.normal(size=[3, 3, 64, 32]).astype("float32")
    y = tfuse.conv_own(x, kernel, rung, padding="same")
    check(y, geometry, tf.constant(x), tf.constant(kernel), 2e-3 if on else 1e-5)
    x[1, 5, 7, 3] = np.array(0x7FFFFFFF, np.uint32).view(np.float32)
    lost = np.isnan(tfuse.conv_own(x, kernel, rung, padding="same").numpy())
    assert np.all(lost[1, 4:7, 6:9]) and np.sum(lost) == 9 * 32


@pytest.mark.parametrize("rung", ["fast", "", None, 0])
def test_unknown_rungs(rung):
    with pytest.raises(ValueError, match="rung must be one of tensor, shared, constant, direct, got %r" % (rung,)):
        tfuse.conv_own(tf.ones([1, 5, 5, 8]), tf.ones([3, 3, 8, 8]), rung)


@needs_gpu
@pytest.mark.parametrize("rung, dtype, window, channels, outputs, kernel, why", [
    ("tensor", "bfloat16", (3, 3), 8, 16, "conv_tensor", ""),
    ("tensor", "bfloat16", (3, 3), 7, 16, "conv_shared",
     "tensor takes channels and outputs of a group in multiples of 16 bytes"),
    ("tensor", "float32", (3, 3), 8, 16, "conv_shared", "tensor takes 16 bits, and float32 where TF32 is allowed"),
    ("tensor", "bfloat16", (2, 2, 2), 8, 16, "conv_direct", "tensor takes one or two spatial axes"),
    ("shared", "bfloat16", (3, 3), 8, 16, "conv_shared", ""),
    ("shared", "float64", (5,), 3, 5, "conv_shared", ""),
    ("shared", "bfloat16", (2, 2, 2), 8, 16, "conv_direct", "shared takes one or two spatial axes"),
    ("constant", "bfloat16", (3, 3), 8, 16, "conv_constant", ""),
    ("constant", "bfloat16", (2, 2, 2), 3, 8, "conv_constant", ""),
    ("constant", "bfloat16", (3, 3), 8, 15, "conv_direct", "constant takes outputs of a group in multiples of 16 bytes"),
    ("constant", "bfloat16", (3, 3), 64, 64, "conv_direct", "constant takes kernels of at most 64 KiB"),
    ("direct", "bfloat16", (3, 3), 8, 16, "conv_direct", ""),
])
def test_explain(rung, dtype, window, channels, outputs, kernel, why):
    with tf.device("GPU:0"):
        tfuse.conv_own(tf.ones([2, *[9] * len(window), channels], dtype), tf.ones([*window, channels, outputs], dtype), rung)
    last = tfuse.explain()[-1]
    small = "too little shared memory" in last["why"]  # on this GPU
    assert last["op"] == "ConvOwn" and (kernel in last["kernel"] or small), last
    assert last["why"] == "; ".join(filter(None, ["its inputs are on the GPU", why])) or small, last


@needs_gpu
@every_dtype
def test_conv_without_cudnn(monkeypatch, dtype):
    """With bias, residual and relu after the sums, by the rung that each shape can have."""
    monkeypatch.setenv("TFUSE_CUDNN", "0")
    done = new_process("""if True:
        import sys, numpy as np, tensorflow as tf, tfuse
        rng, dtype = np.random.default_rng(1), sys.argv[1]
        def step(f, tensors):  # a gradient after relu would be that of another function where a sum is nearly 0
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                y = f(*tensors)
            return [tf.nn.relu(y), *tape.gradient(y, tensors, tf.ones_like(y))]
        for channels, outputs, strides in [(16, 72, 1), (16, 264, 2), (7, 9, 1), (3, 64, 3)]:
            result = [2, -(-19 // strides), -(-21 // strides), outputs]
            shapes = [2, 19, 21, channels], [3, 3, channels, outputs], [outputs], result
            narrow = [tf.constant(rng.normal(size=shape) / 4, dtype) for shape in shapes]
            own = lambda x, kernel, bias, residual, act=None: tfuse.conv(
                x, kernel, bias, act, residual, strides=strides, padding="same")
            with tf.device("CPU:0"):
                want = step(lambda x, kernel, bias, residual: tf.nn.conv2d(x, kernel, strides, "SAME") + bias + residual,
                            [tf.cast(t, tf.float64) for t in narrow])
            for g, w in zip([own(*narrow, "relu"), *step(own, narrow)[1:]], want):
                error = np.abs(tf.cast(g, tf.float64) - w).max() / np.abs(w).max()
                assert error < {"float64": 1e-12, "float32": 2e-3, "float16": 1e-2, "bfloat16": 5e-2}[dtype], error
        kernels = {row["kernel"].split()[0] for row in tfuse.explain(64) if row["op"] == "Conv" and row["when"] == "ran"}
        assert kernels & {"conv_tensor_%s" % {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}.get(dtype),
                          "conv_shared_f64"}, kernels
    """, dtype)
    assert done.returncode == 0, done.stdout
