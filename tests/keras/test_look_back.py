"""Activations, gates and norms that tfuse.enable() joins with what came before, while a function is traced: results are Keras's,
and what was joined is not run on its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from enabling import RNG, close, layer, left_as_it_was, normal, ran, start
from looking_back import DENSE, joined, needed, results, runs, X
from tfuse._core import _library

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")

UP = layer(lambda: keras.layers.Dense(16), None, 5, 16)
NORMS = [layer(keras.layers.LayerNormalization, None, 5, width) for width in (8, 8, 8, 16)]

# ---- activations ----

TRANSPOSED = layer(lambda: keras.layers.EinsumDense("abc,cde->abde", (None, 2, 4), bias_axes="de"), None, 5, 8)
LAMBDA = layer(lambda: keras.layers.Dense(16, activation=lambda x: keras.activations.gelu(x, approximate=True)), None, 5, 8)
MATRIX = keras.Variable(normal(8, 16), name="matrix")
ACTIVATED = {
    "gelu": (DENSE, lambda x: keras.activations.gelu(DENSE(x)), "gelu of a product"),
    "layer": (DENSE, lambda x: keras.layers.Activation("silu")(DENSE(x)), "silu of a product"),
    "relu": (DENSE, lambda x: keras.ops.relu(DENSE(x)), "relu of a product"),
    "lambda": (LAMBDA, LAMBDA, "gelu_tanh of a product"),
    "mish": (DENSE, lambda x: keras.activations.mish(DENSE(x)), "mish of a product"),
    "softplus": (DENSE, lambda x: keras.ops.softplus(DENSE(x)), "softplus of a product"),
    "hard_silu": (DENSE, lambda x: keras.ops.hard_silu(DENSE(x)), "hard_swish of a product"),
    "EinsumDense": (TRANSPOSED, lambda x: keras.ops.gelu(TRANSPOSED(x)), "gelu_tanh of a product"),
    "reshaped": (DENSE, lambda x: keras.ops.silu(keras.ops.reshape(DENSE(x), (-1, 4))), "silu of a product"),
    "matmul": (None, lambda x: keras.ops.silu(keras.ops.matmul(x, MATRIX)), "silu of a product"),
}


@pytest.mark.parametrize("name", ACTIVATED)
def test_activation_of_a_product(jit, name):
    made_by, f, why = ACTIVATED[name]
    weights = [MATRIX.value] if made_by is None else [w.value for w in made_by.trainable_weights]
    want = results(f, X, weights, jit)
    start()
    with tfuse.enabled():
        got = results(f, X, weights, jit)
    assert joined() == [why]
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)
    if not (jit and _library.xla_status()):
        assert len(runs("Linear")) == 1 and "ScaleBiasAct" not in ran()


@pytest.mark.parametrize("f", [
    lambda x: keras.ops.gelu(DENSE(x) * 2),
    lambda x: keras.ops.gelu(keras.ops.matmul(x, keras.ops.transpose(keras.ops.reshape(MATRIX, (16, 8))))),
    lambda x: keras.ops.gelu(keras.ops.cast(DENSE(x), "float64")),
    lambda x: keras.ops.silu(keras.ops.gelu(x)),
    lambda x: keras.ops.gelu(tf.matmul(x, MATRIX.value) + tf.ones([1])),
    lambda x: keras.ops.gelu(tf.nn.bias_add(tf.matmul(x, MATRIX.value[:, :5]), tf.range(5.0), "NC...")),
], ids=["something between", "a matrix that is transposed", "another dtype", "no product", "one number as a bias",
        "a bias of another axis"])
def test_what_is_not_joined(f):
    want = results(f, X, [], False)
    with tfuse.enabled():
        got = results(f, X, [], False)
    assert not joined()
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)


def test_who_has_read_the_product_keeps_it(jit):
    def before(x):
        y = DENSE(x)
        z = y + 1
        return keras.ops.gelu(y) + z

    def after(x):
        y = DENSE(x)
        return keras.ops.gelu(y) + y

    for f, times in (before, 0), (after, 1):
        want = results(f, X, [DENSE.kernel.value], jit)
        start()
        with tfuse.enabled():
            got = results(f, X, [DENSE.kernel.value], jit)
        assert len(joined()) == times
        for g, w in zip(got, want, strict=True):
            close(g, w, 1e-5)


def test_it_can_be_left_out():
    f = lambda x: keras.ops.gelu(DENSE(x))
    for on in (False, True):
        start()
        with tfuse.enabled(look_back=on):
            results(f, X, [], False)
            with tfuse.enabled(look_back=not on):
                pass
            tfuse.disable()  # which waits for the end of the block
            results(f, X, [], False)  # as the block that is left says
        assert len(joined()) == 2 * on


# ---- gradients by what was joined ----


def test_what_a_tape_watches_is_not_joined(jit):
    """Its gradient is found, as that of any tensor."""

    def f(x):
        parts = DENSE(x), keras.ops.silu(x), x + x[::-1]
        with tf.GradientTape() as tape:
            tape.watch(parts)
            a, b, c = parts
            y = [keras.ops.gelu(a), keras.ops.multiply(b, x), tf.sin(NORMS[0](c))]
        return tape.gradient(y, parts)

    run = lambda: tf.function(f, autograph=False, jit_compile=jit)(X)
    want = run()
    with tfuse.enabled():
        got = run()
    assert not joined()
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_a_tape_watches_is_not_read_before_its_cast(jit, dtype):
    """A gate of 16 bits whose activation is computed in float32, as KerasHub's decoders have it."""
    def f(x):
        x = tf.cast(x, dtype)
        with tf.GradientTape() as tape:
            wide = tf.cast(x, tf.float32)
            tape.watch(wide)
            y = keras.ops.multiply(x, keras.ops.cast(keras.ops.silu(wide), dtype))
        return tape.gradient(y, wide)

    run = lambda: tf.function(f, autograph=False, jit_compile=jit)(X)
    want = run()
    with tfuse.enabled():
        close(run(), want, 1e-2)


def test_a_sum_that_a_tape_watches_is_read_as_it_is(jit):
    """Also by who would else read the sum that an earlier norm has made of it."""
    def f(x):
        h = x + WIDE(x)
        y = NORMS[0](h)
        with tf.GradientTape() as tape:
            tape.watch(h)
            z = tf.sin(NORMS[1](h + x))
        return tf.concat([tape.gradient(z, h), y], -1)

    run = lambda: tf.function(f, autograph=False, jit_compile=jit)(X)
    want = run()
    with tfuse.enabled():
        close(run(), want, 1e-5)
    assert joined() == ["the norm of a sum"] * 2


@pytest.mark.parametrize("remat", [tf.recompute_grad, getattr(keras, "remat", None)], ids=["TensorFlow", "Keras"])
def test_what_is_computed_again_has_its_gradients(jit, remat):
    """A product that is made outside may be joined with what is inside; not so when it is computed again."""
    if remat is None:
        pytest.skip("this Keras has no remat")
    block = remat(lambda h: keras.ops.silu(UP(keras.ops.gelu(h))))
    f = lambda x: NORMS[3](block(DENSE(x)))
    weights = [w.value for made_by in (DENSE, UP) for w in made_by.trainable_weights]
    want = results(f, X, weights, jit)
    start()
    with tfuse.enabled():
        got = results(f, X, weights, jit)
    assert joined().count("silu of a product") == 2 and joined().count("gelu_tanh of a product") <= 1
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)


def test_loops_join_nothing_from_outside(jit):
    def f(x):
        h = DENSE(x)
        turn = lambda i, y: (i + 1, y + keras.ops.gelu(h))
        return tf.while_loop(lambda i, y: i < 3, turn, [0, tf.zeros_like(h)], maximum_iterations=3)[1]

    want = results(f, X, [DENSE.kernel.value], jit)
    with tfuse.enabled():
        got = results(f, X, [DENSE.kernel.value], jit)
    assert not joined()
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)


# ---- gates ----

OTHER = layer(lambda: keras.layers.Dense(16), None, 5, 8)
SILU = layer(lambda: keras.layers.Dense(16, activation="silu"), None, 5, 8)


def cast_between(x):
    """As KerasHub's decoders have it."""
    gate = keras.ops.cast(keras.ops.silu(keras.ops.cast(DENSE(x), "float32")), x.dtype)
    return keras.ops.multiply(OTHER(x), gate)


GATES = {
    "activation first": (lambda x: keras.ops.multiply(keras.ops.silu(DENSE(x)), OTHER(x)), "silu"),
    "activation last": (lambda x: keras.ops.multiply(OTHER(x), keras.ops.gelu(DENSE(x), False)), "gelu"),
    "in the layer": (lambda x: keras.ops.multiply(SILU(x), OTHER(x)), "silu"),
    "no product": (lambda x: keras.ops.multiply(keras.ops.silu(x[..., :4]), x[..., 4:]), "silu"),
}


@pytest.mark.parametrize("name", GATES)
def test_gates(jit, name):
    f, activation = GATES[name]
    weights = [w.value for made_by in (DENSE, OTHER, SILU) for w in made_by.trainable_weights]
    want = results(f, X, weights, jit)
    start()
    with tfuse.enabled():
        got = results(f, X, weights, jit)
    assert joined()[-1] == activation + " times another tensor"
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if g is not None:
            close(g, w, 1e-5)
    if not (jit and _library.xla_status()):
        assert len(runs("Gated")) == len(runs("GatedGrad")) == 1 and "ScaleBiasAct" not in ran()
        assert len(runs("Linear")) == (0 if name == "no product" else 2)


ALSO = layer(lambda: keras.layers.Dense(16), None, 5, 16)


def read_twice(x):
    gate = keras.ops.gelu(DENSE(x), False) * OTHER(x)
    return UP(gate) + ALSO(gate)


def square(x):
    y = keras.ops.silu(DENSE(x))
    return UP(y * y) + OTHER(x)


def read_before(x):
    y = keras.ops.silu(DENSE(x))
    return ALSO(y) + UP(y * OTHER(x))


READ = {  # what reads a gate, how many readers of it are products, and how many gates there are left
    "product": (lambda x: UP(keras.ops.silu(DENSE(x)) * OTHER(x)), 1, 1),
    "two products": (read_twice, 2, 1),
    "itself": (square, 1, 0),
    "read before": (read_before, 2, 0),
}


@pytest.mark.parametrize("name", READ)
def test_gates_that_python_writes(jit, name):
    """By *, which nobody sees: what reads the result finds them. It is made once, however many read it."""
    f, products, gates = READ[name]
    weights = [w.value for made_by in (DENSE, OTHER, UP, ALSO) for w in made_by.trainable_weights]
    want = results(f, 0.1 * X, weights, jit)
    start()
    with tfuse.enabled():
        got = results(f, 0.1 * X, weights, jit)
    assert sum("times another tensor" in why for why in joined()) == gates
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if g is not None:
            close(g, w, 1e-5)
    if not (jit and _library.xla_status()):
        assert len(runs("Gated")) == len(runs("GatedGrad")) == gates and len(runs("Linear")) == 2 + products


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gate_with_casts_between(jit, dtype):
    """silu is computed in float32 in any case, and rounded once."""
    exact = results(cast_between, X, [], False)
    policy = keras.dtype_policies.DTypePolicy("mixed_" + dtype)
    layers = [DENSE, OTHER]
    before = [made_by.dtype_policy for made_by in layers]
    try:
        for made_by in layers:
            made_by.dtype_policy = policy
        f = lambda x: tf.cast(cast_between(tf.cast(x, dtype)), tf.float32)
        want = results(f, X, [], jit)
        start()
        with tfuse.enabled():
            got = results(f, X, [], jit)
    finally:
        for made_by, policy in zip(layers, before):
            made_by.dtype_policy = policy
    assert joined() == ["silu times another tensor"]
    for g, w, e in zip(got, want, exact, strict=True):
        off = lambda a: np.abs(np.asarray(a) - np.asarray(e)).max()
        assert off(g) <= 2 * off(w)
    if not (jit and _library.xla_status()):
        assert "Gated" in ran() and "ScaleBiasAct" not in ran()


# ---- sums and norms ----

WIDE = layer(lambda: keras.layers.Dense(8), None, 5, 8)


def pre_norm(x):
    """As GPT-2 has it: two blocks, and a norm after them."""
    h = x + WIDE(NORMS[0](x))
    h = h + WIDE(NORMS[1](h))
    return NORMS[2](h)


def post_norm(x):
    """As BERT has it."""
    x = NORMS[0](x + WIDE(x))
    return NORMS[1](keras.layers.Add()([WIDE(x), x]))


def root_mean_square(x):
    h = x + WIDE(x)
    return keras.ops.rms_normalization(h, NORMS[0].gamma) + h


SUMS = {"pre": (pre_norm, 2, 0), "post": (post_norm, 2, 0), "rms, and the sum": (root_mean_square, 1, 1)}


@pytest.mark.parametrize("name", SUMS)
def test_norm_of_a_sum(jit, name):
    f, norms, alone = SUMS[name]
    if not hasattr(keras.ops, "rms_normalization") and name.startswith("rms"):
        pytest.skip("this Keras has no rms_normalization")
    weights = [w.value for made_by in (*NORMS[:3], WIDE) for w in made_by.trainable_weights]
    want = results(f, X, weights, jit)
    start()
    with tfuse.enabled():
        got = results(f, X, weights, jit)
        graph = tf.function(f, autograph=False).get_concrete_function(tf.TensorSpec([3, 5, 8])).graph
    assert joined().count("the norm of a sum") == 2 * norms
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if g is not None:
            close(g, w, 1e-5)
    assert len([op for op in needed(graph) if op.type == "AddV2"]) == 2 * alone


def dropping(kind):
    """A function of x with two layers of Dropout, which begin anew."""
    drop = [keras.layers.Dropout(0.3, seed=seed) for seed in (1, 2)]
    if kind == "gate":
        return lambda x: UP(drop[0](keras.ops.silu(DENSE(x)) * OTHER(x), training=True))

    def f(x):
        h = x + drop[0](WIDE(NORMS[0](x)), training=True)
        y = NORMS[1](h)
        if kind == "read before":
            dropped = drop[1](WIDE(y), training=True)
            return dropped * NORMS[2](dropped + h)
        return NORMS[2](drop[1](WIDE(y), training=True) + h)

    return f


@pytest.mark.parametrize("kind, sums", [("norms", 2), ("read before", 2), ("gate", 0)])
def test_norm_of_a_sum_with_dropout(jit, kind, sums):
    """The same elements are dropped as where nothing is joined."""
    weights = [w.value for made_by in (*NORMS[:3], WIDE, DENSE, OTHER, UP) for w in made_by.trainable_weights]
    with tfuse.enabled(look_back=False):
        want = results(dropping(kind), X, weights, jit)
    start()
    with tfuse.enabled():
        got = results(dropping(kind), X, weights, jit)
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if g is not None:
            close(g, w, 1e-5)
    assert joined().count("the norm of a sum with dropout") == sums
    if not (jit and _library.xla_status()):
        assert len(runs("Dropout")) == {"norms": 0, "read before": 2, "gate": 2}[kind]
        assert len(runs("Gated")) == (kind == "gate")


def test_sums_that_stretch_stay(jit):
    f = lambda x: NORMS[0](x + normal(8)) + NORMS[1](tf.ones([1, 5, 8]) + x)
    state = RNG.bit_generator.state
    want = results(f, X, [], jit)
    RNG.bit_generator.state = state
    with tfuse.enabled():
        got = results(f, X, [], jit)
    assert not joined()
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)


# ---- eagerly ----


def test_eagerly_nothing_is_joined():
    with tfuse.enabled():
        keras.ops.multiply(keras.ops.gelu(DENSE(X)), keras.ops.silu(DENSE(X)))
    assert not joined()
