"""With batch_invariant, what a request computes is the same to the bit, whatever other requests there are."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from generating import model
from tfuse._core._chain import Chain
from tfuse.generation import steps
from tfuse.generation.engine import Engine

COMMON = np.random.default_rng(5).integers(1, 97, size=130).tolist()
MINE = [[7], COMMON[:70], COMMON + [3, 4, 5], COMMON[:40] + COMMON]  # the second is the beginning of the third
NEW = 5
WIDE = {"hidden_dim": 256, "intermediate_dim": 1024, "num_layers": 1}  # on a GPU, blocks share the rows of its kernels
MODELS = {"Llama": {}, "Mistral": WIDE, "Qwen3": {}, "Gemma": {}, "GPT2": {"max_sequence_length": 400},
          "QwenMoe": {"num_layers": 2}}


@pytest.fixture
def logits(monkeypatch):
    """Those of the last step of an engine, the last that was made."""
    seen, of_decoder = {}, steps._Writer.logits

    def kept(self, decoder, *x):
        y = of_decoder(self, decoder, *x)
        seen[self.batch] = tf.zeros([self.batch, decoder.table.shape[0]], decoder.table.dtype)
        self.chain.call("scale_bias_act", y, None, None, into=[self.chain.input(seen[self.batch])])
        return y

    monkeypatch.setattr(steps._Writer, "logits", kept)
    return lambda engine: bits(seen[engine._rows.size])


def bits(tensor):
    return tf.bitcast(tensor + 0, {4: tf.int32, 2: tf.int16}[tensor.dtype.size]).numpy()


def found(engine, logits, others=0):
    """Of each of MINE, which join one by one, among others that come and go: logits of each step, keys and values, tokens."""
    rng, seen, numbers = np.random.default_rng(others), {}, {}

    def look(number, token):
        request = engine._requests[number]
        seen.setdefault(number, []).append(logits(engine)[request.row])
        if len(request.tokens) == NEW:
            at = np.arange(len(request.prompt) + NEW - 1)
            places = np.array(request.pages)[at // steps.PAGE], at % steps.PAGE
            seen[number] += [bits(tensor)[places] for layer in engine._cache.layers for tensor in layer]

    waiting = list(range(len(MINE)))
    while waiting or engine.busy():
        for _ in range(min(others, rng.integers(0, 4))):
            prompt = COMMON[:rng.integers(1, 130)] if rng.random() < 0.3 else rng.integers(1, 97, rng.integers(1, 180)).tolist()
            engine.add(prompt, int(rng.integers(1, 8)))
            others -= 1
        if waiting and (not others or rng.random() < 0.5):
            i = waiting.pop(rng.integers(len(waiting)))
            numbers[i] = engine.add(MINE[i], NEW, on_token=look)
        engine.step()
    return [(seen[numbers[i]], engine.result(numbers[i])) for i in range(len(MINE))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", MODELS)
def test_others_change_no_bit(logits, family, dtype):
    """Alone, each in a row of its own, among others that run and read their prompts at the same time, more than a launch of
    products takes, and with other room."""
    lm = model(family, dtype=dtype, **MODELS[family])
    lm.compile(sampler="greedy", jit_compile=False)
    made = lambda rows, room: Engine(lm, rows=rows, room=room, batch_invariant=True, at_a_time=1)
    alone = found(made(1, 200), logits)
    assert all(len(tokens) == NEW for _, tokens in alone)
    for rows, room, others in ((3, 200, 0), (9, 256, 20), (70, 320, 100)):
        for mine, (values, tokens) in zip(alone, found(made(rows, room), logits, others)):
            assert tokens == mine[1] and len(values) == len(mine[0])
            for a, b in zip(mine[0], values):
                np.testing.assert_array_equal(a, b)


def run(widths, stem, x, *more, **attributes):
    """What an op of an invariant chain gives: outputs of x's rows, so many elements wide."""
    chain, found = Chain(invariant=True), [tf.zeros([x.shape[0], width], x.dtype) for width in widths]
    read = lambda tensor: None if tensor is None else chain.input(tensor)
    chain.call(stem, read(x), *map(read, more), into=list(map(chain.input, found)), **attributes)
    chain.run()
    return [bits(y) for y in found]


def calls(width, inner, dtype):
    """By name: functions of x, [rows, width]."""
    rng = np.random.default_rng(1)
    weight = lambda *shape, dtype=dtype: tf.cast(tf.constant(rng.normal(size=shape) / 16), dtype)
    up, other, back, deep = weight(width, inner), weight(width, inner), weight(inner, width), weight(32 * width, 64)
    bias, gamma, wide = weight(width), 1 + weight(width, dtype="float32"), 1 + weight(128 * width, dtype="float32")
    def mixture(x):
        """Of rows that name experts, 8 each, by what they are: on a GPU more than a launch takes."""
        numbers, inside = tf.cast(tf.argsort(x[:, :9], -1)[:, :8], tf.int64), inner // 8
        kernels = weight(9, width, 2 * inside), None, weight(9, inside, width)
        return run([width], "experts", x, tf.abs(x[:, :8]), numbers, *kernels, None, activation="silu")

    return {
        "experts": mixture,
        "routes": lambda x: run([8], "route_experts", x[:, :20] + 0, top_k=8, normalized=False),
        "activation": lambda x: run([inner], "linear", x, up, None, None, None, activation="gelu"),
        "residual": lambda x: run([width], "linear", tf.tile(x, [1, 2])[:, :inner], back, bias, x, None),
        "long sum": lambda x: run([64], "linear", tf.tile(x, [1, 32]), deep, None, None, None),
        "three": lambda x: run([inner, inner, 64], "projections", x, gamma, up, other, weight(width, 64), *[None] * 4),
        "gated": lambda x: run([inner], "projections", x, gamma, up, other, *[None] * 5, activation="silu", gated=True),
        "head": lambda x: run([inner], "batched_matmul", x, tf.transpose(up), None, None, tf.ones([1], dtype)),
        "rms": lambda x: run([width], "norm", x, None, gamma, None, None, kind="rms"),
        "wide": lambda x: run([128 * width], "norm", tf.tile(x, [1, 128]), None, wide, None, None, kind="rms"),
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("width, inner", [(256, 512), (72, 97)], ids=["whole", "odd"])
@pytest.mark.parametrize("name", calls(8, 8, "float32"))
def test_a_row_among_others(name, width, inner, dtype):
    """It is what it is alone, in groups of any size: on a GPU a launch of products takes 64 rows."""
    x = tf.cast(tf.constant(np.random.default_rng(2).normal(size=[150, width])), dtype)
    of_some = lambda begin, end: calls(width, inner, dtype)[name](x[begin:end] + 0)
    together = of_some(0, 150)
    assert all(len(np.unique(y, axis=0)) == 150 for y in together)
    for begin, end in ((0, 1), (63, 64), (64, 65), (149, 150), (3, 20), (60, 100), (80, 150)):
        for whole, some in zip(together, of_some(begin, end)):
            np.testing.assert_array_equal(some, whole[begin:end])


def test_generate_is_the_engine(monkeypatch):
    made, chain = [], steps.Chain
    monkeypatch.setattr(steps, "Chain", lambda invariant=False: made.append(invariant) or chain(invariant))
    for asked in (True, False):
        made.clear()
        tfuse.generate(model("Llama"), [[1, 2], COMMON], 2, sampler="greedy", batch_invariant=asked)
        assert made.count(True) == 3 * asked  # prompts of two sizes, and steps; other chains write numbers
