"""The rows of an engine's steps: which request each has, and what the host and the device know of it."""

import dataclasses
import typing

import numpy as np
import tensorflow as tf

from tfuse._core import _library
from tfuse._keras._report import BYTES
from tfuse.generation import steps
from tfuse.generation.steps import PAGE

LEAST = 8  # rows that a step has at least, if there are so many

_take_rows = _library.raw("take_rows")


def sizes_of(rows):
    """How many rows steps have where there are so many at most."""
    sizes = [rows]
    while sizes[0] // 4 >= LEAST:
        sizes.insert(0, sizes[0] // 4)
    return sizes


@dataclasses.dataclass
class Group:
    """Steps of so many rows: the sequences, the chain, the tokens as a column, and where each row's last ones are in it, less
    its last one's position."""
    sequences: steps.Sequences
    chain: typing.Any
    tokens: tf.Tensor
    last: tf.Tensor

    def run(self, n):
        """Queues so many steps; returns their tokens, [rows, n or more]."""
        self.chain.run(n)
        return _take_rows(self.tokens, self.sequences.positions + self.last)


class Rows:
    """All rows. Where few requests run, they move to the first ones, and steps of fewer rows are made.

    `made` makes the chain of a step for sequences. `requests` has a request for each row, or None."""

    def __init__(self, rows, room, at_a_time, sender, made):
        self._room, self._at_a_time, self._made, self._sender = room, at_a_time, made, sender
        self._sizes = sizes_of(rows)
        ints = lambda *shape: np.zeros(shape, np.int64)
        self._host = {"table": ints(rows, -(-room // PAGE)), "done": ints(rows) + 1,
                      "temperature": np.zeros(rows, np.float32), "top_p": np.ones(rows, np.float32),
                      **{name: ints(rows) for name in ("lengths", "limits", "seeds", "top_k")}}
        self._first, self._from = ints(rows), ints(rows) - 1  # a row's token, or the row where the device has it
        self.requests, self.groups, self.size, self._changed = [None] * rows, {}, None, True

    @staticmethod
    def bytes(rows, room):
        """That put() sends at one time."""
        return 8 * rows * (9 + -(-room // PAGE))

    def give(self, request):
        """A row that is free, of which there is one, to a request."""
        request.row = self.requests.index(None)
        self.requests[request.row] = request

    def table(self, request):
        """Its pages as a table of one row."""
        table = self._host["table"][request.row : request.row + 1]
        table[0, : len(request.pages)] = request.pages
        return table

    def start(self, request):
        """From now on it takes part in steps: the first one reads the last word of its prompt."""
        row, length, host = request.row, len(request.prompt), self._host
        self.table(request)
        host["lengths"][row], host["limits"][row], host["done"][row] = length, length + request.new, 0
        host["seeds"][row] = request.seed
        for name, value in request.settings.items():
            host[name][row] = value
        self._first[row], self._from[row] = request.prompt[-1], -1
        self._changed = True

    def leave(self, request):
        """Its row is free for who comes after what is queued."""
        if request.row >= 0:
            self.requests[request.row] = None
            self._host["done"][request.row], self._host["lengths"][request.row] = 1, 0
            self._changed = True
        request.row = -1

    def advance(self, n):
        """What the host knows after so many steps."""
        host = self._host
        host["lengths"] = np.where(host["done"], host["lengths"], np.minimum(host["lengths"] + n, host["limits"]))
        host["done"] |= host["lengths"] >= host["limits"]

    def put(self):
        """Tells the device what has changed here, and returns the group to make steps with: of as few rows as there can be."""
        size = next(size for size in self._sizes if size >= sum(r is not None for r in self.requests))
        if self.size == size and not self._changed:
            return self.groups[size]
        if any(self.requests[size:]):
            self._move_up()
        if size not in self.groups:
            self.groups[size] = self._group(size)
        values = {name: value[:size] for name, value in self._host.items()}
        last = np.maximum(values["lengths"] - 1, 0)
        page = values["table"][np.arange(size), last // PAGE]
        values.update(positions=last, places=np.where(values["done"], -1, page * PAGE + last % PAGE))
        before = self.groups[self.size or size].sequences.current  # of a row that has just begun, its token is beside these
        rows = np.where(self._from[:size] < 0, before.shape[0] + np.arange(size), self._from[:size])
        rows, first = self._sender.send([rows, self._first[:size]])
        current = _take_rows(tf.expand_dims(tf.concat([before, first], 0), 1), rows)
        steps.write(self.groups[size].sequences, self._sender.send, {"current": current}, **values)
        self.size, self._changed, self._from = size, False, np.arange(len(self.requests))
        return self.groups[size]

    def _move_up(self):
        """Moves requests to the first rows."""
        rows = [i for i, request in enumerate(self.requests) if request is not None]
        order = rows + [i for i, request in enumerate(self.requests) if request is None]
        self.requests = [self.requests[i] for i in order]
        for name, value in self._host.items():
            self._host[name] = value[order]
        self._first, self._from = self._first[order], self._from[order]
        for row, request in enumerate(self.requests[: len(rows)]):
            request.row = row

    def _group(self, size):
        s = steps.Sequences(size, self._room, self._host["table"].shape[1])
        n = max(1, min(self._at_a_time, BYTES // 8 // size))
        last = np.arange(size)[:, None] * self._room + np.arange(1 - n, 1)
        return Group(s, self._made(s), tf.reshape(s.tokens, [-1, 1]), tf.constant(last))
