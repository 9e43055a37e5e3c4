"""tools/parts.py: where the time of a build went."""

import importlib.util

import pytest

from conftest import ROOT


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
