"""Pictures of what `python -m tfuse bench --save` wrote: one for each family, which fits a page, and the README's."""

import json

from tfuse._tools import _bench_optimizers, _bench_table, _files

COLOURS = {"stock": "#9a9a9a", "XLA": "#4f8fcf", "torch.compile": "#4fa24a", "torch fused": "#4fa24a", "tfuse": "#d95f02",
           "behind": "#8c2d04"}
# The bars of the README's picture: rows of the GPT-2 record with their colours, and one line of the ops' record each.
STEPS = {"Keras": "stock", "Keras, XLA": "XLA", "PyTorch": "torch.compile", "PyTorch, compiled": "torch.compile",
         "Keras with tfuse": "tfuse", "Keras with tfuse, XLA": "tfuse"}
OPS = ["attention causal", "layer_norm", "rms_norm, residual and dropout dropout=0.25", "sparse_cross_entropy", "gated silu",
       "dropout rate=0.1", "softmax"]


def draw(path):
    """Draws a record of ops, or all of a folder and the README's picture; yields the files that it writes."""
    for record in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        saved = _files.loaded(record, lambda path: json.loads(path.read_text()))
        if "copy_TB_per_s" not in saved:
            continue  # GPT-2's, which comes with the ops' of the same hardware
        yield from _families(saved, record)
        steps = record.with_name("gpt2_" + record.name)
        if path.is_dir() and steps.exists():
            yield _headline(json.loads(steps.read_text()), saved, path / "headline.png")


def lines(saved):
    """(label, {rival: how many times tfuse's time it takes}) of each family, those where tfuse gains most first."""
    found = {family: [(" ".join([line.name, line.dtype, line.shape]), line.times) for line in _bench_table.lines(rows)]
             for family, rows in _bench_table.by_family(saved["rows"]).items()}
    steps = [line for step in saved.get("steps", []) for line in _bench_optimizers.lines(step)]
    if steps:
        found["lists"] = found.get("lists", []) + steps
    for family, some in found.items():
        some = sorted((line for line in some if line[1]), key=lambda line: -min(line[1].values()))
        if some:
            yield family, some


def _families(saved, record):
    for family, some in lines(saved):
        figure, axis = _figure(9, 1.1 + 0.17 * len(some))
        for y, (_, times) in enumerate(some):
            rival, least = min(times.items(), key=lambda item: item[1])
            ahead = round(least, 2) >= 1
            axis.barh(y, least - 1, 0.7, 1, color=COLOURS["tfuse" if ahead else "behind"])
            axis.annotate("%.2f× %s" % (least, rival), (1.01, y), xycoords=("axes fraction", "data"), va="center",
                          fontsize=6.5, color="black" if ahead else COLOURS["behind"], annotation_clip=False)
        for rival in COLOURS:
            places = [(times[rival], y) for y, (_, times) in enumerate(some) if rival in times]
            if places:
                axis.plot(*zip(*places), "o", color=COLOURS[rival], markersize=3.5, label=rival)
        axis.set_yticks(range(len(some)), [name for name, _ in some], fontsize=6.5)
        axis.set_ylim(len(some) - 0.4, -0.6)
        _scale(axis, max(max(times.values()) for _, times in some), min(min(times.values()) for _, times in some))
        axis.set_xlabel("times tfuse's time%s; bars end at the fastest rival, named at the right" % (
            "" if family == "lists" else ", forward and backward"), fontsize=8)
        axis.set_title("%s on %s" % (family, saved["hardware"]), fontsize=10)
        axis.legend(loc="lower right", fontsize=7)
        yield save(figure, record.with_name("%s_%s.png" % (record.stem, family)))


def _headline(steps, saved, path):
    """A step of GPT-2 in milliseconds, and single ops beside their rivals."""
    figure, (left, right) = _figure(10, 3.4, columns=2)
    rows = [row for row in steps["rows"] if (row["batch"], row["length"]) == (16, 1024) and "failed" not in row]
    bars = left.barh([row["name"] for row in rows], [row["ms_per_step"] for row in rows],
                     color=[COLOURS[STEPS[row["name"]]] for row in rows])
    left.bar_label(bars, ["%.1f ms" % row["ms_per_step"] for row in rows], padding=3, fontsize=8)
    left.invert_yaxis()
    left.set_xlim(0, 1.25 * max(row["ms_per_step"] for row in rows))
    left.tick_params(labelsize=8)
    left.set_title("GPT-2 124M, a training step of 16 × 1024 tokens", fontsize=9)
    left.set_xlabel("milliseconds, bfloat16, %s" % steps["hardware"], fontsize=8)
    found = {line.name: line for line in reversed(list(_bench_table.lines(saved["rows"]))) if line.dtype == "bfloat16"}
    some = [found[name] for name in OPS if name in found]
    rivals = [rival for rival in _bench_table.RIVALS if any(rival in line.times for line in some)]
    for i, rival in enumerate(rivals):
        places = [y + (i - (len(rivals) - 1) / 2) * 0.26 for y, line in enumerate(some) if rival in line.times]
        times = [line.times[rival] for line in some if rival in line.times]
        right.barh(places, [t - 1 for t in times], 0.24, 1, color=COLOURS[rival], label=rival)
        for place, t in zip(places, times):
            right.annotate("%.1f×" % t, (t, place), (2, 0), textcoords="offset points", va="center", fontsize=6)
    right.set_yticks(range(len(some)), [line.name.split(" dropout=")[0].split(" rate=")[0] for line in some], fontsize=8)
    right.invert_yaxis()
    _scale(right, max(max(line.times.values()) for line in some), 1)
    right.legend(fontsize=7, loc="lower right")
    right.set_title("single ops, forward and backward", fontsize=9)
    right.set_xlabel("times tfuse's time, which is 1", fontsize=8)
    return save(figure, path)


# ---- what the pictures share ----


def _figure(width, height, columns=1):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    return pyplot.subplots(1, columns, figsize=(width, height), layout="constrained")


def _scale(axis, most, least):
    """Logarithmic, as 30 times and 0.9 times meet in one picture; with a line at tfuse's own time."""
    axis.set_xscale("log")
    wide, narrow = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200), (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 2.5)
    ticks = [t for t in (wide if most > 3 * least else narrow) if least / 1.1 < t < most * 1.1]
    axis.set_xticks(ticks, ["%g×" % t for t in ticks], fontsize=7)
    axis.minorticks_off()
    axis.set_xlim(min(0.9, least / 1.15), most * 1.3)
    axis.axvline(1, color="black", linewidth=0.8)


def save(figure, path):
    """With few colours, so that it is small."""
    from matplotlib import pyplot
    from PIL import Image
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    Image.open(path).convert("RGB").quantize(96, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    return path
