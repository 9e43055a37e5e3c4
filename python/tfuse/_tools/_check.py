"""python -m tfuse check MODEL: what of a model is tfuse's, whether it runs here, and how fast."""

import argparse
import collections
import pathlib
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfuse._tools import _export, _files, _model, _numbers, _saved_model

HELP = """Looks at a model as a server would run it: which of its ops are tfuse's, whether this machine has all of them, and how long a
run takes, by the C API that the server uses and in Python, from NumPy's arrays to NumPy's arrays, and whether their bits are the
same. Inputs are random. MODEL is a .keras file, or the folder of a preset, of a SavedModel, or of a model that export wrote."""


def generates(folder):
    """Whether `export --generate` wrote a SavedModel, whose signatures are steps, which mean nothing one by one."""
    names = {name for graph in _saved_model.graphs(folder) for name in graph.signature_def}
    return "about" in names and any(name.startswith("decode_") for name in names)


def ops_in(folder):
    """{name of an op: how often it is in a SavedModel}."""
    return collections.Counter(_saved_model.ops(folder))


def values(inputs, rows, size):
    """Random numbers for each input, of which those of integers are 0 and 1, as ids of tokens and masks may all be; with open
    sizes chosen: the first is that of the batch."""
    made, generator = {}, np.random.default_rng(0)
    for name, spec in inputs.items():
        shape = [(rows if i == 0 else size) if n is None else n for i, n in enumerate(spec.shape.as_list() if spec.shape.rank else [])]
        numbers = generator.random(shape) if spec.dtype.is_floating else generator.integers(0, 2, shape)
        made[name] = np.full(shape, b"", object) if spec.dtype == tf.string else numbers.astype(spec.dtype.as_numpy_dtype)
    return made


def same(a, b):
    """Whether arrays have the same bits, or the same strings."""
    return a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()


def timed(run, seconds):
    """Milliseconds of runs, sorted, after one that does not count."""
    run()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or not times:
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    return sorted(times)


def report(folder, batches, size, seconds, signature=None, say=print):
    """Says it; whether all is well."""
    ops = ops_in(folder)
    ours = {name: count for name, count in sorted(ops.items()) if name.startswith("Tfuse>")}
    named = ": " + ", ".join("%d %s" % (n, name[6:]) for name, n in ours.items()) if ours else ""
    say("of %d nodes in its graphs, which also load and save it, tfuse's are %d%s" % (sum(ops.values()), sum(ours.values()), named))
    missing = sorted(name for name in ops if op_def_registry.get(name) is None)
    if missing:
        say("not in this TensorFlow with this tfuse: %s: export the model anew, or load what has them" % ", ".join(missing))
        return False
    if generates(folder):
        say("it generates token by token, so it is not timed here: python -m tfuse serve runs each kind of step while it loads")
        return True
    _saved_model.check(folder)
    model = _model.Model(folder, signature)
    function = _files.loaded(str(folder), tf.saved_model.load).signatures[model.name]
    say("by TensorFlow %s, on %s" % (tf.__version__, "a GPU" if tf.config.list_physical_devices("GPU") else "the CPU"))
    for rows in batches:
        in_python = lambda: {name: value.numpy() for name, value in function(**{k: tf.constant(v) for k, v in given.items()}).items()}
        try:
            given = values(model.inputs, rows, size)
            outputs = in_python()
        except (tf.errors.OpError, ValueError, MemoryError) as error:
            say("it fails with a batch of %d and open sizes of %d: %s" % (rows, size, _files.first_line(error)))
            return False
        others = [name for name, value in model.run(given).items() if not same(value, outputs[name])]
        served, python = timed(lambda: model.run(given), seconds), timed(in_python, seconds)
        at = lambda times, share: times[min(int(share * len(times)), len(times) - 1)]
        say("batch %d: %.2f ms (99%% within %.2f), %.0f rows a second; in Python %.2f ms, and %s" % (
            rows, at(served, 0.5), at(served, 0.99), 1e3 * rows / at(served, 0.5), at(python, 0.5),
            "other bits in " + ", ".join(others) if others else "the same bits"))
    model.close()
    return True


def counts(text):
    return [_numbers.positive(part) for part in text.split(",")]


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse check", description=HELP,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="a .keras file, or the folder of a preset or of a SavedModel")
    parser.add_argument("--signature", metavar="NAME", help="what is run; default: serving_default, or the only one")
    parser.add_argument("--stock", action="store_true", help="of a model of Keras: without tfuse's ops")
    parser.add_argument("--batches", type=counts, default="1,8,64", metavar="N,N,…", help="rows of a run (%(default)s)")
    parser.add_argument("--size", type=_numbers.positive, default=128, metavar="N", help="for other sizes that the model leaves open (%(default)s)")
    parser.add_argument("--seconds", type=_numbers.seconds, default=1, help="for each measurement (%(default)s)")
    chosen = parser.parse_args(arguments)
    path = _export.in_model_folder(pathlib.Path(chosen.model))
    try:
        with tempfile.TemporaryDirectory() as temporary:
            if not _saved_model.is_one(path):
                folder = pathlib.Path(temporary) / "model"
                _export.write_saved_model(path, folder, chosen.stock)
                path = folder
            return 0 if report(path, chosen.batches, chosen.size, chosen.seconds, chosen.signature) else 1
    except _model.NotThere as error:
        print(error, file=sys.stderr)
        return 1
