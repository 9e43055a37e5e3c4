"""examples/graphs.py: what it reads from XLA's dump, and its table."""

import json
import sys

from conftest import ROOT

sys.path.append(str(ROOT / "examples"))

import graphs
import records

RECORD = {"hardware": "a GPU", "tensorflow": "2", "keras": "3", "rows": [
    {"name": "a step", "graphs": True, "ms": 1.234, "buffers": 2, "inside": 30, "outside": 4, "commit": "abc",
     "date": "2026-01-01"}]}


def test_calls_inside_graphs_are_indented(tmp_path):
    (tmp_path / "module_1.thunk_sequence_after_thunk_passes.txt").write_text(
        "000: kCommandBuffer\n    001: kKernel, kernel = a\n    002: kCustomCall\n    003: kCustomCall\n004: kCustomCall\n")
    (tmp_path / "module_2.thunk_sequence_after_thunk_passes.txt").write_text("000: kCommandBuffer\n    001: kCustomCall\n")
    (tmp_path / "module_2.thunk_sequence.txt").write_text("000: kCustomCall\n")
    assert graphs.calls_in(tmp_path) == (2, 3, 1)


def test_calls_of_a_module_without_graphs_are_counted(tmp_path):
    (tmp_path / "module_1.thunk_sequence.txt").write_text("000: kCustomCall\n001: kKernel\n002: kCustomCall\n")
    assert graphs.calls_in(tmp_path) == (0, 0, 2)


def test_a_step_is_timed(monkeypatch):
    """The shorter of the two."""
    monkeypatch.setitem(graphs.SMALL, "layers", 1)
    name, _ = graphs.STEPS
    step = graphs.STEPS[name][0]()
    assert float(step()) == float(step())


def test_the_table_is_in_the_readme():
    assert graphs.table(RECORD).splitlines() == [
        "a GPU, TensorFlow 2, Keras 3, commit abc (2026-01-01).", "",
        "| a step of | tfuse's calls | graphs | calls in graphs | calls outside | ms |", "|---|---|---|---|---|---|",
        "| a step | captured | 2 | 30 | 4 | 1.23 |"]
    readme, path = (ROOT / "examples/README.md").read_text(), ROOT / "benchmarks/graphs_nvidia_h200.json"
    assert "<!-- graphs -->\n" in readme
    if path.exists():
        shown = graphs.table(json.loads(path.read_text()))
        assert readme == records.between(readme, "graphs", shown), "run examples/graphs.py --table %s --write" % path
