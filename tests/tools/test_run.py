"""./run and what it calls beside Bazel: where Python runs, where the time of a build went, what the tests came to."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

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
