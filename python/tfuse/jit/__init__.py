"""Your own kernels in TensorFlow, from a formula or from CUDA C, compiled when they first run: docs/jit.md."""

from tfuse.jit.elementwise import elementwise
from tfuse.jit.raw import check, raw
from tfuse.jit.rows import rows
from tfuse.jit import _symbolic  # what Keras files name
