"""The built library: what it links and exports, how import fails, threads, explain()."""

import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import needs_xla, since_now, skip_broken_xla
from tfuse import cases
from tfuse._core import _command, _explain, _library, _op, _row

CASES = [case for family in cases.all_cases().values() for case in family]


def start_python(program, **environment):
    """A new Python process with this tfuse; a variable that is None is unset."""
    home = str(pathlib.Path(tfuse.__file__).parent.parent)
    path = os.pathsep.join([home, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "TFUSE_LIBRARY": _library.path, "PYTHONPATH": path, **environment}
    return subprocess.Popen([sys.executable, "-c", program], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={name: value for name, value in environment.items() if value is not None})


def cut(path):
    path.write_bytes(pathlib.Path(_library.path).read_bytes()[:100000])


@pytest.mark.parametrize("make, why", [
    (lambda path: path.mkdir(), "is a directory"), (lambda path: path.touch(), "it is no shared library of 64 bits"),
    (lambda path: path.write_text("text" * 99), "it is no shared library of 64 bits"), (cut, "it is cut short, at 100000 bytes"),
    (lambda path: shutil.copy(np._core._multiarray_umath.__file__, path), "it is another library than libtfuse.so"),
], ids=["folder", "empty", "text", "cut", "another"])
def test_what_cannot_be_the_library(tmp_path, monkeypatch, make, why):
    """It is refused before it is loaded."""
    make(tmp_path / "lib.so")
    monkeypatch.setenv("TFUSE_LIBRARY", str(tmp_path / "lib.so"))
    with pytest.raises(ImportError, match="TFUSE_LIBRARY: .*lib.so cannot be tfuse's library: %s. .* unset TFUSE_LIBRARY" % why):
        _library.find()


def test_a_library_of_another_version(monkeypatch):
    monkeypatch.setattr(_library.ctypes, "CDLL", lambda path: object())
    with pytest.raises(ImportError, match="is of another version than this Python package, and lacks a function: .*tfu_load_error"):
        _library._load(_library.path)


def test_a_command_says_what_cannot_be_imported(tmp_path, capsys):
    """In one line, as it does not where a module of tfuse lacks a name, which is a bug."""
    home = str(pathlib.Path(tfuse.__file__).parent.parent)
    for error in ("ImportError('it is broken')", "TypeError('it is broken')"):
        (tmp_path / "tensorflow.py").write_text("raise " + error)
        done = subprocess.run([sys.executable, "-m", "tfuse", "doctor"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), home])})
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        assert re.match("tfuse cannot be used here: tfuse needs TensorFlow .*it is broken", done.stderr)
    _command._say(ImportError, ImportError("cannot import name x", name="tfuse._core._op"), None)
    assert capsys.readouterr().err == "ImportError: cannot import name x\n"


def result_of(process):
    """What the process printed; fails the test if it failed."""
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    return out


def test_what_came_since_a_mark():
    """Decisions and runs, and of those that are the same before and after it, the later ones are counted alone."""
    def call():
        tfuse.square(tf.zeros([2, 17]))
        _explain.note("Softplus", "Keras's own code", "a reason", [], "called")

    call()
    first = since_now()
    call()
    second = since_now()
    call()
    call()
    assert [(row["op"], row["calls"]) for row in first()] == [("Softplus", 1), ("Softplus", 2), ("Square", 3)]
    assert [(row["op"], row["calls"]) for row in second()] == [("Softplus", 2), ("Square", 2)]
    assert second(when="ran", op="Square", input="float32[2, 17]") == second()[1:]
    assert since_now()() == [] != tfuse.explain(64)


def test_what_nobody_reads_is_not_run():
    """Of a traced function: but for ops that do more than compute, such as those that wait for a batch."""
    stateful = {name for name, op in _op.registry.items() if op._definition.is_stateful}
    assert {"Linear", "Norm"} <= set(_op.registry) and stateful <= {"Stage", "Unstage", "Report"}

    @tf.function
    def traced(x):
        tfuse.softmax(x)
        return tfuse.square(x)

    told = since_now()
    traced(tf.zeros([3, 5]))
    assert [row["op"] for row in told(when="ran")] == ["Square"]


# ---- what the library links and exports ----


def readelf(*options):
    if not shutil.which("readelf"):
        pytest.skip("readelf is not installed")
    return subprocess.run(["readelf", "-W", *options, _library.path], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def test_needs_nothing_but_tensorflow_and_libc():
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d")))
    assert "libtensorflow_framework.so.2" in needed  # up to 2.19 its symbols are found through this entry only
    assert {n for n in needed if not n.startswith("ld-linux")} <= {
        "libtensorflow_framework.so.2", "libc.so.6", "libm.so.6"}


def symbols():
    """(type, binding, section, name) of every dynamic symbol with a name."""
    rows = [line.split() for line in readelf("--dyn-syms").splitlines()]
    return [(r[3], r[4], r[6], r[7].split("@")[0]) for r in rows if len(r) >= 8 and r[0][:-1].isdigit()]


def test_exports_c_only():
    """Functions, and four lists of names that libraries of ops need."""
    exported = {(kind, name) for kind, binding, section, name in symbols() if section != "UND" and binding != "LOCAL"}
    assert exported and all(kind in ("FUNC", "OBJECT") and name.startswith("tfu_") for kind, name in exported), exported
    lists = {"tfu_activation_variants", "tfu_row_variants", "tfu_bits", "tfu_any"}
    assert {name for kind, name in exported if kind == "OBJECT"} == lists


def test_wants_no_c_plus_plus():
    wanted = {name for _, _, section, name in symbols() if section == "UND"}
    assert {n for n in wanted if n.startswith("TF_")}
    assert not {n for n in wanted if n.startswith(("_Z", "__cxa_throw", "__gxx", "cuda", "cu"))}


def test_version_is_the_one_built():
    build = json.loads(_library.library.tfu_build())
    if not build:
        pytest.skip("built without Bazel: no build information")
    assert build["version"] == tfuse.__version__


# ---- what import says when it fails ----

IMPORT = """
try:
    import tfuse
except ImportError as error:
    print(error)
else:
    print("imported")
"""
NO_TENSORFLOW = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tensorflow":
            raise ModuleNotFoundError("No module named 'tensorflow'")

sys.meta_path.insert(0, Missing())
"""


def test_import_errors(tmp_path):
    text = tmp_path / "libtfuse.so"
    text.write_text("not a library\n")
    nowhere = str(tmp_path / "nowhere.so")
    processes = [start_python(IMPORT, TFUSE_LIBRARY=nowhere), start_python(IMPORT, TFUSE_LIBRARY=str(text)),
                 start_python(NO_TENSORFLOW + IMPORT)]
    missing, broken, bare = map(result_of, processes)
    assert "TFUSE_LIBRARY names %s, which does not exist" % nowhere in missing and "./run build" in missing
    assert "TFUSE_LIBRARY: %s cannot be tfuse's library: it is no shared library" % text in broken
    assert "tfuse needs TensorFlow 2.16 to 2.21" in bare and "pip install tensorflow" in bare


def test_import_without_a_library(monkeypatch, tmp_path):
    monkeypatch.delenv("TFUSE_LIBRARY", raising=False)
    monkeypatch.setattr(_library, "__file__", str(tmp_path / "_core" / "_library.py"))
    with pytest.raises(ImportError, match="not at %s.*reinstall the wheel, or build it" % tmp_path):
        _library.find()


# ---- threads ----


THREADS = 8


def test_concurrent_calls(device):
    """Eight threads get the bits that one thread gets, and add no threads but themselves. On a GPU by functions:
    TensorFlow's own eager ops take each other's shapes and axes there when threads call them at once."""
    work = []
    for case in CASES:
        step = functools.partial(case.step, case.run, options=case.options[-1])
        step = step if device.startswith("CPU") else tf.function(step, autograph=False)
        for seed in range(THREADS):
            *inputs, dy = case.tensors((129 + seed, 515), "float32", seed)
            work.append((seed, step, inputs, dy))

    def steps(seed):
        with tf.device(device):
            return [step(inputs=inputs, dy=dy) for s, step, inputs, dy in work if s == seed]

    want = [steps(seed) for seed in range(THREADS)]
    count = lambda: len(os.listdir("/proc/self/task"))
    before, most = count(), 0
    gate = threading.Barrier(THREADS)

    def together(seed):
        gate.wait()
        return [steps(seed) for _ in range(2)]

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(together, seed) for seed in range(THREADS)]
        while not all(f.done() for f in futures):
            most = max(most, count())
            time.sleep(0.005)
    for seed, future in enumerate(futures):
        for got in future.result():
            for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want[seed])):
                assert np.array_equal(a, b)
    if device.startswith("CPU"):
        assert most <= before + THREADS


GRADIENTS = """
import hashlib
import tensorflow as tf
from tfuse._core import _library
from tfuse import cases

hash = hashlib.sha256()
with tf.device("CPU:0"):
    for n, case in enumerate(case for family in cases.all_cases().values() for case in family):
        for i, shape in enumerate([(1, 100003), (4099, 20), (130, 1031)]):
            *inputs, dy = case.tensors(shape, ("float32", "bfloat16")[(n + i) % 2])  # they take turns
            for result in case.step(case.run, inputs, dy, case.options[-1]):
                hash.update(tf.io.serialize_tensor(result).numpy())
print(_library.library.tfu_threads(), hash.hexdigest())
"""


def test_thread_count_changes_no_bit():
    processes = [start_python(GRADIENTS, TFUSE_NUM_THREADS=n, CUDA_VISIBLE_DEVICES="") for n in ("1", "3")]
    one, three = (result_of(p).split() for p in processes)
    assert (one[0], three[0]) == ("1", "3")
    assert one[1] == three[1]


def test_fork():
    """A child starts threads of its own. Only the C pool is asked: TensorFlow itself does not survive a fork."""
    threads = _library.library.tfu_threads()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends the child, should it hang
        os._exit(0 if _library.library.tfu_threads() == threads else 1)
    assert os.waitpid(child, 0)[1] == 0


# ---- explain ----


def test_explain_an_eager_call(device):
    x = tf.ones([3, 5, 7])
    for _ in range(3):
        tfuse.gelu(x)
    last = tfuse.explain()[-1]
    place = device.split(":")[0]
    assert (last["op"], last["when"], last["route"], last["device"], last["input"], last["calls"]) == (
        "ScaleBiasAct", "ran", "TensorFlow op", place, "float32[3, 5, 7]", 3)
    assert last["kernel"] and last["why"] == "its inputs are on the " + place
    table, _, legend = repr(tfuse.explain()).partition("\n\n")
    table = table.splitlines()
    assert table[0].split()[:4] == ["op", "when", "route", "device"] and "ScaleBiasAct" in table[-1]
    for column in set(table[0].split()) - {"device"}:
        assert re.search(r"(^|\s)%s: " % column, legend), column
    assert re.search(r"last 512 decisions .* last 64 runs", legend.replace("\n", " "))
    captured = ["captured into a CUDA graph" in row["why"] for row in tfuse.explain(last=1)]
    assert sum(captured) <= 1 and len(captured) - sum(captured) <= 2
    assert repr(_explain.Explanation()) == "tfuse has not been called yet"


def test_explanations_print_calls_alike_as_one():
    row = {"op": "Norm", "when": "ran", "route": "", "device": "CPU", "kernel": "loop", "why": "so"}
    rows = [{**row, "calls": 2, "input": shape} for shape in ("a", "b", "a", "c")] + [{**row, "op": "Gelu", "calls": 1, "input": "a"}]
    table = [line.split() for line in repr(_explain.Explanation(rows)).partition("\n\n")[0].splitlines()]
    assert [line[:1] + line[-6:] for line in table[1:]] == [
        ["Norm", "a", "and", "2", "others", "8", "so"], ["Gelu", "ran", "CPU", "loop", "a", "1", "so"]]


@needs_xla
def test_explain_a_call_in_xla(device):
    x = tf.ones([2, 11])
    tf.function(tfuse.square, jit_compile=True)(x)
    traced = [row for row in tfuse.explain(64) if row["when"] == "traced"][-1]
    assert (traced["op"], traced["route"], traced["input"]) == ("Square", "XLA custom call", "float32[2, 11]")
    ran = tfuse.explain()[-1]
    assert (ran["op"], ran["route"], ran["input"]) == ("Square", "XLA custom call", "float32[2, 11]")
    assert ran["why"].startswith("inside jit_compile=True; its inputs are on the ")


@needs_xla
def test_explain_an_unknown_dimension_in_xla(device):
    """A Keras batch is unknown while tracing; the kernel must run all the same."""
    f = tf.function(tfuse.square, jit_compile=True, input_signature=[tf.TensorSpec([None, 13])])
    for rows in (3, 5):
        assert f(tf.ones([rows, 13])).shape == (rows, 13)
        ran = tfuse.explain()[-1]
        assert (ran["op"], ran["route"], ran["input"]) == ("Square", "XLA custom call", "float32[%d, 13]" % rows)


@needs_xla
def test_tracing_for_xla_does_nothing_twice(monkeypatch):
    """A model's layers are alike: the shape rule is asked once of what they call, and a tape makes no gradients of copies."""
    asked, own = [], _op.FusedOp._new_specs
    monkeypatch.setattr(_op.FusedOp, "_new_specs", lambda self, *given: asked.append(self.name) or own(self, *given))
    constants = []
    _op._specs.cache_clear()

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in range(4):
                y = tfuse.square(y)
        dx = tape.gradient(y, x)
        constants.extend(op for op in dx.graph.get_operations() if op.type == "Const")
        return dx

    assert step(tf.fill([2, 19], 1.0))[0, 0] == 16
    assert sorted(asked) == ["Square", "SquareGrad"]
    assert len(constants) == 1  # the gradient that it begins with


def test_explain_what_xla_cannot_take():
    tf.function(tfuse.square, jit_compile=True).get_concrete_function(tf.TensorSpec(None))
    last = [row for row in tfuse.explain(64) if row["when"] == "traced"][-1]
    assert (last["op"], last["route"], last["input"]) == ("Square", "plain TensorFlow", "float32[?]")
    assert last["why"] in (_library.xla_status(), "x has an unknown number of dimensions inside jit_compile=True")


def test_a_function_traced_before_xla():
    """TensorFlow keeps one trace for both, and C cannot give XLA an op: the README says what to do."""
    skip_broken_xla()
    inner = tf.function(tfuse.square)
    inner(tf.ones([2, 17]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="No registered 'Tfuse>Square' OpKernel for XLA"):
        tf.function(lambda x: inner(x), jit_compile=True)(tf.ones([2, 17]))
    inner = tf.function(tfuse.square, jit_compile=True)
    inner(tf.ones([2, 17]))
    assert float(tf.function(lambda x: inner(x), jit_compile=True)(tf.fill([2, 17], 3.0))[0, 0]) == 9


# ---- calls past the wrappers ----


def test_numbers_of_a_type_that_does_not_fit(device):
    """The wrappers see to it; the library does for all who call an op otherwise, whatever the kernel."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="by must be float64 where x is float64, got float32"):
        _library.ops.tfuse_scale_linear_cross_entropy(tf.zeros([4], tf.float64), tf.zeros([], tf.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="loss must be float64 where x is float64, got float32"):
        _library.ops.tfuse_sparse_cross_entropy(tf.zeros([4, 8], tf.float64), tf.zeros([4], tf.int32), S=tf.float32)


# ---- what a row says of a call before it is made ----

_, MAX = None, {"kind": "max"}
REDUCE = {"kind": "sum", "axes": 1 << 1, "keepdims": False}


@pytest.mark.parametrize("stem, inputs, attributes, want", [
    ("transpose", [[2, _, 4]], {"perm": 0x021}, [_, 4, 2]), ("transpose", [_], {"perm": 0x01}, _),
    ("transpose", [[2, 3]], {"perm": 0x11}, r"perm must name each axis of x \[2, 3\] once"),
    ("reduce", [[2, _, 4]], REDUCE, [2, 4]), ("reduce", [[2, 3, _]], {**REDUCE, "keepdims": True}, [2, 1, _]),
    ("reduce", [_], REDUCE, _), ("reduce", [_], {**REDUCE, "axes": 1 << 16}, []),
    ("reduce", [_], {**REDUCE, "axes": 1 << 16, "keepdims": True}, _),
    ("reduce", [[2]], REDUCE, r"axis must be one of the 1 axes of x \[2\], got 1"),
    ("arg_reduce", [[_, 3]], {**MAX, "axis": -1}, [_]), ("arg_reduce", [[0, _, _]], {**MAX, "axis": 0}, [_, _]),
    ("arg_reduce", [[_, _]], {**MAX, "axis": 0}, [_]), ("arg_reduce", [[0, 0]], {**MAX, "axis": 0}, [0]),
    ("arg_reduce", [[2, 0]], {**MAX, "axis": 1}, r"axis 1 of x \[2, 0\] must have elements"),
    ("concat", [[2, 3], [_, 5]], {"axis": -1}, [2, 8]), ("concat", [[_, _], [2, 5]], {"axis": 1}, [2, _]),
    ("concat", [_, [2, 5]], {"axis": 1}, [2, _]), ("concat", [[2, 5], _], {"axis": 0}, [_, 5]),
    ("concat", [_, _], {"axis": 9}, _),
    ("concat", [_, [2, 5], [3, 5]], {"axis": 1}, r"values\[2\] must have the sizes of values\[1\] \[2, 5\] but along axis 1"),
    ("concat", [_, [2, 5], [3]], {"axis": 1}, r"values\[2\] must have as many axes as values\[1\] \[2, 5\]"),
])
def test_shapes_by_attributes(stem, inputs, attributes, want):
    assert _row.asks(stem)[0]
    specs = [tf.TensorSpec(shape) for shape in inputs]
    ask = lambda: _row.shapes(stem, specs, {**attributes, "N": len(inputs)}, 1)[0]
    if isinstance(want, str):
        with pytest.raises(ValueError, match="^%s: %s" % (stem, want)):
            ask()
    else:
        shape = ask()
        assert (None if shape.rank is None else shape.as_list()) == want


def in_time(call):
    """Calls it in a thread, which it may block for ever."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_notes_inside_of_a_note():
    """As from a signal handler that calls a layer while its thread is in there: no call is lost, and nobody waits."""
    class Interrupted(str):
        def __hash__(self):
            if len(left) > 0:
                left.pop()
                _explain.note("test_library", "inside", "", [], "called")
                _explain.since((0, 0))
            return super().__hash__()

    left, told = list(range(3)), since_now()
    in_time(lambda: [_explain.note("test_library", Interrupted("outside"), "", [], "called") for _ in range(2)])
    assert not left
    assert {row["route"]: row["calls"] for row in told(op="test_library")} == {"inside": 3, "outside": 2}
