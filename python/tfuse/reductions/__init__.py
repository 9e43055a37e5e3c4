"""Reductions over axes: sums, extremes, variances, indices of extremes, sums of segments."""
