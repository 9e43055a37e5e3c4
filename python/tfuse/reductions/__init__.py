"""Reductions over axes: sums, extremes, variances, places of extremes, sums of segments."""
