"""Shows what CUDA graphs give inside jit_compile=True: how many of tfuse's calls XLA puts into them, and the time of a step.

  python examples/graphs.py                     # benchmarks/graphs_<GPU>.json, README.md
  python examples/graphs.py --table FILE.json   # print the table of a record; --write puts it into README.md

XLA calls its CUDA graphs command buffers. It writes down what it compiles where XLA_FLAGS asks for that, and which calls are
inside a command buffer is read from there. Each row is measured in a process of its own, once with TFUSE_GRAPHS=1 and once
with TFUSE_GRAPHS=0, which keeps tfuse's calls out of graphs; what XLA makes itself is in graphs in both. docs/design.md tells
how calls are captured, and which are not.
"""
import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from compare import HERE, ROOT, about_in_a_process, in_files, keep
from records import between, line, made_with

SMALL = {"length": 64, "width": 512, "layers": 6, "heads": 8, "vocabulary": 1000}

# ---- what is measured: functions that return a step, and float() of what that returns waits for it ----


def forward():
    """A small model, which serves one sequence: launches decide how long it takes."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers
    tokens = keras.Input([SMALL["length"]], batch_size=1, dtype="int64")
    x = layers.Embedding(SMALL["vocabulary"], SMALL["width"])(tokens)
    for _ in range(SMALL["layers"]):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(SMALL["heads"], SMALL["width"] // SMALL["heads"])(y, y, use_causal_mask=True)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(SMALL["width"])(layers.Dense(4 * SMALL["width"], activation="gelu")(y))
    model = keras.Model(tokens, layers.Dense(SMALL["vocabulary"])(layers.LayerNormalization()(x)))
    batch = tf.constant(np.random.default_rng(0).integers(SMALL["vocabulary"], size=(1, SMALL["length"])))
    call = tf.function(lambda t: tf.reduce_mean(tf.cast(model(t, training=False), tf.float32)), jit_compile=True)
    return lambda: call(batch)


def training():
    import models
    import workloads
    workload = workloads.WORKLOADS["gpt2"]
    sizes = workload.sizes()
    return models.train_function(models.build("gpt2", sizes), [models.on_the_device(workload.batch(sizes))], True)


STEPS = {"a model of %(layers)d layers, 1 × %(length)d tokens, forward" % SMALL: (forward, 200),
         "GPT-2 124M, 16 × 1024 tokens, training": (training, 8)}


def measured(name):
    """Milliseconds of a step: the median of some groups of them."""
    import models
    models.set_up("tfuse", "mixed_bfloat16")
    make, count = STEPS[name]
    step, found = make(), []
    for _ in range(5):
        float(step())
    for _ in range(5):
        start = time.perf_counter()
        float([step() for _ in range(count)][-1])
        found.append((time.perf_counter() - start) / count * 1e3)
    return statistics.median(found)


# ---- what XLA has compiled ----


def calls_in(folder):
    """(command buffers, custom calls inside of them, and outside), of all that was compiled. What is inside is indented.

    A module that XLA finds nothing in to capture has only the list from before its passes.
    """
    lists = {path.name.split(".thunk_sequence")[0]: path
             for pattern in ("*.thunk_sequence.txt", "*.thunk_sequence_after*") for path in pathlib.Path(folder).glob(pattern)}
    lines = [text for path in lists.values() for text in path.read_text().splitlines()]
    calls = [text for text in lines if "kCustomCall" in text]
    inside = sum(text.startswith(" ") for text in calls)
    return sum("kCommandBuffer" in text for text in lines), inside, len(calls) - inside


def row(name, graphs):
    with tempfile.TemporaryDirectory() as folder:
        flags = "%s --xla_dump_to=%s --xla_dump_hlo_as_text" % (os.environ.get("XLA_FLAGS", ""), folder)
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "XLA_FLAGS": flags, "TFUSE_GRAPHS": str(int(graphs))}
        text = subprocess.check_output([sys.executable, __file__, "--measure", name], env=environment, text=True)
        buffers, inside, outside = calls_in(folder)
    return {"name": name, "graphs": graphs, "ms": float(text.splitlines()[-1]), "buffers": buffers, "inside": inside,
            "outside": outside}


# ---- showing ----


def table(record):
    heads = ["a step of", "tfuse's calls", "graphs", "calls in graphs", "calls outside", "ms"]
    lines = [made_with(record, ["TensorFlow", "Keras"], record["rows"]), "", line(heads), "|" + "---|" * len(heads)]
    for r in record["rows"]:
        captured = "captured" if r["graphs"] else "not captured"
        lines.append(line([r["name"], captured, *map(str, (r["buffers"], r["inside"], r["outside"])), "%.2f" % r["ms"]]))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", metavar="FILE", help="print the table of this record, and measure nothing")
    parser.add_argument("--write", action="store_true", help="with --table: write README.md too")
    parser.add_argument("--out", metavar="FOLDER", default=ROOT / "benchmarks", type=pathlib.Path, help="of the record")
    parser.add_argument("--measure", metavar="NAME", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return print(measured(options.measure))
    if options.table:
        record = json.loads(pathlib.Path(options.table).read_text())
    else:
        about = about_in_a_process()
        when = {key: about.pop(key) for key in ("commit", "date")}
        path = options.out / ("graphs_%s.json" % in_files(about["hardware"]))
        options.out.mkdir(exist_ok=True)
        record = {**about, "rows": json.loads(path.read_text())["rows"] if path.exists() else []}
        for name, graphs in itertools.product(STEPS, (False, True)):
            others = [r for r in record["rows"] if (r["name"], r["graphs"]) != (name, graphs)]
            record["rows"] = [*others, {**row(name, graphs), **when}]
            keep(path, json.dumps(record, indent=1) + "\n")
    print(table(record))
    if options.write or not options.table and options.out.resolve() == ROOT / "benchmarks":
        readme = HERE / "README.md"
        readme.write_text(between(readme.read_text(), "graphs", table(record)))
    return None


if __name__ == "__main__":
    sys.exit(main())
