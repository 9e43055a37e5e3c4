"""python -m tfuse serve DIR: starts a Triton that serves a folder of models."""

import argparse
import contextlib
import http.client
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from tfuse._core import _library
from tfuse._tools import _model, _names, _numbers

HELP = """Starts a Triton Inference Server for a folder of models, with tfuse's backend, which runs SavedModels. A model needs no
config.pbtxt: DIR/NAME/1/model.savedmodel is enough. The server is, in this order: --triton, TFUSE_TRITON, tritonserver on the PATH,
/opt/tritonserver, that of the package nvidia-pytriton, or with --image that of a container's image.

It listens to this machine alone, unless --address says otherwise. What comes after -- is passed on to tritonserver."""
EXAMPLES = """examples:
  pip install nvidia-pytriton                # carries a Triton of 50 MB, for machines with or without a GPU
  python -m tfuse serve models
  python -m tfuse serve models --image nvcr.io/nvidia/tritonserver:25.09-py3
  python -m tfuse serve models -- --log-verbose=1"""
NONE = """No Triton was found. One of these gives you one:
  pip install nvidia-pytriton                                  # 50 MB, no container
  python -m tfuse serve DIR --image IMAGE                      # in a container, by docker or podman
  TFUSE_TRITON=/path/to/tritonserver python -m tfuse serve DIR"""
# In NVIDIA's image, and in a container of ours.
BACKENDS = "/opt/tritonserver/backends"


# This machine is asked itself, and no proxy that the environment names for others.
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Failed(Exception):
    """A server has ended, or was not ready in time; the text begins with the last of what it said."""


def find_triton(named=None):
    """The path of tritonserver, or None."""
    named = named or os.environ.get("TFUSE_TRITON")
    if named:
        found = shutil.which(named)
        if not found:
            raise SystemExit("%s is not a program that can be run" % named)
        return str(pathlib.Path(found).resolve())
    spec = importlib.util.find_spec("pytriton")
    places = [shutil.which("tritonserver"), "/opt/tritonserver/bin/tritonserver"]
    places += [pathlib.Path(folder) / "tritonserver/bin/tritonserver" for folder in (spec.submodule_search_locations if spec else [])]
    return next((str(place) for place in places if place and os.path.exists(place)), None)


def make_backends(folder, triton):
    """A folder of backends: tfuse's, under its own name and as tensorflow, which Triton looks for where a model has no
    configuration; and those that the server has."""
    library = _model.file("libtriton_tfuse.so").resolve()
    for name in ("tfuse", "tensorflow"):
        (folder / name).mkdir()
        (folder / name / ("libtriton_%s.so" % name)).symlink_to(library)
    for other in pathlib.Path(triton).resolve().parent.parent.glob("backends/*"):
        if not (folder / other.name).exists():
            (folder / other.name).symlink_to(other)


def environment():
    """Where the backend finds TensorFlow and tfuse's ops."""
    return {"TFUSE_TENSORFLOW": _model.tensorflow_folder(), "TFUSE_LIBRARY": _library.path,
            "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}


def to_triton(address, name):
    """An address of IPv6 as Triton's servers want it: its HTTP server (libevhtp) takes one without this prefix for IPv4."""
    return address if ":" not in address else _names.host(address) if name == "grpc" else "ipv6:" + address


def ports(chosen):
    text = []
    for name, number in (("http", chosen.http_port), ("grpc", chosen.grpc_port), ("metrics", chosen.metrics_port)):
        text += ["--allow-%s=%s" % (name, "true" if number else "false")]
        text += ["--%s-port=%d" % (name, number)] if number else []
        text += ["--%s-address=%s" % (name, to_triton(chosen.address, name))] if number else []
    return text


def check_ports(chosen):
    """Refuses a port that another program has, whose answers would pass for those of the server."""
    for name in ("http", "grpc", "metrics"):
        number = getattr(chosen, name + "_port")
        try:
            if number:
                family, kind, protocol, _, address = socket.getaddrinfo(chosen.address, number, type=socket.SOCK_STREAM)[0]
                with socket.socket(family, kind, protocol) as s:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    s.bind(address)
        except (OSError, OverflowError) as error:
            raise SystemExit("port %d of %s cannot be had: %s: --%s-port takes another" % (number, chosen.address, error, name))


def command(chosen, triton, backends):
    return [triton, "--model-repository=%s" % pathlib.Path(chosen.folder).resolve(), "--backend-directory=%s" % backends,
            "--backend-config=default-max-batch-size=%d" % chosen.max_batch, *ports(chosen), *chosen.rest]


def container_command(chosen):
    """The same in a container, with what it needs mounted read-only where it lies here, so that paths stay the same."""
    engine = shutil.which("docker") or shutil.which("podman")
    if not engine:
        raise SystemExit("--image needs docker or podman, and neither is on the PATH")
    models, library = pathlib.Path(chosen.folder).resolve(), _model.file("libtriton_tfuse.so").resolve()
    site, ops = pathlib.Path(_model.tensorflow_folder()).parent, pathlib.Path(_library.path).parent  # of NVIDIA's libraries, too
    if any(":" in str(folder) for folder in (models, site, ops)):
        raise SystemExit("--image: no path can be mounted that has a colon in it: %s" % ", ".join(map(str, (models, site, ops))))
    mounts = [(folder, folder) for folder in (models, site, ops)]
    mounts += [(library, "%s/%s/libtriton_%s.so" % (BACKENDS, name, name)) for name in ("tfuse", "tensorflow")]
    options = ["--volume=%s:%s:ro" % pair for pair in dict.fromkeys(mounts)]
    options += ["--env=%s=%s" % pair for pair in environment().items()]
    if os.path.exists("/dev/nvidia0"):
        options.append("--gpus=all")
    return [engine, "run", "--rm", "--network=host", *options, chosen.image, *command(chosen, "tritonserver", BACKENDS)]


def is_ready(address, port):
    try:
        with DIRECTLY.open("http://%s:%d/v2/health/ready" % (_names.host(address), port), timeout=5) as answer:
            return answer.status == 200
    except (OSError, http.client.HTTPException):
        return False


def names_in(folder):
    return sorted(path.name for path in pathlib.Path(folder).iterdir() if path.is_dir() and not path.name.startswith("."))


def said(text):
    """What a server has said of errors; or if of none, what it said last, without its tables."""
    lines = [line for line in text.splitlines() if line[:1] not in ("+", "|")]
    errors = [line for line in lines if "CudaDriverHelper" not in line and re.match(r"E\d{4} |error: |.*(failed to load|Poll failed)", line)]
    return "\n".join(dict.fromkeys(errors) or lines)[-4000:].rstrip()


def failed(process, log):
    status = process.poll()
    end = "was not ready in time" if status is None else "ended with status %d" % status
    if status is not None and status < 0:
        end = "was ended by %s" % signal.Signals(-status).name
    if status == -signal.SIGSEGV:
        end += ", which happens to Triton if the first run of a model fails: without model_warmup in config.pbtxt, it says why"
    if not log.is_file():  # a pipe, say, which may be the one that this process writes to
        return Failed("the server %s; what it said went to %s" % (end, log))
    return Failed("%s\nthe server %s; what it said of that is above, and --log FILE keeps all" % (
        said(log.read_text(errors="replace")), end))


def wait_until_ready(process, log, chosen):
    deadline = time.monotonic() + chosen.wait
    while process.poll() is not None or not is_ready(chosen.address, chosen.http_port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise failed(process, log)
        time.sleep(0.1)


def end(process):
    if process.poll() is None:
        process.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        finally:  # also where a second signal ends the waiting
            process.kill()
            process.wait()


@contextlib.contextmanager
def running(chosen, say=lambda text: None):
    """(process, log) of a server whose models are all loaded, and which ends with the block."""
    triton = None if chosen.image else find_triton(chosen.triton)
    if not chosen.image and not triton:
        raise SystemExit(NONE)
    check_ports(chosen)
    with tempfile.TemporaryDirectory(prefix="tfuse_serve_") as temporary:
        backends, begin = pathlib.Path(temporary), time.monotonic()
        if chosen.image:
            arguments = container_command(chosen)
        else:
            make_backends(backends, triton)
            arguments = command(chosen, triton, backends)
        log = pathlib.Path(chosen.log) if chosen.log else backends / "log"
        say("loading %s with %s" % (", ".join(names_in(chosen.folder)), chosen.image or triton))
        with open(log, "w") as file:
            process = subprocess.Popen(arguments, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **environment()})
        try:
            wait_until_ready(process, log, chosen)
            say("ready after %.1f s" % (time.monotonic() - begin))
            yield process, log
        finally:
            end(process)


def method(home):
    """The last word of the address at which a model is asked: one that generates gives its tokens as a stream."""
    config = home / "config.pbtxt"
    is_stream = config.exists() and re.search(r"\bdecoupled\s*:\s*true\b", config.read_text(errors="replace"))
    return "generate_stream" if is_stream else "infer"


def serve(chosen, say=lambda text: print(text, file=sys.stderr, flush=True)):
    folder = pathlib.Path(chosen.folder)
    if not folder.is_dir():
        raise SystemExit("there is no folder %s" % folder)
    if (folder / "config.pbtxt").exists() or list(folder.glob("*/model.savedmodel")):
        raise SystemExit("%s is one model: python -m tfuse serve %s serves the folder that it is in" % (
            folder, shlex.quote(str(folder.parent))))
    names = names_in(folder)
    if not names:
        raise SystemExit("%s has no models: python -m tfuse export MODEL %s writes one" % (
            chosen.folder, shlex.quote(chosen.folder)))
    try:
        with running(chosen, say) as (process, log):
            for name in names:
                print("http://%s:%d/v2/models/%s/%s" % (
                    _names.host(chosen.address), chosen.http_port, _names.in_url(name), method(folder / name)), flush=True)
            if chosen.grpc_port:
                print("gRPC on %s:%d" % (_names.host(chosen.address), chosen.grpc_port), flush=True)
            if process.wait():
                raise failed(process, log)
            return 0
    except Failed as error:
        say(error)
        return 1


def address(text):
    """The numbers of an address or a name: Triton takes no names."""
    try:
        return socket.getaddrinfo(text or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4][0]
    except (OSError, UnicodeError) as error:  # the second is of a name that no host can have
        raise argparse.ArgumentTypeError("%s is neither an address nor a name that is known here: %s" % (ascii(text), error))


def port(text):
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > 65535:
        raise argparse.ArgumentTypeError("must be a number from 0 to 65535, got %s" % text)
    return int(text)


def http_port(text):
    if not port(text):
        raise argparse.ArgumentTypeError("must not be 0: it is over HTTP that the server is asked whether it is ready")
    return int(text)


def parser():
    made = argparse.ArgumentParser(prog="python -m tfuse serve", formatter_class=argparse.RawDescriptionHelpFormatter,
                                   description=HELP, epilog=EXAMPLES)
    made.add_argument("folder", metavar="DIR", help="the folder of models")
    made.add_argument("--triton", metavar="PATH", help="the program tritonserver")
    made.add_argument("--image", help="a container's image that has it, for docker or podman")
    made.add_argument("--address", type=address, default="127.0.0.1", help="where it listens (%(default)s)")
    made.add_argument("--http-port", type=http_port, default=8000, metavar="N", help="%(default)s")
    made.add_argument("--grpc-port", type=port, default=8001, metavar="N", help="%(default)s; 0: none")
    made.add_argument("--metrics-port", type=port, default=8002, metavar="N", help="%(default)s; 0: none")
    made.add_argument("--max-batch", type=_numbers.not_negative, default=64, metavar="N",
                      help="rows of a batch at most, of models without a configuration (%(default)s)")
    made.add_argument("--wait", type=_numbers.seconds, default=600, metavar="SECONDS", help="until all models are loaded (%(default)s)")
    made.add_argument("--log", metavar="FILE", help="where the server's own words go")
    return made


def parse(arguments):
    """What a command line says; `rest` are the server's own arguments, after --."""
    own, rest = (arguments[:arguments.index("--")], arguments[arguments.index("--") + 1:]) if "--" in arguments else (arguments, [])
    return parser().parse_args(own, argparse.Namespace(rest=rest))


def main(arguments):
    chosen = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is ended as well
    try:
        return serve(chosen)
    except KeyboardInterrupt:
        return 130
    except (_model.NotThere, OSError) as error:
        print(error, file=sys.stderr)
        return 1
