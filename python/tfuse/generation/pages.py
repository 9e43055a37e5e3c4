"""Pages of keys and values: how many there can be, which of them are free, and which have what."""

import collections
import os

import tensorflow as tf

from tfuse._tools import _driver
from tfuse.generation.steps import PAGE


class Pages:
    """Which pages are free, and which have the beginning of a prompt that another may have, too."""

    def __init__(self, n):
        self.free, self.users, self.known, self.names = list(range(n))[::-1], collections.Counter(), {}, {}
        self.unused = collections.OrderedDict()  # pages with a name and no user, the one that was used last at the end

    def available(self):
        return len(self.free) + len(self.unused)

    def find(self, name):
        """The page with these words, and those before it; or None."""
        return self.known.get(name)

    def use(self, page):
        self.users[page] += 1
        self.unused.pop(page, None)

    def take(self):
        """A page for words of one's own."""
        if not self.free:
            page, _ = self.unused.popitem(last=False)
            del self.known[self.names.pop(page)]
            self.free.append(page)
        page = self.free.pop()
        self.users[page] = 1
        return page

    def name(self, page, name):
        """Says what a page has, once it has it."""
        if name not in self.known and page not in self.names:
            self.known[name], self.names[page] = page, name

    def leave(self, pages):
        """A sequence's pages, which it has no more. Those at its end are taken by others first: without the beginning, what
        comes after it is of no use."""
        for page in reversed(pages):
            self._leave(page)

    def _leave(self, page):
        self.users[page] -= 1
        if self.users[page]:
            return
        del self.users[page]
        if page in self.names:
            self.unused[page] = None
        else:
            self.free.append(page)


def pages_for(decoder, rows, room, dtype):
    """How many pages so many requests of so many tokens have; at most as many as half of the free memory holds, but for one.
    `dtype` is that of keys and values."""
    of_one = -(-room // PAGE)
    elements = sum(2 * PAGE * block.attention.shared_heads * block.attention.head_dim for block in decoder.blocks)
    return max(of_one, min(rows * of_one, _free(decoder.table.device) // 2 // (elements * dtype.size)))


def _free(device):
    """Bytes of memory that are free there: of a GPU's whole memory, what this process has not given to tensors. It does not see
    other processes, nor limits that TensorFlow was given."""
    if "GPU" not in device:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    there = min(gpu.memory for gpu in _driver.Driver.find().devices())
    return there - tf.config.experimental.get_memory_info(device[device.index("GPU"):])["current"]
