"""examples/models.py, small: each model trains with tfuse.enable() as in stock Keras, on its data, and is timed."""

import ast
import functools
import json
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
