"""What the Python side of an op of your own is made of: docs/new_op.md. tfuse.load() loads its library before."""

from tfuse._core._library import load
from tfuse._core._op import FLOATS, FusedOp, composite, function, given, mark, real, vjp
