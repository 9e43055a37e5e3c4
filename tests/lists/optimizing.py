"""What tests of optimizers share: every rule and option, made and trained by Keras's library and by ours."""

import collections
import contextlib
import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import FULL, since_now, skip_broken_xla
from tfuse._keras import _enable
from tfuse.lists import together

STEPS = 50
SHAPES = [(3, 5), (7,), (), (64, 33), (1,), (300, 100)]
RULES = {
    "adam": ("Adam", {}), "amsgrad": ("Adam", {"amsgrad": True}), "adamw": ("AdamW", {}), "lamb": ("Lamb", {}),
    "lion": ("Lion", {}), "sgd": ("SGD", {}), "momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
}
OPTIONS = {
    "plain": {}, "decay": {"weight_decay": 0.01}, "clipnorm": {"clipnorm": 1.0}, "clipvalue": {"clipvalue": 0.5},
    "global_clipnorm": {"global_clipnorm": 1.0, "weight_decay": 0.1},
    "numbers": {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3, "momentum": 0.6},
    "ema": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 7},
    "ema apart": {"use_ema": True, "ema_momentum": 0.9},
    "accumulation": {"gradient_accumulation_steps": 3, "global_clipnorm": 1.0},
    "loss scale": {"loss_scale_factor": 8.0},
    "schedule": {"learning_rate": keras.optimizers.schedules.ExponentialDecay(1e-2, 10, 0.9)},
}


def make(library, rule, **options):
    """Of OPTIONS["numbers"], those that the rule has."""
    name, own = RULES[rule]
    if not hasattr(library, name):
        pytest.skip("this Keras has no " + name)
    kind = getattr(library, name)
    taken = [*inspect.signature(kind).parameters, *(set(options) - set(OPTIONS["numbers"]))]
    return kind(**{**own, **{name: value for name, value in options.items() if name in taken}})


def variables(shapes=SHAPES, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    return [keras.Variable(rng.normal(size=s).astype("float32"), dtype=dtype, name="v%d" % i) for i, s in enumerate(shapes)]


def gradients(step, shapes=SHAPES, dtype="float32"):
    return list(_gradients(step, tuple(map(tuple, shapes)), dtype, tf.zeros([]).device))


@functools.lru_cache(None)
def _gradients(step, shapes, dtype, device):
    rng = np.random.default_rng(1000 + step)
    return [tf.cast(tf.constant((3 * rng.normal(size=s)).astype("float32")), dtype) for s in shapes]


def explained():
    """A function that gives what was decided and what ran since, as two lists."""
    told = since_now()
    return lambda: ([row for row in told() if row["when"] != "ran"], told(when="ran"))


@contextlib.contextmanager
def all_together(library=tfuse.optimizers):
    """Fails where a step inside is Keras's own, or none is ours; for Keras's library, where one is ours."""
    since = explained()
    yield
    decided, ran = since()
    assert not [row for row in decided if row["route"] == "Keras's own step"]
    assert any(row["op"] == "TensorsUpdate" for row in decided + ran) == (library is tfuse.optimizers)


def library_of(optimizer):
    """Whose step it takes: while tfuse is enabled, ours."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    ours = together.is_made_here(inner) or _enable.is_on() and type(inner) in together.RULES
    return tfuse.optimizers if ours else keras.optimizers


def train(optimizer, weights, first=0, steps=STEPS, route="graph", dtype="float32", shapes=SHAPES, bad=()):
    """`bad`: steps whose last gradient is not finite."""
    if route == "xla":
        skip_broken_xla()
    step = lambda *g: optimizer.apply([optimizer.scale_loss(x) for x in g], weights)
    if route != "eager":
        step = tf.function(step, autograph=False, jit_compile=route == "xla")
    with all_together(library_of(optimizer)) if not together.why_not(optimizer) else contextlib.nullcontext():
        for t in range(first, first + steps):
            *most, last = gradients(t, shapes, dtype)
            step(*most, last * np.inf if t in bad else last)
    return [np.asarray(tf.cast(v, tf.float64)) for v in [*weights, *optimizer.variables]]


def graph_ops(step, *arguments):
    """How often each type of op is in a function, with those it calls."""
    graph = tf.function(step, autograph=False).get_concrete_function(*arguments).graph.as_graph_def()
    return collections.Counter(n.op for nodes in [graph.node, *(f.node_def for f in graph.library.function)] for n in nodes)


def errors(got, want):
    """Largest differences, relative to the largest values, of all that have values."""
    assert len(got) == len(want)
    return [float(np.max(np.abs(g - w)) / max(np.max(np.abs(w)), 1e-30)) for g, w in zip(got, want) if np.size(w)]


def largest_error(got, want):
    return max(errors(got, want))


def trained(library, rule, options, dtype="float32", scaled=None, **how):
    """`scaled`: arguments of a LossScaleOptimizer around it."""
    optimizer, weights = make(library, rule, **options), variables(dtype=dtype)
    if options.get("weight_decay"):
        optimizer.exclude_from_weight_decay(var_names=["v1"])
    if scaled:
        optimizer = library.LossScaleOptimizer(optimizer, **scaled)
    optimizer.build(weights)
    return train(optimizer, weights, dtype=dtype, **how)


_KERAS = {}  # what Keras's own library trains, the same for each of our routes


def check_like_keras(rule, options, route="graph", **how):
    """Within 1e-6. A momentum of one value may cancel to next to nothing, and Keras's own, clipped by a norm in float32, is
    then further off: there no more than twice as far from float64 as Keras is."""
    same = repr((rule, options, how, tf.zeros([]).device))
    if same not in _KERAS:
        _KERAS[same] = trained(keras.optimizers, rule, options, **how)
    want, got = _KERAS[same], trained(tfuse.optimizers, rule, options, route=route, **how)
    if largest_error(got, want) >= 1e-6:
        exact = trained(keras.optimizers, rule, options, dtype="float64", **how)
        off = zip(errors(got, want), errors(got, exact), errors(want, exact))
        assert all(e < 1e-6 or ours <= 2 * theirs for e, ours, theirs in off)


def move(first, second, weights, moved, way, folder):
    """The state of the first optimizer to the second, and the weights."""
    second.build(moved)
    if way == "checkpoint":
        path = tf.train.Checkpoint(optimizer=first).save(str(folder / "c"))
        tf.train.Checkpoint(optimizer=second).restore(path).assert_existing_objects_matched()
    else:
        store = {}
        first.save_own_variables(store)
        second.load_own_variables(store)
    for a, b in zip(weights, moved):
        b.assign(a.value)


def model(seed=0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input([16]), keras.layers.Dense(32, activation="tanh"), keras.layers.LayerNormalization(),
                             keras.layers.Dense(4)])


def on_others(options):
    """(rule, option, route) for the routes beside a graph. Without --config=full, every other: each rule is met with both routes
    and each option with both, but not every pair of them."""
    return [(rule, option, route) for i, rule in enumerate(RULES) for j, option in enumerate(options)
            for k, route in enumerate(("eager", "xla")) if FULL or (i + j + k) % 2 == 0]


def data(n=256):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, 16)).astype("float32")
    return x, x[:, :4] * 2 - x[:, 4:8]
