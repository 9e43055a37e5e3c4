"""A client of Triton, in a few lines: tensors as bytes over HTTP, as its binary extension has them."""

import http.client
import json
import math
import struct

import numpy as np

NAMES = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "int8": "INT8", "int16": "INT16", "int32": "INT32",
         "int64": "INT64", "uint8": "UINT8", "bool": "BOOL"}


class Refused(Exception):
    """What the server said."""


def encoded(value):
    """(datatype, bytes) of an array."""
    if value.dtype.kind in "OSU":
        texts = [text.encode() if isinstance(text, str) else bytes(text) for text in value.ravel().tolist()]
        return "BYTES", b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return NAMES[value.dtype.name], np.ascontiguousarray(value).tobytes()


def decoded(about, data):
    if about["datatype"] != "BYTES":
        dtype = next(name for name, theirs in NAMES.items() if theirs == about["datatype"])
        return np.frombuffer(data, dtype).reshape(about["shape"])
    texts = []
    while data:
        length, = struct.unpack("<I", data[:4])
        texts.append(data[4:4 + length])
        data = data[4 + length:]
    return np.array(texts, object).reshape(about["shape"])


def body_of(values, outputs=None):
    """(length of the head, all bytes) of a request."""
    parts = {name: encoded(np.asarray(value)) for name, value in values.items()}
    head = {"inputs": [{"name": name, "datatype": datatype, "shape": list(np.shape(values[name])),
                        "parameters": {"binary_data_size": len(data)}} for name, (datatype, data) in parts.items()],
            "parameters": {"binary_data_output": True}}
    if outputs:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    text = json.dumps(head).encode()
    return len(text), text + b"".join(data for _, data in parts.values())


class Client:
    """One connection, which is kept."""

    def __init__(self, port, host="127.0.0.1", timeout=60):
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout)

    def send(self, method, path, body=None, headers={}):
        """(status, headers, bytes)."""
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.headers, answer.read()

    def infer(self, model, values=None, outputs=None, body=None):
        head, body = body or body_of(values, outputs)
        status, headers, data = self.send("POST", "/v2/models/%s/infer" % model, body,
                                          {"Inference-Header-Content-Length": str(head)})
        if status != 200:
            raise Refused(data.decode(errors="replace"))
        length = int(headers["Inference-Header-Content-Length"])
        found, at = {}, length
        for about in json.loads(data[:length])["outputs"]:
            size = about["parameters"]["binary_data_size"]
            found[about["name"]] = decoded(about, data[at:at + size])
            at += size
        assert at == len(data) and all(math.prod(value.shape) == value.size for value in found.values())
        return found
