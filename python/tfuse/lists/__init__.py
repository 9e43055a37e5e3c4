"""Ops over whole lists of tensors: norms, and the steps of optimizers."""
