"""Measures training in every mode, each in a process of its own, and writes it down, as a table and as a plot.

  python examples/compare.py                       # GPT-2 of gpt2.py: benchmarks/gpt2_<GPU>.json and .png, README.md
  python examples/compare.py --models transformers # those of models.py: benchmarks/models_<GPU>.json and so on
  python examples/compare.py --models vit,bert --rows stock,tfuse     # some of it; the other rows of the record stay
  python examples/compare.py --models vision       # its convolutional networks: benchmarks/vision_<GPU>.json and so on
  python examples/compare.py --models gpt2,resnet50 --batches 1,8     # in batches of other sizes: rows of their own
  python examples/compare.py --table FILE.json     # print the table of a record; --write puts it into README.md

The models of models.py are trained by fit(), and beside it by the bare step; --evaluate adds evaluate() and predict(). The
rows of PyTorch are measured where it is installed.
"""
import argparse
import datetime
import importlib.metadata
import importlib.util
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from records import ROWS, filled, group, plot, table, with_row
from workloads import WORKLOADS, keep

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
SCRIPTS = {  # of each record, by framework
    "gpt2": {"keras": HERE / "gpt2.py", "torch": ROOT / "tools" / "gpt2_torch.py"},
    **dict.fromkeys(["models", "vision"], {"keras": HERE / "models.py", "torch": HERE / "models_torch.py"}),
}
IMPORTS = {"keras": "import keras, tensorflow, tfuse", "torch": "import torch",
           "kerashub": "import keras_hub, tfuse", "transformers": "import torch, transformers"}
SHAPES = [(16, 1024), (4, 4096)]
GROUPS = {"transformers": "models", "vision": "vision"}  # of models, and the record that each is in
# A process imports what takes long, then waits for its turn, so that one measures while the next gets ready.
READY = ("import os, runpy, sys; %s; sys.argv = sys.argv[1:]; sys.path.insert(0, os.path.dirname(sys.argv[0])); "
         "sys.stdin.readline() or sys.exit(1); runpy.run_path(sys.argv[0], run_name='__main__')")
# What goes into a row, of what a script has measured.
MEASURED = ("fit_ms", "ms_per_step", "evaluate_ms", "evaluate_step_ms", "predict_ms", "predict_step_ms", "tokens_per_s",
            "images_per_s", "peak_GB", "step_GB", "first_s")

# ---- measuring ----


def gpt2_jobs(names, shapes, rest):
    """(row, framework, arguments) of what is to be measured: what the row is known by, and what its script is told."""
    for batch, length in shapes:
        for name in names:
            arguments = ["--mode", ROWS[name][1], "--batch", batch, "--length", length, "--steps", 25, "--warmup", 5, *rest]
            yield {"name": name, "batch": batch, "length": length}, ROWS[name][0], arguments


def model_jobs(names, models, batches, small, evaluate, rest):
    """`batches` are sizes, None for a model's own."""
    for model, batch, name in itertools.product(models, batches, names):
        framework, mode, _ = ROWS[name]
        arguments = ["--mode", mode, "--model", model, *(["--batch", batch] if batch else []), *["--small"] * small,
                     *["--evaluate"] * (evaluate and framework == "keras"), *rest]
        row = {"model": model, "step": WORKLOADS[model].step(small, batch=batch),
               "batch": WORKLOADS[model].sizes(small, batch=batch).batch, "name": name}
        yield row, framework, arguments


def prepare(script, framework, arguments):
    """Starts a process that will measure when told to."""
    return subprocess.Popen([sys.executable, "-c", READY % IMPORTS[framework], str(script), *map(str, arguments)], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ})


def finished(scripts, jobs, limit):
    """Runs the jobs one after the other. Yields of each its row, what its script has written, and why it has failed. A script
    that was stopped may have written a part."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder, "measured.json")
        start = lambda job: prepare(scripts[job[1]], job[1], [*job[2], "--json", output])
        process, waiting = None, start(jobs[0])
        try:
            for i, (row, _, _) in enumerate(jobs):
                process, waiting = waiting, start(jobs[i + 1]) if i + 1 < len(jobs) else None
                try:
                    text, _ = process.communicate("go\n", timeout=limit)
                    why = reason(text) or "status %d" % process.returncode
                except subprocess.TimeoutExpired:
                    process.kill()
                    text, why = process.communicate()[0], "stopped after %d s" % limit
                failed = process.returncode != 0 or not output.exists()
                if failed:
                    print(text[-3000:], file=sys.stderr)
                yield row, json.loads(output.read_text()) if output.exists() else None, why[:200] if failed else None
                output.unlink(missing_ok=True)
        finally:  # whatever ends this one early: none goes on by itself, beside what is measured next
            for left in process, waiting:
                if left is not None:
                    left.kill()
                    left.wait()


def measure(scripts, jobs, limit, when):
    """Yields a row for each job; one that fails says why, and one that was measured in part says why there is no more of it.
    `when` goes into all of them."""
    for row, found, why in finished(scripts, jobs, limit):
        row = {**row, **when}
        if found:
            row.update({key: found[key] for key in MEASURED if key in found}, loss=found["losses"][-1])
            times = ["%8.2f ms%s" % (row[key], text) for key, text in (("fit_ms", " by fit()"), ("ms_per_step", " a step"))
                     if key in row]
            shown = "  ".join([*times, "%6.2f GB  loss %.4f at first, %.4f at last" % (
                row["peak_GB"], found["losses"][0], row["loss"])])
            if why:
                row["incomplete"] = why
                shown += "; then " + why
        else:
            row["failed"] = shown = why
        print("%-32s %-22s %s" % (group(row), row["name"], shown), flush=True)
        yield row


def reason(text):
    """Of what a process has printed that failed: the last line that names an error, or the last line."""
    lines = text.strip().splitlines()
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (errors or lines or [""])[-1]


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def about():
    """What the record was made with."""
    import tensorflow as tf
    import keras
    from tfuse._tools import _bench
    from tfuse import _version
    gpus = tf.config.list_physical_devices("GPU")
    name = tf.config.experimental.get_device_details(gpus[0])["device_name"] if gpus else "%d-core CPU" % os.cpu_count()
    return {"hardware": name, "date": datetime.date.today().isoformat(), "commit": _bench._commit(),
            "tfuse": _version.__version__, "tensorflow": tf.__version__, "keras": keras.__version__,
            "kerashub": version("keras-hub"), "pytorch": version("torch"), "transformers": version("transformers"),
            "torchvision": version("torchvision")}


def in_files(hardware):
    return re.sub(r"[^a-z0-9-]+", "_", hardware.lower())


# ---- showing ----


def show(record, path, plot=plot, filled=filled):
    """Draws the plot beside the record; of one in benchmarks/, README.md shows table and plot."""
    image = path.with_suffix(".png")
    plot(record, image)
    if path.resolve().parent == ROOT / "benchmarks":
        readme = HERE / "README.md"
        readme.write_text(filled(readme.read_text(), record, "../benchmarks/" + image.name))


def names_of(models, parser):
    """What --models names: models and groups of them."""
    groups = {**{name: [name] for name in WORKLOADS}, "all": list(WORKLOADS)}
    for group, kind in GROUPS.items():
        groups[group] = [name for name, workload in WORKLOADS.items() if workload.record == kind]
    for name in models.split(","):
        if name not in groups:
            parser.error("there is no model %s: the models are %s" % (name, ", ".join(WORKLOADS)))
    return [model for name in models.split(",") for model in groups[name]]


def rows_of(modes, parser):
    """The names of the rows that --rows asks for; those of PyTorch where it is installed."""
    known = {mode: name for name, (_, mode, _) in ROWS.items()}
    modes = ["compile" if mode == "torch" else mode for mode in modes.split(",")]
    for mode in modes:
        if mode not in known:
            parser.error("there is no row %s: the rows are %s, and torch, which is compile" % (mode, ", ".join(known)))
    return [known[mode] for mode in modes if ROWS[known[mode]][0] != "torch" or importlib.util.find_spec("torch")]


def batches_of(batches, parser):
    """The sizes that --batches asks for, with None for each model's own."""
    for batch in batches.split(","):
        if batch != "full" and not (batch.isdigit() and int(batch)):
            parser.error("--batches are whole numbers, and full, which is each model's own: not %s" % batch)
    return [None if batch == "full" else int(batch) for batch in batches.split(",")]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", metavar="FILE", help="print the table of this record, and measure nothing")
    parser.add_argument("--write", action="store_true", help="with --table: draw the plot and write README.md too")
    parser.add_argument("--models", metavar="NAMES", help="measure these models: %s, or one of the groups %s,all" % (
        ",".join(WORKLOADS), ",".join(GROUPS)))
    parser.add_argument("--small", action="store_true", help="with --models and --out: sizes that a CPU trains in seconds")
    parser.add_argument("--batches", metavar="SIZES", default="full",
                        help="with --models: of which sizes, as 1,8,full; each model's own is full (full)")
    parser.add_argument("--evaluate", action="store_true", help="with --models: measure evaluate() and predict() of Keras, too")
    parser.add_argument("--rows", default=",".join(mode for _, mode, _ in ROWS.values()), help="(%(default)s)")
    parser.add_argument("--shapes", default=",".join("%dx%d" % shape for shape in SHAPES), help="of GPT-2 (%(default)s)")
    parser.add_argument("--limit", type=int, default=240, help="seconds that one process may take (240)")
    parser.add_argument("--out", metavar="FOLDER", default=ROOT / "benchmarks", type=pathlib.Path, help="of the record")
    parser.add_argument("rest", nargs="*", help="behind --: arguments for every process, as --steps 8")
    options = parser.parse_args()
    options.models = names_of(options.models, parser) if options.models else []
    options.rows = rows_of(options.rows, parser)
    options.batches = batches_of(options.batches, parser)
    if options.small and (not options.models or options.out.resolve() == ROOT / "benchmarks"):
        parser.error("--small goes with --models, and with --out: its times belong into no record of ours")
    return options


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, so that what was started is ended
    options = parse()
    if options.table:
        path = pathlib.Path(options.table)
        record = json.loads(path.read_text())
        print(table(record))
        return show(record, path) if options.write else None
    about = about_in_a_process()
    when = {key: about.pop(key) for key in ("commit", "date")}
    options.out.mkdir(exist_ok=True)
    for kind, jobs in jobs_of(options).items():
        path = options.out / ("%s_%s.json" % (kind, in_files(about["hardware"])))
        record = {**about, "rows": json.loads(path.read_text())["rows"] if path.exists() else []}
        for row in measure(SCRIPTS[kind], jobs, options.limit, when):
            record["rows"] = with_row(record["rows"], row)  # after each: whatever is cut short, what is measured is not lost
            keep(path, json.dumps(record, indent=1) + "\n")
        print("\n%s\n\nwritten: %s" % (table(record), path))
        show(record, path)


def jobs_of(options):
    """{the kind of a record: what is to be measured for it}."""
    if not options.models:
        shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes.split(",")]
        return {"gpt2": list(gpt2_jobs(options.rows, shapes, options.rest))}
    of = lambda kind: [model for model in options.models if WORKLOADS[model].record == kind]
    return {kind: list(model_jobs(options.rows, of(kind), options.batches, options.small, options.evaluate, options.rest))
            for kind in GROUPS.values() if of(kind)}


def about_in_a_process():
    """TensorFlow must not hold the GPU in this process while others are measured."""
    code = "import json, sys; sys.path.insert(0, sys.argv[1]); import compare; print(json.dumps(compare.about()))"
    text = subprocess.check_output([sys.executable, "-c", code, str(HERE)], text=True,
                                   env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ})
    return json.loads(text.strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
