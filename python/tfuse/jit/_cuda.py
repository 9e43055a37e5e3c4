"""Formulas in CUDA C: device functions over values of type R, which the walks over tensors call (kernels/jit)."""

import re

from tfuse.jit import _tree
from tfuse.jit._functions import FUNCTIONS

# Unlike fmin and fmax, these give NaN where an argument is NaN, as TensorFlow does.
_HELPERS = {
    "jit_min": "static __device__ R jit_min(R a, R b) { return a < b || a != a ? a : b; }",
    "jit_max": "static __device__ R jit_max(R a, R b) { return a > b || a != a ? a : b; }",
    "jit_sigmoid": "static __device__ R jit_sigmoid(R a) { return R(1) / (R(1) + exp(-a)); }",
    "jit_softplus": "static __device__ R jit_softplus(R a) { return (a > R(0) ? a : R(0)) + log1p(exp(-fabs(a))); }",
}


def _number(value):
    if abs(value) == float("inf"):
        return "R(%s__int_as_float(0x7f800000))" % ("-" * (value < 0))
    return "R(%r)" % value


# What NVRTC 12.9 takes for sm_90, in seconds of a busy core, for one copy of a formula. In float: 16,000 sums, products and
# selects, nested or not, 6.5; 2,000 exp 3.2; 240 pow 4; 100 sin 4.3. In double, by which the costs go: 240 pow 18; 600 exp or
# tanh 16 to 18; 3,000 divisions or square roots 21 to 28. Half of that takes a quarter of the time: 12,000 take some 10 s.
MOST_COST = 12000
# A walk over elements has up to 17 copies of a formula, and one over rows up to 64, by the number of tensors among its
# inputs: in 17 copies, 250 nested selects, which cost 1,000, took 8 s, and 400 took 28; in 64 copies, 62 took 7 s. Beyond
# these costs, of rows for each such input, there is one copy, for one element at a time: 400 selects take 0.3 s, 1,000 1.4.
LARGE_COST = {"elementwise": 1000, "rows": 300}


def cost(*formulas):
    """What it takes NVRTC to compile formulas, each a list of roots, in sums."""
    return sum(FUNCTIONS[node.op].cost for roots in formulas for node in _tree.order(roots) if node.args)


def texts(roots, symbols):
    """Statements for locals, and an expression for each root."""
    return _tree.write(roots, symbols, _number, lambda op, args: FUNCTIONS[op].cuda.format(*args),
                       "const R {} = {};".format)


def function(name, parameters, roots, symbols, outputs=()):
    """A device function: of one value, which it returns, or one that writes `outputs`."""
    lines, values = texts(roots, symbols)
    lines += ["%s = %s;" % pair for pair in zip(outputs, values)] or ["return %s;" % values[0]]
    signature = ", ".join(["R " + p for p in parameters] + ["R &" + o for o in outputs])
    return "static __device__ %s %s(%s) {\n%s}\n" % (
        "void" if outputs else "R", name, signature, "".join("  %s\n" % line for line in lines))


def source(name, numbers, functions, is_large):
    """The whole of a kernel's source: numbers as #defines, the helpers that are used, functions. The library sees by its first
    line whether it is large."""
    text = "\n".join(functions)
    numbers = [*[("LARGE", 1)] * is_large, ("NAME", name), *numbers.items()]
    defines = ["#define JIT_%s %s" % pair for pair in numbers]
    helpers = [line for helper, line in _HELPERS.items() if re.search(r"\b%s\b" % helper, text)]
    return "\n".join([*defines, *helpers, text])
