"""Many requests at once: they join and leave between steps, their keys and values lie in pages that they share where their
prompts begin alike.

The host runs ahead of the device. How far a request is after the steps that are queued, the host knows without asking: each
step gives a token to each request that runs, until it has all it asked for. So it queues some steps, has their tokens copied
back when they are there, queues the next steps, and only then waits for the tokens of the first. Two things come late by that:
a stop token ends its request while steps that follow are under way, and what those find for it is dropped; and the last token
of a request may not be known here when its row moves, so it is moved on the device. All that is queued runs in order, so pages
that a request has left can be given to the next one at once: whatever still writes them does so before."""

import collections
import functools

import numpy as np
import tensorflow as tf

from tfuse.generation import steps, tiles
from tfuse.generation.arguments import ends_of, stops_in
from tfuse.generation.batch import settings_of
from tfuse.generation.families import decoder_of
from tfuse.generation.pages import Pages, pages_for
from tfuse.generation.requests import Request, Samplers, names_of
from tfuse.generation.rows import Rows
from tfuse.generation.steps import PAGE
from tfuse.generation.transfers import Receiver, Sender

SIZES = (64, 128, 256, 512)  # words of a prompt that are processed at one time: whole pages, so that each chunk begins one
CHUNK = SIZES[-1]
CHUNKS = 8  # that are processed between two steps, at most
WATCHED = 4  # steps at a time, at most, where somebody waits for each token


class Engine:
    """Generates for requests that come and go: what tfuse.generate does for a list of prompts.

    Requests join and leave between steps (continuous batching). Their keys and values lie in pages, which prompts that begin
    alike share. A request that finds no free row or pages waits for them. Weights are read when the engine is made. An engine
    is for one thread.

    `add(prompt, max_new_tokens, sampler=None, stop_token_ids=None, on_token=None, seed=None)` has a prompt, a list of ids,
    continued, and returns the request's number. `sampler` is as in tfuse.generate, and so are `stop_token_ids`. With each new
    token, `on_token(number, token)` is called; an Exception that it raises ends this request, and result() raises it. Another
    one, such as a KeyboardInterrupt, is raised by step(), and the next step() goes on with the next token. Requests with the same
    `seed` draw the same random numbers, whoever else is there; without one, they go by the sampler's seed and their number.

    `step()` continues all requests, and `busy()` says whether there are any. `cancel(number)` ends a request as it is,
    `has_ended(number)` says whether one has ended, and `result(number)` returns the new tokens of one that has, and forgets it.

    Args:
      model: a CausalLM of KerasHub.
      pages: how many pages of 64 tokens keys and values may take. None: as many as `rows` requests of `room` tokens have, or as
        half of the memory that is free holds, if these are fewer.
      rows: how many requests run at one time, at most. Where few run, steps of fewer rows are made.
      room: the most tokens of a request, its prompt included.
      batch_invariant: a request's tokens are the same, bit by bit, whatever other requests there are. Without it they are to
        within rounding, and a token that is as likely as another may change places with it. It takes longer on a GPU.
      cache_dtype: "float8_e4m3fn" keeps keys and values in 8 bits, which is half of the memory of 16, and of what attention
        reads; a token may change places with one that is about as likely. None: in the model's dtype.
      at_a_time: how many steps are queued at one time, at most; while they run, the tokens of those before are handed out.
        1: one by one, and the next is queued when the tokens of the last were handed out.

    Raises:
      NotServed: a ValueError that says why tfuse does not serve the model.

    Example:
      engine = tfuse.generation.Engine(model)
      first = engine.add([5, 17, 3], max_new_tokens=20)
      while engine.busy():
          engine.step()
      print(engine.result(first))
    """

    def __init__(self, model, pages=None, rows=32, room=2048, batch_invariant=False, at_a_time=8, cache_dtype=None):
        if rows < 1 or at_a_time < 1:
            raise ValueError("tfuse.generate: rows and at_a_time must be at least 1, got %d and %d" % (rows, at_a_time))
        self.decoder = tiles.decoder(model, decoder_of(model))
        self._device = self.decoder.table.device
        self._room = self.decoder.room(room)
        self._samplers, self._ends = Samplers(model.sampler), ends_of(model)
        self._invariant, self._at_a_time = batch_invariant, at_a_time
        dtype = steps.cache_dtype(self.decoder, cache_dtype)
        pages = pages_for(self.decoder, rows, self._room, dtype) if pages is None else pages
        self._pages = Pages(pages)
        with tf.device(self._device):
            self._cache = steps.Cache(self.decoder, pages, PAGE, dtype)
        self._sender = Sender(self._device, Rows.bytes(rows, self._room) + 8 * 4 * CHUNK)  # of all rows, or of a chunk
        step = functools.partial(steps.step, self.decoder, self._cache, invariant=batch_invariant)
        self._rows = Rows(rows, self._room, at_a_time, self._sender, step)
        self._requests, self._waiting, self._next, self._prompts = {}, collections.deque(), 0, {}
        self._receiver, self._under_way, self._hands_out = Receiver(), collections.deque(), False

    # ---- requests ----

    def add(self, prompt, max_new_tokens, sampler=None, stop_token_ids=None, on_token=None, seed=None):
        """Has a prompt, a list of ids, continued; returns the request's number. The class says what the arguments are. Raises
        ValueError for a request that can never run."""
        if isinstance(prompt, (str, bytes)) or np.ndim(prompt) != 1:
            raise ValueError("tfuse.generate: a prompt is a list of token ids, got %r" % (prompt,))
        prompt = [int(token) for token in prompt]
        limit = len(prompt) + int(max_new_tokens)
        if not prompt or max_new_tokens < 1:
            raise ValueError("tfuse.generate: a request needs a prompt of at least one token, and at least one new token; got %d and %d" % (
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
        number, sampler = self._next, self._samplers.find(sampler)
        settings, stops = settings_of(sampler), frozenset(stops_in(stop_token_ids, self._ends))
        seed = self._samplers.seed(sampler, number) if seed is None else (int(seed) + 2**63) % 2**64 - 2**63
        request = Request(number, prompt, names_of(prompt), int(max_new_tokens), settings, stops, seed, on_token)
        self._next += 1
        self._requests[number] = request
        self._waiting.append(request)
        return number

    def _request(self, number):
        if number not in self._requests:
            raise ValueError("tfuse.generate: there is no request %r: add() has not returned that number, or result() has "
                             "forgotten it" % (number,))
        return self._requests[number]

    def cancel(self, number):
        """Ends a request as it is."""
        request = self._request(number)
        if request in self._waiting:
            self._waiting.remove(request)
        self._end(request)

    def result(self, number):
        """The new tokens of a request that has ended, which is then forgotten. Raises what its on_token has raised."""
        if not self._request(number).ended:
            raise ValueError("tfuse.generate: request %d has not ended: step() until has_ended(%d), or cancel(%d)" % (
                number, number, number))
        request = self._requests.pop(number)
        if request.error is not None:
            raise request.error
        return request.tokens

    def has_ended(self, number):
        return self._request(number).ended

    def busy(self):
        """Whether there are requests that have not ended."""
        return bool(self._waiting) or any(self._rows.requests) or any(
            not request.ended for _, members in self._under_way for request, *_ in members)

    def _leave(self, request):
        """Its row and its pages are free for those who come after what is queued."""
        self._rows.leave(request)
        pages, request.pages = request.pages, []
        self._pages.leave(pages)

    def _end(self, request):
        self._leave(request)
        request.ended = True

    # ---- steps ----

    def step(self):
        """Requests join, some read a part of their prompts, and some steps are queued, each of which gives a token to each
        request that has read its own; then the tokens of the steps before are handed out. Not to be called by on_token."""
        if self._hands_out:
            raise RuntimeError("tfuse.generate: step() was called by an on_token, whose tokens are being handed out")
        self._hand_out(1 if self._at_a_time > 1 else 0)  # what is left where the last call was interrupted
        with tf.device(self._device):
            for request in [r for r in self._running() if r.queued == r.new]:
                self._leave(request)
            while self._waiting and self._admit(self._waiting[0]):
                self._waiting.popleft()
            self._read_some()
            ready = [r for r in self._running() if not r.reads]
            if ready:
                self._queue(ready)
        self._hand_out(1 if ready and self._at_a_time > 1 else 0)

    def _running(self):
        return [request for request in self._rows.requests if request is not None]

    def _queue(self, ready):
        """Steps for these requests, and a copy of their tokens to here."""
        group = self._rows.put()
        most = min(WATCHED, self._at_a_time) if any(r.on_token for r in ready) else self._at_a_time
        if any(r.reads for r in self._running()):
            most = 1
        n = min(most, group.last.shape[1], max(r.new - r.queued for r in ready))
        asked = self._receiver.ask(group.run(n))
        members = []
        for request in ready:
            given = min(n, request.new - request.queued)
            members.append((request, request.row, request.queued, given))
            request.queued += given
        self._rows.advance(n)
        self._under_way.append((asked, members))

    def _hand_out(self, but):
        """Tokens of all steps under way but so many of the last, in the order in which they came. Waiting may be interrupted, and
        so may an on_token: steps are forgotten when all their tokens were handed out, and none is handed out twice."""
        while len(self._under_way) > but:
            asked, members = self._under_way[0]
            tokens = [] if all(r.ended for r, *_ in members) else self._receiver.read(asked)[:, :, 0].tolist()
            try:
                self._hands_out = True
                for i in range(max(given for *_, given in members)):
                    for request, row, first, given in members:
                        if i < given and not request.ended:
                            self._grown(request, first + i, tokens[row][i - given])
            finally:
                self._hands_out = False
            self._under_way.popleft()

    def _grown(self, request, i, token):
        """Hands out a request's token of number i, as far as that has not been done."""
        if len(request.tokens) == i:
            request.tokens.append(token)
        if request.told == i:
            request.told += 1  # before the call: what it raises does not have it called again
            try:
                if request.on_token is not None:
                    request.on_token(request.number, token)
            except Exception as error:  # it ends this request, and no other
                request.error = error
        if not request.ended and (request.error is not None or i + 1 == request.new or token in request.stops):
            self._end(request)

    # ---- prompts ----

    def _admit(self, request):
        """Gives a request a row and its pages, if there are any."""
        if all(self._rows.requests):
            return False
        shared = []
        for name in request.names:
            page = self._pages.find(name)
            if page is None:
                break
            shared.append(page)
        own = -(-(len(request.prompt) + request.new) // PAGE) - len(shared)
        if own > self._pages.available() - sum(page in self._pages.unused for page in shared):
            return False
        for page in shared:
            self._pages.use(page)
        request.pages = shared + [self._pages.take() for _ in range(own)]
        request.ready = len(shared) * PAGE
        self._rows.give(request)
        if not request.reads:
            self._rows.start(request)
        return True

    def _read_some(self):
        """Some chunks of words before a step: the more, the more requests read, against those that wait for the step."""
        running = self._running()
        reading = [r for r in running if r.reads]
        left = CHUNK * min(CHUNKS, max(1, CHUNKS * len(reading) // max(1, len(running) - len(reading))))
        for request in reading:
            self._share(request)
            while left > 0 and request.reads:
                left -= self._read(request)
                self._share(request)
            if not request.reads:
                self._rows.start(request)

    def _share(self, request):
        """Takes pages that others have read by now for the next ones of its own. That may only be queued: it is so before what
        is queued here."""
        for i in range(request.ready // PAGE, len(request.names)):
            page = self._pages.find(request.names[i])
            if page is None:
                return
            self._pages.use(page)
            self._pages.leave([request.pages[i]])
            request.pages[i] = page
            request.ready += PAGE

    def _read(self, request):
        """Puts some tokens of a prompt into the cache; returns how many there was room for."""
        begin, end = request.ready, min(request.ready + CHUNK, len(request.prompt) - 1)
        n = next(size for size in SIZES if size >= end - begin)
        at = np.arange(end - begin) + begin
        words, places, positions = np.zeros([1, n], np.int64), np.full([1, n], -1), np.zeros([1, n], np.int64)
        words[0, n - len(at):], positions[0, n - len(at):] = request.prompt[begin:end], at
        places[0, n - len(at):] = np.array(request.pages)[at // PAGE] * PAGE + at % PAGE
        values = {"words": words, "places": places, "positions": positions,
                  "table": self._rows.table(request), "lengths": np.array([end])}
        if n not in self._prompts:
            tensors = steps.Tensors(**{name: tf.zeros(np.shape(value), tf.int64) for name, value in values.items()})
            self._prompts[n] = tensors, steps.prompt(self.decoder, self._cache, **vars(tensors), invariant=self._invariant)
        tensors, chain = self._prompts[n]
        steps.write(tensors, self._sender.send, **values)
        chain.run()
        request.ready = end
        for i in range(begin // PAGE, end // PAGE):
            self._pages.name(request.pages[i], request.names[i])
        return n
