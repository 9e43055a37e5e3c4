"""The commands around served models: export, check, serve."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import stat
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_encoding
from tensorflow.core.protobuf import saved_model_pb2

from exported import Strings, bert, folder, needs_library, saved
from load import Load
from servers import free_port, like_a_server, start
from tfuse._tools import _check, _export, _model, _names, _serve

pytestmark = needs_library


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


def named(path, name, signature="serving_default"):
    """Writes a SavedModel, whose input has this name in saved_model.pb."""
    module = tf.Module()
    module.w = tf.Variable(tf.ones([3]))
    module.call = tf.function(lambda plain: {"y": plain * module.w}, input_signature=[tf.TensorSpec([None, 3], tf.float32, "plain")])
    tf.saved_model.save(module, str(path), signatures=module.call)
    model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    signatures = model.meta_graphs[0].signature_def
    found = signatures["serving_default"]
    found.inputs[name].CopyFrom(found.inputs["plain"])
    del found.inputs["plain"]
    if signature != "serving_default":
        signatures[signature].CopyFrom(found)
        del signatures["serving_default"]
    (path / "saved_model.pb").write_bytes(model.SerializeToString())


HOSTILE = 'x"}}parameters{key:"TFUSE_LIBRARIES"value:{string_value:"/tmp/evil.so"}}#'


def test_a_models_names_configure_nothing(tmp_path):
    """They are strings of config.pbtxt, whatever is in them."""
    for i, name in enumerate((HOSTILE, "back\\slash'é", "a b")):
        named(tmp_path / ("m%d" % i), name, "by " + name)
        assert _export.main([str(tmp_path / ("m%d" % i)), str(tmp_path / "served"), "--signature", "by " + name]) == 0
        text = (tmp_path / ("served/m%d/config.pbtxt" % i)).read_text()
        outside = re.sub(r'"(\\.|[^"\\\n])*"', "S", text)
        assert "TFUSE_LIBRARIES" not in outside and outside.count("parameters") == 1 and '"' not in outside
        strings = [text_encoding.CUnescape(string).decode() for string in re.findall(r'(?:name|key|string_value): "((?:\\.|[^"\\])*)"', text)]
        assert strings.count(name) == 3 and "by " + name in strings  # the input and its two warm-ups


@pytest.mark.parametrize("name", ["a\nb", "\0", "", "a\x7f", "a\u2028b"])
def test_names_that_no_request_can_carry(tmp_path, name):
    named(tmp_path / "m", name)
    with pytest.raises(SystemExit, match="characters that no request can carry"):
        _export.main([str(tmp_path / "m"), str(tmp_path / "served")])
    assert os.listdir(tmp_path) == ["m", "served"] and not os.listdir(tmp_path / "served")


@pytest.mark.parametrize("name", ['a"b', ".hidden", "a b", "ä", "a\0b", "a\nb", "-x", "x" * 129, "a\\b"])
def test_names_that_no_model_can_have(folder, tmp_path, name):
    with pytest.raises(SystemExit, match="--name: a model's name is at most 128 letters.* got %s" % re.escape(ascii(name))):
        _export.main([str(folder / "sums"), str(tmp_path / "served"), "--name=" + name])
    with pytest.raises(SystemExit, match="a model's name is at most"):
        (tmp_path / "bad name").mkdir()
        _export.main([str(tmp_path / "bad name"), str(tmp_path / "served")])
    assert not (tmp_path / "served").exists()


def damaged(path, how):
    """Damages a SavedModel that has a variable."""
    named(path, "x")
    if how == "a folder":
        (path / "saved_model.pb").unlink()
        (path / "saved_model.pb").mkdir()
    if how == "garbage":
        (path / "saved_model.pb").write_bytes(b"\xff" * 100)
    if how == "empty":
        (path / "saved_model.pb").write_bytes(b"")
    if how == "no variables":
        shutil.rmtree(path / "variables")
    if how == "no index":
        (path / "variables/variables.index").write_bytes(b"")
    if how == "no data":
        next((path / "variables").glob("*.data-*")).write_bytes(b"")


@pytest.mark.parametrize("how, why", [
    ("a folder", "saved_model.pb cannot be read: Is a directory"), ("garbage", "saved_model.pb is damaged"),
    ("empty", "saved_model.pb has no graph"), ("no variables", "variables.index is missing, and the model has variables"),
    ("no index", "variables cannot be loaded: .*too short"), ("no data", "have 0 bytes, and the variables "),
])
def test_damaged_models(tmp_path, how, why):
    """Are refused in one line, by both commands."""
    damaged(tmp_path / "m", how)
    for command in (lambda: _export.main([str(tmp_path / "m"), str(tmp_path / "served")]),
                    lambda: _check.main([str(tmp_path / "m"), "--batches", "1", "--seconds", "0.01"])):
        with pytest.raises(SystemExit, match=why) as ended:
            command()
        assert len(str(ended.value).splitlines()) == 1
    assert not (tmp_path / "served/m").exists()
    (tmp_path / "cut.keras").write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(SystemExit, match="cut.keras cannot be loaded: "):
        _check.main([str(tmp_path / "cut.keras")])


def test_a_preset(tmp_path):
    """KerasHub wants to be told the class of the task, which the preset names."""
    bert().save_to_preset(str(tmp_path / "preset"))
    assert _export.main([str(tmp_path / "preset"), str(tmp_path / "served"), "--size", "8"]) == 0
    assert "token_ids" in (tmp_path / "served/preset/config.pbtxt").read_text()
    about = json.loads((tmp_path / "preset/task.json").read_text())
    (tmp_path / "preset/task.json").write_text(json.dumps({**about, "class_name": "Backbone"}))
    with pytest.raises(SystemExit, match="task.json names 'Backbone', which is no task of KerasHub"):
        _export.main([str(tmp_path / "preset"), str(tmp_path / "served"), "--version", "2"])
    (tmp_path / "preset/task.json").unlink()
    with pytest.raises(SystemExit, match="the preset has no task.json"):
        _export.main([str(tmp_path / "preset"), str(tmp_path / "served"), "--version", "2"])


def test_paths_that_are_not_utf8(folder, tmp_path):
    with pytest.raises(SystemExit, match="paths in UTF-8 alone"):
        _export.main([str(folder / "sums"), os.fsdecode(os.fsencode(tmp_path) + b"/\xff")])
    assert not os.listdir(tmp_path)


def test_a_batch_that_no_memory_has(folder, capsys):
    assert _check.main([str(saved(folder, "resnet_stock")), "--batches", "2000000000"]) == 1
    assert "it fails with a batch of 2000000000 and open sizes of 128: " in capsys.readouterr().out


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


def test_addresses(capsys):
    """Triton's HTTP server takes numbers alone, and those of IPv6 behind a prefix; gRPC and URLs want brackets."""
    parse = lambda address: _serve.parser().parse_args(["models", "--address", address])
    chosen = parse("::1")
    assert _names.host(chosen.address) == "[::1]" and _names.host("127.0.0.1") == "127.0.0.1"
    assert {"--http-address=ipv6:::1", "--grpc-address=[::1]", "--metrics-address=ipv6:::1"} <= set(_serve.ports(chosen))
    assert parse("localhost").address in ("127.0.0.1", "::1") and "--http-address=127.0.0.1" in _serve.ports(parse("127.0.0.1"))
    for address in ("a..b", "x" * 70, "a b", "no.such.host.invalid", "a\0b"):
        with pytest.raises(SystemExit) as ended:
            parse(address)
        assert ended.value.code == 2 and "is neither an address nor a name" in capsys.readouterr().err


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
