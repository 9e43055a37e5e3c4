"""examples/models.py, small: each model trains with tfuse.enable() as in stock Keras. And what examples/compare.py makes of
it: rows, table and plot."""

import ast
import functools
import json
import os
import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import GPUS, ROOT, skip_broken_xla
from enabling import left_as_it_was, needs_attention, ran
from looking_back import joined
from tfuse._core import _library
from tfuse._keras import _replaced_joined

EXAMPLES = ROOT / "examples"
sys.path.append(str(EXAMPLES))

import fitting
import models
import records
import workloads

TRANSFORMERS, VISION = ([name for name, workload in workloads.WORKLOADS.items() if workload.record == kind and name != "lstm"]
                        for kind in ("models", "vision"))
HUB = "bert", "llama", "t5"
# All of them by all of these, and what is joined by looking back: in all of them, and beside that.
SERVED = {"Attention", "AttentionGrad", "Norm", "NormGrad", "Linear", "LinearGrad", "TensorsUpdate"}
JOINED = {"the norm of a sum", "sparse_categorical_crossentropy of a product: its logits are not made as a whole"}
BESIDE = {"gpt2": {"gelu_tanh of a product"}, "bert": {"gelu_tanh of a product"}, "llama": {"silu times another tensor"},
          "t5": {"gelu_tanh times another tensor", "the mask is causal, and another"}}
# The forward ops of a model that has more ops than the library remembers runs, on a GPU those of its loss, too: the gradients'
# come later.
FORGOTTEN = {"t5": {"Attention", "Linear", "Norm", *["LinearCrossEntropy"] * bool(GPUS)}}


def losses(name, jit_compile):
    """Of two steps, in float32."""
    workload = workloads.WORKLOADS[name]
    sizes = workload.sizes(small=True)
    batch = models.on_the_device(workload.batch(sizes))
    step = models.train_function(models.build(name, sizes), [batch], jit_compile, workload.optimizer)
    return [float(step()) for _ in range(2)]


stock_losses = functools.lru_cache(None)(functools.partial(losses, jit_compile=False))  # with XLA they are the same


@needs_attention
@pytest.mark.parametrize("name, jit", [*((name, False) for name in TRANSFORMERS), ("gpt2", True), ("llama", True)])
def test_models_train_as_in_stock_keras(name, jit, as_on_a_gpu, monkeypatch):
    if jit:
        skip_broken_xla()
    monkeypatch.setattr(_replaced_joined, "LEAST_CLASSES", 1)
    if name in HUB:
        pytest.importorskip("keras_hub", reason="needs keras-hub, tokenizers and regex")
    want = stock_losses(name)
    with tfuse.enabled():
        got = losses(name, jit)
    assert got[1] < got[0] - 1e-4
    np.testing.assert_allclose(got, want, rtol=1e-5)
    if not (jit and _library.xla_status()):
        assert (SERVED | {"LinearCrossEntropy"}) - FORGOTTEN.get(name, set()) <= ran()
    assert JOINED | BESIDE.get(name, set()) <= set(joined())


@pytest.mark.parametrize("jit", [False, True])
def test_lstms_train_as_in_stock_keras(jit, as_on_a_gpu, monkeypatch):
    if jit:
        skip_broken_xla()
    monkeypatch.setattr(_replaced_joined, "LEAST_CLASSES", 1)
    want = stock_losses("lstm")
    with tfuse.enabled():
        got = losses("lstm", jit)
    assert got[1] < got[0] - 1e-4
    np.testing.assert_allclose(got, want, rtol=1e-5)
    if not (jit and _library.xla_status()):
        assert {"LinearCrossEntropy", "TensorsUpdate"} <= ran() and {"RecurrenceGrad", "RnnGrad"} & set(ran())


def test_a_unet_trains_as_in_stock_keras(as_on_a_gpu):
    """Of the convolutional networks the one that is not deep: in the others, so small, every batch norm over a few numbers
    makes rounding a hundred times larger with each step."""
    want = losses("unet", False)
    with tfuse.enabled():
        got = losses("unet", False)
    assert got[1] < got[0] - 1e-4
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert {"BatchNormGrad", "ConvData", "ConvFilter", "TensorsUpdate"} <= ran()
    assert "relu of a batch norm" in joined()


@pytest.mark.parametrize("name", VISION)
def test_convolutional_networks_are_as_large_as_published(name):
    """In millions of weights that are trained."""
    model = models.build(name, workloads.WORKLOADS[name].sizes())
    want = {"resnet50": 25.56, "convnext": 28.59, "efficientnet": 5.29, "mobilenet": 3.50, "unet": 7.77}[name]
    assert sum(np.prod(v.shape) for v in model.trainable_variables) / 1e6 == pytest.approx(want, abs=0.03)
    assert model.layers[-1].activation.__name__ == "linear"  # logits


# ---- data ----


def test_every_framework_gets_the_same_batch():
    for workload in workloads.WORKLOADS.values():
        sizes = workload.sizes(small=True)
        tf.nest.map_structure(np.testing.assert_array_equal, workload.batch(sizes), workload.batch(sizes))


def test_masked_tokens():
    sizes = workloads.WORKLOADS["bert"].sizes()
    inputs, labels, weights = workloads.masked_tokens(sizes, np.random.default_rng(0))
    lengths = inputs["padding_mask"].sum(-1)
    assert lengths.min() >= 128 and lengths.max() <= 512 and len(set(lengths)) > 16
    there = np.arange(512) < lengths[:, None]
    assert np.array_equal(inputs["padding_mask"], there)
    hidden = weights == 1
    assert np.array_equal(hidden, inputs["token_ids"] == 3) and not np.any(hidden & ~there)
    assert np.array_equal(inputs["token_ids"][~hidden], labels[~hidden]) and 0.14 < hidden[there].mean() < 0.16


def test_padded_pairs():
    sizes = workloads.WORKLOADS["t5"].sizes()
    inputs, labels, weights = workloads.padded_pairs(sizes, np.random.default_rng(0))
    for side in "encoder", "decoder":
        lengths = inputs[side + "_padding_mask"].sum(-1)
        assert lengths.min() >= 128 and lengths.max() <= 512 and len(set(lengths)) > 8
        assert np.array_equal(inputs[side + "_padding_mask"], np.arange(512) < lengths[:, None])
    assert np.array_equal(inputs["encoder_token_ids"] > 0, inputs["encoder_padding_mask"])
    assert np.array_equal(inputs["decoder_token_ids"][:, 1:], labels[:, :-1]) and not np.any(inputs["decoder_token_ids"][:, 0])
    assert np.array_equal(weights, inputs["decoder_padding_mask"]) and np.array_equal(weights, labels > 0)
    assert workloads.WORKLOADS["t5"].step() == "16 × 512 + 512 tokens"


def test_next_tokens():
    tokens, labels = workloads.WORKLOADS["gpt2"].batch(workloads.WORKLOADS["gpt2"].sizes())
    assert tokens.shape == (16, 1024) and np.array_equal(tokens[:, 1:], labels[:, :-1])


def test_every_pixel_has_a_class_that_can_be_learned():
    """The mean colour of a class's pixels: two batches agree on it."""
    sizes = workloads.WORKLOADS["unet"].sizes(small=True)
    means = []
    for seed in (1, 2):
        pixels, classes = workloads.segments(sizes, np.random.default_rng(seed), learnable=True)
        assert pixels.dtype == np.float32 and classes.shape == pixels.shape[:3] == (8, 32, 32)
        assert np.all(classes[:, :8, :8] == classes[:, :1, :1])  # a field
        means.append([pixels[classes == i].mean(0) for i in range(sizes.classes)])
    np.testing.assert_allclose(*means, atol=0.2)


def test_images_as_pixels_have_them():
    sizes = workloads.WORKLOADS["convnext"].sizes(small=True)
    pixels, _ = workloads.WORKLOADS["convnext"].batch(sizes)
    assert pixels.dtype == np.float32 and abs(pixels.mean() - 118) < 2 and abs(pixels.std() - 58) < 2


def test_what_is_counted():
    for name, want in [("gpt2", 8 * 16), ("vit", 8), ("unet", 8)]:
        workload = workloads.WORKLOADS[name]
        assert workload.count(workload.batch(workload.sizes(small=True))[1]) == want


# ---- timing ----


@pytest.fixture
def passed(monkeypatch):
    """[seconds]: the time that clocks tell."""
    now = [0.0]
    monkeypatch.setattr(workloads.time, "perf_counter", lambda: now[0])
    return now


def test_what_a_run_takes_to_begin_is_no_part_of_a_step(passed):
    """Runs take 7 s to begin and 10 ms a step; one of the short ones takes a second more, and one of the long ones 2."""
    runs = []

    def run(n):
        runs.append(n)
        passed[0] += 7 + 0.01 * n + {2: 1, 5: 2}.get(len(runs), 0)

    assert workloads.slope(run, 40) == pytest.approx(10) and runs == [5, *[5, 45] * 3]


def test_long_runs_take_a_second(passed):
    runs = []

    def run(n):
        runs.append(n)
        passed[0] += 0.02 * n

    assert workloads.slope(run) == pytest.approx(20)
    assert runs == [5, 5, 10, 20, 40, 80, *[5, 85] * 3]
    runs.clear()
    assert workloads.slope(lambda n: runs.append(n)) == 0 and max(runs) == 645  # not for ever


def test_a_measurement_is_written_down_as_it_comes(passed, tmp_path, capsys):
    """The first way has the first steps, the losses, the speed and the memory; the step alone has its own memory. What comes
    before a way that fails is kept."""
    taken, peaks, resets = [], iter([3e9, 2e9, 9e9]), []

    def way(ms):
        def run(n):
            taken.append(n)
            passed[0] += ms * n / 1e3
            return 10.0 - len(taken)

        return run

    def broken(n):
        raise ValueError("no such way")

    options = types.SimpleNamespace(model="vit", mode="tfuse", steps=10, json=tmp_path / "x.json")
    with pytest.raises(ValueError):
        workloads.measure(options, 8, {"fit_ms": way(20), "ms_per_step": way(16), "evaluate_ms": way(4), "predict_ms": broken},
                          lambda: resets.append(len(taken)), lambda: next(peaks))
    found = json.loads(options.json.read_text())
    assert found.pop("losses") == [9.0, 8.0]
    assert found == pytest.approx({"model": "vit", "mode": "tfuse", "first_s": 0.06, "fit_ms": 20, "images_per_s": 400,
                                   "peak_GB": 3, "ms_per_step": 16, "step_GB": 2, "evaluate_ms": 4})
    assert taken[:2] == [3, 20] and resets == [2, 9, 16, 23]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["fit_ms", "ms_per_step", "evaluate_ms"]


# ---- fit() and its step ----


def test_fit_takes_the_batches_of_the_host_in_turn_and_does_not_know_their_size():
    batches = [({"a": np.full([2, 3], i)}, np.full(2, i)) for i in range(3)]
    data = fitting.in_host_memory(batches)
    assert data.element_spec[0]["a"].shape.as_list() == [None, 3] and data.element_spec[1].shape.as_list() == [None]
    assert [int(labels[0]) for _, labels in data.take(5)] == [0, 1, 2, 0, 1]
    inputs, _ = next(iter(data))
    assert inputs["a"].shape == (2, 3) and inputs["a"].dtype == tf.int64


def test_every_way_makes_as_many_steps_as_it_is_told(monkeypatch):
    """And stock Keras traces a step once, for fit() and for the bare step: XLA compiles it once."""
    workload, traced = workloads.WORKLOADS["vit"], []
    sizes = workload.sizes(small=True, batch=2)
    model = models.build("vit", sizes)
    for step in ("train_step", "test_step"):
        monkeypatch.setattr(model, step, lambda data, own=getattr(model, step): traced.append(data[0].shape) or own(data))
    models.compile_model(model, False, workload.optimizer)
    made = fitting.ways(model, [workload.batch(sizes, i) for i in range(2)], evaluate=True)
    before = model.optimizer.iterations.numpy()
    losses = [made[key](n) for key, n in (("fit_ms", 3), ("ms_per_step", 2))]
    assert model.optimizer.iterations.numpy() - before == 5 and np.isfinite(losses).all()
    assert made["evaluate_ms"](2) > 0 and made["evaluate_step_ms"](2) > 0
    assert [shape[0] for shape in traced] == [None, None]
    assert made["predict_ms"](3).shape == (6, sizes.classes)
    made["predict_step_ms"](1)


def test_what_has_many_classes_for_each_example_does_not_predict():
    workload = workloads.WORKLOADS["gpt2"]
    batches = [workload.batch(workload.sizes(small=True))]
    assert list(fitting.ways(None, batches)) == ["fit_ms", "ms_per_step"]
    assert list(fitting.ways(None, batches, evaluate=True)) == ["fit_ms", "ms_per_step", "evaluate_ms", "evaluate_step_ms"]


def test_what_it_costs_to_read_losses(monkeypatch):
    """Ways differ by who reads, and all train."""
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batches, seen = [(np.ones([2, 3]), np.ones([2, 1]))], []
    own = fitting.Reading.on_train_batch_end
    monkeypatch.setattr(fitting.Reading, "on_train_batch_end", lambda self, batch, logs=None: own(self, batch, logs)
                        or seen.append((self.every, len(self.losses))))
    monkeypatch.setattr(workloads, "slope", lambda run, steps: run(steps) or 1.5)
    text = fitting.reads(model, batches, "a model", 20)
    assert text.splitlines()[0] == (
        "| who reads losses | nobody | a callback, every 10th step | a callback, every step | the progress bar |")
    assert text.splitlines()[-1] == "| a model | 1.50 ms | 1.50 ms | 1.50 ms | 1.50 ms |"
    assert model.optimizer.iterations.numpy() == 80 and (10, 2) in seen and (1, 20) in seen and max(seen) == (10, 2)


# ---- compare.py ----

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
    import compare
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
    import compare
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
    import compare
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
    import compare
    jobs = list(compare.model_jobs(["PyTorch, compiled", "Keras with tfuse"], ["vit"], [1, None], False, True, ["--steps", 8]))
    assert [(row["step"], row["batch"], row["name"]) for row, _, _ in jobs] == [
        (step, batch, name) for step, batch in (("1 images", 1), ("128 images", 128))
        for name in ("PyTorch, compiled", "Keras with tfuse")]
    assert jobs[0][1:] == ("torch", ["--mode", "compile", "--model", "vit", "--batch", 1, "--steps", 8])
    assert jobs[3][1:] == ("keras", ["--mode", "tfuse", "--model", "vit", "--evaluate", "--steps", 8])


# ---- PyTorch ----


def test_the_twins_compile():
    source = ast.parse((EXAMPLES / "models_torch.py").read_text())
    twins, = [node.value for node in source.body if isinstance(node, ast.Assign) and node.targets[0].id == "TWINS"]
    assert [key.value for key in twins.keys] == list(workloads.WORKLOADS) == list(models.BUILDERS)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_twins_begin_with_the_same_loss(name):
    """As nearly as other weights allow, drawn from like distributions."""
    for needed in ["torch", *{"vit": ["torchvision"], "gpt2": []}.get(name, ["transformers", "keras_hub"])]:
        pytest.importorskip(needed)
    import models_torch
    workload = workloads.WORKLOADS[name]
    sizes = workload.sizes(small=True)
    step = models_torch.train_function(name, sizes, False, "cpu")
    batch = models_torch.on_the_device(workload.batch(sizes), "cpu")
    first, second = float(step(batch)), float(step(batch))
    assert second < first and abs(first - losses(name, False)[0]) < 0.3 * first


@pytest.mark.parametrize("name", VISION)
def test_convolutional_twins_are_as_large(name):
    """But for the biases of ResNet's convolutions, which Keras alone has, a thousandth of its weights. And they train."""
    for needed in ("torch", "torchvision"):
        pytest.importorskip(needed)
    import models_torch
    workload = workloads.WORKLOADS[name]
    sizes = workload.sizes(small=True)
    ours = sum(np.prod(v.shape) for v in models.build(name, sizes).trainable_variables)
    theirs = sum(weights.numel() for weights in models_torch.TWINS[name](sizes).parameters())
    assert theirs == (pytest.approx(ours, rel=2e-3) if name == "resnet50" else ours)
    step = models_torch.train_function(name, sizes, False, "cpu")
    batch = models_torch.on_the_device(workload.batch(sizes), "cpu")
    first, second = float(step(batch)), float(step(batch))
    assert np.isfinite([first, second]).all() and first != second


def test_the_loader_hands_over_the_same_batches_as_tf_data():
    """In turn, in their dtypes."""
    pytest.importorskip("torch")
    import models_torch
    workload = workloads.WORKLOADS["bert"]
    sizes = workload.sizes(small=True)
    batches = [workload.batch(sizes, i) for i in range(2)]
    loader = models_torch.loaded(batches, "cpu")
    for got, (inputs, labels, weights) in zip(loader, [*batches, batches[0]]):
        assert all(np.array_equal(got[0][name], inputs[name]) and got[0][name].numpy().dtype == np.int64 for name in inputs)
        assert np.array_equal(got[1], labels) and np.array_equal(got[2], weights) and got[2].numpy().dtype == np.float32


def test_shared_memory_that_is_too_small_is_told(monkeypatch):
    pytest.importorskip("torch")
    import models_torch
    monkeypatch.setattr(models_torch.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=10))
    with pytest.raises(OSError, match="/dev/shm has room for 0.0 GB, and the batches take 4.0: .*size=6G"):
        models_torch.InHostMemory([(np.broadcast_to(np.float32(0), [10**9]),)])
