"""./run and what it calls beside Bazel: where Python runs, where the time of a build went, what the tests came to; and a
reader of python -m tfuse that goes away."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT, new_process
from tfuse import __main__ as main
from tfuse._core import _library
from tfuse._tools import _ops

pytestmark = pytest.mark.skipif(not (ROOT / "run").exists(), reason="not in the source tree")


# ---- ./run python ----


@pytest.mark.skipif(not all(map(shutil.which, ["gcc", "readelf"])), reason="./run would install what is missing")
def test_python_runs_where_it_is_called(tmp_path):
    """From any folder, with a Bazel that has built all there is."""
    checkout, elsewhere = tmp_path / "checkout", tmp_path / "else where"
    (checkout / "bazel-bin").mkdir(parents=True)
    (checkout / "bazel-bin/libtfuse.so").touch()
    shutil.copy(ROOT / "run", checkout / "run")
    elsewhere.mkdir()
    (elsewhere / "x.py").write_text("import os, sys\nprint(os.getcwd(), sys.argv[1:], os.environ['TFUSE_LIBRARY'])\n"
                                    "print(os.environ['PYTHONPATH'].split(':')[0])\n")
    environment = {**os.environ, "BAZEL": "true", "TFUSE_PYTHON": sys.executable}
    done = subprocess.run(["../checkout/run", "python", "x.py", "a b"], cwd=elsewhere, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.stdout.splitlines() == [
        "%s ['a b'] %s" % (elsewhere, checkout / "bazel-bin/libtfuse.so"), str(checkout / "python")], done.stdout


# ---- python -m tfuse ----

UNREAD = """
import os, sys
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
from tfuse.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_reader_that_goes_away():
    """As head does."""
    done = new_process(UNREAD, "ops")
    assert (done.returncode, done.stdout) == (141, "")


@pytest.mark.parametrize("error, status", [
    (PermissionError(13, "Permission denied", "/a/file"), 1), (OSError(28, "No space left on device"), 1), (KeyboardInterrupt(), 130)])
def test_what_the_system_refuses_is_a_message(monkeypatch, capsys, error, status):
    """Not a trace; what is no error of the system's keeps its trace."""
    def fails(rest):
        raise error

    monkeypatch.setattr(main, "left", lambda status: status)
    monkeypatch.setattr(_ops, "main", fails)
    assert main.main(["ops"]) == status
    assert capsys.readouterr().err == ("python -m tfuse: %s\n" % error if status == 1 else "")


def test_other_errors_keep_their_trace(monkeypatch):
    def fails(rest):
        raise error

    monkeypatch.setattr(_ops, "main", fails)
    for error in (OSError("of h5py's, say"), ValueError("a bug"), ImportError("a bug", name="tfuse._core._op")):
        with pytest.raises(type(error)):
            main.main(["ops"])


def test_a_path_that_is_not_utf8(monkeypatch, capfdbinary):
    monkeypatch.setattr(_ops, "main", lambda rest: print(os.fsdecode(b"\xff")))
    with open(1, "w", closefd=False, encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        main.main(["ops"])
    assert capfdbinary.readouterr().out == b"\xff\n"


def test_an_argument_that_no_shell_gives(capsys):
    with pytest.raises(SystemExit):
        main.main(["build-op", "a\0b"])
    assert "an argument has a NUL in it" in capsys.readouterr().err


FULL = """
import os, sys
os.dup2(os.open(sys.argv[1], os.O_WRONLY), 1) if sys.argv[1] else os.close(1)
if not sys.argv[1]: sys.stdout = None
from tfuse.__main__ import main
sys.exit(main(["ops"]))
"""


@pytest.mark.parametrize("where, status, said", [("/dev/full", 1, "python -m tfuse: [Errno 28] No space left on device"), ("", 0, "")])
def test_a_stdout_that_takes_nothing(where, status, said):
    done = subprocess.run([sys.executable, "-c", FULL, where], text=True, stderr=subprocess.PIPE,
                          env={**os.environ, "TFUSE_LIBRARY": _library.path, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == status and "Traceback" not in done.stderr and said in done.stderr


# ---- tools/parts.py ----


@pytest.fixture
def parts():
    spec = importlib.util.spec_from_file_location("parts", ROOT / "tools" / "parts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def action(name, start, seconds):
    return {"cat": "action processing", "name": name, "ts": start * 1e6, "dur": seconds * 1e6}


def test_what_runs_at_the_same_time_shares_it(parts):
    assert parts.shares([("a", 0, 4), ("b", 2, 6), ("b", 3, 4)]) == pytest.approx({"a": 2 + 0.5 + 1 / 3, "b": 0.5 + 2 / 3 + 2})


def test_line(parts):
    events = [{"cat": "general information", "name": "begin", "ts": 0, "dur": 1e6},
              action("Compiling kernels/rows/norm.cu for sm_90", 1, 40), action("Compiling kernels/rows/norm_cpu.c", 1, 10),
              action("Linking libtfuse.so", 41, 2), action("Testing //tests:test_ops", 43, 57), action("Writing file x", 43, 0)]
    assert parts.line(events, 7) == "107 s: install 7 s, C 7 s, device code 35 s, tests 57 s, the rest 1 s"


# ---- tools/test_summary.py ----

XML = "<testsuites><testsuite>%s</testsuite></testsuites>"
ENDED = "begin\n-- Test timed out at 2030-01-02 03:04:05 UTC --\n"  # as Bazel ends a log, and what it reports for a part
BY_BAZEL = '<testcase name="t" time="60"><error message="exited with error code 142"></error></testcase>'
PASSED, FAILED = '<testcase name="a"/>', '<testcase name="b"><failure message="1 is not 2"/></testcase>'


def summary(folder, status, **targets):
    """What is printed of a run, of {target: (Bazel's words, (part, cases, log) …)}."""
    for name, (_, *parts) in targets.items():
        for part, cases, log in parts:
            place = folder / "logs/tests" / name / part
            place.mkdir(parents=True)
            (place / "test.xml").write_text(XML % cases)
            (place / "test.log").write_text(log)
    (folder / "command.log").write_text("".join("//tests:%-40s %s\n" % (name, words) for name, (words, *_) in targets.items()))
    done = subprocess.run([sys.executable, ROOT / "tools/test_summary.py", folder / "command.log", folder / "logs",
                           str(status)], text=True, stdout=subprocess.PIPE)
    assert done.returncode == (1 if status else 0)
    return done.stdout


def test_a_time_out_is_called_one(tmp_path):
    out = summary(tmp_path, 3, c_test=("TIMEOUT in 60.1s", ("", BY_BAZEL, ENDED)), fine=("PASSED in 1.0s", ("", PASSED, "")))
    assert "//tests:c_test timed out after 60 s, its limit" in out and "./run test //tests:c_test; if it is ended again" in out
    assert str(tmp_path / "logs/tests/c_test/test.log") in out and "1 passed, 1 failed\n" in out and "142" not in out


@pytest.mark.parametrize("words", ["TIMEOUT in 1 out of 3 in 3600.2s", "FAILED in 2 out of 3 in 3600.2s"])
def test_a_part_that_timed_out(tmp_path, words):
    """What the other parts have found is told beside it."""
    out = summary(tmp_path, 3, cut=(words, ("shard_1_of_3", PASSED, ""), ("shard_2_of_3", PASSED + FAILED, "FAILED"),
                                    ("shard_3_of_3", BY_BAZEL, ENDED)))
    assert "//tests:cut timed out after 3600 s" in out and "//tests:cut b: 1 is not 2" in out and "2 passed, 2 failed\n" in out
    assert all("shard_%d_of_3/test.log" % i in out for i in (2, 3)) and "shard_1_of_3" not in out


def test_a_crash_is_no_time_out(tmp_path):
    out = summary(tmp_path, 3, c_test=("FAILED in 60.1s", ("", BY_BAZEL.replace("142", "139"), "begin\n")))
    assert "//tests:c_test t: exited with error code 139" in out and "timed out" not in out and "0 passed, 1 failed\n" in out


def test_a_case_of_several_files_is_told_with_its_own(tmp_path):
    of = lambda file: FAILED.replace("name=", 'classname="tests.rows.%s" name=' % file)
    out = summary(tmp_path, 3, rows_short=("FAILED in 1.0s", ("", of("test_losses"), "")),
                  test_rows=("FAILED in 1.0s", ("", of("test_rows"), "")))
    assert "//tests:rows_short test_losses::b: 1 is not 2" in out and "//tests:test_rows b: 1 is not 2" in out
