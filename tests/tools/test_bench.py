"""What `python -m tfuse bench` makes of its times: bars that hold or fail, tables, pictures."""

import json
import re
import struct
import subprocess
import sys

import pytest
import tensorflow as tf

from conftest import ROOT
from tfuse import cases
from tfuse._tools import _bench, _bench_plots, _bench_table


def bar_rows(**milliseconds):
    """Rows as the bench writes them, of the own product's variants, in milliseconds of the forward pass."""
    name, shape = "own matmul 8192³", [8192] * 3
    return [{"op": name, "kind": kind, "dtype": "bfloat16", "shape": shape, "direction": direction, "bytes": 1,
             "ms": {"tfuse": ms}, "both_ms": {"tfuse": 3 * ms}, "percent_of_copy": 1, "TF_per_s": 1, "percent_of_matmul": 51,
             "both_percent_of_matmul": 51}
            for kind, ms in milliseconds.items() for direction in ("forward", "backward")]


@pytest.mark.parametrize("timed, holds, line", [
    ({"tensor": 1, "tiled": 10, "naive": 51}, True,
     "holds times_naive own matmul 8192³ tiled bfloat16 8192×8192×8192: "
     "5.1 times naive's speed, at least 5.0 times naive's speed"),
    ({"tiled": 10, "naive": 49}, False,
     "FAILS times_naive own matmul 8192³ tiled bfloat16 8192×8192×8192: "
     "4.9 times naive's speed, at least 5.0 times naive's speed"),
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


def test_rivals_that_were_not_timed_again_stay():
    times = {"ms": {"tfuse": 2, "XLA": 3}, "both_ms": {"tfuse": 5, "XLA": 7}}
    saved = [{**row, "commit": "old", **times} for row in bar_rows(tiled=2)]
    timed = [{**row, "commit": "new"} for row in bar_rows(tiled=1)]
    forward, _ = rows = _bench.merged(saved, timed)
    assert forward["ms"] == {"tfuse": 1, "XLA": 3} and forward["both_ms"] == {"tfuse": 3, "XLA": 7}
    assert forward["commit"] == "new" and forward["rivals_commit"] == "old"
    assert "Commits: new (today). Rivals were timed in other runs, at old." in _bench_table.page(
        {**saved_run([]), "rows": [{**row, "date": "today"} for row in rows]}).replace("\n", " ")
    assert _bench.merged(rows, timed) == rows, "the rivals' commit is that of their own times"
    with_rival = [{**row, "ms": {"tfuse": 1, "XLA": 4}, "both_ms": {"tfuse": 3, "XLA": 4}} for row in timed]
    assert _bench.merged(saved, with_rival) == with_rival
    assert _bench.merged(saved, bar_rows(naive=1)) == saved + bar_rows(naive=1)


def test_beside_an_earlier_run(tmp_path, capsys):
    before = timed_rows("square", [8, 8]) + timed_rows("softmax", [8, 8])
    path = tmp_path / "record.json"
    path.write_text(json.dumps(saved_run(before)))
    times = _bench_table.times_of(json.loads(path.read_text())["rows"])
    now = [{**row, "ms": {"tfuse": ms}} for row, ms in zip(before, [1.015, 0.5, 1.0, 1.03])]
    assert _bench_table.check_against(times, now[:3])
    assert not _bench_table.check_against(times, now)
    assert not _bench_table.check_against(times, timed_rows("rope", [8, 8])), "nothing is as it was where nothing was timed"
    assert "  1.030: softmax float32 8×8 backward, 1.0300 ms, was 1.0000" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        _bench.main(["square", "--against", str(path), "--save", str(tmp_path)])
    assert "--against goes with none of --save" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[1]", '{"rows": [{}]}', '{"rows": [{}], "copy_TB_per_s": 1}', '{"rows": 3}'])
def test_what_is_no_record(tmp_path, text):
    (tmp_path / "record.json").write_text(text)
    for option, path in (("--table", "record.json"), ("--bars", "record.json"), ("--table", "nowhere"), ("--table", ".")):
        with pytest.raises(SystemExit, match="cannot be loaded: |is nothing that --save has written|there is no "):
            _bench.main([option, str(tmp_path / path)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="empty has nothing to draw"):
        _bench.main(["--plot", str(tmp_path / "empty")])
    for place in (tmp_path / "record.json", "/proc/nowhere"):
        with pytest.raises(SystemExit, match="--save: nothing can be written into"):
            _bench.main(["square", "--save", str(place)])


def test_a_run_beside_an_earlier_one(tmp_path, capfd):
    timed = cases.all_timed()["square"][0]
    shape = timed.sizes[0] if tf.config.list_physical_devices("GPU") else _bench._shrink(timed.sizes[0])
    line = _bench.Line(timed, "float32", shape, {})
    rows = [{**line.key, "direction": direction, "ms": {"tfuse": ms}} for direction, ms in [("forward", 1e3), ("backward", 1e-3)]]
    path = tmp_path / "record.json"
    path.write_text(json.dumps(saved_run(rows)))
    assert _bench.main(["square", "--dtype", "float32", "--against", str(path)]) == 1
    assert re.search(r"2 timings beside the record's, of 2.*; 1 take over 1.02 times as long\n.*backward, .*was 0.0010\n",
                     capfd.readouterr().out)


def saved_run(rows, steps=()):
    return {"hardware": "a test", "tensorflow": "", "copy_TB_per_s": 4, "steps": list(steps),
            "rows": [{**row, "commit": "", "date": ""} for row in rows]}


def timed_rows(op, shape, dtype="float32", stock=2, **options):
    """A pair of rows of which tfuse takes 1 ms each, and stock TensorFlow and XLA what is given."""
    ms = {"tfuse": 1, "stock": stock, "XLA": 2.5}
    return [{"op": op, **options, "dtype": dtype, "shape": shape, "direction": direction, "bytes": 1, "ms": ms,
             "both_ms": {name: 2 * t for name, t in ms.items()}, "percent_of_copy": 50}
            for direction in ("forward", "backward")]


def test_what_computes_nothing_has_no_speed_and_no_rival():
    forward, backward = timed_rows("concat", [8, 8])
    backward = {**backward, "ms": {"tfuse": 0.00026, "stock": 0.00025, "XLA": 0.00025}, "percent_of_copy": 196327}
    page = _bench_table.page(saved_run([forward, backward]), "pictures/run_")
    assert "| concat | 8×8 | 1.000 | 50% / – |" in page and "stock is faster in 0 of 1 timings" in page
    assert not _bench_table.lost([forward, backward])


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
    ops = [case.name for found in (cases.all_cases(), cases.all_timed()) for members in found.values() for case in members]
    assert all(_bench_table.family_of(op) for op in ops) and _bench_table.family_of("nonsense") is None
    assert set(_bench_table.NOTES) == set(_bench_table.FAMILIES)


def test_no_case_makes_a_tensor_before_it_runs():
    """Or TensorFlow would take its GPU's memory while `bench --torch` is imported, and leave nothing to PyTorch."""
    code = ("from tensorflow.python.eager import context\nfrom tfuse._tools import _bench\n"
            "raise SystemExit(context.context()._initialized)")
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode == 0


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
    for timed in (timed for members in cases.all_timed().values() for timed in members):
        for (dtype, shape, *only), limits in timed.bars.items():
            assert set(limits) <= set(_bench_table.BARS), timed.name
            assert dtype in cases.DTYPES and shape in timed.sizes + timed.sweep, timed.name
            assert all(dict(wanted) in timed.options for wanted in only), timed.name


def test_what_is_timed_has_names_of_its_own():
    """A saved row is found by the name: of a case of the tests, or of the benchmark alone."""
    names = [timed.name for members in cases.all_timed().values() for timed in members]
    assert len(set(names)) == len(names)
    true = {case.name: case for members in cases.all_cases().values() for case in members}
    for timed in (timed for members in cases.all_timed().values() for timed in members):
        assert true.get(timed.name, timed.case) is timed.case, timed.name


@pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="not in the source tree")
def test_every_picture_fits_a_page():
    pictures = list((ROOT / "benchmarks").glob("*.png"))
    assert "headline.png" in [path.name for path in pictures]
    for path in pictures:
        assert max(png_size(path)) < 1500 and path.stat().st_size < 80_000, path
