"""python -m tfuse export MODEL DIR: a model as a folder that Triton serves."""

import argparse
import json
import os
import pathlib
import shlex
import shutil
import sys

import keras
import numpy as np
import tensorflow as tf

import tfuse
from tfuse._tools import _files, _names, _numbers, _saved_model

HELP = """Writes a model into a folder of models, as Triton serves them:

  DIR/NAME/config.pbtxt                inputs and outputs, and how requests are joined into batches
  DIR/NAME/1/model.savedmodel/         the SavedModel
  DIR/NAME/request.json                an example request

MODEL is a .keras file, the folder of a preset of KerasHub, or that of a SavedModel, which is copied. With --generate it is a
language model of KerasHub, and what is served is its generation: requests bring token ids, and get new ones as they come."""
EXAMPLES = """examples:
  python -m tfuse export classifier.keras models
  python -m tfuse export ./bert_preset models --name bert --max-batch 32 --ragged token_ids:1,padding_mask:1
  python -m tfuse export ./llama_preset models --name llama --generate --rows 32 --room 4096
  python -m tfuse serve models
  curl -d @models/classifier/request.json localhost:8000/v2/models/classifier/infer"""

# What Triton calls a dtype, in a configuration and in a request.
TYPES = {tf.bool: ("BOOL",) * 2, tf.uint8: ("UINT8",) * 2, tf.uint16: ("UINT16",) * 2, tf.uint32: ("UINT32",) * 2,
         tf.uint64: ("UINT64",) * 2, tf.int8: ("INT8",) * 2, tf.int16: ("INT16",) * 2, tf.int32: ("INT32",) * 2,
         tf.int64: ("INT64",) * 2, tf.float16: ("FP16",) * 2, tf.bfloat16: ("BF16",) * 2, tf.float32: ("FP32",) * 2,
         tf.float64: ("FP64",) * 2, tf.string: ("STRING", "BYTES")}

SIZES = 1, 8, 32, 128, 224  # that are tried where a model leaves sizes open


def in_model_folder(path):
    """The SavedModel of the latest version in a folder that export() has written; of anything else, the path itself."""
    found = [home for home in path.glob("*/model.savedmodel") if home.parent.name.isdecimal() and _saved_model.is_one(home)]
    return max(found, key=lambda home: int(home.parent.name), default=path)


def load(path):
    """A model of Keras, or a SystemExit that says what is wrong."""
    if not path.exists():
        raise SystemExit("there is no %s: a .keras file, a preset's folder or a SavedModel's is wanted" % path)
    if path.is_dir() and not (path / "config.json").exists():
        raise SystemExit("%s is neither a SavedModel nor a preset: it has no saved_model.pb and no config.json" % path)
    if path.is_file() and path.suffix not in (".keras", ".h5", ".hdf5"):
        raise SystemExit("%s is no model: a .keras file, a preset's folder or a SavedModel's is wanted" % path)
    return _files.loaded(path, _preset if path.is_dir() else keras.saving.load_model)


def _preset(path):
    """The task that a preset was saved from: KerasHub has to be told its class, which task.json names."""
    import keras_hub

    about = path / "task.json"
    if not about.exists():
        raise ValueError("the preset has no task.json: save the whole task by save_to_preset, not its backbone alone")
    named = json.loads(about.read_text())["class_name"]
    found = getattr(keras_hub.models, named, None)
    if not isinstance(found, type) or not issubclass(found, keras_hub.models.Task):
        raise ValueError("task.json names %s, which is no task of KerasHub %s" % (ascii(named), keras_hub.__version__))
    return found.from_preset(str(path))


def write_saved_model(path, out, stock=False):
    """The SavedModel of any model that load() knows, with tfuse's ops unless it shall be stock."""
    if _saved_model.is_one(path) and stock:
        raise SystemExit("--stock: %s is a SavedModel, which is copied with the ops that it has" % path)
    if _saved_model.is_one(path):
        _saved_model.check(path)
        shutil.copytree(path, out)
    elif stock:
        load(path).export(out, format="tf_saved_model", verbose=False)
    else:
        with tfuse.enabled():
            load(path).export(out, format="tf_saved_model", verbose=False)


def signature(folder, name="serving_default", tags=("serve",)):
    """{name: tf.TensorSpec} of the inputs and of the outputs of a SavedModel."""
    graph = next((graph for graph in _saved_model.graphs(folder) if set(graph.meta_info_def.tags) == set(tags)), None)
    if graph is None or name not in graph.signature_def:
        raise SystemExit("%s has no signature %s for %s: it has %s" % (
            folder, name, ", ".join(tags), ", ".join(sorted(graph.signature_def)) if graph else "no such graph"))
    found = graph.signature_def[name]
    return [{name: _saved_model.spec(name, ports[name]) for name in sorted(ports)} for ports in (found.inputs, found.outputs)]


def has_batch(ports):
    return all(spec.shape.rank is None or spec.shape.rank and spec.shape[0] is None for spec in ports.values())


def sizes(spec, batch, otherwise):
    """The sizes of a port as Triton has them: without the batch, and one at least; open ones are `otherwise`."""
    found = [otherwise if n is None else n for n in spec.shape.as_list()[batch:]]
    return found or [1]


def port_text(kind, name, spec, batch, ragged):
    lines = ["  name: %s" % _names.quoted(name), "  data_type: TYPE_%s" % TYPES[spec.dtype][0], "  dims: %s" % sizes(spec, batch, -1)]
    if batch and spec.shape.rank == 1:
        lines.append("  reshape { shape: [] }")
    if kind == "input" and name in ragged:
        lines.append("  allow_ragged_batch: true")
    return "%s {\n%s\n}\n" % (kind, "\n".join(lines))


def warm_up_text(batch, rows, inputs, size):
    ports = ['  inputs {\n    key: %s\n    value { data_type: TYPE_%s dims: %s zero_data: true }\n  }\n' % (
        _names.quoted(name), TYPES[spec.dtype][0], sizes(spec, batch, size)) for name, spec in inputs.items()]
    return 'model_warmup {\n  name: "a batch of %d"\n  batch_size: %d\n%s}\n' % (rows, rows if batch else 0, "".join(ports))


def ragged_axes(text, ports, batch):
    """{name: axis} of --ragged."""
    found = {}
    for part in text.replace(",", " ").split():
        name, _, axis = part.rpartition(":")
        if name not in ports:
            raise SystemExit("--ragged is NAME:AXIS for each, and %s names none of the model's: it has %s" % (
                part, ", ".join(sorted(ports))))
        rank = ports[name].shape.rank
        if not axis.isdecimal() or not 0 < int(axis) < rank:
            raise SystemExit("--ragged %s: %s has axes 1 to %d, after that of the batch" % (part, name, rank - 1))
        if ports[name].shape[int(axis)] is not None:
            raise SystemExit("--ragged %s: that axis is always %d" % (part, ports[name].shape[int(axis)]))
        found[name] = int(axis)
    if found and not batch:
        raise SystemExit("--ragged is for batches, and there are none: they need a --max-batch above 0, and a model whose "
                         "inputs and outputs all have an open first size")
    return found


def check_ports(ports):
    for port, spec in ports.items():
        _names.check_port(port)
        if spec.dtype not in TYPES or spec.shape.rank is None:
            raise SystemExit("%s is %s %s, which Triton has no word for: export it with another signature" % (
                port, spec.dtype.name, spec.shape))


def config_text(name, inputs, outputs, batch, delay=0, ragged="", signature="serving_default", size=1):
    """config.pbtxt: batches of so many rows, if any, and a first run before the first request, with this for open sizes; none
    without it."""
    axes = ragged_axes(ragged, {**inputs, **outputs}, batch)
    text = 'name: %s\nbackend: "tfuse"\nmax_batch_size: %d\n' % (_names.quoted(name), batch)
    for kind, ports in (("input", inputs), ("output", outputs)):
        text += "".join(port_text(kind, port, spec, bool(batch), axes) for port, spec in ports.items())
    text += "instance_group { count: 1 }\n"  # one run uses all cores, or the GPU
    if batch:
        text += "dynamic_batching { max_queue_delay_microseconds: %d }\n" % delay
    for rows in sorted({1, batch or 1}) if size else ():
        text += warm_up_text(bool(batch), rows, inputs, size)
    for key, value in (("TF_SIGNATURE_DEF", signature), ("TFUSE_RAGGED", ",".join("%s:%d" % pair for pair in axes.items()))):
        if value and value != "serving_default":
            text += parameter_text(key, value)
    return text


def parameter_text(key, value):
    return "parameters { key: %s value: { string_value: %s } }\n" % (_names.quoted(key), _names.quoted(str(value)))


# What requests of a model that generates bring: (dtype, whether it is a list, whether it may be left out).
GENERATE = {"token_ids": ("INT32", True, False), "max_new_tokens": ("INT32", False, False), "temperature": ("FP32", False, True),
            "top_k": ("INT32", False, True), "top_p": ("FP32", False, True), "seed": ("INT64", False, True),
            "stop_token_ids": ("INT32", True, True)}


def generate_text(name, pages, stops):
    """config.pbtxt of a model that generates."""
    text = 'name: %s\nbackend: "tfuse"\nmax_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n' % _names.quoted(name)
    for port, (dtype, many, optional) in GENERATE.items():
        text += 'input { name: "%s" data_type: TYPE_%s dims: [ %d ]%s }\n' % (
            port, dtype, -1 if many else 1, " optional: true" if optional else "")
    text += 'output { name: "token_id" data_type: TYPE_INT32 dims: [ 1 ] }\ninstance_group { count: 1 }\n'
    for key, value in (("TFUSE_PAGES", pages or ""), ("TFUSE_STOP_TOKEN_IDS", ",".join(map(str, stops)))):
        if value:
            text += parameter_text(key, value)
    return text


def request_json(inputs, batch, size):
    """A request of ones, or of empty strings."""
    ports = []
    for name, spec in inputs.items():
        shape = [1] * batch + sizes(spec, batch, size)
        one = "" if spec.dtype == tf.string else True if spec.dtype == tf.bool else 1
        ports.append({"name": name, "datatype": TYPES[spec.dtype][1], "shape": shape, "data": [one] * int(np.prod(shape))})
    return json.dumps({"inputs": ports})


def size_that_runs(folder, inputs, wanted, given):
    """What a first run takes for sizes that the model leaves open beside the batch's: the given one, or the first of some with
    which the model runs. None if it runs with none, which is said."""
    if all(None not in spec.shape.as_list()[1:] for spec in inputs.values()):
        return 1
    function = _files.loaded(str(folder), tf.saved_model.load).signatures[wanted]
    for size in [given] if given else SIZES:
        shapes = {name: [n or (size if i else 1) for i, n in enumerate(spec.shape.as_list())] for name, spec in inputs.items()}
        try:
            function(**{name: tf.zeros(shape, inputs[name].dtype) for name, shape in shapes.items()})
            return size
        except (tf.errors.OpError, ValueError) as error:
            why = str(error).strip().splitlines()[0][:300]
    print("a first run with open sizes of %d failed: %s\nSo config.pbtxt has no warm-up: --size names a size that works" % (
        size, why), file=sys.stderr)
    return None


def write_model(path, out, home, stock, max_batch, delay, ragged, wanted, size):
    """Writes a SavedModel; returns its config.pbtxt and request.json."""
    write_saved_model(path, out, stock)
    inputs, outputs = signature(out, wanted)
    check_ports({**inputs, **outputs})
    half = [name for name, spec in {**inputs, **outputs}.items() if spec.dtype in (tf.float16, tf.bfloat16)]
    if half:
        print("%s: Triton has floats of 16 bits only as bytes, by gRPC or its own clients, and not in JSON" % ", ".join(half),
              file=sys.stderr)
    batch = max_batch if max_batch > 0 and has_batch(inputs) and has_batch(outputs) else 0
    size = size_that_runs(out, inputs, wanted, size)
    text = config_text(home.name, inputs, outputs, batch, delay, ragged, wanted, size)
    return text, request_json(inputs, bool(batch), size or 1)


def write_generator(path, out, home, pages=None, **options):
    """The same of a language model's steps."""
    from tfuse.generation import export as steps, generate

    model = load(path)
    try:
        steps.save(model, out, **options)
    except ValueError as error:
        raise SystemExit("%s cannot be served so: %s" % (path, error))
    return generate_text(home.name, pages, generate.stops_of(model, "auto")), json.dumps({"token_ids": [1], "max_new_tokens": 8})


def default_name(path):
    """Of a file without its suffix, and of a folder whole, as dots in it are no suffix, whatever path leads to it."""
    return path.resolve().name if path.is_dir() else path.stem


def replace_text(path, text):
    """Who looks meanwhile sees the old text or the new one."""
    unfinished = path.with_name(".%s.unfinished" % path.name)
    unfinished.write_text(text)
    os.replace(unfinished, path)


def write_config(path, text):
    """Writes config.pbtxt, and keeps one that is there and says something else."""
    if path.exists() and path.read_text() != text:
        old = path.with_name(path.name + ".old")
        replace_text(old, path.read_text())
        print("%s differed, and is kept as %s. Repeat your changes in the new one" % (path, old.name), file=sys.stderr)
    replace_text(path, text)


def place_beside(home, version):
    """A folder for what is not whole yet. To Triton each folder in that of the models is a model, whatever its name, so it is
    beside that one, or where nothing can be moved from there, in it."""
    models = home.parent.resolve()
    models.mkdir(parents=True, exist_ok=True)
    movable = os.access(models.parent, os.W_OK) and os.stat(models.parent).st_dev == os.stat(models).st_dev
    return (models.parent if movable else models) / (".%s.%s.%d" % (models.name, home.name, version))


def export(path, folder, name=None, version=1, stock=False, max_batch=64, delay=0, ragged="", wanted="serving_default",
           generate=None, size=None):
    """Writes DIR/NAME; returns its path. What is there of this version must not be. `generate` are options of write_generator."""
    path = in_model_folder(pathlib.Path(path))
    for place in (path, folder):
        if not str(place).isprintable():  # neither are bytes that are not UTF-8, in Python's words for them
            raise SystemExit("TensorFlow takes paths in UTF-8 alone, without control characters; got %s" % ascii(str(place)))
    if not path.exists():
        raise SystemExit("there is no %s: a .keras file, a preset's folder or a SavedModel's is wanted" % path)
    if name is not None and (pathlib.Path(name).name != name or name in (".", "..")):
        raise SystemExit("--name is the name of a folder in %s, without a path, got %s" % (folder, ascii(name)[1:-1]))
    _names.check_model(name or default_name(path), "--name" if name else str(path))
    if pathlib.Path(folder).exists() and not pathlib.Path(folder).is_dir():
        raise SystemExit("%s is a file, and DIR is the folder of models" % folder)
    home = pathlib.Path(folder) / (name or default_name(path))
    out = home / str(version)
    if out.exists():
        raise SystemExit("%s is there already: --version takes another number" % out)
    unfinished = place_beside(home, version)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        if generate is None:
            text, request = write_model(path, unfinished / "model.savedmodel", home, stock, max_batch, delay, ragged, wanted, size)
        else:
            text, request = write_generator(path, unfinished / "model.savedmodel", home, **generate)
        home.mkdir(exist_ok=True)
        write_config(home / "config.pbtxt", text)
        replace_text(home / "request.json", request)
        unfinished.rename(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return home


# Options that one kind of export alone has.
PLAIN, GENERATION = ("stock", "max_batch", "delay", "ragged", "signature", "size"), ("rows", "room", "pages", "batch_invariant")


def check_options(parser, chosen):
    """Refuses options that would be ignored."""
    given = ["--" + name.replace("_", "-") for name in (PLAIN if chosen.generate else GENERATION)
             if getattr(chosen, name) != parser.get_default(name)]
    if given:
        parser.error("%s: %s" % (", ".join(given), "not with --generate" if chosen.generate else "only with --generate"))


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse export", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=HELP, epilog=EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a .keras file, or the folder of a preset or of a SavedModel")
    parser.add_argument("folder", metavar="DIR", help="the folder of models")
    parser.add_argument("--name", help="the model's name; default: that of its file or folder")
    parser.add_argument("--version", type=_numbers.positive, default=1, metavar="N",
                        help="of this model (%(default)s); Triton serves the latest")
    parser.add_argument("--stock", action="store_true", help="without tfuse's ops")
    parser.add_argument("--max-batch", type=_numbers.not_negative, default=64, metavar="N", help="rows of a batch at most (%(default)s); 0: no batches")
    parser.add_argument("--delay", type=_numbers.not_negative, default=0, metavar="MICROSECONDS",
                        help="how long a request may wait for others (%(default)s)")
    parser.add_argument("--ragged", default="", metavar="NAME:AXIS,…",
                        help="inputs and outputs whose lengths differ between requests; in a batch they are padded with zeros")
    parser.add_argument("--signature", default="serving_default", metavar="NAME", help="what is served (%(default)s)")
    parser.add_argument("--size", type=_numbers.positive, metavar="N", help="for sizes that the model leaves open, in the first run and the "
                        "example request; default: the first of %s with which it runs" % ", ".join(map(str, SIZES)))
    more = parser.add_argument_group("generation")
    more.add_argument("--generate", action="store_true", help="serve a language model's generation, token by token")
    more.add_argument("--rows", type=_numbers.positive, default=32, metavar="N",
                      help="requests that run at one time, at most (%(default)s)")
    more.add_argument("--room", type=_numbers.positive, default=2048, metavar="N",
                      help="tokens of a request, its prompt included (%(default)s)")
    more.add_argument("--pages", type=_numbers.positive, metavar="N",
                      help="pages of 64 tokens for keys and values; default: enough for all rows")
    more.add_argument("--batch-invariant", action="store_true", help="a request's tokens do not depend on the others to the bit")
    chosen = parser.parse_args(arguments)
    check_options(parser, chosen)
    generate = {"pages": chosen.pages, "rows": chosen.rows, "room": chosen.room, "batch_invariant": chosen.batch_invariant}
    home = export(chosen.model, chosen.folder, chosen.name, chosen.version, chosen.stock, chosen.max_batch, chosen.delay,
                  chosen.ragged, chosen.signature, generate if chosen.generate else None, chosen.size)
    print("%s\npython -m tfuse serve %s    # serves it" % (home, shlex.quote(chosen.folder)), file=sys.stderr)
    return 0
