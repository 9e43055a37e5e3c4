"""Ops that look at a whole row before they write it: softmax, norms, cross entropy."""
