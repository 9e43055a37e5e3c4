"""tfuse.explain(): which route and kernel the last calls took, and why."""

import collections
import ctypes
import functools
import threading

from tfuse._core import _library

_KEPT = 512  # decisions: more than a large model makes in a trace
_KEPT_RUNS = 64  # of each kind, by the library
_decisions = collections.OrderedDict()  # by what they say, the latest last; each of a trace has a key of its own
_noted = 0  # decisions, those that are kept no more included
_marks = 0  # calls of mark(); decisions that are the same before one and after it are counted apart
_before_enable = None  # what calls() was when tfuse.enable() switched tfuse on; None while it is off
_not_installed = tuple  # gives the rows of what tfuse.enable() found no place for
_lock = threading.RLock()  # a signal handler may call a layer in the thread that is inside: what is kept is whole at each call


def note(op, route, reason, inputs, when="traced", counts=True):
    """Records a decision that is taken while a function is traced, or called; the same one again is counted. counts: whether it
    shows that tfuse is called."""
    global _noted
    row = {"op": op, "when": when, "route": route, "device": "", "kernel": "", "input": _described(*inputs[:1]),
           "why": reason}
    with _lock:
        key = object() if when == "traced" else (_marks, *row.values())
        _noted += counts
        _, kept = _decisions.setdefault(key, (_marks, {"calls": 0, **row}))
        kept["calls"] += 1
        if key in _decisions:  # a handler's notes may have pushed it out
            _decisions.move_to_end(key)
        if len(_decisions) > _KEPT:
            _decisions.popitem(last=False)


def _all_runs():
    """How many runs there have been so far, which is the number of the next one."""
    return sum(_library.library.tfu_trace_read(captured, -1, ctypes.byref(ctypes.c_int64()), None, 0)
               for captured in (False, True))


def calls():
    """How many decisions and runs there have been so far."""
    return _noted + _all_runs()


def mark():
    """This moment, as since() takes it: the numbers of the mark and of the next run."""
    global _marks
    with _lock:
        _marks += 1
        return _marks, _all_runs()


def reason(reasons):
    """Of a generator function that yields why something is not done, or what is false: the function that returns the first
    reason, or ""."""
    @functools.wraps(reasons)
    def first(*inputs, **options):
        return next(filter(None, reasons(*inputs, **options)), "")

    return first


def enabled(on, not_installed=tuple):
    """tfuse.enable() tells when tfuse is switched on and off behind Keras, so that one can see whether that did anything; and
    by a function, which gives rows, what it found no place for."""
    global _before_enable, _not_installed
    _before_enable, _not_installed = (calls(), not_installed) if on else (None, tuple)


def _described(x=None):
    """An input as dtype and shape, as far as it has them."""
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        return "" if x is None else type(x).__name__
    shape = list(x.shape) if getattr(x.shape, "rank", 0) is not None else "[?]"
    return "%s%s" % (getattr(x.dtype, "name", x.dtype), shape)


_LEGEND = """
op: what was asked for. when: "traced" while a function was made, "called" from Python, "ran" in the library, or "enabled":
tfuse.enable() found nothing of that name to replace. route: what computes it. kernel: which of the op's own. input: dtype and
shape of the first. calls: how many alike there were. why: what decided on the route. The last %d decisions are kept, and the
last %d runs; captured into CUDA graphs, %d more.""" % (
    _KEPT, _KEPT_RUNS, _KEPT_RUNS)
_NOT_SINCE = """tfuse has not been called since tfuse.enable(): a function that was traced before, such as the step of a model
that has run fit() or predict(), keeps what it was traced with. Call the model's compile() again, and it is traced anew."""


class Explanation(list):
    """The last decisions and runs, oldest first; prints as a table, in which those that differ in their input alone are one.

    Attributes:
      unused: whether tfuse.enable() has switched tfuse on and nothing has called it since.
    """

    def __init__(self, rows=(), unused=False):
        super().__init__(rows)
        self.unused = unused

    def __repr__(self):
        if not self:
            return _NOT_SINCE if self.unused else "tfuse has not been called yet"
        return "\n".join([self._table(), _LEGEND, *["", _NOT_SINCE] * self.unused])

    def _table(self):
        columns = ["op", "when", "route", "device", "kernel", "input", "calls", "why"]
        rows = [columns] + [[str(row[c]) for c in columns] for row in self._merged()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)

    def _merged(self):
        groups = {}
        for row in self:
            groups.setdefault(tuple(value for key, value in row.items() if key not in ("input", "calls")), []).append(row)
        for some in groups.values():
            inputs = list(dict.fromkeys(row["input"] for row in some))
            more = len(inputs) - 1
            text = " and %d other%s" % (more, "s" * (more > 1)) if more else ""
            yield {**some[0], "input": inputs[0] + text, "calls": sum(row["calls"] for row in some)}


def explain(last=_KEPT):
    """Returns what the last calls did: decisions taken while tracing, then runs as the library saw them.

    Each is a dict: op, when ("traced", "ran", "called": a function of Keras that tfuse.enable() put tfuse behind, or "enabled",
    before all others: one that this Keras or KerasHub does not have where tfuse.enable() looked for it), route
    (TensorFlow op, XLA custom call, plain TensorFlow, Keras's own code, joined by looking back, chain), device, kernel, the first
    input's dtype and shape, how many such calls there were, and why. Printing it gives a table, in which those that differ in
    their input alone are one, and what its columns mean; and where nothing has called tfuse since tfuse.enable(), that and why.

    Args:
      last: how many at most: of decisions, of runs, and of runs that were captured into a CUDA graph, which are seen once.
        512 decisions are kept, and 64 runs of each kind.
    """
    if last <= 0:
        return Explanation()
    found = since((0, 0), last)
    return Explanation([*_not_installed(), *found], found.unused)


def since(mark, last=_KEPT):
    """What explain() returns, without all that came before a mark()."""
    with _lock:
        decisions = [dict(row) for marks, row in list(_decisions.values()) if marks >= mark[0]]
        unused = _before_enable is not None and _before_enable == calls()
    runs = sorted(_runs(True, mark[1])[-last:] + _runs(False, mark[1])[-last:], key=lambda run: run[0])
    return Explanation(decisions[-last:] + [row for _, row in runs], unused)


_INSIDE = {"TensorFlow op": "", "chain": "inside a step of generation"}


def _runs(captured, first=0):
    """The last runs that were captured, or the last others, from the run of number `first` on, as pairs: which of all runs it
    was, and the row; oldest first."""
    runs, number, text = [], ctypes.c_int64(), ctypes.create_string_buffer(512)
    read = lambda i: _library.library.tfu_trace_read(captured, i, ctypes.byref(number), text, len(text))
    total = read(-1)
    for i in range(max(0, total - _KEPT_RUNS), total):
        read(i)
        if not text.value or number.value < first:
            continue
        op, route, device, kernel, dtype, shape, why = text.value.decode().split("\t")
        row = {"op": op, "when": "ran", "route": route, "device": device, "kernel": kernel, "input": dtype + shape,
               "why": "; ".join(filter(None, [_INSIDE.get(route, "inside jit_compile=True"),
                                              "its inputs are on the " + device, why]))}
        same = runs and all(runs[-1][1][key] == value for key, value in row.items())
        calls = runs.pop()[1]["calls"] + 1 if same else 1
        runs.append((number.value, {**row, "calls": calls}))
    return runs
