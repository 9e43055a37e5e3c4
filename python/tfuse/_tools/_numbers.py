"""Numbers of command lines, as argparse's types."""

import argparse
import math
import re


def positive(text, least=1):
    if not re.fullmatch(r"-?[0-9]+", text) or not least <= int(text) < 2**31:
        raise argparse.ArgumentTypeError("must be a number of at least %d, got %s" % (least, text))
    return int(text)


def not_negative(text):
    return positive(text, 0)


def seconds(text):
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError("must be a number of seconds, 0 or more, got %s" % text)
    return found
