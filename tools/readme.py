"""Writes the generated parts of README.md and docs/, between their markers; --check only says whether they are up to date.

  ./run python tools/readme.py [--check]
"""
import json
import pathlib
import re
import sys

from tfuse._tools import _bench_table, _ops

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What the README shows of benchmarks/nvidia_h200.json, in bfloat16: in words, and the row of it.
HEADLINES = [
    ("attention, causal, 4096 steps", {"op": "attention, speed", "is_causal": True, "shape": [4, 4096, 4096, 16, 16, 128]}),
    ("gelu(x · kernel + bias)", {"op": "linear, speed", "activation": "gelu", "shape": [8192, 4096, 16384]}),
    ("silu(a) * b", {"op": "gated", "activation": "silu", "shape": [16384, 16384]}),
    ("layer norm", {"op": "layer_norm", "shape": [16384, 8192]}),
    ("dropout, add, RMS norm", {"op": "rms_norm, residual and dropout", "shape": [16384, 8192]}),
    ("rotary embedding", {"op": "rope", "pairing": None, "shape": [4, 4096, 64, 128]}),
    ("cross entropy of 50,304 classes", {"op": "sparse_cross_entropy", "shape": [8192, 50304]}),
    ("the same, with its matrix product", {"op": "linear_cross_entropy, speed", "shape": [16384, 768, 50304]}),
]


def record(name):
    return json.loads((ROOT / "benchmarks" / name).read_text())


def headline():
    """The README's two tables: GPT-2 trained by everyone, and the times of some ops."""
    return gpt2(record("gpt2_nvidia_h200.json")) + "\n\n" + times(record("nvidia_h200.json"))


def gpt2(saved):
    """A sentence of the first size, and a table of all."""
    first = {row["name"]: row for row in saved["rows"] if row["batch"] == saved["rows"][0]["batch"]}
    ours = min((row for name, row in first.items() if "tfuse" in name), key=lambda row: row["ms_per_step"])
    times = lambda name: first[name]["ms_per_step"] / ours["ms_per_step"]
    text = ("On an %s, GPT-2 in Keras with tfuse trains %.1f times as fast as in stock Keras, %.2f times as fast as in\n"
            "Keras with XLA and %.2f times as fast as in compiled PyTorch, in %.0f GB of memory instead of %.0f." % (
                saved["hardware"], times("Keras"), times("Keras, XLA"), times("PyTorch, compiled"), ours["peak_GB"],
                first["Keras"]["peak_GB"]))
    sizes = list(dict.fromkeys((row["batch"], row["length"]) for row in saved["rows"]))
    lines = [text, "",
             "| GPT-2, 124 million parameters | " + " | ".join("%d × %d tokens a step" % size for size in sizes) + " |",
             "|---|" + "---|" * len(sizes)]
    ms = lambda size: [row["ms_per_step"] for row in saved["rows"] if (row["batch"], row["length"]) == size]
    for name in dict.fromkeys(row["name"] for row in saved["rows"]):
        of = {(row["batch"], row["length"]): row for row in saved["rows"] if row["name"] == name}
        cells = ["%s ms, %.1f GB" % (_best(of[size]["ms_per_step"], min(ms(size)), "%.1f"), of[size]["peak_GB"])
                 for size in sizes]
        lines.append("| %s | %s |" % (name, " | ".join(cells)))
    return "\n".join(lines)


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
