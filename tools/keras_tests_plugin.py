"""A plugin of pytest, with which keras_tests.py runs Keras's tests: switches tfuse on, and writes what became of each test into
a file, a line of JSON each, as it happens. A test that ends the process is found there as begun; tests that the file has
already are left out, so that the next process goes on behind it.

Each test starts with the same random numbers, stock and with tfuse: some compare numbers that they draw.
"""
import contextlib
import json
import zlib

import pytest

MODES = ("stock", "enabled", "as-on-a-gpu")


def pytest_addoption(parser):
    parser.addoption("--mode", choices=MODES, required=True)
    parser.addoption("--results", required=True)


def pytest_configure(config):
    for marker in ("requires_trainable_backend", "multi_device"):  # as in the conftest.py of a checkout, which releases lack
        config.addinivalue_line("markers", marker)
    config.pluginmanager.register(_Results(config.getoption("results")))
    with contextlib.suppress(ImportError):
        import torch  # some tests use it, and beside TensorFlow it has to come first
    import tensorflow as tf
    tf.config.experimental.enable_tensor_float_32_execution(False)  # Keras's own tests are run without it, too
    if config.getoption("mode") != "stock":
        import tfuse
        from tfuse._core import _library
        if config.getoption("mode") == "as-on-a-gpu":
            _library.without_gpu = lambda: False
        tfuse.enable()
        config.pluginmanager.register(_Served())


class _Results:
    def __init__(self, path):
        self._path = path
        with open(path, "a+") as file:
            file.seek(0)
            self._there = {json.loads(line)["test"] for line in file}

    def _write(self, **line):
        with open(self._path, "a") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_collectreport(self, report):
        if report.failed:
            self._write(test=report.nodeid, outcome="failed", why=_why(report))

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.nodeid not in self._there]

    def pytest_runtest_logstart(self, nodeid):
        self._write(test=nodeid, outcome="begun")

    def pytest_runtest_setup(self, item):
        import keras
        keras.utils.set_random_seed(zlib.crc32(item.nodeid.encode()))

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed:
            self._write(test=report.nodeid, outcome=report.outcome, why=_why(report) if report.failed else "",
                        served=dict(report.user_properties).get("served", False))


class _Served:
    """Marks the tests in which a kernel of tfuse ran."""

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        before = self._runs()
        yield
        item.user_properties.append(("served", self._runs() != before))

    @staticmethod
    def _runs():
        from tfuse._core import _explain
        return [number for captured in (True, False) for number, _ in _explain._runs(captured)[-1:]]


def _why(report):
    """What it says first, in one line."""
    text = getattr(getattr(report.longrepr, "reprcrash", None), "message", None) or str(report.longrepr)
    return " ".join(text.split())[:200]
