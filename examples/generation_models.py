"""Generates with a Llama of KerasHub that has random weights, with tfuse and without, and times it.

  python examples/generation_models.py --mode tfuse --works batch1,batch32
  python examples/generation_models.py --mode xla --works batch1
  python examples/generation_models.py --works batch1-int4                # after model.quantize("int4")
  python examples/generation_models.py --works requests --small           # on a CPU, in seconds

generation.py runs this and its twin in Transformers, and keeps what they find.
"""
import contextlib
import gc
from unittest import mock

import numpy as np

import generation_works

MODES = ["tfuse", "xla", "stock"]


def llama(sizes):
    import keras_hub
    backbone = keras_hub.models.LlamaBackbone(
        vocabulary_size=sizes.vocabulary, num_layers=sizes.layers, num_query_heads=sizes.heads,
        num_key_value_heads=sizes.shared_heads, hidden_dim=sizes.width, intermediate_dim=sizes.inner)
    return keras_hub.models.LlamaCausalLM(backbone)


def pack_int4(values, axis=0, dtype="int8"):
    """As keras.quantizers.pack_int4: pairs along an axis of even size, the first in the low bits."""
    import tensorflow as tf
    every_other = lambda i: (slice(None),) * (axis % len(values.shape)) + (slice(i, None, 2),)
    low, high = values[every_other(0)], values[every_other(1)]
    packed = tf.bitwise.bitwise_or(tf.bitwise.bitwise_and(low, 15), tf.bitwise.left_shift(high, 4))
    return packed, tuple(packed.shape), values.shape[axis]


@contextlib.contextmanager
def quantized_where_it_lies():
    """model.quantize() computes in NumPy, which needs a minute for a billion weights in bfloat16, and collects garbage after each
    layer. Here it computes in TensorFlow, as Keras does for activations: with random weights, that is all the same."""
    from keras.src import quantizers
    on_device = lambda f: lambda *arguments, to_numpy=False, **named: f(*arguments[:5], **named)  # the sixth is to_numpy
    names = "abs_max_quantize", "abs_max_quantize_grouped_with_zero_point"
    with contextlib.ExitStack() as stack:
        for module in (quantizers, quantizers.quantizers):
            changed = {name: on_device(getattr(module, name)) for name in names}
            stack.enter_context(mock.patch.multiple(module, **changed, pack_int4=pack_int4))
        stack.enter_context(mock.patch("gc.collect"))
        yield
    gc.collect()


def ways(model, mode):
    def continued(prompts, longest, new):
        ids, there = (x.astype(np.int32) for x in generation_works.rows(prompts, longest + new))
        return model.generate({"token_ids": ids, "padding_mask": there}, stop_token_ids=None)["token_ids"]

    def many(prompts, new, batch_invariant):
        import tfuse
        return tfuse.generate(model, prompts, max_new_tokens=new, sampler="greedy", stop_token_ids=None,
                              batch_invariant=batch_invariant)

    return continued, many if mode == "tfuse" else None


def main(options):
    from models import set_up
    from training import peak_memory, reset_peak
    set_up(options.mode, "float32" if options.small else "bfloat16")

    def make(sizes, quantized, cache_dtype):
        if options.mode == "tfuse":
            import tfuse
            tfuse.enable(cache_dtype=cache_dtype)
        model = llama(sizes)
        if quantized:
            with quantized_where_it_lies():
                model.quantize(quantized)
        model.compile(sampler="greedy", jit_compile=options.mode == "xla")
        return ways(model, options.mode)

    generation_works.measure(options, make, reset_peak, peak_memory)


if __name__ == "__main__":
    main(generation_works.parse(__doc__, MODES))
