"""What only a GPU can show: order on TensorFlow's stream, sizes past 2^31, two devices on one GPU, running out of memory."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import needs_gpu

pytestmark = needs_gpu
HERE = os.path.dirname(os.path.abspath(__file__))


def slow_ones(n):
    """A tensor of ones whose computation keeps the GPU busy for some milliseconds, so that a reader ahead of its turn
    would see something else."""
    a = tf.eye(4096) * 1.0
    for _ in range(12):
        a = tf.matmul(a, a)
    return tf.fill([n], a[0, 0])


@pytest.mark.parametrize("jit", [False, True])
def test_waits_for_its_inputs_and_is_waited_for(jit, request):
    if jit:
        request.getfixturevalue("xla")

    @tf.function(jit_compile=jit, autograph=False)
    def f(x):
        return tfuse.square(x + 1) * 2

    with tf.device("GPU:0"):
        junk = tf.random.normal([1 << 20])
        f(junk)
        for trial in range(30):
            x = slow_ones(1 << 20)
            got = f(x)
            junk = tf.random.normal([1 << 20], seed=trial)  # memory that comes free is written over at once
            assert np.all(got.numpy() == 8), trial


def run_alone(code, **environment):
    """In a process of its own: device configuration and environment are fixed when TensorFlow starts."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_FORCE_GPU_ALLOW_GROWTH": "true", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True,
                          cwd=HERE, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fence_serves_where_the_stream_cannot_be_found():
    out = run_alone("""
import numpy as np, tensorflow as tf, tfuse
from tfuse._core import _library
print(_library.library.tfu_stream_route().decode())
from test_gpu import slow_ones
with tf.device("GPU:0"):
    for _ in range(20):
        x = slow_ones(1 << 20)
        y = tfuse.scale_bias_act(x, 3.0, activation="relu")
        with tf.GradientTape() as tape:
            tape.watch(x)
            z = tfuse.add_constant(x, 1.0) * y
        assert np.all(z.numpy() == 6) and np.all(tape.gradient(z, x).numpy() == 3)
""", TFUSE_STREAM="fence")
    assert "between two event fences" in out


def test_two_logical_gpus_each_with_a_stream():
    run_alone("""
import numpy as np, tensorflow as tf, threading
gpu = tf.config.list_physical_devices("GPU")[0]
tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=2048)] * 2)
import tfuse
wrong = []
def work(device, seed):
    rng = np.random.default_rng(seed)
    x, s = rng.normal(size=(1024, 511)).astype("float32"), rng.normal(size=511).astype("float32")
    with tf.device(device):
        tensors = tf.identity(x), tf.identity(s)
        for _ in range(50):
            if not np.allclose(tfuse.scale_bias_act(*tensors, activation="relu").numpy(), np.maximum(x * s, 0), 1e-5, 1e-5):
                wrong.append(device)
threads = [threading.Thread(target=work, args=("GPU:%d" % (i % 2), i)) for i in range(6)]
[t.start() for t in threads]; [t.join() for t in threads]
assert not wrong, wrong
""")


def test_threads_share_the_gpu():
    wrong = []

    def work(seed):
        with tf.device("GPU:0"):
            x = tf.identity(np.random.default_rng(seed).normal(size=(333, 257)).astype("float32"))
            want = x.numpy() ** 2
            for _ in range(30):
                if not np.array_equal(tfuse.square(x).numpy(), want):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_more_elements_than_an_int_counts():
    """Looked at in slices: stock TensorFlow itself is not sound at this size."""
    rows, cols = 65539, 32769
    rng = np.random.default_rng(0)
    with tf.device("GPU:0"):
        x = tf.fill([rows, cols], tf.constant(0.5, tf.float16))
        bias = rng.integers(-8, 8, cols).astype("float16")
        y = tfuse.scale_bias_act(x, bias=bias, activation="relu")
        for row in (0, 1, 65533, 65534, 65535, rows - 1):  # element 2^31 is in row 65534
            assert np.array_equal(y[row].numpy(), np.maximum(bias + 0.5, 0)), row
        with tf.GradientTape() as tape:
            b = tf.identity(bias)
            tape.watch(b)
            y = tfuse.scale_bias_act(x, bias=b, activation="relu")
        gradient = tape.gradient(y, b, tf.fill([rows, cols], tf.constant(2.0**-8, tf.float16)))
        assert np.array_equal(gradient.numpy(), np.where(bias + 0.5 > 0, rows * 2.0**-8, 0).astype("float16"))
        del y, x, tape
        flat = tfuse.square(tf.fill([(1 << 31) + 5], tf.constant(3, tf.float16)))
        assert np.all(flat[:100].numpy() == 9) and np.all(flat[-100:].numpy() == 9)
        with tf.GradientTape() as tape:
            c = tf.constant(1.0, tf.float16)
            tape.watch(c)
            y = tfuse.add_constant(flat, c)
        assert float(tape.gradient(y, c, tf.fill(flat.shape, tf.constant(2.0**-20, tf.float16)))) == 2048


def test_more_rows_than_an_int_counts():
    """The last rows differ from all others, and each row's result is looked at in slices."""
    with tf.device("GPU:0"):
        last = np.array([[0, 1], [3, -1], [2, 2], [-4, 0], [1, 5]], "float16")
        many = lambda rows: tf.concat([tf.zeros([rows, 2], tf.float16), last], 0)
        e = np.exp(last.astype("float64"))
        x = many(1 << 31)
        y = tfuse.softmax(x)
        assert np.all(y[:100].numpy() == 0.5) and np.all(y[(1 << 31) - 100:-5].numpy() == 0.5)
        np.testing.assert_allclose(y[-5:].numpy(), e / e.sum(-1, keepdims=True), atol=1e-3)
        del x, y
        x, labels = many(1 << 30), tf.ones([(1 << 30) + 5], tf.int32)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tfuse.sparse_cross_entropy(x, labels)
        dx = tape.gradient(loss, x)
        np.testing.assert_allclose(loss[-6:].numpy(), [np.log(2), *np.log(e.sum(-1) / e[:, 1])], atol=1e-6)
        np.testing.assert_allclose(dx[-5:].numpy(), e / e.sum(-1, keepdims=True) - [0, 1], atol=1e-3)
        del loss, dx, tape, labels
        gamma = tf.constant([1.0, 2.0])
        with tf.GradientTape() as tape:
            tape.watch([x, gamma])
            y = tfuse.rms_norm(x, gamma, epsilon=1.0)
        dy = tf.fill(x.shape, tf.constant(1, tf.float16))  # tf.ones_like() leaves the first of 2^31 elements unwritten
        dx, dgamma = tape.gradient(y, [x, gamma], dy)
        n = last / np.sqrt(np.mean(last.astype("float64")**2, -1, keepdims=True) + 1)
        np.testing.assert_allclose(y[-5:].numpy(), n * [1, 2], atol=2e-3)
        np.testing.assert_allclose(dgamma.numpy(), n.sum(0), rtol=1e-3)
        assert np.all(dx[:100].numpy() == [1, 2])


def test_determinism_leaves_nothing_to_timing():
    """Two processes that keep no file choose alike: what is timed may come out one way or the other."""
    program = """
import hashlib, tensorflow as tf, tfuse
tf.config.experimental.enable_op_determinism()
tf.random.set_seed(1)
with tf.device("GPU:0"):
    x, kernel, bias = (tf.cast(tf.random.normal(s, seed=1), tf.bfloat16) for s in ([4096, 768], [768, 3072], [3072]))
    with tf.GradientTape() as tape:
        tape.watch([x, kernel, bias])
        y = tfuse.linear(x, kernel, bias, "gelu_tanh")
    results = [y, *tape.gradient(y, [x, kernel, bias])]
print([r["kernel"] for r in tfuse.explain()], [hashlib.md5(tf.cast(r, tf.float32).numpy()).hexdigest() for r in results])
"""
    one, other = (run_alone(program, TFUSE_CACHE="/dev/null/none") for _ in range(2))
    assert "cuBLASLt" in one and " us" not in one
    assert one == other


def test_out_of_memory_is_an_error_and_the_process_lives():
    free = tf.config.experimental.get_memory_info("GPU:0")["current"]
    with tf.device("GPU:0"):
        x = tf.ones([1 << 20])
        with pytest.raises(tf.errors.ResourceExhaustedError):
            held = []
            big = tf.zeros([6 << 30], tf.float16)
            while True:
                held.append(tfuse.square(big))
        del held, big
        assert np.all(tfuse.square(x * 3).numpy() == 9)
    assert tf.config.experimental.get_memory_info("GPU:0")["current"] < free + (1 << 28)


def test_explain_names_the_kernel():
    with tf.device("GPU:0"):
        tfuse.gelu(tf.ones([7, 9], tf.bfloat16))
    last = tfuse.explain()[-1]
    assert last["device"] == "GPU" and last["kernel"].startswith("scale_bias_act_gelu_tanh_bf16 (")


def test_explain_says_why_attention_is_ours():
    with tf.device("GPU:0"):
        x = tf.ones([2, 64, 4, 64], tf.float16)
        tfuse.attention(x, x, x, mask=tf.ones([64, 64], tf.bool))
    last = tfuse.explain()[-1]
    assert "cuDNN" in last["why"] and last["kernel"].startswith("forward_")


def test_attention_beyond_what_scores_would_take():
    """2^34 scores, of which nothing is kept: memory grows with the steps, forward and backward."""
    with tf.device("GPU:0"):
        x = tf.cast(tf.random.normal([1, 32768, 16, 64]), tf.bfloat16)
        tf.config.experimental.reset_memory_stats("GPU:0")
        before = tf.config.experimental.get_memory_info("GPU:0")["current"]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tfuse.attention(x, x, x, is_causal=True)
        dx = tape.gradient(y, x)
        peak = tf.config.experimental.get_memory_info("GPU:0")["peak"] - before
    assert np.all(np.isfinite(tf.cast(dx[0, ::4096], tf.float32)))
    tensors = 8 * 2 * 32768 * 16 * 64  # query, key and value, the output, its gradient and theirs: x is all three here
    assert peak < 1.4 * tensors, "peak %d MiB of %d" % (peak >> 20, tensors >> 20)


def test_linear_cross_entropy_never_has_its_logits():
    """GPT-2's head: what is taken besides inputs, results and what is returned is at most 15% of the logits."""
    out = run_alone("""
import tensorflow as tf, tfuse
rows, inputs, classes = 16384, 768, 50304
with tf.device("GPU:0"):
    x, kernel = (tf.cast(tf.random.normal(shape), tf.bfloat16) for shape in ([rows, inputs], [inputs, classes]))
    labels = tf.random.uniform([rows], 0, classes, tf.int32)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            loss = tfuse.linear_cross_entropy(x, kernel, labels, reduction="mean")
        return loss, *tape.gradient(loss, [x, kernel])

    step()  # the first chooses algorithms
    tf.test.experimental.sync_devices()
    before = tf.config.experimental.get_memory_info("GPU:0")["current"]
    tf.config.experimental.reset_memory_stats("GPU:0")
    results = step()
    tf.test.experimental.sync_devices()
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"] - before
returned = sum(2 * inputs * n for n in (rows, classes))
print("extra %.1f%%" % (100 * (peak - returned) / (2 * rows * classes)))
assert peak - returned <= 0.15 * 2 * rows * classes, "%d MiB besides what is returned" % (peak - returned >> 20)
""", TF_FORCE_GPU_ALLOW_GROWTH="false")
    print(out)
