"""Ops that put values in order or count them: sort, argsort, top_k, unique_with_counts, bincount, histograms."""
