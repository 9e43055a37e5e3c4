"""Models in Triton, where one is installed, with the results that Python has."""

import json
import shutil
import socket
import threading
import time
from multiprocessing import shared_memory

import numpy as np
import pytest

import servers
from exported import MODELS, expected, folder, needs_library, same_bits, saved, values_for
from infer import NAMES, Client, Refused
from servers import NO_TRITON, like_a_server
from tfuse._tools import _serve

pytestmark = needs_library


@pytest.fixture(scope="module")
def triton(folder):
    """Its port, with all the models of the folder and some that cannot be loaded."""
    if not _serve.find_triton():
        pytest.skip(NO_TRITON)
    half = folder / "served/half/1/model.savedmodel"
    half.mkdir(parents=True)
    whole = (saved(folder, "sums") / "saved_model.pb").read_bytes()
    (half / "saved_model.pb").write_bytes(whole[:len(whole) // 2])
    with servers.triton(folder / "served", folder / "log", "--exit-on-error=false", "--strict-readiness=false",
                        "--model-control-mode=explicit", "--load-model=*") as port:
        yield port


def by_nvidias_client(port, name, values):
    http = pytest.importorskip("tritonclient.http")
    inputs = []
    for key, value in values.items():
        inputs.append(http.InferInput(key, value.shape, NAMES[value.dtype.name]))
        inputs[-1].set_data_from_numpy(value)
    with http.InferenceServerClient("127.0.0.1:%d" % port) as client:
        result = client.infer(name, inputs)
        return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def by_own_client(port, name, values):
    return Client(port).infer(name, values)


@pytest.mark.parametrize("infer", [by_own_client, by_nvidias_client])
@pytest.mark.parametrize("name", MODELS)
def test_triton_gives_what_python_gives(folder, triton, name, infer):
    values = values_for(folder, name, 5)
    same_bits(infer(triton, name, values), expected(folder, name, values))


def test_triton_strings_and_scalars(folder, triton):
    """Of a model without a configuration."""
    got = Client(triton).infer("strings", {"s": np.array(["a", "é"], object), "k": np.int32([7])})
    assert got["joined"].tolist() == [b"a-7", "é-7".encode()] and got["k"].tolist() == [8]


def test_triton_joins_ragged_requests_and_spares_the_good(folder, triton):
    """Many clients at a time, of different lengths; one of them has a number that fails."""
    before = statistics(triton, "sums")
    results, lengths = {}, [1, 3, 2, 7, 4, 1, 6, 5] * 4
    barrier = threading.Barrier(len(lengths))

    def ask(i):
        client, ids = Client(triton), np.full([1, lengths[i]], i + 14, np.int32)
        ids[0, 0] = 13 if i == 5 else ids[0, 0]
        barrier.wait()
        try:
            results[i] = client.infer("sums", {"ids": ids})
        except Refused as error:
            results[i] = str(error)

    threads = [threading.Thread(target=ask, args=[i]) for i in range(len(lengths))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for i, length in enumerate(lengths):
        if i == 5:
            assert "an unlucky number" in results[i]
        else:
            assert results[i]["sum"].tolist() == [[(i + 14) * length]] and results[i]["doubled"].tolist() == [[2 * (i + 14)] * length]
    after = statistics(triton, "sums")
    assert after["inference_count"] - before["inference_count"] >= len(lengths) - 1
    assert after["execution_count"] - before["execution_count"] < len(lengths)  # some were joined
    assert after["inference_stats"]["fail"]["count"] - before["inference_stats"]["fail"]["count"] == 1


def test_triton_takes_shared_memory(folder, triton):
    """Where it lies, and a byte further, where it is copied."""
    client, ids = Client(triton), np.arange(24, dtype=np.int32).reshape(4, 6) + 20
    memory = shared_memory.SharedMemory(create=True, size=4096)
    try:
        about = json.dumps({"key": "/" + memory.name, "offset": 0, "byte_size": memory.size})
        assert client.send("POST", "/v2/systemsharedmemory/region/ids/register", about)[0] == 200
        for offset in (0, 64, 65):
            memory.buf[offset:offset + ids.nbytes] = ids.tobytes()
            where = {"shared_memory_region": "ids", "shared_memory_byte_size": ids.nbytes, "shared_memory_offset": offset}
            head = json.dumps({"inputs": [{"name": "ids", "datatype": "INT32", "shape": [4, 6], "parameters": where}],
                               "parameters": {"binary_data_output": True}}).encode()
            got = client.infer("sums", body=(len(head), head))
            assert got["sum"].ravel().tolist() == ids.sum(1).tolist() and got["doubled"].tolist() == (ids * 2).tolist()
        assert client.send("POST", "/v2/systemsharedmemory/region/ids/unregister", b"{}")[0] == 200
    finally:
        memory.close()
        memory.unlink()


def statistics(port, name):
    _, _, data = Client(port).send("GET", "/v2/models/%s/stats" % name)
    return json.loads(data)["model_stats"][0]


def test_triton_survives_what_is_wrong(folder, triton):
    client = Client(triton)
    for values, why in [({"ids": np.float32([[1]])}, "data-type"), ({"other": np.int32([[1]])}, "other"), ({}, "input"),
                        ({"ids": np.int32([1])}, "shape"), ({"ids": np.zeros([9, 1], np.int32)}, "batch-size")]:
        with pytest.raises(Refused, match="(?i)" + why):
            client.infer("sums", values)
    for size in (2 ** 61, 2 ** 62 + 1, -5):  # as bytes: as JSON, Triton's own front end may die of it (docs/serving.md)
        head = json.dumps({"inputs": [{"name": "ids", "datatype": "INT32", "shape": [1, size], "parameters": {"binary_data_size": 4}}]})
        with pytest.raises(Refused):
            client.infer("sums", body=(len(head), head.encode() + bytes(4)))
    for _ in range(10):  # clients that vanish in the middle of a request, or before its answer
        with socket.create_connection(("127.0.0.1", triton)) as s:
            s.sendall(b"POST /v2/models/sums/infer HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{")
        with socket.create_connection(("127.0.0.1", triton)) as s:
            body = b'{"inputs": [{"name": "ids", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}'
            s.sendall(b"POST /v2/models/sums/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    status, _, text = client.send("POST", "/v2/repository/models/half/load", b"{}")
    assert status == 400 and b"damaged, or was not written to its end" in text
    assert client.infer("sums", {"ids": np.int32([[1, 2]])})["sum"].tolist() == [[3]]


def test_triton_survives_a_run_out_of_memory(folder, triton):
    """While others run."""
    client, others = Client(triton), Client(triton)
    wanted, sums = [i + 2 for i in range(20, 50)], []
    ask = lambda i: others.infer("sums", {"ids": np.int32([[i, 2]])})["sum"].item()
    thread = threading.Thread(target=lambda: sums.extend(ask(i) for i in range(20, 50)))
    thread.start()
    for _ in range(3):
        assert client.infer("grow", {"n": np.int64([3])})["sum"] == 27
        with pytest.raises(Refused, match="(?i)oom|memory"):
            client.infer("grow", {"n": np.int64([1 << 22])})  # 64 TiB
    thread.join()
    assert sums == wanted


def test_triton_keeps_a_version_while_the_next_is_half_written(folder, triton):
    """Also one whose files are there, and the last of them not to its end."""
    client, home = Client(triton), folder / "served/bert_stock"
    load = lambda: client.send("POST", "/v2/repository/models/bert_stock/load", b"{}")
    for cut in ("saved_model.pb", "variables/variables.index"):
        shutil.copytree(home / "1", home / "2")
        whole = (home / "2/model.savedmodel" / cut).read_bytes()
        (home / "2/model.savedmodel" / cut).write_bytes(whole[:len(whole) // 2])
        status, _, text = load()
        assert status == 400, text
        test_triton_gives_what_python_gives(folder, triton, "bert_stock", by_own_client)
        shutil.rmtree(home / "2")
    time.sleep(0.3)
    assert load()[0] == 200
    test_triton_gives_what_python_gives(folder, triton, "bert_stock", by_own_client)


def test_triton_loads_and_unloads(folder, triton):
    """With a pause: an unload right after a load can end Triton, whatever the backend (docs/serving.md)."""
    client = Client(triton)
    for _ in range(3):
        time.sleep(0.3)
        assert client.send("POST", "/v2/repository/models/resnet/unload", b"{}")[0] == 200
        assert client.send("POST", "/v2/repository/models/resnet/load", b"{}")[0] == 200
        test_triton_gives_what_python_gives(folder, triton, "resnet", by_own_client)
