"""model.generate() of KerasHub: all sequences of a batch at once, each at its own length, by chains.

What it needs on the device, a cache of keys and values and what is known of the sequences, stays with the model for the next
batch of the same size: their memory is where it was, so a step that was captured is launched again.
"""

import weakref

import numpy as np
import tensorflow as tf

from tfuse.generation import steps
from tfuse.generation.decoders import NotServed, decoder_of

PAGE = 64  # steps of a page
AT_A_TIME = 16  # steps that are queued before the host looks whether all sequences are done

_kept = weakref.WeakKeyDictionary()  # by model: _Batch of the last size


def settings_of(sampler):
    """What the op SampleLogits is told for a sampler of KerasHub."""
    name = type(sampler).__name__
    if name == "GreedySampler":
        return {"temperature": 0.0, "top_k": 0, "top_p": 1.0}
    if name not in ("RandomSampler", "TopKSampler", "TopPSampler"):
        raise NotServed("the sampler is a %s, which wants probabilities" % name)
    return {"temperature": float(sampler.temperature), "top_k": int(getattr(sampler, "k", None) or 0),
            "top_p": float(getattr(sampler, "p", 1.0))}


class _Batch:
    """A batch of so many sequences of so many words at most."""

    def __init__(self, decoder, batch, room):
        self.size, pages = (batch, room), -(-room // PAGE)
        self.cache = steps.Cache(decoder, batch * pages, PAGE, decoder.table.dtype)
        self.sequences = steps.Sequences(batch, room, pages)
        self.sequences.table = tf.reshape(tf.range(batch * pages, dtype=tf.int64), [batch, pages])
        self.chains = {}

    def chain(self, key, made):
        """A chain like one that was made before takes its place in memory, with the weights as they are now."""
        kept = self.chains.get(key)
        if kept is None:
            self.chains[key] = kept = made
        else:
            kept.take_inputs(made)
        return kept

    def begin(self, tokens, lengths, stops, seeds, settings):
        batch, room = self.size
        whole = lambda value, dtype: np.full([batch], value, dtype)
        if self.sequences.stops.shape[0] != len(stops):
            self.sequences.stops = tf.zeros([len(stops)], tf.int64)
            self.chains.clear()
        steps.write(self.sequences, tokens=tokens, lengths=lengths, limits=whole(room, np.int64), done=whole(0, np.int64),
                    stops=stops, seeds=seeds, temperature=whole(settings["temperature"], np.float32),
                    top_p=whole(settings["top_p"], np.float32), top_k=whole(settings["top_k"], np.int64))


def generate(model, inputs, stop_token_ids=None):
    """What the model's generate_step gives. Raises NotServed for what is left to that."""
    settings, decoder = settings_of(model.sampler), decoder_of(model)
    tokens, mask = (np.asarray(inputs[name]) for name in ("token_ids", "padding_mask"))
    batch, room = tokens.shape
    mask = mask.astype(bool)
    lengths = mask.sum(-1)
    if not batch or not lengths.all() or (mask != (np.arange(room) < lengths[:, None])).any():
        raise NotServed("prompts do not begin their rows")
    if set(inputs) != {"token_ids", "padding_mask"}:
        raise NotServed("the inputs %s" % ", ".join(sorted(inputs)))
    mine = _kept.get(model)
    if mine is None or mine.size != (batch, room):
        _kept[model] = mine = _Batch(decoder, batch, room)
    stops = np.asarray([] if stop_token_ids is None else stop_token_ids, np.int64).ravel()
    mine.begin(tokens.astype(np.int64), lengths.astype(np.int64), stops, _seeds(model.sampler, batch), settings)
    n = min(-(-int(lengths.max()) // PAGE) * PAGE, room)
    mine.chain(n, steps.step(decoder, mine.cache, mine.sequences, *_prompts(tokens, lengths, n, mine.sequences))).run()
    more = mine.chain(1, steps.step(decoder, mine.cache, mine.sequences))
    left = room - int(lengths.min()) - 1
    while left > 0 and not steps.read(mine.sequences.done)[0].all():
        more.run(min(left, AT_A_TIME))
        left -= AT_A_TIME
    return _outputs(*steps.read(mine.sequences.tokens), inputs, mask, stops)


def _prompts(tokens, lengths, n, sequences):
    """Words, places and positions, [batch, n], of prompts that end in the last column."""
    column = np.arange(n) - (n - lengths[:, None])
    there, at = column >= 0, np.maximum(column, 0)
    table = np.arange(len(tokens) * sequences.table.shape[1]).reshape(len(tokens), -1)
    places = np.take_along_axis(table, at // PAGE, 1) * PAGE + at % PAGE
    words = np.take_along_axis(tokens, at, 1)
    return [tf.constant(np.where(there, x, other).astype(np.int64)) for x, other in ((words, 0), (places, -1), (at, 0))]


def _seeds(sampler, batch):
    """One for each sequence; a sampler's generator of seeds goes on as it does in KerasHub."""
    generator = getattr(sampler, "seed_generator", None)
    first, second = (0, 0) if generator is None else map(int, np.asarray(generator.next()))
    return (np.arange(batch, dtype=np.int64) << 20) + (first & 0xfffff) + ((second & 0x7fffff) << 40)


def _outputs(found, inputs, mask, stops):
    """As generate_step has them: a sequence's words up to its first new stop."""
    kept = np.ones_like(mask)
    if len(stops):
        ends = np.isin(found, stops) & ~mask
        kept = np.cumsum(ends, -1) - ends == 0
    return {"token_ids": tf.cast(found, getattr(inputs["token_ids"], "dtype", tf.int32)), "padding_mask": tf.constant(kept)}
