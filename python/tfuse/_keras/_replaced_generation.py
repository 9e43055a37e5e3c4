"""What tfuse.enable() replaces of KerasHub's generate(): the function that continues a batch of prompts.

It is asked for in every call, and what it is given decides who does the work: chains of tfuse's ops (tfuse.generation), or the
function that KerasHub has made of the model's generate_step.
"""

import keras
import tensorflow as tf

from tfuse._core import _explain, _library
from tfuse._core._explain import reason
from tfuse._keras._replaced import Row
from tfuse.generation import batch
from tfuse.generation.decoders import NotServed


@reason
def _why_not(model):
    """Why a model is left to KerasHub, whatever it is given, or ""."""
    yield _library.without_gpu() and "there is no GPU, and KerasHub's own generate() is faster on the CPU"
    yield model.run_eagerly and "the model has run_eagerly=True"
    yield not tf.executing_eagerly() and "it is called while a function is traced"
    yield (keras.distribution.distribution() is not None
           or type(model.distribute_strategy).__name__ != "_DefaultDistributionStrategy") and "the model is distributed"


def _make_generate_function(own, model):
    function = own(model)  # which it has made already, unless compile() has been called since

    def generate(inputs, stop_token_ids=None):
        why = _why_not(model)
        if not why:
            try:
                return batch.generate(model, inputs, stop_token_ids)
            except NotServed as error:
                why = str(error)
        given = [inputs["token_ids"]] if isinstance(inputs, dict) and "token_ids" in inputs else [inputs]
        _explain.note("CausalLM.generate", "Keras's own code", why, given, "called")
        return function(inputs, stop_token_ids=stop_token_ids)

    return generate


TABLE = [Row("keras_hub.src.models.causal_lm", "CausalLM.make_generate_function", _make_generate_function)]
