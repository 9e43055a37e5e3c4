"""What the rows of `python -m tfuse bench` say, in words: labels, who is faster, which bars hold, the tables of
docs/benchmarks.md."""

import collections
import textwrap

import numpy as np

from tfuse import cases
from tfuse._tools import _bench_optimizers, _ops

TORCH = "torch.compile"
RIVALS = ("stock", "XLA", TORCH)
FAMILIES = {**_ops.FAMILIES, "generation": ["experts", "projections", "quantized_projections", "sample_logits", "take_rows"],
            "jit": ["jit"]}  # and the files of their cases
# What a reader of a family's table has to know.
NOTES = {
    "elementwise": "These ops make one pass over the data. Memory sets the pace, so speed is in percent of a plain copy's.",
    "rows": "These are norms, softmax and losses over the last axis. Memory sets the pace here too. Rows beyond 65,536 "
            "columns are shared by several blocks or read twice, and group_norm over many places reads its input twice.",
    "reductions": "A reduction reads its input and writes next to nothing, so percents are of the bytes that a copy moves in "
                  "both directions. Results of columns, of all and of several axes are joined in a second launch, which takes "
                  "some microseconds. The gradient of a sum or mean over the first or last axes is TensorFlow's own "
                  "broadcast; those of max, min, variance and logsumexp over columns or several axes read the input twice. "
                  "With sorted ids, the host has to be told how many segments there are, unless the call says "
                  "so, as it must inside XLA. Ids of type int32 go from a forward function to a backward one through the "
                  "host's memory, which is how TensorFlow does it; if both are in one function, as in a training step, they "
                  "do not.",
    "attention": "Shapes are batch × queries × keys × heads × heads of keys and values × head size. On an H200 both PyTorch "
                 "and tfuse use cuDNN's kernels, and the times are alike. Rows with own kernel time tfuse's kernel, which is "
                 "used where cuDNN cannot be.",
    "products": "Shapes are rows × inputs × outputs; for batched_matmul they are batch × rows × inputs × columns. "
                "linear_cross_entropy computes its gradient with the loss, while it has the logits, so that nothing is left "
                "to do backward. In float16, whose range does not allow that, it does not.",
    "convolution": "These ops sum over windows. For conv, which uses cuDNN, multiplications set the pace; for the others, "
                   "memory does. batch_norm in training reads x twice. Passes over memory are counted as often as they are "
                   "needed, including those of the residual and of its gradient.",
    "layout": "These ops put axes into another order: everything is read once and written once. Rows of odd sizes begin "
              "anywhere in a sector of memory, so that tiles share sectors with their neighbours.",
    "scans": "These are running sums and the like: one read and one write, along any axis. The blocks of one long row wait "
             "for the sums of the blocks before them. selective_scan computes 16 exponentials for each element, which set its "
             "pace.",
    "recurrent": "Shapes are sequences × steps × features × units. Stock TensorFlow goes from step to step, as Keras's layers "
                 "do inside XLA and wherever they cannot call cuDNN. PyTorch's layers have no masks, no recurrent dropout and "
                 "no other activations: in these rows, its times are those of the layer without them.",
    "lists": "This is an optimizer's step over many variables. On the GPU it is one walk over memory, but the whole step "
             "takes as long as the host needs: TensorFlow reads and assigns every variable by ops of its own (the last column "
             "times those alone), and makes room for new values. So tfuse does not reach its targets for a whole step, 2 ms "
             "for 400 variables and 3 ms for 5,000, and PyTorch, which writes in place, is ahead. Where the rest of a "
             "training step keeps the GPU busy for longer, the host's time is hidden behind it.",
    "generation": "These are parts of a decoder's step, which tfuse calls and users do not ([Generation](generation.md)). "
                  "Shapes are rows × inputs × outputs; for experts, rows × experts × experts per row × inputs × inner width; "
                  "for sample_logits, sequences × words; for take_rows, ids × words × width. With few rows, a product takes "
                  "as long as reading its kernel.",
    "jit": "These kernels are compiled at run time from a formula ([Your own kernels](jit.md)). Compare them with `activation "
           "silu` and `softmax`, which compute the same.",
    "sorting": "These ops put values in order, or count them. What matters is how often the data is read and written: a row "
               "that fits is sorted in shared memory, a longer one in a pass for each 8 bits. Backward, sort computes the "
               "places again, while others have kept them; forward and backward together it is ahead of both XLA and PyTorch. "
               "Places of type int32 go from a forward function to a backward one through the host's memory, which is how "
               "TensorFlow does it; if both are in one function, as in a training step, they do not.",
}
# What a case's bars ask of its forward and backward rows: measure, given the bytes that a copy moves per second; whether it
# is to be at least, or at most, the bar; how to write it.
BARS = {
    "forward": (lambda f, b, copy: f["percent_of_copy"], True, "%.1f%% of copy"),
    "backward": (lambda f, b, copy: b["percent_of_copy"], True, "%.1f%% of copy"),
    "floor": (lambda f, b, copy: b["both_ms"]["tfuse"] / 1e3 * copy / (f["bytes"] + b["bytes"]), False,
              "%.2f times the floor"),
    "ms": (lambda f, b, copy: b["both_ms"]["tfuse"], False, "%.3f ms of both"),
    "tflops": (lambda f, b, copy: f["TF_per_s"], True, "%.0f TF/s"),
    "backward_tflops": (lambda f, b, copy: b["TF_per_s"], True, "%.0f TF/s"),
    "torch": (lambda f, b, copy: f["ms"]["tfuse"] / f["ms"][TORCH] if TORCH in f["ms"] else None, False,
              "%.2f times PyTorch's forward"),
    "of_matmul": (lambda f, b, copy: f.get("percent_of_matmul"), True, "%.1f%% of plain matmul's rate"),
    "of_XLA": (lambda f, b, copy: b["both_ms"]["tfuse"] / b["both_ms"]["XLA"] if "XLA" in b["both_ms"] else None, False,
               "%.2f times what XLA takes"),
    "of_torch": (lambda f, b, copy: b["both_ms"]["tfuse"] / b["both_ms"][TORCH] if TORCH in b["both_ms"] else None, False,
                 "%.3f times what torch.compile takes"),
    "memory": (lambda f, b, copy: b.get("extra_MB"), False, "%.0f MB beside inputs and results"),
    "times_naive": (lambda f, b, copy: f["naive_ms"] / f["ms"]["tfuse"] if "naive_ms" in f else None, True,
                    "%.1f times naive's speed"),
    "both_of_matmul": (lambda f, b, copy: b["both_percent_of_matmul"], True, "%.1f%% of plain matmul's rate"),
}


def label(row):
    return " ".join([row["op"], *_variant(row), row["dtype"], "×".join(map(str, row["shape"]))])


def _variant(row):
    """The options that a row was timed with, in words. A seed tells nothing."""
    known = {"op", "dtype", "shape", "direction", "commit", "rivals_commit", "date", "bytes", "ms", "both_ms", "percent_of_copy",
             "TF_per_s", "seed", "matmul_ms", "naive_ms", "percent_of_matmul", "both_percent_of_matmul", "extra_MB"}
    return [v if isinstance(v, str) else "%s=%s" % (k, _option(v)) for k, v in row.items() if k not in known]


def _option(value):
    """As a case has it: a file has lists for tuples."""
    return tuple(value) if isinstance(value, list) else value


def launches(row):
    """Whether anything was computed: no launch takes less than a microsecond, but what hands on its input does."""
    return row["ms"]["tfuse"] >= 1e-3


def compared(rows):
    """(row, direction, milliseconds of each) of every row in which something is computed, as it is held against rivals. Where
    the gradient is made with the value, so that nothing is left to compute backward, the two directions are one, "both"."""
    together = {label(row) for row in rows if row.get("TF_per_s") == 0}
    for row in rows:
        if label(row) not in together:
            if launches(row):
                yield row, row["direction"], row["ms"]
        elif row["direction"] == "backward":
            yield row, "both", row["both_ms"]


def lost(rows):
    """(row, direction, rival, by how many percent tfuse takes longer) wherever a rival is faster."""
    return [(row, direction, rival, 100 * (ms["tfuse"] / ms[rival] - 1)) for row, direction, ms in compared(rows)
            for rival in RIVALS if ms.get(rival, np.inf) < ms["tfuse"]]


def check_bars(about, rows, families=()):
    """Prints which of the cases' bars hold, of these families or of all, each for the variant that is worst; returns whether
    all do. A bar that nothing was timed for is said to be open, and is not held against the run."""
    copy, pairs, failed = about["copy_TB_per_s"] * 1e12, list(zip(_beside_naive(rows[::2]), rows[1::2])), 0
    print("\nbars, on %s:" % about["hardware"])
    chosen = [one for family, members in cases.all_timed().items() if family in families or not families for one in members]
    if not any(one.bars for one in chosen):
        print("  none: no case asks for anything")
    for one in chosen:
        names = {name for options in one.options for name in options}
        for (dtype, shape, *only), limits in one.bars.items():
            timed = [p for p in pairs if (p[0]["op"], p[0]["dtype"], tuple(p[0]["shape"])) == (one.name, dtype, shape) and
                     all(dict(wanted) == {name: _option(p[0][name]) for name in names if name in p[0]} for wanted in only)]
            for kind, limit in limits.items():
                measure, at_least, text = BARS[kind]
                of = [p for p in timed if measure(*p, copy) is not None]
                worst = (min if at_least else max)(of, key=lambda p: measure(*p, copy), default=None)
                value = None if worst is None else measure(*worst, copy)
                holds = value is None or (value >= limit if at_least else value <= limit)
                failed += not holds
                print("  %-5s %s %s: %s, at %s %s" % (
                    "open" if value is None else "holds" if holds else "FAILS", kind,
                    label(worst[0]) if worst else " ".join([one.name, *("%s=%s" % option for wanted in only for option in wanted),
                                                            dtype, "×".join(map(str, shape))]),
                    "not timed" if value is None else text % value, "least" if at_least else "most", text % limit))
    return not failed


def _beside_naive(rows):
    """The rows, with what the variant of kind "naive" takes for the same, where it was timed."""
    same = lambda row: (row["op"], row["dtype"], tuple(row["shape"]))
    naive = {same(row): row["ms"]["tfuse"] for row in rows if row.get("kind") == "naive"}
    return [{**row, "naive_ms": naive[same(row)]} if same(row) in naive else row for row in rows]


# ---- beside an earlier run ----

AS_BEFORE = 1.02  # times what a row took


def times_of(rows):
    """Milliseconds of each row, by what identifies it."""
    return {(label(row), row["direction"]): row["ms"]["tfuse"] for row in rows}


def check_against(before, rows):
    """Prints which rows take more than those of an earlier run; returns whether some were timed and none does."""
    ratios = sorted((row["ms"]["tfuse"] / before[key], *key, before[key], row["ms"]["tfuse"])
                    for row in rows if launches(row) for key in [(label(row), row["direction"])] if key in before)
    if not ratios:
        print("\nnone of the record's %d timings was made: it may be of another machine, or of other dtypes" % len(before))
        return False
    slower = [found for found in ratios if found[0] > AS_BEFORE]
    print("\n%d timings beside the record's, of %d; the median takes %.3f times as long; %d take over %.2f times as long" % (
        len(ratios), len(before), ratios[len(ratios) // 2][0], len(slower), AS_BEFORE))
    for ratio, name, direction, was, is_ in reversed(slower):
        print("  %.3f: %s %s, %.4f ms, was %.4f" % (ratio, name, direction, is_, was))
    return not slower


# ---- tables ----

# A line of a table, and of a plot: tfuse's milliseconds, forward and backward together, its speed as text, and how many
# times that time each rival takes. The slowest, where it stands for several variants.
Line = collections.namedtuple("Line", "name shape dtype ms speed times")


def family_of(op):
    """The family that a saved row's op belongs to. A name that the cases do not have, as one that is timed with another
    setting of the library, is taken for its beginning's."""
    begin = lambda name: name.split(",")[0]
    files = {name: file for found in (cases.all_cases(), cases.all_timed()) for file, members in found.items()
             for case in members for name in (case.name, begin(case.name))}
    return next((family for family, some in FAMILIES.items() if files.get(op, files.get(begin(op))) in some), None)


def by_family(rows):
    """The rows of each family that has any, in the families' order."""
    known = {op: family_of(op) for op in dict.fromkeys(row["op"] for row in rows)}
    found = {family: [row for row in rows if known[row["op"]] == family] for family in FAMILIES}
    return {family: some for family, some in found.items() if some}


def lines(rows):
    """One Line per variant at the first shape that an op was timed at; for its other shapes, the slowest variant of each."""
    for (name, shape), some in _grouped(rows).items():
        for dtype in dict.fromkeys(row["dtype"] for row in some):
            pairs = [(f, b) for f, b in zip(some[::2], some[1::2]) if f["dtype"] == dtype]
            both = lambda pair, who: sum(row["ms"][who] for row in pair)
            measure, text, unit = (("TF_per_s", "%.3g", " TF/s") if "TF_per_s" in pairs[0][0] else
                                   ("percent_of_copy", "%.0f%%", ""))
            slowest = [min((pair[i][measure] for pair in pairs if launches(pair[i])), default=None) for i in (0, 1)]
            times = {rival: min(both(pair, rival) / both(pair, "tfuse") for pair in pairs) for rival in RIVALS
                     if all(rival in f["ms"] for f, _ in pairs)}
            yield Line(name, shape, dtype, max(both(pair, "tfuse") for pair in pairs),
                       " / ".join(text % speed if speed else "–" for speed in slowest) + unit, times)


def _grouped(rows):
    """Rows by (name, shape), as a reader calls them."""
    first, variants, found = {}, {}, {}
    for row in rows:
        variants.setdefault((row["op"], _shape(row)), set()).add(_said(row))
    for row in rows:
        key = row["op"], _shape(row)
        slowest = first.setdefault(row["op"], key) != key and len(variants[key]) > 1
        name = _name(row) + (", slowest" if slowest else " " + _said(row) if _said(row) else "")
        found.setdefault((name, _shape(row)), []).append(row)
    return found


def _name(row):
    return row["op"].replace(", speed", "")


def _said(row):
    return " ".join(_variant(row)).replace("is_causal=True", "causal")


def _shape(row):
    return "×".join(map(str, row["shape"]))


def table(rows):
    """A family's rows in Markdown, as lines."""
    found = {}
    for line in lines(rows):
        found.setdefault((line.name, line.shape), {})[line.dtype] = line
    columns = []
    for dtype in dict.fromkeys(dtype for some in found.values() for dtype in some):
        timed = {rival for some in found.values() if dtype in some for rival in some[dtype].times}
        columns += [(dtype, column) for column in ["ms", "speed", *(rival for rival in RIVALS if rival in timed)]]
    yield "| op | shape | %s |" % " | ".join(dtype + " ms" if column == "ms" else column for dtype, column in columns)
    yield "|---|---|%s" % ("--:|" * len(columns))
    for (name, shape), some in found.items():
        yield "| %s | %s | %s |" % (name, shape, " | ".join(_cell(some.get(dtype), column) for dtype, column in columns))


def _cell(line, column):
    if line is None:
        return ""
    if column in ("ms", "speed"):
        return "%.3f" % line.ms if column == "ms" else line.speed
    ratio = line.times.get(column)
    return "–" if ratio is None else ("**%.2f×**" if round(ratio, 2) < 1 else "%.1f×") % ratio


def losses(rows):
    """Where a rival is faster, in Markdown, as lines: the worst first, variants of an op that lose alike in one."""
    found, close = {}, 0
    for row, direction, rival, percent in lost(rows):
        if percent < 1:
            close += 1
        else:
            found.setdefault((_name(row), row["dtype"], direction, rival), []).append((percent, row))
    yield "| op | faster | by | where |"
    yield "|---|---|--:|---|"
    for (name, dtype, direction, rival), some in sorted(found.items(), key=lambda item: -max(p for p, _ in item[1])):
        by = list(dict.fromkeys("%.0f" % f(percent for percent, _ in some) for f in (min, max)))
        shapes, variants = (", ".join(dict.fromkeys(filter(None, (f(row) for _, row in some)))) for f in (_shape, _said))
        yield "| %s %s, %s | %s | %s%% | %s |" % (name, dtype, direction, rival, " to ".join(by),
                                               "; ".join(filter(None, (shapes, variants))))
    timed = collections.Counter(rival for *_, ms in compared(rows) for rival in RIVALS if rival in ms)
    yield ""
    for rival, count in timed.items():
        yield "- %s is faster in %d of %d timings." % (rival, sum(r == rival for *_, r, _ in lost(rows)), count)
    yield "- In %d of these it is ahead by less than 1%%; the table leaves them out." % close


def page(saved, images=None):
    """A saved run in Markdown: for each family a table and, where `images` says what the names of pictures begin with, its
    picture; then where rivals are faster."""
    made = list(dict.fromkeys("%(commit)s (%(date)s)" % row for row in saved["rows"] + saved.get("steps", [])))
    apart = list(dict.fromkeys(row["rivals_commit"] for row in saved["rows"] + saved.get("steps", []) if "rivals_commit" in row))
    text = [textwrap.fill("%s, TensorFlow %s; a plain copy moves %.2f TB/s. Commits: %s.%s" % (
        saved["hardware"], saved["tensorflow"], saved["copy_TB_per_s"], ", ".join(made),
        " Rivals were timed in other runs, at %s." % ", ".join(apart) if apart else ""), 120)]
    families = by_family(saved["rows"])
    for family in FAMILIES:
        steps = saved.get("steps", []) if family == "lists" else []
        if family in families or steps:
            text += ["", "### " + family.capitalize(), "", textwrap.fill(NOTES[family], 120)]
            if images and (steps or any(line.times for line in lines(families[family]))):  # else no rival was timed
                text += ["", "![%s: how many times tfuse's time others take](%s%s.png)" % (family, images, family)]
            text += ["", *table(families[family])] if family in families else []
            text += _bench_optimizers.table(steps)
    return "\n".join(text + ["", "### Where it loses", "", *losses(saved["rows"])])
