"""python -m tfuse doctor: a healthy machine is green, and what is wrong is found."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from conftest import GPUS

from tfuse._tools import _doctor, _driver
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


@pytest.mark.parametrize("tensorflow, its_keras, notes, advice", [
    ("2.21.0", "3.15.1", [], ""), ("2.22.0-rc0", "3.16.0.dev2026102704", ["TensorFlow", "Keras"], "tensorflow<2.22"),
    ("2.20.0", "3.17.0", ["Keras"], "pip install 'keras<3.16'"), ("2.15.1", "3.3.3", ["TensorFlow"], "tested with 2.16 to 2.21"),
    ("2.16.2", "3.2.1", ["Keras"], "older than 3.3")])
def test_releases_that_were_not_tested(monkeypatch, tensorflow, its_keras, notes, advice):
    """Which are newer, and what to do if something fails."""
    monkeypatch.setattr(_doctor.tf, "__version__", tensorflow)
    monkeypatch.setattr(_doctor.keras, "__version__", its_keras)
    rows = [r for r in _doctor.software() if r["check"] in ("TensorFlow", "Keras")]
    assert [r["check"] for r in rows if r["state"] == _doctor.NOTE] == notes
    assert advice in "".join(r["advice"] for r in rows) and all(bool(r["advice"]) == (r["state"] == _doctor.NOTE) for r in rows)


class FakeCuda:
    """libcuda as ctypes sees it, with one GPU; a function writes what it tells to its first argument."""

    def __getattr__(self, name):
        told = {"cuDriverGetVersion": 12050, "cuDeviceGetCount": 1, "cuDeviceTotalMem_v2": 141 << 30}
        return lambda out, *_: setattr(out._obj, "value", told[name])

    def cuInit(self, flags):
        return 0

    def cuDeviceGetName(self, buffer, length, ordinal):
        buffer.value = b"made up"

    def cuDeviceGetAttribute(self, out, attribute, ordinal):
        out._obj.value = {75: 9, 76: 1}[attribute]


def test_what_the_driver_tells():
    driver = _driver.Driver(FakeCuda())
    assert driver.version() == 12050 and driver.error == ""
    assert driver.devices() == [_driver.Gpu(0, "made up", 91, 141 << 30)]


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
    twice = coarse(lambda a, b: coarse(tf.identity)(PRODUCT.run(a, b)))  # as factors of a next product are rounded, too
    product = dataclasses.replace(PRODUCT, run=twice)
    error, share = _doctor._check(product, {}, tf32=True)
    assert 1e-4 < error < 2e-3 and share < 0.5
    with pytest.raises(ArithmeticError, match="batched_matmul {}: value is off by .*, and rounding explains"):
        _doctor._check(product, {})
    worse = dataclasses.replace(PRODUCT, run=lambda a, b: PRODUCT.run(a, b) * 1.005)
    with pytest.raises(ArithmeticError, match="with TF32"):
        _doctor._check(worse, {}, tf32=True)


@pytest.mark.parametrize("family", sorted(cases.all_cases()))
def test_no_check_is_near_its_bound(device, family):
    """Or another order of a sum, or another function of exp, would fail a healthy machine."""
    for case in cases.all_cases()[family]:
        for options in case.options:
            error, share = _doctor._check(case, options)
            assert share <= 0.5, "%s %s is off by %.1e, %.2f of what is allowed" % (case.name, options, error, share)


def test_bounds_come_from_dtype_length_and_terms():
    want, half_unit = np.ones(3), 2.0**-24
    assert cases.bound(want, "float32") == pytest.approx(18 * half_unit)
    assert cases.bound(want, "float32", 10000) == pytest.approx(216 * half_unit)
    assert cases.bound(want, "bfloat16", 10000) == pytest.approx(4 * 2.0**-8 + 212 * half_unit)
    assert cases.bound(want, "int32", 10000) == 0
    cancelled = cases.total(np.array([3.0, -4.0, 2.0]))  # 1 of terms whose squares sum to 29
    assert cases.bound(cancelled, "float32") == pytest.approx((16 + 2 * 3**0.5) * half_unit * 29**0.5)


WRONG = {
    "in float16": lambda run, x: tf.cast(run(tf.cast(x, tf.float16)), tf.float32),
    "a term left out": lambda run, x: tf.concat([run(x[:, :-1]), run(x)[:, -1:]], 1),
    "an exp of few digits": lambda run, x: run(x) * (1 + 1e-5 * tf.sin(1e3 * x)),
    "one element": lambda run, x: run(x) + tf.one_hot(7, x.shape[-1]) * 1e-5,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", ["jit", "softmax"])
def test_a_wrong_kernel_is_seen(name, wrong):
    """Errors that are small beside those of a kernel that does something else."""
    case = next(case for case in cases.all_cases()[name] if "softmax" in case.name)
    _doctor._check(case, {})
    with pytest.raises(ArithmeticError, match="softmax {}: .* is off by"):
        _doctor._check(dataclasses.replace(case, run=lambda x: WRONG[wrong](case.run, x)), {})


def test_an_error_is_a_failed_check(monkeypatch, capsys):
    wrong = dataclasses.replace(SQUARE, run=lambda x: SQUARE.run(x) * 1.001)
    monkeypatch.setattr(cases, "all_cases", lambda: {"square": [wrong]})
    assert _doctor.main([]) == 1
    assert "FAIL  op square" in capsys.readouterr().out
    monkeypatch.setattr(cases, "all_cases", lambda: {"square": [SQUARE]})
    assert _doctor.main([]) == 0
    out = capsys.readouterr().out
    assert "is well here" in out and "% of what rounding explains" in out
