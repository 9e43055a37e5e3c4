"""examples/generation.py, small: the command runs, writes its record and fills the table."""

import contextlib
import json
import sys
import types

import keras
import numpy as np
import pytest

from conftest import ROOT

sys.path.append(str(ROOT / "examples"))

import generation as example
import generation_models as models
import generation_works as works
import records

ABOUT = {"hardware": "a GPU", "tensorflow": "2", "keras": "3", "kerashub": "0", "pytorch": None, "transformers": None,
         "commit": "abc", "date": "2026-01-01"}
STARTED = """import json, os, pathlib, sys, time
told = dict(zip(sys.argv[1::2], sys.argv[2::2]))
cache = pathlib.Path(os.environ["TFUSE_CACHE"])
took = 2.0 if cache.exists() else 3.0
cache.mkdir(exist_ok=True)
assert 0 <= time.time() - float(told["--started"]) < 60 and told["--works"] == "start"
pathlib.Path(told["--json"]).write_text(json.dumps({"start": {"seconds": took}}))
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(example, "about_in_a_process", lambda: dict(ABOUT))
    monkeypatch.setattr(example, "PAGE", tmp_path / "page.md")
    example.PAGE.write_text("before\n<!-- generation -->\nold\n<!-- /generation -->\nafter\n")
    return example.PAGE


def rows_in(folder):
    return json.loads((folder / "generation_a_gpu.json").read_text())["rows"]


def test_the_command(page, tmp_path, capsys):
    example.main(["--rows", "tfuse", "--only", "batch1,requests,padded,batch1-int4", "--small", "--out", str(tmp_path)])
    found = rows_in(tmp_path)
    assert [row["work"] for row in found] == ["batch1", "requests", "padded", "batch1-int4"]
    assert all(row["tokens_per_s"] > 0 and row["peak_GB"] > 0 and row["commit"] == "abc" for row in found)
    assert found[1]["same"] == [4, 4]
    assert "old" in page.read_text()  # what is no record of ours is not shown
    example.main(["--table", str(tmp_path / "generation_a_gpu.json"), "--write"])
    lines = page.read_text().splitlines()
    assert lines[:2] == ["before", "<!-- generation -->"] and lines[-2:] == ["<!-- /generation -->", "after"]
    assert lines[2] == "a GPU, TensorFlow 2, Keras 3, KerasHub 0, commit abc (2026-01-01)."
    assert lines[6].startswith("| 1.1B | batch 1 | KerasHub with tfuse | **") and "| 1,500 |" in lines[6] and len(lines) == 12


def test_starts_and_what_fails(page, tmp_path, monkeypatch):
    """Rows that are not measured again stay; one that fails says why."""
    script = tmp_path / "script.py"
    monkeypatch.setattr(example, "SCRIPTS", {"kerashub": script})
    script.write_text(STARTED)
    example.main(["--rows", "xla", "--only", "start", "--small", "--out", str(tmp_path)])
    assert [(row["seconds"], row["again_s"]) for row in rows_in(tmp_path)] == [(3.0, 2.0)]
    script.write_text("raise ValueError('no such thing')")
    example.main(["--rows", "tfuse", "--only", "start", "--small", "--out", str(tmp_path)])
    assert [row.get("failed") for row in rows_in(tmp_path)] == ["ValueError: no such thing", None]
    cells = example.table(json.loads((tmp_path / "generation_a_gpu.json").read_text())).splitlines()[4:]
    assert ["failed" in row for row in cells] == [True, False] and "**3.0 s, with caches 2.0 s**" in cells[1]


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_quantised_where_it_lies(mode):
    """As model.quantize() does by itself; in float32 both round alike."""
    made = []
    for how in (contextlib.nullcontext, models.quantized_where_it_lies):
        keras.utils.set_random_seed(1)
        model = models.llama(works.sizes("1.1B", small=True))
        with how():
            model.quantize(mode)
        made.append(model)
    for want, got in zip(made[0].variables, made[1].variables):
        assert (got.path, got.shape, got.dtype) == (want.path, want.shape, want.dtype)
        np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=1e-6, err_msg=got.path)


def test_what_is_refused(capsys):
    for arguments, why in ((["--only", "batch7"], "there is no work batch7: there are batch1, "),
                           (["--rows", "jax"], "there is no row jax: there are tfuse, xla, transformers"),
                           (["--small"], "--small goes with --out")):
        with pytest.raises(SystemExit):
            example.parse(arguments)
        assert why in capsys.readouterr().err


def test_jobs():
    """A process for each model of KerasHub and way of quantising it, one for each work of Transformers, which is not quantised,
    and tfuse.generate and caches of 8 bits by tfuse alone."""
    of = lambda row: [job["works"] for job, _, _ in example.jobs_of([row], list(works.WORKS), False)]
    first = ["batch1", "batch32", "batch128", "first", "requests", "invariant", "padded"]
    small = [["batch1-int8"], ["batch1-int4"], ["8b-batch1-int8"], ["8b-batch1-int4"]]
    assert of("tfuse") == [first, ["8b-batch1", "8b-batch64"], *small, ["batch128-float8"]]
    assert of("xla") == [[work for work in first if work not in ("requests", "invariant")], ["8b-batch1", "8b-batch64"], *small]
    assert of("transformers") == [[work] for works in of("xla") for work in works if [work] not in small]


def test_requests():
    work = works.WORKS["requests"]
    given, new = works.requests(work, 32000)
    lengths = [len(prompt) for prompt in given]
    assert len(given) == len(new) == 256 and works.requests(work, 32000) == (given, new)
    assert 16 <= min(lengths) < 50 and 950 < max(lengths) <= 1024 and 16 <= min(new) < 50 and 450 < max(new) <= 512
    assert all(0 < token < 32000 for prompt in given for token in prompt)


def test_padded_batches():
    """All requests in batches of one size, after a call that compiles."""
    asked, work = [], works.WORKS["padded"]
    works.padded(work, 100, lambda prompts, longest, new: asked.append((len(prompts), longest, new)), None)
    assert asked == [(32, 1534, 2)] + [(32, 1024, 512)] * 4


class Tensor:
    """Stands for PyTorch's."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def to(self, device):
        return self

    cpu = lambda self: self
    numpy = lambda self: self.array


def test_prompts_of_transformers(monkeypatch):
    """They are padded on the left, and a model that ends early fails."""
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(from_numpy=Tensor))
    monkeypatch.delitem(sys.modules, "generation_torch", raising=False)
    import generation_torch

    def generate(ids, attention_mask, max_new_tokens, do_sample, cache_implementation):
        assert (do_sample, cache_implementation) == (False, "static")
        np.testing.assert_array_equal(attention_mask.array, [[0, 1, 1], [1, 1, 1]])
        return Tensor(np.concatenate([ids.array, np.full([2, min(max_new_tokens, 4)], 9)], 1))

    continued, many = generation_torch.ways(types.SimpleNamespace(generate=generate), "cpu")
    assert continued([[5, 6], [7, 8, 3]], 3, 2).tolist() == [[0, 5, 6, 9, 9], [7, 8, 3, 9, 9]] and many is None
    with pytest.raises(RuntimeError, match="5 new tokens for each of 2 prompts were asked for"):
        continued([[5, 6], [7, 8, 3]], 3, 5)
    monkeypatch.delitem(sys.modules, "generation_torch")


def test_the_table_is_in_the_page():
    page, path = (ROOT / "docs/generation.md").read_text(), ROOT / "benchmarks/generation_nvidia_h200.json"
    assert "<!-- generation -->\n" in page and "<!-- /generation -->\n" in page
    if path.exists():
        shown = example.table(json.loads(path.read_text()))
        assert page == records.between(page, "generation", shown), "run examples/generation.py --table %s --write" % path
