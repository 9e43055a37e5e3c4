"""Whole training: the curve of examples/gpt2.py beside stock Keras's, its checkpoints, and what it writes."""

import functools
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from gpt2_example import PATH, TEXT, gpt2, trained

STEPS = 200


@functools.lru_cache(None)
def curve(mode, dtype, seed=1):
    tf.config.experimental.enable_tensor_float_32_execution(False)  # or float32 differs by TF32's rounding on a GPU
    try:
        return np.array(trained(mode=mode, dtype=dtype, seed=seed, steps=STEPS)[0])
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)


def test_the_float32_curve_is_stock_keras():
    stock, fused = curve("stock", "float32"), curve("tfuse", "float32")
    assert stock[-1] < 0.5 * stock[0]  # it learns
    np.testing.assert_allclose(fused, stock, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_the_mixed_curve_is_stock_keras_within_the_spread_of_two_runs(dtype):
    """Two stock runs of one seed: in this precision and in float32. tfuse rounds less often, so it is the nearer to the
    second. And the spread of two seeds, which is the wider one."""
    stock, exact, fused = curve("stock", dtype), curve("stock", "float32"), curve("tfuse", dtype)
    rounding, seeds = np.abs(stock - exact), np.abs(curve("stock", "float32", seed=2) - exact)
    assert np.abs(fused - exact).mean() <= rounding.mean() + 1e-4
    assert np.abs(fused - stock).mean() <= min(2 * rounding.mean() + 1e-4, seeds.mean())
    assert np.abs(fused - stock).max() <= seeds.max()


@pytest.mark.parametrize("before, after", [("tfuse", "tfuse"), ("stock", "tfuse"), ("tfuse", "stock")])
def test_a_restart_goes_on_with_the_same_losses(tmp_path, before, after):
    options = {"dtype": "mixed_float16", "length": 16, "layers": 1}
    trained(mode=before, steps=4, save=tmp_path, **options)
    unbroken, _ = trained(mode=before, steps=7, **options)
    resumed, model = trained(mode=after, steps=3, resume=tmp_path, **options)
    np.testing.assert_allclose(resumed, unbroken[4:], rtol=1e-6 if before == after else 1e-3)
    assert int(model.steps) == 4 and int(model.optimizer.inner_optimizer.iterations) == 7


def test_an_interrupted_save_leaves_the_checkpoint_before_it(tmp_path, monkeypatch):
    _, model = trained(mode="tfuse", steps=2, length=16, layers=1, save=tmp_path)
    before = (tmp_path / "last.weights.h5").read_bytes()
    own = model.save_weights

    def interrupted(path):
        own(path)
        os.truncate(path, os.path.getsize(path) // 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "save_weights", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpt2.save(model, tmp_path, 3)
    assert (tmp_path / "last.weights.h5").read_bytes() == before
    losses, _ = trained(mode="tfuse", steps=1, length=16, layers=1, resume=tmp_path)
    # What was left aside is in nobody's way.
    unbroken, _ = trained(mode="tfuse", steps=3, length=16, layers=1, save=tmp_path)
    np.testing.assert_allclose(losses, unbroken[2:], rtol=1e-6)


@pytest.mark.parametrize("mode", ["stock", "tfuse"])
def test_text_is_written_from_the_cache_as_without_one(mode):
    _, model = trained(mode=mode, steps=30, layers=1)
    written = list(TEXT[:5])
    from_cache = list(model.generate(written, 20, temperature=1e-6))
    for _ in range(20):
        x = model(np.array([written], np.int64))[0, -1]
        written.append(int(np.argmax(tf.linalg.matvec(model.tokens.embeddings.value, x))))
    assert from_cache == written[5:]


def test_the_readme_shows_the_record():
    import compare
    about, when = {"hardware": "a GPU", "tensorflow": "2", "keras": "3", "pytorch": None}, {"date": "2026-01-01", "commit": "abc"}
    rows = []
    for name, ms in [("Keras with tfuse", 3.0), ("Keras", 99.0), ("Keras", 9.0)]:  # the last again
        rows = compare.with_row(rows, {"name": name, "batch": 4, "length": 8, "ms_per_step": ms, "tokens_per_s": 32e3 / ms,
                                       "peak_GB": 1.25, "loss": 5.0, **when})
    made = {**about, "rows": rows + [{"name": "PyTorch", "batch": 4, "length": 8, "failed": "out of memory", **when}]}
    assert compare.table(made).splitlines()[0] == "a GPU, TensorFlow 2, Keras 3, commit abc (2026-01-01)."
    assert compare.table(made).splitlines()[-3:] == [
        "| 4 × 8 | Keras | 9.0 | 3,600 | 1.2 GB |", "| 4 × 8 | Keras with tfuse | **3.0** | 10,700 | 1.2 GB |",
        "| 4 × 8 | PyTorch | failed | | |"]
    readme, record = (PATH.parent / "README.md").read_text(), PATH.parent.parent / "benchmarks/gpt2_nvidia_h200.json"
    assert compare.table(made) in compare.filled(readme, made, "plot.png")
    if record.exists():
        shown = compare.filled(readme, json.loads(record.read_text()), "../benchmarks/gpt2_nvidia_h200.png")
        assert readme == shown, "run examples/compare.py, or examples/compare.py --table %s --write" % record
