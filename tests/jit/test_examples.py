"""examples/jit/: each program is short, and what it prints is right; without a GPU, CUDA C says that it needs one."""

import re
import runpy

import pytest
import tensorflow as tf

from conftest import GPUS, ROOT

PROGRAMS = sorted((ROOT / "examples/jit").glob("*.py"))
FORMULAS = {"add_constant": 1, "scale_bias_relu": 4, "square": 4, "activations": 3}  # how many comparisons each prints


def test_there_are_all():
    raw = {"vector_add", "reduce_sum", "transpose", "convolution"}
    assert {program.stem for program in PROGRAMS} == raw | set(FORMULAS)
    readme = (ROOT / "examples/jit/README.md").read_text()
    assert all("`%s`" % program.name in readme for program in PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_example(program, capsys):
    assert len(program.read_text().splitlines()) < 30
    tf.random.set_seed(0)
    runpy.run_path(str(program), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    if program.stem not in FORMULAS and not GPUS:
        assert len(lines) == 1 and "kernel %s is CUDA C and needs a GPU" % program.stem in lines[0]
        return
    if program.stem == "vector_add":
        assert re.fullmatch(r"vector_add, line 5: index 100003 of [ab], which has 100003 elements; "
                            r"block \(390, 0, 0\), thread \(163, 0, 0\)", lines.pop())
    errors = [float(re.search(r"largest error (\S+)", line)[1].rstrip(",")) for line in lines]
    assert len(errors) == FORMULAS.get(program.stem, 1) and max(errors) < 2e-6
