"""README.md and docs/: generated parts are up to date, links lead somewhere, commands exist, and code runs.

A fenced block of `python` or `sh` is run, unless the line before it says <!-- not run: why -->. All python blocks of a page
run one after the other, as a reader would type them. A block with file=PATH in its first line is the content of a new file,
one with edit=PATH lines that are added to a file; test_new_op.py compares these with what new-op writes.
"""

import contextlib
import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys

import keras
import pytest

import tfuse
from conftest import ROOT
from tfuse import __main__ as commands
from tfuse._core import _library, _op
from tfuse._tools import _ops

PAGES = sorted(str(path.relative_to(ROOT)) for where in ("*.md", "docs/*.md", "examples/**/*.md") for path in ROOT.glob(where))
OURS = [page for page in PAGES if not page.startswith("examples")]
pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="not in the source tree")

FENCE = re.compile(r"^(?:<!-- not run: (?P<why>.+) -->\n)?^```(?P<kind>.*)\n(?P<code>(?:.*\n)*?)^```$", re.MULTILINE)


def text_of(page):
    return (ROOT / page).read_text()


def blocks(page):
    """(why it is not run or None, language, {"file": …}, code, number of its line) of every fenced block."""
    text = text_of(page)
    for found in FENCE.finditer(text):
        language, *about = found["kind"].split()
        line = text[:found.start("code")].count("\n")
        yield found["why"], language, dict(part.split("=") for part in about), found["code"], line


def prose(page):
    """The page without its code."""
    return FENCE.sub("", text_of(page))


# ---- what is generated ----


@pytest.fixture(scope="module")
def readme():
    spec = importlib.util.spec_from_file_location("readme", ROOT / "tools/readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_up_to_date(readme):
    for page in [*readme.FILES, *readme.PARTS]:
        assert readme.filled(page) == text_of(page), "run ./run python tools/readme.py"


def test_ratios_of_models_are_those_of_the_printed_numbers(readme):
    """53.14818 / 32.65000 is 1.63 and the reader's 53.1 / 32.7 is 1.62; a model whose stock Keras was stopped has a dash there,
    one that lacks another column is not shown. Ratios are those of fit()."""
    row = lambda model, name, ms: {"model": model, "step": "a step", "name": name, "fit_ms": ms, "ms_per_step": ms - 1,
                                   "peak_GB": 1.0}
    rows = [row("gpt2", name, ms) for name, ms in zip(readme.COLUMNS, (53.14818, 34.8195, 35.7, 32.65001))]
    rows += [row("llama", name, ms) for name, ms in list(zip(readme.COLUMNS, (0, 210.3, 165.8, 160.3)))[1:]]
    rows.append({"model": "llama", "step": "a step", "name": readme.STOCK, "failed": "stopped after 110 s"})
    text, below = readme.models({"hardware": "GPU", "rows": rows}), readme.dashes({"rows": rows})
    words = text.replace("\n", " ")
    assert "![Two models in" in text and "two models in plain Keras" in text
    assert "by `fit()` 1.06 to 1.31 times as fast" in words
    assert "1.62 to 1.62 times as fast as in stock Keras" in words and "--models llama --rows xla`" in below
    assert "| Llama 1.1B, a step | – | 210.3 (209.3) ms, 1.0 GB |" in text and "**32.7** (**31.7**) ms" in text


def test_models_whose_fit_was_not_measured_are_compared_by_their_steps(readme):
    """As soon as one lacks it: a range must not be of both."""
    row = lambda model, name, ms: {"model": model, "step": "a step", "name": name, "fit_ms": ms + 1, "ms_per_step": ms,
                                   "peak_GB": 1.0}
    rows = [row(model, name, ms) for model in ("gpt2", "vit") for name, ms in zip(readme.COLUMNS, (40, 30, 20, 10))]
    del rows[1]["fit_ms"]
    words, below = readme.models({"hardware": "GPU", "rows": rows}).replace("\n", " "), readme.dashes({"rows": rows})
    assert "step by step 3.00 to 3.00 times" in words and "| (30.0) ms, 1.0 GB |" in words
    assert "--models gpt2 --rows compile`" in below


def test_the_readmes_picture_has_the_tables_models(readme):
    shown = {row["model"] for row in readme.measured()["rows"]}
    assert len(shown) == text_of("README.md").count(" GB |\n") and (ROOT / readme.PICTURE).exists()


def test_every_function_and_op_is_in_the_reference():
    text = text_of("docs/ops.md")
    for name, value in vars(tfuse).items():
        if callable(value) and not name.startswith("_") and name not in (
                "enable", "disable", "enabled", "explain", "load", "generate", "calibrate"):
            assert "`tfuse.%s(" % name in text, name
            assert "Args:" not in value.__doc__ or "Example:" in value.__doc__, "%s has no example" % name
    for name in _op.registry:
        assert "| `%s` |" % name in text, name


def test_every_public_name_is_in_the_api():
    """Also those of the modules that users call, each with a link, and an entry here or in ops.md."""
    text = text_of("docs/api.md")
    for module in (tfuse, tfuse.jit, tfuse.optimizers, tfuse.own, tfuse.calibration):
        for name, value in vars(module).items():
            if callable(value) and not name.startswith("_"):
                full = "%s.%s" % (module.__name__, name)
                assert "| [`%s`](" % full in text, full
                assert "`%s(" % full in text + text_of("docs/ops.md"), full


def test_every_example_is_in_the_gallery():
    """The programs: what has a main part, and those of jit/, which are nothing else."""
    text = text_of("docs/gallery.md")
    programs = [path for path in [*(ROOT / "examples").glob("*.py")] if '__name__ == "__main__"' in path.read_text()]
    assert len(programs) > 5
    for path in programs + [*(ROOT / "examples/jit").glob("*.py")]:
        assert "](../%s)" % path.relative_to(ROOT) in text, path


def test_a_bar_in_a_doc_stays_in_its_cell(monkeypatch):
    monkeypatch.setattr(_library.library, "tfu_doc", lambda name: b"|x| where x | y,\nelse \\.")
    *_, row = _ops.op_table(["Square"]).split("\n")
    assert r"\|x\| where x \| y, else \\." in row
    assert len(re.findall(r"(?<!\\)\|", row)) == 7


def test_badges_say_in_words_what_they_show(readme):
    """Who cannot see it reads the same."""
    shown = re.findall(r"!\[(.+)\]\((docs/badges/\w+\.svg)\)", text_of("README.md"))
    words = ["%s %s" % pair for pair in readme.badges.facts().items()]
    assert shown == [(text.replace(" – ", " to "), path) for text, path in zip(words, readme.FILES)]


def test_readme_is_short():
    assert len(text_of("README.md").splitlines()) <= 150


def test_the_fields_words_are_where_the_page_says():
    """Every file beside an idea has one of its words in bold, at least; and the project's own words are few."""
    tables = text_of("docs/design.md").partition("## Words\n")[2]
    ideas, own = re.findall(r"^\|---\|---\|\n((?:\|.*\n)+)", tables, re.MULTILINE)
    for idea, where in re.findall(r"^\| (.*) \| (.*) \|$", ideas, re.MULTILINE):
        words, files = re.findall(r"\*\*(.+?)\*\*", idea), re.findall(r"`([^`]+)`", where)
        assert words and files, idea
        for path in files:
            text = re.sub(r"\s+(\* )?", " ", text_of(path)).lower()  # a comment may break a line between two words
            assert any(word.lower() in text for word in words), "%s does not say %s" % (path, idea)
    assert len(own.splitlines()) <= 15


# ---- links ----


def anchors(page):
    """What GitHub makes of the headings."""
    found = {}
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
        if found[anchor]:
            found["%s-%d" % (anchor, found[anchor])] = 0
    return found


def check_link(page, target):
    path, _, anchor = target.partition("#")
    path = (ROOT / page).parent / path if path else ROOT / page
    assert path.exists(), "%s: there is no %s" % (page, target)
    if anchor:
        assert anchor in anchors(path.resolve().relative_to(ROOT)), "%s: %s has no such heading" % (page, target)


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    for target in targets:
        if not re.match(r"https?:", target):
            check_link(page, target)
    assert targets or page != "README.md"


def test_sources_send_the_reader_to_what_is_there():
    found = []
    for folder in ("ops", "kernels", "python", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".cuh", ".py") and path.name != "test_docs.py":
                targets = re.findall(r"docs/\w+\.md(?:#[\w-]+)?", path.read_text())
                found += [(str(path.relative_to(ROOT)), target) for target in targets]
    for path, target in found:
        check_link("README.md", target)
    assert {"kernels/core/gpu/rows.h", "kernels/core/gpu/walk.h"} <= {path for path, _ in found}


# ---- code ----


@pytest.mark.parametrize("page", OURS)
def test_every_block_says_what_it_is(page):
    assert prose(page).count("```") == 0
    for why, language, about, code, line in blocks(page):
        assert language in ("python", "sh", "c", "text"), "%s:%d" % (page, line)
        assert language in ("python", "sh") or not why, "%s:%d is not run in any case" % (page, line)
    assert not re.search(r"\n\n {4}\S", prose(page)), "an indented block, which would not be run"


@pytest.fixture
def as_before():
    """Undoes what examples switch on."""
    yield
    tfuse.disable()
    keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("page", OURS)
def test_python_runs(page, as_before, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for why, language, about, code, line in blocks(page):
        if language == "python" and not why and not about:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * line + code, page, "exec"), names)


@pytest.mark.parametrize("page", OURS)
def test_shell_runs(page, tmp_path):
    """In an empty folder, with this Python as `python`, and no file of the user's."""
    scripts = [code for why, language, _, code, _ in blocks(page) if language == "sh" and not why]
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.write_text("#!/bin/sh\nexec '%s' \"$@\"\n" % sys.executable)
    python.chmod(0o755)
    path = [str(pathlib.Path(tfuse.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PATH": "%s:%s" % (python.parent, os.environ["PATH"]), "TFUSE_LIBRARY": _library.path,
                   "TFUSE_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, path))}
    for code in scripts:
        done = subprocess.run(["bash", "-euc", code], cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        assert done.returncode == 0, "%s: %s\n%s" % (page, code, done.stdout)


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page, capsys):
    """Those of `./run` and of `python -m tfuse`, with their options, wherever they are named."""
    text = text_of(page)
    usage = subprocess.run(["bash", ROOT / "run"], check=True, text=True, stdout=subprocess.PIPE).stdout
    known = re.findall(r"^  (\w+) ", usage, re.MULTILINE)
    for name in re.findall(r"\./run ([a-z]\w*)", text):
        assert name in known, name
    for name, rest in re.findall(r"(?:python -m tfuse|\./run) (%s)\b([^`\n#]*)" % "|".join(commands.COMMANDS), text):
        with pytest.raises(SystemExit):
            commands.main([name, "--help"])
        usage = capsys.readouterr().out
        own = rest.partition(".py")[0]  # after a script come the script's own
        for option in re.findall(r"(?<!\S)--[\w-]+", own):
            assert option in usage, "%s %s" % (name, option)
    for name in re.findall(r"python -m tfuse ([\w-]+)", text):
        assert name in commands.COMMANDS, name
