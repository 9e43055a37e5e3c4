"""Names that come from files and command lines, as they are written into configurations and addresses."""

import re
import urllib.parse


def quoted(text):
    """A string of protobuf's text format, with its quotes: bytes that are not plain ASCII have octal escapes."""
    return '"%s"' % "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else "\\%03o" % byte for byte in text.encode())


def check_model(name, said):
    """Refuses what cannot be both a folder's name and a part of an address. said: where the name came from."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}", name):
        raise SystemExit("%s: a model's name is at most 128 letters of ASCII, digits, and _ . + -, and begins with a letter, a digit "
                         "or _; got %s: --name gives another" % (said, ascii(name)))


def check_port(name):
    """Refuses names of inputs, outputs and signatures that no request could carry."""
    if not name or not name.isprintable():
        raise SystemExit("the name %s has characters that no request can carry, or is empty: export the model with another" %
                         ascii(name))


def host(address):
    """An address as it stands in a URL: that of IPv6 has brackets."""
    return "[%s]" % address if ":" in address else address


def in_url(name):
    return urllib.parse.quote(name, safe="", errors="surrogateescape")
