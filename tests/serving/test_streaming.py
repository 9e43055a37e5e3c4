"""Generation outside of Python: exported steps, and Triton's streams over HTTP and gRPC, give the tokens of tfuse.generate."""

import http.client
import json
import queue
import threading
import time

import keras
import numpy as np
import pytest
import servers
import tensorflow as tf

import tfuse
from infer import Client
from servers import like_a_server
from tfuse._tools import _check, _export, _model, _serve

hub = pytest.importorskip("keras_hub")
WORDS, ROWS, ROOM = 97, 8, 256
RNG = np.random.default_rng(0)
COMMON = RNG.integers(1, WORDS, 140).tolist()
PROMPTS = [COMMON[:int(RNG.integers(0, 140)) * int(i % 3 == 0)] + RNG.integers(1, WORDS, int(RNG.integers(1, 100))).tolist()
           for i in range(64)]
NEW = [int(n) for n in RNG.integers(1, 17, 64)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A small Llama, and a folder with it: as `llm`, and as `tight`, whose cache has room for one long request."""
    home = tmp_path_factory.mktemp("streams")
    keras.utils.set_random_seed(3)
    backbone = hub.models.LlamaBackbone(vocabulary_size=WORDS, num_layers=2, num_query_heads=4, num_key_value_heads=2,
                                        hidden_dim=32, intermediate_dim=64)
    hub.models.LlamaCausalLM(backbone).save(home / "llm.keras")
    for name, pages in (("llm", None), ("tight", ROOM // 64)):
        options = {"rows": ROWS, "room": ROOM, "pages": pages, "batch_invariant": True}  # the same to the bit on GPUs, too
        _export.export(home / "llm.keras", home / "served", name, generate=options)
    return home


@pytest.fixture(scope="module")
def wanted(home):
    """What Python generates greedily for PROMPTS."""
    return tfuse.generate(keras.saving.load_model(home / "llm.keras"), PROMPTS, NEW, sampler="greedy",
                          batch_invariant=True)


def test_exported_steps(home, wanted):
    """A prompt that is read in two chunks, and then steps of two sequences, one and four at a time."""
    steps = tf.saved_model.load(str(home / "served/llm/1/model.savedmodel")).signatures
    assert {name: int(value) for name, value in steps["about"]().items()} == {"page": 64, "room": ROOM, "words": WORDS}
    steps["reset"](pages=tf.constant(8, tf.int64))
    chosen = [max(range(64), key=lambda i: len(PROMPTS[i])), 1]
    pages, tables = [[5, 2, 7, 1], [3, 0, 6, 4]], np.zeros([ROWS, 4], np.int64)
    for row, i in enumerate(chosen):
        tables[row] = pages[row]
        for begin in range(0, len(PROMPTS[i]) - 1, 64):
            at = np.arange(begin, min(begin + 64, len(PROMPTS[i]) - 1))
            ints = np.zeros([3, 64], np.int64)
            ints[1] = -1
            ints[:, 64 - len(at):] = np.array(PROMPTS[i])[at], tables[row][at // 64] * 64 + at % 64, at
            steps["read_64"](ints=ints, table=tables[row:row + 1], lengths=at[-1:] + 1)
    found = [[], []]
    for times in (1, 4, 1, 4, 4):
        ints, floats = np.zeros([8, ROWS], np.int64), np.zeros([2, ROWS], np.float32)
        ints[2], ints[6], floats[1] = 1, -1, 1  # done, and without a place
        for row, i in enumerate(chosen):
            text = PROMPTS[i] + found[row]
            last = len(text) - 1
            ints[:, row] = len(text), ROOM, 0, 0, 0, text[-1], tables[row, last // 64] * 64 + last % 64, last
        tokens = steps["decode_%d_%d" % (ROWS, times)](ints=ints, floats=floats, table=tables)["tokens"].numpy()
        for row in range(2):
            found[row] += tokens[row].tolist()
    for row, i in enumerate(chosen):
        assert found[row][:NEW[i]] == wanted[i][:len(found[row])]


def test_a_cache_that_no_memory_holds(home):
    """Is an error of the server when it loads the model, in the words of TensorFlow."""
    model = _model.Model(home / "served/llm/1/model.savedmodel", "reset")
    with pytest.raises(_model.NotThere, match="(?i)oom|memory"):
        model.run({"pages": np.int64(10 ** 10)})
    assert model.run({"pages": np.int64(4)})["pages"] == 4
    model.close()


def test_commands_know_it(home, capsys):
    """What `serve` prints of it, and what `check` says."""
    assert _serve.method(home / "served/llm") == "generate_stream" and _serve.method(home) == "infer"
    assert _check.main([str(home / "served/llm/1/model.savedmodel")]) == 0
    assert "it generates token by token, so it is not timed here" in capsys.readouterr().out


def test_what_is_not_exported(home, tmp_path):
    x = keras.Input([4], name="x")
    keras.Model(x, keras.layers.Dense(2)(x)).save(tmp_path / "dense.keras")
    with pytest.raises(SystemExit, match="dense.keras cannot be served so"):
        _export.main([str(tmp_path / "dense.keras"), str(tmp_path), "--generate"])
    text = (home / "served/tight/config.pbtxt").read_text()
    assert "decoupled: true" in text and 'key: "TFUSE_PAGES" value: { string_value: "4" }' in text


# ---- Triton itself ----


@pytest.fixture(scope="module")
def ports(home):
    try:
        _model.file("libtriton_tfuse.so")
    except _model.NotThere as error:
        pytest.skip(str(error))
    if not _serve.find_triton():
        pytest.skip(servers.NO_TRITON)
    grpc_port = servers.free_port()
    with servers.triton(home / "served", home / "log", grpc_port=grpc_port) as port:
        yield port, grpc_port


def stream(port, model, most=None, **request):
    """Tokens of one request over HTTP, as server-sent events; after `most` of them the client vanishes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v2/models/%s/generate_stream" % model, json.dumps(request))
    answer, found = connection.getresponse(), []
    for line in answer:
        if answer.status != 200 or b'"error"' in line:
            raise RuntimeError(line.decode())
        if line.startswith(b"data:"):
            found.append(json.loads(line[5:])["token_id"])
            if len(found) == most:
                break
    connection.close()
    return found


def statistics(port, model):
    return json.loads(Client(port).send("GET", "/v2/models/%s/stats" % model)[2])["model_stats"][0]["inference_stats"]


def in_threads(calls):
    results, threads = [None] * len(calls), []

    def call(i):
        try:
            results[i] = calls[i]()
        except Exception as error:
            results[i] = error

    for i in range(len(calls)):
        threads.append(threading.Thread(target=call, args=[i]))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return results


def test_many_at_once_over_http(ports, wanted):
    """All together, some of whose clients vanish: the others get what Python has, and as many pages are free as before."""
    for model in ("llm", "tight"):
        failed = statistics(ports[0], model)["fail"]["count"]
        leaves = [1 if i % 7 == 3 else None for i in range(64)]
        new = [ROOM - len(PROMPTS[i]) if leaves[i] else NEW[i] for i in range(64)]  # those who leave ask for much
        got = in_threads([lambda i=i: stream(ports[0], model, leaves[i], token_ids=PROMPTS[i], max_new_tokens=new[i]) for i in range(64)])
        assert got == [tokens[:most] for tokens, most in zip(wanted, leaves)]
        whole = stream(ports[0], model, token_ids=COMMON, max_new_tokens=ROOM - len(COMMON))  # of `tight` it takes all pages
        assert len(whole) == ROOM - len(COMMON)
        assert statistics(ports[0], model)["fail"]["count"] > failed  # requests were cancelled


def test_samplers_and_stops(ports, home, wanted):
    first, second = (stream(ports[0], "llm", token_ids=PROMPTS[0], max_new_tokens=12, temperature=1.5, top_k=20, top_p=0.9, seed=seed)
                     for seed in (5, 5))
    assert first == second != stream(ports[0], "llm", token_ids=PROMPTS[0], max_new_tokens=12, temperature=1.5, seed=6)
    i = max(range(64), key=lambda i: NEW[i])
    stop = wanted[i][2]
    assert stream(ports[0], "llm", token_ids=PROMPTS[i], max_new_tokens=NEW[i], stop_token_ids=[stop]) == \
        wanted[i][:wanted[i].index(stop) + 1]


def test_what_is_refused(ports):
    before = statistics(ports[0], "llm")["fail"]["count"]
    for request, why in [({"token_ids": [WORDS], "max_new_tokens": 1}, "ids are from 0 to 96, got 97"),
                         ({"token_ids": [1], "max_new_tokens": 0}, "at least one new token; got 1 and 0"),
                         ({"token_ids": [1] * 10, "max_new_tokens": ROOM - 9}, "more than the 256 that a request may have"),
                         ({"token_ids": [1], "max_new_tokens": 1, "temperature": -1}, "must not be negative, got -1"),
                         ({"token_ids": [1]}, "max_new_tokens")]:
        with pytest.raises(RuntimeError, match=why):
            stream(ports[0], "llm", **request)
    assert statistics(ports[0], "llm")["fail"]["count"] > before


def test_many_at_once_over_grpc(ports, wanted):
    """By NVIDIA's own client: 64 requests on eight streams, one of which is cancelled while its requests run."""
    grpc = pytest.importorskip("tritonclient.grpc")

    def ask(client, i, new):
        inputs = []
        for name, dtype, value in (("token_ids", "INT32", np.array(PROMPTS[i], np.int32)), ("max_new_tokens", "INT32", np.array([new], np.int32))):
            inputs.append(grpc.InferInput(name, list(value.shape), dtype))
            inputs[-1].set_data_from_numpy(value)
        client.async_stream_infer("tight", inputs, request_id=str(i))

    def one_stream(some, cancelled):
        client, came, got, left = grpc.InferenceServerClient("127.0.0.1:%d" % ports[1]), queue.Queue(), {i: [] for i in some}, len(some)
        client.start_stream(lambda result, error: came.put((result, error)))
        try:
            for i in some:
                ask(client, i, ROOM - len(PROMPTS[i]) if cancelled else NEW[i])
            while left:
                result, error = came.get(timeout=60)
                assert error is None, error
                response = result.get_response()
                got[int(response.id)].append(int(result.as_numpy("token_id")[0]))
                if cancelled:
                    break
                left -= response.parameters["triton_final_response"].bool_param
        finally:
            client.stop_stream(cancel_requests=cancelled)
            client.close()
        return got

    before, failed = time.monotonic(), statistics(ports[0], "tight")["fail"]["count"]
    found = in_threads([lambda k=k: one_stream(range(k, 64, 8), k == 3) for k in range(8)])
    for k, got in enumerate(found):
        assert k == 3 and sum(map(len, got.values())) == 1 or got == {i: wanted[i] for i in range(k, 64, 8)}
    assert len(stream(ports[0], "tight", token_ids=COMMON, max_new_tokens=ROOM - len(COMMON))) == ROOM - len(COMMON)
    assert statistics(ports[0], "tight")["fail"]["count"] > failed and time.monotonic() - before < 60  # those that were cancelled
