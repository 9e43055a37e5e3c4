"""A language model as a SavedModel whose signatures are the steps that an engine makes: serving/engine.h schedules them in C.

  about                    page and room, in tokens, and words: what the engine has to know
  reset(pages)             makes the cache, of so many pages, and whatever else the steps keep between two runs
  read_N(ints, …)          puts keys and values of N words of a prompt into the cache; ints has rows words, places, positions
  decode_R_N(ints, …)      N steps of R sequences, of which it returns the last N words of each, [R, N]

The cache and the other tensors that chains write in place are variables without a value in the checkpoint: they live in the
session, by their names. A variable that is read is its own memory, where it stays, so that on a GPU a captured step finds it.
"""

import os

import numpy as np
import tensorflow as tf

from tfuse._core import _library
from tfuse._core._chain import Chain
from tfuse.generation import steps, tiles
from tfuse.generation.engine import SIZES, WATCHED
from tfuse.generation.families import decoder_of
from tfuse.generation.rows import sizes_of
from tfuse.generation.steps import PAGE

INTS = ("lengths", "limits", "done", "seeds", "top_k", "current", "places", "positions")  # rows of decode's ints
FLOATS = ("temperature", "top_p")
READ = ("words", "places", "positions")  # rows of read's ints

_chain, _take_rows = _library.raw("chain"), _library.raw("take_rows")


class _State:
    """A tensor that a session keeps by its name."""

    def __init__(self, name, like, shape=None):
        self._name, self._dtype, self._shape = name, like.dtype, tf.TensorShape(like.shape if shape is None else shape)

    def _handle(self):
        return tf.raw_ops.VarHandleOp(dtype=self._dtype, shape=self._shape, shared_name=self._name)

    def read_value(self):
        return tf.raw_ops.ReadVariableOp(resource=self._handle(), dtype=self._dtype)

    def reset(self, pages):
        """Zeros of its own: TensorFlow would have variables that are assigned one constant share its memory."""
        shape = tf.stack([pages if size is None else size for size in self._shape.as_list()])
        zeros = tf.raw_ops.Empty(shape=tf.cast(shape, tf.int32), dtype=self._dtype, init=True)
        tf.raw_ops.AssignVariableOp(resource=self._handle(), value=zeros)


class Steps:
    """The functions of a SavedModel. Raises NotServed."""

    def __init__(self, model, rows=32, room=2048, batch_invariant=False):
        self._decoder = tiles.decoder(model, decoder_of(model))
        self._room = self._decoder.room(room)
        self._invariant, self._pages = batch_invariant, -(-self._room // PAGE)
        self._unique, self._known, self.weights = os.urandom(8).hex(), {}, []
        self._numbers = [tf.constant([i], tf.int64) for i in range(len(INTS))]
        self._cache = steps.Cache(self._decoder, 1, PAGE, self._decoder.table.dtype)
        for i, layer in enumerate(self._cache.layers):
            for name, tensor in zip(("keys", "values"), layer):
                self._keep("%s_%d" % (name, i), tensor, [None, *tensor.shape[1:]])
        self.functions = {"read_%d" % n: self._read("read_%d" % n, n) for n in SIZES}
        for size in sizes_of(rows):
            for times in (1, WATCHED):
                name = "decode_%d_%d" % (size, times)
                self.functions[name] = self._decode(name, size, times)
        self.functions["reset"] = tf.function(self._reset, [tf.TensorSpec([], tf.int64, "pages")], autograph=False)
        self.functions["about"] = tf.function(self._about, [], autograph=False)

    # ---- tensors of chains ----

    def _keep(self, name, tensor, shape=None):
        """Has a state stand for a tensor."""
        state = _State("%s_%s" % (self._unique, name), tensor, shape)
        self._known[id(tensor)] = tensor, state  # the tensor as well, so that no other gets its id
        return state

    def _variable(self, tensor):
        """What stands for a tensor: a state, or one of the weights."""
        if id(tensor) not in self._known:
            self.weights.append(tf.Variable(tensor, trainable=False))
            self._known[id(tensor)] = tensor, self.weights[-1]
        return self._known[id(tensor)][1]

    def _runs(self, name, chain):
        """A function that runs a chain. Those of its inputs that are specs it is given, by their names."""
        text, inputs, memory = chain.written()
        memory = self._keep(name, tf.zeros([0], tf.uint8), [memory])
        inputs = [tensor if isinstance(tensor, tf.TensorSpec) else self._variable(tensor) for tensor in inputs]
        value = lambda x, given: given[x.name] if isinstance(x, tf.TensorSpec) else x.read_value()
        return lambda times=1, **given: _chain([memory.read_value(), *(value(x, given) for x in inputs)], text=text,
                                               times=times)

    # ---- signatures ----

    def _function(self, name, tensors, rows, run):
        """A function that is given arrays, by the names in `rows`, puts their rows into tensors, and then runs."""
        chain, specs = Chain(), []
        for array, names in rows.items():
            to = [getattr(tensors, key) for key in names]
            size, shape = to[0].shape.num_elements(), to[0].shape
            specs.append(tf.TensorSpec(shape if len(to) == 1 else [len(to), size], to[0].dtype, array))
            given = chain.input(specs[-1]).seen_as(len(to), size)
            for number, tensor in zip(self._numbers, to):
                chain.call("take_rows", given, chain.input(number), into=[chain.input(tensor)])
        put = self._runs(name + "_put", chain)

        def function(*given):
            with tf.control_dependencies([put(**dict(zip(rows, given)))]):
                return run()

        return tf.function(function, specs, autograph=False)

    def _read(self, name, n):
        ints = lambda *shape: tf.zeros(shape, tf.int64)
        tensors = steps.Tensors(**{key: ints(1, n) for key in READ}, table=ints(1, self._pages), lengths=ints(1))
        for key, tensor in vars(tensors).items():
            self._keep("%s_%s" % (name, key), tensor)
        run = self._runs(name, steps.prompt(self._decoder, self._cache, **vars(tensors), invariant=self._invariant))
        return self._function(name, tensors, {"ints": READ, "table": ["table"], "lengths": ["lengths"]},
                              lambda: {"done": run()})

    def _decode(self, name, size, times):
        s = steps.Sequences(size, self._room, self._pages)
        for key, tensor in vars(s).items():
            self._keep("%s_%s" % (name, key), tensor)
        run = self._runs(name, steps.step(self._decoder, self._cache, s, invariant=self._invariant))
        last = np.arange(size)[:, None] * self._room + np.arange(1 - times, 1)

        def tokens():
            with tf.control_dependencies([run(times)]):
                words, at = (self._variable(tensor).read_value() for tensor in (s.tokens, s.positions))
                return {"tokens": tf.reshape(_take_rows(tf.reshape(words, [-1, 1]), at + last), [size, times])}

        return self._function(name, s, {"ints": INTS, "floats": FLOATS, "table": ["table"]}, tokens)

    def _reset(self, pages):
        for _, found in self._known.values():
            if isinstance(found, _State):
                found.reset(pages)
        return {"pages": tf.identity(pages)}

    def _about(self):
        numbers = {"page": PAGE, "room": self._room, "words": self._decoder.table.shape[0]}
        return {name: tf.constant(value, tf.int64) for name, value in numbers.items()}


def save(model, folder, **options):
    """Writes the SavedModel. Options are those of Steps. Raises NotServed."""
    made, saved = Steps(model, **options), tf.Module()
    saved.weights = made.weights
    tf.saved_model.save(saved, str(folder), signatures=made.functions)
