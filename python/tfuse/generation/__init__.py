"""Generation: decoders' steps as chains of ops, and many requests at once."""

from tfuse.generation.engine import Engine
from tfuse.generation.generate import Failed
