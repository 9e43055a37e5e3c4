"""tfuse.jit.raw: any CUDA C as an op."""

import math
import re
import time

import tensorflow as tf

from tfuse._core import _xla
from tfuse.jit._kernel import Kernel, listed, run, sizes


def raw(source, name, outputs, dtypes=None, gradient=None):
    """Makes a function of tensors from CUDA C, which is compiled when it first runs on a GPU.

    The kernel's parameters are pointers to the inputs, pointers to the outputs, then what `args` gives, in this order.
    Before the source stand typedefs T0, T1 … of the inputs' dtypes, U0, U1 … of the outputs' and R of arithmetic: float, or
    double where one is float64; so one source serves all dtypes. `#include "tfuse.cuh"` gives what tfuse's own kernels are
    made of: packs, reductions of warps and blocks, random bits, activations. float16 and bfloat16 are its types f16 and
    bf16, which convert to and from float. docs/jit_runtime.md has more.

    Args:
      source: CUDA C with a `__global__` function.
      name: its name; of a template, with arguments: `"scale<float>"`.
      outputs: a function of the inputs' tf.TensorSpecs that returns a list of the outputs'; or sizes as text, which serves
        sizes that are not known while a function is traced as well: "0.0, 0.1 / 2" is half of input 0 along its axis 1,
        "0.n" are all its elements, "like 0" all its sizes. Semicolons separate outputs.
      dtypes: where outputs is text, the outputs' dtypes; None: that of the first input.
      gradient: a function(inputs, outputs, *gradients of outputs) that returns a gradient, or None, for each input; None:
        there is none.

    Returns:
      A function(*inputs, grid, block, shared=0, args=()) that returns a list of tensors. grid and block are one to three
      sizes, shared the bytes of dynamic shared memory, args numbers: integers, which a kernel may take as any integer type,
      and floats, which it may take as float or double. All of them but floats may be text of sizes:
      grid="(0.n + 255) / 256".

    Raises:
      ValueError: for a grid of 0, a block of more than 1024 threads, and outputs whose sizes cannot be told.

    Example:
      double = tfuse.jit.raw('''
          extern "C" __global__ void twice(const T0 *x, U0 *y, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) y[i] = R(x[i]) * 2;
          }''', "twice", outputs="like 0")
      y, = double(x, grid="(0.n + 255) / 256", block=256, args=["0.n"])
    """
    return Raw(source, name, outputs, dtypes, gradient)


def check(kernel, *inputs, grid, block, shared=0, args=()):
    """Runs a kernel of tfuse.jit.raw as a call of it does, and returns its outputs; but where the source has AT(x, i),
    of tfuse.cuh, for x[i], an i outside the tensor x touches no memory and raises IndexError, with the line, index,
    block and thread of the first one. It is slow, and compiles for the sizes at hand."""
    if not isinstance(kernel, Raw) or not re.search(r"\bAT\s*\(", kernel.source) or not tf.executing_eagerly():
        raise ValueError("tfuse.jit.check: wants a kernel of tfuse.jit.raw whose source has AT(x, i) for x[i], and "
                         "runs eagerly; got %s" % getattr(kernel, "name", type(kernel).__name__))
    tensors = [tf.convert_to_tensor(x) for x in inputs]
    shapes, types = kernel._results(tensors)
    types = [tensors[t].dtype if isinstance(t, int) else t for t in types]
    counts = [math.prod(size for part in text.split(",") if part.strip()
                        for size in sizes(kernel.name, part, [t.shape for t in tensors])) for text in shapes.split(";")]
    counts = [t.shape.num_elements() for t in tensors] + counts
    source, names = _checked(kernel, counts, [t.dtype for t in tensors] + types)
    launch = time.time_ns()  # a number that no report of another launch, left in memory, begins with
    made = Raw(source, kernel.name, shapes + "; 10", [*types, tf.int64])
    *outputs, report = made(*tensors, grid=grid, block=block, shared=shared, args=[launch, *listed(args)])
    found, line, tensor, index, *where = report.numpy().tolist()
    if found == launch:
        raise IndexError("%s, line %d: index %d of %s, which has %d elements; block (%d, %d, %d), thread (%d, %d, %d)"
                         % (kernel.name, line, index, names[tensor], counts[tensor], *where))
    return outputs


def _checked(kernel, counts, types):
    """The source with two more parameters after its tensors, and a first statement that says where these begin; and
    the names of the tensors."""
    name = kernel.name.partition("<")[0]
    found = re.search(r"(__global__[^;{}]*?\b%s\s*\()([^{;]*)(\)\s*\{)" % re.escape(name), kernel.source)
    parameters = found[2].split(",") if found else []
    if len(parameters) < len(counts):
        raise ValueError("%s: finds no __global__ %s(…) with a parameter for each of %d tensors" % (
            kernel.name, name, len(counts)))
    names = [re.findall(r"\w+", p)[-1] for p in parameters[:len(counts)]]
    parameters.insert(len(counts), " int64_t *tfu_to, unsigned long long tfu_number")
    begin = "".join(" tfu_from[%d] = (const char *)%s;" % pair for pair in enumerate(names))
    text = found[1] + ",".join(parameters) + found[3] + begin + " tfu_report = tfu_to; tfu_launch = tfu_number;"
    sizes = ", ".join(str(dtype.size * n) for dtype, n in zip(types, counts))
    head = '#define TFU_CHECK %s\n#line 1 "%s"\n' % (sizes, kernel.name)
    return head + kernel.source[:found.start()] + text + kernel.source[found.end():], names


class Raw:
    autograph_info__ = {}  # finished code, which AutoGraph need not translate

    def __init__(self, source, name, outputs, dtypes=None, gradient=None):
        if not isinstance(source, str) or not isinstance(name, str):
            raise ValueError("tfuse.jit.raw: source and name must be text, got %s and %s" % (
                type(source).__name__, type(name).__name__))
        if name.partition("<")[0] not in source:
            raise ValueError("%s: the source has no such function" % name)
        self.source, self.name, self.outputs, self.dtypes, self.gradient = source, name, outputs, dtypes, gradient
        self._kernel = None

    def __repr__(self):
        return "<tfuse.jit.raw %s(…, grid=, block=, shared=0, args=()) -> %s>" % (
            self.name, repr(self.outputs) if isinstance(self.outputs, str) else "outputs by a function")

    def __call__(self, *inputs, grid=None, block=None, shared=0, args=(), **named):
        if named or grid is None or block is None:
            raise TypeError("%s takes its inputs without names, and grid=, block=, shared= and args=, of which the first two "
                            "must be said; got %s" % (self.name, ", ".join(
                                ["%d inputs" % len(inputs), *("%s=" % n for n, v in [("grid", grid), ("block", block)]
                                                              if v is not None), *("%s=" % n for n in named)])))
        tensors = [tf.convert_to_tensor(x) for x in inputs]
        if not tensors:
            raise ValueError("%s: wants at least one input" % self.name)
        shapes, types = self._results(tensors)
        launch = "; ".join([self._sizes("grid", grid, 2**31 - 1), self._sizes("block", block, 1024),
                            self._sizes("shared", shared, 2**31 - 1, least=0), ", ".join(map(self._argument, listed(args)))])
        kernel = self._kernel = Kernel(
            self.name, "raw", self.source, "", tuple("x%d" % i for i in range(len(tensors))),
            tuple("y%d" % i for i in range(len(types))), tuple(types), shapes, launch, None)
        if not self.gradient:
            return run(kernel, tensors)
        return list(_xla.differentiable(lambda inputs: run(kernel, list(inputs)), self.gradient, tensors))

    def info(self):
        """Registers, spills, shared memory and occupancy of what has been compiled: see Kernel.info."""
        return self._kernel.info() if self._kernel else []

    def _results(self, tensors):
        """The outputs' shapes as text, and their dtypes."""
        if isinstance(self.outputs, str):
            count = self.outputs.count(";") + 1
            types = [0] * count if self.dtypes is None else [tf.as_dtype(d) for d in listed(self.dtypes)]
            if len(types) != count:
                raise ValueError("%s: %d dtypes for the %d outputs of %r" % (self.name, len(types), count, self.outputs))
            return self.outputs, types
        (found, marks), (again, others) = (self._marked(tensors, first) for first in (10007, 20011))
        shapes = [[self._size(a, b, marks, others) for a, b in zip(one.shape, other.shape)]
                  for one, other in zip(found, again)]
        return "; ".join(map(", ".join, shapes)), [spec.dtype for spec in found]

    def _marked(self, tensors, first):
        """The outputs' specs where numbers from `first` on stand for unknown sizes, and what each of these is."""
        marks, specs = {}, []
        for i, t in enumerate(tensors):
            if t.shape.rank is None:
                raise ValueError("%s: input %d has an unknown number of dimensions" % (self.name, i))
            sizes = list(t.shape)
            for axis in [axis for axis, size in enumerate(sizes) if size is None]:
                sizes[axis] = first + len(marks)
                marks[sizes[axis]] = "%d.%d" % (i, axis)
            specs.append(tf.TensorSpec(sizes, t.dtype))
        found = listed(self.outputs(*specs))
        for spec in found:
            if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
                raise ValueError("%s: outputs must give a list of tf.TensorSpecs with all sizes, got %r" % (
                    self.name, found))
        return found, marks

    def _size(self, a, b, marks, others):
        if a == b:
            return str(a)
        if marks.get(a) != others.get(b, ""):
            raise ValueError("%s: outputs' sizes are computed from unknown ones: give outputs as text, such as "
                             "\"0.0 * 2\"" % self.name)
        return marks[a]

    def _sizes(self, what, value, most, least=1):
        parts = listed(value)
        if not 1 <= len(parts) <= (1 if what == "shared" else 3):
            raise ValueError("%s: %s must be one to three sizes, got %r" % (self.name, what, value))
        if not all(isinstance(p, (int, str)) and not isinstance(p, bool) for p in parts):
            raise ValueError("%s: %s must be whole numbers or text of sizes, got %r" % (self.name, what, value))
        numbers = [p for p in parts if isinstance(p, int)]
        product = math.prod(numbers) if what == "block" else max(numbers, default=0)
        if any(p < least for p in numbers) or product > most:
            raise ValueError("%s: %s must be %s, got %r" % (self.name, what, {
                "grid": "1 or more blocks along each axis", "block": "1 to 1024 threads in all",
                "shared": "bytes, 0 or more"}[what], value))
        return ", ".join(map(str, parts))

    def _argument(self, value):
        if isinstance(value, float):
            return "f" + value.hex()
        if isinstance(value, (int, str)):
            return str(int(value) if isinstance(value, bool) else value)
        raise ValueError("%s: args must be whole numbers, floats or text of sizes, got %r; tensors are inputs" % (
            self.name, value))
