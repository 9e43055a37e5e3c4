"""Measures generation with tfuse and without, and writes it down.

  python examples/generation.py                            # all rows: benchmarks/generation_<GPU>.json, docs/generation.md
  python examples/generation.py --rows tfuse               # one of them; the other rows of the record stay
  python examples/generation.py --only batch1,requests     # some of the works
  python examples/generation.py --table FILE.json          # print the table of a record; --write puts it into the page

The models are Llamas with random weights in bfloat16. A process builds a model and runs all works of it: generation_works.py
has these, generation_models.py runs them with KerasHub, and generation_torch.py with Transformers, where that is installed. The
work called start measures whole processes: one that finds no caches, and one that finds those of the first.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from compare import HERE, ROOT, about_in_a_process, finished, in_files, reason
from generation_works import WORKS
from records import between, line, made_with
from workloads import keep

PAGE = ROOT / "docs" / "generation.md"
ROWS = {  # what a row is called, its framework, its script's mode
    "tfuse": ("KerasHub with tfuse", "kerashub", "tfuse"),
    "xla": ("KerasHub, XLA", "kerashub", "xla"),
    "transformers": ("Transformers, compiled", "transformers", "compile"),
}
SCRIPTS = {"kerashub": HERE / "generation_models.py", "transformers": HERE / "generation_torch.py"}
CACHES = ["TFUSE_CACHE", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"]  # say where caches are
VERSIONS = ["TensorFlow", "Keras", "KerasHub", "PyTorch", "Transformers"]

# ---- measuring ----


def jobs_of(rows, works, small):
    """(row, framework, arguments) of each process but those that are timed from their start: row says which works it measures.
    PyTorch has a process for each: once it has compiled for a second shape, it compiles for any. It quantises in ways of its
    own, which are not compared."""
    for mode in rows:
        name, framework, own_mode = ROWS[mode]
        groups = {}
        for work in works:
            kind, (_, quantized, cache_dtype) = WORKS[work].kind, WORKS[work].setting()
            is_own = kind == "requests" or cache_dtype
            if kind == "start" or is_own and mode != "tfuse" or quantized and framework == "transformers":
                continue
            groups.setdefault(work if framework == "transformers" else WORKS[work].setting(), []).append(work)
        for mine in groups.values():
            arguments = ["--mode", own_mode, "--works", ",".join(mine), *["--small"] * small]
            yield {"name": name, "works": mine}, framework, arguments


def measured(jobs, limit):
    """Yields a row for each work of each job; one that fails says why."""
    for job, _, _ in jobs:
        print("to be measured: %s: %s" % (job["name"], ", ".join(job["works"])), flush=True)
    for job, found, why in finished(SCRIPTS, jobs, limit) if jobs else ():
        for work in job["works"]:
            yield {"work": work, "name": job["name"], **((found or {}).get(work) or {"failed": why or "nothing was measured"})}


def started(mode, work, small, limit):
    """The row of a work that is the start of a process, without caches and with those of the first."""
    name, framework, own_mode = ROWS[mode]
    row = {"work": work, "name": name}
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder, "measured.json")
        caches = dict.fromkeys(CACHES, folder + "/caches")
        # Python may keep the bytecode of packages, as pip does when it installs them: without it, imports take twice as long.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        for key in ("seconds", "again_s"):
            command = [sys.executable, str(SCRIPTS[framework]), "--mode", own_mode, "--works", work, "--json", str(output),
                       "--started", repr(time.time()), *["--small"] * small]
            try:
                run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit,
                                     env={"TF_CPP_MIN_LOG_LEVEL": "3", **environment, **caches})
            except subprocess.TimeoutExpired:
                return {**row, "failed": "stopped after %d s" % limit}
            if run.returncode or not output.exists():
                return {**row, "failed": (reason(run.stdout) or "status %d" % run.returncode)[:200]}
            row[key] = json.loads(output.read_text())[work]["seconds"]
            output.unlink()
    return row


def key(row):
    return list(WORKS).index(row["work"]), [name for name, _, _ in ROWS.values()].index(row["name"])


def with_row(rows, new):
    """Rows that were not measured again stay, with the commit that they were measured at."""
    return sorted([row for row in rows if key(row) != key(new)] + [new], key=key)


# ---- showing ----


def result(row):
    """In words, and as a number of which more is better."""
    if "failed" in row:
        return "failed" if not row["failed"].startswith("stopped") else row["failed"], None
    if "ms" in row:
        return "%.1f ms" % row["ms"], -row["ms"]
    if "seconds" in row:
        return "%.1f s, with caches %.1f s" % (row["seconds"], row["again_s"]), -row["again_s"]
    same = "; %d of %d as one by one" % tuple(row["same"]) if "same" in row else ""
    return "%s tokens/s%s" % (format(row["tokens_per_s"], ",.0f"), same), row["tokens_per_s"]


def table(record):
    heads = ["Llama", "", "", "result", "bar", "first call", "peak memory"]
    lines = [made_with(record, VERSIONS, record["rows"]), "", line(heads), "|" + "---|" * len(heads)]
    best = {}
    for row in record["rows"]:
        best.setdefault(row["work"], []).append(result(row)[1])
    for row in record["rows"]:
        work, (text, number) = WORKS[row["work"]], result(row)
        if number is not None and number == max(n for n in best[row["work"]] if n is not None):
            text = "**%s**" % text
        lines.append(line([work.model, work.title, row["name"], text, work.bar and format(work.bar, ","),
                           "%.1f s" % row["first_s"] if "first_s" in row else "",
                           "%.1f GB" % row["peak_GB"] if "peak_GB" in row else ""]))
    return "\n".join(lines)


def write(record):
    PAGE.write_text(between(PAGE.read_text(), "generation", table(record)))


def some(text, known, what, parser):
    """What an option names."""
    for name in text.split(","):
        if name not in known:
            parser.error("there is no %s %s: there are %s" % (what, name, ", ".join(known)))
    return text.split(",")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", metavar="FILE", type=pathlib.Path, help="print the table of this record, measure nothing")
    parser.add_argument("--write", action="store_true", help="with --table: write docs/generation.md too")
    parser.add_argument("--rows", default=",".join(ROWS), help="(%(default)s)")
    parser.add_argument("--only", default=",".join(WORKS), metavar="WORKS", help="(%(default)s)")
    parser.add_argument("--small", action="store_true", help="with --out: sizes that a CPU runs in seconds")
    parser.add_argument("--limit", type=int, default=240, help="seconds that one process may take (240)")
    parser.add_argument("--out", metavar="FOLDER", default=ROOT / "benchmarks", type=pathlib.Path, help="of the record")
    options = parser.parse_args(arguments)
    options.rows, options.only = some(options.rows, ROWS, "row", parser), some(options.only, WORKS, "work", parser)
    options.rows = [row for row in options.rows if row != "transformers" or importlib.util.find_spec("transformers")]
    if options.small and options.out.resolve() == ROOT / "benchmarks":
        parser.error("--small goes with --out: its times belong into no record of ours")
    return options


def main(arguments=None):
    options = parse(arguments)
    if options.table:
        record = json.loads(options.table.read_text())
        print(table(record))
        return write(record) if options.write else None
    about = about_in_a_process()
    when = {name: about.pop(name) for name in ("commit", "date")}
    options.out.mkdir(exist_ok=True)
    path = options.out / ("generation_%s.json" % in_files(about["hardware"]))
    record = {**about, "rows": json.loads(path.read_text())["rows"] if path.exists() else []}
    for row in rows_of(options):
        record["rows"] = with_row(record["rows"], {**row, **when})  # after each: if it is cut short, nothing is lost
        keep(path, json.dumps(record, indent=1) + "\n")
        print("%-24s %-12s %s%s" % (row["name"], row["work"], result(row)[0], ": " + row["failed"] if "failed" in row else ""),
              flush=True)
    print("\n%s\n\nwritten: %s" % (table(record), path))
    if options.out.resolve() == ROOT / "benchmarks":
        write(record)
    return None


def rows_of(options):
    """Of all that is to be measured."""
    yield from measured(list(jobs_of(options.rows, options.only, options.small)), options.limit)
    for mode in options.rows:
        for work in options.only:
            if WORKS[work].kind == "start":
                yield started(mode, work, options.small, options.limit)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, so that what was started is ended
    sys.exit(main())
