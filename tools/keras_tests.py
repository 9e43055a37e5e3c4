"""Runs Keras's own tests twice, stock and with tfuse.enable(), and prints those that are lost: that pass stock, and not with
tfuse. Exit status 1 where one is lost, 2 where nothing could be compared.

  ./run python tools/keras_tests.py                            # layers, ops, losses, optimizers, trainers, saving, export
  ./run python tools/keras_tests.py optimizers layers/pooling  # folders and files below keras/src
  ./run python tools/keras_tests.py ops/nn_test.py -k pool --as-on-a-gpu

The tests are those of the release that is installed. Keras's wheels have none; the source distribution of 3.15 does, and is
fetched by pip on first use and kept under .venv/keras_tests. For earlier releases, which have none there either, and on a
machine without network, give a checkout of that release, or an unpacked source distribution, as --source: the folder where
keras/ and pyproject.toml are.

  TFUSE_LIBRARY=… PYTHONPATH=python python3 tools/keras_tests.py --source keras-3.15.1 --jobs 8

On a machine without a GPU, enable() leaves products, convolutions, pooling and large arrays to Keras. --as-on-a-gpu has tfuse
serve them all the same, by its kernels for CPUs. --stock keeps the results of stock Keras, which do not change from one change
of tfuse to the next.

Some files import jax, torch, scipy, pandas, grain or onnxruntime. Where these are not installed, they are listed with what else
fails stock, and are not compared.
"""
import argparse
import collections
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["layers", "ops", "losses", "optimizers", "trainers", "saving", "export"]
CHUNK = 60_000  # bytes of tests that one process takes: some minutes at most, and starting TensorFlow is a small part of it
RANK = ["begun", "skipped", "passed", "failed"]  # from the best that may be known of a test to the worst
ENDS = (0, 1, 5)  # what pytest returns where it has run all tests: passed, some failed, none were there
Job = collections.namedtuple("Job", "mode files number")


def say(text):
    print("keras_tests: " + text, file=sys.stderr, flush=True)


def fail(text):
    say(text)
    sys.exit(2)


# ---- where the tests are ----


def fetched(version):
    """The folder of a release's sources, fetched from PyPI on first use."""
    home = ROOT / ".venv" / "keras_tests"
    folder = home / ("keras-" + version)
    if not folder.exists():
        say("fetching the sources of Keras %s" % version)
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as scratch:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "keras", "-d", scratch,
                       "keras==" + version]
            if subprocess.run(command).returncode:
                fail("pip could not fetch the sources of Keras %s: give a folder that has them as --source" % version)
            unpack(next(pathlib.Path(scratch).glob("keras-*.tar.gz")), pathlib.Path(scratch))
            os.rename(pathlib.Path(scratch, folder.name), folder)
    return folder


def unpack(path, folder):
    """Files of an archive below a folder, and none elsewhere: without links, devices and owners. Python 3.11.2, Debian 12's own,
    has no extractall(filter="data")."""
    with tarfile.open(path) as archive:
        for entry in archive:
            target = (folder / entry.name).resolve()
            if not target.is_relative_to(folder.resolve()):
                fail("%s has a file outside of the folder that it is unpacked into: %s" % (path, entry.name))
            if entry.isfile():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.extractfile(entry).read())


def checked(folder, version):
    """The folder, if it has the tests of this release."""
    path = folder / "keras" / "src" / "version.py"
    if not path.exists():
        fail("%s is not a folder of Keras's sources: it has no keras/src/version.py" % folder)
    found = re.search(r'^__version__ = "(.*)"', path.read_text(), re.M)[1]
    if found != version:
        fail("Keras %s is installed, and %s has the tests of %s: they have to be the same" % (version, folder, found))
    if not any(folder.glob("keras/src/**/*_test.py")):
        fail("%s has no *_test.py: sources of this release come without tests; give a checkout of it as --source" % folder)
    return folder.resolve()


def tests_of(folder, names):
    """Paths of the test files, relative to the folder."""
    files = []
    for name in names or FOLDERS:
        path = folder / "keras" / "src" / name
        if not path.exists():
            fail("there is no keras/src/%s in %s" % (name, folder))
        files += [path] if path.is_file() else sorted(path.glob("**/*_test.py"))
    return [str(path.relative_to(folder)) for path in dict.fromkeys(files)]


def chunks(files, size_of, most=CHUNK):
    """Files that one process takes, in order, by their sizes; a larger file alone."""
    chunk, total = [], 0
    for file in files:
        if chunk and total + size_of(file) > most:
            yield chunk
            chunk, total = [], 0
        chunk.append(file)
        total += size_of(file)
    if chunk:
        yield chunk


# ---- results ----


def read_results(lines):
    """Of lines that the plugin wrote, {test: [outcome, why, whether tfuse had a part in it]}. Of several reports of a test, such
    as that of its tear-down, the worst counts. What was begun and has no other outcome ended its process."""
    results = {}
    for line in map(json.loads, lines):
        new = [line["outcome"], line.get("why", ""), line.get("served", False)]
        if RANK.index(new[0]) >= RANK.index(results.get(line["test"], new)[0]):
            results[line["test"]] = new
    return {test: ["failed", "it ended the process", False] if result[0] == "begun" else result
            for test, result in results.items()}


def lost(stock, enabled):
    """(test, why) of those that passed stock, and did not with tfuse, or were not even found there."""
    for test, (outcome, *_) in sorted(stock.items()):
        now, why, _ = enabled.get(test, ["failed", "it was not run", False])
        if outcome == "passed" and now != "passed":
            yield test, why or now


def counted(results):
    count = collections.Counter(outcome for outcome, *_ in results.values())
    return "%d passed, %d failed, %d skipped" % (count["passed"], count["failed"], count["skipped"])


def report(stock, ours, mode):
    """Prints it, and returns what is lost."""
    gone, served = list(lost(stock, ours)), sum(served for *_, served in ours.values())
    lines = ["fails stock: %s: %s" % (test, why) for test, (outcome, why, _) in sorted(stock.items()) if outcome == "failed"]
    lines += ["lost: %s: %s" % pair for pair in gone]
    print(*lines, "stock: " + counted(stock), "%s: %s; kernels of tfuse ran in %d" % (mode, counted(ours), served),
          "%d lost" % len(gone), sep="\n")
    return gone


# ---- running them ----


class Runner:
    """Runs jobs, several at a time, each in a process; in another one, where that is ended half-way, what it has left."""

    def __init__(self, source, scratch, options):
        self._source, self._scratch, self._options = source, pathlib.Path(scratch), options
        path = [source, ROOT / "tools", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        self._environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_FORCE_GPU_ALLOW_GROWTH": "true", **os.environ,
                             "KERAS_BACKEND": "tensorflow", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, path))}
        if "TFUSE_LIBRARY" in os.environ:
            self._environment["TFUSE_LIBRARY"] = os.path.abspath(os.environ["TFUSE_LIBRARY"])

    def _folder(self, job):
        return self._scratch / ("%s-%d" % (job.mode, job.number))

    def _lines(self, job):
        path = self._folder(job) / "results"
        return path.read_text().splitlines() if path.exists() else []

    def _start(self, job):
        folder = self._folder(job)
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors",
                   "--rootdir", self._source, "--basetemp", folder / "pytest",
                   "-p", "keras_tests_plugin", "--mode", job.mode, "--results", folder / "results",
                   *(["-k", self._options.k] if self._options.k else []), *job.files]
        with open(folder / "log", "a") as log:
            process = subprocess.Popen(list(map(str, command)), cwd=self._source, env=self._environment, stdout=log,
                                       stderr=subprocess.STDOUT)
        return process, len(self._lines(job)), time.monotonic()

    def _has_ended(self, started):
        process, _, since = started
        if process.poll() is None and time.monotonic() - since > self._options.limit:
            process.kill()
            process.wait()
        return process.poll() is not None

    def run(self, jobs):
        """{mode: results} of all jobs, and those jobs that came to no end."""
        waiting, running, results, cut = list(jobs), {}, {job.mode: {} for job in jobs}, []
        while waiting or running:
            while waiting and len(running) < self._options.jobs:
                job = waiting.pop(0)
                running[job] = self._start(job)
            time.sleep(0.2)
            for job in [job for job, started in running.items() if self._has_ended(started)]:
                process, before, _ = running.pop(job)
                if process.returncode not in ENDS and len(self._lines(job)) > before:
                    running[job] = self._start(job)
                    continue
                found = read_results(self._lines(job))
                results[job.mode].update(found)
                say("%d of %d: %s, %s%s: %s" % (len(jobs) - len(waiting) - len(running), len(jobs), job.mode,
                                                job.files[0].removeprefix("keras/src/"), ", …" * (len(job.files) > 1),
                                                counted(found)))
                if process.returncode not in ENDS:
                    cut.append(job)
                    log = (self._folder(job) / "log").read_text(errors="replace")
                    say("it ended with status %d:\n%s" % (process.returncode, log[-2000:]))
        return results, cut


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a folder or file below keras/src (%s)" % " ".join(FOLDERS))
    parser.add_argument("-k", metavar="EXPRESSION", help="only tests whose names fit, as in pytest")
    parser.add_argument("--source", type=pathlib.Path, help="a folder with the sources of the release that is installed")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--as-on-a-gpu", action="store_true", help="tfuse also serves what it leaves to Keras without a GPU")
    parser.add_argument("--stock", type=pathlib.Path, metavar="FILE",
                        help="results of stock Keras: those that it has are not run again, others are added")
    parser.add_argument("--limit", type=float, default=3600, help="seconds, after which a process hangs (3600)")
    return parser.parse_args(arguments)


def main(arguments=None):
    options, begin = options_of(arguments), time.monotonic()
    version = importlib.metadata.version("keras")
    source = checked(options.source or fetched(version), version)
    files = tests_of(source, options.names)
    kept = json.loads(options.stock.read_text()) if options.stock and options.stock.exists() else {}
    same = [version, options.k]  # for which results are kept
    known = kept.get("files", []) if kept.get("of") == same else []
    mode = "as-on-a-gpu" if options.as_on_a_gpu else "enabled"
    jobs = []
    for number, chunk in enumerate(chunks(files, lambda file: (source / file).stat().st_size)):
        new = [file for file in chunk if file not in known]
        jobs += [Job("stock", tuple(new), number)] * bool(new) + [Job(mode, tuple(chunk), number)]
    say("Keras %s: %d files, %d processes, %d at a time" % (version, len(files), len(jobs), options.jobs))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        results, cut = Runner(source, scratch, options).run(jobs)
    stock = {**(kept["results"] if known else {}), **results.get("stock", {})}
    if options.stock and not cut:
        options.stock.write_text(json.dumps({"of": same, "files": sorted({*known, *files}), "results": stock}))
    stock = {test: result for test, result in stock.items() if test.partition("::")[0] in files}
    gone = report(stock, results[mode], mode)
    say("%.0f s" % (time.monotonic() - begin))
    if cut:
        fail("not all tests were run: see what the processes said, above")
    if not any(outcome == "passed" for outcome, *_ in stock.values()):
        fail("no test passes with stock Keras: there is nothing to compare with")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
