"""examples/models.py, small: each model trains with tfuse.enable() as in stock Keras. And what examples/compare.py makes of
it: rows, table and plot."""

import ast
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import ROOT, skip_broken_xla
from enabling import left_as_it_was, needs_attention, ran
from tfuse._core import _library
from tfuse._keras import _behind_joined

EXAMPLES = ROOT / "examples"
sys.path.append(str(EXAMPLES))

import models
import records
import workloads

TRANSFORMERS, VISION = ([name for name, workload in workloads.WORKLOADS.items() if workload.record == kind]
                        for kind in ("models", "vision"))
HUB = "bert", "llama", "t5"
# All of them by all of these, and what is joined by looking back: in all of them, and beside that.
SERVED = {"Attention", "AttentionGrad", "Norm", "NormGrad", "Linear", "LinearGrad", "TensorsUpdate"}
JOINED = {"the norm of a sum", "sparse_categorical_crossentropy of a product: its logits are not made as a whole"}
BESIDE = {"gpt2": {"gelu_tanh of a product"}, "bert": {"gelu_tanh of a product"}, "llama": {"silu times another tensor"},
          "t5": {"gelu_tanh times another tensor", "the mask is causal, and another"}}
FORGOTTEN = {"t5": {"Attention"}}  # of a model with more ops than the library remembers runs


def losses(name, jit_compile):
    """Of two steps, in float32."""
    workload = workloads.WORKLOADS[name]
    sizes = workload.sizes(small=True)
    batch = models.on_the_device(workload.batch(sizes))
    step = models.train_function(models.build(name, sizes), [batch], jit_compile, workload.optimizer)
    return [float(step()) for _ in range(2)]


@needs_attention
@pytest.mark.parametrize("name, jit", [*((name, False) for name in TRANSFORMERS), ("gpt2", True), ("llama", True)])
def test_models_train_as_in_stock_keras(name, jit, as_on_a_gpu, monkeypatch):
    if jit:
        skip_broken_xla()
    monkeypatch.setattr(_behind_joined, "LEAST_CLASSES", 1)
    if name in HUB:
        pytest.importorskip("keras_hub", reason="needs keras-hub, tokenizers and regex")
    want = losses(name, jit)
    with tfuse.enabled():
        got = losses(name, jit)
    assert got[1] < got[0] - 1e-4
    np.testing.assert_allclose(got, want, rtol=1e-5)
    if not (jit and _library.xla_status()):
        assert (SERVED | {"LinearCrossEntropy"}) - FORGOTTEN.get(name, set()) <= ran()
    told = {row["why"] for row in tfuse.explain(64) if row["route"] == "joined by looking back"}
    assert JOINED | BESIDE.get(name, set()) <= told


def test_a_unet_trains_as_in_stock_keras(as_on_a_gpu):
    """Of the convolutional networks the one that is not deep: in the others, so small, every batch norm over a few numbers
    makes rounding a hundred times larger with each step."""
    want = losses("unet", False)
    with tfuse.enabled():
        got = losses("unet", False)
    assert got[1] < got[0] - 1e-4
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert {"BatchNormGrad", "ConvData", "ConvFilter", "TensorsUpdate"} <= ran()
    assert "relu of a batch norm" in {row["why"] for row in tfuse.explain(64) if row["route"] == "joined by looking back"}


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


def test_steps_are_timed_in_groups(monkeypatch):
    """Steps of 10 s each, but for a third one of 20 s and a slow group; the peak is reset before the groups."""
    now, done, resets = [0.0], [], []
    monkeypatch.setattr(workloads.time, "perf_counter", lambda: now[0])

    def step():
        done.append(len(done))
        now[0] += 20 if len(done) == 3 else 50 if 5 < len(done) <= 15 else 10
        return done[-1]

    measured = workloads.timed(step, 30, lambda: resets.append(len(done)))
    assert measured == {"ms_per_step": 10e3, "first_s": 40, "losses": [float(i) for i in range(35)]}
    assert resets == [5]


# ---- compare.py ----

WHEN = {"date": "2026-01-01", "commit": "abc"}


def record():
    row = lambda model, step, name, **measured: {"model": model, "step": step, "name": name, **measured, **WHEN}
    rows = []
    for new in [row("bert", "4 × 8 tokens", "Keras", failed="ModuleNotFoundError: No module named 'keras_hub'"),
                row("vit", "4 images", "Keras with tfuse", ms_per_step=2.0, images_per_s=2004.0, peak_GB=0.5, first_s=1.6),
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
        "| a step of | | ms/step | a second | peak memory | first 3 steps |", "|---|---|---|---|---|---|",
        "| ViT-B/16, 4 images | Keras | 4.0 | 1,000 images | 1.0 GB | 9 s |",
        "| ViT-B/16, 4 images | Keras with tfuse | **2.0** | 2,000 images | 0.5 GB | 2 s |",
        "| BERT base, 4 × 8 tokens | Keras | failed | | | |",
        "| Llama 1.1B, 4 × 8 tokens | PyTorch, compiled | **3.2** | 12,300 tokens | 2.0 GB | 70 s |"]


def test_the_table_of_convolutional_networks():
    """In a record of its own."""
    measured = {"ms_per_step": 4.0, "images_per_s": 1000.0, "peak_GB": 1.0, "first_s": 9.0}
    row = {"step": "4 images", "name": "Keras", **measured, **WHEN}
    rows = records.with_row(records.with_row([], {"model": "unet", **row}), {"model": "resnet50", **row})
    made = {**record(), "torchvision": "7", "rows": rows}
    assert records.kind(made) == "vision" and records.table(made).splitlines() == [
        "a GPU, TensorFlow 2, Keras 3, PyTorch 5, torchvision 7, commit abc (2026-01-01).", "",
        "| a step of | | ms/step | a second | peak memory | first 3 steps |", "|---|---|---|---|---|---|",
        "| ResNet-50, 4 images | Keras | **4.0** | 1,000 images | 1.0 GB | 9 s |",
        "| U-Net, 4 images | Keras | **4.0** | 1,000 images | 1.0 GB | 9 s |"]
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
               "--out", tmp_path, "--", "--steps", "4"]
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    path, = tmp_path.glob("vision_*.json")
    unet, = json.loads(path.read_text())["rows"]
    assert unet["model"] == "unet" and unet["images_per_s"] == pytest.approx(8e3 / unet["ms_per_step"])
    path, = tmp_path.glob("models_*.json")
    vit, bert = json.loads(path.read_text())["rows"]
    assert (vit["model"], vit["step"], vit["name"]) == ("vit", "8 images", "Keras with tfuse")
    assert vit["images_per_s"] == pytest.approx(8e3 / vit["ms_per_step"]) and 0 < vit["first_s"] < 600
    assert bert["failed"] == "ModuleNotFoundError: No module named 'keras_hub'" and "ms_per_step" not in bert
    assert re.search(r"BERT base, 8 × 16 tokens +Keras with tfuse +ModuleNotFoundError", done.stdout), done.stdout
    assert path.with_suffix(".png").exists()


@pytest.mark.parametrize("arguments, told", [
    (["--models", "gpt2,resnet"], "there is no model resnet"), (["--models", "all", "--small"], "--small goes with"),
    (["--small", "--out", "x"], "--small goes with"), (["--rows", "stock,jax"], "there is no row jax")])
def test_what_compare_refuses(arguments, told, monkeypatch, capsys):
    import compare
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
    with pytest.raises(SystemExit):
        compare.main()
    assert told in capsys.readouterr().err


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
    step = models_torch.train_function(name, sizes, workload.batch(sizes), False, "cpu")
    first, second = float(step()), float(step())
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
    step = models_torch.train_function(name, sizes, workload.batch(sizes), False, "cpu")
    first, second = float(step()), float(step())
    assert np.isfinite([first, second]).all() and first != second
