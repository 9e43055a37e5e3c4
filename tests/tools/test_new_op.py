"""python -m tfuse new-op: what it writes builds, and does what its case says; what it refuses changes nothing."""

import dataclasses
import importlib
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

import tfuse
import tfuse.cases
from conftest import GPUS, ROOT, skip_broken_xla
from tfuse._tools import _build_op, _doctor, _new_op

LISTS = ["ops/ops.def", "python/tfuse/__init__.py", "python/tfuse/_tools/_ops.py", "tests/core/kernels_test.c",
         "docs/design.md"]
pytestmark = pytest.mark.skipif(not all((ROOT / path).exists() for path in LISTS), reason="not in the source tree")
# One of each kind: the command's arguments, what the layer is called with.
OPS = {
    "zz_bend": ([], 1),
    "gain_bend": (["--inputs", "x, gain, level", "--layer"], 1),
    "even_rows": (["--kind", "rows", "--layer"], 1),
    "both_bend": (["--kind", "map", "--inputs", "a, b", "--layer"], 2),
    "less_bend": (["--attributes", "alpha: float = 0.3"], 1),
    "more_bend": (["--inputs", "x, gain", "--attributes", "alpha: float = 0.5, beta: float = -2e-1", "--layer"], 1),
    "less_rows": (["--kind", "rows", "--attributes", "alpha: float = 0.3", "--layer"], 1),
    "less_map": (["--kind", "map", "--inputs", "a, b", "--attributes", "alpha: float = 2, beta: float = 1", "--layer"], 2),
}


def copy_lists(root):
    """What new-op edits of a checkout, and folders for what it writes."""
    for path in LISTS:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, root / path)
    for family in ("elementwise", "rows"):
        for folder in ("ops", "kernels", "python/tfuse", "python/tfuse/cases"):
            (root / folder / family).mkdir(parents=True, exist_ok=True)
    return root


def texts(root):
    return {path: path.read_text() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A copy in which each op was made by the command, from a folder inside of it."""
    root = copy_lists(tmp_path_factory.mktemp("checkout"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root / "kernels/rows")
        for stem, (arguments, _) in OPS.items():
            assert _new_op.main([stem, *arguments]) == 0
    return root


@pytest.fixture(scope="module")
def loaded(made, tmp_path_factory):
    """The ops' cases by name; their library is built apart, since building all of tfuse would take minutes."""
    if not shutil.which("cc") or GPUS and not _build_op.nvidia():
        pytest.skip("needs a C compiler, and NVRTC where there is a GPU")
    folder = tmp_path_factory.mktemp("library")
    for part in ("ops", "kernels"):
        shutil.copytree(made / part, folder / part)
    (folder / "ops/ops.def").unlink()
    (folder / "ops.def").write_text("".join("X(%s)\nX(%s_grad)\n" % (stem, stem) for stem in OPS))
    architectures = _build_op.architectures_here() if GPUS else ["sm_90"] if _build_op.nvidia() else []
    tfuse.load(_build_op.build(folder, architectures=architectures))
    found = {}
    for stem, (arguments, _) in OPS.items():
        family = "rows" if "rows" in arguments else "elementwise"
        for package in ("tfuse", "tfuse.cases"):
            importlib.import_module("%s.%s" % (package, family)).__path__.append(
                str(made / "python" / package.replace(".", "/") / family))
        module = importlib.import_module("tfuse.%s.%s" % (family, stem))
        for name in (stem, _new_op.camel(stem)):
            if hasattr(module, name):
                setattr(tfuse, name, getattr(module, name))
        (found[stem],) = importlib.import_module("tfuse.cases.%s.%s" % (family, stem)).CASES
    return found


@pytest.mark.parametrize("stem", OPS)
@pytest.mark.parametrize("route", ["eager", "graph", "xla"])
def test_what_it_computes(device, loaded, stem, route):
    if route == "xla":
        skip_broken_xla()
    case = loaded[stem]
    if route != "eager":
        case = dataclasses.replace(case, run=tf.function(case.run, autograph=False, jit_compile=route == "xla"))
    for dtype in tfuse.cases.DTYPES:
        for shape in [(64, 129), (7, 3), (1, 5003)]:
            for options in case.options:
                _doctor._check(case, options, shape, dtype)


@pytest.mark.parametrize("stem", OPS)
def test_what_it_rejects(loaded, stem):
    for pattern, call in loaded[stem].rejects:
        with pytest.raises(Exception, match=pattern):
            call()


@pytest.mark.parametrize("stem", [stem for stem, (arguments, _) in OPS.items() if "--layer" in arguments])
def test_its_layer(loaded, stem, tmp_path):
    layer, x = getattr(tfuse, _new_op.camel(stem))(), [tf.random.normal([5, 8]) for _ in range(OPS[stem][1])]
    y = layer(*x)
    np.testing.assert_array_equal(y, getattr(tfuse, stem)(*x, *layer.weights))
    again = type(layer).from_config(layer.get_config())
    np.testing.assert_array_equal(again(*x), y)
    assert layer.compute_output_shape(*[tuple(t.shape) for t in x]) == y.shape


@pytest.mark.parametrize("stem", OPS)
def test_every_place_of_the_placeholder_is_named(tmp_path, monkeypatch, capsys, stem):
    root = copy_lists(tmp_path)
    monkeypatch.chdir(root)
    assert _new_op.main([stem, *OPS[stem][0]]) == 0
    new, _, places, _ = re.split(r"\n\S.*:\n", capsys.readouterr().out)
    named = set(re.findall(r"^  (\S+)", places, re.MULTILINE))
    computed = {path for path in re.findall(r"^  (\S+)", new, re.MULTILINE) if "1 + " in (root / path).read_text()}
    assert computed == named


def test_lists(made):
    """In the order of the alphabet; what was there is there still, in its order."""
    ops = re.findall(r"^X\((\w+)\)$", (made / "ops/ops.def").read_text(), re.MULTILINE)
    assert ops == sorted(ops) and {stem + end for stem in OPS for end in ("", "_grad")} <= set(ops)
    for path in LISTS[:1] + LISTS[3:]:
        old, new = ((root / path).read_text().splitlines() for root in (ROOT, made))
        added = [line for line in new if line not in old]
        assert [line for line in new if line not in added] == old, path
        assert len(added) == (2 if "docs" in path else 2 * len(OPS)), path
    text = (made / "python/tfuse/__init__.py").read_text()
    assert "from tfuse.rows.even_rows import EvenRows, even_rows\n" in text
    assert "from tfuse.elementwise.zz_bend import zz_bend\nfrom tfuse.rows." in text
    compile(text, "__init__.py", "exec")
    assert max(map(len, (made / "python/tfuse/_tools/_ops.py").read_text().splitlines())) <= 125
    for path in [*made.glob("ops/*/*.c"), *made.glob("kernels/*/*")]:
        assert max(map(len, path.read_text().splitlines())) <= 120, path


@pytest.mark.parametrize("arguments, message", [
    (["square"], "there is square, square_grad already: take another name"),
    (["gelu", "--kind", "rows"], "there is gelu already: take another name"),
    (["dense"], "there is Dense already"),
    (["Bend"], "NAME must be small letters and digits, as in scale_bias, .*got 'Bend'"),
    (["bend_2d"], "each part must begin with a letter; got 'bend_2d'"),
    (["bend-x"], "got 'bend-x'"),
    (["b" * 25], "at most 24"),
    (["bend_grad"], "nor end in _grad, got 'bend_grad'"),
    (["sqrt"], "must not be that of a function of C or Python.*got 'sqrt'"),
    (["double"], "must not be a word of Python, C or CUDA, got 'double'"),
    (["bend", "--inputs", ""], "a name in --inputs must be small letters"),
    (["bend", "--inputs", "x, x"], "--inputs must be names that differ .*got x, x"),
    (["bend", "--inputs", "x, dx"], "--inputs must be names that differ .* from their gradients, dx, ddx"),
    (["bend", "--inputs", "x, dy"], "an input must not be called 'dy'"),
    (["bend", "--inputs", "x, bend"], "an input must not be called 'bend'"),
    (["bend", "--inputs", "a, b, c, d, e, f"], "kind elementwise has at most 5 inputs here, got 6: a, b, c, d, e, f"),
    (["bend", "--kind", "rows", "--inputs", "x, scale"], "kind rows has at most 1 input here, got 2: x, scale"),
    (["bend", "--attributes", "alpha"], "floats with a default, .* as in \"alpha: float = 0.5.*got 'alpha'"),
    (["bend", "--attributes", "n: int = 3"], "must be floats with a default.*got 'n: int = 3'"),
    (["bend", "--attributes", "alpha: float = 1, alpha: float = 2"], "each with a name of its own"),
    (["bend", "--attributes", "Alpha: float = 1"], "a name in --attributes must be small letters.*got 'Alpha'"),
    (["bend", "--attributes", "dx: float = 1"], "an attribute must not be called 'dx'"),
    (["bend", "--attributes", "share: float = 1"], "an attribute must not be called 'share'"),
    (["bend", "--kind", "map", "--attributes", "left: float = 1"], "an attribute must not be called 'left'"),
    (["bend", "--inputs", "x, a, b, c, d", "--attributes", "up: float = 1, low: float = 1"],
     "at most 5 weights and attributes here, got 6"),
])
def test_what_is_refused(tmp_path, monkeypatch, capsys, arguments, message):
    root = copy_lists(tmp_path)
    before = texts(root)
    monkeypatch.chdir(root)
    assert _new_op.main(arguments) == 1
    assert re.search(message, capsys.readouterr().err)
    assert texts(root) == before


def test_outside_of_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert _new_op.main(["bend"]) == 1
    assert re.search("is not in a checkout of tfuse.*--into FOLDER", capsys.readouterr().err)
    assert not list(pathlib.Path(tmp_path).iterdir())


def test_attributes_are_read(loaded):
    """By default, and as they are given; and a function that is saved keeps them."""
    x = tf.constant([[1.0, -3.0]], tf.float64)
    bend = x / (1 + tf.abs(x))
    close = lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-7)  # an attribute is a float32
    close(tfuse.less_bend(x), 0.3 * bend)
    close(tfuse.less_bend(x, alpha=-2.5), -2.5 * bend)
    close(tfuse.more_bend(x, tf.ones([2], tf.float64), beta=4), 4.5 * bend)
    close(tfuse.less_map(x, x, 0.25), 2 * 1.25 * bend)
    layer = tfuse.MoreBend(alpha=1, beta=2)
    close(type(layer).from_config(layer.get_config())(tf.cast(x, tf.float32)), 3 * tf.cast(bend, tf.float32))


def test_the_page_shows_what_is_written(tmp_path, monkeypatch):
    root, page = copy_lists(tmp_path), (ROOT / "docs/new_op.md").read_text()
    if "softsign" in (root / "ops/ops.def").read_text():
        pytest.skip("the page was followed here")
    monkeypatch.chdir(root)
    assert _new_op.main(["softsign"]) == 0
    blocks = re.findall(r"^```\w+ (file|edit)=(\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for how, path, code in blocks:
        assert code == (root / path).read_text() if how == "file" else code in (root / path).read_text(), path
