"""What callers give, in one form: prompts and stop tokens as ids, samplers as objects; and ids as texts."""

import numpy as np

ENDS_OF_TURNS = {"Phi3CausalLM": "<|end|>", "Gemma3CausalLM": "<end_of_turn>"}  # which their generate() stops at, too


def ids_of(model, prompts):
    """Ids of each prompt: those that model.generate() would begin with."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if texts and getattr(model, "preprocessor", None) is None:
        raise ValueError("tfuse.generate: this model has no preprocessor, so prompts must be lists of ids; got a text")
    if texts:
        room = max(len(text.encode()) for text in texts) + 8  # a token is a byte at least; a few begin a text
        packed = model.preprocessor.generate_preprocess(texts, sequence_length=room)
        tokens, mask = (np.asarray(packed[name]) for name in ("token_ids", "padding_mask"))
        found = iter([row[there.astype(bool)].tolist() for row, there in zip(tokens, mask)])
    return [next(found) if isinstance(prompt, str) else [int(token) for token in prompt] for prompt in prompts]


def text_of(model, tokens):
    """What ids say, without those that only mark a beginning or an end."""
    ids = np.array([tokens], "int32")
    return model.preprocessor.generate_postprocess({"token_ids": ids, "padding_mask": np.ones_like(ids, bool)})[0]


def ends_of(model):
    """Ids that end a text, by the preprocessor's tokenizer."""
    tokenizer = getattr(getattr(model, "preprocessor", None), "tokenizer", None)
    found = [getattr(tokenizer, name, None) for name in ("end_token_id", "end_token2_id")]
    if tokenizer is not None:
        ends = (ENDS_OF_TURNS[kind.__name__] for kind in type(model).__mro__ if kind.__name__ in ENDS_OF_TURNS)
        found += [tokenizer.token_to_id(end) or None for end in ends]  # 0: there is no such token
    return [int(token) for token in found if token is not None]


def stops_of(model, given):
    """Ids, of what stops_in() takes; "auto" are those of the preprocessor's tokenizer."""
    return stops_in(given, ends_of(model))


def stops_in(given, ends):
    """Ids, of "auto", which are `ends`, of None, or of ids: one, or any list or tensor of them."""
    if isinstance(given, str) and given == "auto":
        return ends
    ids = np.ravel([] if given is None else list(given) if isinstance(given, (set, frozenset)) else given)
    if ids.size and ids.dtype.kind not in "iu":
        raise ValueError("tfuse.generate: stop_token_ids are ids, None or \"auto\", got %r" % (given,))
    return [int(token) for token in ids]


def sampler_of(own, given):
    """A sampler, of None, which is the model's own, of a name or of a sampler."""
    if given is None:
        return own
    if not isinstance(given, str):
        return given
    import keras_hub  # which is there, since the model is of it

    return keras_hub.samplers.get(given)
