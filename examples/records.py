"""A record of what compare.py has measured: its rows, its table and its plot.

A record has the rows of gpt2.py, each known by its name, its batch and its length, or those of models.py, each known by its
model, its batch and its name. Convolutional networks have a record of their own, "vision".

What a model takes by fit() is in fit_ms, and what its step alone takes in ms_per_step. Either may be missing: a dash.
"""
import re

from workloads import WORKLOADS

# What a row is called, its framework, its mode, its colour.
ROWS = {
    "Keras": ("keras", "stock", "#c0c0c0"),
    "Keras, XLA": ("keras", "xla", "#8fb3d9"),
    "PyTorch": ("torch", "eager", "#b9ddb6"),
    "PyTorch, compiled": ("torch", "compile", "#7fbf7b"),
    "Keras with tfuse": ("keras", "tfuse", "#d95f02"),
    "Keras with tfuse, XLA": ("keras", "tfuse+xla", "#a63603"),
}


# What a kind of record was made with.
VERSIONS = {
    "gpt2": ["TensorFlow", "Keras", "PyTorch"],
    "models": ["TensorFlow", "Keras", "KerasHub", "PyTorch", "Transformers"],
    "vision": ["TensorFlow", "Keras", "PyTorch", "torchvision"],
}


def batch_of(row):
    """A row without a batch has it in the words for its step."""
    return row["batch"] if "batch" in row else int(row["step"].split()[0])


def key(row):
    """What a row is known by, so that rows are in order: large batches first."""
    of = [list(WORKLOADS).index(row["model"])] if "model" in row else []
    return [*of, -batch_of(row), row.get("length", 0), list(ROWS).index(row["name"])]


def with_row(rows, new):
    """Rows that were not measured again stay, with the commit that they were measured at."""
    return sorted([row for row in rows if key(row) != key(new)] + [new], key=key)


def kind(record):
    """The record's name in files and between README.md's markers."""
    row = record["rows"][0]
    return WORKLOADS[row["model"]].record if "model" in row else "gpt2"


def group(row):
    """What was trained. Rows of one group are compared with each other."""
    if "model" in row:
        return "%s, %s" % (WORKLOADS[row["model"]].title, row["step"])
    return "%d × %d" % (row["batch"], row["length"])


def groups(record):
    """{group: its rows}, in the record's order."""
    return {name: [row for row in record["rows"] if group(row) == name] for name in map(group, record["rows"])}


def speed(row):
    """By fit(), or where that was not measured, by the step alone."""
    return row["images_per_s" if "images_per_s" in row else "tokens_per_s"]


def shown(ms):
    """Three digits, or two behind the point. Ratios are those of numbers that are shown so."""
    return "–" if ms is None else "%.*f" % (1 if ms >= 10 else 2, ms)


def marked(ms, all_ms):
    """The same, in bold letters where none of these is less."""
    least = min((each for each in all_ms if each is not None), default=None)
    return "**%s**" % shown(ms) if ms is not None and shown(ms) == shown(least) else shown(ms)


def made_with(record, names, rows):
    """The hardware, versions of what is named, and the commits of the rows."""
    versions = "".join(", %s %s" % (name, record[name.lower()]) for name in names if record[name.lower()])
    made = dict.fromkeys("%s (%s)" % (row["commit"], row["date"]) for row in rows)
    return "%s%s, commit %s." % (record["hardware"], versions, ", ".join(made))


def line(cells):
    """Of a table in Markdown."""
    return "|" + "".join(" %s |" % cell if cell else " |" for cell in cells)


# Columns of models that stand where something in them was measured: by the call, and by its step alone.
CALLS = {"`%s()` (its step), ms" % name: (name + "_ms", name + "_step_ms") for name in ("evaluate", "predict")}


def table(record):
    models = kind(record) != "gpt2"
    calls = {head: keys for head, keys in CALLS.items() if any(keys[0] in row for row in record["rows"])}
    heads, times = ["tokens a step", "", "ms/step", "tokens/s", "peak memory"], ["ms_per_step"]
    if models:
        heads = ["a step of", "", "`fit()`, ms", "its step alone, ms", "a second", "peak memory", "first 3 steps", *calls]
        times = ["fit_ms", "ms_per_step"]
    lines = [made_with(record, VERSIONS[kind(record)], record["rows"]), "", line(heads), "|" + "---|" * len(heads)]
    for name, rows in groups(record).items():
        for row in rows:
            if "failed" in row:
                why = row["failed"] if row["failed"].startswith("stopped") else "failed"
                lines.append(line([name, row["name"], why, *[""] * (len(heads) - 3)]))
                continue
            cells = [marked(row.get(key), [other.get(key) for other in rows]) for key in times]
            cells += [per_second(row), "%.1f GB" % row["peak_GB"]]
            if models:
                cells.append("%.0f s" % row["first_s"] if "first_s" in row else "–")
                cells += ["%s (%s)" % (shown(row[call]), shown(row.get(step))) if call in row else "–"
                          for call, step in calls.values()]
            lines.append(line([name, row["name"], *cells]))
    return "\n".join(lines)


def per_second(row):
    """Hundreds of tokens, or tens of images; of models with what is counted."""
    text = format(round(speed(row), -1 if "images_per_s" in row else -2), ",.0f")
    return "%s %s" % (text, WORKLOADS[row["model"]].unit) if "model" in row else text


def plot(record, path):
    """Of GPT-2, speed and memory of each shape. Of models, a panel each, with the speed by fit(), behind it that of the step
    alone, and in words the memory."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from tfuse._tools import _bench_plots
    measured = {name: [row for row in rows if "failed" not in row][::-1] for name, rows in groups(record).items()}
    if kind(record) != "gpt2":
        pairs = (len(measured) + 1) // 2
        figure, axes = pyplot.subplots(pairs, 2, figsize=(13, 3 * pairs), squeeze=False)
        for axis, (name, rows) in zip(axes.flat, measured.items()):
            how = ["" if "fit_ms" in row else ", step alone" for row in rows]
            alone = [speed(row) * row["fit_ms"] / row["ms_per_step"] if {"fit_ms", "ms_per_step"} <= set(row) else 0
                     for row in rows]
            bars(axis, rows, list(map(speed, rows)),
                 ["%s, %.1f GB%s" % (per_second(row), row["peak_GB"], text) for row, text in zip(rows, how)], 0.6, alone)
            axis.set_xlabel("tokens or images a second by fit(), and, pale, by the step alone")
            axis.set_title(name)
        for axis in axes.flat[len(measured):]:
            axis.remove()
        what = "Training in bfloat16"
    else:
        figure, axes = pyplot.subplots(2, len(measured), figsize=(6.5 * len(measured), 6), squeeze=False)
        for (top, bottom), (name, rows) in zip(axes.T, measured.items()):
            bars(top, rows, list(map(speed, rows)), [format(speed(r), ",.0f") for r in rows])
            bars(bottom, rows, [r["peak_GB"] for r in rows], ["%.1f" % r["peak_GB"] for r in rows])
            top.set_xlabel("tokens a second")
            bottom.set_xlabel("peak memory, GB")
            top.set_title(name + " tokens a step")
        what = "GPT-2 124M in bfloat16"
    figure.suptitle("%s: %s, TensorFlow %s" % (what, record["hardware"], record["tensorflow"]))
    figure.tight_layout()
    _bench_plots.save(figure, path)


def bars(axis, rows, values, labels, margin=0.15, behind=None):
    """A bar for each row, with its label at its end, and a pale one where what is behind it is longer."""
    names, colours = [row["name"] for row in rows], [ROWS[row["name"]][2] for row in rows]
    pale = axis.barh(names, [max(pair) for pair in zip(values, behind or values)], color=colours, alpha=0.4)
    axis.barh(names, values, color=colours)
    axis.bar_label(pale, labels, padding=3, fontsize=8)
    axis.margins(x=margin)
    axis.locator_params(axis="x", nbins=6, integer=True)  # numbers as long as these stand beside each other
    axis.xaxis.set_major_formatter("{x:,.0f}")


def filled(text, record, image):
    """README.md's text with the record's table and plot between the markers of its kind."""
    what = "Tokens a second" if kind(record) == "gpt2" else "Speed"
    return between(text, kind(record), "%s\n\n![%s and memory of each](%s)" % (table(record), what, image))


def between(text, name, shown):
    """The text with something else between the markers of this name."""
    return re.sub(r"(<!-- {0} -->\n).*?(<!-- /{0} -->)".format(name), lambda m: m[1] + shown + "\n" + m[2], text, flags=re.S)
