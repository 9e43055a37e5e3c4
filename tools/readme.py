"""Writes the generated parts of README.md and docs/, between their markers; --check only says whether they are up to date.

  ./run python tools/readme.py [--check]
"""
import itertools
import json
import pathlib
import re
import sys

from tfuse._tools import _bench_table, _ops

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
from workloads import WORKLOADS  # noqa: E402

# What the README shows of benchmarks/nvidia_h200.json, in bfloat16: in words, and the row of it.
HEADLINES = [
    ("attention, causal, 4096 steps", {"op": "attention, speed", "is_causal": True, "shape": [4, 4096, 4096, 16, 16, 128]}),
    ("gelu(x · kernel + bias)", {"op": "linear, speed", "activation": "gelu", "shape": [8192, 4096, 16384]}),
    ("dropout, add, RMS norm", {"op": "rms_norm, residual and dropout", "shape": [16384, 8192]}),
    ("batch norm, add, relu", {"op": "batch_norm", "activation": "relu", "shape": [256, 56, 56, 256]}),
    ("rotary embedding", {"op": "rope", "pairing": None, "shape": [4, 4096, 64, 128]}),
    ("cross entropy of 50,304 classes", {"op": "sparse_cross_entropy", "shape": [8192, 50304]}),
    ("the same, with its matrix product", {"op": "linear_cross_entropy, speed", "shape": [16384, 768, 50304]}),
]


def record(name):
    return json.loads((ROOT / "benchmarks" / name).read_text())


def headline():
    """What the README shows: models with tfuse.enable() alone, what GPT-2 gains beside stock Keras, the times of some ops."""
    return "\n\n".join([models(record("models_nvidia_h200.json"), record("vision_nvidia_h200.json")),
                        gpt2(record("gpt2_nvidia_h200.json")), times(record("nvidia_h200.json"))])


def models(*saved):
    """A sentence, and a table of a model in each line: those that were measured in all of these ways."""
    names = rival, *ours = "PyTorch, compiled", "Keras with tfuse", "Keras with tfuse, XLA"
    rows = {}
    for row in itertools.chain(*(some["rows"] for some in saved)):
        rows.setdefault((row["model"], row["step"]), {})[row["name"]] = row
    rows = {model: of for model, of in rows.items() if all(name in of for name in names)}
    pairs = [(of[rival], min((of[name] for name in ours), key=lambda row: row["ms_per_step"])) for of in rows.values()]
    times = [theirs["ms_per_step"] / own["ms_per_step"] for theirs, own in pairs]
    no_more = all(own["peak_GB"] <= theirs["peak_GB"] for theirs, own in pairs)
    lines = ["With `tfuse.enable()` and nothing else, %d models written in plain Keras and KerasHub train %.2f to %.2f times" % (
                 len(rows), min(times), max(times)),
             "as fast on an %s as their twins in compiled PyTorch%s:" % (saved[0]["hardware"], ", and in no more memory" * no_more), "",
             "| a training step | %s |" % " | ".join(names), "|---|" + "---|" * len(names)]
    for (model, step), of in rows.items():
        best = min(of[name]["ms_per_step"] for name in names)
        cells = ["%s ms, %.1f GB" % (_best(of[name]["ms_per_step"], best, "%.1f"), of[name]["peak_GB"]) for name in names]
        lines.append("| %s, %s | %s |" % (WORKLOADS[model].title, step, " | ".join(cells)))
    return "\n".join(lines)


def gpt2(saved):
    """A sentence of the first size."""
    first = {row["name"]: row for row in saved["rows"] if row["batch"] == saved["rows"][0]["batch"]}
    ours = min((row for name, row in first.items() if "tfuse" in name), key=lambda row: row["ms_per_step"])
    times = lambda name: first[name]["ms_per_step"] / ours["ms_per_step"]
    return ("GPT-2 that also calls tfuse by name in five places, the loss and the optimizer among them, takes %.1f ms: %.1f\n"
            "times as fast as stock Keras and %.2f times as fast as Keras with XLA, in %.0f GB of memory instead of %.0f. See\n"
            "[examples](examples/README.md) for all of this." % (
                ours["ms_per_step"], times("Keras"), times("Keras, XLA"), ours["peak_GB"], first["Keras"]["peak_GB"]))


def times(saved):
    lines = ["| forward and backward, milliseconds | " + " | ".join(["tfuse", *_bench_table.RIVALS]) + " |",
             "|---|" + "---|" * (1 + len(_bench_table.RIVALS))]
    for text, wanted in HEADLINES:
        wanted = {**wanted, "dtype": "bfloat16", "direction": "backward"}  # backward rows have the time of both
        of = next(row["both_ms"] for row in saved["rows"] if all(row.get(key) == value for key, value in wanted.items()))
        shown = [of[name] for name in ("tfuse", *_bench_table.RIVALS)]
        cells = [_best(value, min(shown), "%.2f") for value in shown]
        lines.append("| %s | %s |" % (text, " | ".join(cells)))
    return "\n".join(lines)


def _best(value, best, text):
    return ("**%s**" if text % value == text % best else "%s") % (text % value)


# Files, and what commands print between the markers <!-- name --> and <!-- /name --> in each.
PARTS = {
    "README.md": {"headline": headline},
    "docs/benchmarks.md": {"bench": lambda: _bench_table.page(record("nvidia_h200.json"), "../benchmarks/nvidia_h200_")},
    "docs/ops.md": {family: lambda family=family: _ops.markdown(family) for family in _ops.FAMILIES},
}


def filled(name):
    """The text of a file as it should be."""
    text = (ROOT / name).read_text()
    for part, make in PARTS[name].items():
        pieces = re.split(r"(<!-- /?%s -->\n)" % re.escape(part), text)
        if len(pieces) != 5:
            raise ValueError("%s must have the markers <!-- %s --> and <!-- /%s --> once, each on a line of its own" % (
                name, part, part))
        text = "".join([*pieces[:2], make(), "\n", *pieces[3:]])
    return text


def main():
    for name in PARTS:
        text = filled(name)
        if text != (ROOT / name).read_text():
            if "--check" in sys.argv:
                return name + ": run ./run python tools/readme.py"
            (ROOT / name).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
