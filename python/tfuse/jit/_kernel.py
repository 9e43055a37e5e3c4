"""Kernel: one kernel of tfuse.jit as all routes take it, and run(), which runs it."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Kernel:
    name: str  # the C name of the kernel, and what errors and explain() call it
    kind: str  # "elementwise", "rows" or "raw"
    source: str  # CUDA C in the types T0, T1 … of inputs, U0, U1 … of outputs and R of arithmetic
    program: str  # the same for the CPU, as postfix text
    inputs: tuple  # names, for messages
    outputs: tuple
    types: tuple  # for each output: the number of the input whose dtype it has
    shapes: str  # "broadcast", "row", "like 0"
    launch: str
    plain: Callable | None  # (list of tensors) -> list of tensors, in TensorFlow's own ops


def run(kernel, tensors):
    """The outputs of a kernel, a list."""
    return kernel.plain(tensors)
