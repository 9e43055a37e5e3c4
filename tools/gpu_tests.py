"""Runs the tests of Python where Bazel is not: several processes at a time, on one GPU.

  python3 tools/gpu_tests.py                                  # all, 14 at a time
  python3 tools/gpu_tests.py --limit 240 test_conv:3 "test_values:8:GPU and softmax"
  python3 tools/gpu_tests.py --keep logs test_fit             # what the tests print stays in logs/, where one failed

FILE[:PARTS[:EXPRESSION]]: a test's file without its folder and ending, in so many processes, with pytest's -k; without
an expression, all but the cases that name the CPU. TFUSE_LIBRARY names libtfuse.so; tfuse and TensorFlow are importable.
Tests that take all of the GPU's memory come last, one at a time.
Ends with what failed or was cut short, what took longest, and a line `N passed, N failed, N skipped`; exit status 1
unless all have run and passed.
"""
import argparse
import collections
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from test_summary import read_cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = {"test_values": 20, "test_determinism": 10, "test_optimizers": 4, "test_jit_run": 4, "test_gradients": 3, "test_rows": 3,
         "test_conv": 3, "test_batch_norm": 3, "test_reductions": 3, "test_look_back_images": 3}  # of those that take longest
ALONE = {"test_gpu"}  # those that take all of the GPU's memory
Job = collections.namedtuple("Job", "path part parts expression")


def jobs_of(names):
    """What takes longest comes first, and what runs alone last."""
    paths = {path.stem: path for path in (ROOT / "tests").glob("**/test_*.py")}
    names = names or sorted(paths, key=lambda name: -PARTS.get(name, 0))
    for text in sorted(names, key=lambda text: text.partition(":")[0] in ALONE):
        name, parts, expression = (text + "::").split(":")[:3]
        if name not in paths:
            sys.exit("there is no test %s: there are %s" % (name, ", ".join(sorted(paths))))
        parts = int(parts or PARTS.get(name, 1))
        yield from (Job(paths[name], part, parts, expression or "not CPU:0") for part in range(parts))


def results_of(folder):
    """Apart from what tests write, which may be results of tests, too."""
    return folder / "results"


def start(job, folder):
    own = {"TEST_TMPDIR": str(folder / "work"), "XML_OUTPUT_FILE": str(results_of(folder) / "test.xml")}
    for path in (folder / "work", results_of(folder)):
        path.mkdir(parents=True)
    if job.parts > 1:
        own.update(TEST_TOTAL_SHARDS=str(job.parts), TEST_SHARD_INDEX=str(job.part), TEST_SHARD_STATUS_FILE=str(folder / "heeded"))
    command = [sys.executable, ROOT / "tools" / "pytest_main.py", job.path, "-q", "-k", job.expression]
    with open(folder / "log", "w") as log:
        return subprocess.Popen(command, env={"TF_FORCE_GPU_ALLOW_GROWTH": "true", **os.environ, **own}, cwd=ROOT, stdout=log,
                                stderr=subprocess.STDOUT, start_new_session=True)


def stop(process):
    """Ends it, and what it has started: a program or a server that stays would keep the GPU's memory from all tests after it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ended(job, process, folder, count):
    """Counts its cases, and gives a line for each that failed; for all of it, where it came to no end."""
    cases = list(read_cases(results_of(folder)))
    count.update(outcome for outcome, *_ in cases)
    bad = ["%s %s: %s" % (job.path.stem, name, why) for outcome, name, why, _ in cases if outcome == "failed"]
    if process.returncode in (0, 5) or bad:  # 5: the expression leaves none
        return bad
    count["failed"] += 1
    return ["%s, part %d of %d: status %d, %s" % (job.path.stem, job.part + 1, job.parts, process.returncode,
                                                  (folder / "log").read_text(errors="replace")[-500:])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=14, help="processes at a time (14)")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds, after which what runs is stopped")
    parser.add_argument("--keep", metavar="FOLDER", type=pathlib.Path, help="where logs of tests that failed stay")
    parser.add_argument("tests", nargs="*", metavar="FILE[:PARTS[:EXPRESSION]]")
    options = parser.parse_args()
    waiting, running, took, bad, count = list(jobs_of(options.tests)), {}, [], [], collections.Counter()
    begin = time.monotonic()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:  # what was killed may leave processes that write on
        while waiting or running:
            late = time.monotonic() - begin > options.limit
            if late:
                bad += ["%s, part %d of %d: not begun" % (job.path.stem, job.part + 1, job.parts) for job in waiting]
                count["failed"] += len(waiting)
                waiting = []
            while waiting and len(running) < options.jobs and not (running and waiting[0].path.stem in ALONE):
                job, folder = waiting.pop(0), pathlib.Path(root, str(len(waiting)))
                running[start(job, folder)] = job, folder, time.monotonic()
            time.sleep(0.2)
            for process in list(running):
                if process.poll() is None and not late:
                    continue
                stop(process)
                job, folder, since = running.pop(process)
                why = ended(job, process, folder, count)
                bad += why
                if why and options.keep:
                    shutil.copy(folder / "log", options.keep / ("%s-%d.log" % (job.path.stem, job.part + 1)))
                took.append((time.monotonic() - since, job.path.stem, job.part + 1))
    if bad:
        print(*bad, sep="\n")
    print("took longest: " + ", ".join("%s %d %.0f s" % (name, part, seconds) for seconds, name, part in sorted(took)[:-9:-1]))
    print("%.0f s" % (time.monotonic() - begin))
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % {"passed": 0, "failed": 0, "skipped": 0, **count})
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
