"""Trains every layer of Keras for two steps between two others, stock and with tfuse.enable(); compares losses and weights.

  ./run python tools/keras_layers.py                              # all cells
  ./run python tools/keras_layers.py --only LSTM --only "Conv2D.*mixed_bfloat16 xla"
  TFUSE_LIBRARY=… PYTHONPATH=python python3 tools/keras_layers.py --jobs 15 --json cells.json

A cell is a layer of keras_layers_table.py, a dtype policy, and XLA or not. Prints the cells that are

  broken       stock trains, and with tfuse an error comes, a number that is not finite, or the process ends
  different    the losses or weights are further apart than the dtype's roundings explain: see BOUND
  stock fails  stock itself raises an error, gives a number that is not finite, changes no weight, or is much further than
               tfuse from what float32 gives; these do not count

and their numbers. Exit status 1 where a cell is broken or different, 2 where nothing could be compared.

On a machine without a GPU, enable() leaves products, convolutions, pooling and large arrays to Keras. --as-on-a-gpu has tfuse
serve them all the same, by its kernels for CPUs.
"""
import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import keras_layers_table

# How far apart weights may be after two steps, of the length of their change: 20 roundings of 16 bits. In float32, sums are
# added up in other orders, and functions are approximated to some units in the last place.
BOUND = {"float32": 1e-4, "float16": 20 / 2048, "bfloat16": 20 / 256}
ROUNDOFF = {"float32": 2 ** -24, "float16": 2 ** -11, "bfloat16": 2 ** -8}  # of a variable that is stored
SMALL = 0.1  # a weight that changes by less than this, of what changes most, is measured by that: its gradient cancels
POLICIES = ["float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "float16"]
PLAIN = {"bfloat16", "float16"}  # policies that only the first line of each layer runs in
KINDS = ["right", "broken", "different", "stock fails"]
SHAPES = {"vector": [8], "sequence": [6, 8], "image1": [12, 4], "image2": [8, 9, 4], "image3": [5, 6, 7, 4]}
BATCH = 4
Cell = collections.namedtuple("Cell", "form layer policy xla")


# ---- cells ----


def lines():
    """(form, line, whether it is the first one of its layer)."""
    seen = set()
    for form, text in keras_layers_table.LAYERS.items():
        for line in filter(None, map(str.strip, text.splitlines())):
            name = re.match(r"(?:~ )?(\w+)", line)[1]
            yield form, line, name not in seen
            seen.add(name)


def cells():
    return [Cell(form, line, policy, xla) for form, line, first in lines() for policy in POLICIES for xla in (False, True)
            if first or policy not in PLAIN]


def name_of(cell):
    return "%s %s %s%s" % (cell.form, cell.layer, cell.policy, " xla" * cell.xla)


# ---- one cell ----


def model_of(cell):
    """A layer between two others, compiled; and what it is trained on."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(cell.policy)
    layers, shape = keras.layers, SHAPES[cell.form]
    axes = int(cell.form[5:] or 0) if cell.form.startswith("image") else 0
    conv = lambda n: getattr(layers, "Conv%dD" % axes)(n, 3, padding="same")
    random = np.random.default_rng(0)
    before = lambda: conv(4) if axes else layers.Dense(8)
    line, _, called = cell.layer.removeprefix("~ ").partition(" <- ")
    called = called or "x"
    x, m, ids = keras.Input(shape), keras.Input(shape[:1], dtype="bool"), keras.Input(shape[:1], dtype="int32")
    values = {x: random.normal(size=[BATCH, *shape]), m: random.random([BATCH, *shape[:1]]) < 0.7,
              ids: random.integers(0, 16, [BATCH, *shape[:1]])}
    values[m][:, 0] = True
    wanted = [value for name, value in (("[xy]", x), ("m", m), ("ids", ids)) if re.search(r"\b%s\b" % name, called)]
    names = {**vars(layers), "keras": keras, "m": m, "ids": ids}
    if x in wanted:
        names["x"] = before()(x)
    if re.search(r"\by\b", called):
        names["y"] = before()(x)
    y = eval("(%s)(%s)" % (line, called), names)
    after = conv(3) if axes and len(y.shape) == axes + 2 else layers.Dense(3)
    y = layers.Identity(dtype="float32")(after(y))
    model = keras.Model(wanted, y)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=cell.xla)
    target = random.normal(size=[BATCH, *y.shape[1:]]).astype("float32")
    return model, [values[v].astype("float32" if v is x else v.dtype) for v in wanted], target


def trained(cell, start=None):
    """Losses of two steps, weights before them and after; from these weights on."""
    model, inputs, target = model_of(cell)
    if start is not None:
        model.set_weights(start)
    start = model.get_weights()
    history = model.fit(inputs, target, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
    return history, start, model.get_weights()


def not_finite(run):
    import numpy as np

    losses, _, weights = run
    if not np.all(np.isfinite(losses)):
        return "the losses are %s" % losses
    return "" if all(np.all(np.isfinite(w.astype("float32"))) for w in weights) else "a weight is not finite"


def apart(cell, got, want):
    """By how much two trainings differ, in bounds: 1 is just right."""
    import numpy as np

    bound = BOUND[cell.policy.removeprefix("mixed_")]
    worst = max(abs(a - b) / (bound * max(abs(b), 1e-3)) for a, b in zip(got[0], want[0]))
    changes = [np.linalg.norm(b.astype("float64") - a.astype("float64")) for a, b in zip(want[1], want[2])]
    for a, b, change in zip(got[2], want[2], changes):
        a, b = a.astype("float64"), b.astype("float64")
        stored = ROUNDOFF[cell.policy if cell.policy in PLAIN else "float32"] * np.linalg.norm(b)
        worst = max(worst, np.linalg.norm(a - b) / (bound * max(change, SMALL * max(changes)) + 4 * stored))
    return float(worst)


def result_of(cell, enabled, begun=lambda what: None):
    """[kind, why]. enabled: a context that is tfuse.enabled()."""
    import numpy as np

    begun("stock")
    try:
        want = trained(cell)
        why = not_finite(want)
        if not why and all(np.array_equal(a, b) for a, b in zip(want[1], want[2])):
            why = "no weight changes"
    except Exception as error:
        why = said(error)
    if why:
        return ["stock fails", why]
    begun("enabled")
    try:
        with enabled():
            got = trained(cell, want[1])
        why = not_finite(got)
    except Exception as error:
        why = said(error)
    if why:
        return ["broken", why]
    if cell.layer.startswith("~"):
        return ["right", "finite"]
    far = apart(cell, got, want)
    if far > 1 and cell.policy != "float32":  # whose fault is it? Stock has no gradient of bicubic resizing in 16 bits, for one
        truth = trained(cell._replace(policy="float32", xla=False), want[1])
        ours, stock = apart(cell, got, truth), apart(cell, want, truth)
        if 4 * ours < stock:
            return ["stock fails", "it is %.2g times the bound from what float32 gives, tfuse %.2g" % (stock, ours)]
    return ["right" if far <= 1 else "different", "%.2g times the bound" % far]


def said(error):
    """An error in a line: its last words say most, but for the place in a graph."""
    text = re.sub(r"\s+", " ", str(error).partition("Stack trace for op")[0])
    return "%s: %s" % (type(error).__name__, text if len(text) < 300 else text[:120] + " … " + text[-170:])


def work(names, as_on_a_gpu):
    """What a process does: the cells with these names; tells of each what was begun and what came out, a line of JSON each."""
    import keras
    import tensorflow as tf

    import tfuse
    from tfuse._core import _library

    tf.config.experimental.enable_tensor_float_32_execution(False)
    if as_on_a_gpu:
        _library.without_gpu = lambda: False
    known = {name_of(cell): cell for cell in cells()}
    tell = lambda *line: print(json.dumps(line), flush=True)
    for name in names:
        tell(name, *result_of(known[name], tfuse.enabled, lambda what: tell(name, "begun", what)))
        keras.backend.clear_session()


# ---- all cells ----


def environment():
    path = [str(pathlib.Path(__file__).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    found = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true", "TF_ENABLE_ONEDNN_OPTS": "0", **os.environ,
             "KERAS_BACKEND": "tensorflow", "PYTHONPATH": os.pathsep.join(path)}
    if not os.path.exists("/dev/nvidia0"):  # LLVM's passes take most of the time, and are not what is tested
        found.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    return found


class Process:
    """Runs cells one after the other. What it leaves when it ends half-way is for another one."""

    def __init__(self, names, options, folder):
        self._file = tempfile.NamedTemporaryFile("w+", dir=folder, delete=False)
        self._log = open(self._file.name + ".log", "w+")
        command = [sys.executable, __file__, "--work", json.dumps(names), *["--as-on-a-gpu"] * options.as_on_a_gpu]
        self._process = subprocess.Popen(command, stdout=self._file, stderr=self._log, env=environment())
        self._left, self._limit, self._read, self._begun, self._since = list(names), options.limit, 0, None, time.monotonic()

    def results(self):
        """(name, kind, why) that are new; and what is left to run by another process, or None while this one runs."""
        ended, found = self._process.poll() is not None, []
        hangs = not ended and time.monotonic() - self._since > self._limit
        if hangs:
            self.stop()
            ended = True
        with open(self._file.name) as file:
            file.seek(self._read)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break
                self._read, self._since = self._read + len(line.encode()), time.monotonic()
                name, kind, why = json.loads(line)
                if kind == "begun":
                    self._begun = why
                else:
                    found.append((name, kind, why))
                    self._left.remove(name)
                    self._begun = None
        if ended and self._left:
            self._log.seek(0)
            why = "the process %s: %s" % ("took more than %.0f s" % self._limit if hangs else "ended with status %d" %
                                          self._process.returncode, self._log.read()[-1000:].strip())
            if not self._read:
                print("keras_layers: before its first cell, " + why, file=sys.stderr)
                sys.exit(2)
            kind = "stock fails" if self._begun == "stock" else "broken"
            found.append((self._left.pop(0), kind, re.sub(r"\s+", " ", why)))
        return found, self._left if ended else None

    def stop(self):
        self._process.kill()
        self._process.wait()


def sweep(names, options):
    """{name: [kind, why]}."""
    results, count = {}, min(options.jobs, len(names))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        parts = max(count, min(4 * count, len(names) // 10))  # starting TensorFlow takes as long as two cells
        waiting, running = [names[i::parts] for i in range(parts)], []
        stack.callback(lambda: [process.stop() for process in running])
        while waiting or running:
            while waiting and len(running) < count:
                if part := waiting.pop(0):
                    running.append(Process(part, options, folder))
            time.sleep(0.2)
            for process in list(running):
                found, left = process.results()
                results.update({name: [kind, why] for name, kind, why in found})
                for name, kind, why in found:
                    if kind in ("broken", "different"):
                        print("%s: %s: %s" % (kind, name, why), file=sys.stderr, flush=True)
                if left is not None:
                    running.remove(process)
                    waiting.insert(0, left)
                if found:
                    print("keras_layers: %d of %d" % (len(results), len(names)), file=sys.stderr, flush=True)
    return results


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="PATTERN", help="cells whose names have it; may be given again")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--list", action="store_true", help="print the names of the cells, and run none")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write {cell: [kind, why]}")
    parser.add_argument("--limit", type=float, default=600, help="seconds, after which a cell hangs (600)")
    parser.add_argument("--as-on-a-gpu", action="store_true", help="tfuse also serves what it leaves to Keras without a GPU")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        return work(json.loads(options.work), options.as_on_a_gpu)
    names = [name for name in map(name_of, cells()) if any(re.search(p, name) for p in options.only or [""])]
    if options.list or not names:
        print(*names, sep="\n")
        return 0 if names else 2
    begin, results = time.monotonic(), sweep(names, options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    count = collections.Counter(kind for kind, _ in results.values())
    others = ["%s: %s: %s" % (results[name][0], name, results[name][1]) for name in names if results[name][0] != "right"]
    print(*others, "%.0f s" % (time.monotonic() - begin), ", ".join("%d %s" % (count[kind], kind) for kind in KINDS), sep="\n")
    return 1 if count["broken"] + count["different"] else 0 if count["right"] else 2


if __name__ == "__main__":
    sys.exit(main())
