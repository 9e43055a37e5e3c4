"""The rules that every source file keeps: who includes what, what host code never does, and the files that each op has."""

import ast
import graphlib
import itertools
import pathlib
import re

import pytest

import tfuse
from conftest import ROOT
from tfuse._core import _library, _op
from tfuse._tools import _ops

pytestmark = pytest.mark.skipif(not (ROOT / "ops" / "ops.def").exists(), reason="not in the source tree")


def sources(*endings, folders=("ops", "kernels", "serving", "tests")):
    """Path below the root -> text."""
    return {str(path.relative_to(ROOT)): path.read_text() for folder in folders
            for path in sorted((ROOT / folder).rglob("*")) if path.suffix in endings}


def stems():
    return re.findall(r"^X\((\w+)\)$", (ROOT / "ops" / "ops.def").read_text(), re.MULTILINE)


def test_no_c_plus_plus_files():
    assert not sources(".cc", ".cpp", ".cxx", ".hpp", ".hh", folders=("ops", "kernels", "python", "serving", "tests", "tools"))


def test_who_includes_what():
    includes = {path: re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)', text, re.MULTILINE)
                for path, text in sources(".c", ".h", ".cu", ".cuh").items()}
    users = lambda prefix: {path for path, names in includes.items() if any(n.startswith(prefix) for n in names)}
    assert users("tensorflow/") == {"ops/core/tf_bind.c", "tests/serving/serving_apis_test.c"}  # which compares declarations
    assert users("xla/") == {"ops/core/xla_bind.c"}
    assert {u for u in users("cuda") if u[-2:] in (".c", ".h")} == {"kernels/core/gpu/driver.h"}  # for its types
    assert not {u for u in users("ops/core/") if not u.startswith("tests/")}
    core = r'(<[\w/]+\.(h|def)>|"((bind|chain|entry|library|tfuse)\.h|kernels/core/.*|(tensorflow|xla)/.*)")'
    for path, names in includes.items():
        if path.startswith("serving/"):  # it stands alone, but for the contract's types, and knows no kernel
            assert not any(name.startswith(("kernels/", "ops/")) for name in names), path
            assert path.startswith("serving/triton/") or not any("triton" in name for name in names), path
        if family := re.fullmatch(r"ops/(?!core)(\w+)/\w+\.[ch]", path):
            assert all(re.fullmatch(r"(ops/%s/)?\w+\.h" % family[1], name) for name in names), path
        if path.startswith("ops/core/"):
            text = (ROOT / path).read_text()
            assert all(re.match(core, name) for name in re.findall(r"^#include (.*)", text, re.MULTILINE)), path


# What a family offers to others: the passes that follow a product, the loss of rows, axes in another order, what is
# known of columns, and the arguments of ops that others are made of.
OFFERED = {"ops/attention/attention.h", "ops/elementwise/rope.h", "ops/products/linear.h", "ops/products/quantized_linear.h",
           "ops/rows/norm.h", "kernels/attention/attention_step.h", "kernels/attention/float8_pages.h",
           "kernels/products/few_rows.h", "kernels/elementwise/scale_bias_act.h", "kernels/layout/transpose.h",
           "kernels/products/gemm_cpu.h", "kernels/products/gemm_gpu.h", "kernels/reductions/reduce.h",
           "kernels/rows/cross_entropy.h", "kernels/rows/sparse_cross_entropy_cpu.h"}


def test_families_see_core_and_themselves():
    """Includes go from a family to core, never back, and to another family only where that says what it offers."""
    place = lambda path: re.match(r"(?:kernels|ops)/(\w+)/", path)
    for path, text in sources(".c", ".h", ".cu", ".cuh", folders=("ops", "kernels")).items():
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE):
            if place(name) and place(name)[1] != "core" and place(name)[1] != (place(path) or [None, None])[1]:
                assert name in OFFERED and "/core/" not in path, path


def imports():
    """Module of tfuse -> its own modules that it imports, and names of theirs that begin with _ and that it uses."""
    home, found = ROOT / "python/tfuse", {}
    texts = {".".join(["tfuse", *path.relative_to(home).with_suffix("").parts]).removesuffix(".__init__"): path.read_text()
             for path in home.rglob("*.py") if "demo_files" not in path.parts}
    for module, text in texts.items():
        modules, private, names = set(), set(), {}
        tree = list(ast.walk(ast.parse(text)))
        for node in tree:
            for name in node.names if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tfuse" else []:
                whole = "%s.%s" % (node.module, name.name)
                modules.add(whole if whole in texts else node.module)
                if whole in texts:
                    names[name.asname or name.name] = whole
                elif name.name.startswith("_"):
                    private.add((node.module, name.name))
        for node in tree:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and re.match("_[^_]", node.attr):
                private |= {(names[node.value.id], node.attr)} if node.value.id in names else set()
        found[module] = modules, private
    return found


def test_who_imports_what():
    """Families see core and families that do not see them; core sees none. Names that begin with _ are a folder's own; of a
    family its cases know them."""
    folder = lambda module: module.split(".")[1] if module.count(".") > 1 or module == "tfuse.jit" else ""
    family_of = lambda module: folder(re.sub(r"^tfuse\.cases\.(?=\w+\.)", "tfuse.", module))
    seen = {}
    for module, (modules, private) in imports().items():
        seen.setdefault(folder(module), set()).update(map(folder, modules))
        for other, name in private:
            assert family_of(other) == family_of(module), "%s uses %s of %s" % (module, name, other)
    families = set(_ops.FAMILIES) | {"jit"}
    assert seen["_core"] <= {"_core"} and families <= set(seen)
    for family in families:
        assert seen[family] <= families | {"_core"}, family
    order = graphlib.TopologicalSorter({family: seen[family] & families - {family} for family in families})
    order.prepare()  # CycleError names those that see each other


def test_host_code_never_prints_or_exits():
    for path, text in sources(".c", ".h", folders=("ops", "kernels", "serving")).items():
        text = text.replace("fprintf(file, ", "")  # into memory, by open_memstream
        assert not re.search(r"(?<!\w)(f?printf|f?puts|perror|abort|exit|_exit|assert)\s*\(", text), path


def test_blocks_wait_by_tickets():
    """Blocks need not start in the order of their numbers. So what waits for other blocks of its launch does that by
    look_back.cuh, and the number of its tile is a ticket; or by held_factor.cuh, and all blocks run at one time."""
    home, device = "kernels/core/device/look_back.cuh", sources(".cu", ".cuh", folders=("kernels",))
    together = "kernels/recurrent/held_factor.cuh"
    waits = re.compile(r"ld\.(relaxed|acquire|volatile)|(?<!asm )volatile (?!\()")
    assert {path for path, text in device.items() if waits.search(text)} == {home, together}
    reached = {together}
    for _ in device:
        reached |= {path for path, text in device.items() if any('"%s"' % other in text for other in reached)}
    host = sources(".c", folders=("kernels",))
    for stem in {pathlib.Path(path).stem for path in reached if path.endswith(".cu")}:
        owners = [text for text in host.values() if re.search(r"TFU_MODULE(_AS\(\w+, |\()%s\)" % stem, text)]
        assert owners and all(".together = 1" in text for text in owners), stem
    users = {path.rsplit("/", 1)[0] for path, text in device.items() if '"%s"' % home in text}
    assert users
    for folder in users:
        text = "".join(text for path, text in device.items() if path.startswith(folder))
        assert "take_ticket(" in text and not re.search(r"\btile = .*blockIdx", text), folder


NOT_CALLED = {  # by users under these names
    "jit": ["jit"], "staging": ["stage", "unstage", "report"],
    "generation": ["advance", "chain", "decode_attention", "experts", "projections", "put_rows", "quantized_projections",
                   "route_experts", "sample_logits", "take_rows"]}


def test_every_op_has_its_files():
    """A file of rows, ops/<family>/<name>.c, has kernels in the family's folder of that name, and a wrapper and a case in Python;
    but for jit, whose kernels are its users', for staging, which computes nothing, and for generation, whose ops are those of chains.
    The row of chains is in core, as it runs the others."""
    files = [path for path in (ROOT / "ops").glob("*/*.c") if path.parent.name != "core"]
    names = {path.stem for path in files} | {"chain"}
    rows = "".join(path.read_text() for path in [*files, ROOT / "ops/core/chain.c"])
    assert len(stems()) == len(set(stems())) > 0
    for stem in stems():
        assert "const tfu_op tfu_%s = {" % stem in rows, stem
        assert any(stem.startswith(name) or stem.endswith((name, name + "_grad")) for name in names), stem
    for path in files:
        name, kernels = path.stem, ROOT / "kernels" / path.parent.name
        python = [folder / path.parent.name / (name + ".py") for folder in (ROOT / "python/tfuse", ROOT / "python/tfuse/cases")]
        for file in (kernels / (name + "_cpu.c"), kernels / (name + "_gpu.c"), *(python if path.parent.name not in NOT_CALLED else [])):
            assert file.exists(), file
        if "TFU_MODULE(%s)" % name in (kernels / (name + "_gpu.c")).read_text():  # else it has no kernel of its own
            assert (kernels / (name + ".cu")).exists(), name


def test_every_module_is_in_its_family():
    for family, modules in _ops.FAMILIES.items():
        found = {path.stem for path in (ROOT / "python/tfuse" / family).glob("*.py")}
        assert found == {*modules, "__init__"}, "FAMILIES in python/tfuse/_tools/_ops.py has other modules of %s" % family
        assert len(set(modules)) == len(modules), family


def test_every_op_is_in_python():
    assert {*itertools.chain(*NOT_CALLED.values()), *(op.stem for op in _op.registry.values())} == set(stems())
    for name in _op.registry:
        assert _library.library.tfu_doc(name.encode()).endswith(b"."), name
    for name, value in vars(tfuse).items():
        if callable(value) and not name.startswith("_"):
            assert value.__doc__, name


def test_a_simple_op_is_short():
    """The measure of the core: what an elementwise op costs its author, forward and gradient, CPU and GPU."""
    files = [path for folder in ("ops", "kernels", "python/tfuse") for path in (ROOT / folder).rglob("square*")
             if not {"cases", "__pycache__"} & set(path.parts)]
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert len(lines) == 6, lines
    assert sum(lines.values()) <= 60, lines
