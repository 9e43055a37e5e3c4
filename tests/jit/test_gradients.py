"""Random formulas of tfuse.jit: their values, derived gradients, programs for the CPU and CUDA C."""

import ctypes
import functools
import pathlib
import re
import shutil
import site
import subprocess

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import ROOT
from formulas import NUMPY, SMOOTH, TENSORFLOW, by_python, formula, run_program
from tfuse import cases

SEEDS = range(200)
DECLARED = "T x, U z, R w"


@functools.lru_cache(None)
def kernel_of(seed):
    return tfuse.jit.elementwise(DECLARED, "T y", formula(seed), grad=True, name="formula%d" % seed)


def inputs_of(seed, dtype=tf.float64, shapes=((7, 33), (33,), ())):
    draw = np.random.default_rng(seed)
    return [tf.constant(draw.normal(size=shape), dtype) for shape in shapes]


def difference(got, want):
    return cases.error(tf.constant(got), want)


def gradients(f, inputs, dy):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = f(*inputs)
    return tape.gradient(y, inputs, dy, unconnected_gradients="zero")


def second_gradients(f, inputs, dy):
    """Of the sum of the gradients' squares."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        norm = tf.add_n([tf.reduce_sum(g * g) for g in gradients(f, inputs, dy)])
    return tape.gradient(norm, inputs, unconnected_gradients="zero")


def naive_of(seed, shape):
    return lambda *inputs: tf.broadcast_to(by_python(formula(seed), TENSORFLOW, zip("xzw", inputs)), shape)


@pytest.mark.parametrize("of, seeds, bound", [(gradients, SEEDS, 1e-12), (second_gradients, SEEDS[::10], 1e-11)],
                         ids=["first", "second"])
def test_derived_gradients_are_tensorflows(of, seeds, bound, device):
    for seed in seeds if "CPU" in device else seeds[::10]:  # a GPU's kernels take a third of a second each to compile
        inputs, dy = inputs_of(seed), tf.constant(np.random.default_rng(1).normal(size=(7, 33)))
        got, want = (of(f, inputs, dy) for f in (kernel_of(seed), naive_of(seed, dy.shape)))
        for g, w in zip(got, want):
            assert np.all(np.isfinite(w)) and cases.error(g, w.numpy()) < bound, formula(seed)


def test_programs_are_the_formulas():
    for seed in SEEDS:
        function, inputs = kernel_of(seed), inputs_of(seed)
        want = by_python(formula(seed), NUMPY, {n: t.numpy() for n, t in zip("xzw", inputs)})
        assert difference(run_program(function.kernel, inputs)[0], want) < 1e-13
        derived, given = function._gradient_operation((0, 1, 2))
        known = dict(zip(("x", "z", "w", "dy"), [*inputs, inputs[0] * 0.5]))
        inputs = [known[n] for n in derived.names]
        for got, plain in zip(run_program(derived.kernel, inputs), derived.kernel.plain(inputs)):
            assert difference(got, plain.numpy()) < 1e-12, formula(seed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_values(dtype, device):
    """Errors are those of the worst of many elements, so that no seed decides."""
    for seed in range(0, 60):
        text = formula(seed, SMOOTH)
        function = tfuse.jit.elementwise("T x, T z, T w", "T y", text)
        inputs = inputs_of(seed, dtype, ((64, 1024), (1024,), (64, 1)))
        want = by_python(text, NUMPY, {n: tf.cast(t, tf.float64).numpy() for n, t in zip("xzw", inputs)})
        naive = by_python(text, TENSORFLOW, zip("xzw", inputs))
        got = function(*inputs)
        assert got.dtype == dtype and got.shape == want.shape
        assert cases.error(got, want) <= cases.allowed(naive, want, dtype), text


# ---- CUDA C ----


def library_of_nvrtc():
    homes = [ROOT / ".venv/nvrtc", *map(pathlib.Path, site.getsitepackages())]
    found = [path for home in homes for path in sorted(home.glob("nvidia/*/lib/libnvrtc.so.1?"))]
    return ctypes.CDLL(str(found[0])) if found else None


def kernels():
    """Every function of the table, and random formulas, with their gradients; rows, too."""
    for seed in SEEDS[:20]:
        yield kernel_of(seed).kernel
        yield kernel_of(seed)._gradient_operation((0, 1, 2))[0].kernel
    every = tfuse.jit.elementwise("T x, R z", "T y, T u", """
        y = exp(x) + log(z) + log1p(z) + expm1(x) + tanh(x) + sqrt(z) + rsqrt(z) + abs(x) + min(x, z) + max(x, z)
            + floor(x) + ceil(x) + sin(x) + cos(x) + erf(x) + sigmoid(x) + softplus(x) + pow(z, x) + stop(x) + inf - 1e-5f
        u = (x < z) + (x <= z) + (x > z) + (x >= z) + (x == z) + (x != z) + (x && z) + (x || z)
            + !x + (x ? z : -x)""", grad=True)
    row = tfuse.jit.rows("T x, R z", "T y", map=["x * z", "exp(x - r0)"], reduce=["max(a, b)", "a + b"],
                         post="y = exp(x - r0) / r1 + n", grad=True)
    final = tfuse.jit.rows("T x, R z", "T y", map="x * z", reduce="a * b", final="result / n + z")
    for function in (every, row, final):
        yield function.kernel
        if function.grad:
            yield function._gradient_operation((0, 1))[0].kernel


def calls(kernel):
    """What calls all functions of a kernel's source, in C."""
    signatures = re.findall(r"static __device__ (\w+) (%s_\w+)\((.*)\)" % kernel.name, kernel.source)
    assert signatures
    for result, name, parameters in signatures:
        arguments = ", ".join("y[%d]" % i if "&" in p else "x[%d]" % i for i,
                              p in enumerate(filter(None, parameters.split(", "))))
        yield "%s%s(%s);" % ("y[40] += " if result == "R" else "", name, arguments)


def in_one_file(kernels, before):
    text = before
    for i, kernel in enumerate(kernels):
        source = re.sub(r"(?m)^#define.*\n", "", kernel.source)
        text += "namespace k%d {\n%s\n%s void run(const R *x, R *y) { %s }\n}\n" % (
            i, source, "__global__", "\n".join(calls(kernel)))
    return text


@pytest.mark.parametrize("real", ["float", "double"])
def test_cuda_c_compiles(real):
    nvrtc, program, size = library_of_nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    if nvrtc is None:
        pytest.skip("there is no NVRTC")
    text = in_one_file(kernels(), "typedef %s R;\n" % real)
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
    options = (ctypes.c_char_p * 2)(b"--gpu-architecture=sm_90", b"--std=c++17")
    failed = nvrtc.nvrtcCompileProgram(program, 2, options)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert not failed, log.value.decode()
    assert not re.search("warning(?!.*never referenced)", log.value.decode()), log.value.decode()
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    if real == "float":  # sin and cos of very large numbers are CUDA's own code, with a product in double
        doubles = re.findall(r"(?:add|sub|mul|div|fma)\S*\.f64.*", ptx.value.decode())
        assert all("0d3BF921FB54442D19" in line for line in doubles), doubles[:5]


def test_cuda_c_computes_the_formula(tmp_path):
    """The same text as C++, for which CUDA's types and functions are those of the C library."""
    compiler = shutil.which("c++") or shutil.which("clang++")
    if not compiler:
        pytest.skip("there is no C++ compiler")
    seeds = SEEDS[:60]
    text = "#include <cmath>\nusing namespace std;\n#define __device__\ntypedef double R;\n"
    text += "static double rsqrt(double a) { return 1 / sqrt(a); }\n"
    text += "static float __int_as_float(int) { return INFINITY; }\n"
    for seed in seeds:
        kernel = kernel_of(seed).kernel
        text += "namespace k%d {\n%s\n}\n" % (seed, re.sub(r"(?m)^#define.*\n", "", kernel.source))
        text += 'extern "C" void run%d(long n, const R *x, const R *z, const R *w, R *y) {\n' \
                "  for (long i = 0; i < n; i++) k%d::%s_body(x[i], z[i], w[i], y[i]);\n}\n" % (seed, seed, kernel.name)
    (tmp_path / "kernels.cc").write_text(text)
    subprocess.run([compiler, "-O0", "-shared", "-fPIC", "-o", tmp_path / "kernels.so", tmp_path / "kernels.cc"],
                   check=True)
    library, pointer = ctypes.CDLL(str(tmp_path / "kernels.so")), np.ctypeslib.ndpointer(np.float64)
    for seed in seeds:
        arrays = [np.ascontiguousarray(a) for a in np.broadcast_arrays(*(t.numpy() for t in inputs_of(seed)))]
        y = np.empty_like(arrays[0])
        run = getattr(library, "run%d" % seed)
        run.argtypes, run.restype = [ctypes.c_long] + [pointer] * 4, None
        run(y.size, *arrays, y)
        assert difference(y, by_python(formula(seed), NUMPY, dict(zip("xzw", arrays)))) < 1e-13
