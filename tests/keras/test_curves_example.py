"""examples/curves.py, small: models train with tfuse.enable() along stock Keras's curve, and what is no such curve fails."""

import json
import math
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import tfuse
from conftest import ROOT
from enabling import left_as_it_was, needs_attention, ran
from tfuse._core import _library
from tfuse._keras import _replaced_joined

EXAMPLES = ROOT / "examples"
sys.path.append(str(EXAMPLES))

import curves
import train_curve
import workloads

STEPS = 40


def trained(name, row, rate=1e-3):
    return train_curve.losses(name, row, STEPS, small=True, rate=rate)


# ---- training ----


@needs_attention
def test_tfuse_has_the_curve_of_stock_keras(as_on_a_gpu, monkeypatch):
    """And a learning rate that is off by 1% has not."""
    monkeypatch.setattr(_replaced_joined, "LEAST_CLASSES", 1)
    found = {row: trained("gpt2", row) for row in ("stock", "again")}
    assert found["again"] != found["stock"]
    with tfuse.enabled():
        found["tfuse"] = trained("gpt2", "tfuse")
    assert {"Attention", "AttentionGrad", "NormGrad", "LinearCrossEntropy", "TensorsUpdate"} <= ran()
    found["tfuse+xla"] = trained("gpt2", "stock", rate=1.01e-3)
    verdicts = {row: verdict for row, (verdict, *_) in curves.judge(found, "float32").items()}
    assert verdicts == {"stock": "falls", "again": "stock's spread", "tfuse": "within 2 times stock's spread",
                        "tfuse+xla": "not within 2 times stock's spread"}


@needs_attention
def test_a_model_in_float8_learns_as_well(as_on_a_gpu):
    want = trained("gpt2", "stock")
    with tfuse.enabled():
        found = train_curve.losses("gpt2", "tfuse", STEPS, small=True, rate=1e-3, float8=True)
    assert {"Float8Linear", "Float8LinearGrad"} <= ran()
    np.testing.assert_allclose(curves.windows(found), curves.windows(want), rtol=0.01)


def test_weights_are_moved_by_a_unit_or_two():
    made = [np.random.default_rng(0).standard_normal(1000).astype(np.float32), np.zeros(3, np.float32)]
    found = []
    for seed in (0, 0, 1):
        variables = [keras.Variable(weights) for weights in made]
        train_curve.move(variables, seed)
        found.append([v.numpy() for v in variables])
    (one, zeros), (same, _), (other, _) = found
    assert np.array_equal(one, same) and not np.array_equal(one, other) and not zeros.any()
    units = (one - made[0]) / np.spacing(np.abs(made[0]))
    assert set(np.abs(units)) <= {0.5, 1, 2} and 0.4 < np.mean(one > made[0]) < 0.6


def test_the_loss_of_bert_is_the_mean_of_what_is_hidden():
    """Before anything is learned, all of 64 tokens are about as likely."""
    pytest.importorskip("keras_hub", reason="needs keras-hub, tokenizers and regex")
    loss, = train_curve.losses("bert", "stock", 1, small=True, rate=1e-3)
    assert type(loss) is float and abs(loss - math.log(64)) < 0.5  # as JSON takes it


# ---- data ----


def test_tokens_can_be_learned():
    """Each is followed by at most three, and all of these are met."""
    sizes = workloads.WORKLOADS["gpt2"].sizes()
    tokens, labels = workloads.next_tokens(sizes, np.random.default_rng(0), learnable=True)
    assert tokens.shape == labels.shape == (16, 1024) and np.array_equal(tokens[:, 1:], labels[:, :-1])
    followers = {token: set(labels[tokens == token]) for token in set(tokens.flat)}
    assert len(followers) > workloads.KINDS // 2 and max(map(len, followers.values())) == workloads.FOLLOWERS
    assert np.mean([len(some) for some in followers.values()]) > 2


def test_images_can_be_learned():
    """The mean of a class is its pattern: two batches agree on it."""
    sizes = workloads.WORKLOADS["vit"].sizes(small=True)
    sizes.batch = 400
    means = []
    for seed in (1, 2):
        pixels, classes = workloads.images(sizes, np.random.default_rng(seed), learnable=True)
        assert pixels.dtype == np.float32 and set(classes) == set(range(10))
        means.append([pixels[classes == i].mean(0).reshape(4, 8, 4, 8, 3).mean((1, 3)) for i in range(10)])
    means = np.reshape(means, (2, 10, -1))
    assert np.array_equal(np.argmin(np.abs(means[0][:, None] - means[1]).sum(-1), axis=1), np.arange(10))


def test_every_step_has_a_batch_of_its_own_while_there_is_room(monkeypatch):
    workload = workloads.WORKLOADS["vit"]
    sizes = workload.sizes(small=True)
    batches = workload.batches(sizes, 5)
    assert len({batch[0].tobytes() for batch in batches}) == 5
    np.testing.assert_array_equal(workload.batches(sizes, 4)[3][0], batches[3][0])
    monkeypatch.setattr(workloads, "ROOM", 3 * (batches[0][0].nbytes + batches[0][1].nbytes))
    assert len(workload.batches(sizes, 5)) == 3


# ---- the verdict ----

WITHIN, NOT_WITHIN = "within 2 times stock's spread", "not within 2 times stock's spread"
STOCK = np.round(np.linspace(4, 2, 100), 5)
NOISE = np.round(1e-3 * np.random.default_rng(0).standard_normal(100), 5)
NOISE[0] = 0
BUMP = np.where((np.arange(100) >= 50) & (np.arange(100) < 60), 0.01, 0)


def verdict(losses, policy="mixed_bfloat16", row="tfuse", **others):
    return curves.judge({"stock": STOCK, **(others or {"again": STOCK + NOISE}), row: losses}, policy)[row][0]


@pytest.mark.parametrize("policy", curves.UNIT)
def test_curves_within_the_spread(policy):
    assert verdict(STOCK, policy) == verdict(STOCK - 1.9 * NOISE, policy) == WITHIN


@pytest.mark.parametrize("losses", [
    STOCK + 2.1 * NOISE, STOCK + NOISE + BUMP, STOCK + 2.5e-3, np.where(np.arange(100) == 70, np.nan, STOCK),
    np.concatenate([STOCK[:1], STOCK[:-1]])], ids=["wider", "one window", "a constant", "nan", "a step after"])
def test_curves_outside_of_the_spread(losses):
    assert verdict(losses) == NOT_WITHIN


def test_both_figures_count():
    """A spread with one wide window allows one, but no more in the others; and one that is even allows no wide window."""
    uneven, even = STOCK + 1e-4 + BUMP, STOCK + 1e-3
    assert verdict(STOCK + 1.5e-4 + BUMP, again=uneven) == WITHIN
    assert verdict(even, again=uneven) == verdict(STOCK + 1e-4 + BUMP, again=even) == NOT_WITHIN


def test_the_wider_of_stocks_other_runs_is_the_spread():
    runs = {"again": STOCK + NOISE, "xla": STOCK + 3 * NOISE}
    assert verdict(STOCK + 5 * NOISE, **runs) == WITHIN
    assert verdict(STOCK + 7 * NOISE, **runs) == NOT_WITHIN


def test_who_is_nearer_to_float32_passes():
    """Both figures, and of stock's rows the farthest counts. What is as near to it as stock's, but another way, passes too."""
    runs = {"again": STOCK + NOISE, "float32": STOCK - 0.01 - BUMP}
    for losses in STOCK - 0.01, STOCK - 0.01 - BUMP, STOCK - 0.0199 - BUMP:
        assert verdict(losses, **runs) == "as near to float32 as stock"
    for losses in STOCK + 0.01, STOCK - 0.03, STOCK - 0.01 - 4 * BUMP, STOCK * np.nan:
        assert verdict(losses, **runs) in (NOT_WITHIN, "not stock's first loss")
    assert verdict(STOCK - 0.01, again=STOCK + NOISE) == NOT_WITHIN


def test_what_is_below_the_digits_is_no_difference():
    assert verdict(STOCK + 0.9e-5, again=STOCK) == WITHIN
    assert verdict(STOCK + 1.1e-5, "mixed_bfloat16", again=STOCK) == NOT_WITHIN


@pytest.mark.parametrize("policy, unit", [("float32", 1e-5), ("mixed_bfloat16", 4 / 128)])
@pytest.mark.parametrize("row", ["tfuse", "again"])
def test_the_first_loss_counts_by_itself(policy, unit, row):
    wide = {"xla": STOCK + 1 * (np.arange(100) > 0)}
    first = np.zeros(100)
    first[0] = 1
    assert verdict(STOCK + 0.9 * unit * first, policy, row, **wide) in (WITHIN, "stock's spread")
    assert verdict(STOCK + 1.2 * unit * first, policy, row, **wide) == "not stock's first loss"


def test_a_curve_that_does_not_fall_shows_nothing():
    for stock, want in [(STOCK, "falls"), (STOCK[::-1], "not falling"), (STOCK * 0 + 3, "not falling"),
                        (STOCK * np.nan, "not falling")]:
        assert curves.judge({"stock": stock}, "float32") == {"stock": (want, None, None)}


def test_without_stock_there_is_no_verdict():
    assert curves.judge({"tfuse": STOCK}, "float32")["tfuse"][0] == "nothing to compare with"
    assert curves.judge({"stock": STOCK, "tfuse": STOCK}, "float32")["tfuse"][0] == "nothing to compare with"


# ---- the record ----

ABOUT = {"hardware": "a GPU", "tensorflow": "2", "keras": "3", "kerashub": None}
WHEN = {"commit": "abc", "date": "2026-01-01"}
CONDITIONS = {"step": "4 images", "policy": "mixed_bfloat16", "steps": 100}


def record(**rows):
    made = {**ABOUT, "models": {}}
    for row, losses in {"stock": STOCK, "again": STOCK + NOISE, **rows}.items():
        found = {"failed": losses} if isinstance(losses, str) else {"losses": np.round(losses, 5).tolist()}
        curves.with_row(made, "vit", CONDITIONS, row.replace("_", "+"), {**WHEN, **found})
    return made


def test_the_table():
    made = record(again=STOCK + 1e-3, float32=STOCK - 1e-2, tfuse=STOCK + 2.5e-3, tfuse_xla="out of memory")
    text, well = curves.table(made)
    assert not well and text.splitlines() == [
        "a GPU, TensorFlow 2, Keras 3, commit abc (2026-01-01).", "100 steps in mixed_bfloat16.", "",
        "| a step of | | first loss | last 10 | from stock: median | largest | from float32: median | largest | |",
        "|---|---|---|---|---|---|---|---|---|",
        "| ViT-B/16, 4 images | Keras | 4.0000 | 2.0909 | | | 0.01000 | 0.01000 | falls |",
        "| ViT-B/16, 4 images | Keras, again | 4.0010 | 2.0919 | 0.00100 | 0.00100 | 0.01100 | 0.01100 | stock's spread |",
        "| ViT-B/16, 4 images | Keras in float32 | 3.9900 | 2.0809 | 0.01000 | 0.01000 | | | rounds less |",
        "| ViT-B/16, 4 images | Keras with tfuse | 4.0025 | 2.0934 | 0.00250 | 0.00250 | 0.01250 | 0.01250 | %s |" % NOT_WITHIN,
        "| ViT-B/16, 4 images | Keras with tfuse, XLA | failed | | | | | | |"]


def test_what_was_trained_otherwise_goes():
    made = record()
    curves.with_row(made, "vit", CONDITIONS, "tfuse", {**WHEN, "losses": [1.0]})
    assert list(made["models"]["vit"]["rows"]) == ["stock", "again", "tfuse"]
    curves.with_row(made, "vit", {**CONDITIONS, "steps": 1}, "tfuse", {**WHEN, "losses": [1.0]})
    assert list(made["models"]["vit"]["rows"]) == ["tfuse"]


def test_a_record_has_a_line_for_all_losses_of_a_row():
    made = record(tfuse=STOCK)
    text = curves.text_of(made)
    assert json.loads(text) == made and len(text.splitlines()) < 40


def test_windows():
    """Of ten steps or, where these do not fill the curve, a little more."""
    assert np.allclose(curves.windows(np.arange(24.0)), [5.5, 17.5]) and np.allclose(curves.windows([1.0, 3.0]), [2.0])
    assert np.allclose(curves.apart(STOCK + np.repeat([0.1, -0.2], 50), STOCK), [0.1] * 5 + [0.2] * 5)


def test_the_readme_shows_the_curves():
    readme, made = (EXAMPLES / "README.md").read_text(), record(tfuse=STOCK)
    shown = curves.filled(readme, made, "plot.png")
    assert curves.table(made)[0] + "\n\n![Loss curves, and their distances](plot.png)\n<!-- /curves -->" in shown
    assert shown.split("<!-- curves -->")[0] == readme.split("<!-- curves -->")[0]
    path = ROOT / "benchmarks/curves_nvidia_h200.json"
    if path.exists():
        assert readme == curves.filled(readme, json.loads(path.read_text()), "../benchmarks/curves_nvidia_h200.png"), (
            "run examples/curves.py --table %s --write" % path)


# ---- the command ----


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["curves.py", *map(str, arguments)])
    return curves.main()


@pytest.mark.parametrize("off, status", [(0, 0), (0.01, 1)])
def test_the_status_says_whether_all_is_well(off, status, tmp_path, monkeypatch, capsys):
    """All but the processes; and the table of the record that was written has the same status."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    losses = {"stock": STOCK, **dict.fromkeys(curves.AGAIN, STOCK + NOISE), "xla": STOCK - NOISE, "float32": STOCK + NOISE / 2,
              "tfuse": STOCK, "tfuse+xla": STOCK + off}

    def finished(scripts, jobs, limit):
        return ((job, {"losses": losses[job[1]].tolist()}, None) for job, _, _ in jobs)

    monkeypatch.setattr(curves, "finished", finished)
    monkeypatch.setattr(curves, "about_in_a_process", lambda: {**ABOUT, **WHEN})
    assert command(monkeypatch, "--models", "vit,llama", "--out", tmp_path, "--small") == status
    printed = capsys.readouterr().out
    assert ("not within" in printed) == bool(status) and printed.count("falls") == 2
    pixels = 255 * pyplot.imread(tmp_path / "curves_a_gpu.png")[..., :3]
    for row in curves.ROWS_OF["mixed_bfloat16"]:
        colour = curves.CURVES[row][1]
        assert np.abs(pixels - list(bytes.fromhex(colour[1:]))).max(-1).min() < 12, colour
    assert command(monkeypatch, "--table", tmp_path / "curves_a_gpu.json") == status
    assert capsys.readouterr().out in printed
    rows = lambda: list(json.loads((tmp_path / "curves_a_gpu.json").read_text())["models"]["vit"]["rows"])
    assert rows() == curves.ROWS_OF["mixed_bfloat16"]
    assert command(monkeypatch, "--models", "vit", "--out", tmp_path, "--small", "--policy", "float32") == status
    assert rows() == curves.ROWS_OF["float32"]


def test_rows_are_trained_by_one_command(tmp_path):
    """Each in a process; where KerasHub is missing, the row that needs it says so, and that is not well."""
    pytest.importorskip("matplotlib")
    (tmp_path / "keras_hub.py").write_text("raise ModuleNotFoundError(\"No module named 'keras_hub'\")\n")
    path = [str(tmp_path), os.path.dirname(os.path.dirname(tfuse.__file__)), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "TFUSE_LIBRARY": _library.path}
    done = subprocess.run([sys.executable, EXAMPLES / "curves.py", "--models", "vit,bert", "--rows", "tfuse", "--small",
                           "--steps", "12", "--policy", "float32", "--out", tmp_path],
                          env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 1, done.stdout
    path, = tmp_path.glob("curves_*.json")
    vit, bert = json.loads(path.read_text())["models"].values()
    assert (vit["step"], vit["policy"], vit["steps"]) == ("8 images", "float32", 12)
    np.testing.assert_allclose(vit["rows"]["tfuse"]["losses"], train_curve.losses("vit", "stock", 12, True, 1e-3), rtol=1e-4)
    assert bert["rows"]["tfuse"]["failed"] == "ModuleNotFoundError: No module named 'keras_hub'"
    assert path.with_suffix(".png").exists()


@pytest.mark.parametrize("arguments, told", [
    (["--models", "gpt2,resnet"], "there is no model resnet"), (["--rows", "stock,torch"], "there is no row torch"),
    (["--small"], "--small goes with --out")])
def test_what_curves_refuses(arguments, told, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        command(monkeypatch, *arguments)
    assert told in capsys.readouterr().err
