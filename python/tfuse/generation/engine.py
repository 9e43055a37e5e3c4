"""Many requests at once: they join and leave between steps, their keys and values lie in pages that they share where their
prompts begin alike."""

import collections
import dataclasses
import typing

import numpy as np
import tensorflow as tf

from tfuse.generation import steps
from tfuse.generation.batch import settings_of
from tfuse.generation.families import decoder_of
from tfuse.generation.pages import Pages, pages_for
from tfuse.generation.steps import PAGE

CHUNK = 512  # words of a prompt that are processed between two steps, at most


@dataclasses.dataclass(eq=False)
class Request:
    number: int
    prompt: list
    limit: int  # words in all
    settings: dict
    stops: frozenset
    seed: int
    on_token: typing.Optional[typing.Callable]
    tokens: list = dataclasses.field(default_factory=list)  # new ones
    pages: list = dataclasses.field(default_factory=list)
    row: int = -1  # of the batch; -1: it waits
    ready: int = 0  # words of the prompt whose keys and values are in the cache
    error: typing.Optional[Exception] = None
    ended: bool = False


class Engine:
    """Generates for requests that come and go: what tfuse.generate does for a list of prompts.

    Requests join and leave between steps (continuous batching). Their keys and values lie in pages, which prompts that begin
    alike share. A request that finds no free row or pages waits for them. Weights are read when the engine is made. An engine
    is for one thread.

    Args:
      model: a CausalLM of KerasHub.
      pages: how many pages of 64 tokens keys and values may take. None: as many as `rows` requests of `room` tokens have, or as
        half of the memory that is free holds, if these are fewer.
      rows: how many requests run at one time, at most.
      room: the most tokens of a request, its prompt included.
      batch_invariant: a request's tokens are the same, bit by bit, whatever other requests there are. Without it they are to
        within rounding, and a token that is as likely as another may change places with it. It takes longer on a GPU.

    Raises:
      NotServed: a ValueError that says why tfuse does not serve the model.

    Example:
      engine = tfuse.generation.Engine(model)
      first = engine.add([5, 17, 3], max_new_tokens=20)
      while engine.busy():
          engine.step()
      print(engine.result(first))
    """

    def __init__(self, model, pages=None, rows=32, room=2048, batch_invariant=False):
        self.decoder = decoder_of(model)
        self._device = self.decoder.table.device
        self._room = room if self.decoder.limit is None else min(room, self.decoder.limit)
        self._sampler, self._invariant = model.sampler, batch_invariant
        pages = pages_for(self.decoder, rows, self._room) if pages is None else pages
        self._pages = Pages(pages)
        with tf.device(self._device):
            self._allocate(pages, rows, self._room)
        self._host = {name: np.zeros(tensor.shape, tensor.dtype.as_numpy_dtype) for name, tensor in vars(self._s).items()}
        self._host["done"][:] = 1
        self._host["places"][:] = -1
        self._requests, self._waiting, self._running = {}, collections.deque(), [None] * rows
        self._next, self._step, self._prompts, self._changed = 0, None, {}, True

    def _allocate(self, pages, rows, room):
        self._cache = steps.Cache(self.decoder, pages, PAGE, self.decoder.table.dtype)
        self._s = steps.Sequences(rows, room, -(-room // PAGE))

    # ---- requests ----

    def add(self, prompt, max_new_tokens, sampler=None, stop_token_ids=None, on_token=None, seed=None):
        """Has a prompt, a list of ids, continued; returns the request's number.

        on_token(number, token) is called with each new token; what it raises ends this request, and result() raises it.
        Requests with the same seed draw the same random numbers, whoever else is there. Raises ValueError for a request that can
        never run."""
        prompt = [int(token) for token in prompt]
        limit = len(prompt) + int(max_new_tokens)
        if not prompt or max_new_tokens < 1:
            raise ValueError("tfuse.generate: a prompt has at least one token and asks for at least one, got %d and %d" % (
                len(prompt), max_new_tokens))
        words = self.decoder.table.shape[0]
        if not 0 <= min(prompt) <= max(prompt) < words:
            raise ValueError("tfuse.generate: ids are from 0 to %d, got %d" % (
                words - 1, min(prompt) if min(prompt) < 0 else max(prompt)))
        if limit > self._room:
            raise ValueError("tfuse.generate: a prompt of %d tokens and %d new ones are more than the %d that a request may have" % (
                len(prompt), max_new_tokens, self._room))
        wanted, there = -(-limit // PAGE), len(self._pages.free) + len(self._pages.unused) + len(self._pages.users)
        if wanted > there:
            raise ValueError("tfuse.generate: %d tokens take %d pages of %d, and there are %d" % (limit, wanted, PAGE, there))
        number, self._next = self._next, self._next + 1
        request = Request(number, prompt, limit, settings_of(sampler or self._sampler), frozenset(stop_token_ids or ()),
                          number if seed is None else seed, on_token)
        self._requests[number] = request
        self._waiting.append(request)
        return number

    def cancel(self, number):
        """Ends a request as it is."""
        request = self._requests[number]
        if request in self._waiting:
            self._waiting.remove(request)
        self._end(request)

    def result(self, number):
        """The new tokens of a request that has ended, which is then forgotten. Raises what its on_token has raised."""
        request = self._requests.pop(number)
        if request.error is not None:
            raise request.error
        return request.tokens

    def has_ended(self, number):
        return self._requests[number].ended

    def busy(self):
        """Whether there are requests that have not ended."""
        return bool(self._waiting) or any(self._running)

    def _end(self, request):
        if request.row >= 0:
            self._running[request.row] = None
            self._host["done"][request.row], self._host["places"][request.row] = 1, -1
            self._changed = True
        for page in request.pages:
            self._pages.leave(page)
        request.row, request.pages, request.ended = -1, [], True

    # ---- steps ----

    def step(self):
        """One new token for each request that runs; before that, requests join, and some read a part of their prompts."""
        with tf.device(self._device):
            while self._waiting and self._admit(self._waiting[0]):
                self._waiting.popleft()
            left = CHUNK
            for request in [r for r in self._running if r is not None and r.ready < len(r.prompt) - 1]:
                left -= self._read(request) if left > 0 else 0
            ready = [r for r in self._running if r is not None and r.ready == len(r.prompt) - 1]
            if ready:
                self._advance()
        for request in ready:
            if not request.ended:  # by another's on_token
                self._grown(request)

    def _advance(self):
        self._put()
        if self._step is None:
            self._step = steps.step(self.decoder, self._cache, self._s, invariant=self._invariant)
        self._step.run()
        grown = ("lengths", "done", "current", "places", "positions")
        self._host.update(zip(grown, steps.read(*(getattr(self._s, name) for name in grown))))

    def _grown(self, request):
        length = int(self._host["lengths"][request.row])
        if length == len(request.prompt) + len(request.tokens):
            return
        token = int(self._host["current"][request.row])
        request.tokens.append(token)
        try:
            if request.on_token is not None:
                request.on_token(request.number, token)
        except Exception as error:  # it ends this request, and no other
            request.error = error
        if request.error is not None or length >= request.limit or token in request.stops:
            self._end(request)

    def _admit(self, request):
        """Gives a request a row and its pages, if there are any."""
        row = next((i for i, r in enumerate(self._running) if r is None), None)
        if row is None:
            return False
        names = [tuple(request.prompt[:end]) for end in range(PAGE, len(request.prompt), PAGE)]
        shared = []
        for name in names:
            page = self._pages.find(name)
            if page is None:
                break
            shared.append(page)
        own = -(-request.limit // PAGE) - len(shared)
        if own > self._pages.available() - sum(page in self._pages.unused for page in shared):
            return False
        for page in shared:
            self._pages.use(page)
        request.pages = shared + [self._pages.take() for _ in range(own)]
        request.ready, request.row, self._running[row] = min(len(shared) * PAGE, len(request.prompt) - 1), row, request
        self._host["table"][row, :len(request.pages)] = request.pages
        if request.ready == len(request.prompt) - 1:
            self._start(request)
        return True

    def _read(self, request):
        """Puts some tokens of a prompt into the cache; returns how many there was room for."""
        begin, end = request.ready, min(request.ready + CHUNK, len(request.prompt) - 1)
        n = next(size for size in (64, 128, 256, CHUNK) if size >= end - begin)
        at = np.arange(end - begin) + begin
        words, places, positions = np.zeros([1, n], np.int64), np.full([1, n], -1), np.zeros([1, n], np.int64)
        words[0, n - len(at):], positions[0, n - len(at):] = request.prompt[begin:end], at
        places[0, n - len(at):] = np.array(request.pages)[at // PAGE] * PAGE + at % PAGE
        values = {"words": words, "places": places, "positions": positions,
                  "table": self._host["table"][request.row:request.row + 1], "lengths": np.array([end])}
        if n not in self._prompts:
            tensors = steps.Tensors(**{name: tf.zeros(np.shape(value), tf.int64) for name, value in values.items()})
            self._prompts[n] = tensors, steps.prompt(self.decoder, self._cache, **vars(tensors),
                                                         invariant=self._invariant)
        tensors, chain = self._prompts[n]
        steps.write(tensors, **values)
        chain.run()
        request.ready = end
        for i in range(begin // PAGE, end // PAGE):
            self._pages.name(request.pages[i], tuple(request.prompt[:(i + 1) * PAGE]))
        if end == len(request.prompt) - 1:
            self._start(request)
        return n

    def _start(self, request):
        """From now on it takes part in steps: the first one reads the last word of its prompt."""
        row, last, host = request.row, len(request.prompt) - 1, self._host
        host["tokens"][row, :last + 1] = request.prompt
        host["lengths"][row], host["limits"][row], host["done"][row] = last + 1, request.limit, 0
        host["current"][row], host["positions"][row] = request.prompt[last], last
        host["places"][row] = request.pages[last // PAGE] * PAGE + last % PAGE
        host["seeds"][row] = request.seed
        for name, value in request.settings.items():
            host[name][row] = value
        self._changed = True

    def _put(self):
        """Tells the device what has changed here."""
        if self._changed:
            steps.write(self._s, **{name: value for name, value in self._host.items() if name not in ("tokens", "stops")})
        self._changed = False
