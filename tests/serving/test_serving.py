"""Models outside of Python: by the C API, in a C program, and in Triton where one is installed, with the results that Python has;
and the commands around them."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from multiprocessing import shared_memory

import keras
import numpy as np
import pytest
import tensorflow as tf

import servers
import tfuse
from conftest import GPUS, ROOT
from infer import NAMES, Client, Refused
from load import Load
from servers import NO_TRITON, free_port, like_a_server, start
from tfuse._core import _library
from tfuse._tools import _check, _config, _export, _model, _serve
hub = pytest.importorskip("keras_hub")

try:
    _model.file("libtfuse_model.so")
except _model.NotThere as error:
    pytestmark = pytest.mark.skip(str(error))


def bert():
    backbone = hub.models.BertBackbone(vocabulary_size=50, num_layers=1, num_heads=2, hidden_dim=32, intermediate_dim=64,
                                       max_sequence_length=16)
    return hub.models.BertTextClassifier(backbone=backbone, num_classes=3, preprocessor=None)


def resnet():
    backbone = hub.models.ResNetBackbone([64], [7], [64, 64], [1, 1], [1, 2], "basic_block", image_shape=(16, 16, 3))
    return hub.models.ResNetImageClassifier(backbone=backbone, num_classes=4, preprocessor=None)


class Strings(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "s"), tf.TensorSpec([], tf.int32, "k")])
    def join(self, s, k):
        return {"joined": tf.strings.join([s, tf.strings.as_string(k)], "-"), "k": k + 1}

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, "ids")])
    def sums(self, ids):
        """Fails for a 13, and has one result for each row and one for each step."""
        with tf.control_dependencies([tf.debugging.assert_none_equal(ids, 13, message="an unlucky number")]):
            return {"sum": tf.reduce_sum(ids, 1), "doubled": ids * 2}


class Grow(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([1], tf.int64, "n")])
    def grow(self, n):
        """Makes n x n numbers, which a small request can ask for any number of."""
        return {"sum": tf.reduce_sum(tf.fill(tf.concat([n, n], 0), tf.cast(n[0], tf.float32)))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of models, some with a configuration; expected() of a model gives what Python has."""
    home = tmp_path_factory.mktemp("models")
    keras.utils.set_random_seed(0)
    for name, make in (("bert", bert), ("resnet", resnet)):
        make().save(home / (name + ".keras"))
        for stock in (False, True):
            _export.export(home / (name + ".keras"), home / "served", name + "_stock" * stock, stock=stock, max_batch=8, delay=2000)
    strings = Strings()
    tf.saved_model.save(strings, home / "served/strings/1/model.savedmodel", signatures=strings.join)
    tf.saved_model.save(strings, home / "sums", signatures=strings.sums)
    grow = Grow()
    tf.saved_model.save(grow, home / "served/grow/1/model.savedmodel", signatures=grow.grow)
    _export.export(home / "sums", home / "served", "sums", max_batch=8, delay=2000, ragged="ids:1,doubled:1")
    return home


MODELS = ["bert", "bert_stock", "resnet", "resnet_stock"]


def saved(folder, name):
    return folder / "served" / name / "1/model.savedmodel"


def values_for(folder, name, rows):
    """Numbers for a BERT, whose sequences have 16 tokens, or for a ResNet."""
    generator, inputs = np.random.default_rng(0), _export.signature(saved(folder, name))[0]
    if "token_ids" not in inputs:
        return {key: generator.standard_normal([rows, *spec.shape[1:]]).astype(np.float32) for key, spec in inputs.items()}
    return {"padding_mask": np.ones([rows, 16], np.int32), "segment_ids": np.zeros([rows, 16], np.int32),
            "token_ids": generator.integers(1, 50, [rows, 16]).astype(np.int32)}


def expected(folder, name, values):
    function = tf.saved_model.load(str(saved(folder, name))).signatures["serving_default"]
    return {key: value.numpy() for key, value in function(**{k: tf.constant(v) for k, v in values.items()}).items()}


def same_bits(got, wanted):
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value, strict=True)


# ---- the C API ----


@pytest.mark.parametrize("name", MODELS)
def test_the_c_api_gives_what_python_gives(folder, name):
    model = _model.Model(saved(folder, name))
    values = values_for(folder, name, 5)
    assert any("Tfuse>" in op for op in _check.ops_in(saved(folder, name))) != name.endswith("stock")
    wanted = expected(folder, name, values)
    same_bits(model.run(values), wanted)
    results, threads = [None] * 4, []
    for i in range(len(results)):
        threads.append(threading.Thread(target=lambda i=i: results.__setitem__(i, model.run(values))))
        threads[-1].start()
    for thread, i in zip(threads, range(len(results))):
        thread.join()
        same_bits(results[i], wanted)
    model.close()


def test_options(folder):
    """Threads, XLA and the CPU by name are heard: a wrong one would be an error of the session."""
    values = values_for(folder, "resnet_stock", 2)
    model = _model.Model(saved(folder, "resnet_stock"), device="CPU", inter_threads=2, intra_threads=2, xla=1)
    with tf.device("CPU"):
        (wanted,) = expected(folder, "resnet_stock", values).values()
    (got,) = model.run(values).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    model.close()


def test_strings_and_scalars(folder):
    model = _model.Model(saved(folder, "strings"))
    assert model.inputs["s"].shape.as_list() == [None] and model.inputs["k"].shape.rank == 0
    got = model.run({"s": ["a", "é", "", "x" * 100], "k": np.int32(7)})
    assert got["joined"].tolist() == [b"a-7", "é-7".encode(), b"-7", b"x" * 100 + b"-7"] and got["k"] == 8
    model.close()


def test_what_the_c_api_refuses(folder, tmp_path):
    model = _model.Model(saved(folder, "sums"), most_bytes=1000)
    for values, why in [([[1.5]], "input ids must be int32, got float64"), (np.int32([1]), r"input ids must have shape \[\?, \?\]"),
                        (np.zeros([100, 10], np.int32), "the inputs are 4000 bytes, and the limit is 1000"),
                        (np.int32([[13]]), "an unlucky number")]:
        with pytest.raises(_model.NotThere, match=why):
            model.run({"ids": values})
    assert model.run({"ids": np.int32([[1, 2]])})["sum"] == 3  # all the same afterwards
    model.close()
    broken = tmp_path / "broken"
    shutil.copytree(saved(folder, "bert"), broken)
    (broken / "variables/variables.index").write_bytes(b"")
    if not GPUS:
        with pytest.raises(_model.NotThere, match="GPU was asked for, and TensorFlow .* sees none"):
            _model.Model(saved(folder, "sums"), device="GPU")
    for make, why in [(lambda: _model.Model(tmp_path / "nowhere"), "No such file"), (lambda: _model.Model(broken), "checkpoint|sstable|corrupt"),
                      (lambda: _model.Model(saved(folder, "sums"), "other"), "has no signature other"),
                      (lambda: _model.Model(saved(folder, "sums"), tags="train"), 'no graph with the tags "train"')]:
        with pytest.raises(_model.NotThere, match=why):
            make()


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_the_example_in_c(folder, tmp_path, capsys):
    """Compiled by the one command that it names; it finds TensorFlow by itself."""
    assert _config.main(["--cflags", "--libs"]) == 0
    flags = capsys.readouterr().out.split()
    subprocess.run(["cc", "-Wall", "-Werror", ROOT / "examples/serve.c", "-o", tmp_path / "serve", *flags], check=True)
    environment = {**os.environ, "TFUSE_TENSORFLOW": _model.tensorflow_folder(), "TFUSE_LIBRARY": _library.path}
    call = lambda path: subprocess.run([tmp_path / "serve", path], env=environment, capture_output=True, text=True)
    wanted = expected(folder, "resnet", {key: np.ones_like(value) for key, value in values_for(folder, "resnet", 1).items()})
    done = call(saved(folder, "resnet"))
    (name, value), = wanted.items()
    assert done.returncode == 0, done.stderr
    head, _, number = done.stdout.strip().rpartition(" ")
    assert head == "%s: float32, rank 2, 1 × 4; begins with" % name and np.float32(number) == value[0, 0]
    assert call("/nowhere").returncode == 1 and "No such file" in call("/nowhere").stderr


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_ops_that_are_linked_into_a_program(folder, tmp_path, capsys):
    """As TensorFlow Serving has them: the archive, and no libtfuse.so."""
    archive, tensorflow = pathlib.Path(_library.path).with_name("libtfuse.a"), _model.tensorflow_folder()
    if not archive.exists():
        pytest.skip("./run build //:libtfuse.a makes it")
    _config.main([])
    flags = capsys.readouterr().out.split()
    environment = {name: value for name, value in os.environ.items() if name != "TFUSE_LIBRARY"}
    for linked in (False, True):
        ops = ["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive", "-L" + tensorflow, "-l:libtensorflow_framework.so.2",
               "-Wl,-rpath," + tensorflow, "-lm"]
        subprocess.run(["cc", ROOT / "examples/serve.c", "-o", tmp_path / "serve", *flags, *ops * linked], check=True)
        done = subprocess.run([tmp_path / "serve", saved(folder, "resnet")], env={**environment, "TFUSE_TENSORFLOW": tensorflow},
                              capture_output=True, text=True)
        assert done.returncode == 1 - linked, done.stderr
        assert "1 × 4" in done.stdout if linked else "needs tfuse's ops" in done.stderr


# ---- commands ----


def test_what_export_writes(folder, capsys):
    home = folder / "served/sums"
    text = (home / "config.pbtxt").read_text()
    for line in ('backend: "tfuse"', "max_batch_size: 8", "  dims: [-1]\n  allow_ragged_batch: true",
                 '  name: "sum"\n  data_type: TYPE_INT32\n  dims: [1]\n  reshape { shape: [] }',
                 "dynamic_batching { max_queue_delay_microseconds: 2000 }", '{ string_value: "ids:1,doubled:1" }'):
        assert line in text, text
    assert json.loads((home / "request.json").read_text()) == {
        "inputs": [{"name": "ids", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}
    assert sorted(path.name for path in home.iterdir()) == ["1", "config.pbtxt", "request.json"]
    with pytest.raises(SystemExit, match="is there already"):
        _export.main([str(folder / "sums"), str(folder / "served")])
    with pytest.raises(SystemExit, match="there is no nothing.keras"):
        _export.main(["nothing.keras", str(folder / "served")])
    assert not [path for place in (folder, folder / "served") for path in place.iterdir() if path.name.startswith(".")]


def test_a_server_sees_no_half_of_a_model(folder, tmp_path, monkeypatch):
    """Every folder beside the models is a model to Triton. Where there is no place outside, it is in there."""
    seen, write = [], _export.write_model
    monkeypatch.setattr(_export, "write_model", lambda *arguments: seen.append(os.listdir(tmp_path / "served")) or write(*arguments))
    assert _export.main([str(folder / "sums"), str(tmp_path / "served")]) == 0
    assert seen == [[]]
    monkeypatch.setattr(_export.os, "access", lambda path, mode: False)
    assert _export.main([str(folder / "sums"), str(tmp_path / "served"), "--version", "2"]) == 0
    assert sorted(seen[1]) == [".served.sums.2", "sums"] and os.listdir(tmp_path / "served") == ["sums"]


def test_export_says_what_json_has_not(tmp_path, capsys):
    module = tf.Module()
    module.call = tf.function(lambda x: {"y": x}, input_signature=[tf.TensorSpec([None], tf.bfloat16, name="x")])
    tf.saved_model.save(module, str(tmp_path / "half"), signatures=module.call)
    assert _export.main([str(tmp_path / "half"), str(tmp_path / "served")]) == 0
    assert "x, y: Triton has floats of 16 bits only as bytes" in capsys.readouterr().err


def test_export_keeps_what_is_there(folder, tmp_path, capsys):
    """A configuration that was changed by hand, and a version, whatever it has in it."""
    saved, home = tmp_path / "models/qwen2.5_3b", tmp_path / "qwen2.5_3b"
    shutil.copytree(folder / "sums", saved)
    export = lambda version: _export.main([str(saved / "../qwen2.5_3b"), str(tmp_path), "--version", str(version)])
    config, old = home / "config.pbtxt", home / "config.pbtxt.old"
    assert export(1) == export(2) == 0 and not old.exists()
    made, text = config.read_text(), "# by hand\n" + config.read_text()
    config.write_text(text)
    capsys.readouterr()
    assert export(3) == 0 and "is kept as config.pbtxt.old" in capsys.readouterr().err
    assert old.read_text() == text and config.read_text() == made
    assert sorted(path.name for path in home.iterdir()) == ["1", "2", "3", "config.pbtxt", "config.pbtxt.old", "request.json"]
    (home / "4").mkdir()
    config.write_text(text)
    with pytest.raises(SystemExit, match="4 is there already"):
        export(4)
    assert config.read_text() == text


def test_what_export_refuses(folder, tmp_path, capsys):
    export = lambda *arguments: _export.main([str(folder / "sums"), str(tmp_path / "served"), *arguments])
    for ragged, why in (("ids:1 other:1", "other:1 names none of the model's: it has doubled, ids, sum"),
                        ("ids", "ids names none"), ("ids:0", "ids has axes 1 to 1"), ("ids:2", "ids has axes 1 to 1"),
                        ("ids:x", "ids has axes 1 to 1")):
        with pytest.raises(SystemExit, match=why):
            export("--ragged", ragged)
    with pytest.raises(SystemExit, match="--ragged is for batches, and there are none"):
        export("--ragged", "ids:1", "--max-batch", "0")
    for arguments, why in ((["--generate", "--max-batch", "4", "--stock"], "--stock, --max-batch: not with --generate"),
                           (["--rows", "4"], "--rows: only with --generate"),
                           (["--generate", "--rows", "0"], "at least 1, got 0"), (["--delay", "-5"], "at least 0, got -5"),
                           (["--generate", "--room", "-1"], "at least 1, got -1"), (["--max-batch", "-3"], "at least 0, got -3"),
                           (["--max-batch", "99999999999"], "got 99999999999"), (["--delay", "x"], "at least 0, got x")):
        with pytest.raises(SystemExit):
            export(*arguments)
        assert why in capsys.readouterr().err
    with pytest.raises(SystemExit, match="--stock: .*sums is a SavedModel"):
        export("--stock")
    for name in ("a/b", "../oops", ".."):
        with pytest.raises(SystemExit, match="--name is the name of a folder in .*, without a path, got " + re.escape(name)):
            export("--name", name)
    with pytest.raises(SystemExit, match="text is a file, and DIR is the folder of models"):
        (tmp_path / "text").touch()
        _export.main([str(folder / "sums"), str(tmp_path / "text")])
    with pytest.raises(SystemExit, match="text is no model"):
        _export.main([str(tmp_path / "text"), str(tmp_path / "served")])
    assert not list((tmp_path / "served").glob("*"))
    assert export("--ragged", "ids:1  doubled:1") == 0
    assert '{ string_value: "ids:1,doubled:1" }' in (tmp_path / "served/sums/config.pbtxt").read_text()


def test_open_sizes_are_some_that_the_model_takes(tmp_path, capsys):
    x = keras.Input([None, None, 3], name="picture")
    y = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3)(keras.layers.MaxPooling2D()(keras.layers.Conv2D(4, 3)(x))))
    keras.Model(x, y).save(tmp_path / "conv.keras")
    for options, size in (["--name", "found"], 8), (["--name", "asked", "--size", "40"], 40), (["--name", "none", "--size", "2"], 1):
        assert _export.main([str(tmp_path / "conv.keras"), str(tmp_path / "served"), *options]) == 0
        home = tmp_path / "served" / options[1]
        request, = json.loads((home / "request.json").read_text())["inputs"]
        assert request["shape"] == [1, size, size, 3]
        warmed = "dims: [%d, %d, 3]" % (size, size) in (home / "config.pbtxt").read_text()
        said = capsys.readouterr().err
        assert warmed != (options[1] == "none") and ("a first run with open sizes of 2 failed: " in said) != warmed
    with pytest.raises(SystemExit, match="--ragged picture:3: that axis is always 3"):
        _export.main([str(tmp_path / "conv.keras"), str(tmp_path / "served"), "--name", "ragged", "--ragged", "picture:3"])


def test_check(folder, tmp_path, capsys):
    assert _check.main([str(saved(folder, "bert")), "--batches", "2", "--size", "16", "--seconds", "0.05"]) == 0
    said = capsys.readouterr().out
    assert "tfuse's are " in said and "Attention" in said and "batch 2: " in said and said.endswith(" ms, and the same bits\n")
    assert _check.main([str(folder / "resnet.keras"), "--stock", "--batches", "1", "--seconds", "0.01"]) == 0
    assert "tfuse's are 0\n" in capsys.readouterr().out
    assert _check.main([str(saved(folder, "strings")), "--batches", "2", "--seconds", "0.01"]) == 0
    assert "the same bits" in capsys.readouterr().out
    assert _check.main([str(folder / "served/bert"), "--batches", "1", "--size", "16", "--seconds", "0.01"]) == 0  # what export wrote
    assert _check.main([str(saved(folder, "bert")), "--batches", "1", "--size", "600", "--seconds", "0.01"]) == 1
    assert "it fails with a batch of 1 and open sizes of 600: " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="served is neither a SavedModel nor a preset"):
        _check.main([str(folder / "served")])
    with pytest.raises(SystemExit):
        _check.main([str(saved(folder, "bert")), "--batches", "a"])
    assert "must be a number of at least 1, got a" in capsys.readouterr().err
    strings = Strings()
    for i, signatures in enumerate(({"only": strings.sums}, {"sums": strings.sums, "join": strings.join})):
        tf.saved_model.save(strings, tmp_path / str(i), signatures=signatures)
    check = lambda i, *arguments: _check.main([str(tmp_path / str(i)), "--batches", "1", "--seconds", "0.01", *arguments])
    assert check(0) == 0 and check(1, "--signature", "sums") == 0 and check(1) == 1
    assert "has no signature serving_default: it has join, sums" in capsys.readouterr().err
    numbers, texts = np.float32([0.0, 1.0]), np.array([b"a", b"b"], object)
    assert _check.same(numbers, numbers.copy()) and not _check.same(numbers, np.float32([-0.0, 1.0]))
    assert _check.same(texts, texts.copy()) and not _check.same(texts, texts[::-1])


STAND_IN = """#!%s
import http.server, os, sys
arguments = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
print(*sys.argv, flush=True)
if "fail" in arguments: sys.exit(3)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if "die" in arguments:
            self.wfile.flush()
            print("the last words", flush=True)
            os._exit(4)
http.server.HTTPServer((arguments["http-address"], int(arguments["http-port"])), Handler).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path):
    path = tmp_path / "tritonserver"
    path.write_text(STAND_IN % sys.executable)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_serve_starts_and_ends_a_server(folder, stand_in, tmp_path, monkeypatch):
    """Whose answer it gets itself, whatever proxy there is for others."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    port, log = free_port(), tmp_path / "log"
    process = start(folder / "served", "--triton", stand_in, "--http-port", port, "--grpc-port", 0, "--metrics-port", 0,
                    "--log", log, "--wait", 60, "--", "--more=1")
    assert process.stdout.readline() == "http://127.0.0.1:%d/v2/models/bert/infer\n" % port
    said = log.read_text()
    assert "--model-repository=%s" % (folder / "served") in said and "--more=1" in said and "--allow-grpc=false" in said
    backends = pathlib.Path(said.partition("--backend-directory=")[2].split()[0])
    assert (backends / "tensorflow/libtriton_tensorflow.so").resolve() == _model.file("libtriton_tfuse.so").resolve()
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143 and not backends.exists()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 1)


@contextlib.contextmanager
def answers(server, text):
    """A thread that answers one client's first words in these, and closes the connection; None: it says nothing."""
    done = threading.Event()

    def answer():
        with server.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(text) if text is not None else done.wait()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("text, patience, why", [(b"HTTP/1.1 200 OK\r\n", 60, "has closed a connection"),
                                                 (None, 0.1, "has answered nobody for 0.1 seconds")])
def test_load_ends_with_its_server(text, patience, why):
    with socket.create_server(("127.0.0.1", 0)) as server, answers(server, text):
        load = Load(server.getsockname()[1], "m", {"x": np.zeros(1, np.float32)}, 1)
        with pytest.raises(SystemExit, match=why):
            load.run(1, patience=patience)
        load.close()


def test_serve_says_what_is_wrong(folder, stand_in, tmp_path, monkeypatch, capsys):
    ports = ["--http-port", free_port(), "--grpc-port", 0, "--metrics-port", 0]
    serve = lambda *arguments: _serve.main([str(folder / "served"), *map(str, arguments)])
    assert serve("--triton", stand_in, *ports, "--", "--fail") == 1
    assert "the server ended with status 3" in capsys.readouterr().err
    assert serve("--triton", stand_in, *ports, "--log", os.devnull, "--", "--fail") == 1
    assert "the server ended with status 3; what it said went to /dev/null" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="there is no folder .*nowhere"):
        _serve.main([str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match="bert is one model: python -m tfuse serve .*served serves the folder that it is in"):
        _serve.main([str(folder / "served/bert")])
    for words in ("--http-port", "99999"), ("--grpc-port", "x"), ("--http-port", "0"):
        with pytest.raises(SystemExit):
            serve(*words)
        assert "must" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="nowhere is not a program"):
        serve("--triton", "nowhere")
    monkeypatch.setenv("PATH", str(stand_in.parent))
    assert _serve.find_triton(stand_in.name) == str(stand_in)
    assert serve("--triton", stand_in, *ports, "--", "--die") == 1  # once it was ready
    said = capsys.readouterr()
    assert "the last words\nthe server ended with status 4" in said.err and "/v2/models/bert/infer" in said.out
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(SystemExit, match="cannot be had: .*: --grpc-port takes another"):
            serve("--triton", stand_in, *ports[:2], "--grpc-port", other.getsockname()[1])
        with answers(other, b"SSH-2.0-other\r\n"):
            assert not _serve.is_ready("127.0.0.1", other.getsockname()[1])
    with pytest.raises(SystemExit):
        serve("--http-port", 0)
    assert "--http-port: must not be 0" in capsys.readouterr().err
    monkeypatch.setattr(_serve, "find_triton", lambda named: None)
    with pytest.raises(SystemExit, match="pip install nvidia-pytriton"):
        serve()
    with pytest.raises(SystemExit, match="has no models"):
        (tmp_path / "empty").mkdir()
        _serve.main([str(tmp_path / "empty")])


def test_what_a_server_said_of_errors():
    table = "+------+\n| models | %s |\n+------+\n" % ("x" * 5000)
    why = "E1119 10:11:12.1 7 model_lifecycle.cc:660] failed to load 'a' version 1: Internal: no variables"
    assert _serve.said("I1119 hello\n%s\n%sI1119 end\n%s" % (why, table, why)) == why
    assert _serve.said("I1119 hello\n%sI1119 end\n" % table) == "I1119 hello\nI1119 end"


def test_a_second_signal_leaves_no_server():
    class Slow:
        killed = False
        poll = terminate = lambda self: None

        def wait(self, seconds=None):
            if seconds:
                raise KeyboardInterrupt

        def kill(self):
            self.killed = True

    slow = Slow()
    with pytest.raises(KeyboardInterrupt):
        _serve.end(slow)
    assert slow.killed


def test_serve_in_a_container(folder, tmp_path, monkeypatch):
    """What docker is called with: everything is mounted where it lies, and cannot be written."""
    monkeypatch.setattr(_serve.shutil, "which", lambda name: "/bin/docker" if name == "docker" else None)
    chosen = _serve.parser().parse_args([str(folder / "served"), "--image", "an/image"])
    chosen.rest = []
    call = _serve.container_command(chosen)
    assert call[:2] == ["/bin/docker", "run"] and call[call.index("an/image") + 1] == "tritonserver"
    assert "--volume=%s:%s:ro" % (folder / "served", folder / "served") in call and "--model-repository=%s" % (folder / "served") in call
    assert "--volume=%s:/opt/tritonserver/backends/tensorflow/libtriton_tensorflow.so:ro" % _model.file("libtriton_tfuse.so").resolve() in call
    assert all(word.endswith(":ro") for word in call if word.startswith("--volume="))
    monkeypatch.setattr(_serve.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="docker or podman"):
        _serve.container_command(chosen)


# ---- Triton itself ----


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
