"""python -m tfuse bench optimizers: a step over many variables, by the GPU's clock and by the wall clock, which counts what
TensorFlow and Python take to queue it. "reads, assigns" is the least of that: a function that reads the weights, or weights
and slots, and assigns them back."""

import functools
import statistics

import keras
import tensorflow as tf

import tfuse
from tfuse._tools import _driver

# (variables, elements of each) -> most milliseconds on the GPU, and of the whole step; for an NVIDIA H200.
BARS = {(400, 250_000): (0.85, 2.0), (5000, 1000): (None, 3.0)}
CPU_SIZES = {(400, 25_000): (None, None), (1000, 1000): (None, None)}
RUNNERS = {"tfuse": (tfuse.optimizers, False), "tfuse in XLA": (tfuse.optimizers, True), "stock": (keras.optimizers, False),
           "XLA": (keras.optimizers, True)}
COLUMNS = [*RUNNERS, "torch fused"]
MANY = 1000  # variables; with more, what the host takes is timed alone, no rival but PyTorch, no slots: they take minutes


def steps(bench):
    """Times Adam and AdamW with a global clip; prints and yields a row for each."""
    print("\noptimizers, milliseconds of a step: on the GPU / in all; reads, assigns: of weights / of slots too\n%-44s %s" % (
        "", " ".join("%17s" % name for name in [*COLUMNS, "reads, assigns"])))
    for (count, elements), bars in (BARS if bench.gpu else CPU_SIZES).items():
        least = [_least(bench, kinds * count, elements) if kinds == 1 or count <= MANY else None for kinds in (1, 3)]
        for name, options in [("Adam", {}), ("AdamW", {"global_clipnorm": 1.0})]:
            row = {"op": "optimizers." + name, **options, "variables": count, "elements": elements, "ms": {}, "all_ms": {},
                   "least_ms": least}
            for runner, (library, jit) in RUNNERS.items():
                if runner == "tfuse" or not (count > MANY or (bench.chosen.no_rivals and library is keras.optimizers)):
                    times = _time(bench, getattr(library, name), options, jit, count, elements)
                    row["ms"][runner], row["all_ms"][runner] = times
            if bench.chosen.torch:
                answer = bench.ask_torch({"optimizer": name, "count": count, "elements": elements})
                row["ms"]["torch fused"], row["all_ms"]["torch fused"] = answer.get("seconds", (None, None))
            print("%-44s %s" % (label(row), " ".join("%17s" % cell for cell in _cells(row))), flush=True)
            yield {**row, "bars": bars if name == "Adam" else (None, None)}


def label(row):
    clipped = ["global_clipnorm"] * ("global_clipnorm" in row)
    return " ".join([row["op"].removeprefix("optimizers."), *clipped, "%d×%d" % (row["variables"], row["elements"])])


def table(rows):
    """Saved steps in Markdown, as lines."""
    if not rows:
        return []
    made = ", ".join(dict.fromkeys("%(commit)s (%(date)s)" % row for row in rows))
    return ["", "Milliseconds of an optimizer's step, on the GPU / in all, commit %s; reads, assigns: a function that does "
            "nothing but read and assign the weights / weights and slots, in all." % made, "",
            "| optimizer, variables × elements | %s |" % " | ".join([*COLUMNS, "reads, assigns"]),
            "|---" * (len(COLUMNS) + 2) + "|",
            *("| %s | %s |" % (label(row), " | ".join(_cells(row))) for row in rows)]


def lines(row):
    """(label, {rival: how many times tfuse's time it takes}) of a saved step, on the GPU and in all."""
    for key, where in ("ms", "on the GPU"), ("all_ms", "in all"):
        ms = {name: row[key].get(name) for name in COLUMNS}
        if ms["tfuse"]:
            yield "%s, %s" % (label(row), where), {name: ms[name] / ms["tfuse"] for name in ("stock", "XLA", "torch fused")
                                                  if ms[name]}


def check_bars(rows):
    """Prints which bars hold; returns whether all do."""
    held = True
    for row in rows:
        for bar, value, what in zip(row["bars"], (row["ms"]["tfuse"], row["all_ms"]["tfuse"]), ("GPU", "all")):
            if bar and value is not None:
                held &= value <= bar
                print("  %-5s %s of a step, %s %d×%d: %.3f ms, at most %.2f" % (
                    "holds" if value <= bar else "FAILS", what, row["op"], row["variables"], row["elements"], value, bar))
    return held


def _cells(row):
    pairs = [(row["ms"].get(n), row["all_ms"].get(n)) for n in COLUMNS] + [row["least_ms"]]
    return [" / ".join(map(_ms, pair)) for pair in pairs]


def _ms(value):
    return "-" if value is None else "%.3f" % value


def _time(bench, cls, options, jit, count, elements):
    """Milliseconds on the GPU, or None, and in all. For the latter, as in training, gradients come from inside the function, as
    parts of one tensor: as arguments, each would take the host some microseconds."""
    with tf.device(bench.device):
        variables = [tf.Variable(tf.random.normal([elements])) for _ in range(count)]
        gradients = tf.random.normal([count * elements])
        optimizer = cls(1e-3, **options)
        optimizer.build(variables)
        compiled = functools.partial(tf.function, autograph=False, jit_compile=jit)
        on_gpu = None
        if bench.gpu and count <= MANY:
            apart = tf.split(gradients, count)
            step = compiled(lambda: optimizer.apply(apart, variables))
            on_gpu = bench.clock.time({"step": (lambda _: step(), lambda: None)})["step"] * 1e3
        return on_gpu, _wall(compiled(lambda: optimizer.apply(tf.split(gradients, count), variables)))


def _least(bench, count, elements):
    """Milliseconds in all to read so many variables and to assign them."""
    with tf.device(bench.device):
        variables = [tf.Variable(tf.zeros([elements])) for _ in range(count)]

    @tf.function(autograph=False)
    def step():
        values = tf.raw_ops.IdentityN(input=[v.read_value() for v in variables])  # all are read before one is assigned
        for variable, value in zip(variables, values):
            variable.assign(value, read_value=False)

    return _wall(step, min)


def _wall(step, choose=statistics.median, rounds=7, calls=5):
    step()
    return 1e3 * choose([_driver.wall_seconds(step, calls) for _ in range(rounds)])
