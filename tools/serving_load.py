"""How Triton with tfuse's backend does under load, on this machine: requests a second, latencies, memory. Everything is bounded in
count and time, and stays on the loopback.

  python tools/serving_load.py rates [--clients 1,8,64,256] [--seconds 10]     with and without batches, against Python's own
  python tools/serving_load.py loads [--count 100]                             memory after loads and unloads
  python tools/serving_load.py soak [--minutes 10] [--duty 1]                  memory under load
  python tools/serving_load.py inputs [--megabytes 1,16,64]                    large inputs, sent and in shared memory
  python tools/serving_load.py streams [--clients 1,8,64]                      tokens of a Llama as they come, against tfuse.generate

tfuse and TensorFlow are importable, TFUSE_LIBRARY names libtfuse.so where tfuse is not installed, and a Triton is found as
`python -m tfuse serve` finds it. The model is --layers dense layers of --width units, or with --model bert a classifier of --tokens
tokens with so many layers, or resnet, a ResNet-50 for pictures of --width pixels. A batch pays once for what a run costs however few
rows it has: each op's start, and reading the weights.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import http.client
import json
import multiprocessing.shared_memory
import os
import pathlib
import signal
import socket
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = pathlib.Path(__file__).resolve().parent.parent
del sys.path[0]  # this file's folder, where wheel.py would pass for the package of that name
sys.path.insert(0, str(ROOT / "tests/serving"))

import infer
import keras
import numpy as np
import tensorflow as tf
from load import Load

from tfuse._tools import _export, _model, _serve


def dense(options):
    x = keras.Input([options.width], name="x")
    y = x
    for _ in range(options.layers):
        y = keras.layers.Dense(options.width, activation="relu")(y)
    return keras.Model(x, y), {"x": np.ones([1, options.width], np.float32)}


def bert(options):
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=1000, num_layers=options.layers, num_heads=max(options.width // 64, 4), hidden_dim=options.width,
        intermediate_dim=4 * options.width, max_sequence_length=options.tokens)
    ints = lambda value: np.full([1, options.tokens], value, np.int32)
    return (keras_hub.models.BertTextClassifier(backbone=backbone, num_classes=4, preprocessor=None),
            {"padding_mask": ints(1), "segment_ids": ints(0), "token_ids": ints(7)})


def resnet(options):
    x = keras.Input([options.width, options.width, 3], name="x")
    return keras.applications.ResNet50(weights=None, input_tensor=x), {"x": np.ones([1, *x.shape[1:]], np.float32)}


def make_models(home, options):
    """Models `batched` and `single`; returns a request's values."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(options.dtype)
    model, values = {"dense": dense, "bert": bert, "resnet": resnet}[options.model](options)
    model.save(home / "model.keras")
    made = _export.export(home / "model.keras", home / "models", "batched", max_batch=options.max_batch, delay=options.delay,
                          stock=options.stock)
    _export.export(made / "1/model.savedmodel", home / "models", "single", max_batch=0)
    for config in (home / "models").glob("*/config.pbtxt"):
        config.write_text(config.read_text().replace("instance_group { count: 1 }", "instance_group { count: %d }" % options.instances))
    return values


@contextlib.contextmanager
def triton(home, *more):
    """A server of the models of a folder: (its port, its process)."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    chosen = _serve.parse([str(home / "models"), "--http-port", str(port), "--grpc-port", "0", "--metrics-port", "0", "--",
                           *more, "--exit-timeout-secs=5", "--http-thread-count=2"])
    try:
        with _serve.running(chosen) as (process, log):
            yield port, process
    except _serve.Failed as error:
        sys.exit(str(error))


def megabytes(process):
    """Resident memory of its own: without pages of files, such as TensorFlow's code."""
    words = dict(line.split(":", 1) for line in pathlib.Path("/proc/%d/status" % process.pid).read_text().splitlines())
    return int(words["RssAnon"].split()[0]) / 1024


def counts(port, model):
    """Requests and runs of a model since it was loaded, and nanoseconds of its requests: in runs, and being joined and split."""
    stats = json.loads(infer.Client(port).send("GET", "/v2/models/%s/stats" % model)[2])["model_stats"][0]
    of = {name: part["ns"] for name, part in stats["inference_stats"].items()}
    return np.array([stats["inference_count"], stats["execution_count"], of["compute_infer"], of["compute_input"] + of["compute_output"]])


def rows_a_second(run, rows, seconds):
    run()
    count, begin = 0, time.perf_counter()
    while not count or time.perf_counter() - begin < seconds:
        run()
        count += rows
    return count / (time.perf_counter() - begin)


def rates(options, home, values):
    with triton(home) as (port, server):
        found = {}
        for model in ("single", "batched"):
            for clients in options.clients:
                load = Load(port, model, values, clients)
                load.run(1)
                before, begin = counts(port, model), time.perf_counter()
                times = load.run(options.seconds)
                rate = found[model, clients] = len(times) / (time.perf_counter() - begin)
                load.close()
                requests, runs, inside, outside = counts(port, model) - before
                print("%-8s %4d clients: %7.0f requests a second, p50 %7.2f ms, p99 %7.2f ms; %4.1f a run, %4.1f%% joined and split%s" % (
                    model, clients, rate, times[len(times) // 2], times[int(len(times) * 0.99)], requests / runs,
                    100 * outside / (inside + outside), ", %d refused" % load.refused if load.refused else ""), flush=True)
    saved = home / "models/batched/1/model.savedmodel"
    model, function = _model.Model(saved), tf.saved_model.load(str(saved)).signatures["serving_default"]
    for rows in (1, options.max_batch):
        given = {name: np.repeat(value, rows, 0) for name, value in values.items()}
        in_python = lambda: [value.numpy() for value in function(**{name: tf.constant(value) for name, value in given.items()}).values()]
        for what, run in (("Python", in_python), ("the C API", lambda: model.run(given))):
            print("%s, batches of %d: %.0f rows a second" % (what, rows, rows_a_second(run, rows, options.seconds)), flush=True)
    model.close()
    if 64 in options.clients:
        print("batches at 64 clients: %.1f times" % (found["batched", 64] / found["single", 64]))


def loads(options, home, values):
    with triton(home, "--model-control-mode=explicit", "--load-model=batched") as (port, server):
        client, seen = infer.Client(port), collections.OrderedDict()
        for i in range(options.count + 1):
            for what in ("load", "unload")[:: -1 if i else 1][:2 if i else 1]:
                status, _, text = client.send("POST", "/v2/repository/models/batched/%s" % what, b"{}")
                assert status == 200, text
            client.infer("batched", values)
            time.sleep(0.1)  # an unload right after a load can end Triton, whatever the backend: docs/serving.md
            if i in {1, *range(0, options.count + 1, max(options.count // 10, 1))}:
                seen[i] = megabytes(server)
                print("after %3d loads: %.1f MB" % (i, seen[i]), flush=True)
        half = options.count // 2  # what the allocator keeps goes up and down: the least of each half is compared
        early, late = (min(mb for i, mb in seen.items() if i >= options.count // 10 and (i > half) == later) for later in (False, True))
        print("least of loads %d to %d: %.1f MB, of %d to %d: %.1f MB" % (options.count // 10, half, early, half + 1, options.count, late))


def soak(options, home, values):
    with triton(home) as (port, server):
        load, seen = Load(port, "batched", values, 16), []
        load.run(20 * options.duty)
        for i in range(int(options.minutes * 2)):
            count = len(load.run(30 * options.duty))
            time.sleep(30 * (1 - options.duty))
            seen.append(megabytes(server))
            print("%4.1f minutes: %.1f MB, %d requests" % ((i + 1) / 2, seen[-1], count), flush=True)
        print("growth: %.2f MB, refused: %d" % (seen[-1] - seen[0], load.refused))


class First(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def first(self, x):
        """Next to nothing, of an input of any size."""
        return {"y": x[:8]}


def best(call, count=15):
    """The least of so many times, in milliseconds."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return min(times)


def inputs(options, home, values):
    """A request of so many bytes: sent, and named in shared memory, where the server takes it as it lies if it is aligned."""
    model = First()
    tf.saved_model.save(model, home / "first", signatures=model.first)
    _export.export(home / "first", home / "models", "first", max_batch=0)
    with triton(home) as (port, server):
        client = infer.Client(port)
        for megabytes in options.megabytes:
            x = np.ones([megabytes << 18], np.float32)
            body = infer.body_of({"x": x})
            print("%3d MB: sent %.2f ms" % (megabytes, best(lambda: client.infer("first", body=body))), end="", flush=True)
            memory = multiprocessing.shared_memory.SharedMemory(create=True, size=x.nbytes + 64)
            about = {"key": "/" + memory.name, "offset": 0, "byte_size": memory.size}
            assert client.send("POST", "/v2/systemsharedmemory/region/x/register", json.dumps(about))[0] == 200
            for offset, what in ((0, "as it lies"), (4, "copied")):
                memory.buf[offset : offset + x.nbytes] = x.tobytes()
                head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "parameters": {
                    "shared_memory_region": "x", "shared_memory_byte_size": x.nbytes, "shared_memory_offset": offset}}],
                    "parameters": {"binary_data_output": True}}).encode()
                least = best(lambda: client.infer("first", body=(len(head), head)))
                print(", shared, %s %.2f ms" % (what, least), end="", flush=True)
            assert client.send("POST", "/v2/systemsharedmemory/region/x/unregister", b"{}")[0] == 200
            memory.close()
            memory.unlink()
            print()


def stream(port, prompt, new_tokens):
    """Seconds until the first token of a request and until its last."""
    begin, times = time.perf_counter(), []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v2/models/llm/generate_stream", json.dumps({"token_ids": prompt, "max_new_tokens": new_tokens,
                                                                            "stop_token_ids": []}))
    for line in connection.getresponse():
        if line.startswith(b"data:"):
            times.append(time.perf_counter() - begin)
    connection.close()
    assert len(times) == new_tokens, "%d tokens came" % len(times)
    return times[0], times[-1]


def streams(options, home):
    """So many prompts of 100 tokens at once, which get --tokens new ones."""
    import keras_hub
    import tfuse

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(options.dtype)
    heads = max(options.width // 64, 4)
    model = keras_hub.models.LlamaCausalLM(keras_hub.models.LlamaBackbone(
        vocabulary_size=1000, num_layers=options.layers, num_query_heads=heads, num_key_value_heads=heads, hidden_dim=options.width,
        intermediate_dim=4 * options.width))
    model.save(home / "llm.keras")
    _export.export(home / "llm.keras", home / "models", "llm", generate={"rows": max(options.clients), "room": 100 + options.tokens})
    generator = np.random.default_rng(0)
    prompts = lambda n: generator.integers(1, 1000, [n, 100]).tolist()
    with triton(home) as (port, server), concurrent.futures.ThreadPoolExecutor(max(options.clients)) as pool:
        for clients in options.clients:
            begin = time.perf_counter()
            first = sorted(1e3 * times[0] for times in pool.map(lambda prompt: stream(port, prompt, options.tokens), prompts(clients)))
            rate = clients * options.tokens / (time.perf_counter() - begin)
            print("%4d clients: %.0f tokens a second; the first after %.1f ms, 99%% within %.1f" % (
                clients, rate, first[clients // 2], first[int(clients * 0.99)]), flush=True)
    for clients in options.clients:
        run = lambda: tfuse.generate(model, prompts(clients), options.tokens, sampler="greedy", stop_token_ids=None)
        print("tfuse.generate, %d prompts: %.0f tokens a second" % (clients, rows_a_second(run, clients * options.tokens, 0)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "loads", "soak", "inputs", "streams"))
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser.add_argument("--clients", type=numbers, default=[1, 8, 64, 256])
    parser.add_argument("--megabytes", type=numbers, default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--duty", type=float, default=1, help="which share of the time there is load, in a soak")
    parser.add_argument("--model", choices=("dense", "bert", "resnet"), default="dense")
    parser.add_argument("--layers", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--dtype", default="float32", metavar="POLICY", help="of Keras, as mixed_bfloat16 (%(default)s)")
    parser.add_argument("--stock", action="store_true", help="a model without tfuse's ops")
    parser.add_argument("--max-batch", type=int, default=64)
    parser.add_argument("--instances", type=int, default=1, help="runs at a time (%(default)s)")
    parser.add_argument("--delay", type=int, default=0, help="microseconds that a request may wait for others")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is ended as well
    with tempfile.TemporaryDirectory() as temporary:
        home = pathlib.Path(temporary)
        if options.what == "streams":
            return streams(options, home)
        values = make_models(home, options)
        {"rates": rates, "loads": loads, "soak": soak, "inputs": inputs}[options.what](options, home, values)


if __name__ == "__main__":
    main()
