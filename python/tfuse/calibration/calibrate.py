"""tfuse.calibrate: runs data through a model, and quantises its Dense and EinsumDense layers by what it has seen."""

import contextlib
import dataclasses
import sys

import keras
import numpy as np
import rich.box
import rich.console
import rich.progress
import rich.table
import tensorflow as tf

from tfuse.calibration.histograms import Histogram
from tfuse.products.static_quantizer import StaticQuantizer
from tfuse.products import einsum_dense, linear

METHODS = "entropy", "percentile", "mse", "max"
SAMPLE = 64  # rows of a layer's inputs that its error is measured with
_KINDS = keras.layers.Dense, keras.layers.EinsumDense, linear.Dense, einsum_dense.EinsumDense


@dataclasses.dataclass
class Row:
    """What is known of a layer."""
    layer: str  # its path in the model
    most: float  # the largest absolute value of its inputs
    range: float  # that the method has chosen
    clipped: float  # the share of values beyond that
    error: float  # of the results with 8 bits: root mean square, relative to those of float
    quantized: bool
    why: str = ""  # it was left


@dataclasses.dataclass
class Calibration:
    """What tfuse.calibrate has found: `rows`, one for each layer. print() shows them as a table.

    Example:
      found = tfuse.calibrate(keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)]), np.random.normal(size=(64, 16)))
      print(found)
    """
    method: str
    rows: list
    histograms: dict = dataclasses.field(repr=False)

    def __str__(self):
        console = rich.console.Console(width=128, no_color=True)
        with console.capture() as captured:
            console.print(self._table())
        return captured.get().rstrip()

    def _table(self):
        made = rich.table.Table(title="calibrated by %s" % self.method, title_justify="left", box=rich.box.SIMPLE)
        for name in ("layer", "largest", "range", "clipped", "error", "kept in"):
            made.add_column(name, justify="left" if name in ("layer", "kept in") else "right")
        for row in self.rows:
            made.add_row(row.layer, "%.4g" % row.most, "%.4g" % row.range, "%.3f%%" % (100 * row.clipped),
                         "%.2f%%" % (100 * row.error), "8 bits" if row.quantized else "float: " + row.why)
        return made

    def plot(self, path):
        """Writes histograms of the layers' inputs, with the chosen ranges, to an image file. It needs matplotlib."""
        from matplotlib.figure import Figure

        across = min(4, max(len(self.rows), 1))
        down = -(-max(len(self.rows), 1) // across)
        figure = Figure(figsize=(4 * across, 2.5 * down), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False).ravel()
        for axis, row in zip(axes, self.rows):
            histogram = self.histograms[row.layer]
            axis.stairs(histogram.counts, np.arange(len(histogram.counts) + 1) * histogram.width, fill=True)
            axis.axvline(row.range, color="tab:red")
            axis.set(title=row.layer, yscale="symlog", xlabel="absolute value", ylabel="values")
            axis.title.set_fontsize(8)
        for axis in axes[len(self.rows):]:
            axis.remove()
        figure.savefig(path)


def calibrate(model, data, method="entropy", bits=8, percentile=99.99, most_error=None, progress=None):
    """Quantises a model's Dense and EinsumDense layers to 8 bits, with ranges of their inputs that are measured on data.

    model.quantize("int8") finds the largest value of each row of inputs in every call. Here one number for each layer is chosen
    beforehand, from a histogram of all that the layer is given while the data run through the model. Kernels are rounded as
    Keras does it, output by output.

    Args:
      model: a Keras model that is built; it is changed in place. Layers of classes that are made of Dense or EinsumDense stay.
      data: an array, a tf.data.Dataset, or a list or generator of batches; as fit() takes them, of (inputs, targets) the inputs
        are taken. An array is cut into batches of 32.
      method: how a range is chosen. "max": the largest value. "percentile": so many percent of values are inside. "mse": the
        least mean square error of the rounded values. "entropy": the least Kullback-Leibler divergence, as TensorRT does it.
      bits: 8.
      percentile: of the method of that name.
      most_error: a layer whose results would be off by more, relative to their root mean square, stays as it is.
      progress: whether a progress bar is shown; None: where a person looks.

    Returns:
      A tfuse.calibration.Calibration: a table by print(), and plot(path).

    Raises:
      RuntimeError: a Keras that has no Int8QuantizationConfig.
      ValueError: an unknown method, other bits, no data, no layers, or inputs of a layer that are infinite or no numbers.

    Example:
      model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(4)])
      print(tfuse.calibrate(model, np.random.normal(size=(256, 16)), method="mse"))
    """
    if method not in METHODS:
        raise ValueError("calibrate: method must be one of %s, got %r" % (", ".join(METHODS), method))
    if bits != 8:
        raise ValueError("calibrate: bits must be 8, got %r" % (bits,))
    if not 0 < percentile <= 100:
        raise ValueError("calibrate: percentile must be more than 0 and at most 100, got %r" % (percentile,))
    if not hasattr(keras.quantizers, "Int8QuantizationConfig"):
        raise RuntimeError("calibrate: Keras %s has no Int8QuantizationConfig; update Keras" % keras.__version__)
    layers = [layer for layer in model._flatten_layers()
              if type(layer) in _KINDS and layer.built and not layer.quantization_mode]
    if not layers:
        raise ValueError("calibrate: the model has no Dense or EinsumDense layer that is built and not quantised")
    seen = {id(layer): _Seen(layer) for layer in layers}
    _run(model, data, seen, sys.stderr.isatty() if progress is None else progress)
    rows, histograms = [], {}
    for layer in layers:
        mine = seen[id(layer)]
        row = mine.row(method, percentile, most_error)
        rows.append(row)
        histograms[row.layer] = mine.histogram
        if row.quantized:
            _quantize(layer, row.range)
    if any(row.quantized for row in rows):
        model.train_function = model.test_function = model.predict_function = None
        if hasattr(model, "generate_function"):
            model.generate_function = None
    return Calibration(method, rows, histograms)


def _quantize(layer, range):
    layer.quantize("int8", config=keras.quantizers.Int8QuantizationConfig(activation_quantizer=StaticQuantizer(range)))


class _Seen:
    """What a layer was given."""

    def __init__(self, layer):
        self.layer, self.histogram, self.sample, self._rows = layer, Histogram(), [], 0

    @contextlib.contextmanager
    def watched(self):
        """Inside, calls of the layer are seen."""
        call = self.layer.call

        def seen(inputs, *others, **options):
            self._see(tf.convert_to_tensor(inputs))
            return call(inputs, *others, **options)

        self.layer.call = seen
        try:
            yield
        finally:
            del self.layer.call

    def _see(self, inputs):
        try:
            self.histogram.add(inputs)
        except ValueError as error:
            raise ValueError("calibrate: %s: %s" % (self.layer.path, error)) from error
        if self._rows < SAMPLE and inputs.shape[0]:
            self.sample.append(inputs[:SAMPLE - self._rows])
            self._rows += inputs.shape[0]

    def row(self, method, percentile, most_error):
        histogram, path = self.histogram, self.layer.path
        range = histogram.range(method, percentile)
        if not range:
            return Row(path, 0.0, 0.0, 0.0, 0.0, False, "its inputs were all 0" if self.sample else "it was not called")
        error = self._error(range)
        left = most_error is not None and error > most_error
        why = "its error is larger" if left else ""
        return Row(path, histogram.most, range, histogram.clipped(range), error, not left, why)

    def _error(self, range):
        """Of a copy that is quantised."""
        alike = [x for x in self.sample if x.shape[1:] == self.sample[0].shape[1:]]
        x, copy = tf.concat(alike, 0), type(self.layer).from_config(self.layer.get_config())
        copy.build(x.shape)
        copy.set_weights(self.layer.get_weights())
        want = np.asarray(self.layer(x), "float64")
        _quantize(copy, range)
        off = np.asarray(copy(x), "float64") - want
        return float(np.sqrt(np.mean(off**2) / max(np.mean(want**2), 1e-30)))


def _run(model, data, seen, shown):
    batches = 0
    with contextlib.ExitStack() as stack:
        for mine in seen.values():
            stack.enter_context(mine.watched())
        found = _batches(data)
        total = len(found) if hasattr(found, "__len__") else None
        for batch in rich.progress.track(found, "calibrating", total=total, console=rich.console.Console(stderr=True),
                                         transient=True, disable=not shown):
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            model(x, training=False)
            batches += 1
    if not batches:
        raise ValueError("calibrate: there are no data")


def _batches(data):
    if hasattr(data, "shape"):
        return [data[i:i + 32] for i in range(0, data.shape[0], 32)]
    return data
