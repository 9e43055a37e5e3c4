"""What rounds a layer's inputs by a range that is known beforehand, as Keras's quantised layers call it."""

import keras
import numpy as np


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
        if not (np.isfinite(range) and range > 0):
            raise ValueError("StaticQuantizer: range must be a positive number, got %r" % (range,))
        self.range = float(range)

    @property
    def scale(self):
        return 127 / self.range

    def __call__(self, x, axis=None, to_numpy=False):
        """The rounded numbers, and the scale, which broadcasts to whatever it is multiplied with."""
        x = keras.ops.convert_to_tensor(x)
        ones = keras.ops.ones([1] * len(x.shape), x.dtype)
        return keras.ops.cast(self.rounded(x), self.output_dtype), ones * self.scale

    def rounded(self, x):
        """Whole numbers, in x's dtype; computed in float32, since 16 bits lack digits."""
        wide = x if x.dtype == "float64" else keras.ops.cast(x, "float32")
        return keras.ops.cast(keras.ops.clip(keras.ops.round(wide * self.scale), -127, 127), x.dtype)

    def get_config(self):
        return {"range": self.range, "output_dtype": self.output_dtype}
