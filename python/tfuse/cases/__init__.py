"""What every op must do, declared once, and what of it is timed.

One file per family. Its CASES say what is true, for the tests and for `tfuse doctor`. The reference is float64 NumPy and says
what the op means; `plain` is the same in stock TensorFlow, whose error is the yardstick. Its TIMES say what `tfuse bench`
times.
"""

import dataclasses
import functools
import importlib
import pkgutil

import numpy as np
import tensorflow as tf

from tfuse._core._op import real
from tfuse.cases._terms import allowed, as64, bound, cancelling, error, of_terms, plus, squares, sums, total

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


def _like(shape):
    return shape


@dataclasses.dataclass
class Case:
    """One op with one set of inputs.

    Attributes:
      name: as printed.
      run, plain, reference: functions of the same inputs and options; reference takes float64 arrays (integers and
        booleans as they are). One result, or as many as `outputs` has.
      gradient: float64 function(dy, *inputs, **options) -> gradients of all inputs that have one; dy is a list where there
        are several outputs. None where no input has one.
      inputs: by name, an Input or just its shape as a function of the case's: {"x": lambda shape: shape, …}.
      outputs: the same for results; one like the first input by default.
      options: keyword arguments, one dict per variant.
      shapes: shapes that the tests run.
      fit: makes of any shape one that the case can have.
      summed: function(shape) -> how many terms the longest sum behind a result has, beside those that total() knows; one
        where there is no sum. The doctor's bounds come from it.
      special: whether test_values.py gives it a row of special values.
      xla_own: whether inside XLA its own ops serve, as the better ones.
      rejects: (pattern of the message, function() that must raise) pairs, as refusing() makes them.
    """
    name: str
    run: object
    plain: object
    reference: object = None
    gradient: object = None
    inputs: dict = dataclasses.field(default_factory=lambda: {"x": _like})
    outputs: dict = dataclasses.field(default_factory=lambda: {"value": _like})
    options: list = dataclasses.field(default_factory=lambda: [{}])
    shapes: list = dataclasses.field(default_factory=lambda: SHAPES)
    fit: object = _like
    summed: object = lambda shape: 1
    special: bool = True
    xla_own: bool = False
    rejects: list = dataclasses.field(default_factory=list)
    _typical: dict = dataclasses.field(default_factory=dict, repr=False)

    def __post_init__(self):
        for table in ("inputs", "outputs"):
            setattr(self, table, {name: i if isinstance(i, Input) else Input(i) for name, i in getattr(self, table).items()})

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
        return [*as_list(self.reference(*inputs, **options)), *(self.gradient(dy, *inputs, **options) if self.gradient else [])]


@dataclasses.dataclass
class Timed:
    """What the benchmark times of a case, be it one of CASES or one that only the benchmark has.

    Attributes:
      sizes: shapes.
      options: those of the case that are timed; None is all.
      cpu_sizes: shapes that it runs on the CPU; none: the first of sizes, made smaller.
      sweep: shapes that it runs besides, in bfloat16 on a GPU.
      rival: what it is timed against; None is the case's `plain`.
      stock_can: function(shape) -> whether stock TensorFlow can run that.
      xla_can: whether XLA can compile the rival; "alone" where it can what stock TensorFlow cannot.
      in_xla: whether tfuse's op can be called inside XLA.
      passes: how often each element of the shape is read or written at least: (forward, backward).
      elements: function(shape) -> how many are, both ways, where that is not a multiple of the shape's.
      flops: function(shape, options) -> multiplications and additions, both ways, where these and not memory set the pace.
      pace: function(*inputs), a plain matrix product of one forward pass, whose rate the op's is compared with.
      bars: what `tfuse bench --bars` asks of a GPU: {(dtype, shape): {"forward": least percent of the copy speed,
        "backward": the same, "floor": most times what the passes of both take at the copy speed, "ms": most
        milliseconds of both, "tflops": least flops of forward in 10^12 per second, "backward_tflops": of backward,
        "torch": most times what PyTorch takes for forward, "of_matmul": least percent of the rate of `pace`,
        "both_of_matmul": the same of both, "of_XLA" and "of_torch": most times what XLA and torch.compile take for both,
        "memory": most megabytes beside inputs and results, "times_naive": how often the variant kind="naive" takes at
        least}}; or (dtype, shape, options as a tuple of pairs), for one of the variants.
    """
    case: Case
    sizes: list = dataclasses.field(default_factory=lambda: [(16384, 8192), (16383, 8191)])
    options: list = None
    cpu_sizes: list = dataclasses.field(default_factory=list)
    sweep: list = dataclasses.field(default_factory=list)
    rival: object = None
    stock_can: object = lambda shape: True
    xla_can: object = True
    in_xla: bool = True
    passes: tuple = (2, 3)
    elements: object = None
    flops: object = None
    pace: object = None
    bars: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.rival, self.options = self.rival or self.case.plain, self.options or self.case.options

    @property
    def name(self):
        return self.case.name

    def moved(self, direction, dtype, shape):
        """Bytes that are read and written at least."""
        both = self.elements(shape) if self.elements else [passes * volume(shape) for passes in self.passes]
        return tf.as_dtype(dtype).size * both[direction == "backward"]


def bars(*shapes, dtypes=("float32", "bfloat16"), **limits):
    """The same limits for several shapes and dtypes, as Timed.bars takes them."""
    return {(dtype, shape): limits for dtype in dtypes for shape in shapes}


AHEAD = {"of_XLA": 1.0, "of_torch": 1.0}


def each(option, values):
    """Variants that differ in one option, as Case.options takes them."""
    return [{option: value} for value in values]


def by_name(function, names, **fixed):
    """A function of a case's inputs, in their order, from one that takes them by name."""
    return lambda *inputs, **options: function(**dict(zip(names, inputs)), **fixed, **options)


def refusing(function, **right):
    """A maker of entries of Case.rejects: from the pattern of a message, and arguments that are wrong beside right ones."""
    def entry(pattern, **wrong):
        made = lambda value: value() if isinstance(value, functools.partial) else value
        return pattern, lambda: function(**tf.nest.map_structure(made, {**right, **wrong}))
    return entry


def ones(*shape, dtype=tf.float32):
    """A tensor for refusing(), not made before the call."""
    return functools.partial(tf.ones, shape, dtype)


def volume(shape):
    return int(np.prod(shape))


def fitting(axes, made):
    """A Case's fit: a shape of so many axes as it is, of any other what is made of its rows and its last axis."""
    return lambda shape: shape if len(shape) == axes else made(volume(shape[:-1]), shape[-1])


def twice(once):
    """Both ways, of which the backward one reads and writes, or computes, twice as much."""
    return once, 2 * once


def as_list(values):
    return list(values) if isinstance(values, (list, tuple)) else [values]


def product_flops(shape, options):
    """`flops` of a product of matrices: one forward, two backward."""
    return twice(2 * volume(shape))


def longest_axis(shape):
    """`summed` of a product of matrices and its gradients, of [rows …, inner axis, columns]."""
    return max(volume(shape[:-2]), *shape[-2:])


def _lists(name):
    paths = [m.name for m in pkgutil.walk_packages(__path__, "tfuse.cases.") if not m.ispkg and "._" not in m.name]
    return {path.rpartition(".")[2]: getattr(importlib.import_module(path), name, [])
            for path in sorted(paths, key=lambda path: path.rpartition(".")[2])}


def all_cases():
    """Every case, by the name of its module; modules are in folders by family. Some only say what is timed."""
    return {name: found for name, found in _lists("CASES").items() if found}


def all_timed():
    """All that the benchmark times, in the same way."""
    return _lists("TIMES")
