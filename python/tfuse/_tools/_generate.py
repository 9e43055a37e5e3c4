"""python -m tfuse generate MODEL --prompt TEXT: continues a text with a saved model, and says how fast that was."""

import argparse
import pathlib
import queue
import sys
import threading
import time

import keras
import tensorflow as tf

from tfuse._tools import _files, _numbers
from tfuse.generation.arguments import ids_of, text_of
from tfuse.generation.decoders import Experts, all_of
from tfuse.generation.generate import engine_of

SAMPLERS = ("greedy", "random", "top_k", "top_p")
WARM_UP = 8  # tokens, or some more: on a GPU the first steps choose kernels and capture them

HELP = """Continues a text with a language model of KerasHub. It prints the new text as it comes, and then, on stderr, how
many tokens a second that was. On a GPU it also says how near that is to the memory's rate: each token has to
read all weights, and a copy shows how fast the GPU reads. The first %d tokens, for which kernels are chosen, do not count.

MODEL is a file that model.save("model.keras") has written, or a folder that model.save_to_preset(folder) has.""" % WARM_UP
EXAMPLES = """examples:
  python -m tfuse generate ./llama --prompt "The capital of France is"
  python -m tfuse generate ./llama --prompt "Once upon a time" --max-new-tokens 256 --sampler top_p --dtype bfloat16
  python -m tfuse generate model.keras --ids 5,17,3          # a model without a preprocessor: ids in, ids out"""


def load(where, dtype):
    """The model, or a SystemExit that says what is wrong."""
    try:
        import keras_hub
    except ImportError as error:
        raise SystemExit("KerasHub is not installed, and the models are of it: pip install keras-hub (%s)" % error)
    path = pathlib.Path(where)
    if not path.exists():
        raise SystemExit("there is no %s: a .keras file or the folder of a preset is wanted" % where)
    if dtype and not path.is_dir():
        raise SystemExit("--dtype is for the folder of a preset: a .keras file has a dtype of its own")
    preset = lambda path: keras_hub.models.CausalLM.from_preset(str(path), **({"dtype": dtype} if dtype else {}))
    return _files.loaded(path, preset if path.is_dir() else keras.saving.load_model)


class Printer(threading.Thread):
    """Prints tokens while others are computed."""

    def __init__(self, show):
        super().__init__(daemon=True)
        self._show, self._queue, self._tokens, self._shown, self.count = show, queue.Queue(), [], 0, 0
        self.start()

    def put(self, number, token):
        self.count += 1
        self._queue.put(token)

    def close(self):
        self._queue.put(None)
        self.join()

    def run(self):
        more = True
        while more:
            new = [self._queue.get()]
            while not self._queue.empty():
                new.append(self._queue.get())
            more = new[-1] is not None
            self._tokens += [token for token in new if token is not None]
            text = self._show(self._tokens) if self._tokens else ""
            whole = text.rstrip("\ufffd") if more else text  # of a character that takes several tokens the first may be there
            print(whole[self._shown:], end="", flush=True)
            self._shown = max(self._shown, len(whole))


def timed(engine, count):
    """Runs an engine to its end: seconds until each step was done, and how many tokens there were then, by count()."""
    start, ends = time.perf_counter(), []
    while engine.busy():
        engine.step()
        ends.append((time.perf_counter() - start, count()))
    return ends


def summary(ends, weight_bytes, copy_speed):
    """What is said of a run: when there were how many tokens, the weights' bytes, and bytes a second, 0 if not known."""
    last, tokens = ends[-1]
    lines = ["%d tokens, the first after %.2f s" % (tokens, next(seconds for seconds, n in ends if n))]
    begin, before = next(((seconds, n) for seconds, n in ends if n >= WARM_UP), ends[-1])
    if tokens > before:
        rate = (tokens - before) / (last - begin)
        lines.append("%.1f tokens a second" % rate)
        if copy_speed:
            lines.append("%.0f%% of the memory's rate: each reads %.2f GB of weights, and the GPU copies %.0f GB/s" % (
                100 * rate * weight_bytes / copy_speed, weight_bytes / 1e9, copy_speed / 1e9))
    return "; ".join(lines)


def weight_bytes(decoder):
    """Bytes that a token reads: all weights, but for tables of which it reads a row, and for experts that it does not have."""
    bytes_of = lambda t: t.dtype.size * t.shape.num_elements()
    rows = [id(decoder.positions)] if decoder.head is None else [id(decoder.positions), id(decoder.table)]
    mixtures = [block.mlp for block in decoder.blocks if isinstance(block.mlp, Experts)]
    kernels = [(t, e.top_k) for e in mixtures for t in (e.gate, e.up, e.down) if t is not None]
    unread = sum(bytes_of(t) // t.shape[0] * (t.shape[0] - top_k) for t, top_k in kernels)
    return sum(bytes_of(t) for t in all_of(decoder, tf.Tensor) if id(t) not in rows) - unread


def _ids(text):
    return [_numbers.not_negative(part) for part in text.split(",")]


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse generate", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=HELP, epilog=EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a .keras file, or the folder of a preset")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--prompt", metavar="TEXT", help="what is continued")
    given.add_argument("--ids", type=_ids, metavar="ID,ID,…", help="the same as token ids, for a model that has no preprocessor")
    parser.add_argument("--max-new-tokens", type=_numbers.positive, default=128, metavar="N", help="how many at most (%(default)s)")
    parser.add_argument("--sampler", choices=SAMPLERS, help="how a token is drawn; the model's own if not given")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="what a preset is loaded in")
    chosen = parser.parse_args(arguments)
    model = load(chosen.model, chosen.dtype)
    try:
        prompt = chosen.prompt if chosen.ids is None else chosen.ids
        ids, = ids_of(model, [prompt])
        engine = engine_of(model, rows=1, room=len(ids) + max(chosen.max_new_tokens, 1))
        text = lambda tokens: text_of(model, tokens) if chosen.ids is None else " ".join(map(str, tokens))
        printer = Printer(text)
        number = engine.add(ids, chosen.max_new_tokens, chosen.sampler, "auto", printer.put)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    ends = timed(engine, lambda: printer.count)
    printer.close()
    print()
    speed = 0
    if "GPU" in engine.decoder.table.device:
        from tfuse._tools import _driver

        speed = _driver.GpuClock().copy_speed(1 << 28)
    engine.result(number)
    print(summary(ends, weight_bytes(engine.decoder), speed), file=sys.stderr)
    return 0
