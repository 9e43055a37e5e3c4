"""Where TensorFlow asks for results that repeat, those of every op do."""

import numpy as np
import pytest

from case_runs import VARIANTS, label, shapes_of
from conftest import FULL, GPUS, SMALL
from tfuse import cases

# On the CPU, kernels of float32 and float16 are those of bfloat16, but for how they load and store.
DTYPES = cases.DTYPES if FULL or GPUS else ("bfloat16", "float64")


@pytest.mark.parametrize("case, options", VARIANTS, ids=label)
@pytest.mark.parametrize("dtype", DTYPES)
def test_repeats_bit_for_bit(device, determinism, case, options, dtype):
    """Where TensorFlow asks for that, whatever serves it."""
    shapes = shapes_of(case, options, dtype, more=[(1037, 515)])
    if SMALL:
        shapes = [shape for shape in shapes if np.prod(shape) <= 1 << 17] or [min(shapes, key=np.prod)]
    for shape in shapes:
        tensors = case.tensors(shape, dtype)
        first, second = (case.step(case.run, tensors[:-1], tensors[-1], options) for _ in range(2))
        for a, b in zip(first, second):
            assert np.array_equal(cases.as64(a), cases.as64(b)), shape
