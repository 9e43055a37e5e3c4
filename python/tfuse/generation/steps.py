"""A step of a decoder as a chain: some words of each sequence in, the next word of each out."""

import functools

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tfuse._core._chain import Chain
from tfuse.generation.decoders import Experts, Product, Tiled

PAGE = 64  # steps of a page


def check_cache_dtype(wanted):
    """Fails unless keys and values can be of this dtype: None, for the decoder's, or float8_e4m3fn."""
    if wanted not in (None, "float8_e4m3fn"):
        raise ValueError("tfuse: cache_dtype must be None, for the model's own, or \"float8_e4m3fn\", got %r" % (wanted,))


def cache_dtype(decoder, wanted):
    """Of the tensors that keys and values lie in: ops take codes of float8_e4m3fn as uint8."""
    check_cache_dtype(wanted)
    return decoder.table.dtype if wanted is None else tf.uint8


class Cache:
    """Keys and values of sequences, in pages: [pages, page_size, heads, head_dim] for each layer."""

    def __init__(self, decoder, pages, page_size, dtype):
        self.page_size, self.layers = page_size, []
        for block in decoder.blocks:
            shape = [pages, page_size, block.attention.shared_heads, block.attention.head_dim]
            self.layers.append((tf.zeros(shape, dtype), tf.zeros(shape, dtype)))


class Tensors:
    """Tensors by their names, and the chains that write them."""

    __slots__ = ("chains", "__dict__")  # vars() has the tensors alone

    def __init__(self, **tensors):
        self.chains = {}
        vars(self).update(tensors)


class Sequences(Tensors):
    """What is known of the sequences of a batch, on the device: ops write it in place."""

    def __init__(self, batch, room, pages):
        super().__init__()
        ints = lambda *shape: tf.zeros(shape, tf.int64)
        self.tokens, self.table = ints(batch, room), ints(batch, pages)
        self.lengths, self.limits, self.seeds, self.top_k = (ints(batch) for _ in range(4))
        self.done, self.current, self.places, self.positions = ints(batch), ints(batch), ints(batch), ints(batch, 1)
        self.temperature, self.top_p = tf.zeros([batch]), tf.ones([batch])
        self.stops = ints(0)


def constants(arrays):
    return [tf.constant(array) for array in arrays]


def write(tensors, send=constants, there=None, **values):
    """Puts values into the memory that the tensors of these names have: where it lies, steps that were captured know.

    Those of one dtype and size are sent to the device at once, as rows of a table. `there` has those that are on the device."""
    alike = {}
    for name, value in values.items():
        if np.size(value):
            alike.setdefault((value.dtype, value.size), []).append(name)
    tables = send([np.stack([np.ravel(values[name]) for name in names]) for names in alike.values()])
    to = [[getattr(tensors, name) for name in names] for names in alike.values()]
    for name, value in (there or {}).items():
        tables.append(tf.reshape(value, [1, -1]))
        to.append([getattr(tensors, name)])
    put(tensors.chains, tables, to)


def put(chains, tables, to):
    """Puts the rows of tables into tensors, a list of them for each table, by one of these chains, or a new one, which stays."""
    key = tuple(id(tensor) for tensors in to for tensor in tensors)  # which the chain keeps
    if key not in chains:
        chain = chains[key] = Chain()
        inputs = [chain.input(table) for table in tables]
        numbers = [chain.input(_number(i)) for i in range(max(map(len, to)))]
        for table, tensors in zip(inputs, to):
            for number, tensor in zip(numbers, tensors):
                chain.call("take_rows", table, number, into=[chain.input(tensor)])
    places = [(i, i) for i in range(len(tables))]
    chains[key].exchange(places, tables)
    chains[key].run()
    chains[key].exchange(places, [None] * len(tables))


def _number(i):
    return _kept_number(i, context.context().device_name)


@functools.lru_cache(None)
def _kept_number(i, device):
    """[i], on a device, where it stays."""
    return tf.fill([1], tf.constant(i, tf.int64))


def read(*tensors):
    """What int64 tensors have now, as arrays of their shapes.

    What an eager tensor has is kept on the host once it was read from a GPU, and what a chain has written since is not seen
    there. So one op makes a new tensor of all of them, which is copied at once."""
    joined = tf.concat([t if t.shape.rank == 1 else tf.reshape(t, [-1]) for t in (*tensors, _number(0))], 0)
    found = np.split(joined.numpy(), np.cumsum([t.shape.num_elements() for t in tensors]))
    return [values.reshape(tensor.shape) for values, tensor in zip(found, tensors)]


def step(decoder, cache, sequences, words=None, places=None, positions=None, invariant=False):
    """A chain that runs words of each sequence, [batch, n], through a decoder, and appends the next word to each.

    `places` are where their keys and values go, rows of the cache, and `positions` where they are in their sequence, both
    [batch, n]; the last words of a row are the sequence's last. Without them a sequence's current word is meant, as the step
    before left it. `invariant`: a sequence's words do not depend on the others."""
    chain, s = Chain(invariant), sequences
    given = {name: chain.input(tensor) for name, tensor in vars(s).items()}
    batch, n = (s.tokens.shape[0], 1) if words is None else words.shape
    begin = [given[name] if mine is None else chain.input(mine) for name, mine in (
        ("current", words), ("places", places), ("positions", positions))]
    at = _Writer(chain, batch, n, *begin, given["table"], given["lengths"])
    x, added = at.blocks(decoder, cache)
    if n > 1:  # of each sequence the last
        last = chain.input(tf.constant(np.arange(1, batch + 1) * n - 1))
        x, added = (None if y is None else chain.call("take_rows", y, last) for y in (x, added))
    logits = at.logits(decoder, x, added)
    ids = chain.call("sample_logits", logits, *(given[name] for name in ("temperature", "top_k", "top_p", "seeds", "lengths")))
    chain.call("advance", ids, *(given[name] for name in ("tokens", "lengths", "done", "limits", "stops", "table")),
               into=[given[name] for name in ("tokens", "lengths", "done", "current", "places", "positions")],
               page_size=cache.page_size)
    return chain


def prompt(decoder, cache, words, places, positions, table, lengths, invariant=False):
    """A chain that puts keys and values of words, [batch, n], into the cache, and no more."""
    chain = Chain(invariant)
    at = _Writer(chain, *words.shape, *map(chain.input, (words, places, positions, table, lengths)))
    at.blocks(decoder, cache)
    return chain


def _together(products):
    """The op that computes all of these products, and what it is told of their kernels; or None and nothing."""
    if all(isinstance(product, Product) for product in products):
        return "projections", {}
    alike = all(isinstance(p, Tiled) and p.input_scale is None and p.how == products[0].how for p in products)
    return ("quantized_projections", products[0].how) if alike else (None, {})


class _Writer:
    """Adds the parts of a decoder to a chain."""

    def __init__(self, chain, batch, n, words, places, positions, table, lengths):
        self.chain, self.batch, self.n, self.table, self.lengths = chain, batch, n, table, lengths
        self.words = words.seen_as(batch * n)
        self.places, self.positions = places.seen_as(batch, n), positions.seen_as(batch, n)

    def blocks(self, decoder, cache):
        """What comes out of the last block, [batch * n, width], and what is to be added to it."""
        call, read = self.chain.call, self.chain.input
        x, added = call("take_rows", read(decoder.table), self.words), None
        if decoder.scale != 1:
            x = call("scale_bias_act", x, read(tf.fill([decoder.table.shape[1]], tf.cast(decoder.scale, decoder.table.dtype))), None)
        if decoder.positions is not None:
            added = call("take_rows", read(decoder.positions), self.positions.seen_as(self.batch * self.n))
        for block, pages in zip(decoder.blocks, cache.layers):
            x, added = self.block(block, x, added, *map(read, pages))
        return x, added

    def norm(self, norm, x, added=None):
        """The norm of x + added, and that sum."""
        beta = None if norm.beta is None else self.chain.input(norm.beta)
        y, total, _ = self.chain.call("norm", x, added, self.chain.input(norm.gamma), beta, None, kind=norm.kind,
                                      epsilon=norm.epsilon)
        return y, x if added is None else total

    def given(self, *tensors):
        return [None if tensor is None else self.chain.input(tensor) for tensor in tensors]

    def product(self, product, x, residual=None, activation="linear"):
        if isinstance(product, Tiled):
            kernel, scale, by, bias = self.given(product.kernel, product.scale, product.input_scale, product.bias)
            return self.chain.call("quantized_linear", x, kernel, scale, None, by, None, bias, residual, activation=activation,
                                   order="tiles", **product.how)
        kernel, bias = self.given(product.kernel, product.bias)
        return self.chain.call("linear", x, kernel, bias, residual, None, activation=activation)[0]

    def projections(self, norm, x, added, products, activation="linear", gated=False):
        """Products of the norm of x + added, and that sum."""
        op, more = _together(products)
        gamma, total = None, x
        if op and added is None and norm.kind == "rms":
            gamma = self.chain.input(norm.gamma)
        else:
            x, total = self.norm(norm, x, added)
        if not op:
            return self.apart(x, products, activation, gated), total
        absent = [None] * (3 - len(products))
        of = lambda name: [*self.given(*(getattr(p, name) for p in products)), *absent]
        found = self.chain.call(op, x, gamma, *of("kernel"), *of("bias"), None, *(of("scale") if more else []),
                                epsilon=norm.epsilon, activation=activation, gated=gated, **more)
        return found[:len(products)], total

    def apart(self, x, products, activation, gated):
        """What projections() gives of x that is normed, product by product."""
        if not gated:
            return [self.product(product, x, activation=activation) for product in products]
        gate, up = (self.product(product, x) for product in products)
        return [self.chain.call("gated", gate, up, activation=activation)]

    def logits(self, decoder, x, added):
        words, dtype = decoder.table.shape[0], decoder.table.dtype
        if decoder.head is None:
            x, table = self.norm(decoder.norm, x, added)[0], self.chain.input(decoder.table)
            y = self.chain.call("batched_matmul", x, table, None, None, self.chain.input(tf.ones([1], dtype)))
        else:
            (y,), _ = self.projections(decoder.norm, x, added, [decoder.head])
        if decoder.soft_cap:
            for by, activation in ((1 / decoder.soft_cap, "tanh"), (decoder.soft_cap, "linear")):
                y = self.chain.call("scale_bias_act", y, self.chain.input(tf.fill([words], tf.cast(by, dtype))), None,
                                    activation=activation)
        return y

    def sum(self, product, y, x, norm):
        """x and what is to be added to it: the product itself adds, unless it is normed before."""
        if norm is None:
            return self.product(product, y, residual=x), None
        return x, self.norm(norm, self.product(product, y))[0]

    def block(self, block, x, added, keys, values):
        a, mlp = block.attention, block.mlp
        qkv, x = self.projections(block.before_attention, x, added, [a.query, a.key, a.value])
        y = self.attention(a, qkv, keys, values)
        x, added = self.sum(a.output, y, x, block.after_attention)
        if isinstance(mlp, Experts):
            return self.experts(mlp, block.before_mlp, x, added)
        inner = [mlp.up] if mlp.gate is None else [mlp.gate, mlp.up]
        (y, *_), x = self.projections(block.before_mlp, x, added, inner, activation=mlp.activation, gated=len(inner) > 1)
        return self.sum(mlp.down, y, x, block.after_mlp)

    def experts(self, e, norm, x, added):
        """x, to which experts have added themselves, and nothing more to be added."""
        call, read = self.chain.call, self.chain.input
        y, x = self.norm(norm, x, added)
        weights, numbers = call("route_experts", self.product(e.router, y), top_k=e.top_k, normalized=e.normalized)
        up = None if e.up is None else read(e.up)
        x = call("experts", y, weights, numbers, read(e.gate), up, read(e.down), x, activation=e.activation)
        if e.shared is not None:  # as the only one of its kind, that all rows name
            kernels = (read(p.kernel).seen_as(1, *p.kernel.shape) for p in (e.shared.gate, e.shared.up, e.shared.down))
            numbers = read(tf.zeros([self.batch * self.n, 1], tf.int64))
            x = call("experts", y, self.product(e.shared_gate, y, activation="sigmoid"), numbers, *kernels, x,
                     activation=e.shared.activation)
        return x, None

    def attention(self, a, qkv, keys, values):
        query, key, value = (y.seen_as(self.batch, self.n, n, a.head_dim) for y, n in zip(
            qkv, (a.heads, a.shared_heads, a.shared_heads)))
        if a.query_norm is not None:
            query, key = self.norm(a.query_norm, query)[0], self.norm(a.key_norm, key)[0]
        if self.n == 1:
            return self.one_step(a, query, key, value, keys, values)
        if a.rope is not None:
            query, key = self.chain.call("rope", query, key, self.positions, self.frequencies(a), **a.rope)
        self.chain.call("put_rows", key, value, keys, values, self.places, into=[keys, values])
        y = self.chain.call("paged_attention", query, keys, values, self.table, self.lengths, scale=a.scale, align="last",
                            left=a.window, right=0, soft_cap=a.soft_cap)
        return y.seen_as(self.batch * self.n, a.heads * a.head_dim)

    def frequencies(self, a):
        return None if a.frequencies is None else self.chain.input(a.frequencies)

    def one_step(self, a, query, key, value, keys, values):
        query, key, value = (y.seen_as(self.batch, n, a.head_dim) for y, n in (
            (query, a.heads), (key, a.shared_heads), (value, a.shared_heads)))
        places, positions = self.places.seen_as(self.batch), self.positions.seen_as(self.batch)
        rope = {} if a.rope is None else {"base": a.rope["base"], "rotary": a.rope["rotary"], "rope_scale": a.rope["scale"]}
        _, _, y = self.chain.call("decode_attention", query, key, value, keys, values, places, positions if rope else None,
                                  self.table, self.lengths, self.frequencies(a), into=[keys, values], scale=a.scale, left=a.window,
                                  soft_cap=a.soft_cap, **rope)
        return y.seen_as(self.batch, a.heads * a.head_dim)
