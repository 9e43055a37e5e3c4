"""Measures what 8 bits give whole models, and writes it down: training in float8, and ResNet-50's inference in int8.

  python examples/quantized.py                          # all: benchmarks/quantized_<GPU>.json, docs/quantization.md
  python examples/quantized.py --only llama --what fit  # some of it; the other rows of the record stay
  python examples/quantized.py --small --out FOLDER     # sizes that a CPU runs in minutes
  python examples/quantized.py --table FILE.json        # print the tables of a record; --write puts them into the page

Beside each is the same model in bfloat16, by tfuse as well, with XLA. A step of fit() is measured by models.py; losses are those of
train_curve.py, which has the same weights and batches for both; ResNet-50 is measured by resnet50_int8.py.
"""
import argparse
import json
import pathlib

import numpy as np

from compare import HERE, ROOT, about_in_a_process, finished, in_files
from curves import windows
from generation import some
from records import between, line, made_with, shown
from workloads import WORKLOADS, keep

PAGE = ROOT / "docs" / "quantization.md"
TRAINED, RESNET = ("gpt2", "llama"), "resnet50"
STEPS, SMALL_STEPS = 300, 30
SCRIPTS = {"fit": "models.py", "curve": "train_curve.py", "call": "resnet50_int8.py", "predict": "resnet50_int8.py"}
OF_TRAINED, OF_RESNET = ("fit", "curve"), ("call", "predict")
KEPT = "fit_ms", "peak_GB", "ms", "ms_int8", "error", "batch"

# ---- measuring ----


def jobs_of(models, whats, small):
    """(row, arguments) of each process; row says what it measures."""
    few = ["--small"] * small
    for what in whats:
        for model in models:
            if model == RESNET and what in OF_RESNET:
                sizes = ["--image", 64, "--batch", 4, "--calls", 1, "--classes", 10] if small else []
                yield {"what": what, "model": model}, [*sizes, *["--predict"] * (what == "predict")]
            elif model in TRAINED and what in OF_TRAINED:
                step = WORKLOADS[model].step(small, curve=what == "curve")
                more = ["--mode", "tfuse+xla"] if what == "fit" else [
                    "--row", "tfuse+xla", "--steps", SMALL_STEPS if small else STEPS]
                for bits, float8 in ((16, []), (8, ["--float8"])):
                    yield {"what": what, "model": model, "bits": bits, "step": step}, ["--model", model, *more, *few, *float8]


def kept(what, found):
    """What a record has of what a script has written."""
    if what == "curve":
        return {"losses": [round(loss, 5) for loss in found["losses"]]}
    return {key: found[key] for key in KEPT if key in found}


def is_same(row, other):
    return all(row.get(key) == other.get(key) for key in ("what", "model", "bits"))


def measure(options):
    """Measures what is asked for, and keeps the record as it grows; returns it."""
    about = about_in_a_process()
    when = {key: about.pop(key) for key in ("commit", "date")}
    options.out.mkdir(exist_ok=True)
    path = options.out / ("quantized_%s.json" % in_files(about["hardware"]))
    record = {**about, "rows": json.loads(path.read_text())["rows"] if path.exists() else []}
    for what in options.what:
        jobs = [(row, "keras", arguments) for row, arguments in jobs_of(options.only, [what], options.small)]
        for row, found, why in finished({"keras": HERE / SCRIPTS[what]}, jobs, options.limit) if jobs else ():
            row = {**row, **when, **({"failed": why} if why else kept(what, found))}
            record["rows"] = [other for other in record["rows"] if not is_same(other, row)] + [row]
            keep(path, json.dumps(record, indent=1) + "\n")
            print({**row, "losses": row["losses"][-1]} if "losses" in row else row, flush=True)
    return record


# ---- showing ----


def times(ms, ms_of_8_bits):
    return "%.2f" % (float(shown(ms)) / float(shown(ms_of_8_bits)))


def trained(record):
    """The lines of the table of models that are trained."""
    heads = ["a step of `fit()`", "bfloat16", "float8", "times as fast", "memory", "last losses", "in float8", "apart, at most"]
    lines = [line(heads), "|" + "---|" * len(heads)]
    for model in TRAINED:
        rows = {(row["what"], row["bits"]): row for row in record["rows"] if row["model"] == model and "failed" not in row}
        fits, curves = ([rows[what, bits] for bits in (16, 8) if (what, bits) in rows] for what in OF_TRAINED)
        cells = ["–"] * 7
        if len(fits) == 2:
            ms = [row["fit_ms"] for row in fits]
            cells[:4] = [*("%s ms" % shown(each) for each in ms), times(*ms), "%.1f, %.1f GB" % tuple(row["peak_GB"] for row in fits)]
        if len(curves) == 2:
            wide, narrow = (windows(row["losses"]) for row in curves)
            cells[4:] = ["%.4f" % wide[-1], "%.4f" % narrow[-1], "%.2f%%" % (100 * np.max(np.abs(narrow / wide - 1)))]
        if fits or curves:
            lines.append(line(["%s, %s" % (WORKLOADS[model].title, (fits or curves)[0]["step"]), *cells]))
    return lines


def resnet(record):
    heads = ["ResNet-50", "bfloat16", "int8", "times as fast", "results off by"]
    lines = [line(heads), "|" + "---|" * len(heads)]
    names = {"call": "a call, %d images", "predict": "`predict()`, %d images"}
    for row in record["rows"]:
        if row["model"] == RESNET and "failed" not in row:
            lines.append(line([names[row["what"]] % row["batch"], "%s ms" % shown(row["ms"]), "%s ms" % shown(row["ms_int8"]),
                               times(row["ms"], row["ms_int8"]), "%.1f%%" % (100 * row["error"])]))
    return lines


def tables(record):
    """{marker of the page: what stands there}."""
    made = {}
    for name, lines, models in (("float8", trained(record), TRAINED), ("int8", resnet(record), (RESNET,))):
        rows = [row for row in record["rows"] if row["model"] in models and "failed" not in row]
        made[name] = "\n".join([made_with(record, ["TensorFlow", "Keras"], rows), "", *lines]) if rows else "Not measured yet."
    return made


def write(record):
    text = PAGE.read_text()
    for name, shown_there in tables(record).items():
        text = between(text, name, shown_there)
    PAGE.write_text(text)


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = (*TRAINED, RESNET)
    parser.add_argument("--table", metavar="FILE", type=pathlib.Path, help="print the tables of this record, measure nothing")
    parser.add_argument("--write", action="store_true", help="with --table: write docs/quantization.md too")
    parser.add_argument("--only", default=",".join(models), metavar="MODELS", help="(%(default)s)")
    parser.add_argument("--what", default=",".join(SCRIPTS), help="(%(default)s)")
    parser.add_argument("--small", action="store_true", help="with --out: sizes that a CPU runs in minutes")
    parser.add_argument("--limit", type=int, default=180, help="seconds that one process may take (180)")
    parser.add_argument("--out", metavar="FOLDER", default=ROOT / "benchmarks", type=pathlib.Path, help="of the record")
    options = parser.parse_args(arguments)
    options.only, options.what = some(options.only, models, "model", parser), some(options.what, SCRIPTS, "part", parser)
    if options.small and options.out.resolve() == ROOT / "benchmarks":
        parser.error("--small goes with --out: its rows belong into no record of ours")
    return options


def main(arguments=None):
    options = parse(arguments)
    record = json.loads(options.table.read_text()) if options.table else measure(options)
    print("\n\n".join(tables(record).values()))
    if options.write or not (options.table or options.small):
        write(record)


if __name__ == "__main__":
    main()
