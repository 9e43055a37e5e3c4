"""python -m tfuse tune: finds the numbers of an op's launch again, by measurement (kernels/core/gpu/tunable.h)."""

import argparse
import dataclasses
import itertools
import json
import statistics
import sys

import rich.box
import rich.console
import rich.progress
import rich.table
import tensorflow as tf

from tfuse import cases
from tfuse._core import _library
from tfuse._tools import _bench

WORTH = 0.005  # of the time: less is no reason to change a number
REACTS = 0.02  # of the time: what changes by less, over all values, does not depend on the number
# A stem that has no cases, and the ops that ask for its tunables. Ops of chains have no cases at all.
SHARED = {"channels": ("scale_bias_act", "gated", "square", "add_constant"), "conv_quads": ("conv",),
          "few_rows_tiled": ("quantized_projections", "quantized_linear"), "recurrence_persistent": ("rnn",),
          "reduce_grad": ("reduce",)}


# ---- the library's tunables ----


@dataclasses.dataclass(frozen=True)
class Tunable:
    stem: str
    name: str
    value: int
    least: int
    most: int
    file: str
    line: int
    asked: bool  # by a launch, since the value was set

    def put(self, value):
        """Has the library's launches use the value from now on."""
        why = _library.library.tfu_tunable_set(self.stem.encode(), self.name.encode(), value).decode()
        if why:
            raise ValueError(why)

    @property
    def families(self):
        """The modules of cases whose benchmark asks for it."""
        return SHARED.get(self.stem, (self.stem,))

    def candidates(self, quick=False):
        """What is tried: the ends of the range, the value itself, powers of two and, unless in haste, what is halfway."""
        powers = [2**i for i in range(self.most.bit_length())]
        found = {self.least, self.most, self.value, *powers, *(() if quick else (3 * p // 2 for p in powers))}
        return sorted(value for value in found if self.least <= value <= self.most)


def tunables():
    """All that the library has, in the order of the sources."""
    texts = iter(map(_library.library.tfu_tunable_text, itertools.count()))
    found = (Tunable(**json.loads(text)) for text in itertools.takewhile(bool, texts))
    return sorted(found, key=lambda tunable: (tunable.file, tunable.line))


# ---- what is timed ----


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One direction of one line of the benchmark."""
    bench: object
    line: _bench.Line
    direction: str

    @property
    def label(self):
        return "%s, %s" % (self.line.label, self.direction)

    def functions(self):
        """(f, setup) as the benchmark's clock takes them."""
        timed, dtype, shape, options = self.line
        *inputs, dy = timed.case.tensors_on_device(shape, dtype)
        return _bench.directions(timed.case, _bench.RUNNERS["tfuse"](timed), inputs, dy, options)[self.direction == "backward"]

    def timer(self):
        """A function that gives the seconds of a run."""
        functions = self.functions()
        return lambda: self.bench.clock.time({"tfuse": functions})["tfuse"]

    def asks(self, some):
        """Which of some tunables this direction's launches ask for. Matrix products time their own ways in a first run,
        which is this one, with the values that the library has."""
        f, setup = self.functions()
        f(setup())
        item = setup()
        for tunable in some:
            tunable.put(tunable.value)
        f(item)
        return {(c.stem, c.name) for c in tunables() if c.asked}

    def speed(self, seconds):
        """In percent of the copy's, or in TF/s where arithmetic sets the pace."""
        timed, dtype, shape, options = self.line
        if timed.flops:
            return timed.flops(shape, options)[self.direction == "backward"] / seconds / 1e12
        return 100 * timed.moved(self.direction, dtype, shape) / seconds / self.bench.copy


def entries_of(bench, members):
    """Every line of the cases' benchmark, in both directions."""
    return [Entry(bench, line, direction) for line in bench.lines(members) for direction in ("forward", "backward")]


def first_of_each(entries):
    """Of each case, dtype and direction the first entry."""
    kinds = {}
    for entry in entries:
        kinds.setdefault((entry.line.timed.name, entry.line.dtype, entry.direction), entry)
    return list(kinds.values())


# ---- the search ----


@dataclasses.dataclass
class Found:
    tunable: Tunable
    times: dict  # {entry: {value: seconds}}
    best: int
    shares: list  # of each entry that reacts, the time with the best in parts of that with the library's own value

    @property
    def share(self):
        return statistics.geometric_mean(self.shares)

    @property
    def reacting(self):
        """The times of the entries that the value matters to; those of others would only add their noise."""
        return {entry: of for entry, of in self.times.items() if max(of.values()) > (1 + REACTS) * min(of.values())}


def measure(tunable, values, entries, rounds, tick=lambda: None):
    """{entry: {value: seconds}}."""
    return {entry: _times_of(entry, tunable, values, rounds, tick) for entry in entries}


def _times_of(entry, tunable, values, rounds, tick):
    """In each round the values take their turns there and back, so that a clock that drifts slows all of them alike; the
    median of the rounds leaves out one that was disturbed."""
    seconds, timer = {value: [] for value in values}, entry.timer()
    for _ in range(rounds):
        there_and_back = {value: [] for value in values}
        for value in [*values, *reversed(values)]:
            tunable.put(value)
            there_and_back[value].append(timer())
            tick()
        for value, pair in there_and_back.items():
            seconds[value].append(statistics.mean(pair))
    return {value: statistics.median(found) for value, found in seconds.items()}


def shares(times, value, than):
    """What each entry takes with a value, in parts of what it takes with another."""
    return [of[value] / of[than] for of in times.values()]


def search(tunable, entries, quick=False, tick=lambda: None):
    """The value with the least time, as the geometric mean over the entries has it. The luckiest of many looks better than
    it is: so that value and the library's own are timed once more, and only that counts. Leaves the best in the library."""
    values, own, rounds = tunable.candidates(quick), tunable.value, _rounds(quick)
    found = Found(tunable, measure(tunable, values, entries, rounds, tick), own, [])
    reacting = found.reacting
    if reacting:
        best = min(values, key=lambda value: (statistics.geometric_mean(shares(reacting, value, own)), abs(value - own)))
        again = shares(measure(tunable, [own, best], reacting, 2 * rounds, tick), best, own) if best != own else []
        if again and statistics.geometric_mean(again) < 1 - WORTH:
            found.best, found.shares = best, again
    tunable.put(found.best)
    return found


def _rounds(quick):
    return 1 if quick else 3


def tune(some, entries, console, quick=False):
    """Searches one tunable after the other, each with those before at their best; prints and returns what it finds. The
    library has its own values again afterwards."""
    found = []
    try:
        uses = {entry: entry.asks(some) for entry in rich.progress.track(
            entries, "which entries ask for which tunable", console=console, transient=True)}
        for tunable in some:
            own = [entry for entry in entries if (tunable.stem, tunable.name) in uses[entry]]
            own = first_of_each(own) if quick else own
            if not own:
                console.print("\n%s: no entry asks for it, so nothing is tried" % tunable.name)
                continue
            console.print("\n%s: %d values from %d to %d, %d entries" % (
                tunable.name, len(tunable.candidates(quick)), tunable.least, tunable.most, len(own)))
            with rich.progress.Progress(console=console, transient=True) as progress:
                turns = len(tunable.candidates(quick)) + 4  # with those of the two that are timed once more
                task = progress.add_task("timing", total=2 * _rounds(quick) * turns * len(own))
                found.append(search(tunable, own, quick, lambda: progress.advance(task)))
            console.print(table(found[-1]))
    finally:
        for tunable in some:
            tunable.put(tunable.value)
    return found


# ---- what is printed ----


def table(found):
    """The speed of each entry with each value, and the time of those that react."""
    own, reacting = found.tunable.value, found.reacting
    made = rich.table.Table(title="percent of the copy's speed, or TF/s", title_justify="left", box=rich.box.SIMPLE,
                            padding=(0, 1, 0, 0), show_footer=True)
    made.add_column("", footer="time in percent of that with %d" % own, min_width=20)
    for value in next(iter(found.times.values())):
        mean = "%.1f" % (100 * statistics.geometric_mean(shares(reacting, value, own))) if reacting else ""
        made.add_column(str(value), footer=mean, justify="right", no_wrap=True, style="bold" if value == found.best else "")
    for entry, of in found.times.items():
        made.add_row(entry.label, *("%.1f" % entry.speed(seconds) for seconds in of.values()),
                     style="" if entry in reacting else "dim")
    return made


def verdict(found):
    """What to do about a tunable, as lines."""
    c = found.tunable
    where, less = "%s:%d: %s" % (c.file, c.line, c.name), lambda share: 100 * (1 - share)
    if not found.reacting:
        return ["%s = %d stays: no entry depends on it" % (where, c.value)]
    if found.best == c.value:
        return ["%s = %d stays: no other value takes %.1f%% less time" % (where, c.value, 100 * WORTH)]
    return ["%s = %d takes %.1f%% less time than %d (single entries %.1f%% to %.1f%% less):" % (
        where, found.best, less(found.share), c.value, less(max(found.shares)), less(min(found.shares))),
            "    TFU_TUNABLE(%s, %d, %d, %d);" % (c.name, found.best, c.least, c.most)]


def listing(some):
    made = rich.table.Table(box=rich.box.SIMPLE, padding=(0, 2, 0, 0))
    for name, justify in [("op", "left"), ("tunable", "left"), ("value", "right"), ("range", "left"), ("where", "left")]:
        made.add_column(name, justify=justify, no_wrap=True)
    for c in some:
        ops = ", ".join(c.families) or c.stem
        made.add_row(ops, c.name, str(c.value), "%d to %d" % (c.least, c.most), "%s:%d" % (c.file, c.line))
    return made


# ---- the command ----


def function_of(case):
    """The public function that a case calls: its name is the beginning of the case's."""
    return case.name.split(",")[0].split(" ")[0]


def members_of(op):
    """(module, what to time) of a function or a stem; (None, []) where there is no such op. A function that the benchmark
    does not time has what its stem has."""
    timed = cases.all_timed()
    if op in timed:
        return op, timed[op]
    for module, members in cases.all_cases().items():
        if op in map(function_of, [*members, *timed[module]]):
            return module, [one for one in timed[module] if function_of(one) == op] or timed[module]
    return None, []


def ops_with(some):
    """The ops that have tunables, in words."""
    texts = []
    for family in sorted({family for tunable in some for family in tunable.families}):
        names = dict.fromkeys(map(function_of, cases.all_cases().get(family, ())))
        others = ", ".join(name for name in names if name != family)
        texts.append("%s (%s)" % (family, others) if others else family)
    return ", ".join(texts)


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tfuse tune", formatter_class=argparse.RawDescriptionHelpFormatter, description=(
            "Finds launch parameters that only a measurement can find, such as the number of blocks per multiprocessor.\n"
            "They are called tunables, and are defined in kernels/FAMILY/STEM_gpu.c:\n\n"
            "  TFU_TUNABLE(name, value, least, most);\n\n"
            "Each is tried from least to most, one after the other, at all sizes that `python -m tfuse bench OP` times,\n"
            "forward and backward. At the end come the lines that would make the op faster on this GPU, for you to put\n"
            "into the C file. No file is changed. Nothing else should run on the GPU meanwhile.\n\n"
            "Without OP it lists all tunables: their values, their ranges, and where they are defined."))
    parser.add_argument("op", nargs="?", metavar="OP", help="a function or a stem, as in: rms_norm, or norm for all norms")
    parser.add_argument("--dtype", action="append", choices=cases.DTYPES, help="default: float32 and bfloat16")
    parser.add_argument("--quick", action="store_true",
                        help="a first look: each case at its first shape, powers of two only, fewer rounds")
    chosen = parser.parse_args(arguments)
    console = rich.console.Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    known = tunables()
    if chosen.op is None:
        console.print(listing(known))
        return 0
    module, members = members_of(chosen.op)
    some = [tunable for tunable in known if module in tunable.families]
    if not some:
        parser.error("%s: %s; these have tunables: %s" % (
            chosen.op, "it has no tunables" if module else "no such op", ops_with(known)))
    if not tf.config.list_physical_devices("GPU"):
        print("tune measures on a GPU, and TensorFlow sees none here: python -m tfuse doctor says more", file=sys.stderr)
        return 1

    bench = _bench.Bench(chosen)
    console.print("%(hardware)s, TensorFlow %(tensorflow)s, tfuse %(tfuse)s, commit %(commit)s, %(date)s" % bench.about)
    with tf.device(bench.device):
        found = tune(some, entries_of(bench, members), console, chosen.quick)
    for line in itertools.chain.from_iterable(map(verdict, found)):
        print(line)
    return 0
