"""The runtime of tfuse.jit, with kernels written by hand: every route, dtype and kind, and what is refused. On a machine
with a GPU the same tests compile and run them there."""

import ctypes
import dataclasses
import gc
import os
import pathlib
import subprocess
import sys
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import core

import tfuse
from tfuse._core import _library
from tfuse._tools import _cache
from tfuse.jit import _call, _kernel
from tfuse.jit._kernel import Kernel, run

GPU = not _library.without_gpu()
DTYPES = [tf.float32, tf.float16, tf.bfloat16, tf.float64]
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")


def kernel(name, kind, functions, program, inputs, shapes="broadcast", numbers=(), plain=None, outputs=("y",), types=(0,)):
    numbers = dict(NAME=name, INPUTS=len(inputs), OUTPUTS=len(outputs), **dict(numbers))
    source = "".join("#define JIT_%s %s\n" % pair for pair in numbers.items()) + functions
    return Kernel(name, kind, source, program, tuple(inputs), tuple(outputs), tuple(types), shapes, "", plain)


def body(name, parameters, text):
    return "static __device__ void %s_body(%s) { %s }\n" % (name, parameters, text)


SWISH = kernel("swish", "elementwise", body("swish", "R x0, R x1, R &y0", "y0 = x0 / (R(1) + exp(-x1 * x0));"),
               "body:\nx0 1 x1 neg x0 mul exp add div =y0\n", ["x", "beta"],
               plain=lambda t: [t[0] / (1 + tf.exp(-tf.cast(t[1], t[0].dtype) * t[0]))])
BOTH = kernel("both", "elementwise", body("both", "R x0, R x1, R x2, R &y0, R &y1", "y0 = x0 + x1 * x2; y1 = x0 - x1;"),
              "body:\nx0 x1 x2 mul add =y0 x0 x1 sub =y1\n", ["x", "z", "w"], outputs=["y", "u"], types=(0, 1))
SOFTMAX_FUNCTIONS = """static __device__ R sm_map0(R x0, R x1, R n) { return x0 * x1; }
static __device__ R sm_reduce0(R a, R b) { return a > b ? a : b; }
static __device__ R sm_identity0() { return R(-__int_as_float(0x7f800000)); }
static __device__ R sm_map1(R r0, R x0, R x1, R n) { return exp(x0 * x1 - r0); }
static __device__ R sm_reduce1(R a, R b) { return a + b; }
static __device__ R sm_identity1() { return R(0); }
"""
SOFTMAX_PROGRAM = """map0: x0 x1 mul
reduce0: a b max
identity0: -inf
map1: x0 x1 mul r0 sub exp =y0
reduce1: a b add =y0
identity1: 0 =y0
"""
SOFTMAX = kernel("sm", "rows", SOFTMAX_FUNCTIONS + "static __device__ void sm_post(R r0, R r1, R x0, R x1, R n, R &y0) "
                 "{ y0 = exp(x0 * x1 - r0) / r1; }\n", SOFTMAX_PROGRAM + "post: x0 x1 mul r0 sub exp r1 div =y0",
                 ["x", "scale"], "like 0", {"PASSES": 2, "POST": 1})
FINAL = "static __device__ R sm_final(R r0, R r1, R n) { return r0 + log(r1); }\n"
LOG_SUM_EXP = {keep: kernel("sm", "rows", SOFTMAX_FUNCTIONS + FINAL,
                            SOFTMAX_PROGRAM + "final: r0 r1 log add =y0", ["x", "scale"], "row keep" if keep else "row",
                            {"PASSES": 2, "POST": 0}) for keep in (False, True)}


def random(shape, dtype, seed=0):
    return tf.cast(np.random.default_rng(seed).normal(size=shape), dtype)


def wide(x):
    return np.asarray(tf.cast(x, tf.float64))


def close(got, want, dtype):
    want, limit = wide(want), {tf.float64: 1e-12, tf.float32: 3e-6}.get(dtype, 2.0**(-7 if dtype == tf.bfloat16 else -10))
    assert got.dtype == dtype and got.shape == want.shape
    np.testing.assert_allclose(wide(got), want, rtol=limit, atol=limit)


def swish64(x, beta):
    x, beta = wide(x), wide(beta)
    return x / (1 + np.exp(-beta * x))


# ---- values ----


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("shapes", [((4, 8), ()), ((7, 3), (7, 3)), ((1,), ()), ((), ()), ((0, 8), ()), ((3, 5, 129), (129,)),
                                    ((513, 1030), (513, 1)), ((100003,), ()), ((4, 1, 8), (5, 1)), ((2, 3, 4, 5), (3, 1, 5)),
                                    ((64, 1024), (1024,)), ((1030,), (7, 1030))], ids=str)
def test_elementwise(shapes, dtype):
    x, beta = random(shapes[0], dtype), random(shapes[1], dtype, 1)
    close(run(SWISH, [x, beta])[0], swish64(x, beta), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(4, 8), (1, 1), (7, 3), (2, 3, 64), (100, 513), (9, 1024), (5, 4096), (3, 5001),
                                   (2, 20000), (1, 100003), (0, 4), (1000, 1), (2, 65536)], ids=str)
def test_rows(shape, dtype):
    x = random(shape, dtype)
    for scale in random((), dtype, 1), random(shape[-1:], dtype, 2), random((*shape[:-1], 1), dtype, 3):
        v = wide(x) * wide(scale)
        e = np.exp(v - v.max(-1, keepdims=True, initial=-np.inf))
        close(run(SOFTMAX, [x, scale])[0], e / e.sum(-1, keepdims=True), dtype)
        for keep, k in LOG_SUM_EXP.items():
            want = v.max(-1, keepdims=True) + np.log(e.sum(-1, keepdims=True))
            close(run(k, [x, scale])[0], want if keep else want[..., 0], dtype)


def test_rows_without_columns():
    y, = run(LOG_SUM_EXP[False], [tf.zeros([3, 0]), 1.0 * tf.ones([])])
    assert np.array_equal(y, [-np.inf] * 3)


def test_slices_begin_anywhere():
    x = random((1001,), tf.float32)
    for start in (0, 1, 2, 3):
        part = tf.identity(x[start:start + 990])
        close(run(SWISH, [part, tf.constant(0.5)])[0], swish64(part, 0.5), tf.float32)


def test_several_dtypes_and_outputs():
    x, z, w = random((6, 10), tf.bfloat16), random((6, 10), tf.float32, 1), tf.constant([[True], [False]] * 3)
    y, u = run(BOTH, [x, z, w])
    close(y, wide(x) + wide(z) * wide(w), tf.bfloat16)
    close(u, wide(x) - wide(z), tf.float32)
    whole = tf.range(60, dtype=tf.int64)
    y, u = run(BOTH, [whole, tf.cast(whole, tf.int32), tf.fill([60], True)])
    assert y.dtype == tf.int64 and u.dtype == tf.int32 and np.array_equal(y, 2 * np.arange(60)) and not np.any(u)


def test_integers_are_the_nearest():
    whole = kernel("whole", "elementwise", body("whole", "R x0, R x1, R &y0", "y0 = x1;"), "body:\nx1 =y0\n", ["like", "x"])
    x = tf.constant([np.nan, np.inf, -np.inf, 1.75, -1.75, 2.0**31, -2.0**31, 2.0**31 - 1, 2.0**63, -2.0**63, 3e9], tf.float64)
    for dtype in (tf.int32, tf.int64):
        want = [0, dtype.max, dtype.min, *(max(dtype.min, min(dtype.max, int(v))) for v in x.numpy()[3:])]
        assert run(whole, [tf.zeros([], dtype), x])[0].numpy().tolist() == want


# ---- routes ----


def test_graph_keeps_what_is_known_of_shapes():
    f = tf.function(lambda x, b: run(SWISH, [x, b])[0])
    x, beta = random((4, 5), tf.float32), random((5,), tf.float32, 1)
    close(f(x, beta), swish64(x, beta), tf.float32)
    known = lambda *shapes: f.get_concrete_function(*(tf.TensorSpec(s) for s in shapes)).output_shapes.as_list()
    assert known([None, 5], [1]) == [None, 5] and known([None, 1], [7]) == [None, 7] and known([None], [None]) == [None]
    g = tf.function(lambda x: run(LOG_SUM_EXP[True], [x, tf.constant(1.0)])[0])
    assert g.get_concrete_function(tf.TensorSpec([None, 3])).output_shapes.as_list() == [None, 1]


@pytest.mark.skipif(bool(_library.xla_status()), reason=_library.xla_status())
@pytest.mark.parametrize("signature", [None, ([None, None], [None]), ([None, 5], [5]), ([None, None], [])], ids=str)
def test_xla(signature):
    x, beta = random((4, 5), tf.float32), random((5,) if signature is None or signature[1] else (), tf.float32, 1)
    specs = signature and [tf.TensorSpec(s) for s in signature]
    f = tf.function(lambda x, b: run(SWISH, [x * 2, b])[0] + 1, jit_compile=True, input_signature=specs)
    close(f(x, beta), swish64(2 * x, beta) + 1, tf.float32)
    last = tfuse.explain()[-1]
    assert last["op"] == "Jit" and last["route"] == "XLA custom call" and last["kernel"] == "swish"


@pytest.mark.skipif(bool(_library.xla_status()), reason=_library.xla_status())
def test_xla_of_unknown_sizes_that_broadcast():
    """Which of two unknown sizes is that of the result, each call says."""
    f = tf.function(lambda x, b: run(SWISH, [x, b])[0], jit_compile=True, input_signature=[tf.TensorSpec([None])] * 2)
    for sizes in (1, 3), (3, 1), (3, 3), (1, 1):
        x, beta = random(sizes[:1], tf.float32), random(sizes[1:], tf.float32, 1)
        close(f(x, beta), swish64(x, beta), tf.float32)


def test_xla_of_unknown_rank_is_plain():
    f = tf.function(lambda x: run(SWISH, [x, tf.constant(1.0)])[0], jit_compile=True, input_signature=[tf.TensorSpec(None)])
    f.get_concrete_function()
    assert [row for row in tfuse.explain() if row["op"] == "Jit swish"][-1]["route"] == "plain TensorFlow"


def test_a_source_may_have_any_characters():
    odd = kernel("odd", "elementwise", '/* "quoted" \\ back\ttab é */\n' + body("odd", "R x0, R &y0", "y0 = x0 + x0;"),
                 "body:\nx0 x0 add =y0\n", ["x"])
    f = tf.function(lambda x: run(odd, [x])[0], jit_compile=not _library.xla_status())
    assert np.array_equal(f(tf.constant([1.0, 2.0])), [2, 4])


_RELOAD = """
import sys, numpy as np, tensorflow as tf, tfuse
model = tf.saved_model.load(sys.argv[1])
for f in (model.plain, model.compiled):
    np.testing.assert_allclose(f(tf.constant([[1.0, -2.0]])), [[1 / (1 + np.exp(-1.5)), -2 / (1 + np.exp(3.0))]], rtol=1e-6)
"""


def test_saved_model_in_a_new_process(tmp_path):
    model, spec = tf.Module(), [tf.TensorSpec([None, 2])]
    model.plain = tf.function(lambda x: run(SWISH, [x, tf.constant(1.5)])[0], input_signature=spec)
    model.compiled = tf.function(lambda x: run(SWISH, [x, tf.constant(1.5)])[0], input_signature=spec,
                                 jit_compile=not _library.xla_status())
    tf.saved_model.save(model, str(tmp_path / "model"))
    subprocess.run([sys.executable, "-c", _RELOAD, str(tmp_path / "model")], check=True)


def test_explain_and_no_nvrtc(monkeypatch):
    run(SWISH, [tf.ones([3]), tf.ones([])])
    last = tfuse.explain()[-1]
    assert last["kernel"] == "swish" and "jit kernel" in last["why"]
    monkeypatch.setattr(_kernel, "_without_nvrtc", lambda: "kernels are compiled by NVRTC, and there is none")
    close(run(SWISH, [tf.ones([3]), tf.ones([])])[0], swish64(np.ones(3), 1.0), tf.float32)
    row = [row for row in tfuse.explain() if row["op"] == "Jit swish"][-1]
    assert row["route"] == "plain TensorFlow" and "NVRTC" in row["why"]


def test_nvrtc_that_turns_out_to_be_missing_when_a_kernel_runs(monkeypatch):
    found = [b""]
    own = types.SimpleNamespace(tfu_jit_status=lambda: found[0], tfu_jit_register=_library.library.tfu_jit_register,
                                tfu_jit_forget=_library.library.tfu_jit_forget)

    def fails(*arguments):
        found[0] = b"NVRTC cannot be opened"
        raise core._NotOkStatusException("NVRTC cannot be opened", tf.errors.FAILED_PRECONDITION, None)

    with monkeypatch.context() as stand_in:
        stand_in.setattr(_kernel, "execute", fails)
        stand_in.setattr(_library, "without_gpu", lambda: "")
        stand_in.setattr(_library, "library", own)
        _kernel._without_nvrtc.cache_clear()
        for _ in range(2):
            close(run(SWISH, [tf.ones([3]), tf.ones([])])[0], swish64(np.ones(3), 1.0), tf.float32)
    _kernel._without_nvrtc.cache_clear()
    row = [row for row in tfuse.explain() if row["op"] == "Jit swish"][-1]
    assert row["route"] == "plain TensorFlow" and row["why"] == "NVRTC cannot be opened"


def test_eager_calls_name_a_kernel_and_graphs_have_its_texts():
    attributes = SWISH.eager_attributes
    assert attributes == ("kernel", _library.library.tfu_jit_register(*_texts(SWISH))) and attributes[1][:1] == b"#"
    _library.library.tfu_jit_forget(attributes[1])
    other = dataclasses.replace(SWISH, program="body:\nx0 x1 mul =y0\n")
    assert other.eager_attributes != attributes
    with tf.device("CPU:0"):  # whose program is another one
        close(run(other, [tf.fill([3], 2.0), tf.constant(3.0)])[0], np.full(3, 6.0), tf.float32)
    run(SWISH, [tf.ones([3]), tf.ones([])])
    assert tfuse.explain()[-1]["kernel"] == "swish"
    graph = tf.function(lambda x: run(SWISH, [x, tf.constant(1.5)])[0]).get_concrete_function(tf.TensorSpec([3])).graph
    node, = [o for o in graph.get_operations() if o.type == "Tfuse>Jit"]
    assert node.get_attr("kernel") == b"swish" and node.get_attr("source").decode() == SWISH.source
    with pytest.raises(tf.errors.InvalidArgumentError, match="#12 is not known in this process"):
        _library.ops.tfuse_jit([tf.ones([3])], Out=[tf.float32], kernel="#12", source="")


def _texts(k):
    texts = k.attributes
    keys = "kernel", "kind", "source", "program", "inputs", "outputs", "shapes", "launch"
    return [_kernel.KINDS.index(texts[key]) if key == "kind" else texts[key].encode() for key in keys]


# ---- what is kept ----


def test_texts_that_are_no_more_keep_nothing():
    """TensorFlow keeps 40 KB for every value that an attribute ever had."""
    x, names = tf.ones([8]), set()

    def use(numbers):
        for i in numbers:
            f = tfuse.jit.elementwise("T x", "T y", "y = x * %d.5 + exp(x)" % i, grad=True)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            assert abs(float(tape.gradient(y, x)[0]) - (i + 0.5 + np.e)) < 1e-3
            names.add(f.kernel.eager_attributes[1])
            if i % 50 == 49:
                gc.collect()
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with tf.device("CPU:0"):  # a GPU's would have to be compiled
        before = use(range(200))
        known = len(names)
        assert use(range(200, 500)) - before < 8e6 and len(names) < known + 100  # they were 25 MB and 300 names


def test_traces_that_are_no_more_keep_no_graph():
    f, x = tfuse.jit.elementwise("T x", "T y", "x * x", grad=True), tf.ones([3])
    traced = tf.function(lambda x: f(x))
    traced(x)
    graph = weakref.ref(traced.get_concrete_function(x).graph)
    assert graph() is not None
    del traced
    gc.collect()
    assert graph() is None


# ---- what is refused ----


@pytest.mark.parametrize("code, error", [(tf.errors.RESOURCE_EXHAUSTED, tf.errors.ResourceExhaustedError),
                                         (tf.errors.INVALID_ARGUMENT, tf.errors.InvalidArgumentError),
                                         (tf.errors.FAILED_PRECONDITION, tf.errors.FailedPreconditionError)])
def test_what_fails_runs_once(code, error, monkeypatch):
    f, x, runs = tfuse.jit.elementwise("T x", "T y", "2 * x"), tf.ones([3]), []
    f(x)

    def fails(*arguments):
        runs.append(arguments)
        raise core._NotOkStatusException("no luck", code, None)

    monkeypatch.setattr(_library.ops, "tfuse_jit", fails)
    monkeypatch.setattr(_kernel, "execute", fails)
    monkeypatch.setattr(_call, "execute", fails)
    for value in (x, np.ones(3, np.float32)):  # the short way, and the long one
        with pytest.raises(error, match="no luck"):
            f(value)
    assert len(runs) == 2
    wrong = RuntimeError("not TensorFlow's")
    monkeypatch.setattr(_call, "execute", lambda *arguments: runs.append(arguments) or (_ for _ in ()).throw(wrong))
    with pytest.raises(RuntimeError, match="not TensorFlow's"):
        f(x)
    assert len(runs) == 3



def test_errors():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"beta must broadcast .* \[4\], got \[3\]"):
        run(SWISH, [tf.ones([4]), tf.ones([3])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 16 and 8"):
        run(kernel("k", "elementwise", "", "body: x0 =y0", ["x"] * 17), [tf.ones([])] * 17)
    with pytest.raises(LookupError, match="swish has no gradient: give it one"), tf.GradientTape() as tape:
        x = tf.ones([3])
        tape.watch(x)
        tape.gradient(run(SWISH, [x, tf.ones([])])[0], x)


@pytest.mark.skipif(GPU, reason="the CPU's own")
def test_errors_of_the_cpu():
    with pytest.raises(tf.errors.InvalidArgumentError, match="foo"):
        run(kernel("k", "elementwise", "", "body: x0 foo =y0", ["x"]), [tf.ones([3])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="has no program for the CPU"):
        run(kernel("k", "elementwise", "", "", ["x"]), [tf.ones([3])])
    with pytest.raises(tf.errors.UnimplementedError, match="kernel twice is CUDA C and needs a GPU"):
        TWICE(tf.ones([3]), grid=1, block=32, args=[3])


@needs_gpu
def test_compiler_errors_show_the_users_line():
    bad = kernel("bad", "elementwise", body("bad", "R x0, R &y0", "\n  y0 = expo(x0);\n"), "body: x0 =y0", ["x"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r'bad\(5\): error: identifier "expo" is undefined') as error:
        run(bad, [tf.ones([3])])
    assert "for float32 -> float32" in str(error.value) and "jit_" not in str(error.value)


# ---- raw ----

TWICE_SOURCE = """extern "C" __global__ void twice(const T0 *x, U0 *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = R(x[i]) * 2;
}"""
TWICE = tfuse.jit.raw(TWICE_SOURCE, "twice", outputs=lambda x: [tf.TensorSpec(x.shape, x.dtype)],
                      gradient=lambda inputs, outputs, dy: [2 * dy])
GRID = dict(grid="(0.n + 255) / 256", block=256, args=["0.n"])


def test_raw_is_checked_before_anything_runs():
    x = tf.ones([3])
    for options, text in [(dict(grid=0, block=1), "grid must be 1 or more"), (dict(grid=1, block=1025), "1 to 1024 threads"),
                          (dict(grid=1, block=(32, 64)), "1 to 1024"),
                          (dict(grid=(1, 1, 1, 1), block=1), "one to three sizes"),
                          (dict(grid=1.5, block=1), "whole numbers or text"),
                          (dict(grid=1, block=1, shared=-1), "shared must be"),
                          (dict(grid=1, block=1, args=[x]), "tensors are inputs")]:
        with pytest.raises(ValueError, match=text):
            TWICE(x, **options)
    for options in (dict(n=3, grid=1, block=1), dict(grid=1), {}):
        with pytest.raises(TypeError, match="twice takes its inputs without names, and grid=, block="):
            TWICE(x, **options)
    assert repr(TWICE) == "<tfuse.jit.raw twice(…, grid=, block=, shared=0, args=()) -> outputs by a function>"
    with pytest.raises(ValueError, match="no such function"):
        tfuse.jit.raw(TWICE_SOURCE, "thrice", outputs="like 0")
    with pytest.raises(ValueError, match="2 dtypes for the 1 outputs"):
        tfuse.jit.raw(TWICE_SOURCE, "twice", outputs="like 0", dtypes=[tf.float32] * 2)(x, grid=1, block=1)
    half = tfuse.jit.raw(TWICE_SOURCE, "twice", outputs=lambda x: [tf.TensorSpec([x.shape[0] // 2], x.dtype)])
    with pytest.raises(ValueError, match="computed from unknown ones: give outputs as text"):
        tf.function(lambda x: half(x, **GRID)).get_concrete_function(tf.TensorSpec([None]))


def test_raw_shapes_while_tracing():
    def shape(outputs, *specs, compiled=False):
        made = tfuse.jit.raw(TWICE_SOURCE, "twice", outputs=outputs)
        f = tf.function(lambda *x: made(*x, **GRID)[0], jit_compile=compiled)
        return f.get_concrete_function(*map(tf.TensorSpec, specs)).output_shapes.as_list()

    assert shape(lambda x: [tf.TensorSpec([4, *x.shape], x.dtype)], [None, 3]) == [4, None, 3]
    assert shape("0.1, 0.0 * 2, 0.-1 + 1", [None, 3]) == [3, None, 4]
    assert shape("like 1", [2], [None, 5]) == [None, 5]
    with pytest.raises(ValueError, match="gives no size"):
        shape("0.7", [3])
    for text, why in [("-" * 10**6 + "1", "nest 64 deep"), ("(" * 10**5 + "1" + ")" * 10**5, "nest 64 deep"),
                      ("9**9**9**9", "wants a number"), ("1 +", "wants a number"), ("99999999999 * 99999999999", "a smaller"),
                      ("3 // 2", "wants a number"), ("4 / 0", "division by 0"), ("3 $ 2", "wants an operator")]:
        with pytest.raises(ValueError, match=why):  # by the library, as when the kernel runs, and not by Python's own parser
            _kernel.sizes("twice", text, [tf.TensorShape([3])])
    if not _library.xla_status():
        with pytest.raises(ValueError, match="computed from unknown ones inside jit_compile"):
            shape("0.0 * 2", [None], compiled=True)


@needs_gpu
@pytest.mark.parametrize("compiled", [None, False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_raw(dtype, compiled):
    f = lambda x: TWICE(x, **GRID)[0]
    f = f if compiled is None else tf.function(f, jit_compile=compiled)
    x = tf.Variable(random((7, 1001), dtype))
    with tf.GradientTape() as tape:
        y = f(tf.convert_to_tensor(x))
    close(y, 2 * wide(x), dtype)
    close(tape.gradient(y, x), np.full(x.shape, 2.0), dtype)
    info = TWICE.info()
    assert info and all(row["registers"] > 0 and row["blocks"] > 0 and row["threads"] == 256 for row in info)


@needs_gpu
def test_raw_with_numbers_templates_and_our_header():
    made = tfuse.jit.raw("""#include "tfuse.cuh"
template <typename F>
__global__ void rows(const T0 *x, float *sums, long cols, int many, float scale, double offset) {
  extern __shared__ float room[];
  F sum = 0;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += activation<T0>::relu(R(x[blockIdx.x * cols + i]));
  sum = block_sum(sum);
  if (threadIdx.x == 0) room[0] = sum, sums[blockIdx.x] = room[0] * scale + F(offset) + many;
}""", "rows<float>", outputs="0.0", dtypes=[tf.float32])
    x = random((33, 1000), tf.bfloat16)
    y, = made(x, grid="0.0", block=128, shared=60000, args=["0.1", 7, 0.5, 0.25])
    np.testing.assert_allclose(y, np.maximum(wide(x), 0).sum(-1) * 0.5 + 7.25, rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="takes more|CUDA_ERROR"):
        made(x, grid=33, block=128, args=[1000])
    with pytest.raises(tf.errors.InvalidArgumentError, match="this GPU gives a block"):
        made(x, grid=33, block=128, shared=10**6, args=["0.1", 7, 0.5, 0.25])


CHECKED = tfuse.jit.raw("""#include "tfuse.cuh"
template <typename F>
__device__ F &element(F *row, int i) {
  return AT(row, i);
}
template <int TIMES>
__global__ void __launch_bounds__(256) scale(const T0 *__restrict__ x,
                                             U0 *y, U1 *done, int cols, int shift) {
  __shared__ float row[1];
  AT(row, 0) = TIMES;
  for (int i = threadIdx.x; i < cols; i += blockDim.x)
    element(y + blockIdx.x * 10, i) = R(x[blockIdx.x]) * AT(row, 0);
  if (threadIdx.x == 5) AT(done, (int)blockIdx.x + shift) = 7;
}""", "scale<3>", outputs="0.0 * 10; like 0", dtypes=[tf.float32, tf.int64])


def test_check_refuses_what_it_cannot_check():
    launch = dict(grid="0.0", block=32, args=[10, 0])
    for wrong in (TWICE, lambda x: x):
        with pytest.raises(ValueError, match="has AT"):
            tfuse.jit.check(wrong, tf.ones([3]), **launch)
    with pytest.raises(ValueError, match="eagerly"):
        tf.function(lambda x: tfuse.jit.check(CHECKED, x, **launch))(tf.ones([3]))
    few = tfuse.jit.raw("__global__ void k(int *x) { AT(x, 0) = 1; }", "k", outputs="like 0")
    with pytest.raises(ValueError, match="a parameter for each of 2 tensors"):
        tfuse.jit.check(few, tf.ones([3]), **launch)
    if not GPU:
        with pytest.raises(tf.errors.UnimplementedError, match="needs a GPU"):
            tfuse.jit.check(CHECKED, tf.ones([3]), **launch)


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_check_finds_a_bad_index(dtype):
    x, launch = random((3,), dtype), dict(grid="0.0", block=32)
    for _ in range(2):  # what an earlier check has found is not found again
        y, done = tfuse.jit.check(CHECKED, x, **launch, args=[10, 0])
        close(tf.reshape(y, [3, 10]), np.repeat(3 * wide(x)[:, None], 10, 1), tf.float32)
        assert np.array_equal(done, [7] * 3)
        for args, line, what, block, thread in [([11, 0], 4, "30 of y, which has 30", 2, 10),
                                                ([10, 1], 13, "3 of done, which has 3", 2, 5),
                                                ([10, -1], 13, "-1 of done, which has 3", 0, 5)]:
            with pytest.raises(IndexError) as error:
                tfuse.jit.check(CHECKED, x, **launch, args=args)
            assert str(error.value) == "scale<3>, line %d: index %s elements; block (%d, 0, 0), thread (%d, 0, 0)" % (
                line, what, block, thread)


@needs_gpu
def test_a_new_number_or_size_does_not_compile_anew():
    for n in (3, 1000, 77):
        run(SWISH, [random((n,), tf.float32), tf.constant(float(n))])
    before = len(SWISH.info())
    run(SWISH, [random((12345,), tf.float32), tf.constant(0.25)])
    assert len(SWISH.info()) == before > 0


@needs_gpu
def test_a_damaged_cache_is_compiled_anew(tmp_path, monkeypatch):
    text = "import tensorflow as tf; from tests_jit import *; print(run(SWISH, [tf.ones([4]), tf.ones([])])[0].numpy()[0])"
    text = text.replace("tests_jit", pathlib.Path(__file__).stem)
    paths = [str(pathlib.Path(__file__).parent), *sys.path]
    environment = {**os.environ, "TFUSE_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    answers = []
    for damage in (None, b"", b"nonsense"):
        for path in (tmp_path / "jit").glob("*") if damage is not None else []:
            path.write_bytes(damage)
        answers.append(subprocess.run([sys.executable, "-c", text], env=environment, check=True, capture_output=True).stdout)
        assert list((tmp_path / "jit").glob("*"))
    assert len(set(answers)) == 1


# ---- NVRTC and the cache, without a GPU ----


def test_cache_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFUSE_CACHE", str(tmp_path))
    assert _cache.main([]) == 0 and "compiled kernels" not in capsys.readouterr().out
    (tmp_path / "jit").mkdir()
    for i in range(3):
        (tmp_path / "jit" / ("%032x" % i)).write_bytes(b"tfujit1\0" + b"x" * 992)
    assert _cache.main([]) == 0
    assert "%s: 3 compiled kernels, 3.0 KB" % (tmp_path / "jit") in capsys.readouterr().out.replace("jit/:", "jit:")
    assert _cache.main(["--clear"]) == 0 and "3 compiled kernels" in capsys.readouterr().out
    assert not list((tmp_path / "jit").glob("*"))


def test_status_is_a_text_that_names_the_package():
    text = ctypes.c_char_p(_library.library.tfu_jit_status()).value.decode()
    assert text == "" or "nvidia-cuda-nvrtc" in text
