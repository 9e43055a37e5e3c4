"""What every op must do, declared once: read by the tests, by `tfuse doctor` and by `tfuse bench`.

One file per family, with a list CASES. The reference is float64 NumPy and says what the op means; `plain` is the same in
stock TensorFlow, whose error is the yardstick and whose time is the rival.
"""

import dataclasses
import importlib
import pkgutil

import numpy as np
import tensorflow as tf

from tfuse._core._op import real

DTYPES = ("float32", "float16", "bfloat16", "float64")
# Odd, one, none, more than a tile, more than a block, many short rows, one long row.
SHAPES = [(4, 8), (1, 1), (7, 3), (0, 8), (3, 5, 129), (513, 1030), (4099, 2), (1, 100003)]


@dataclasses.dataclass
class Input:
    """One input of a case, or one output.

    Attributes:
      shape: function of the case's shape.
      values: function(rng, shape, shape of the case) -> array; None: normally distributed floats.
      dtype: None is the case's own, "real" what that is computed in, else a name.
      gradient: whether the op has a gradient for it.
    """
    shape: object
    values: object = None
    dtype: str = None
    gradient: bool = True

    def dtype_in(self, dtype):
        return {None: tf.as_dtype(dtype), "real": real(tf.as_dtype(dtype))}.get(self.dtype) or tf.as_dtype(self.dtype)

    def tensor(self, shape, dtype, rng):
        own = self.shape(shape)
        values = self.values(rng, own, shape) if self.values else rng.normal(size=own) * 2
        return tf.cast(tf.constant(values), self.dtype_in(dtype))

    def tensor_on_device(self, shape, dtype):
        """The benchmark's are too large to make in NumPy."""
        if self.values:
            return self.tensor(shape, dtype, np.random.default_rng(0))
        return tf.cast(tf.random.normal(self.shape(shape)), self.dtype_in(dtype))


@dataclasses.dataclass
class Case:
    """One op with one set of inputs.

    Attributes:
      name: as printed.
      run, plain, reference: functions of the same inputs and options; reference takes float64 arrays (integers and
        booleans as they are). One result, or as many as `outputs` has.
      gradient: float64 function(dy, *inputs, **options) -> gradients of all inputs that have one; dy is a list where there
        are several outputs.
      inputs: by name, an Input or just its shape as a function of the case's: {"x": lambda shape: shape, …}.
      outputs: the same for results; one like the first input by default.
      options: keyword arguments, one dict per variant.
      shapes: shapes that the tests run; none where only the benchmark has the case.
      fit: makes of any shape one that the case can have.
      summed: function(shape) -> how many terms the longest sum behind a result has, beside those that total() knows; one
        where there is no sum. The doctor's bounds come from it.
      special: whether test_values.py gives it a row of special values.
      rejects: (pattern of the message, function() that must raise) pairs.
      passes: how often each element of the case's shape is read or written: (forward, backward).
      elements: function(direction, shape, options) -> the same in all, where it is not a multiple of that shape.
      flops: function(direction, shape, options) -> multiplications and additions, where these and not memory set the pace.
      pace: function(*inputs), a plain matrix product of one forward pass, whose rate the op's is compared with.
      stock_can: function(shape) -> whether stock TensorFlow can run it.
      xla_can: whether XLA can compile `rival`.
      xla_own: whether inside XLA its own ops serve, as the better ones.
      sizes: shapes that the benchmark runs.
      cpu_sizes: shapes that it runs on the CPU; none: the first of sizes, made smaller.
      sweep: shapes that it runs besides, in bfloat16 on a GPU.
      rival: what the benchmark times against; None is `plain`.
      timed: the options that the benchmark runs; None is all.
      bars: what `tfuse bench --bars` asks of a GPU: {(dtype, shape): {"forward": least percent of the copy speed,
        "backward": the same, "floor": most times what the passes of both take at the copy speed, "ms": most
        milliseconds of both, "tflops": least flops of forward in 10^12 per second, "backward_tflops": of backward,
        "torch": most times what PyTorch takes for forward, "of_matmul": least percent of the rate of `pace`,
        "both_of_matmul": the same of both, "of_XLA" and "of_torch": most times what XLA and torch.compile take for both,
        "memory": most megabytes beside inputs and results, "times_naive": how often the variant kind="naive" takes at
        least}}; or (dtype, shape, options as a tuple of pairs), for one of the variants.
    """
    name: str
    run: object
    plain: object
    reference: object
    gradient: object
    inputs: dict
    outputs: dict = dataclasses.field(default_factory=lambda: {"value": lambda shape: shape})
    options: list = dataclasses.field(default_factory=lambda: [{}])
    shapes: list = dataclasses.field(default_factory=lambda: SHAPES)
    fit: object = lambda shape: shape
    summed: object = lambda shape: 1
    special: bool = True
    rejects: list = dataclasses.field(default_factory=list)
    passes: tuple = (2, 3)
    elements: object = None
    flops: object = None
    pace: object = None
    stock_can: object = lambda shape: True
    xla_can: bool = True
    xla_own: bool = False
    sizes: list = dataclasses.field(default_factory=lambda: [(16384, 8192), (16383, 8191)])
    cpu_sizes: list = dataclasses.field(default_factory=list)
    sweep: list = dataclasses.field(default_factory=list)
    rival: object = None
    timed: list = None
    bars: dict = dataclasses.field(default_factory=dict)
    _typical: dict = dataclasses.field(default_factory=dict, repr=False)

    def __post_init__(self):
        for table in ("inputs", "outputs"):
            setattr(self, table, {name: i if isinstance(i, Input) else Input(i) for name, i in getattr(self, table).items()})
        self.rival = self.rival or self.plain

    def tensors(self, shape, dtype, seed=0):
        """Random inputs of the case, and an output gradient (a list where there are several outputs), as tensors."""
        rng = np.random.default_rng(seed)
        return self._with_dy([i.tensor(self.fit(shape), dtype, rng) for i in self._all()])

    def tensors_on_device(self, shape, dtype):
        """The same, made where they are needed."""
        return self._with_dy([i.tensor_on_device(shape, dtype) for i in self._all()])

    def _all(self):
        return [*self.inputs.values(), *self.outputs.values()]

    def _with_dy(self, tensors):
        inputs, dy = tensors[:len(self.inputs)], tensors[len(self.inputs):]
        return [*inputs, dy if len(dy) > 1 else dy[0]]

    def differentiable(self, inputs):
        """Those of the inputs that have a gradient."""
        return [tensor for tensor, i in zip(inputs, self.inputs.values()) if i.gradient]

    def results(self):
        """Name and Input of all that step() returns."""
        return {**self.outputs, **{"gradient of " + name: i for name, i in self.inputs.items() if i.gradient}}

    def step(self, f, inputs, dy, options):
        """Values and gradients of f, as a flat list of tensors."""
        watched = self.differentiable(inputs)
        with tf.GradientTape() as tape:
            tape.watch(watched)
            y = f(*inputs, **options)
        return [*as_list(y), *map(tf.convert_to_tensor, tape.gradient(y, watched, dy))]  # that of tf.gather is slices

    def typical(self, dtype, options, shape=(64, 129)):
        """The errors of the naive composition on this device, over a few draws; by default on some thousand elements."""
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        key = (dtype, shape, tf.zeros([]).device, tf32, *sorted(options.items()))
        if key not in self._typical:
            draws = [self._errors(shape, dtype, options, seed) for seed in range(1, 5)]
            self._typical[key] = [max(errors) for errors in zip(*draws)]
        return self._typical[key]

    def _errors(self, shape, dtype, options, seed):
        *inputs, dy = self.tensors(shape, dtype, seed)
        naive, want = self.step(self.plain, inputs, dy, options), self.truth(inputs, dy, options)
        return [error(n, w) for n, w in zip(naive, want)]

    def truth(self, inputs, dy, options):
        """What step() should give, in float64."""
        inputs, dy = [as64(i) for i in inputs], tf.nest.map_structure(as64, dy)
        return [*as_list(self.reference(*inputs, **options)), *self.gradient(dy, *inputs, **options)]


def bars(*shapes, dtypes=("float32", "bfloat16"), **limits):
    """The same limits for several shapes and dtypes, as Case.bars takes them."""
    return {(dtype, shape): limits for dtype in dtypes for shape in shapes}


def as_list(values):
    return list(values) if isinstance(values, (list, tuple)) else [values]


def as64(tensor):
    """As an array, floats in float64."""
    return np.asarray(tf.cast(tensor, tf.float64) if tensor.dtype.is_floating else tensor)


def error(got, want):
    """The largest difference, relative to the largest value."""
    if np.size(want) == 0:
        return 0.0
    return float(np.max(np.abs(as64(got) - want)) / max(np.max(np.abs(want)), 1e-30))


class _Total(np.ndarray):
    """A sum that remembers the size of its terms."""


def total(terms, axis=None):
    """A sum in a reference, whose terms may cancel."""
    result = of_terms(terms.sum(axis), np.sum(terms * terms, axis))
    result.count = np.size(terms) // max(result.size, 1)
    return result


def of_terms(value, squares):
    """The same, of a sum made elsewhere, and the sum of its terms' squares."""
    result = np.asarray(value).view(_Total)
    result.terms = np.sqrt(squares)
    return result


def cancelling(*terms):
    """The same, elementwise: the sum of a few arrays."""
    return total(np.stack(np.broadcast_arrays(*terms)), 0)


def allowed(naive, want, dtype, typical=0.0):
    """Twice the error of the naive composition, here (None is none) or on a `typical` sample, where luck plays no part.

    Where luck made both exact, twice one rounding of the result; of a sum, measured against its terms (the root of
    their squares' sum), as no order of adding does better when they cancel.
    """
    if np.size(want) == 0:
        return 0.0
    errors = 0.0 if naive is None else error(naive, want), typical, _EPSILON.get(dtype, 0.0) * _size(want)
    return 2 * max(e for e in errors if not np.isnan(e))  # some stock products are NaN on some machines


def longest_axis(shape):
    """`summed` of a product of matrices and its gradients, of [rows …, inner axis, columns]."""
    return max(int(np.prod(shape[:-2])), *shape[-2:])


def _size(want):
    """Of the terms that a result is summed from, relative to the largest result; at least 1."""
    return max(float(np.max(np.abs(getattr(want, "terms", want))) / max(np.max(np.abs(want)), 1e-30)), 1.0)


# How many half units in the last place arithmetic may lose, whatever the order of its steps.
# _STORED, of the dtype itself: inputs, what a gradient reads again, and results are rounded to it.
# _STEPS, of the type of arithmetic: two or three functions of a formula, of which a GPU's quick ones are off by two units, and
# the products around them.
# _SUM, of that type, times sqrt(n) for a sum of n terms: each addition is off by at most half a unit of the sum so far. Such
# errors add up like a random walk, with a deviation of 0.4 sqrt(n) half units of the sum, or of the root of its terms'
# squares where they cancel; and of some thousand results one is four deviations off.
_STORED, _STEPS, _SUM = 4, 12, 2
_HALF_UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8,
               "float64": 2.0**-52}  # the reference is in float64, too, and loses as much
_TF32 = 8 * 2.0**-11  # each of two factors may lose a unit, and a product of products twice that


def bound(want, dtype, summed=1, tf32=False):
    """The largest error that arithmetic explains in a result of some dtype, by the length of its sums and the size of their
    terms. Integers are exact.

    Args:
      want: what the reference says.
      summed: how many terms the sums behind it have.
      tf32: whether factors may be rounded to TF32 on the way.
    """
    if np.size(want) == 0 or dtype not in _HALF_UNITS:
        return 0.0
    terms, arithmetic = max(summed, getattr(want, "count", 1)), min(_HALF_UNITS[dtype], _HALF_UNITS["float32"])
    lost = _STORED * _HALF_UNITS[dtype] + (_STEPS + _SUM * np.sqrt(terms)) * arithmetic
    return float(lost + _TF32 * tf32) * _size(want)


# Half a unit in the last place; for float64 eight, as the reference, in float64 itself, is rounded at every step. Integers
# are exact.
_EPSILON = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-49, "int32": 0.0, "int64": 0.0}


def all_cases():
    """Every case, by the name of its module; modules are in folders by family."""
    paths = {m.name.rsplit(".", 1)[1]: m.name for m in pkgutil.walk_packages(__path__, "tfuse.cases.") if not m.ispkg}
    return {module: importlib.import_module(paths[module]).CASES for module in sorted(paths)}
