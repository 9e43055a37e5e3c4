"""python -m tfuse serve DIR: starts a Triton that serves a folder of models."""

import argparse
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from tfuse._core import _library
from tfuse._tools import _model

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


def find_triton(named=None):
    """The path of tritonserver, or None."""
    named = named or os.environ.get("TFUSE_TRITON")
    if named:
        if not os.access(named, os.X_OK):
            raise SystemExit("%s is not a program that can be run" % named)
        return named
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


def ports(chosen):
    text = []
    for name, number in (("http", chosen.http_port), ("grpc", chosen.grpc_port), ("metrics", chosen.metrics_port)):
        text += ["--allow-%s=%s" % (name, "true" if number else "false")]
        text += ["--%s-port=%d" % (name, number)] if number else []
        text += ["--%s-address=%s" % (name, chosen.address)] if number else []
    return text


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
    mounts = [(folder, folder) for folder in (models, site, ops)]
    mounts += [(library, "%s/%s/libtriton_%s.so" % (BACKENDS, name, name)) for name in ("tfuse", "tensorflow")]
    options = ["--volume=%s:%s:ro" % pair for pair in dict.fromkeys(mounts)]
    options += ["--env=%s=%s" % pair for pair in environment().items()]
    if os.path.exists("/dev/nvidia0"):
        options.append("--gpus=all")
    return [engine, "run", "--rm", "--network=host", *options, chosen.image, *command(chosen, "tritonserver", BACKENDS)]


def is_ready(address, port):
    try:
        with urllib.request.urlopen("http://%s:%d/v2/health/ready" % (address, port), timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def names_in(folder):
    return sorted(path.name for path in pathlib.Path(folder).iterdir() if path.is_dir() and not path.name.startswith("."))


def wait_until_ready(server, chosen, say):
    """True when all models are; False where the server has ended, or takes too long."""
    begin = time.monotonic()
    while server.poll() is None and time.monotonic() - begin < chosen.wait:
        if is_ready(chosen.address, chosen.http_port):
            say("ready after %.1f s" % (time.monotonic() - begin))
            return True
        time.sleep(0.1)
    return False


def serve(chosen, say=lambda text: print(text, file=sys.stderr, flush=True)):
    names = names_in(chosen.folder)
    if not names:
        raise SystemExit("%s has no models: python -m tfuse export MODEL %s writes one" % (chosen.folder, chosen.folder))
    triton = None if chosen.image else find_triton(chosen.triton)
    if not chosen.image and not triton:
        raise SystemExit(NONE)
    with tempfile.TemporaryDirectory(prefix="tfuse_serve_") as temporary:
        backends = pathlib.Path(temporary)
        if chosen.image:
            arguments = container_command(chosen)
        else:
            make_backends(backends, triton)
            arguments = command(chosen, triton, backends)
        log = pathlib.Path(chosen.log) if chosen.log else backends / "log"
        say("loading %s with %s" % (", ".join(names), chosen.image or triton))
        with open(log, "w") as file:
            server = subprocess.Popen(arguments, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **environment()})
        try:
            if not wait_until_ready(server, chosen, say):
                say(log.read_text(errors="replace")[-4000:])
                say("the server %s; what it said is above" % (
                    "ended with status %d" % server.poll() if server.poll() is not None else "was not ready in time"))
                return 1
            for name in names:
                print("http://%s:%d/v2/models/%s/infer" % (chosen.address, chosen.http_port, name), flush=True)
            if chosen.grpc_port:
                print("gRPC on %s:%d" % (chosen.address, chosen.grpc_port), flush=True)
            return server.wait()
        finally:
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
                try:
                    server.wait(60)
                except subprocess.TimeoutExpired:
                    server.kill()


def parser():
    made = argparse.ArgumentParser(prog="python -m tfuse serve", formatter_class=argparse.RawDescriptionHelpFormatter,
                                   description=HELP, epilog=EXAMPLES)
    made.add_argument("folder", metavar="DIR", help="the folder of models")
    made.add_argument("--triton", metavar="PATH", help="the program tritonserver")
    made.add_argument("--image", help="a container's image that has it, for docker or podman")
    made.add_argument("--address", default="127.0.0.1", help="where it listens (%(default)s)")
    made.add_argument("--http-port", type=int, default=8000, metavar="N", help="%(default)s")
    made.add_argument("--grpc-port", type=int, default=8001, metavar="N", help="%(default)s; 0: none")
    made.add_argument("--metrics-port", type=int, default=8002, metavar="N", help="%(default)s; 0: none")
    made.add_argument("--max-batch", type=int, default=64, metavar="N",
                      help="rows of a batch at most, of models without a configuration (%(default)s)")
    made.add_argument("--wait", type=float, default=600, metavar="SECONDS", help="until all models are loaded (%(default)s)")
    made.add_argument("--log", metavar="FILE", help="where the server's own words go")
    return made


def main(arguments):
    own, rest = (arguments[:arguments.index("--")], arguments[arguments.index("--") + 1:]) if "--" in arguments else (arguments, [])
    chosen = parser().parse_args(own)
    chosen.rest = rest
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is ended as well
    try:
        return serve(chosen)
    except KeyboardInterrupt:
        return 130
    except (_model.NotThere, OSError) as error:
        print(error, file=sys.stderr)
        return 1
