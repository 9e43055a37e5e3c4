"""A request of an engine: what it asks for and how far it is; the names of its pages, and where its random numbers begin."""

import dataclasses
import hashlib
import typing
import weakref

import numpy as np

from tfuse.generation.arguments import sampler_of
from tfuse.generation.batch import seeds_of
from tfuse.generation.steps import PAGE


@dataclasses.dataclass(eq=False)
class Request:
    number: int
    prompt: list
    names: list  # of the pages that the prompt fills
    new: int  # tokens that it asks for
    settings: dict
    stops: frozenset
    seed: int
    on_token: typing.Optional[typing.Callable]
    tokens: list = dataclasses.field(default_factory=list)  # new ones
    told: int = 0  # new ones for which on_token was called, or would have been
    queued: int = 0  # new ones that the steps give which are queued by now
    pages: list = dataclasses.field(default_factory=list)
    row: int = -1  # of the batch; -1: it waits, or its last steps are queued
    ready: int = 0  # words of the prompt whose keys and values are in the cache
    error: typing.Optional[Exception] = None
    ended: bool = False

    @property
    def reads(self):
        return self.ready < len(self.prompt) - 1


def names_of(prompt):
    """Of the pages that a prompt fills: digests of a page's words and the name before it, so of all words up to there."""
    ids, names = np.array(prompt, np.int32), [b""]
    for end in range(PAGE, len(prompt), PAGE):
        names.append(hashlib.sha256(names[-1] + ids[end - PAGE:end].tobytes()).digest())
    return names[1:]


class Samplers:
    """The samplers of requests, and a seed of each. It is asked for once: the state of a sampler's generator of seeds may be on
    a GPU, where reading it waits for all that is queued."""

    def __init__(self, own):
        self._own, self._named, self._seeds = own, {}, weakref.WeakKeyDictionary()

    def find(self, given):
        """A sampler, of what sampler_of() takes; of a name always the same one."""
        if not isinstance(given, str):
            return sampler_of(self._own, given)
        if given not in self._named:
            self._named[given] = sampler_of(None, given)
        return self._named[given]

    def seed(self, sampler, number):
        """The seed of a request with this number."""
        if sampler not in self._seeds:
            self._seeds[sampler] = seeds_of(sampler, 1)
        return int((self._seeds[sampler] + number)[0])
