"""model.generate() of KerasHub: all sequences of a batch at once, each at its own length, by chains.

What it needs on the device, a cache of keys and values and what is known of the sequences, stays with the model for the next
batch of the same size: their memory is where it was, so a step that was captured is launched again. Weights do not stay: a
model that is trained between two batches would have them twice.
"""

import contextlib
import threading
import weakref

import numpy as np
import tensorflow as tf

from tfuse._core import _library
from tfuse.generation import steps
from tfuse.generation.decoders import NotServed
from tfuse.generation.steps import PAGE
from tfuse.generation.transfers import Receiver
from tfuse.generation.weights import Weights

AT_A_TIME = 8  # steps that are queued before the host looks whether all sequences were done after the 8 before them
KEPT_BYTES = 1 << 30  # on the device that stay after a batch, at most

cache_dtype = None  # of keys and values, as tfuse.enable() was told

_kept = weakref.WeakKeyDictionary()  # by model: _Kept
_reduce = _library.raw("reduce")


class _Kept:
    """What a model has of its last batch. One call of generate() at a time has it: others wait, but for one inside of it."""

    def __init__(self):
        self.lock, self.is_used, self.weights, self.batch = threading.RLock(), False, None, None

    @contextlib.contextmanager
    def used(self):
        with self.lock:
            if self.is_used:
                raise NotServed("generate() is called inside of another generate() of the same model, as by a signal handler")
            try:
                self.is_used = True
                yield
            finally:
                self.is_used = False


def settings_of(sampler):
    """What the op SampleLogits is told for a sampler of KerasHub. Raises NotServed."""
    name = type(sampler).__name__
    if name not in ("GreedySampler", "RandomSampler", "TopKSampler", "TopPSampler") \
            or not type(sampler).__module__.startswith("keras_hub."):
        raise NotServed("the sampler is %s; served are greedy, random, top_k and top_p" % (
            repr(sampler) if isinstance(sampler, str) else "a %s, which wants probabilities" % name))
    if name == "GreedySampler":
        return {"temperature": 0.0, "top_k": 0, "top_p": 1.0}
    return {"temperature": float(sampler.temperature), "top_k": int(getattr(sampler, "k", None) or 0),
            "top_p": float(getattr(sampler, "p", 1.0))}


class _Batch:
    """A batch of so many sequences of so many words at most, whose keys and values are of this dtype (steps.cache_dtype)."""

    def __init__(self, decoder, batch, room, dtype):
        if decoder.limit is not None and room > decoder.limit:
            raise NotServed("the model has %d positions, and rows are of %d" % (decoder.limit, room))
        self.size, self.dtype, pages = (batch, room), dtype, -(-room // PAGE)
        self.cache = steps.Cache(decoder, batch * pages, PAGE, steps.cache_dtype(decoder, dtype))
        self.sequences = steps.Sequences(batch, room, pages)
        self.sequences.table = tf.reshape(tf.range(batch * pages, dtype=tf.int64), [batch, pages])
        self.chains, self._receiver = {}, None
        self.memory = tf.zeros([0], tf.uint8)  # scratch of all chains, of which one runs at a time

    @property
    def bytes(self):
        """Of what lies on the device."""
        tensors = [self.memory, *(t for layer in self.cache.layers for t in layer)]
        return sum(t.dtype.size * t.shape.num_elements() for t in tensors)

    def begin(self, tokens, lengths, stops, seeds, settings):
        batch, room = self.size
        whole = lambda value, dtype: np.full([batch], value, dtype)
        stops = _padded(stops)
        if self.sequences.stops.shape[0] != len(stops):
            self.sequences.stops = tf.zeros([len(stops)], tf.int64)
            self.chains.clear()
            self.sequences.chains.clear()
        steps.write(self.sequences, tokens=tokens, lengths=lengths, limits=whole(room, np.int64), done=whole(0, np.int64),
                    stops=stops, seeds=seeds, temperature=whole(settings["temperature"], np.float32),
                    top_p=whole(settings["top_p"], np.float32), top_k=whole(settings["top_k"], np.int64))

    def prompts(self, weights, tensors, tokens, lengths):
        """A chain that runs prompts and appends a word to each, and that has these prompts."""
        n = min(-(-int(lengths.max()) // PAGE) * PAGE, self.size[1])
        values = _prompts(tokens, lengths, n, self.sequences.table.shape[1])
        if n not in self.chains:
            given = steps.Tensors(**{name: tf.zeros(value.shape, tf.int64) for name, value in values.items()})
            self.chains[n] = given, *self._step(weights, tensors, **vars(given))
        given, chain, places = self.chains[n]
        steps.write(given, **values)
        return chain, places

    def words(self, weights, tensors):
        """A chain that appends a word to each sequence."""
        if 1 not in self.chains:
            self.chains[1] = self._step(weights, tensors)
        return self.chains[1]

    def run(self, chain, left):
        """Queues so many steps of a chain, or fewer if all sequences come to a stop before.

        What the host waits for has the next steps queued behind it, so that the GPU always has some to run. Those that follow
        the last stop change nothing (kernels/generation/advance.h)."""
        while left > 0:
            asked = self._ask() if self.sequences.stops.shape[0] else None
            chain.run(min(left, AT_A_TIME))
            left -= AT_A_TIME
            if asked is not None and self._are_done(asked):
                break

    def _ask(self):
        """Has the host told whether all sequences are done after the steps queued by now. Returns what _are_done() is given."""
        if self._receiver is None:
            self._receiver = Receiver()
        return self._receiver.ask(_reduce(self.sequences.done, kind="min"))

    def _are_done(self, asked):
        """What the host was told. It waits for the steps before that, and for no others."""
        return bool(self._receiver.read(asked))

    def _step(self, weights, tensors, **given):
        chain = steps.step(weights.decoder(tensors), self.cache, self.sequences, **given)
        *_, room = chain.written()
        if room > self.memory.shape[0]:
            self.memory = tf.zeros([room], tf.uint8)
        return chain, chain.places(tensors)

    @contextlib.contextmanager
    def reading(self, chain, places, tensors):
        """A chain that reads these weights in the block, and keeps none of them, nor the memory."""
        chain.exchange(places, tensors)
        chain._memory = self.memory
        try:
            yield chain
        finally:
            chain.exchange(places, [None] * len(tensors))
            chain._memory = None


IMAGES = {"images", "vision_mask", "vision_indices"}  # what Gemma 3 has for images, also of texts without any


def _padded(stops):
    """Stop tokens with -1, which is no token, after them: chains are made for a number of them, of which there are few so."""
    n = max(8, 1 << (len(stops) - 1).bit_length()) if len(stops) else 0
    return np.pad(stops, (0, n - len(stops)), constant_values=-1)


def generate(model, inputs, stop_token_ids=None):
    """What the model's generate_step gives. Raises NotServed for what is left to that."""
    settings = settings_of(model.sampler)
    tokens, mask, lengths, stops = _checked(inputs, stop_token_ids)
    kept = _kept.setdefault(model, _Kept())
    with kept.used():
        if kept.weights is None or not kept.weights.are_of(model):
            kept.batch = None
            kept.weights = Weights(model)
        tensors = kept.weights.read()
        try:
            with tf.device(kept.weights.device):
                found = _generated(kept, tensors, tokens, lengths, stops, model.sampler, settings)
        finally:
            if kept.batch is not None and kept.batch.bytes > KEPT_BYTES:
                kept.batch = None
    return _outputs(found, inputs, mask, stops)


def _generated(kept, tensors, tokens, lengths, stops, sampler, settings):
    batch, room = tokens.shape
    dtype = cache_dtype
    if kept.batch is None or (kept.batch.size, kept.batch.dtype) != ((batch, room), dtype):
        kept.batch = None  # before the memory of another one is asked for
        kept.batch = _Batch(kept.weights.decoder(tensors), batch, room, dtype)
    mine = kept.batch
    mine.begin(tokens, lengths, stops, seeds_of(sampler, batch), settings)
    left = room - int(lengths.min())
    if left > 0:
        with mine.reading(*mine.prompts(kept.weights, tensors, tokens, lengths), tensors) as chain:
            chain.run()
    if left > 1:
        with mine.reading(*mine.words(kept.weights, tensors), tensors) as chain:
            mine.run(chain, left - 1)
    return steps.read(mine.sequences.tokens)[0]


def _checked(inputs, stop_token_ids):
    """Tokens, mask, lengths and stops as arrays. Raises NotServed."""
    names = set(inputs) if isinstance(inputs, dict) else set()
    if IMAGES < names and np.shape(inputs["images"])[1:2] == (0,):
        names -= IMAGES
    if names != {"token_ids", "padding_mask"}:
        raise NotServed("the inputs are not token_ids and padding_mask")
    tokens, mask = (np.asarray(inputs[name]) for name in ("token_ids", "padding_mask"))
    if not hasattr(inputs["token_ids"], "dtype") or tokens.dtype.kind not in "iu" or tokens.ndim != 2 \
            or mask.shape != tokens.shape:
        raise NotServed("token_ids and padding_mask are not [batch, length], or no integers")
    mask = mask.astype(bool)
    lengths = mask.sum(-1)
    if not mask.size or not lengths.all() or (mask != (np.arange(mask.shape[1]) < lengths[:, None])).any():
        raise NotServed("prompts do not begin their rows")
    stops = np.asarray([] if stop_token_ids is None else stop_token_ids, np.int64).ravel()
    if np.isin(tokens[~mask], stops).any():
        raise NotServed("what comes after the prompts has a stop token")
    return tokens.astype(np.int64), mask, lengths.astype(np.int64), stops


def _prompts(tokens, lengths, n, pages):
    """Words, places and positions, [batch, n], of prompts that end in the last column."""
    column = np.arange(n) - (n - lengths[:, None])
    there, at = column >= 0, np.maximum(column, 0)
    table = np.arange(len(tokens) * pages).reshape(len(tokens), -1)
    places = np.take_along_axis(table, at // PAGE, 1) * PAGE + at % PAGE
    words = np.take_along_axis(tokens, at, 1)
    return {"words": np.where(there, words, 0), "places": np.where(there, places, -1), "positions": at}


def seeds_of(sampler, batch):
    """One for each sequence; a sampler's generator of seeds goes on as it does in KerasHub."""
    generator = getattr(sampler, "seed_generator", None)
    state = [0, 0] if generator is None else np.asarray(generator.next()).astype(np.uint32)
    first = np.random.SeedSequence(state).generate_state(1, np.uint64)
    return (first + np.arange(batch, dtype=np.uint64)).view(np.int64)


def _outputs(found, inputs, mask, stops):
    """As generate_step has them: a sequence's words up to its first new stop."""
    kept = np.ones_like(mask)
    if len(stops):
        ends = np.isin(found, stops) & ~mask
        kept = np.cumsum(ends, -1) - ends == 0
    return {"token_ids": tf.constant(found, tf.as_dtype(inputs["token_ids"].dtype)), "padding_mask": tf.constant(kept)}
