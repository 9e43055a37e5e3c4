"""Writes the generated parts of README.md and docs/, between their markers; --check only says whether they are up to date,
--plot draws README.md's picture too.

  ./run python tools/readme.py [--check | --plot]
"""
import itertools
import json
import pathlib
import re
import sys
import textwrap

from tfuse._tools import _bench_table, _ops

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
sys.path.append(str(ROOT / "tools"))  # last: wheel.py would pass for the package of that name
import api_page  # noqa: E402
import badges  # noqa: E402
import records  # noqa: E402
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
PICTURE = "benchmarks/training_nvidia_h200.png"
# What a model was measured in: a row's name in the records, and the head of its column.
STOCK, RIVAL, PLAIN, OURS = "Keras, XLA", "PyTorch, compiled", "Keras with tfuse", "Keras with tfuse, XLA"
COLUMNS = {STOCK: "stock Keras, XLA", RIVAL: RIVAL, PLAIN: "Keras with tfuse, no XLA", OURS: OURS}
NUMBERS = dict(enumerate("no one two three four five six seven eight nine ten eleven twelve".split()))


def record(name):
    return json.loads((ROOT / "benchmarks" / name).read_text())


def headline():
    """What the README shows: models with tfuse.enable() alone, what GPT-2 gains beside stock Keras, the times of some ops."""
    below = _wrapped(dashes(measured()) + gpt2(record("gpt2_nvidia_h200.json")))
    return "\n\n".join([models(measured()), below, times(record("nvidia_h200.json"))])


def measured():
    """The record of those models that were measured in compiled PyTorch and with tfuse, with XLA and without, in batches of
    their own size."""
    saved = [record("models_nvidia_h200.json"), record("vision_nvidia_h200.json")]
    rows = [row for row in itertools.chain(*(some["rows"] for some in saved))
            if records.batch_of(row) == WORKLOADS[row["model"]].sizes().batch]
    names = {model: {row["name"] for row in rows if row["model"] == model and "failed" not in row} for model in WORKLOADS}
    return {**saved[0], "rows": [row for row in rows if names[row["model"]] >= {RIVAL, PLAIN, OURS}]}


def by_model(saved):
    """{(model, step): {the name of a row: it}}, without those that failed."""
    found = {}
    for row in saved["rows"]:
        if "failed" not in row:
            found.setdefault((row["model"], row["step"]), {})[row["name"]] = row
    return found


def models(saved):
    """The picture, a sentence, and a table of a model in each line. Ratios are those of the numbers that are printed: of fit()
    where all of a comparison were measured so, and of the step alone otherwise."""
    found = by_model(saved)
    by_fit = all("fit_ms" in of[name] for of in found.values() for name in (RIVAL, OURS))
    key, how = ("fit_ms", "by `fit()`") if by_fit else ("ms_per_step", "step by step")
    ms = lambda of, name: float(records.shown(of[name][key])) if key in of.get(name, {}) else None
    ratios = lambda name: [ms(of, name) / ms(of, OURS) for of in found.values() if ms(of, name) and ms(of, OURS)]
    times = lambda name: "%.2f to %.2f times as fast" % (min(ratios(name)), max(ratios(name)))
    stock = " and, where measured, %s as in stock Keras" % times(STOCK) if ratios(STOCK) else ""
    number = NUMBERS.get(len(found), str(len(found)))
    said = ("With `tfuse.enable()` as the only change, %s models in plain Keras and KerasHub train %s %s on an %s as in "
            "compiled PyTorch%s. These ratios compare the last column, `compile(jit_compile=True)`, which is Keras's default%s. The "
            "column before it has `compile(jit_compile=False)`." % (
                number, how, times(RIVAL), saved["hardware"], stock,
                " for all models but the LSTM" if any(model == "lstm" for model, _ in found) else ""))
    lines = ["![%s models in stock Keras, in compiled PyTorch, and in Keras with tfuse: speed and memory](%s)" % (
                 number.capitalize(), PICTURE), "", _wrapped(said), "",
             "| a step of `fit()` (in brackets: alone, its batch on the GPU already) | %s |" % " | ".join(COLUMNS.values()),
             "|---|" + "---|" * len(COLUMNS)]
    for (model, step), of in found.items():
        lines.append("| %s, %s | %s |" % (WORKLOADS[model].title, step, " | ".join(_cell(of, name) for name in COLUMNS)))
    return "\n".join(lines)


def _cell(of, name):
    """The milliseconds of fit(), and of the step alone; the best of each column are in bold letters."""
    if name not in of:
        return "–"
    fit, alone = (records.marked(of[name].get(key), [of[column].get(key) for column in COLUMNS if column in of])
                  for key in ("fit_ms", "ms_per_step"))
    return "%s(%s) ms, %.1f GB" % (fit + " " if "fit_ms" in of[name] else "", alone, of[name]["peak_GB"])


def dashes(saved):
    """What the table lacks, and what measures it."""
    lacking = [(model, name) for (model, _), of in by_model(saved).items() for name in COLUMNS
               if not {"fit_ms", "ms_per_step"} <= set(of.get(name, {}))]
    if not lacking:
        return ""
    which, names = map(dict.fromkeys, zip(*lacking))
    return ("A dash means not measured, or stopped early; "
            "`python examples/compare.py --models %s --rows %s` measures it. " % (
                ",".join(which), ",".join(records.ROWS[name][1] for name in COLUMNS if name in names)))


def gpt2(saved):
    """A sentence of the first size."""
    first = {row["name"]: row for row in saved["rows"] if row["batch"] == saved["rows"][0]["batch"]}
    ours = min((row for name, row in first.items() if "tfuse" in name), key=lambda row: row["ms_per_step"])
    ms = lambda row: round(row["ms_per_step"], 1)
    return ("A GPT-2 that also calls tfuse by name in five places, its loss and optimizer among them, takes %.1f ms: %.1f "
            "times as fast as stock Keras without XLA and %.2f times as fast as with it, in %.0f GB instead of %.0f and %.0f. "
            "See [examples](examples/README.md)." % (
                ms(ours), ms(first["Keras"]) / ms(ours), ms(first[STOCK]) / ms(ours), ours["peak_GB"],
                first["Keras"]["peak_GB"], first[STOCK]["peak_GB"]))


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


def _wrapped(text):
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _best(value, best, text):
    return ("**%s**" if text % value == text % best else "%s") % (text % value)


# Files that are made as a whole.
FILES = badges.files()
# Files, and what commands print between the markers <!-- name --> and <!-- /name --> in each.
PARTS = {
    "README.md": {"headline": headline},
    "docs/api.md": {"names": api_page.names, "entries": api_page.entries},
    "docs/benchmarks.md": {"bench": lambda: _bench_table.page(record("nvidia_h200.json"), "../benchmarks/nvidia_h200_")},
    "docs/ops.md": {family: lambda family=family: _ops.markdown(family) for family in _ops.FAMILIES},
}


def filled(name):
    """The text of a file as it should be."""
    if name in FILES:
        return FILES[name]()
    text = (ROOT / name).read_text()
    for part, make in PARTS[name].items():
        pieces = re.split(r"(<!-- /?%s -->\n)" % re.escape(part), text)
        if len(pieces) != 5:
            raise ValueError("%s must have the markers <!-- %s --> and <!-- /%s --> once, each on a line of its own" % (
                name, part, part))
        text = "".join([*pieces[:2], make(), "\n", *pieces[3:]])
    return text


def main():
    if "--plot" in sys.argv:
        records.plot(measured(), ROOT / PICTURE)
    for name in [*FILES, *PARTS]:
        text, path = filled(name), ROOT / name
        if not path.exists() or text != path.read_text():
            if "--check" in sys.argv:
                return name + ": run ./run python tools/readme.py"
            path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
