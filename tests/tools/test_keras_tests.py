"""tools/keras_tests.py: what of Keras's tests is lost with tfuse. Keras, TensorFlow and tfuse are stand-ins here, of a few lines."""

import importlib.metadata
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import textwrap

import pytest

from conftest import ROOT

VERSION = importlib.metadata.version("keras")
STAND_INS = {
    "tensorflow": "class config:\n class experimental:\n  enable_tensor_float_32_execution = lambda on: None",
    "tfuse": "on = False\ndef enable():\n global on\n on = True",
    "tfuse/_core": "",
    "tfuse/_core/_library": "def without_gpu():\n return True",
    "tfuse/_core/_explain": "runs = []\ndef _runs(captured):\n return [] if captured else runs",
}
TESTS = """
    import os, tfuse
    from tfuse._core import _explain, _library

    def test_fine(): pass
    def test_served(): _explain.runs.append((len(_explain.runs), {}))
    def test_wrong_with_tfuse():
        if tfuse.on: raise ValueError("it is on,\\n of all things")
    def test_wrong_as_on_a_gpu(): assert _library.without_gpu()
    def test_ends_the_process(): tfuse.on and os._exit(3)
    def test_behind_it(): pass
    def test_wrong_stock():
        if not tfuse.on: raise ValueError("it is off")
"""


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("keras_tests", ROOT / "tools" / "keras_tests.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source(tmp_path):
    """A release of Keras with a file of tests."""
    files = {"keras/__init__.py": "import random\nclass utils:\n set_random_seed = random.seed", "keras/src/__init__.py": "",
             "keras/src/version.py": '__version__ = "%s"' % VERSION, "keras/src/losses/some_test.py": textwrap.dedent(TESTS),
             **{name + ("/__init__.py" if name in ("tfuse", "tfuse/_core") else ".py"): text for name, text in STAND_INS.items()}}
    for name, text in files.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "source"


def run(source, *arguments):
    command = [sys.executable, ROOT / "tools" / "keras_tests.py", "--source", source, *arguments]
    packages = pathlib.Path(pytest.__file__).parent.parent  # wherever pytest is installed
    done = subprocess.run(list(map(str, command)), env={**os.environ, "PYTHONPATH": str(packages)}, text=True, capture_output=True)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_what_is_lost_is_printed(source, tmp_path):
    """A test that ends the process among them; those after it are run all the same."""
    kept, file = tmp_path / "stock", "keras/src/losses/some_test.py::"
    for _ in range(2):  # the second time, stock is not run again
        status, lines, progress = run(source, "losses", "--stock", kept)
        assert lines == [
            "fails stock: %stest_wrong_stock: ValueError: it is off" % file,
            "lost: %stest_ends_the_process: it ended the process" % file,
            "lost: %stest_wrong_with_tfuse: ValueError: it is on, of all things" % file,
            "stock: 6 passed, 1 failed, 0 skipped", "enabled: 5 passed, 2 failed, 0 skipped; kernels of tfuse ran in 1", "2 lost"]
        assert status == 1
    assert "1 of 1: enabled" in progress and "stock" not in progress


def test_nothing_lost(source):
    assert run(source, "losses", "-k", "fine or behind_it")[:2] == (0, [
        "stock: 2 passed, 0 failed, 0 skipped", "enabled: 2 passed, 0 failed, 0 skipped; kernels of tfuse ran in 0", "0 lost"])


def test_as_on_a_gpu(source):
    status, lines, _ = run(source, "losses/some_test.py", "-k", "gpu", "--as-on-a-gpu")
    assert status == 1 and lines[-1] == "1 lost" and "test_wrong_as_on_a_gpu" in lines[0]


def test_nothing_to_compare(source):
    assert run(source, "losses", "-k", "no_such_test")[0] == 2
    status, _, said = run(source, "lossy")
    assert status == 2 and "there is no keras/src/lossy" in said
    (source / "keras/src/version.py").write_text('__version__ = "3.0.0"')
    status, _, said = run(source, "losses")
    assert status == 2 and "Keras %s is installed" % VERSION in said and "tests of 3.0.0" in said


def test_the_worst_of_several_reports_counts(tool):
    lines = [("a", "begun"), ("a", "passed"), ("a", "failed"), ("b", "begun"), ("b", "failed"), ("b", "passed"), ("c", "begun"),
             ("d", "begun"), ("d", "skipped"), ("e", "begun"), ("e", "passed")]
    results = tool.read_results(json.dumps({"test": test, "outcome": outcome}) for test, outcome in lines)
    assert {test: outcome for test, (outcome, *_) in results.items()} == {
        "a": "failed", "b": "failed", "c": "failed", "d": "skipped", "e": "passed"}


def test_lost(tool):
    stock = {name: [outcome, "", False] for name, outcome in (("a", "passed"), ("b", "passed"), ("c", "passed"),
                                                             ("d", "passed"), ("e", "failed"), ("f", "skipped"))}
    ours = {"a": ["passed", "", True], "b": ["failed", "1 != 2", True], "c": ["skipped", "", False], "e": ["failed", "", False],
            "f": ["failed", "", False]}
    assert list(tool.lost(stock, ours)) == [("b", "1 != 2"), ("c", "skipped"), ("d", "it was not run")]


def test_sources_are_unpacked_below_their_folder(tool, tmp_path):
    """By any Python from 3.11.2 on, which has no filter for that: files alone."""
    def archive(name, *entries):
        with tarfile.open(tmp_path / name, "w:gz") as made:
            for path, kind in entries:
                entry = tarfile.TarInfo(path)
                entry.type, entry.size, entry.linkname = kind, 2 * (kind == tarfile.REGTYPE), "/etc/passwd"
                made.addfile(entry, io.BytesIO(b"hi") if entry.size else None)
        return tmp_path / name

    tool.unpack(archive("fine", ("keras-1/src", tarfile.DIRTYPE), ("keras-1/src/a.py", tarfile.REGTYPE),
                        ("keras-1/link", tarfile.SYMTYPE)), tmp_path / "to")
    assert [path.read_text() for path in (tmp_path / "to").rglob("*") if not path.is_dir()] == ["hi"]
    with pytest.raises(SystemExit):
        tool.unpack(archive("outside", ("../up.py", tarfile.REGTYPE)), tmp_path / "to")
    assert not (tmp_path / "up.py").exists()


def test_chunks(tool):
    sizes = {"a": 3, "b": 4, "c": 20, "d": 1, "e": 9}
    assert list(tool.chunks(sizes, sizes.get, 10)) == [["a", "b"], ["c"], ["d", "e"]]


def test_tests_draw_the_same_numbers(source):
    """Whatever ran before them."""
    (source / "keras/src/losses/some_test.py").write_text("import random, tfuse\ndef test_a():\n if tfuse.on: random.random()\ndef test_b():\n"
                    " with open(%r, 'a') as f: f.write('%%s\\n' %% random.random())" % str(source / "drawn"))
    assert run(source, "losses")[0] == 0
    drawn = (source / "drawn").read_text().split()
    assert len(drawn) == 2 and drawn[0] == drawn[1]
