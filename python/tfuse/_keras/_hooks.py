"""Which hooks of callbacks may get logs that are read late.

Such logs are a subclass of dict whose methods read a number when it is asked for. C code that reads the memory of a dict, as
that of tf.nest and pandas, would find tensors there, and optree takes dicts by their exact type. So only those hooks get them
whose code can be seen to use the methods alone, as `logs["loss"]`, `logs.get("loss")` or `len(logs)`. All others get a plain
dict, as in Keras.
"""

import dis
import functools

from keras.src.callbacks.callback import Callback

_METHODS = ("LOAD_ATTR", "LOAD_METHOD", "CONTAINS_OP", "GET_ITER", "POP_JUMP", "TO_BOOL")  # what follows logs on the stack
_CALLED = ("bool", "dict", "len", "list", "set", "sorted")  # with logs as their only argument
_AROUND = {"__self__", "_getframe", "currentframe", "eval", "exec", "locals", "vars"}  # names that lead to logs without a variable
_LOCAL = ("FAST", "DEREF", "CELL", "CLOSURE")  # in the names of bytecodes that a variable of a function has


def read_by_methods(callback, name):
    """Whether this hook of a callback uses the methods of its logs alone; not known is no."""
    function = getattr(getattr(callback, name), "__func__", getattr(callback, name))
    if function is Callback.on_train_batch_end:  # which calls the other
        function = getattr(callback.on_batch_end, "__func__", callback.on_batch_end)
    names = getattr(function, "__globals__", {})  # whose __name__ is that of the code: functools.wraps copies __module__
    if names.get("__name__", "").partition(".")[0] == "keras":  # Keras's own, which do
        return True
    shadowed = any(name in names for name in _CALLED)
    return hasattr(function, "__code__") and not shadowed and _uses_methods_alone(function.__code__)


@functools.lru_cache(256)
def _uses_methods_alone(code):
    if "logs" not in code.co_varnames[:code.co_argcount + code.co_kwonlyargcount] or not _AROUND.isdisjoint(code.co_names):
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG", "NOP")]
    return all(_is_harmless(steps, i) for i, step in enumerate(steps) if any(part in step.opname for part in _LOCAL)
               and "logs" in (step.argval if isinstance(step.argval, tuple) else (step.argval,)))


def _is_harmless(steps, i):
    step, (after, then) = steps[i], (steps + steps[-1:] * 2)[i + 1:i + 3]
    if step.opname == "STORE_FAST":
        return True
    if not step.opname.startswith("LOAD_FAST") or step.argval != "logs":
        return False
    if after.opname == "LOAD_CONST":  # a key, or None
        return then.opname.endswith(("_SUBSCR", "IS_OP")) or then.opname == "BINARY_OP" and then.argrepr == "[]"
    if after.opname in ("CALL_FUNCTION", "PRECALL", "CALL"):
        return after.argval == 1 and steps[i - 1].opname == "LOAD_GLOBAL" and steps[i - 1].argval in _CALLED
    if after.opname in ("COPY", "DUP_TOP", "JUMP_IF_TRUE_OR_POP"):  # logs = logs or {}
        ends = [one.argval for one in steps[i + 1:i + 4] if "JUMP_IF_TRUE" in one.opname]
        named = then.opname.startswith("STORE")  # (x := logs) or {}
        return not named and any(one.offset in ends and one.opname == "STORE_FAST" and one.argval == "logs" for one in steps)
    return after.opname.startswith(_METHODS)
