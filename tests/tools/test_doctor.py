"""python -m tfuse doctor: a healthy machine is green, and what is wrong is found."""

import dataclasses

import pytest
import tensorflow as tf
from conftest import GPUS

from tfuse._tools import _doctor
from tfuse import cases

SQUARE, = cases.all_cases()["square"]
PRODUCT = cases.all_cases()["batched_matmul"][0]


def coarse(f):
    """f on inputs with 10 bits after the point, as TF32 has them."""
    return lambda *inputs, **options: f(*[x + tf.stop_gradient(_doctor._as_tf32(x) - x) for x in inputs], **options)


def test_this_machine():
    """All but the ops, which other tests run."""
    for part in (_doctor.software, _doctor.library, _doctor.gpus, _doctor.nvidia_libraries):
        assert [r for r in part() if r["state"] == _doctor.BAD] == []


@pytest.mark.skipif(not GPUS, reason="TF32 is a GPU's")
def test_tf32_is_healthy(tf32, monkeypatch):
    """As TensorFlow has it by default."""
    families = {name: cases.all_cases()[name] for name in ("attention", "batched_matmul", "linear", "softmax")}
    monkeypatch.setattr(cases, "all_cases", lambda: families)
    first, *rows = _doctor.ops()
    assert first["check"] == "TF32" and "enable_tensor_float_32_execution(False)" in first["found"]
    assert [r["found"] for r in rows if r["state"] != _doctor.OK] == []
    assert sum("with TF32" in r["found"] for r in rows) == len(families) * len(GPUS)
    assert tf.config.experimental.tensor_float_32_execution_enabled()  # left as it was


def test_tf32_is_told_from_an_error():
    """What TF32 explains is right where TF32 may be used, and wrong elsewhere; an error beyond that is one everywhere."""
    product = dataclasses.replace(PRODUCT, run=coarse(PRODUCT.run))
    assert 1e-4 < _doctor._check(product, {}, tf32=True) < 2e-3
    with pytest.raises(ArithmeticError, match="batched_matmul {} is off by"):
        _doctor._check(product, {})
    worse = dataclasses.replace(PRODUCT, run=lambda a, b: PRODUCT.run(a, b) * 1.005)
    with pytest.raises(ArithmeticError, match="with TF32"):
        _doctor._check(worse, {}, tf32=True)


def test_an_error_is_a_failed_check(monkeypatch, capsys):
    wrong = dataclasses.replace(SQUARE, run=lambda x: SQUARE.run(x) * 1.001)
    monkeypatch.setattr(cases, "all_cases", lambda: {"square": [wrong]})
    assert _doctor.main([]) == 1
    assert "FAIL  op square" in capsys.readouterr().out
    monkeypatch.setattr(cases, "all_cases", lambda: {"square": [SQUARE]})
    assert _doctor.main([]) == 0
    assert "is well here" in capsys.readouterr().out
