"""What rounds a layer's inputs by a range that is known beforehand, as Keras's quantised layers call it."""

import keras
import numpy as np

STEPS = 127  # of a range, to both sides of 0


def check_ranges(who, **ranges):
    """Raises ValueError where one is not a positive number; None is a range that there is none of."""
    for name, value in ranges.items():
        if value is not None and not (np.isfinite(value) and value > 0):
            raise ValueError("%s: %s must be a positive number, got %r" % (who, name, value))


def whole_numbers(x, scale):
    """round(x * scale), clipped to -127 … 127, in float32 or float64: 16 bits lack digits."""
    wide = x if x.dtype == "float64" else keras.ops.cast(x, "float32")
    return keras.ops.clip(keras.ops.round(wide * scale), -STEPS, STEPS)


@keras.saving.register_keras_serializable("tfuse")
class StaticQuantizer(keras.Quantizer):
    """Rounds x to 8 bits by one number: round(x * s), clipped to -127 … 127, s = 127 / range.

    It is what tfuse.calibrate gives to keras.quantizers.Int8QuantizationConfig as activation_quantizer. A file of the model has
    it; `import tfuse` before it is loaded.

    Args:
      range: the largest absolute value that is not clipped.

    Raises:
      ValueError: a range that is not a positive number.

    Example:
      config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=tfuse.calibration.StaticQuantizer(6.0))
      layer = keras.layers.Dense(8)
      layer.build((None, 16))
      layer.quantize("int8", config=config)
    """

    def __init__(self, range, output_dtype="int8"):
        super().__init__(output_dtype=output_dtype)
        check_ranges("StaticQuantizer", range=range)
        self.range = float(range)

    @property
    def scale(self):
        return STEPS / self.range

    def __call__(self, x, axis=None, to_numpy=False):
        """The rounded numbers, and the scale, which broadcasts to whatever it is multiplied with."""
        x = keras.ops.convert_to_tensor(x)
        ones = keras.ops.ones([1] * len(x.shape), x.dtype)
        return keras.ops.cast(whole_numbers(x, self.scale), self.output_dtype), ones * self.scale

    def get_config(self):
        return {"range": self.range, "output_dtype": self.output_dtype}
