"""python -m tfuse calibrate MODEL --data FILE: quantises a saved model to 8 bits, with ranges that are measured on data."""

import argparse
import re
import sys

import keras
import numpy as np

from tfuse._tools import _files
from tfuse.calibration.calibrate import METHODS, calibrate

HELP = """Runs data through a saved model, chooses a range for the inputs of each Dense, EinsumDense and Conv2D layer, prints them
as a table, and writes the model with layers of 8 bits. tfuse.calibrate does the same from Python.

MODEL is a file that model.save("model.keras") has written, and FILE an array that numpy.save has."""
EXAMPLES = """examples:
  python -m tfuse calibrate model.keras --data inputs.npy --save small.keras
  python -m tfuse calibrate model.keras --data inputs.npy --method percentile --most-error 0.05 --plot ranges.png"""


def _array(path):
    """The numbers of a .npy file, of which is read what is asked for: it may be larger than the memory."""
    data = _files.loaded(path, lambda path: np.lib.format.open_memmap(path, "r"))
    if data.dtype.kind not in "biuf":
        raise SystemExit("%s has dtype %s: real numbers or bool are wanted" % (path, data.dtype))
    if not data.size:
        raise SystemExit("%s is empty: its shape is %s" % (path, data.shape))
    return data


def _reason(error):
    """Its own words, without those that Keras puts around them where it is raised inside of a layer's call."""
    inside = re.search(r"\x1b\[1m(.*?)\x1b\[0m", str(error), re.DOTALL)
    return inside[1] if inside else str(error)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse calibrate", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=HELP, epilog=EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a .keras file")
    parser.add_argument("--data", required=True, metavar="FILE", help="inputs of the model, a .npy file")
    parser.add_argument("--method", choices=METHODS, default="entropy", help="how a range is chosen (%(default)s)")
    parser.add_argument("--percentile", type=float, default=99.99, help="of the method of that name (%(default)s)")
    parser.add_argument("--most-error", type=float, metavar="SHARE",
                        help="a layer whose results would be off by a larger share stays in float")
    parser.add_argument("--save", metavar="FILE", help="where the quantised model is written")
    parser.add_argument("--plot", metavar="FILE", help="where histograms and ranges are drawn; it needs matplotlib")
    chosen = parser.parse_args(arguments)
    if chosen.save and not chosen.save.endswith(".keras"):
        raise SystemExit("--save must name a .keras file, got %s" % chosen.save)
    for option in ("save", "plot"):
        if getattr(chosen, option):
            _files.check_writable("--" + option, getattr(chosen, option))
    if not chosen.data.endswith(".npy"):
        raise SystemExit("--data must name a .npy file, got %s" % chosen.data)
    data, model = _array(chosen.data), _files.loaded(chosen.model, keras.saving.load_model)
    wanted = getattr(model, "input_shape", None)
    if isinstance(wanted, tuple) and (len(wanted) != data.ndim or any(n not in (None, m) for n, m in zip(wanted, data.shape))):
        raise SystemExit("%s has shape %s; the model takes %s" % (chosen.data, data.shape, wanted))
    try:
        found = calibrate(model, data, chosen.method, percentile=chosen.percentile, most_error=chosen.most_error)
    except (ValueError, RuntimeError) as error:
        print(_reason(error), file=sys.stderr)
        return 1
    print(found)
    if chosen.save:
        found.model.save(chosen.save)
    if chosen.plot:
        try:
            found.plot(chosen.plot)
        except (ImportError, OSError, ValueError) as error:
            raise SystemExit("--plot: %s" % error)
    return 0
