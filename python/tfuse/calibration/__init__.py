"""Calibration: ranges of activations from data, for layers of 8 bits whose inputs are rounded by a scale that stays."""

from tfuse.calibration.calibrate import Calibration
from tfuse.products.static_quantizer import StaticQuantizer
