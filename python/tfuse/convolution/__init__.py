"""Convolutions: sums over windows of images."""
