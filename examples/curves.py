"""Shows that training with tfuse.enable() has the loss curve of stock Keras: trains, judges, writes it down and draws it.

  python examples/curves.py                        # models.py's transformers: benchmarks/curves_<GPU>.json, .png, README.md
  python examples/curves.py --models vit --rows tfuse --steps 300     # some of it; the other rows of the record stay
  python examples/curves.py --small --out FOLDER   # in minutes on a CPU
  python examples/curves.py --table FILE.json      # print the table of a record; --write puts it into README.md

Every row begins with the same weights and sees the same batches, without dropout (see train_curve.py). What is left between
two rows is rounding, and training magnifies that, in some models a million times. So the question is not how far the curve
of tfuse is from that of stock Keras, but whether it is farther than stock Keras is from itself. More runs of stock Keras
compute the same and round otherwise: "again", "again2" and "again3" begin with weights that are moved up or down by a unit
or two in the last place of float32; "xla" has compile(jit_compile=True), which fuses ops as tfuse does, so that what is
between them is not rounded to bfloat16. The widest of those that were trained is stock's own spread.

In bfloat16 every step rounds much, and one "again" shows what that does. In float32 a single number may decide how far a
curve goes: a weight whose first gradient is 0 but for rounding, since Adam divides a gradient by its own size. Some runs
stay ten times as near as others then, and three of them are trained unless --rows says otherwise.

Runs that round alike can go astray alike. Stock Keras adds up the gradients of biases in bfloat16, with XLA and without;
tfuse adds in float32. So in bfloat16 there is one more run of stock Keras: "float32", which computes in float32 (with
TensorFlow's defaults, so a GPU takes TF32 for products, and with XLA). A row that is outside of stock's spread passes where
it is at most as far from that curve as stock's farthest run in bfloat16.

A distance is taken in windows of ten steps: the mean of |difference| over a window. Over all windows the median and the
largest are compared. Both must be at most twice stock's own: twice, since the distances of two runs that differ in chance
alone are themselves not the same. Losses are kept to five digits behind the point, and one unit there is always allowed.
Beside that the first loss, before which nothing is trained, must be stock's to within a unit in the last place of the type
that is computed in; and stock's own curve must fall by a tenth, or nothing was shown. The status is 1 where one of this does
not hold.
"""
import argparse
import json
import pathlib
import re
import sys

import numpy as np

from compare import GROUPS, HERE, ROOT, about_in_a_process, finished, in_files, keep, names_of, show
from records import ROWS, between, line, made_with
from workloads import WORKLOADS

NAMES = {mode: (name, colour) for name, (framework, mode, colour) in ROWS.items() if framework == "keras"}
AGAIN = {"again": ("Keras, again", "#404040"), "again2": ("Keras, again (2)", "#606060"),
         "again3": ("Keras, again (3)", "#808080")}
STOCK, OTHERS, EXACT = "stock", (*AGAIN, "xla"), "float32"
# What a row is called, its colour.
CURVES = {STOCK: NAMES["stock"], **AGAIN, "xla": NAMES["xla"], EXACT: ("Keras in float32", "#b8860b"),
          **{row: NAMES[row] for row in ("tfuse", "tfuse+xla")}}
ROWS_OF = {"mixed_bfloat16": ["stock", "again", "xla", EXACT, "tfuse", "tfuse+xla"],
           "float32": [row for row in CURVES if row != EXACT]}
WINDOW, TIMES, DIGITS, FALL = 10, 2, 5, 0.1
UNIT = {"mixed_bfloat16": 2.0**-7, "float32": 2.0**-23}

# ---- judging ----


def windows(losses):
    """The mean of each window; what is left over makes some of them longer."""
    return np.array([part.mean() for part in np.array_split(losses, max(1, len(losses) // WINDOW))])


def apart(losses, stock):
    """The distance of two curves in each window."""
    return windows(np.abs(np.subtract(losses, stock)))


def figures(curves, middle):
    """{row: [median, largest distance to the curve `middle`]}; nothing where that was not trained."""
    distances = {row: apart(curves[row], curves[middle]) for row in curves if row != middle and middle in curves}
    return {row: np.array([np.median(some), some.max()]) for row, some in distances.items()}


def judge(curves, policy):
    """{row: losses} -> {row: (verdict, figures to stock, figures to float32)}; the verdict begins with "not" where a row
    fails, and figures are None where there are none."""
    to_stock, to_exact = (figures(curves, middle) for middle in (STOCK, EXACT))
    return {row: (verdict(curves, row, policy, to_stock, to_exact), to_stock.get(row), to_exact.get(row)) for row in curves}


def verdict(curves, row, policy, to_stock, to_exact):
    if row == STOCK:
        ends = windows(curves[row])
        return "falls" if ends[-1] <= (1 - FALL) * ends[0] else "not falling"
    if STOCK not in curves:
        return "nothing to compare with"
    unit, first = 10.0**-DIGITS, curves[STOCK][0]
    if not abs(curves[row][0] - first) <= UNIT[policy] * abs(first) + unit:
        return "not stock's first loss"
    if row in (*OTHERS, EXACT):
        return "rounds less" if row == EXACT else "stock's spread"
    spread = [to_stock[other] for other in OTHERS if other in to_stock]
    if not spread:
        return "nothing to compare with"
    if np.all(to_stock[row] <= TIMES * np.max(spread, axis=0) + unit):
        return "within %d times stock's spread" % TIMES
    farthest = [to_exact[other] for other in (STOCK, *OTHERS) if other in to_exact]
    if farthest and np.all(to_exact[row] <= np.max(farthest, axis=0) + unit):
        return "as near to float32 as stock"
    return "not within %d times stock's spread" % TIMES


def losses_of(entry):
    """{row: losses} of what was trained, in order."""
    return {row: entry["rows"][row]["losses"] for row in CURVES if "losses" in entry["rows"].get(row, {})}


# ---- records ----


def with_row(record, model, conditions, row, found):
    """Puts a row into a record. Rows that were trained under other conditions cannot be compared with it, and go."""
    entry = record["models"].get(model)
    if not entry or {key: entry[key] for key in conditions} != conditions:
        entry = {**conditions, "rows": {}}
    record["models"][model] = {**entry, "rows": {**entry["rows"], row: found}}


def text_of(record):
    """JSON with all losses of a row in a line."""
    text = json.dumps(record, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda m: re.sub(r"\s+", "", m[0]), text) + "\n"


# ---- showing ----


def entries(record):
    """(title, entry) of each model, in order."""
    return [("%s, %s" % (WORKLOADS[model].title, record["models"][model]["step"]), record["models"][model])
            for model in WORKLOADS if model in record["models"]]


def table(record):
    """And whether all is well."""
    rows = [row for _, entry in entries(record) for row in entry["rows"].values()]
    heads = ["a step of", "", "first loss", "last %d" % WINDOW, "from stock: median", "largest", "from float32: median",
             "largest", ""]
    lines = [made_with(record, ["TensorFlow", "Keras", "KerasHub"], rows),
             "%s." % ", ".join(dict.fromkeys("%d steps in %s" % (e["steps"], e["policy"]) for _, e in entries(record))), "",
             line(heads), "|" + "---|" * len(heads)]
    well = True
    for title, entry in entries(record):
        curves = losses_of(entry)
        verdicts = judge(curves, entry["policy"])
        for row in filter(entry["rows"].get, CURVES):
            name = [title, CURVES[row][0]]
            if row not in curves:
                lines.append(line([*name, "failed", *[""] * (len(heads) - 3)]))
                well = False
                continue
            word, *distances = verdicts[row]
            ends = ["%.4f" % curves[row][0], "%.4f" % windows(curves[row])[-1]]
            shown = [cell for some in distances for cell in (["", ""] if some is None else map("{:.5f}".format, some))]
            lines.append(line([*name, *ends, *shown, word]))
            well = well and not word.startswith("not ")
    return "\n".join(lines), well


def plot(record, path):
    """A panel for each model: its curves over each other, and below how far they are from float32's, in windows; from stock's
    where that was not trained."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from tfuse._tools import _bench_plots
    shown = entries(record)
    figure, axes = pyplot.subplots(2, len(shown), figsize=(min(4.5 * len(shown), 14), 6), squeeze=False, sharex="col",
                                   height_ratios=[3, 2])
    for (top, bottom), (title, entry) in zip(axes.T, shown):
        curves = losses_of(entry)
        for row, losses in curves.items():
            name, colour = CURVES[row]
            top.plot(range(1, len(losses) + 1), losses, color=colour, linewidth=4 if row == STOCK else 1, label=name)
            middle = EXACT if EXACT in curves else STOCK
            if row != middle and middle in curves:
                distances = apart(losses, curves[middle])
                middles = (np.arange(len(distances)) + 0.5) * len(losses) / len(distances)
                bottom.plot(middles, np.maximum(distances, 10.0**-DIGITS), color=colour, linewidth=1.5)
        bottom.set_yscale("log")
        bottom.set_xlabel("steps")
        top.set_title(title, fontsize=10)
    axes[0, 0].legend(fontsize=8)
    axes[0, 0].set_ylabel("loss")
    axes[1, 0].set_ylabel("|difference| to Keras%s" % (" in float32" * any(EXACT in e["rows"] for _, e in shown)))
    figure.suptitle("Training with and without tfuse: %s, TensorFlow %s" % (record["hardware"], record["tensorflow"]))
    figure.tight_layout()
    _bench_plots.save(figure, path)


def filled(text, record, image):
    """README.md's text with the record's table and plot."""
    return between(text, "curves", "%s\n\n![Loss curves, and their distances](%s)" % (table(record)[0], image))


# ---- the command line ----


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", metavar="FILE", help="print the table of this record, and train nothing")
    parser.add_argument("--write", action="store_true", help="with --table: draw the plot and write README.md too")
    parser.add_argument("--models", metavar="NAMES", default="transformers",
                        help="%s, or one of the groups %s,all (transformers)" % (",".join(WORKLOADS), ",".join(GROUPS)))
    parser.add_argument("--rows", help="some of %s (%s; in float32 %s)" % (
        ",".join(CURVES), *(",".join(ROWS_OF[policy]) for policy in UNIT)))
    parser.add_argument("--steps", type=int, default=300, help="(300)")
    parser.add_argument("--policy", choices=UNIT, default="mixed_bfloat16", help="(mixed_bfloat16)")
    parser.add_argument("--small", action="store_true", help="with --out: sizes that a CPU trains in seconds")
    parser.add_argument("--limit", type=int, default=600, help="seconds that one process may take (600)")
    parser.add_argument("--out", metavar="FOLDER", default=ROOT / "benchmarks", type=pathlib.Path, help="of the record")
    options = parser.parse_args()
    options.models = names_of(options.models, parser)
    options.rows = options.rows.split(",") if options.rows else ROWS_OF[options.policy]
    for row in options.rows:
        if row not in CURVES:
            parser.error("there is no row %s: the rows are %s" % (row, ", ".join(CURVES)))
    if options.small and options.out.resolve() == ROOT / "benchmarks":
        parser.error("--small goes with --out: its curves belong into no record of ours")
    return options


def jobs(options):
    """As finished() takes them."""
    for model in options.models:
        for row in options.rows:
            arguments = ["--model", model, "--row", row, "--steps", options.steps, "--policy", options.policy]
            yield (model, row), "keras", [*arguments, *["--small"] * options.small]


def train(options):
    """Trains every row, and keeps the record as it grows; returns it and its path."""
    about = about_in_a_process()
    when = {key: about.pop(key) for key in ("commit", "date")}
    options.out.mkdir(exist_ok=True)
    path = options.out / ("curves_%s.json" % in_files(about["hardware"]))
    record = {**about, "models": json.loads(path.read_text())["models"] if path.exists() else {}}
    for (model, row), found, why in finished({"keras": HERE / "train_curve.py"}, list(jobs(options)), options.limit):
        result = {"failed": why} if why else {"losses": [round(loss, DIGITS) for loss in found["losses"]]}
        conditions = {"step": WORKLOADS[model].step(options.small, curve=True), "policy": options.policy, "steps": options.steps}
        with_row(record, model, conditions, row, {**when, **result})
        keep(path, text_of(record))
        shown = why or "loss %.4f at first, %.4f at last" % (found["losses"][0], found["losses"][-1])
        print("%-12s %-30s %s" % (WORKLOADS[model].title, CURVES[row][0], shown), flush=True)
    return record, path


def main():
    options = parse()
    if options.table:
        path = pathlib.Path(options.table)
        record = json.loads(path.read_text())
    else:
        record, path = train(options)
    text, well = table(record)
    print(text)
    if options.write or not options.table:
        show(record, path, plot, filled)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
