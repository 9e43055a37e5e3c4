"""tools/trace_times.py: processor seconds to the third step, in a process for each model and mode."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import keras
import pytest

import tfuse
from conftest import ROOT
from tfuse._core import _library


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("trace_times", ROOT / "tools" / "trace_times.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments):
    path = os.pathsep.join([str(pathlib.Path(tfuse.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.run([sys.executable, ROOT / "tools" / "trace_times.py", *arguments], text=True, capture_output=True,
                          env={**os.environ, "TFUSE_LIBRARY": _library.path, "PYTHONPATH": path})


def test_a_model():
    pytest.importorskip("keras_hub", reason="needs keras-hub, tokenizers and regex")
    done = run("GPT2", "--modes", "tfuse", "--layers", "1", "--as-on-a-gpu")
    assert done.returncode == 0, done.stderr
    title, line, row = done.stdout.splitlines()
    assert re.fullmatch(r"\| processor s +\| +tfuse \|", title) and re.fullmatch(r"\| GPT2 +\| +\d+\.\d \|", row), done.stdout


def test_what_fails_and_what_takes_too_long(tool, monkeypatch, capsys):
    """Both are cells of the table; the error is told beside it."""
    def answer(command, **options):
        mode = command[command.index("--measure") + 1]
        if mode == "stock":
            raise subprocess.TimeoutExpired(command, options["timeout"])
        if mode == "tfuse":
            return subprocess.CompletedProcess(command, 1, "", "Traceback\n  here\nkeras.SomeError: it is broken\n\nthe rest")
        return subprocess.CompletedProcess(command, 0, "said before\n{\"seconds\": 12.345, \"loss\": 1}\n", "")

    monkeypatch.setattr(tool.subprocess, "run", answer)
    monkeypatch.setattr(sys, "argv", ["trace_times.py", "T5", "--modes", "stock,tfuse,tfuse+xla", "--limit", "7"])
    tool.main()
    told = capsys.readouterr()
    assert told.out.splitlines()[2].split() == "| T5 | over 7 | failed | 12.3 |".split()
    assert told.err == "trace_times: T5, tfuse: keras.SomeError: it is broken\n"


def test_what_is_refused():
    done = run("T5", "GPT3")
    assert done.returncode == 2 and "there is no model GPT3; there are GPT2, Bert" in done.stderr


def test_all_models_are_there(tool):
    hub = pytest.importorskip("keras_hub", reason="needs keras-hub, tokenizers and regex")
    assert all(hasattr(hub.models, name + "Backbone") for name in tool.TEXT)
    assert all(hasattr(keras.applications, name) for name in tool.IMAGES)
