"""Measures GPT-2 in every mode, each in a process of its own, and writes it down, as a table and as a plot.

  python examples/compare.py                       # measure here: benchmarks/gpt2_<GPU>.json and .png, README.md
  python examples/compare.py --table FILE.json     # print the table of a record; --write puts it into README.md

The rows of PyTorch are measured where it is installed.
"""
import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
TORCH = ROOT / "tools" / "gpt2_torch.py"
SHAPES = [(16, 1024), (4, 4096)]
# What a row is called, its script, its mode, its colour.
ROWS = {
    "Keras": (HERE / "gpt2.py", "stock", "#c0c0c0"),
    "Keras, XLA": (HERE / "gpt2.py", "xla", "#8fb3d9"),
    "PyTorch": (TORCH, "eager", "#b9ddb6"),
    "PyTorch, compiled": (TORCH, "compile", "#7fbf7b"),
    "Keras with tfuse": (HERE / "gpt2.py", "tfuse", "#d95f02"),
    "Keras with tfuse, XLA": (HERE / "gpt2.py", "tfuse+xla", "#a63603"),
}
# A process imports what takes long, then waits for its turn, so that one measures while the next gets ready.
READY = ("import os, runpy, sys; %s; sys.argv = sys.argv[1:]; sys.path.insert(0, os.path.dirname(sys.argv[0])); "
         "sys.stdin.readline() or sys.exit(1); runpy.run_path(sys.argv[0], run_name='__main__')")


# ---- measuring ----


def prepare(script, mode, shape, others, output):
    """Starts a process that will measure when told to."""
    imports = "import torch" if script == TORCH else "import keras, tensorflow, tfuse"
    arguments = ["--mode", mode, "--batch", shape[0], "--length", shape[1], "--json", output, *others]
    return subprocess.Popen([sys.executable, "-c", READY % imports, str(script), *map(str, arguments)], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ})


def measure(names, shapes, others, limit, when):
    """Yields a row for each; one that fails says why. `when` goes into all of them."""
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "measured.json")
        jobs = [(name, shape) for shape in shapes for name in names]
        start = lambda job: prepare(*ROWS[job[0]][:2], job[1], others, output)
        waiting = start(jobs[0])
        for i, (name, (batch, length)) in enumerate(jobs):
            process, waiting = waiting, start(jobs[i + 1]) if i + 1 < len(jobs) else None
            try:
                text, _ = process.communicate("go\n", timeout=limit)
            except subprocess.TimeoutExpired:
                process.kill()
                text = process.communicate()[0] + "\nstopped after %d s" % limit
            row = {"name": name, "batch": batch, "length": length, **when}
            if process.returncode == 0 and os.path.exists(output):
                found = json.loads(pathlib.Path(output).read_text())
                row.update({key: found[key] for key in ("ms_per_step", "tokens_per_s", "peak_GB")}, loss=found["losses"][-1])
                os.remove(output)
            else:
                row["failed"] = text.strip().splitlines()[-1][:200] if text.strip() else "status %d" % process.returncode
                print(text[-3000:], file=sys.stderr)
            print("%-22s %2d x %4d  %s" % (name, batch, length, row.get("failed") or "%8.2f ms  %6.2f GB  loss %.4f" % (
                row["ms_per_step"], row["peak_GB"], row["loss"])), flush=True)
            yield row


def about():
    """What the record was made with."""
    import tensorflow as tf
    import keras
    from tfuse._tools import _bench
    from tfuse import _version
    gpus = tf.config.list_physical_devices("GPU")
    name = tf.config.experimental.get_device_details(gpus[0])["device_name"] if gpus else "%d-core CPU" % os.cpu_count()
    torch = importlib.metadata.version("torch") if importlib.util.find_spec("torch") else None
    return {"hardware": name, "date": datetime.date.today().isoformat(), "commit": _bench._commit(),
            "tfuse": _version.__version__, "tensorflow": tf.__version__, "keras": keras.__version__, "pytorch": torch}


# ---- showing ----


def table(record):
    versions = [(name, record[name.lower()]) for name in ("TensorFlow", "Keras", "PyTorch")]
    versions = "".join(", %s %s" % pair for pair in versions if pair[1])
    made = list(dict.fromkeys("%s (%s)" % (row["commit"], row["date"]) for row in record["rows"]))
    lines = ["%s%s, commit %s." % (record["hardware"], versions, ", ".join(made)), "",
             "| tokens a step | | ms/step | tokens/s | peak memory |", "|---|---|---|---|---|"]
    fastest = {}
    for row in record["rows"]:
        if "failed" not in row:
            key = row["batch"], row["length"]
            fastest[key] = min(fastest.get(key, row), row, key=lambda r: r["ms_per_step"])
    for row in record["rows"]:
        shape = "%d × %d" % (row["batch"], row["length"])
        if "failed" in row:
            lines.append("| %s | %s | failed | | |" % (shape, row["name"]))
            continue
        mark = "**" if row is fastest[row["batch"], row["length"]] else ""
        speed = format(round(row["tokens_per_s"], -2), ",.0f")
        lines.append("| %s | %s | %s%.1f%s | %s | %.1f GB |" % (
            shape, row["name"], mark, row["ms_per_step"], mark, speed, row["peak_GB"]))
    return "\n".join(lines)


def plot(record, path):
    """Tokens a second and peak memory, a bar for each row."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from tfuse._tools import _bench_plots
    shapes = list(dict.fromkeys((r["batch"], r["length"]) for r in record["rows"]))
    figure, axes = pyplot.subplots(2, len(shapes), figsize=(6.5 * len(shapes), 6), squeeze=False)
    for column, shape in enumerate(shapes):
        rows = [r for r in record["rows"] if (r["batch"], r["length"]) == shape and "failed" not in r][::-1]
        for axis, key, text in zip(axes[:, column], ("tokens_per_s", "peak_GB"), ("tokens a second", "peak memory, GB")):
            bars = axis.barh([r["name"] for r in rows], [r[key] for r in rows], color=[ROWS[r["name"]][2] for r in rows])
            digits = ",.0f" if key == "tokens_per_s" else ".1f"
            axis.bar_label(bars, [format(r[key], digits) for r in rows], padding=3, fontsize=8)
            axis.set_xlabel(text)
            axis.margins(x=0.15)
        axes[0, column].set_title("%d × %d tokens a step" % shape)
    figure.suptitle("GPT-2 124M in bfloat16: %(hardware)s, TensorFlow %(tensorflow)s" % record)
    figure.tight_layout()
    _bench_plots.save(figure, path)


def filled(text, record, image):
    """README.md's text with the record's table and plot between the markers."""
    shown = "%s\n\n![Tokens a second and memory of each](%s)" % (table(record), image)
    return re.sub(r"(<!-- gpt2 -->\n).*?(<!-- /gpt2 -->)", lambda m: m[1] + shown + "\n" + m[2], text, flags=re.S)


def show(record, path):
    """Draws the plot beside the record; of one in benchmarks/, README.md shows table and plot."""
    image = path.with_suffix(".png")
    plot(record, image)
    if path.resolve().parent == ROOT / "benchmarks":
        readme = HERE / "README.md"
        readme.write_text(filled(readme.read_text(), record, "../benchmarks/" + image.name))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", metavar="FILE", help="print the table of this record, and measure nothing")
    parser.add_argument("--write", action="store_true", help="with --table: draw the plot and write README.md too")
    parser.add_argument("--rows", default=",".join(mode for _, mode, _ in ROWS.values()), help="(%(default)s)")
    parser.add_argument("--shapes", default=",".join("%dx%d" % shape for shape in SHAPES), help="(%(default)s)")
    parser.add_argument("--limit", type=int, default=150, help="seconds that one process may take (150)")
    parser.add_argument("--out", metavar="FOLDER", default=ROOT / "benchmarks", type=pathlib.Path, help="of the record")
    parser.add_argument("rest", nargs="*", help="behind --: arguments for every process, as --layers 2")
    options = parser.parse_args()
    if options.table:
        path = pathlib.Path(options.table)
        record = json.loads(path.read_text())
        print(table(record))
        return show(record, path) if options.write else None
    names = [name for wanted in options.rows.split(",") for name, (script, mode, _) in ROWS.items()
             if mode == wanted and (script != TORCH or importlib.util.find_spec("torch"))]
    shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes.split(",")]
    about = about_in_a_process()
    when = {key: about.pop(key) for key in ("commit", "date")}
    options.out.mkdir(exist_ok=True)
    path = options.out / ("gpt2_%s.json" % re.sub(r"[^a-z0-9-]+", "_", about["hardware"].lower()))
    record = {**about, "rows": json.loads(path.read_text())["rows"] if path.exists() else []}
    for row in measure(names, shapes, ["--steps", "25", "--warmup", "5", *options.rest], options.limit, when):
        record["rows"] = with_row(record["rows"], row)
        aside = path.with_suffix(".tmp")  # whatever is cut short, what is measured is not lost
        aside.write_text(json.dumps(record, indent=1) + "\n")
        os.replace(aside, path)
    print("\n%s\n\nwritten: %s" % (table(record), path))
    show(record, path)


def with_row(rows, new):
    """Rows that were not measured again stay, with the commit that they were measured at."""
    key = lambda row: (-row["batch"], row["length"], list(ROWS).index(row["name"]))
    return sorted([row for row in rows if key(row) != key(new)] + [new], key=key)


def about_in_a_process():
    """TensorFlow must not hold the GPU in this process while others are measured."""
    code = "import json, sys; sys.path.insert(0, sys.argv[1]); import compare; print(json.dumps(compare.about()))"
    text = subprocess.check_output([sys.executable, "-c", code, str(HERE)], text=True,
                                   env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ})
    return json.loads(text.strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
