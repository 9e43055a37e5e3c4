"""examples/quantized.py: what it runs, the tables of a record, and a row that is measured again."""

import json
import sys

import pytest

from conftest import ROOT

sys.path.append(str(ROOT / "examples"))

import quantized as example

ABOUT = {"hardware": "a GPU", "tensorflow": "2", "keras": "3"}
WHEN = {"commit": "abc", "date": "2026-01-01"}


def row(what, model, bits=None, **found):
    return {"what": what, "model": model, **({"bits": bits, "step": "1 × 8 tokens"} if bits else {}), **WHEN, **found}


def test_jobs():
    jobs = list(example.jobs_of(["gpt2", "resnet50"], ["fit", "curve", "predict"], False))
    assert [(row["what"], row["model"], row.get("bits")) for row, _ in jobs] == [
        ("fit", "gpt2", 16), ("fit", "gpt2", 8), ("curve", "gpt2", 16), ("curve", "gpt2", 8), ("predict", "resnet50", None)]
    assert jobs[1][1] == ["--model", "gpt2", "--mode", "tfuse+xla", "--float8"]
    assert jobs[2][1] == ["--model", "gpt2", "--row", "tfuse+xla", "--steps", 300] and jobs[4][1] == ["--predict"]
    assert len(list(example.jobs_of(example.TRAINED + (example.RESNET,), example.SCRIPTS, True))) == 10


def test_tables(tmp_path, monkeypatch):
    rows = [row("fit", "gpt2", 16, fit_ms=30.04, peak_GB=7.0), row("fit", "gpt2", 8, fit_ms=20.0, peak_GB=8.0),
            row("curve", "gpt2", 16, losses=[2.0] * 10 + [1.0] * 10), row("curve", "gpt2", 8, losses=[2.0] * 10 + [1.01] * 10),
            row("fit", "llama", 16, failed="stopped after 1 s"),
            row("call", "resnet50", ms=3.2, ms_int8=1.6, error=0.021, batch=128)]
    page = tmp_path / "page.md"
    page.write_text("<!-- float8 -->\nold\n<!-- /float8 -->\n<!-- int8 -->\nold\n<!-- /int8 -->\n")
    monkeypatch.setattr(example, "PAGE", page)
    record = tmp_path / "record.json"
    record.write_text(json.dumps({**ABOUT, "rows": rows}))
    example.main(["--table", str(record), "--write"])
    lines = page.read_text().splitlines()
    assert lines[1] == "a GPU, TensorFlow 2, Keras 3, commit abc (2026-01-01)."
    assert lines[5] == "| GPT-2 124M, 1 × 8 tokens | 30.0 ms | 20.0 ms | 1.50 | 7.0, 8.0 GB | 1.0000 | 1.0100 | 1.00% |"
    assert lines[12] == "| a call, 128 images | 3.20 ms | 1.60 ms | 2.00 | 2.1% |" and "old" not in page.read_text()


def test_a_row_that_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(example, "about_in_a_process", lambda: {**ABOUT, **WHEN})
    ms = iter([[3.0], [2.0]])
    monkeypatch.setattr(example, "finished", lambda scripts, jobs, limit: [
        (job[0], {"ms": each, "ms_int8": 1.0, "error": 0.0, "batch": 4}, None) for job, each in zip(jobs, next(ms))])
    for _ in range(2):
        example.main(["--small", "--only", "resnet50", "--what", "call", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "quantized_a_gpu.json").read_text())["rows"]
    assert [each["ms"] for each in found] == [2.0]


def test_what_is_refused(capsys):
    for arguments, why in ((["--only", "bert"], "there is no model bert: there are gpt2, llama, resnet50"),
                           (["--what", "all"], "there is no part all: there are fit, curve, call, predict"),
                           (["--small"], "--small goes with --out")):
        with pytest.raises(SystemExit):
            example.parse(arguments)
        assert why in capsys.readouterr().err


def test_the_page_has_the_marks():
    """And what stands between them is that of the record, where there is one."""
    text = example.PAGE.read_text()
    record = ROOT / "benchmarks" / "quantized_nvidia_h200.json"
    assert all("<!-- %s -->\n" % name in text and "<!-- /%s -->" % name in text for name in ("float8", "int8"))
    if record.exists():
        assert all(table in text for table in example.tables(json.loads(record.read_text())).values())
