"""tfuse.generate: a list of prompts, by the engine."""

import sys

import numpy as np
import rich.console
import rich.progress

from tfuse.generation.arguments import ids_of, sampler_of, stops_of, text_of
from tfuse.generation.batch import seeds_of
from tfuse.generation.decoders import NotServed
from tfuse.generation.engine import Engine
from tfuse.generation.steps import PAGE

ROWS = 128  # requests that run at one time, at most


class Failed(RuntimeError):
    """Some prompts of a call of tfuse.generate failed; the others were continued.

    Attributes:
      results: what tfuse.generate would have returned, with its exception in the place of each prompt that failed.
    """

    def __init__(self, results):
        self.results = results
        wrong = [(i, result) for i, result in enumerate(results) if isinstance(result, Exception)]
        super().__init__("tfuse.generate: %d of %d prompts failed. Prompt %d: %s. All results are in this error's `results`" % (
            len(wrong), len(results), wrong[0][0], wrong[0][1]))


def generate(model, prompts, max_new_tokens, sampler=None, stop_token_ids="auto", on_token=None, pages=None,
             batch_invariant=False, cache_dtype=None):
    """Continues prompts of any lengths with a language model of KerasHub, many of them at a time.

    Unlike model.generate(), nothing is padded: a prompt that is done leaves its place to the next one, and prompts that begin
    alike have their beginning computed once. Each prompt gets the tokens that it would get alone, to within rounding, or to the
    bit. It works whether tfuse.enable() is on or not, on a GPU and on a CPU.

    Args:
      model: a CausalLM of KerasHub. Which ones are served: docs/generation.md.
      prompts: a list of texts, where the model has a preprocessor, and of lists of token ids. Bytes are texts in UTF-8.
      max_new_tokens: how many tokens a prompt gets at most; a number, or a list with one for each prompt.
      sampler: as in model.compile(sampler=...): "greedy", "random", "top_k", "top_p" or an object of one of these. None is the
        model's own.
      stop_token_ids: tokens that end a prompt's continuation, and are its last: an id, or a list, an array or a tensor of ids.
        "auto" are those of the preprocessor's tokenizer; without a preprocessor, and with None, there are none.
      on_token: a function that is called with each new token as it comes: the prompt's place in the list, and the token's id.
        What it raises ends this prompt's continuation, and no other.
      pages: how many pages of 64 tokens keys and values may take; a prompt that finds no free ones waits. None: enough for 128
        prompts as long as the longest, or as many as half of the memory that is free holds, if these are fewer.
      batch_invariant: a prompt's tokens are the same, bit by bit, whatever other prompts there are. Without it they are to
        within rounding, and a token that is as likely as another may change places with it. It takes longer on a GPU.
      cache_dtype: "float8_e4m3fn" keeps keys and values in 8 bits, which is half of the memory of 16, and of what attention
        reads; a token may change places with one that is about as likely. None: in the model's dtype.

    Returns:
      A list in the order of the prompts: for a text the new text, without the prompt, for ids the new ids.

    Raises:
      ValueError: tfuse does not serve the model, or the sampler; model.generate() does.
      Failed: some prompts failed, or can never be served. It has the results of the others.

    Example:
      texts = tfuse.generate(model, ["The capital of France is", "2 + 2 ="], max_new_tokens=20)
    """
    if isinstance(prompts, (str, bytes)):
        raise TypeError("tfuse.generate: prompts is a list, of texts or of lists of ids; got one text")
    prompts = [prompt.decode() if isinstance(prompt, bytes) else prompt for prompt in prompts]
    if any(np.ndim(prompt) == 0 and not isinstance(prompt, str) for prompt in prompts):
        raise TypeError("tfuse.generate: prompts is a list, of texts or of lists of ids, such as [[5, 17, 3]]; got %r" % (prompts,))
    if np.ndim(max_new_tokens) and len(max_new_tokens) != len(prompts):
        raise ValueError("tfuse.generate: max_new_tokens has %d numbers, and there are %d prompts" % (
            len(max_new_tokens), len(prompts)))
    limits = [int(n) for n in np.broadcast_to(max_new_tokens, [len(prompts)])]
    if not prompts:
        return []
    ids, stops = ids_of(model, prompts), stops_of(model, stop_token_ids)
    sampler = sampler_of(getattr(model, "sampler", None), sampler)
    longest = max(1, *(len(some) + n for some, n in zip(ids, limits)))
    engine = engine_of(model, pages=pages, rows=min(len(ids), ROWS), room=-(-longest // PAGE) * PAGE,
                       batch_invariant=batch_invariant, cache_dtype=cache_dtype)
    try:
        results = _run(engine, ids, limits, sampler, stops, on_token)
    finally:
        vars(engine).clear()  # errors know their frames, and these the engine: its memory must not wait for them
    results = [text_of(model, tokens) if isinstance(prompt, str) and isinstance(tokens, list) else tokens
               for prompt, tokens in zip(prompts, results)]
    if any(isinstance(result, Exception) for result in results):
        raise Failed(results) from next(result for result in results if isinstance(result, Exception))
    return results


def engine_of(model, **options):
    """An engine. Raises NotServed, which says what to do instead."""
    try:
        return Engine(model, **options)
    except NotServed as error:
        does = ", and its own generate() does" if hasattr(model, "generate") else ""
        raise NotServed("tfuse does not serve this model%s: %s" % (does, error)) from error


def _run(engine, prompts, limits, sampler, stops, on_token):
    """New ids of each, or an exception."""
    results, left = [None] * len(prompts), {}
    told = None if on_token is None else lambda number, token: on_token(left[number], token)
    for i, (prompt, limit, seed) in enumerate(zip(prompts, limits, seeds_of(sampler, len(prompts)))):
        try:
            left[engine.add(prompt, limit, sampler, stops, told, int(seed))] = i
        except NotServed:
            raise
        except Exception as error:
            results[i] = error
    shown = sys.stderr.isatty() and len(prompts) > 1
    with rich.progress.Progress(console=rich.console.Console(stderr=True), transient=True, disable=not shown) as progress:
        task = progress.add_task("prompts", total=len(left))
        while left:
            engine.step()
            for number in [number for number in left if engine.has_ended(number)]:
                results[left[number]] = _result(engine, number)
                del left[number]
                progress.advance(task)
    return results


def _result(engine, number):
    try:
        return engine.result(number)
    except Exception as error:
        return error
