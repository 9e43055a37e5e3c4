"""The built library and the source tree: what it links and exports, how import fails, threads, explain(), and the rules
that every source file keeps."""

import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import ROOT, needs_xla, skip_broken_xla
from tfuse._tools import _bench_plots, _bench_table, _ops
from tfuse._core import _explain, _library, _op
from tfuse import cases

CASES = [case for family in cases.all_cases().values() for case in family if case.shapes]


def start_python(program, **environment):
    """A new Python process with this tfuse; a variable that is None is unset."""
    home = str(pathlib.Path(tfuse.__file__).parent.parent)
    path = os.pathsep.join([home, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "TFUSE_LIBRARY": _library.path, "PYTHONPATH": path, **environment}
    return subprocess.Popen([sys.executable, "-c", program], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={name: value for name, value in environment.items() if value is not None})


def result_of(process):
    """What the process printed; fails the test if it failed."""
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    return out


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


def test_exports_c_functions_only():
    exported = {(kind, name) for kind, binding, section, name in symbols() if section != "UND" and binding != "LOCAL"}
    assert exported and all(kind == "FUNC" and name.startswith("tfu_") for kind, name in exported), exported


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
    assert "cannot load %s" % text in broken and tf.__version__ in broken and "2.16 to 2.21" in broken
    assert "tfuse needs TensorFlow 2.16 to 2.21" in bare and "pip install tensorflow" in bare


def test_import_without_a_library(monkeypatch, tmp_path):
    monkeypatch.delenv("TFUSE_LIBRARY", raising=False)
    monkeypatch.setattr(_library, "__file__", str(tmp_path / "_core" / "_library.py"))
    with pytest.raises(ImportError, match="not at %s.*reinstall the wheel, or build it" % tmp_path):
        _library.find()


# ---- threads ----


def test_concurrent_calls(device):
    """Sixteen threads get the bits that one thread gets, and add no threads but themselves. On a GPU by functions:
    TensorFlow's own eager ops take each other's shapes and axes there when threads call them at once."""
    work = []
    for case in CASES:
        step = functools.partial(case.step, case.run, options=case.options[-1])
        step = step if device.startswith("CPU") else tf.function(step, autograph=False)
        for seed in range(16):
            *inputs, dy = case.tensors((129 + seed, 515), "float32", seed)
            work.append((seed, step, inputs, dy))

    def steps(seed):
        with tf.device(device):
            return [step(inputs=inputs, dy=dy) for s, step, inputs, dy in work if s == seed]

    want = [steps(seed) for seed in range(16)]
    count = lambda: len(os.listdir("/proc/self/task"))
    before, most = count(), 0
    gate = threading.Barrier(16)

    def together(seed):
        gate.wait()
        return [steps(seed) for _ in range(2)]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(together, seed) for seed in range(16)]
        while not all(f.done() for f in futures):
            most = max(most, count())
            time.sleep(0.005)
    for seed, future in enumerate(futures):
        for got in future.result():
            for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want[seed])):
                assert np.array_equal(a, b)
    if device.startswith("CPU"):
        assert most <= before + 16


GRADIENTS = """
import hashlib
import tensorflow as tf
from tfuse._core import _library
from tfuse import cases

hash = hashlib.sha256()
with tf.device("CPU:0"):
    for case in (case for family in cases.all_cases().values() for case in family if case.shapes):
        for shape in [(1, 100003), (4099, 20), (130, 1031)]:
            for dtype in ("float32", "bfloat16"):
                *inputs, dy = case.tensors(shape, dtype)
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
    table = repr(tfuse.explain()).splitlines()
    assert table[0].split()[:4] == ["op", "when", "route", "device"] and "ScaleBiasAct" in table[-1]
    assert len(tfuse.explain(last=1)) <= 2
    assert repr(_explain.Explanation()) == "tfuse has not been called yet"


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


# ---- the source tree ----

needs_sources = pytest.mark.skipif(not (ROOT / "ops" / "ops.def").exists(), reason="not in the source tree")


def sources(*endings, folders=("ops", "kernels", "tests")):
    """Path below the root -> text."""
    return {str(path.relative_to(ROOT)): path.read_text() for folder in folders
            for path in sorted((ROOT / folder).rglob("*")) if path.suffix in endings}


def stems():
    return re.findall(r"^X\((\w+)\)$", (ROOT / "ops" / "ops.def").read_text(), re.MULTILINE)


@needs_sources
def test_no_c_plus_plus_files():
    assert not sources(".cc", ".cpp", ".cxx", ".hpp", ".hh", folders=("ops", "kernels", "python", "tests", "tools"))


@needs_sources
def test_who_includes_what():
    includes = {path: re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)', text, re.MULTILINE)
                for path, text in sources(".c", ".h", ".cu", ".cuh").items()}
    users = lambda prefix: {path for path, names in includes.items() if any(n.startswith(prefix) for n in names)}
    assert users("tensorflow/") == {"ops/core/tf_bind.c"}
    assert users("xla/") == {"ops/core/xla_bind.c"}
    assert {u for u in users("cuda") if u[-2:] in (".c", ".h")} == {"kernels/core/gpu/driver.h"}  # for its types
    for path, names in includes.items():
        if family := re.fullmatch(r"ops/(?!core)(\w+)/\w+\.c", path):
            assert all(re.fullmatch(r"(ops/%s/)?\w+\.h" % family[1], name) for name in names), path


# What a family offers to others: the passes that follow a product, and the loss of rows.
OFFERED = {"kernels/elementwise/scale_bias_act.h", "kernels/rows/cross_entropy.h", "kernels/rows/sparse_cross_entropy_cpu.h"}


@needs_sources
def test_families_see_core_and_themselves():
    """Includes go from a family to core, never back, and to another family only where that says what it offers."""
    place = lambda path: re.match(r"(?:kernels|ops)/(\w+)/", path)
    for path, text in sources(".c", ".h", ".cu", ".cuh", folders=("ops", "kernels")).items():
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE):
            if place(name) and place(name)[1] != "core" and place(name)[1] != (place(path) or [None, None])[1]:
                assert name in OFFERED and "/core/" not in path, path


@needs_sources
def test_host_code_never_prints_or_exits():
    for path, text in sources(".c", ".h", folders=("ops", "kernels")).items():
        assert not re.search(r"(?<!\w)(f?printf|f?puts|perror|abort|exit|_exit|assert)\s*\(", text), path


@needs_sources
def test_every_op_has_its_files():
    """A file of rows, ops/<family>/<name>.c, has kernels in the family's folder of that name."""
    files = [path for path in (ROOT / "ops").glob("*/*.c") if path.parent.name != "core"]
    rows, names = "".join(path.read_text() for path in files), {path.stem for path in files}
    assert len(stems()) == len(set(stems())) > 0
    for stem in stems():
        assert "const tfu_op tfu_%s = {" % stem in rows, stem
        assert any(stem.startswith(name) or stem.endswith((name, name + "_grad")) for name in names), stem
    for path in files:
        name, kernels = path.stem, ROOT / "kernels" / path.parent.name
        for file in (kernels / (name + "_cpu.c"), kernels / (name + "_gpu.c"), ROOT / "python/tfuse" / path.parent.name / (name + ".py"),
                     ROOT / "python/tfuse/cases" / path.parent.name / (name + ".py")):
            assert file.exists(), file
        if "TFU_MODULE(%s)" % name in (kernels / (name + "_gpu.c")).read_text():  # else it has no kernel of its own
            assert (kernels / (name + ".cu")).exists(), name


@needs_sources
def test_every_module_is_in_its_family():
    for family, modules in _ops.FAMILIES.items():
        found = {path.stem for path in (ROOT / "python/tfuse" / family).glob("*.py")}
        assert found == {*modules, "__init__"} and len(set(modules)) == len(modules), family


@needs_sources
def test_every_op_is_in_python():
    assert {op.stem for op in _op.registry.values()} == set(stems())
    for name in _op.registry:
        assert _library.library.tfu_doc(name.encode()).endswith(b"."), name
    for name, value in vars(tfuse).items():
        if callable(value) and not name.startswith("_"):
            assert value.__doc__, name


@needs_sources
def test_a_simple_op_is_short():
    """The measure of the core: what an elementwise op costs its author, forward and gradient, CPU and GPU."""
    files = [path for folder in ("ops", "kernels", "python/tfuse") for path in (ROOT / folder).rglob("square*")
             if "cases" not in path.parts]
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert len(lines) == 6, lines
    assert sum(lines.values()) <= 60, lines


def test_numbers_of_a_type_that_does_not_fit(device):
    """The wrappers see to it; the library does for all who call an op otherwise, whatever the kernel."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="by must be float64 where x is float64, got float32"):
        _library.ops.tfuse_scale_linear_cross_entropy(tf.zeros([4], tf.float64), tf.zeros([], tf.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="loss must be float64 where x is float64, got float32"):
        _library.ops.tfuse_sparse_cross_entropy(tf.zeros([4, 8], tf.float64), tf.zeros([4], tf.int32), S=tf.float32)


def bar_rows(**milliseconds):
    """Rows as the bench writes them, of the own product's variants, in milliseconds of the forward pass."""
    name, shape = "own matmul 8192³", [8192] * 3
    return [{"op": name, "kind": kind, "dtype": "bfloat16", "shape": shape, "direction": direction, "bytes": 1,
             "ms": {"tfuse": ms}, "both_ms": {"tfuse": 3 * ms}, "percent_of_copy": 1, "TF_per_s": 1, "percent_of_matmul": 51,
             "both_percent_of_matmul": 51}
            for kind, ms in milliseconds.items() for direction in ("forward", "backward")]


@pytest.mark.parametrize("timed, holds, line", [
    ({"tensor": 1, "tiled": 10, "naive": 51}, True,
     "holds times_naive own matmul 8192³ tiled bfloat16 8192×8192×8192: 5.1 times naive's speed, at least 5.0 times naive's speed"),
    ({"tiled": 10, "naive": 49}, False,
     "FAILS times_naive own matmul 8192³ tiled bfloat16 8192×8192×8192: 4.9 times naive's speed, at least 5.0 times naive's speed"),
    ({"naive": 49, "tiled": 10}, False, "4.9 times"),
    ({"tiled": 10}, True, "open  times_naive own matmul 8192³ kind=tiled bfloat16 8192×8192×8192: not timed"),
], ids=["holds", "fails", "in another order", "nothing to compare with"])
def test_a_bar_beside_another_variant(capsys, timed, holds, line):
    assert _bench_table.check_bars({"copy_TB_per_s": 4, "hardware": "a test"}, bar_rows(**timed)) == holds
    printed = [text for text in capsys.readouterr().out.splitlines() if "times_naive" in text]
    assert len(printed) == 1 and line in printed[0]


def test_rivals_of_a_gradient_that_comes_with_the_value():
    rows = bar_rows(tiled=4)
    rows[0]["ms"]["XLA"], rows[1]["ms"]["XLA"], rows[1]["both_ms"]["XLA"] = 3, 7, 10
    assert _bench_table.lost(rows) == [(rows[0], "forward", "XLA", pytest.approx(100 / 3))]
    rows[1]["TF_per_s"] = 0
    assert list(_bench_table.compared(rows)) == [(rows[1], "both", {"tfuse": 12, "XLA": 10})]
    assert _bench_table.lost(rows) == [(rows[1], "both", "XLA", pytest.approx(20))]
    printed = _bench_table.page(saved_run(rows))
    assert "| own matmul 8192³ tiled | 8192×8192×8192 | 8.000 | 1 / – TF/s | 1.2× |" in printed
    assert "| own matmul 8192³ bfloat16, both | XLA | 20% | 8192×8192×8192; tiled |" in printed
    assert "- XLA is faster in 1 of 1 timings.\n- In 0 of these" in printed


def saved_run(rows, steps=()):
    return {"hardware": "a test", "tensorflow": "", "copy_TB_per_s": 4, "steps": list(steps),
            "rows": [{**row, "commit": "", "date": ""} for row in rows]}


def timed_rows(op, shape, dtype="float32", stock=2, **options):
    """A pair of rows of which tfuse takes 1 ms each, and stock TensorFlow and XLA what is given."""
    ms = {"tfuse": 1, "stock": stock, "XLA": 2.5}
    return [{"op": op, **options, "dtype": dtype, "shape": shape, "direction": direction, "bytes": 1, "ms": ms,
             "both_ms": {name: 2 * t for name, t in ms.items()}, "percent_of_copy": 50}
            for direction in ("forward", "backward")]


def test_tables_of_families():
    """Variants at an op's first shape, the slowest at others; a column for each dtype; losses the worst first."""
    rows = [row for more in (
        timed_rows("square", [8, 8]), timed_rows("softmax", [4, 4]), timed_rows("softmax", [4, 4], "bfloat16", stock=0.9),
        timed_rows("gated", [8, 8], activation="silu"), timed_rows("gated", [8, 8], activation="gelu"),
        timed_rows("gated", [9, 9], activation="silu", stock=0.995),
        timed_rows("gated", [9, 9], activation="gelu", stock=0.8),
        timed_rows("attention, speed, own kernel", [1] * 6, is_causal=True)) for row in more]
    assert {family: {row["op"] for row in some} for family, some in _bench_table.by_family(rows).items()} == {
        "elementwise": {"square", "gated"}, "rows": {"softmax"}, "attention": {"attention, speed, own kernel"}}
    page = _bench_table.page(saved_run(rows), "pictures/run_")
    headings = re.findall("^### (.*)", page, flags=re.M)
    assert headings == ["Elementwise", "Rows", "Attention", "Where it loses"]
    assert "(pictures/run_rows.png)" in page
    assert "| op | shape | float32 ms | speed | stock | XLA | bfloat16 ms | speed | stock | XLA |" in page
    assert "| softmax | 4×4 | 2.000 | 50% / 50% | 2.0× | 2.5× | 2.000 | 50% / 50% | **0.90×** | 2.5× |" in page
    assert "| gated silu | 8×8 | 2.000 |" in page
    assert "| gated, slowest | 9×9 | 2.000 | 50% / 50% | **0.80×** | 2.5× |" in page
    assert "| attention, own kernel causal | 1×1×1×1×1×1 |" in page
    lost = page.split("|---|---|--:|---|\n")[1].split("\n\n")[0].splitlines()
    assert lost == ["| gated float32, forward | stock | 25% | 9×9; gelu |",
                    "| gated float32, backward | stock | 25% | 9×9; gelu |",
                    "| softmax bfloat16, forward | stock | 11% | 4×4 |",
                    "| softmax bfloat16, backward | stock | 11% | 4×4 |"]
    assert "- stock is faster in 6 of 16 timings." in page and "- In 2 of these" in page


def test_every_case_has_a_family():
    ops = [case.name for members in cases.all_cases().values() for case in members]
    assert all(_bench_table.family_of(op) for op in ops) and _bench_table.family_of("nonsense") is None
    assert set(_bench_table.NOTES) == set(_ops.FAMILIES)


def png_size(path):
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_pictures(tmp_path):
    """A file for each family that has something to compare; sorted by the fastest rival."""
    pytest.importorskip("matplotlib")
    step = {"op": "optimizers.Adam", "variables": 4, "elements": 5, "ms": {"tfuse": None}, "least_ms": [1, None],
            "all_ms": {"tfuse": 2, "torch fused": 1, "stock": None}, "commit": "", "date": ""}
    saved = saved_run(timed_rows("square", [8, 8]) + timed_rows("gated", [8, 8], "bfloat16", stock=9, activation="silu") +
                      timed_rows("dropout", [8, 8], stock=0.5) + bar_rows(tiled=4), [step])
    assert dict(_bench_plots.lines(saved)) == {
        "elementwise": [("gated silu bfloat16 8×8", {"stock": 9, "XLA": 2.5}),
                        ("square float32 8×8", {"stock": 2, "XLA": 2.5}),
                        ("dropout float32 8×8", {"stock": 0.5, "XLA": 2.5})],
        "lists": [("Adam 4×5, in all", {"torch fused": 0.5})]}
    (tmp_path / "a.json").write_text(json.dumps(saved))
    (tmp_path / "gpt2_a.json").write_text(json.dumps({"hardware": "a test", "rows": [
        {"name": "Keras", "batch": 16, "length": 1024, "ms_per_step": 7}, {"name": "PyTorch", "batch": 16, "length": 1024,
                                                                          "failed": "out of memory"}]}))
    drawn = list(_bench_plots.draw(tmp_path))
    assert [path.name for path in drawn] == ["a_elementwise.png", "a_lists.png", "headline.png"]
    assert all(100 < size < 1200 for path in drawn for size in png_size(path))


def test_every_bar_is_known():
    for case in (case for members in cases.all_cases().values() for case in members):
        for (dtype, shape, *only), limits in case.bars.items():
            assert set(limits) <= set(_bench_table.BARS), case.name
            assert dtype in cases.DTYPES and shape in case.sizes + case.sweep, case.name
            assert all(dict(wanted) in (case.timed or case.options) for wanted in only), case.name


@needs_sources
def test_every_picture_fits_a_page():
    pictures = list((ROOT / "benchmarks").glob("*.png"))
    assert "headline.png" in [path.name for path in pictures]
    for path in pictures:
        assert max(png_size(path)) < 1500 and path.stat().st_size < 80_000, path
