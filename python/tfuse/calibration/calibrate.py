"""tfuse.calibrate: runs data through a model, and quantises its Dense, EinsumDense and Conv2D layers by what it has seen."""

import contextlib
import dataclasses
import math
import sys

import keras
import numpy as np
import rich.box
import rich.console
import rich.progress
import rich.table
import tensorflow as tf

from tfuse.calibration import convolutions
from tfuse.calibration.histograms import Histogram
from tfuse.convolution.quantized_conv_layer import Quantize
from tfuse.products.static_quantizer import StaticQuantizer
from tfuse.products import einsum_dense, linear

METHODS = "entropy", "percentile", "mse", "max"
SAMPLE, IMAGES = 64, 4  # rows, and images, of a layer's inputs that its error is measured with
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
    """What tfuse.calibrate has found: `rows`, one for each layer, which print() shows as a table, and the `model` that is
    quantised: the one that was given, or a new one where it has convolutions.

    Example:
      found = tfuse.calibrate(keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)]), np.random.normal(size=(64, 16)))
      print(found)
    """
    method: str
    rows: list
    histograms: dict = dataclasses.field(repr=False)
    model: object = dataclasses.field(default=None, repr=False)

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
    """Quantises a model to 8 bits, with ranges of the layers' inputs that are measured on data.

    model.quantize("int8") finds the largest value of each row of inputs in every call. Here one number for each layer is chosen
    beforehand, from a histogram of all that the layer is given while the data run through the model. Kernels are rounded output
    by output.

    Dense and EinsumDense layers are quantised in place, as Keras does it. Of a functional model with Conv2D layers a new one is
    made, in which each is one layer with the BatchNormalization behind it, the sum with a residual and relu
    (tfuse.QuantizedConv2D), and numbers stay int8 from one to the next. It is for inference, and shares the other layers with
    the model.

    Args:
      model: a Keras model that is built. Layers of classes that are made of Dense, EinsumDense or Conv2D stay, and so do
        convolutions of models that are not functional.
      data: inputs, or (inputs, targets), as fit() takes them: an array or a dict of arrays, or ((array, array),) for a model
        of two inputs, which is cut into batches of 32; or batches of such: a tf.data.Dataset, a list or a generator. Targets
        are left out.
      method: how a range is chosen. "max": the largest value. "percentile": so many percent of values are inside. "mse": the
        least mean square error of the rounded values. "entropy": the least Kullback-Leibler divergence, as TensorRT does it.
      bits: 8.
      percentile: of the method of that name.
      most_error: a layer whose results would be off by more, relative to their root mean square, stays as it is.
      progress: whether a progress bar is shown; None: where a person looks.

    Returns:
      A tfuse.calibration.Calibration: the quantised model, a table by print(), and plot(path).

    Raises:
      RuntimeError: a Keras that has no Int8QuantizationConfig.
      ValueError: an unknown method, other bits, no data or data without an end, no layers, inputs of a layer that are infinite
        or no numbers, or a layer that a tf.function calls.

    Example:
      model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(4)])
      print(tfuse.calibrate(model, np.random.normal(size=(256, 16)), method="mse"))
    """
    if method not in METHODS:
        raise ValueError("calibrate: method must be one of %s, got %r" % (", ".join(METHODS), method))
    if bits != 8:
        raise ValueError("calibrate: bits must be 8, got %r" % (bits,))
    if not 50 <= percentile <= 100:
        raise ValueError("calibrate: percentile must be from 50 to 100, such as 99.99, got %r" % (percentile,))
    if most_error is not None and not most_error >= 0:
        raise ValueError("calibrate: most_error must be at least 0, got %r" % (most_error,))
    if not isinstance(model, keras.Model):
        raise ValueError("calibrate: model must be a Keras model, got %r" % (model,))
    if not hasattr(keras.quantizers, "Int8QuantizationConfig"):
        raise RuntimeError("calibrate: Keras %s has no Int8QuantizationConfig; update Keras" % keras.__version__)
    layers = [layer for layer in model._flatten_layers()
              if type(layer) in _KINDS and layer.built and not layer.quantization_mode]
    graph = convolutions.Graph(model) if convolutions.is_functional(model) else None
    parts = convolutions.parts_of(graph) if graph else []
    if not layers and not parts:
        raise ValueError("calibrate: the model has no Dense or EinsumDense layer that is built and not quantised, and no Conv2D "
                         "layer of a functional model")
    # Keras calls their call() itself, which would take codes for the kernel.
    timed = {id(layer.layer) for layer in model._flatten_layers() if isinstance(layer, keras.layers.TimeDistributed)}
    seen = [_Seen(layer, "TimeDistributed multiplies by its kernel as it is" if id(layer) in timed else "") for layer in layers]
    tensors = {key: _SeenTensor(t) for key, t in convolutions.watched(parts).items()}
    runner = keras.Model(graph.model._inputs_struct, [t.tensor for t in tensors.values()] + graph.model.outputs) if parts else model
    _run(runner, data, seen, tensors, sys.stderr.isatty() if progress is None else progress)
    ranges = {key: t.histogram.range(method, percentile) for key, t in tensors.items()}
    rows = [_part_row(part, tensors, ranges, most_error) for part in parts]
    histograms = {part.conv.path: tensors[id(part.x)].histogram for part in parts}
    kept = [part for part, row in zip(parts, rows) if row.quantized]
    for mine in seen:
        rows.append(mine.row(mine.histogram.range(method, percentile), most_error))
        histograms[rows[-1].layer] = mine.histogram
    made = convolutions.converted(graph, kept, ranges) if kept else model
    changed = [(mine.layer, row.range) for mine, row in zip(seen, rows[len(parts):]) if row.quantized]
    for layer, range in changed:  # only now, when nothing can fail any more
        _quantize(layer, range)
    if changed:  # what was traced of the given model has the layers as they were
        model.train_function = model.test_function = model.predict_function = None
        if hasattr(model, "generate_function"):
            model.generate_function = None
    return Calibration(method, rows, histograms, made)


def _row(path, histogram, range, why, error, most_error):
    """why: a reason to leave the layer that is known beforehand, or "". Only then error, a function, measures."""
    found = 0.0 if why else error()
    why = why or ("its error is larger" if most_error is not None and not found <= most_error else "")
    return Row(path, histogram.most, range, histogram.clipped(range) if range else 0.0, found, not why, why)


def _part_row(part, tensors, ranges, most_error):
    known = all(ranges[id(t)] for t in (part.x, part.y, part.residual) if t is not None)
    why = part.why_not or ("" if known else "its inputs or results were all 0")
    return _row(part.conv.path, tensors[id(part.x)].histogram, ranges[id(part.x)], why,
                lambda: _part_error(part, tensors, ranges), most_error)


def _part_error(part, tensors, ranges):
    """Of its results in floats, from rounded inputs."""
    inputs = [t for t in (part.x, part.residual) if t is not None]
    *images, want = _images(*(tensors[id(t)] for t in (*inputs, part.y)))
    rounded, want = [Quantize(ranges[id(t)])(image) for t, image in zip(inputs, images)], np.asarray(want, "float64")
    return _relative(part.layer(ranges, narrow=False)(rounded if len(rounded) > 1 else rounded[0]), want)


def _relative(got, want):
    """The root mean square of what is off, by that of what should be."""
    off = np.asarray(tf.cast(got, tf.float32), "float64") - want
    return float(np.sqrt(np.mean(off**2) / max(np.mean(want**2), 1e-30)))


class _SeenTensor:
    """What a tensor between layers was."""

    def __init__(self, tensor):
        self.tensor, self.histogram, self.images = tensor, Histogram(), []

    def see(self, value):
        try:
            self.histogram.add(value)
        except ValueError as error:
            raise ValueError("calibrate: the results of %s: %s" % (
                self.tensor._keras_history.operation.name, str(error).replace("inputs", "numbers"))) from error
        missing = IMAGES - sum(len(images) for images in self.images)
        if missing > 0:
            self.images.append(value[:missing])


def _images(*tensors):
    """What was kept of each, of those batches in which all have the sizes that they had in the first."""
    alike = [batch for batch in zip(*(t.images for t in tensors))
             if all(images.shape[1:] == t.images[0].shape[1:] for t, images in zip(tensors, batch))]
    return [tf.concat(images, 0) for images in zip(*alike)]


def _quantize(layer, range):
    layer.quantize("int8", config=keras.quantizers.Int8QuantizationConfig(activation_quantizer=StaticQuantizer(range)))


class _Seen:
    """What a layer was given."""

    def __init__(self, layer, why=""):
        """why: it cannot be quantised, or ""."""
        self.layer, self._why, self.histogram, self.sample, self._rows = layer, why, Histogram(), [], 0

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
        if not tf.executing_eagerly():
            raise ValueError("calibrate: %s is called by a tf.function, where its inputs cannot be read" % self.layer.path)
        try:
            self.histogram.add(inputs)
        except ValueError as error:
            raise ValueError("calibrate: %s: %s" % (self.layer.path, error)) from error
        if self._rows < SAMPLE and math.prod(inputs.shape):
            self._keep(inputs)

    def _keep(self, inputs):
        """Rows for the error: of a Dense, whose rows are alike, as many as are missing; of an EinsumDense, whose equation may
        want its axes, as many examples as have them."""
        rows = 1
        if isinstance(self.layer, keras.layers.EinsumDense):
            factor, kernel = self.layer.equation.split("->")[0].split(",")
            summed = len(set(factor) & set(kernel) - {" "})
            rows = math.prod(inputs.shape[1:len(inputs.shape) - summed])
        else:
            inputs = tf.reshape(inputs, [-1, inputs.shape[-1]])
        self.sample.append(inputs[:-(-(SAMPLE - self._rows) // rows)])
        self._rows += self.sample[-1].shape[0] * rows

    def row(self, range, most_error):
        why = self._why if range else "its inputs were all 0" if self.sample else "it was not called"
        why = why or ("Keras has no int8 in float16" if self.layer.compute_dtype == "float16" else "")
        return _row(self.layer.path, self.histogram, range, why, lambda: self._error(range), most_error)

    def _error(self, range):
        """Of a copy that is quantised. It is not made of the layer's configuration, from which functions cannot be read."""
        layer, alike = self.layer, [x for x in self.sample if x.shape[1:] == self.sample[0].shape[1:]]
        x, options = tf.concat(alike, 0), {"activation": layer.activation, "dtype": layer.dtype_policy}
        if isinstance(layer, keras.layers.EinsumDense):
            copy = type(layer)(layer.equation, layer.partial_output_shape, bias_axes=layer.bias_axes, **options)
        else:
            copy = type(layer)(layer.units, use_bias=layer.use_bias, **options)
        copy.build(x.shape)
        if layer.lora_enabled:
            copy.enable_lora(layer.lora_rank, lora_alpha=layer.lora_alpha)
        copy.set_weights(layer.get_weights())
        want = np.asarray(tf.cast(layer(x), tf.float32), "float64")
        _quantize(copy, range)
        return _relative(copy(x), want)


def _run(model, data, seen, tensors, shown):
    """Where there are tensors to be seen, they are the first results of the model."""
    batches = 0
    with contextlib.ExitStack() as stack:
        for mine in seen:
            stack.enter_context(mine.watched())
        for batch in rich.progress.track(_batches(data), "calibrating", console=rich.console.Console(stderr=True),
                                         transient=True, disable=not shown):
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            results = model(x, training=False)
            for tensor, value in zip(tensors.values(), results if tensors else ()):
                tensor.see(value)
            batches += 1
    if not batches:
        raise ValueError("calibrate: there are no data")


def _batches(data):
    """Arrays are cut, as fit() cuts them; what else there is are batches."""
    if isinstance(data, tf.data.Dataset) and data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError("calibrate: data must have an end, got a tf.data.Dataset that has none; data.take(n) has n batches")
    if not (isinstance(data, (tuple, dict)) or hasattr(data, "shape")):
        return data
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    size = min((array.shape[0] for array in keras.tree.flatten(x)), default=0)
    return [(keras.tree.map_structure(lambda array: array[i:i + 32], x),) for i in range(0, size, 32)]
