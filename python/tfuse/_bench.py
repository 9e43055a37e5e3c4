"""python -m tfuse bench: every op against stock TensorFlow and XLA, and against the speed of a plain copy."""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import platform
import subprocess
import time

import numpy as np
import tensorflow as tf

import tfuse
from tfuse import _driver, _library, cases

# Who computes, and how. "tfuse in XLA" is the same kernel, called from a function compiled by XLA.
RUNNERS = {
    "tfuse": lambda case: tf.function(case.run, autograph=False),
    "tfuse in XLA": lambda case: tf.function(case.run, autograph=False, jit_compile=True),
    "stock": lambda case: tf.function(case.plain, autograph=False),
    "XLA": lambda case: tf.function(case.plain, autograph=False, jit_compile=True),
}
RIVALS = ("stock", "XLA")
CPU_SIZE = (4096, 4096)


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tfuse bench", formatter_class=argparse.RawDescriptionHelpFormatter, description=(
            "Times ops forward and backward, apart, as a network runs them: with a function call between the two, so that no\n"
            "compiler fuses one into the other. On a GPU by its own clock, behind enough queued work that the host's speed\n"
            "plays no part; on the CPU by the wall clock. Speed is what the op must at least read and write, per second, in\n"
            "percent of a plain copy measured in the same run. Last comes a list of every place where a rival is faster."))
    parser.add_argument("ops", nargs="*", help="families to time (default: all): " + ", ".join(cases.all_cases()))
    parser.add_argument("--dtype", action="append", choices=cases.DTYPES, help="default: float32 and, on a GPU, bfloat16")
    parser.add_argument("--activation", action="append", help="only these variants")
    parser.add_argument("--no-rivals", action="store_true", help="time tfuse alone")
    parser.add_argument("--save", nargs="?", const="benchmarks", metavar="DIR",
                        help="write DIR/<hardware>.json and .png (default DIR: benchmarks)")
    parser.add_argument("--plot", metavar="FILE", help="draw FILE, written by --save, again; time nothing")
    parser.add_argument("--table", metavar="FILE", help="print FILE, written by --save, as the README's table; time nothing")
    chosen = parser.parse_args(arguments)
    for path, show in [(chosen.plot, plot), (chosen.table, lambda saved, *_: print(table(saved)))]:
        if path:
            saved = json.loads(pathlib.Path(path).read_text())
            show(saved, saved["rows"], pathlib.Path(path).with_suffix(".png"))
    if chosen.plot or chosen.table:
        return 0
    unknown = set(chosen.ops) - set(cases.all_cases())
    if unknown:
        parser.error("no such op: %s; there are %s" % (", ".join(sorted(unknown)), ", ".join(cases.all_cases())))

    bench = Bench(chosen)
    bench.run()
    bench.summary()
    if chosen.save:
        bench.save(pathlib.Path(chosen.save))
    return 0


class Bench:
    def __init__(self, chosen):
        self.chosen, self.rows = chosen, []
        self.gpu = bool(tf.config.list_physical_devices("GPU"))
        self.device = "GPU:0" if self.gpu else "CPU:0"
        self.clock = _driver.GpuClock() if self.gpu else _driver.WallClock()
        self.dtypes = chosen.dtype or (["float32", "bfloat16"] if self.gpu else ["float32"])
        self.copy = self.clock.copy_speed(1 << 29) if self.gpu else _cpu_copy_speed(self.clock)
        self.about = {"date": datetime.date.today().isoformat(), "commit": _commit(), "hardware": self._hardware(),
                      "tensorflow": tf.__version__, "tfuse": tfuse.__version__, "clock": self.clock.name,
                      "copy_TB_per_s": self.copy / 1e12}

    def _hardware(self):
        if self.gpu:
            return _driver.Driver.find().devices()[0].name
        return "%d-core %s CPU" % (_library.library.tfu_threads(), platform.machine())

    def run(self):
        print("%(hardware)s, TensorFlow %(tensorflow)s, tfuse %(tfuse)s, commit %(commit)s, %(date)s, %(clock)s" % self.about)
        print("a plain copy moves %.3f TB/s (read and written)\n" % self.about["copy_TB_per_s"])
        print("%-46s %-9s %9s %7s %9s %9s %9s  ms" % ("", "", "tfuse", "of copy", "in XLA", "stock", "XLA"), flush=True)
        for family, members in cases.all_cases().items():
            if self.chosen.ops and family not in self.chosen.ops:
                continue
            for case in members:
                for dtype in self.dtypes:
                    for shape in case.sizes if self.gpu else [CPU_SIZE] * bool(case.sizes):
                        for options in case.timed or case.options:
                            if not self.chosen.activation or options.get("activation") in self.chosen.activation:
                                self._time(case, dtype, shape, options)
        self._eager_overhead()

    def _time(self, case, dtype, shape, options):
        with tf.device(self.device):
            *inputs, dy = case.tensors_on_device(shape, dtype)
            forward, backward = {}, {}
            for name, make in RUNNERS.items():
                if name in RIVALS and self.chosen.no_rivals or "XLA" in name and _library.xla_status():
                    continue
                if not self.gpu and name == "tfuse in XLA":
                    continue
                forward[name], backward[name] = _directions(make(case), inputs, dy, options)
            results = self.clock.time(forward), self.clock.time(backward)
        size = tf.as_dtype(dtype).size * int(np.prod(shape))
        for i, direction in enumerate(("forward", "backward")):
            moved = case.passes[i] * size
            row = {"op": case.name, **options, "dtype": dtype, "shape": list(shape), "direction": direction, "bytes": moved,
                   "ms": {name: seconds * 1e3 for name, seconds in results[i].items()},
                   "percent_of_copy": 100 * moved / results[i]["tfuse"] / self.copy}
            self.rows.append(row)
            ms = row["ms"]
            print("%-46s %-9s %9.3f %6.1f%% %9s %9s %9s" % (
                label(row), direction, ms["tfuse"], row["percent_of_copy"],
                *("%.3f" % ms[n] if n in ms else "-" for n in ("tfuse in XLA", "stock", "XLA"))), flush=True)

    def _eager_overhead(self):
        """Microseconds of an eager call on a small tensor, host and device together, as a loop in Python sees it."""
        with tf.device(self.device):
            x, v = tf.random.normal([64, 64]), tf.random.normal([64])
            calls = {"tf.nn.relu": lambda: tf.nn.relu(x), "tfuse.relu": lambda: tfuse.relu(x),
                     "tfuse.square": lambda: tfuse.square(x),
                     "tfuse.scale_bias_act": lambda: tfuse.scale_bias_act(x, v, v, "relu")}
            times = {name: [] for name in calls}
            for _ in range(30):  # interleaved, so that all see the same machine
                for name, call in calls.items():
                    start = time.perf_counter()
                    for _ in range(200):
                        call()
                    tf.test.experimental.sync_devices()
                    times[name].append((time.perf_counter() - start) / 200 * 1e6)
        self.about["eager_us"] = {name: float(np.median(t)) for name, t in times.items()}
        print("\nan eager call on [64, 64], microseconds: " + ", ".join(
            "%s %.1f" % item for item in self.about["eager_us"].items()))

    def summary(self):
        lost = [(row, name) for row in self.rows for name in RIVALS if row["ms"].get(name, np.inf) < row["ms"]["tfuse"]]
        print("\n%d of %d timings: tfuse is ahead of every rival" % (len(self.rows) - len({id(r) for r, _ in lost}), len(self.rows)))
        for row, name in lost:
            print("  behind %s: %s %s, %.3f against %.3f ms" % (name, label(row), row["direction"], row["ms"]["tfuse"], row["ms"][name]))
        for direction in ("forward", "backward"):
            some = [r for r in self.rows if r["direction"] == direction]
            if some:
                worst = min(some, key=lambda r: r["percent_of_copy"])
                print("slowest %s: %.1f%% of copy speed, %s" % (direction, worst["percent_of_copy"], label(worst)))

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        stem = folder / self.about["hardware"].replace(" ", "_").lower()
        stem.with_suffix(".json").write_text(json.dumps({**self.about, "rows": self.rows}, indent=1) + "\n")
        print("\nwrote", stem.with_suffix(".json"))
        try:
            plot(self.about, self.rows, stem.with_suffix(".png"))
            print("wrote", stem.with_suffix(".png"))
        except ImportError:
            print("no plot: pip install matplotlib")


def _directions(f, inputs, dy, options):
    """Forward, and backward alone: the tape of a forward pass is set up before the clock starts. Not a persistent tape,
    which would have the function carry what second gradients need."""

    def record():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = f(*inputs, **options)
        return tape, y

    return ((lambda _: f(*inputs, **options), lambda: None),
            (lambda recorded: recorded[0].gradient(recorded[1], inputs, dy), record))


def label(row):
    options = [str(v) for k, v in row.items() if k == "activation"]
    return " ".join([row["op"], *options, row["dtype"], "×".join(map(str, row["shape"]))])


def table(saved):
    """A saved run in Markdown: percent of the copy speed, forward / backward, and how often a rival's time is tfuse's.

    One line per variant at the first shape that an op was timed at; for its other shapes, the slowest variant of each.
    """
    lines = ["%(hardware)s, TensorFlow %(tensorflow)s, commit %(commit)s, %(date)s; a plain copy moves %(copy_TB_per_s).2f TB/s." % saved,
             "", "| op | shape | " + " | ".join("%s | stock, XLA take" % d for d in _dtypes(saved)) + " |",
             "|---|---|" + "---|---|" * len(_dtypes(saved))]
    for (name, shape), rows in _lines(saved["rows"]).items():
        cells = []
        for dtype in _dtypes(saved):
            pairs = [(f, b) for f, b in zip(rows[::2], rows[1::2]) if f["dtype"] == dtype]
            cells.append("%.0f%% / %.0f%%" % tuple(min(pair[i]["percent_of_copy"] for pair in pairs) for i in (0, 1)))
            cells.append(", ".join("%.1f×" % min((f["ms"][r] + b["ms"][r]) / (f["ms"]["tfuse"] + b["ms"]["tfuse"]) for f, b in pairs)
                                   for r in RIVALS if all(r in f["ms"] for f, _ in pairs)))
        lines.append("| %s | %s | %s |" % (name, shape, " | ".join(cells)))
    return "\n".join(lines)


def _dtypes(saved):
    return list(dict.fromkeys(row["dtype"] for row in saved["rows"]))


def _lines(rows):
    """Rows by the table's lines: (name, shape)."""
    first, lines = {}, {}
    for row in rows:
        variant = row.get("activation")
        shape = "×".join(map(str, row["shape"]))
        if first.setdefault(row["op"], shape) == shape:
            name = row["op"] + (" " + variant if variant else "")
        else:
            name = row["op"] + (", slowest" if variant else "")
        lines.setdefault((name, shape), []).append(row)
    return lines


def plot(about, rows, path):
    """Percent of the copy speed, one bar per contender."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    names = ["stock", "XLA", "tfuse"]
    figure, axes = pyplot.subplots(1, 2, figsize=(15, 2 + 0.22 * len(rows)), sharey=True)
    for axis, direction in zip(axes, ("forward", "backward")):
        some = [r for r in rows if r["direction"] == direction][::-1]
        y = np.arange(len(some))
        for i, (name, colour) in enumerate(zip(names, ("#c0c0c0", "#8fb3d9", "#d95f02"))):
            speed = [100 * r["bytes"] / (r["ms"][name] / 1e3) / (about["copy_TB_per_s"] * 1e12) if name in r["ms"] else 0 for r in some]
            axis.barh(y + (i - 1) * 0.28, speed, 0.28, label=name, color=colour)
        axis.set_yticks(y, [label(r) for r in some], fontsize=7)
        axis.axvline(100, color="black", linewidth=0.8)
        axis.margins(y=0.005)
        axis.set_xlabel("percent of the copy speed, %s" % direction)
    axes[0].legend(loc="lower right")
    figure.suptitle("%(hardware)s, TensorFlow %(tensorflow)s, tfuse %(tfuse)s, commit %(commit)s, %(date)s" % about)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path, dpi=110)


def _cpu_copy_speed(clock):
    """By NumPy, in as many threads as tfuse uses."""
    threads = _library.library.tfu_threads()
    a, b = (np.ones((threads, 1 << 24), np.float32) for _ in range(2))
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        copy = lambda _: list(pool.map(lambda i: np.copyto(a[i], b[i]), range(threads)))
        return 2 * a.nbytes / clock.time({"copy": (copy, lambda: None)})["copy"]


def _commit():
    if os.environ.get("TFUSE_COMMIT"):
        return os.environ["TFUSE_COMMIT"]
    try:
        git = ["git", "-C", str(pathlib.Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=10"]
        return subprocess.check_output(git, text=True, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        return "release " + tfuse.__version__
