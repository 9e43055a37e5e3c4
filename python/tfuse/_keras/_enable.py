"""tfuse.enable(): tfuse behind Keras itself, and behind KerasHub, whether imported before or after.

Each row of the tables in the modules _replaced_*.py names an attribute of a module or class, what takes its place, and a
guard, which says why tfuse does not serve a call, or nothing. What is not served goes to Keras's own code, with the reason
in tfuse.explain().
"""

import contextlib
import functools
import importlib.abc
import sys
import threading

import keras

from tfuse._core import _explain
from tfuse._core._op import function
from tfuse._keras import (_look_back, _missing, _replaced_arrays, _replaced_generation, _replaced_hub, _replaced_hub_attention,
                          _replaced_hub_rotary, _replaced_hub_vision, _replaced_images, _replaced_joined, _replaced_nn,
                          _replaced_optimizers, _replaced_quantized, _replaced_recurrent, _replaced_trainer)
from tfuse.generation import batch
from tfuse.generation.steps import check_cache_dtype

_TABLE = [row for module in (_replaced_nn, _replaced_arrays, _replaced_hub, _replaced_hub_attention, _replaced_hub_rotary,
                             _replaced_hub_vision, _replaced_images, _replaced_joined, _replaced_optimizers,
                             _replaced_recurrent, _replaced_generation, _replaced_quantized, _replaced_trainer)
          for row in module.TABLE]
_lock = threading.RLock()
_TO_KERAS = "Keras's own code"  # the route of what is not served, in explain()
_replaced = []  # (owner, name, what was there), in the order it was done
_switched_on, _blocks = False, 0  # by enable(), and how many `with tfuse.enabled():` are open


def enable(look_back=True, cache_dtype=None):
    """Puts fused ops behind Keras's own functions and layers, and KerasHub's.

    Replaced are attention, layer, RMS, group and batch normalisation, softmax, dropout, gelu, silu, mish, softplus, hard_silu
    and the cross entropies of logits; LSTM, GRU and RNN over their cells; the steps of Adam, AdamW, Lamb, Lion and SGD; Dense,
    EinsumDense and heads that are quantised; where there is a GPU, those that are not, convolutions and pooling, and sums,
    running sums, permutations, concatenations and sorting of large tensors; and KerasHub's attention and RMS norms, and its
    generate() where there is a GPU.

    Models themselves are unchanged: only the functions they call are replaced. A function that has already been traced, such
    as a model's train_function, keeps the ops it was traced with; compile() the model again to retrace it. What tfuse cannot
    serve runs as before, and tfuse.explain() tells why. Calling it again changes its two arguments alone.

    While a function is traced, ops are fused with those before them by looking back: an activation with the product, the
    convolution or the batch norm before it, a sum with the last two, silu(a) * b, a norm with the sum before it, and the cross
    entropy with the product that makes its logits, which are then never materialized.

    Results are Keras's to within rounding, with four exceptions: where a query may attend to nothing at all, Keras's
    dot_product_attention gives the mean of all values and tfuse gives 0; dropout drops other elements for the same seed;
    where Keras's LSTM and GRU would call cuDNN with a mask, which gives zeros for masked steps, they give the output
    before those, as Keras's own loops do; and relu of NaN is NaN, which TensorFlow's Dense on x86 CPUs makes 0.

    Where this Keras or KerasHub has not all that is replaced, a RuntimeWarning says so once, and tfuse.explain() lists it.

    Args:
      look_back: False leaves every op as the model has it.
      cache_dtype: of the keys and values that KerasHub's generate() keeps: None, for the model's own, or "float8_e4m3fn", as
        in tfuse.generate.

    Raises:
      ValueError: cache_dtype is another one.
      RuntimeError: Keras runs on another backend than TensorFlow.
    """
    _set(on=True, look_back=look_back, cache_dtype=cache_dtype)


def disable():
    """Undoes tfuse.enable(): Keras is as it was. Inside `with tfuse.enabled():` this takes effect at the end of the block."""
    _set(on=False)


@contextlib.contextmanager
def enabled(look_back=True, cache_dtype=None):
    """`with tfuse.enabled():` is tfuse.enable() for the block. Blocks may be nested, and overlap in several threads: the
    arguments count of the one that was entered last.

    The switch is process-wide: other threads see it, too, and should not be inside an attention layer while it changes.
    """
    before = {"look_back": _look_back.on, "cache_dtype": batch.cache_dtype}
    _set(blocks=1, look_back=look_back, cache_dtype=cache_dtype)
    try:
        yield
    finally:
        _set(blocks=-1, **before)


def _set(on=None, blocks=0, **settings):
    check_cache_dtype(settings.get("cache_dtype"))
    global _switched_on, _blocks
    if (on or blocks > 0) and keras.backend.backend() != "tensorflow":
        raise RuntimeError("tfuse.enable() serves Keras on TensorFlow; here its backend is %s" % keras.backend.backend())
    with _lock:
        was, _look_back.on = is_on(), bool(settings.get("look_back", _look_back.on))
        _switched_on, _blocks = _switched_on if on is None else on, _blocks + blocks
        batch.cache_dtype = settings.get("cache_dtype", batch.cache_dtype) if is_on() else None
        if is_on() != was:
            _explain.enabled(is_on(), _not_installed)
        if is_on() and not was:
            sys.meta_path.insert(0, _AFTER_IMPORT)
            for module in {row.module: None for row in _TABLE}:
                _install(module)
            _missing.warn(_TABLE)
        elif was and not is_on():
            sys.meta_path.remove(_AFTER_IMPORT)
            while _replaced:
                _put(*_replaced.pop())


def is_on():
    return _switched_on or _blocks > 0


def replaced_of(package):
    """How many functions and methods of a package are replaced, and {row: why} of those that it lacks."""
    rows = [row for row in _TABLE if _missing.root(row) == package]
    return len(rows), _missing.missing(rows)


# ---- one module ----


def _install(module):
    """Replaces what the table names in a module, if it is imported and as far as this release of it has that."""
    rows = [row for row in _TABLE if row.module == module and module in sys.modules]
    for row in rows:
        parts = [part for part in _TABLE if part.part_of == row.part_of] if row.part_of else [row]
        if not any(map(_missing.why_missing, parts)):
            _replace(*_missing.place(row), row)


def _not_installed():
    """What _install() found no place for, as rows of tfuse.explain()."""
    for row, why in _missing.missing(_TABLE).items():
        yield {"op": row.attribute, "when": "enabled", "route": _TO_KERAS, "device": "", "kernel": "", "input": "",
               "why": why, "calls": 0}


def _replace(owner, name, there, row):
    if row.in_place:  # a function that other modules have imported by name: they keep the function, it gets a new body
        owner, name, there, new = there, "__code__", there.__code__, row.serve.__code__
    elif isinstance(row.serve, property):
        new = row.serve
    elif isinstance(there, staticmethod):
        new = staticmethod(_instead_of(there.__func__, row))
    else:
        new = _instead_of(there, row)
    _replaced.append((owner, name, there))
    _put(owner, name, new)


def _put(owner, name, value):
    if value is _missing.ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _instead_of(own, row):
    @functools.wraps(own)
    def call(*inputs, **options):
        why = _why_not(row, inputs, options)
        if not why:
            return row.serve(own, *inputs, **options)
        tensors = [x for x in inputs if hasattr(x, "shape")]
        _explain.note(row.attribute, _TO_KERAS, why, tensors or inputs, "called")
        return own(*inputs, **options)

    return function(call)


def _why_not(row, inputs, options):
    try:
        return row.guard(*inputs, **options) if row.guard else ""
    except TypeError as error:  # a later Keras may have arguments that the guard has not
        return "tfuse does not know these arguments: %s" % error


# ---- modules that are imported while tfuse is enabled ----


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds what others find, and sees to it that _install() follows when it has run."""

    def find_spec(self, name, path, target=None):
        if name != "keras_hub" and not any(row.module == name for row in _TABLE):
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            if spec is not None:
                spec.loader.exec_module = functools.partial(self._execute, spec.loader.exec_module)
                return spec
        return None

    @staticmethod
    def _execute(execute, module):
        execute(module)
        with _lock:
            if is_on():
                _install(module.__name__)
                if module.__name__ == "keras_hub":  # with all of its modules
                    _missing.warn(_TABLE)


_AFTER_IMPORT = _AfterImport()
