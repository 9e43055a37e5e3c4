"""Histograms of absolute values, and the range that a histogram recommends for 8 bits.

A histogram has 2048 bins, of one width from 0 on. Values beyond the last one have the width doubled, and bins joined in pairs,
until they fit. So it takes any number of batches, and no data are kept.
"""

import numpy as np
import tensorflow as tf

BINS = 2048
LEVELS = 128  # absolute values of 8 bits, 0 among them
FIRST = LEVELS  # the fewest bins that a range is made of


class Histogram:
    def __init__(self):
        self.counts, self.width, self.most = np.zeros(BINS, np.int64), 0.0, 0.0

    def add(self, x):
        """Counts a tensor's values. Raises ValueError where one is no number."""
        x = tf.abs(tf.cast(tf.reshape(x, [-1]), tf.float32))
        most = float(tf.reduce_max(x)) if x.shape[0] else 0.0
        if not np.isfinite(most) or bool(tf.reduce_any(tf.math.is_nan(x))):
            raise ValueError("there are inputs that are infinite or no numbers")
        self.most = max(self.most, most)
        if not self.width and most:
            self.width = most / BINS  # all before were 0, and are in the first bin
        while most > self.width * BINS * (1 + 1e-6):
            self.counts = np.concatenate([self.counts.reshape(-1, 2).sum(1), np.zeros(BINS // 2, np.int64)])
            self.width *= 2
        if self.width:
            self.counts += tf.histogram_fixed_width(x, [0.0, self.width * BINS], BINS).numpy()
        else:
            self.counts[0] += x.shape[0]

    def range(self, method, percentile=99.99):
        """The range by a method; 0 where there are no values but 0."""
        if not self.width:
            return 0.0
        return min({"max": lambda: self.most, "percentile": lambda: self._percentile(percentile), "mse": self._mse,
                    "entropy": self._entropy}[method](), self.most)

    def clipped(self, range):
        """The share of values beyond a range, as far as bins tell."""
        beyond = self._centers() > range
        return float(self.counts[beyond].sum() / max(self.counts.sum(), 1))

    def _centers(self):
        return (np.arange(BINS) + 0.5) * self.width

    def _percentile(self, percentile):
        share = np.cumsum(self.counts) / self.counts.sum()
        return (int(np.searchsorted(share, percentile / 100)) + 1) * self.width

    def _mse(self):
        """The least mean square error of rounding and clipping."""
        centers, counts = self._centers(), self.counts
        errors = []
        for bins in range(FIRST, BINS + 1):
            step = bins * self.width / (LEVELS - 1)
            errors.append(np.dot(counts, np.square(centers - np.minimum(np.round(centers / step), LEVELS - 1) * step)))
        return (FIRST + int(np.argmin(errors))) * self.width

    def _entropy(self):
        """The least Kullback-Leibler divergence of what was counted, clipped, from the same in LEVELS steps: each step's values
        are spread evenly over those of its bins that have any. The first bin is left out: 0 rounds to itself."""
        counts = self.counts.astype(float)
        counts[0] = 0
        if not counts.any():
            return self.most
        least, best = np.inf, BINS
        # A range that few values are inside is no candidate: of one bin the divergence is 0, whatever is clipped to it.
        first = max(FIRST, int(np.searchsorted(np.cumsum(counts), 0.99 * counts.sum())) + 1)
        for bins in range(first, BINS + 1):
            inside, some = counts[:bins], counts[:bins] > 0
            clipped = inside.copy()
            clipped[-1] += counts[bins:].sum()
            step = np.arange(bins) * LEVELS // bins
            total, filled = np.bincount(step, inside, LEVELS), np.bincount(step, some, LEVELS)
            spread = np.where(some, (total / np.maximum(filled, 1))[step], 0)
            if not spread.any() or (clipped[-1] and not spread[-1]):
                continue
            p, q = clipped[some] / clipped.sum(), spread[some] / spread.sum()
            divergence = np.sum(p * np.log(p / q))
            if divergence < least:
                least, best = divergence, bins
        return best * self.width
