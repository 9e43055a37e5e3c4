"""What every op must do, declared once: read by the tests, by `tfuse doctor` and by `tfuse bench`.

One file per family, with a list CASES. The reference is float64 NumPy and says what the op means; `plain` is the same in
stock TensorFlow, whose error is the yardstick and whose time is the rival.
"""

import dataclasses
import importlib
import pkgutil

import numpy as np
import tensorflow as tf

DTYPES = ("float32", "float16", "bfloat16", "float64")
# Odd, one, none, more than a tile, more than a block, many short rows, one long row.
SHAPES = [(4, 8), (1, 1), (7, 3), (0, 8), (3, 5, 129), (513, 1030), (4099, 2), (1, 100003)]


@dataclasses.dataclass
class Case:
    """One op with one set of inputs.

    Attributes:
      name: as printed.
      run, plain, reference: functions of the same inputs and options; reference takes float64 arrays.
      gradient: float64 function(dy, *inputs, **options) -> gradients of all inputs.
      inputs: for each input, the shape it has for a case of shape `shape`: {"x": lambda shape: shape, …}.
      options: keyword arguments, one dict per variant.
      shapes: first-input shapes that the tests run.
      rejects: (pattern of the message, function() that must raise) pairs.
      passes: how often each element of the first input's size is read or written: (forward, backward).
      sizes: first-input shapes that the benchmark runs.
      timed: the options that the benchmark runs; None is all.
    """
    name: str
    run: object
    plain: object
    reference: object
    gradient: object
    inputs: dict
    options: list = dataclasses.field(default_factory=lambda: [{}])
    shapes: list = dataclasses.field(default_factory=lambda: SHAPES)
    rejects: list = dataclasses.field(default_factory=list)
    passes: tuple = (2, 3)
    sizes: list = dataclasses.field(default_factory=lambda: [(16384, 8192), (16383, 8191)])
    timed: list = None
    _typical: dict = dataclasses.field(default_factory=dict, repr=False)

    def tensors(self, shape, dtype, seed=0):
        """Random inputs of the case, and an output gradient, as tensors."""
        rng = np.random.default_rng(seed)
        shapes = [of(shape) for of in self.inputs.values()]
        return [tf.cast(tf.constant(rng.normal(size=s) * 2), dtype) for s in shapes + [shape]]

    def tensors_on_device(self, shape, dtype):
        """The same, made where they are needed: the benchmark's are too large to make in NumPy."""
        return [tf.cast(tf.random.normal(s), dtype) for s in [of(shape) for of in self.inputs.values()] + [shape]]

    def step(self, f, inputs, dy, options):
        """Value and gradients of f, as a flat list of tensors."""
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = f(*inputs, **options)
        return [y, *tape.gradient(y, inputs, dy)]

    def typical(self, dtype, options):
        """The errors of the naive composition on a sample of some thousand elements."""
        key = (dtype, *sorted(options.items()))
        if key not in self._typical:
            *inputs, dy = self.tensors((64, 129), dtype, seed=1)
            naive, want = self.step(self.plain, inputs, dy, options), self.truth(inputs, dy, options)
            self._typical[key] = [error(n, w) for n, w in zip(naive, want)]
        return self._typical[key]

    def truth(self, inputs, dy, options):
        """What step() should give, in float64."""
        inputs, dy = [as64(i) for i in inputs], as64(dy)
        return [self.reference(*inputs, **options), *self.gradient(dy, *inputs, **options)]


def as64(tensor):
    return np.asarray(tf.cast(tensor, tf.float64))


def error(got, want):
    """The largest difference, relative to the largest value."""
    if np.size(want) == 0:
        return 0.0
    return float(np.max(np.abs(as64(got) - want)) / max(np.max(np.abs(want)), 1e-30))


class _Total(np.ndarray):
    """A sum that remembers the size of its terms."""


def total(terms, axis=None):
    """A sum in a reference, whose terms may cancel."""
    result = np.asarray(terms.sum(axis)).view(_Total)
    result.terms = np.sqrt(np.sum(terms * terms, axis))
    return result


def allowed(naive, want, dtype, typical=0.0):
    """Twice the error of the naive composition, here or on a `typical` larger sample, where luck plays no part.

    Where luck made both exact, twice one rounding of the result; of a sum, measured against its terms (the root of
    their squares' sum), as no order of adding does better when they cancel.
    """
    if np.size(want) == 0:
        return 0.0
    size = np.max(np.abs(getattr(want, "terms", want))) / max(np.max(np.abs(want)), 1e-30)
    return 2 * max(error(naive, want), typical, _EPSILON[dtype] * max(float(size), 1))


# Half a unit in the last place; for float64 eight, as the reference, in float64 itself, is rounded at every step.
_EPSILON = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-49}


def all_cases():
    """Every case of every family, by family."""
    families = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        families[module] = importlib.import_module("tfuse.cases." + module).CASES
    return families
