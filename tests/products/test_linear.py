"""Linear layers beyond the cases: what is kept for the gradient, the CPU's own way, Keras's Dense, and the cache."""

import json
import os
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import GPUS, check_files_go_both_ways, check_lora, new_process, skip_broken_xla
from tfuse._tools import _cache, _tune
from tfuse._core import _library, _op
from tfuse._core._chain import Chain
from tfuse import cases
from tfuse.products.linear import composed, fused
from tfuse.elementwise.scale_bias_act import PLAIN

RNG = np.random.default_rng(6)
normal = lambda *shape, dtype="float32": tf.constant(RNG.normal(size=shape), dtype)
X, KERNEL, BIAS, RESIDUAL = normal(3, 5, 6), normal(6, 4), normal(4), normal(3, 5, 4)
close = lambda got, want, tolerance=1e-5: np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def stock(x, kernel, bias=None, activation=None, residual=None):
    y = tf.tensordot(x, kernel, 1)
    y = PLAIN[activation or "linear"](y if bias is None else y + bias)
    return y if residual is None else y + residual


def gradients(f, *inputs, **options):
    given = [i for i in inputs if tf.is_tensor(i)]
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = f(*inputs, **options)
    return [y, *tape.gradient(y, given, tf.cos(y))]


@pytest.fixture
def few_rows():
    """The kernel for few rows is used for all that it can serve."""
    most = next(t for t in _tune.tunables() if (t.stem, t.name) == ("linear", "few_rows_most"))
    most.put(most.most)
    yield
    most.put(most.value)


def step(f, dy, *inputs):
    """The same for a given dy."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = f(*inputs)
    return [y, *tape.gradient(y, inputs, dy)]


# ---- the op ----


def in_chain(invariant, x, kernel, bias, activation, residual):
    """What a chain gives when it is captured, in which the kernels for few rows serve; by warpgroups where it is invariant."""
    chain, y = Chain(invariant), tf.zeros([x.shape[0], kernel.shape[1]], x.dtype)
    chain.call("linear", *map(chain.input, (x, kernel, bias, residual)), None, into=[chain.input(y)], activation=activation)
    chain.run(2)
    return y + 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows, invariant", [*((n, False) for n in (1, 7, 16, 17, 33, 64)), *((n, True) for n in (1, 16, 33, 300))])
@pytest.mark.parametrize("inputs, outputs", [(32, 8), (96, 72), (544, 200), (2048, 64)])
def test_few_rows(few_rows, device, rows, invariant, inputs, outputs, dtype):
    """Stages that fill no ring, and rings that are filled again; blocks beside the last column; splits of all numbers. A row
    by itself has the same bits as among others."""
    x, kernel, bias, residual = (tf.cast(normal(*shape), dtype) for shape in (
        (rows, inputs), (inputs, outputs), (outputs,), (rows, outputs)))
    y = in_chain(invariant, x, kernel, bias, "gelu", residual)
    want = stock(*(tf.cast(t, tf.float64) for t in (x, kernel, bias)), "gelu", tf.cast(residual, tf.float64))
    naive = tf.cast(stock(x, kernel, bias, "gelu", residual), tf.float64)
    worst = lambda got: np.abs(tf.cast(got, tf.float64) - want).max()
    assert worst(y) <= 2 * worst(naive)
    if "GPU" in device:
        alone = in_chain(invariant, x[-1:] + 0, kernel, bias, "gelu", residual[-1:] + 0)
        np.testing.assert_array_equal(tf.cast(alone, "float32")[0], tf.cast(y, "float32")[-1])


@pytest.mark.parametrize("call", [tfuse.linear, fused, composed], ids=["linear", "fused", "composed"])
@pytest.mark.parametrize("residual", [None, RESIDUAL], ids=["", "residual"])
@pytest.mark.parametrize("bias", [None, BIAS], ids=["", "bias"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh", "mish"])
def test_values_and_gradients(device, call, activation, bias, residual):
    wide = [None if t is None else tf.cast(t, tf.float64) for t in (X, KERNEL, bias, residual)]
    for got, want in zip(gradients(call, X, KERNEL, bias, activation, residual),
                         gradients(stock, *wide[:3], activation, wide[3])):
        close(got, want)


@pytest.mark.parametrize("activation", ["relu", "gelu", "sigmoid"])
@pytest.mark.parametrize("training", [None, False])
def test_gradients_of_what_was_not_kept(device, jit, activation, training):
    """In a graph with training=False, the gradient computes again what it needs."""
    f = lambda *t: gradients(lambda *t: fused(*t, activation, None, training), *t)
    for got, want in zip(tf.function(f, jit_compile=jit)(X, KERNEL, BIAS), gradients(stock, X, KERNEL, BIAS, activation)):
        close(got, want)


def kept(f):
    """Whether the op in f's graph has a second result."""
    graph = tf.function(f).get_concrete_function().graph
    op, = [op for op in graph.get_operations() if op.type == "Tfuse>Linear"]
    return op.outputs[1].shape != [0]


def test_what_is_kept():
    assert kept(lambda: fused(X, KERNEL, BIAS, "gelu"))
    assert not kept(lambda: fused(X, KERNEL, BIAS, "gelu", None, False))
    assert not kept(lambda: fused(X, KERNEL, BIAS, "relu")) and not kept(lambda: fused(X, KERNEL, BIAS, None, RESIDUAL))
    assert kept(lambda: fused(X, KERNEL, BIAS, "relu", RESIDUAL))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "graph"])
def test_only_what_is_wanted(monkeypatch, device, wanted, traced):
    """Gradients of the others are not computed at all."""
    inputs, op, computed = [X, KERNEL, BIAS], _op.registry["LinearGrad"], []

    def gradient_op(*given, **attributes):
        results = op(*given, **attributes)
        computed.append([i for i, result in enumerate(results) if result.shape != [0]])
        return results

    def f():
        watched = [inputs[i] for i in wanted]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            y = fused(*inputs, "silu")
        return tape.gradient(y, watched, tf.cos(y))

    y = stock(*inputs, "silu")
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = stock(*inputs, "silu")
    want = tape.gradient(y, inputs, tf.cos(y))
    monkeypatch.setattr(sys.modules["tfuse.products.linear"], "_grad", gradient_op)
    for got, i in zip((tf.function(f) if traced else f)(), wanted, strict=True):
        close(got, want[i])
    assert computed == [list(wanted)]


def test_second_gradients_eagerly(device):
    """Where a tape records the gradient, it goes by what is computed anew."""
    x, kernel = (tf.cast(t, tf.float64) for t in (X, KERNEL))
    results = []
    for f in (fused, stock):
        with tf.GradientTape() as outer:
            outer.watch([x, kernel])
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = f(x, kernel, None, "gelu_tanh")
            loss = tf.reduce_sum(tf.sin(inner.gradient(y, x)))
        results.append(outer.gradient(loss, [x, kernel]))
    for got, want in zip(*results):
        close(got, want, 1e-6)


@pytest.mark.parametrize("inputs", [1, 100_003])
def test_short_and_long_sums(device, inputs):
    x, kernel = RNG.normal(size=(3, inputs)), RNG.normal(size=(inputs, 5))
    got = fused(tf.constant(x, tf.float32), tf.constant(kernel, tf.float32))
    assert cases.error(got, x @ kernel) < 1e-5


LONG = 1_000_000


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("result, rows, inputs, outputs", [(0, 8, LONG, 4), (1, 8, 4, LONG), (2, LONG, 8, 4)],
                         ids=["y", "dx", "dkernel"])
def test_sums_of_a_million(device, dtype, result, rows, inputs, outputs):
    x, kernel, dy = (normal(*shape, dtype=dtype) for shape in [(rows, inputs), (inputs, outputs), (rows, outputs)])
    got, naive = (step(f, dy, x, kernel)[result] for f in (fused, stock))
    a, b = ((x, kernel), (dy, tf.transpose(kernel)), (tf.transpose(x), dy))[result]
    want = cases.as64(a) @ cases.as64(b)
    assert cases.error(got, want) <= cases.allowed(naive, want, dtype)


# What is multiplied, of two square matrices.
VIEWS = {"x transposed": lambda x, kernel: (tf.transpose(x), kernel),
         "kernel transposed": lambda x, kernel: (x, tf.transpose(kernel)),
         "both transposed": lambda x, kernel: (tf.transpose(x), tf.transpose(kernel)),
         "every other input": lambda x, kernel: (x[:, ::2], kernel[::2]),
         "every third output, backwards": lambda x, kernel: (x[::-2], kernel[:, ::-3])}


@pytest.mark.parametrize("route", ["eager", "graph", "xla"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
def test_turned_and_strided(device, route, view):
    """Gradients go back to what the views are of."""
    if route == "xla":
        skip_broken_xla()
    x, kernel = normal(12, 12), normal(12, 12)
    f = lambda x, kernel: gradients(lambda *t: fused(*view(*t), activation="gelu_tanh"), x, kernel)
    traced = f if route == "eager" else tf.function(f, autograph=False, jit_compile=route == "xla")
    wide = [tf.cast(t, tf.float64) for t in (x, kernel)]
    want = gradients(lambda *t: stock(*view(*t), activation="gelu_tanh"), *wide)
    for got, w in zip(traced(x, kernel), want, strict=True):
        close(got, w, 1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_slices(device, dtype):
    """Parts of larger tensors. TensorFlow copies what does not begin on 64 bytes; products_test.c has addresses in between."""
    x, kernel = normal(9, 7, 33, dtype=dtype), normal(5, 33, 19, dtype=dtype)
    for i in range(1, 4):
        close(tf.cast(fused(x[i], kernel[i], activation="relu"), "float32"),
              tf.cast(stock(x[i], kernel[i], activation="relu"), "float32"), 1e-5 if dtype == "float32" else 0.1)


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh", "gelu", "silu"])
def test_what_is_no_number_stays_none(as_on_a_gpu, device, activation, dtype):
    """An activation, be it in the product's epilogue, does not hide that training went wrong: relu of NaN is NaN."""
    x = tf.concat([tf.fill([1, 16], np.nan), tf.ones([15, 16])], 0)
    kernel, bias = tf.ones([16, 8], dtype), tf.zeros([8], dtype)
    for bias in (None, bias):
        y = tf.cast(fused(tf.cast(x, dtype), kernel, bias, activation), tf.float32).numpy()
        assert np.all(np.isnan(y[0])) and np.all(y[1:] > 15)


@pytest.mark.parametrize("f", [fused, lambda x, kernel: tfuse.batched_matmul(x[None], kernel[None])[0]], ids=["linear", "batched"])
def test_tf32_as_tensorflow_has_it_by_default(tf32, as_on_a_gpu, device, f):
    """On a GPU that has it, factors then have 10 bits after the point, and errors show it; switched off, they do not."""
    x, kernel = RNG.normal(size=(64, 512)), RNG.normal(size=(512, 64))
    error = lambda: cases.error(f(tf.constant(x, tf.float32), tf.constant(kernel, tf.float32)), x @ kernel)
    has_it = "GPU" in device and tf.config.experimental.get_device_details(GPUS[0])["compute_capability"] >= (8, 0)
    assert 2e-5 < error() < 1e-3 if has_it else error() < 2e-6
    tf.config.experimental.enable_tensor_float_32_execution(False)
    assert error() < 2e-6


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("f", [fused, tfuse.batched_matmul], ids=["linear", "batched"])
def test_gradients_are_as_exact_as_the_results(tf32, as_on_a_gpu, f, on):
    """Each op is told what the switch was when the first one ran."""
    tf.config.experimental.enable_tensor_float_32_execution(on)
    graph = tf.function(lambda: gradients(f, KERNEL, KERNEL[:4])).get_concrete_function().graph
    told = [op.get_attr("tf32") for op in graph.get_operations() if op.type.startswith("Tfuse>")]
    assert len(told) >= 2 and set(told) == {on}


def test_unknown_shapes(device):
    f = tf.function(lambda x, k, b: gradients(lambda *t: fused(*t, "gelu"), x, k, b), autograph=False, input_signature=[
        tf.TensorSpec([None, None, None]), tf.TensorSpec([None, None]), tf.TensorSpec([None])])
    for got, want in zip(f(X, KERNEL, BIAS), gradients(stock, X, KERNEL, BIAS, "gelu")):
        close(got, want)
    g = tf.function(lambda x, k, b: fused(x, k, b, "gelu"), input_signature=[tf.TensorSpec(None)] * 3)
    close(g(X, KERNEL, BIAS), stock(X, KERNEL, BIAS, "gelu"))
    assert g.get_concrete_function().output_shapes.rank is None
    h = tf.function(lambda x, k: fused(x, k), input_signature=[tf.TensorSpec([None, 5, None]), tf.TensorSpec([6, 4])])
    assert h.get_concrete_function().output_shapes.as_list() == [None, 5, 4]


def test_on_symbolic_tensors(tmp_path):
    x = keras.Input((5, 6))
    model = keras.Model(x, tfuse.linear(x, KERNEL.numpy(), BIAS.numpy(), "silu"))
    close(model(X), stock(X, KERNEL, BIAS, "silu"))


# ---- Dense ----


def both(*arguments, **options):
    """Ours, and Keras's with the same weights."""
    ours, theirs = tfuse.Dense(*arguments, **options), keras.layers.Dense(*arguments, **options)
    ours.build((None, 5, 6))
    theirs.build((None, 5, 6))
    theirs.set_weights([RNG.normal(size=w.shape) for w in theirs.get_weights()])
    ours.set_weights(theirs.get_weights())
    return ours, theirs


@pytest.mark.parametrize("options", [
    {}, {"activation": "relu"}, {"activation": "gelu"}, {"activation": "softmax"}, {"use_bias": False, "activation": "silu"},
    {"activation": keras.activations.tanh}, {"activation": "elu", "dtype": "mixed_bfloat16"}, {"dtype": "float64"},
    {"activation": "hard_silu", "dtype": "float16"}], ids=str)
@pytest.mark.parametrize("way", [fused, composed])
def test_dense_is_keras_dense(monkeypatch, device, way, options):
    monkeypatch.setattr(_library, "without_gpu", lambda: way is composed)
    ours, theirs = both(4, **options)
    x = tf.cast(X, ours.compute_dtype)
    low = ours.compute_dtype in ("float16", "bfloat16")
    results = []
    for layer in (ours, theirs):
        with tf.GradientTape() as tape:
            y = layer(x)
            loss = tf.reduce_sum(tf.cast(y, tf.float32) * tf.cos(tf.range(4.0)))
        results.append([y, *tape.gradient(loss, [v.value for v in layer.trainable_weights])])
    for got, want in zip(*results):
        assert got.dtype == want.dtype
        close(tf.cast(got, tf.float32), tf.cast(want, tf.float32), 0.1 if low else 1e-5)


def test_dense_config_and_files_go_both_ways(tmp_path):
    ours, theirs = both(4, activation="gelu", kernel_regularizer="l2", bias_initializer="ones", name="layer")
    config = ours.get_config()
    json.dumps(config)
    assert config == theirs.get_config()
    assert keras.layers.Dense.from_config(config).get_config() == config == tfuse.Dense.from_config(config).get_config()

    models = [keras.Sequential([keras.Input((5, 6)), layer]) for layer in both(4, activation="gelu")]
    check_files_go_both_ways(models, X, tmp_path, close)


def test_dense_gelu_tanh():
    layer = tfuse.Dense.from_config(tfuse.Dense(4, "gelu_tanh").get_config())
    y = layer(X)
    close(y, stock(X, layer.kernel.value, layer.bias.value, "gelu_tanh"))


def test_dense_with_lora():
    check_lora(*both(4, activation="relu"), X, close)


def test_training(jit):
    """Step by step the same losses as with Keras's own layers."""
    x, y = RNG.normal(size=(64, 6)).astype("float32"), RNG.normal(size=(64, 1)).astype("float32")
    losses = []
    for layer in (tfuse.Dense, keras.layers.Dense):
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((6,)), layer(32, "gelu"), layer(8, "relu"), layer(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=jit)
        losses.append(model.fit(x, y, epochs=4, shuffle=False, verbose=0).history["loss"])
    assert losses[0][-1] < losses[0][0]
    close(*losses, 1e-4)


# ---- the cache ----


def line_of_cache(*fields):
    line = "\t".join(fields).encode()
    return b"%s\t%016x\n" % (line, _cache._hash(line))


def test_cache_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TFUSE_CACHE", str(tmp_path))
    assert _cache.main(["--path"]) == 0 and capsys.readouterr().out == "%s/tuned\n" % tmp_path
    assert _cache.main([]) == 0 and "not there yet" in capsys.readouterr().out
    whole = line_of_cache("a GPU, product 1x2x3", "12.500", "00ff", "an algorithm").decode()
    (tmp_path / "tuned").write_text(_cache.FIRST_LINE + "\n" + whole + whole.replace("12.5", "99.5") + "rubbish\n")
    assert _cache.main([]) == 0
    out = capsys.readouterr().out
    assert "1 choices" in out and "12.5 us  a GPU, product 1x2x3" in out and "99.5" not in out
    assert _cache.main(["--clear"]) == 0 and "deleted, with 1 choices" in capsys.readouterr().out
    assert not os.path.exists(tmp_path / "tuned")
    (tmp_path / "tuned").write_text("another program's\n")
    assert _cache.rows() == []


def test_damaged_lines_of_the_cache_are_passed_over(monkeypatch, tmp_path, capsys):
    """Those around them count, and the file can be cleared."""
    monkeypatch.setenv("TFUSE_CACHE", str(tmp_path))
    first, second = (line_of_cache(asked, "12.500", "00ff", "an algorithm") for asked in ("first", "second"))
    no_hex = line_of_cache("third", "1.000", "00ff", "x")[:-5] + b"here\n"
    no_time = [line_of_cache("fourth", time, "00ff", "x") for time in ("soon", "", "nan", "inf", "-1.0", "0")]
    undecodable = line_of_cache("fifth", "1.000", "00ff", "x").replace(b"fif", b"\xff\xfe\x00")
    whole = [_cache.FIRST_LINE.encode() + b"\n", first, no_hex, b"\t\t\t\t\n", *no_time, undecodable, second]
    (tmp_path / "tuned").write_bytes(b"".join(whole) + first.replace(b"first", b"third")[:-1])
    assert [row[0] for row in _cache.rows()] == ["first", "second"]
    assert _cache.main([]) == 0 and "2 choices" in capsys.readouterr().out
    assert _cache.main(["--clear"]) == 0 and "deleted, with 2 choices" in capsys.readouterr().out
    assert _cache.main(["--clear"]) == 0 and "there was none" in capsys.readouterr().out
    (tmp_path / "tuned").write_bytes(b"\xff\xfe\n\x80")
    assert _cache.main([]) == 0 and "0 choices" in capsys.readouterr().out


def test_a_cache_that_is_no_file(monkeypatch, tmp_path, capsys):
    """What cannot be read or deleted is said to be so, by the status too."""
    monkeypatch.setenv("TFUSE_CACHE", str(tmp_path))
    (tmp_path / "tuned").mkdir()
    said = "%s/tuned: cannot be " % tmp_path
    assert _cache.main([]) == 1 and said + "read: Is a directory" in capsys.readouterr().out
    assert _cache.main(["--clear"]) == 1 and "tuned: is not deleted" in capsys.readouterr().out
    (tmp_path / "tuned").rmdir()
    (tmp_path / "tuned").symlink_to("tuned")
    assert _cache.main([]) == 1 and said + "read: Too many levels of symbolic links" in capsys.readouterr().out
    assert _cache.main(["--clear"]) == 1 and "tuned: is not deleted" in capsys.readouterr().out


def test_clear_leaves_others_files(monkeypatch, tmp_path, capsys):
    """TFUSE_CACHE may name a folder that has other files, even of the same names: those of tfuse are deleted alone."""
    monkeypatch.setenv("TFUSE_CACHE", str(tmp_path / "proj"))
    jit, elsewhere = tmp_path / "proj" / "jit", tmp_path / "elsewhere"
    jit.mkdir(parents=True)
    elsewhere.write_text(_cache.FIRST_LINE + "\n")
    kernel, note, writing = "%032x" % 7, "nvrtc-%016x" % 7, "%032x.aB3xYz" % 8
    own = {kernel: b"tfujit1\0", note: b"tfunrtc\0", writing: b"tfujit1\0"}
    others = {"compiler.py": b"import this\n", "tfujit1": b"tfujit1\0", "%032x" % 9: b"md5 of something", "%033x" % 7: b"tfujit1\0",
              "nvrtc-%016x" % 9: b"tfujit1\0", "%032x.bak" % 7: b"tfujit1\0", "%032x" % 10: b"", "nvrtc-notes.txt": b"tfunrtc\0"}
    for name, text in {**own, **others}.items():
        (jit / name).write_bytes(text)
    (jit / ("%032x" % 11)).symlink_to(jit / kernel)
    (jit / ("%032x" % 12)).mkdir()
    left = sorted([*others, "%032x" % 11, "%032x" % 12])
    for text in (b"another program's\n", b"tfuse", b""):
        (tmp_path / "proj" / "tuned").write_bytes(text)
        assert _cache.main(["--clear"]) == 1
        assert (tmp_path / "proj" / "tuned").read_bytes() == text and "tuned: is not deleted" in capsys.readouterr().out
        assert sorted(os.listdir(jit)) == left
    (tmp_path / "proj" / "tuned").unlink()
    (tmp_path / "proj" / "tuned").symlink_to(elsewhere)
    assert _cache.main(["--clear"]) == 1
    assert os.path.islink(tmp_path / "proj" / "tuned") and elsewhere.exists()


def test_the_same_bits_in_every_process(monkeypatch, tmp_path):
    """With the same cache: on a GPU the second process takes the first one's choices, and adds none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("TFUSE_CACHE", "TFUSE_AUTOTUNE"):
        monkeypatch.delenv(name, raising=False)
    program = """if True:
        import hashlib, numpy as np, tensorflow as tf
        from tfuse.products.linear import fused
        rng, bits = np.random.default_rng(1), hashlib.sha256()
        for dtype in ("float32", "bfloat16"):
            inputs = [tf.constant(rng.normal(size=s), dtype) for s in [(96, 4100), (4100, 72), (72,)]]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                y = fused(*inputs, "gelu_tanh")
            for t in [y, *tape.gradient(y, inputs)]:
                bits.update(t.numpy().tobytes())
        print(bits.hexdigest())
    """
    cache, seen = tmp_path / "tfuse" / "tuned", []
    for _ in range(2):
        done = new_process(program)
        assert done.returncode == 0, done.stdout
        seen.append((done.stdout.split()[-1], cache.read_bytes() if GPUS else None))
    assert len(seen[0][0]) == 64 and seen[0] == seen[1]
