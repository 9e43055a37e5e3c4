"""examples/compare.py: the processes that it starts, and what it makes of their measurements: rows, tables and plots."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import tfuse
from conftest import ROOT
from tfuse._core import _library

EXAMPLES = ROOT / "examples"
sys.path.append(str(EXAMPLES))

import compare
import records

WHEN = {"date": "2026-01-01", "commit": "abc"}
HEADS = "| a step of | | `fit()`, ms | its step alone, ms | a second | peak memory | first 3 steps |"


def record():
    row = lambda model, step, name, **measured: {"model": model, "step": step, "name": name, **measured, **WHEN}
    rows = []
    for new in [row("bert", "4 × 8 tokens", "Keras", failed="ModuleNotFoundError: No module named 'keras_hub'"),
                row("vit", "4 images", "Keras with tfuse", batch=4, fit_ms=2.0, ms_per_step=1.99, images_per_s=2004.0,
                    peak_GB=0.5, first_s=1.6, evaluate_ms=12.34, evaluate_step_ms=1.0, predict_ms=3.0),
                row("vit", "1 images", "Keras", batch=1, fit_ms=1.0, images_per_s=1000.0, peak_GB=0.5, incomplete="stopped"),
                row("vit", "4 images", "Keras", ms_per_step=99.0, images_per_s=40.0, peak_GB=9.0, first_s=3.0),
                row("vit", "4 images", "Keras", ms_per_step=4.0, images_per_s=1000.0, peak_GB=1.0, first_s=9.0),  # again
                row("llama", "4 × 8 tokens", "PyTorch, compiled", ms_per_step=3.2, tokens_per_s=12345.0, peak_GB=2.0,
                    first_s=70.0)]:
        rows = records.with_row(rows, new)
    return {"hardware": "a GPU", "tensorflow": "2", "keras": "3", "kerashub": None, "pytorch": "5", "transformers": "6",
            "rows": rows}


def test_the_table_of_models():
    assert records.table(record()).splitlines() == [
        "a GPU, TensorFlow 2, Keras 3, PyTorch 5, Transformers 6, commit abc (2026-01-01).", "",
        HEADS + " `evaluate()` (its step), ms | `predict()` (its step), ms |", "|---|---|---|---|---|---|---|---|---|",
        "| ViT-B/16, 4 images | Keras | – | 4.00 | 1,000 images | 1.0 GB | 9 s | – | – |",
        "| ViT-B/16, 4 images | Keras with tfuse | **2.00** | **1.99** | 2,000 images | 0.5 GB | 2 s "
        "| 12.3 (1.00) | 3.00 (–) |",
        "| ViT-B/16, 1 images | Keras | **1.00** | – | 1,000 images | 0.5 GB | – | – | – |",
        "| BERT base, 4 × 8 tokens | Keras | failed | | | | | | |",
        "| Llama 1.1B, 4 × 8 tokens | PyTorch, compiled | – | **3.20** | 12,300 tokens | 2.0 GB | 70 s | – | – |"]


def test_a_row_is_known_by_its_batch():
    """Those that have none, too: it is the first number of the step's words."""
    again = {"model": "vit", "step": "4 images", "batch": 4, "name": "Keras", "failed": "stopped after 9 s", **WHEN}
    rows = records.with_row(record()["rows"], again)
    assert len(rows) == 5 and rows[0] is again
    assert len(records.with_row(rows, {**again, "step": "2 images", "batch": 2})) == 6


def test_the_table_of_convolutional_networks():
    """In a record of its own."""
    measured = {"ms_per_step": 4.0, "images_per_s": 1000.0, "peak_GB": 1.0, "first_s": 9.0}
    row = {"step": "4 images", "name": "Keras", **measured, **WHEN}
    rows = records.with_row(records.with_row([], {"model": "unet", **row}), {"model": "resnet50", **row})
    made = {**record(), "torchvision": "7", "rows": rows}
    assert records.kind(made) == "vision" and records.table(made).splitlines() == [
        "a GPU, TensorFlow 2, Keras 3, PyTorch 5, torchvision 7, commit abc (2026-01-01).", "",
        HEADS, "|---|---|---|---|---|---|---|",
        "| ResNet-50, 4 images | Keras | – | **4.00** | 1,000 images | 1.0 GB | 9 s |",
        "| U-Net, 4 images | Keras | – | **4.00** | 1,000 images | 1.0 GB | 9 s |"]
    readme = (EXAMPLES / "README.md").read_text()
    shown = records.filled(readme, made, "plot.png")
    assert records.table(made) + "\n\n![Speed and memory of each](plot.png)\n<!-- /vision -->" in shown
    assert shown.split("<!-- vision -->")[0] == readme.split("<!-- vision -->")[0]


def test_the_plot_of_models(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    records.plot(record(), tmp_path / "models.png")
    pixels = pyplot.imread(tmp_path / "models.png")
    colours = {tuple(np.round(pixel * 255).astype(int)) for pixel in pixels[..., :3].reshape(-1, 3)[::7]}
    for name in ("Keras", "Keras with tfuse", "PyTorch, compiled"):
        assert tuple(bytes.fromhex(records.ROWS[name][2][1:])) in colours, name
    assert tuple(bytes.fromhex(records.ROWS["Keras, XLA"][2][1:])) not in colours


def test_the_readme_shows_the_models():
    readme, made = (EXAMPLES / "README.md").read_text(), record()
    shown = records.filled(readme, made, "plot.png")
    assert records.table(made) + "\n\n![Speed and memory of each](plot.png)\n<!-- /models -->" in shown
    assert shown.split("<!-- models -->")[0] == readme.split("<!-- models -->")[0]
    for kind in ("models", "vision"):
        path = ROOT / ("benchmarks/%s_nvidia_h200.json" % kind)
        if path.exists():
            assert readme == records.filled(readme, json.loads(path.read_text()), "../benchmarks/%s.png" % path.stem), (
                "run examples/compare.py --table %s --write" % path)


def test_models_are_compared_by_one_command(tmp_path):
    """Each in a process; where KerasHub is missing, the rows that need it say so, and the others are measured."""
    pytest.importorskip("matplotlib")
    (tmp_path / "keras_hub.py").write_text("raise ModuleNotFoundError(\"No module named 'keras_hub'\")\n")
    path = [str(tmp_path), os.path.dirname(os.path.dirname(tfuse.__file__)), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "TFUSE_LIBRARY": _library.path}
    command = [sys.executable, EXAMPLES / "compare.py", "--models", "unet,vit,bert", "--rows", "tfuse", "--small",
               "--batches", "2", "--out", tmp_path, "--", "--steps", "4"]
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    path, = tmp_path.glob("vision_*.json")
    unet, = json.loads(path.read_text())["rows"]
    assert (unet["model"], unet["batch"]) == ("unet", 2) and unet["images_per_s"] == pytest.approx(2e3 / unet["fit_ms"])
    path, = tmp_path.glob("models_*.json")
    vit, bert = json.loads(path.read_text())["rows"]
    assert (vit["model"], vit["step"], vit["name"]) == ("vit", "2 images", "Keras with tfuse")
    assert 0 < vit["first_s"] < 600 and np.isfinite([vit["loss"], vit["ms_per_step"]]).all() and vit["peak_GB"] > 0
    assert bert["failed"] == "ModuleNotFoundError: No module named 'keras_hub'" and "ms_per_step" not in bert
    assert re.search(r"BERT base, 2 × 16 tokens +Keras with tfuse +ModuleNotFoundError", done.stdout), done.stdout
    assert path.with_suffix(".png").exists()


@pytest.mark.parametrize("arguments, told", [
    (["--models", "gpt2,resnet"], "there is no model resnet"), (["--models", "all", "--small"], "--small goes with"),
    (["--small", "--out", "x"], "--small goes with"), (["--rows", "stock,jax"], "there is no row jax"),
    (["--models", "vit", "--batches", "1,0"], "not 0"), (["--models", "vit", "--batches", "all"], "not all")])
def test_what_compare_refuses(arguments, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
    with pytest.raises(SystemExit):
        compare.main()
    assert told in capsys.readouterr().err


SCRIPT = """
import json, pathlib, sys, time
output = pathlib.Path(sys.argv[sys.argv.index("--json") + 1])
output.write_text(json.dumps({"losses": [2.0, 1.0], "fit_ms": 3.0, "images_per_s": 4.0, "peak_GB": 5.0}))
if "wait" in sys.argv: time.sleep(600)
if "break" in sys.argv: raise MemoryError("out of it")
"""


def test_what_was_measured_before_a_process_ends_is_kept(tmp_path, monkeypatch, capsys):
    """Be it stopped or broken: the row has what was written, and why there is no more. The next one begins with nothing."""
    monkeypatch.setattr(compare, "IMPORTS", {"keras": "pass", "torch": "pass"})
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "silent.py").write_text("raise ValueError('not a word')")
    row = {"model": "vit", "step": "4 images", "batch": 4, "name": "Keras"}
    jobs = [(row, "keras", ["wait"]), (row, "keras", ["break"]), (row, "keras", []), (row, "torch", [])]
    *rows, silent = compare.measure({"keras": tmp_path / "script.py", "torch": tmp_path / "silent.py"}, jobs, 5, WHEN)
    assert [(row["fit_ms"], row.get("incomplete")) for row in rows] == [
        (3.0, "stopped after 5 s"), (3.0, "MemoryError: out of it"), (3.0, None)]
    assert "3.00 ms by fit()" in capsys.readouterr().out and not any("failed" in row for row in rows)
    assert silent == {**row, **WHEN, "failed": "ValueError: not a word"}


def test_nothing_is_left_running_where_compare_ends_early(tmp_path, monkeypatch):
    """The next process is ready and waits by then; beside what is measured later it would be in the times."""
    started, own = [], compare.prepare
    monkeypatch.setattr(compare, "IMPORTS", {"keras": "import time"})
    monkeypatch.setattr(compare, "prepare", lambda *given: started.append(own(*given)) or started[-1])
    (tmp_path / "script.py").write_text("pass\n")
    results = compare.finished({"keras": tmp_path / "script.py"}, [({}, "keras", [])] * 2, 60)
    next(results)
    assert started[1].poll() is None
    results.close()
    assert started[1].poll() is not None


def test_which_processes_compare_starts():
    """Keras alone is asked for evaluate()."""
    jobs = list(compare.model_jobs(["PyTorch, compiled", "Keras with tfuse"], ["vit"], [1, None], False, True, ["--steps", 8]))
    assert [(row["step"], row["batch"], row["name"]) for row, _, _ in jobs] == [
        (step, batch, name) for step, batch in (("1 images", 1), ("128 images", 128))
        for name in ("PyTorch, compiled", "Keras with tfuse")]
    assert jobs[0][1:] == ("torch", ["--mode", "compile", "--model", "vit", "--batch", 1, "--steps", 8])
    assert jobs[3][1:] == ("keras", ["--mode", "tfuse", "--model", "vit", "--evaluate", "--steps", 8])
