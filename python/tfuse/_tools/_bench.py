"""python -m tfuse bench: every op against stock TensorFlow, XLA and torch.compile, and against the speed of a plain copy."""

import argparse
import collections
import concurrent.futures
import datetime
import faulthandler
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow as tf

import tfuse
from tfuse import cases
from tfuse._core import _library
from tfuse._tools import _bench_optimizers, _bench_plots, _bench_table, _driver, _files
from tfuse._tools._bench_table import RIVALS, TORCH, check_bars, label

# Who computes, and how. "tfuse in XLA" is the same kernel, called from a function compiled by XLA.
RUNNERS = {
    "tfuse": lambda timed: _function(timed.case, timed.case.run),
    "tfuse in XLA": lambda timed: _function(timed.case, timed.case.run, jit_compile=True),
    "stock": lambda timed: _function(timed.case, timed.rival),
    "XLA": lambda timed: _function(timed.case, timed.rival, jit_compile=True),
}
TORCH_DTYPES = ("bfloat16",)  # what networks are trained in; compiling takes its time
CPU_ELEMENTS = 1 << 24
FAMILIES = [*sorted({*cases.all_cases(), *cases.all_timed()}), "optimizers"]
# The GPU is in use before, as it is where a program makes its first kernel.
_FIRST_CALL = """
import time, tensorflow as tf, tfuse
x = tfuse.square(tf.random.normal([64, 64]))
f = tfuse.jit.elementwise("T x", "T y", "y = x / (1 + exp(-x))")
tf.test.experimental.sync_devices()
start = time.perf_counter()
f(x)
tf.test.experimental.sync_devices()
print((time.perf_counter() - start) * 1e3)
"""


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tfuse bench", formatter_class=argparse.RawDescriptionHelpFormatter, description=(
            "Times ops forward and backward, separately, as a network runs them: with a function call between the two, so\n"
            "that no compiler fuses one into the other. GPUs are timed by their own clock, with enough work queued that\n"
            "the host's speed does not matter, CPUs by the wall clock. Speed is the memory traffic that the op needs at\n"
            "least, in percent of a plain copy's in the same run; or TF/s, where an op computes more than it moves.\n"
            "Last comes a list of all cases where a rival (stock TensorFlow, XLA or torch.compile) is faster.\n\n"
            "Example: python -m tfuse bench softmax --only 8192"))
    parser.add_argument("ops", nargs="*", help="what to time: families of ops, or a single function, such as cumsum "
                                               "(default: all): " + ", ".join(FAMILIES))
    parser.add_argument("--dtype", action="append", choices=cases.DTYPES, help="default: float32 and, on a GPU, bfloat16")
    parser.add_argument("--only", action="append", metavar="TEXT",
                        help="only lines with this text, for example --only gelu, --only 4096×4096; may be repeated")
    parser.add_argument("--no-rivals", action="store_true", help="time tfuse alone, not stock TensorFlow and XLA")
    parser.add_argument("--torch", action="store_true",
                        help="time PyTorch's torch.compile too, at the first size of each op; needs torch with CUDA")
    parser.add_argument("--bars", nargs="?", const=True, metavar="FILE",
                        help="check the times against the bars, which are what we ask of each op on an NVIDIA H200; exit "
                             "status 1 if one does not hold. With FILE, written by --save, check that; time nothing")
    parser.add_argument("--against", metavar="FILE", type=pathlib.Path,
                        help="time tfuse alone, outside XLA, and list what takes over 2%% longer than in FILE, written by --save; "
                             "such a row is timed up to three times. Exit status 1 if there is one")
    parser.add_argument("--save", nargs="?", const="benchmarks", metavar="DIR",
                        help="write DIR/<hardware>.json, and pictures (default DIR: benchmarks)")
    parser.add_argument("--plot", nargs="?", const="benchmarks", metavar="PATH",
                        help="draw again what --save wrote: a file, or a folder's and the README's picture (default: "
                             "benchmarks); time nothing")
    parser.add_argument("--table", metavar="FILE",
                        help="print FILE, written by --save, as the tables of docs/benchmarks.md; time nothing")
    chosen = parser.parse_args(arguments)
    if chosen.against and (chosen.save or chosen.bars or chosen.torch):
        parser.error("--against goes with none of --save, --bars and --torch")
    if chosen.plot:
        drawn = 0
        for drawn, path in enumerate(_bench_plots.draw(pathlib.Path(chosen.plot)), 1):
            print("wrote", path)
        if not drawn:
            raise SystemExit("%s has nothing to draw: a record that --save has written is wanted" % chosen.plot)
    if chosen.table:
        print(_bench_table.page(saved_in(chosen.table)))
    if isinstance(chosen.bars, str):
        saved = saved_in(chosen.bars)
        held = [check_bars(saved, saved["rows"]), _bench_optimizers.check_bars(saved.get("steps", []))]
        return 0 if all(held) else 1
    if chosen.plot or chosen.table:
        return 0
    chosen.ops = [_family(name) for name in chosen.ops]
    unknown = set(chosen.ops) - set(FAMILIES)
    if unknown:
        parser.error("no such op: %s; there are %s" % (", ".join(sorted(unknown)), ", ".join(FAMILIES)))

    if chosen.save:
        _files.check_folder("--save", chosen.save)
    if chosen.torch:
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # or TensorFlow leaves nothing to PyTorch
    faulthandler.enable()  # a crash in native code says which of the runners it was in
    bench = Bench(chosen)
    bench.run()
    if chosen.only and not bench.rows:
        parser.error("no line has %s; without --only all are timed" % " or ".join(map(repr, chosen.only)))
    if chosen.against:
        return 0 if _bench_table.check_against(bench.before, bench.rows) else 1
    bench.summary()
    if chosen.save:
        bench.save()
    if not chosen.bars:
        return 0
    return 0 if all([check_bars(bench.about, bench.rows, chosen.ops), _bench_optimizers.check_bars(bench.steps)]) else 1


def saved_in(path):
    """What --save has written to a file."""
    saved = _files.loaded(path, lambda path: json.loads(pathlib.Path(path).read_text()))
    rows = saved.get("rows") if isinstance(saved, dict) and "copy_TB_per_s" in saved else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and {"op", "direction", "ms"} <= row.keys() for row in rows):
        raise SystemExit("%s is nothing that --save has written: it has no rows of ops, or not the speed of a copy" % path)
    return saved


def _family(name):
    """The family that a function belongs to; what is none stays as it is."""
    module = getattr(getattr(tfuse, name, None), "__module__", "").rpartition(".")[2]
    return module if name not in FAMILIES and module in FAMILIES else name


class Line(collections.namedtuple("Line", "timed dtype shape options")):
    """What is timed at once."""

    @property
    def key(self):
        return {"op": self.timed.name, **self.options, "dtype": self.dtype, "shape": self.shape}

    @property
    def label(self):
        return label(self.key)


class Bench:
    def __init__(self, chosen):
        self.chosen, self.rows, self.steps, self._torch = chosen, [], [], None
        self.before = _bench_table.times_of(saved_in(chosen.against)["rows"]) if chosen.against else {}
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
        print("%(hardware)s, TensorFlow %(tensorflow)s, tfuse %(tfuse)s, commit %(commit)s, %(date)s, %(clock)s" %
              self.about)
        print("a plain copy moves %.3f TB/s (read and written)\n" % self.about["copy_TB_per_s"])
        print("%-62s %-9s %9s %8s %7s %9s %9s %9s %13s  ms" % (
            "", "", "tfuse", "both", "of copy", "in XLA", *RIVALS), flush=True)
        for family, members in cases.all_timed().items():
            if self.chosen.ops and family not in self.chosen.ops:
                continue
            for line in self.lines(members):
                if self._wanted(line):
                    self._time(line)
                    self._keep()
        if self.chosen.against:
            return
        if not self.chosen.ops or "optimizers" in self.chosen.ops:
            for row in _bench_optimizers.steps(self):
                self.steps.append({**row, "commit": self.about["commit"], "date": self.about["date"]})
                self._keep()
        if self.rows:
            self._eager_overhead()
        if self.gpu and (not self.chosen.ops or "jit" in self.chosen.ops):
            self._first_calls()

    def _wanted(self, line):
        if self.chosen.against and (line.label, "forward") not in self.before:
            return False
        return not self.chosen.only or any(text in line.label for text in self.chosen.only)

    def lines(self, members):
        return [Line(timed, dtype, shape, options) for timed in members for dtype in self.dtypes
                for shape in self.shapes(timed, dtype) for options in timed.options]

    def shapes(self, timed, dtype):
        """What is timed of a case; one that has the same types for every dtype, once."""
        if dtype != self.dtypes[0] and all(i.dtype not in (None, "real") for i in timed.case.inputs.values()):
            return []
        if self.gpu:
            return timed.sizes + timed.sweep * (dtype == "bfloat16")
        return timed.cpu_sizes or [_shrink(shape) for shape in timed.sizes[:1]]

    def _runs(self, name, timed, shape):
        if self.chosen.against:
            return name == "tfuse"
        stock = timed.stock_can(shape)
        can = {"stock": stock, "XLA": timed.xla_can and stock or timed.xla_can == "alone"}
        if name in can and (self.chosen.no_rivals or not can[name]):
            return False
        return not ("XLA" in name and _library.xla_status()) and (self.gpu and timed.in_xla or name != "tfuse in XLA")

    def _time(self, line):
        timed, dtype, shape, options = line
        with tf.device(self.device):
            *given, dy = timed.case.tensors_on_device(shape, dtype)
            inputs = _as_floats(given)
            both = {name: directions(timed.case, make(timed), inputs, dy, options)
                    for name, make in RUNNERS.items() if self._runs(name, timed, shape)}
            forward, backward = ({name: pair[i] for name, pair in both.items()} for i in (0, 1))
            if timed.pace and not self.chosen.against:
                pace = tf.function(timed.pace, autograph=False)
                forward["matmul"] = lambda _: pace(*inputs), lambda: None
            results = [self._timed(line, *both) for both in (("forward", forward), ("backward", backward))]
            extra = _extra_memory(backward["tfuse"]) if self.gpu and timed.flops and not self.chosen.against else None
            if self.chosen.torch and _beside_torch(timed, dtype, shape):
                self._time_torch(timed.case, given, options, results)
        matmul = results[0].pop("matmul", None)
        for i, direction in enumerate(("forward", "backward")):
            size = timed.moved(direction, dtype, shape)
            row = {**line.key, "shape": list(shape), "direction": direction,
                   "commit": self.about["commit"], "date": self.about["date"], "bytes": size,
                   "ms": {name: seconds * 1e3 for name, seconds in results[i].items()},
                   "percent_of_copy": 100 * size / results[i]["tfuse"] / self.copy}
            if timed.flops:
                row["TF_per_s"] = timed.flops(shape, options)[i] / results[i]["tfuse"] / 1e12
            if matmul and not i:
                row["matmul_ms"], row["percent_of_matmul"] = matmul * 1e3, 100 * matmul / results[0]["tfuse"]
            if matmul and i:  # of three products
                row["both_percent_of_matmul"] = 300 * matmul / (results[0]["tfuse"] + results[1]["tfuse"])
            if i:
                row["both_ms"] = {name: 1e3 * (results[0][name] + results[1][name]) for name in results[1]}
                row.update({} if extra is None else {"extra_MB": extra / 1e6})
            self.rows.append(row)
            ms = row["ms"]
            print("%-62s %-9s %9.3f %8s %7s %9s %9s %9s %13s" % (
                label(row), direction, ms["tfuse"], "%.3f" % row["both_ms"]["tfuse"] if i else "", _speed(row),
                *("%.3f" % ms[n] if n in ms else "-" for n in ("tfuse in XLA", *RIVALS))), flush=True)

    def _timed(self, line, direction, functions):
        """Seconds of each function; of what takes longer than the record's, the least of three times."""
        seconds, most = self.clock.time(functions), _bench_table.AS_BEFORE * self.before.get((line.label, direction), np.inf) / 1e3
        for _ in range(2):
            if seconds["tfuse"] > most:
                seconds["tfuse"] = min(seconds["tfuse"], self.clock.time({"tfuse": functions["tfuse"]})["tfuse"])
        return seconds

    def _time_torch(self, case, inputs, options, results):
        """Adds to the results, forward and backward, what torch.compile takes; says so where that fails."""
        question = {"name": case.name, "options": options, "inputs": [
            [tensor.shape.as_list(), tensor.dtype.name, own.gradient] for tensor, own in zip(inputs, case.inputs.values())]}
        answer = self.ask_torch(question)
        if "error" in answer:
            print("  no %s for %s: %s" % (TORCH, case.name, answer["error"]))
        for result, seconds in zip(results, answer.get("seconds", ())):
            result[TORCH] = seconds

    def ask_torch(self, question):
        """What the program of rivals answers: {"seconds": …} or {"error": …}."""
        try:
            if self._torch is None:
                program = str(pathlib.Path(__file__).with_name("_torch_rivals.py"))
                self._torch = subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                               stderr=subprocess.DEVNULL, text=True)
            print(json.dumps(question), file=self._torch.stdin, flush=True)
            answer = json.loads(self._torch.stdout.readline() or '{"error": "its process died"}')
        except OSError as error:
            answer = {"error": str(error)}
        if self._torch and self._torch.poll() is not None:
            self._torch = None
        return answer

    def _eager_overhead(self):
        """Microseconds of an eager call on a small tensor."""
        with tf.device(self.device):
            x, v = tf.random.normal([64, 64]), tf.random.normal([64])
            silu = tfuse.jit.elementwise("T x", "T y", "y = x / (1 + exp(-x))")
            calls = {"tf.nn.relu": lambda: tf.nn.relu(x), "tfuse.relu": lambda: tfuse.relu(x),
                     "tfuse.square": lambda: tfuse.square(x), "tfuse.silu": lambda: tfuse.silu(x), "jit silu": lambda: silu(x),
                     "tfuse.scale_bias_act": lambda: tfuse.scale_bias_act(x, v, v, "relu")}
            if self.gpu:
                q = tf.cast(tf.random.normal([1, 64, 4, 64]), tf.bfloat16)
                calls["tfuse.attention"] = lambda: tfuse.attention(q, q, q)
            times = {name: [] for name in calls}
            for _ in range(30):  # interleaved, so that all see the same machine
                for name, call in calls.items():
                    times[name].append(_driver.wall_seconds(call, 200) * 1e6)
        self.about["eager_us"] = {name: float(np.median(t)) for name, t in times.items()}
        print("\nan eager call on [64, 64], microseconds: " + ", ".join(
            "%s %.1f" % item for item in self.about["eager_us"].items()))

    def _first_calls(self):
        """Milliseconds of a jit kernel's first call in a process, with an empty cache and with what that has left there."""
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "TFUSE_CACHE": folder, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
            times = [subprocess.run([sys.executable, "-c", _FIRST_CALL], env=environment, capture_output=True, text=True)
                     for _ in range(2)]
        if any(done.returncode for done in times):
            print("a jit kernel's first call: not timed: " + times[-1].stderr[-300:])
            return
        self.about["jit_first_ms"] = [float(done.stdout.split()[-1]) for done in times]
        print("a jit kernel's first call: %.1f ms compiled, %.1f ms from the cache" % tuple(self.about["jit_first_ms"]))

    def summary(self):
        behind = sorted(_bench_table.lost(self.rows), key=lambda found: RIVALS.index(found[2]))
        total = len(list(_bench_table.compared(self.rows)))
        ahead = total - len({(label(row), direction) for row, direction, *_ in behind})
        print("\n%d of %d timings: tfuse is ahead of every rival" % (ahead, total))
        for row, direction, rival, percent in behind:
            print("  behind %s: %s %s, by %.1f%%" % (rival, label(row), direction, percent))
        for direction in ("forward", "backward"):
            some = [r for r in self.rows if r["direction"] == direction]
            some = [r for r in some if "TF_per_s" not in r and _bench_table.launches(r)]
            if some:
                worst = min(some, key=lambda r: r["percent_of_copy"])
                print("slowest %s: %.1f%% of copy speed, %s" % (direction, worst["percent_of_copy"], label(worst)))

    def save(self):
        path = self._keep()
        print("\nwrote", path)
        try:
            for picture in _bench_plots.draw(path.parent):
                print("wrote", picture)
        except ImportError:
            print("no pictures: pip install matplotlib")

    def _keep(self):
        """What is timed is not lost if the run is cut short. Rows that the file has and this run has not timed stay, with the
        commit that they were timed at."""
        if not self.chosen.save:
            return None
        path = pathlib.Path(self.chosen.save) / (self.about["hardware"].replace(" ", "_").lower() + ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        saved = json.loads(path.read_text()) if path.exists() else {"rows": []}
        whole = {**saved, **self.about, "rows": merged(saved["rows"], self.rows),
                 "steps": merged(saved.get("steps", []), self.steps, _bench_optimizers.label)}
        aside = path.with_suffix(".tmp")  # if the run is cut short here, the file is still whole
        aside.write_text(json.dumps(whole, indent=1) + "\n")
        os.replace(aside, path)
        return path


def _beside_torch(timed, dtype, shape):
    """Whether torch.compile is timed: where it matters most, and wherever a bar asks how long it takes."""
    asked = any("torch" in limits for key, limits in timed.bars.items() if key[:2] == (dtype, shape))
    return asked or dtype in TORCH_DTYPES and (shape == timed.sizes[0] or bool(timed.flops))


def _speed(row):
    if not _bench_table.launches(row):
        return "–"
    return "%.3g TF/s" % row["TF_per_s"] if "TF_per_s" in row else "%.1f%%" % row["percent_of_copy"]


def merged(saved, timed, key=lambda row: (label(row), row["direction"])):
    """Both, in the order that the ops have; of what both have, the latter, with the rivals' times of the former where the
    latter has none: those do not depend on tfuse. Their commit is kept beside them."""
    rows = {key(row): row for row in saved}
    rows.update({key(row): _with_rivals(row, rows.get(key(row))) for row in timed})
    order = [timed.name for members in cases.all_timed().values() for timed in members]
    return sorted(rows.values(), key=lambda row: order.index(row["op"]) if row["op"] in order else len(order))


def _with_rivals(row, before):
    rivals = {*RIVALS, *_bench_optimizers.COLUMNS} - {"tfuse", "tfuse in XLA"}
    missing = [name for name in (before or {"ms": {}})["ms"] if name in rivals and name not in row["ms"]]
    if not missing:
        return row
    kept = {which: {**row[which], **{name: before[which][name] for name in missing}}
            for which in ("ms", "both_ms", "all_ms") if which in row}
    return {**row, **kept, "rivals_commit": before.get("rivals_commit", before.get("commit"))}


def _as_floats(tensors):
    """The tensors; what is int32, as float32 with the same bits. TensorFlow keeps int32 tensors that go into a function or
    come out of one in the host's memory, and what is timed would be the way there and back."""
    return tf.nest.map_structure(lambda t: tf.bitcast(t, tf.float32) if t.dtype == tf.int32 else t, tensors)


def _function(case, f, **jit):
    """f of what _as_floats() made of the case's inputs, as a graph; so are its results."""
    def run(*inputs, **options):
        whole = (i.dtype == "int32" for i in case.inputs.values())
        return _as_floats(f(*(tf.bitcast(x, tf.int32) if w else x for x, w in zip(inputs, whole)), **options))
    return tf.function(run, autograph=False, **jit)


def directions(case, f, inputs, dy, options):
    """Forward, and backward alone: the tape of a forward pass is set up before the clock starts. Not a persistent tape,
    which would have the function carry what second gradients need."""
    watched = case.differentiable(inputs)

    def record():
        with tf.GradientTape() as tape:
            tape.watch(watched)
            y = f(*inputs, **options)
        tf.nest.assert_same_structure(y, dy, check_types=False)  # TensorFlow would read beyond the end of a dy that is too short
        return tape, y

    return ((lambda _: f(*inputs, **options), lambda: None),
            (lambda recorded: recorded[0].gradient(recorded[1], watched, dy), record))


def _extra_memory(backward):
    """Bytes that a forward and a backward pass take at their peak on the GPU beside what they are given and return."""
    run, record = backward
    tf.test.experimental.sync_devices()
    before = tf.config.experimental.get_memory_info("GPU:0")["current"]
    tf.config.experimental.reset_memory_stats("GPU:0")
    recorded = record()
    gradients = run(recorded)
    tf.test.experimental.sync_devices()
    returned = [recorded[1], *(g for g in gradients if g is not None)]
    return tf.config.experimental.get_memory_info("GPU:0")["peak"] - before - sum(t.dtype.size * t.shape.num_elements()
                                                                                  for t in tf.nest.flatten(returned))


def _shrink(shape):
    """A shape for the CPU, with the axes that count left alone."""
    shape = list(shape)
    for axis in range(len(shape) - 1):
        while shape[axis] > 1 and np.prod(shape) > CPU_ELEMENTS:
            shape[axis] //= 2
    return tuple(shape)


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
