"""tfuse.jit: kernels of your own, compiled when they first run."""

from tfuse.jit.raw import raw
