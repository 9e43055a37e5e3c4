"""python -m tfuse profile SCRIPT: where the time of a script's steps goes, and what of it tfuse could serve and does not.

A step is a call of the tf.function that the script calls again and again, be it its own or the one inside model.fit. Some
calls pass, the last of them timed; the next run under TensorFlow's profiler, and there the script ends. On a GPU the time
of an op is that of its kernels; on the CPU that of the op itself, summed over threads.
"""

import argparse
import collections
import gc
import glob
import os
import re
import runpy
import sys
import tempfile
import time

import keras
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tfuse
from tfuse import _enable, _explain

# What serves the ops of a Keras layer, and those that come from elsewhere; and what explain() calls it where it does not.
BY_LAYER = {
    "Dense": "linear", "EinsumDense": "linear", "LayerNormalization": "layer_norm", "RMSNormalization": "rms_norm",
    "GroupNormalization": "group_norm", "Softmax": "softmax", "Dropout": "dropout", "MultiHeadAttention": "attention",
    "GroupedQueryAttention": "attention",
}
BY_TYPE = {
    "MatMul": "linear", "_FusedMatMul": "linear", "BiasAdd": "linear", "BiasAddGrad": "linear", "Softmax": "softmax",
    "LogSoftmax": "softmax", "SparseSoftmaxCrossEntropyWithLogits": "sparse_cross_entropy",
    "SoftmaxCrossEntropyWithLogits": "cross_entropy", "Erf": "gelu", "Erfc": "gelu", "Softplus": "softplus",
    "SoftplusGrad": "softplus", "Elu": "elu", "EluGrad": "elu", "Einsum": "attention",
}
BY_SCOPE = {"dot_product_attention": "attention", "Gelu": "gelu", "gelu": "gelu", "swish": "silu",
            "layer_normalization": "layer_norm", "moments": "layer_norm"}
EXPLAINED = {"linear": "dense|linear", "attention": "attention", "layer_norm": "layer_norm|^norm", "gelu": "gelu|scale_bias",
             "rms_norm": "rms_norm|^norm", "sparse_cross_entropy": "sparse_c", "cross_entropy": "^(categorical|cross)"}
# Ops that no kernel stands behind: they run others, or wait for them.
NO_WORK = re.compile("^(__inference_.*|_?(Arg|Retval|Send|Recv|HostSend|HostRecv)|NoOp|.*PartitionedCall|_Xla.*|"
                     "Xla(Launch|Run)|While|If|Stateless(If|While))$")

# XLA names tfuse's calls so, and those of its own libraries by what they do.
XLA_CALL = "XLA custom-call"

Event = collections.namedtuple("Event", "name type ms")


class Done(BaseException):
    """Ends the script when enough steps have been seen."""


# ---- running the script ----


class Watch:
    """Counts the calls of each tf.function, and profiles some of the one that first comes to them."""

    def __init__(self, skip, steps, folder):
        self.skip, self.steps, self.folder = skip, steps, folder
        self.calls, self.seconds, self.inside = collections.Counter(), {}, False
        self.function = self.owners = None  # what is profiled, and whose ops those are

    def __enter__(self):
        self.own = own = polymorphic_function.Function.__call__

        def call(function, *args, **kwargs):
            if self.inside or not tf.executing_eagerly():
                return own(function, *args, **kwargs)
            self.before(function)
            self.inside = True
            try:
                return own(function, *args, **kwargs)
            finally:
                self.inside = False
                self.after(function)

        polymorphic_function.Function.__call__ = call
        return self

    def __exit__(self, *error):
        polymorphic_function.Function.__call__ = self.own
        if self.function is not None:
            self.stop()

    def before(self, function):
        if self.function is not None or self.calls[id(function)] < self.skip - 1:
            return
        wait()
        self.start = time.perf_counter()
        if self.calls[id(function)] >= self.skip:
            self.function, self.calls[id(function)] = function, 0
            tf.profiler.experimental.start(self.folder, tf.profiler.experimental.ProfilerOptions(
                host_tracer_level=2, python_tracer_level=0, device_tracer_level=1))

    def after(self, function):
        self.calls[id(function)] += 1
        if self.function is None and self.calls[id(function)] == self.skip:
            wait()
            self.seconds[id(function)] = time.perf_counter() - self.start
        if function is self.function and self.calls[id(function)] >= self.steps:
            self.owners = Owners()  # while the script's objects are alive
            raise Done

    def stop(self):
        wait()
        tf.profiler.experimental.stop()
        self.owners = self.owners or Owners()

    @property
    def seen(self):
        return self.calls[id(self.function)] if self.function is not None else 0

    @property
    def name(self):
        return getattr(self.function.python_function, "__name__", "?")


def wait():
    """Until the GPUs have done all they were given."""
    if tf.config.list_logical_devices("GPU"):
        tf.test.experimental.sync_devices()


def run(script, arguments):
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except Done:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


# ---- what the profiler wrote ----


def events(folder):
    """What ran: on the GPUs if anything did, else on the CPU."""
    planes = []
    for path in glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True):
        with open(path, "rb") as file:
            planes += xplane_pb2.XSpace.FromString(file.read()).planes
    on_gpu = [e for plane in planes if plane.name.startswith("/device:GPU") for e in _device_events(plane)]
    return ("GPU", on_gpu) if on_gpu else ("CPU", [e for plane in planes if plane.name == "/host:CPU" for e in _ops(plane)])


def _ops(plane):
    """TensorFlow's executor names an op's run `scope/name:Type`; what XLA runs on the CPU has a stat `hlo_op`."""
    for line in plane.lines:
        for event in line.events:
            name = plane.event_metadata[event.metadata_id].name
            scope, colon, kind = name.rpartition(":")
            if colon and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_>]*", kind) and "::" not in name and not NO_WORK.match(kind):
                yield Event(scope, kind, event.duration_ps / 1e9)
            elif any(plane.stat_metadata[stat.metadata_id].name == "hlo_op" for stat in event.stats):
                yield Event(name, _xla_type(name), event.duration_ps / 1e9)


def _device_events(plane):
    """Kernels and copies, by the op that launched them as far as it is told, else by their own name."""
    for line in plane.lines:
        if not line.name.startswith("Stream"):
            continue
        for event in line.events:
            own = plane.event_metadata[event.metadata_id].name
            stats = {plane.stat_metadata[s.metadata_id].name: s.str_value or plane.stat_metadata[s.ref_value].name
                     for s in event.stats if s.WhichOneof("value") in ("str_value", "ref_value")}
            scope, colon, kind = stats.get("tf_op", "").split("#")[0].rpartition(":")
            if "hlo_op" in stats:
                scope, kind = stats.get("tf_op", own), _xla_type(stats["hlo_op"])
            elif not colon:
                scope, kind = own, re.sub(r"<.*|\(.*|^void ", "", own).split("::")[-1][:40]
            yield Event(scope, kind, event.duration_ps / 1e9)


def _xla_type(name):
    return "XLA " + re.sub(r"[._]\d+|%", "", name)


# ---- what it means ----


class Owners:
    """Which layer or optimizer an op belongs to, by the names in its scope."""

    def __init__(self):
        alive = gc.get_objects()
        self.layers = {o.name: type(o).__name__ for o in alive if _is(o, keras.layers.Layer)}
        self.optimizers = {o.name: type(o) for o in alive if _is(o, keras.optimizers.Optimizer)}

    def offer(self, event):
        """The function or class of tfuse that computes such a thing, or ""; and what to call the thing. Gradients that meet,
        and weights that mixed precision casts, stay beside tfuse's ops as beside others."""
        name, what = self._offer(event)
        beside = event.type == "AddN" or event.type == "Cast" and (name == "linear" or name.startswith("optimizers."))
        return ("", event.type) if beside else (name, what)

    def _offer(self, event):
        parts = event.name.split("/")
        for part in reversed(parts):
            plain = re.sub(r"_\d+$", "", part)  # TensorFlow numbers scopes that come again
            kind = self.layers.get(part) or self.layers.get(plain, "")
            if kind in BY_LAYER:
                return BY_LAYER[kind], kind
            optimizer = self.optimizers.get(part) or self.optimizers.get(plain)
            if optimizer:
                name = optimizer.__name__
                ours = optimizer is getattr(tfuse.optimizers, name, optimizer)  # or there is none
                return "" if ours else "optimizers." + name, name
        for part in reversed(parts):
            if part in BY_SCOPE:
                return BY_SCOPE[part], part
        return BY_TYPE.get(event.type, ""), event.type


def _is(o, kind):
    try:
        return isinstance(o, kind)
    except Exception:  # some objects answer for another that is gone
        return False


def reason(name):
    """Why tfuse did not serve it, as far as it knows."""
    asked = re.compile(EXPLAINED.get(name, name), re.I)
    told = [row["why"] for row in _explain.explain(64)
            if row["route"] in ("Keras's own code", "plain TensorFlow") and asked.search(row["op"])]
    if told:
        return told[-1]
    if name.startswith("optimizers."):
        return "the optimizer is Keras's own: tfuse.%s takes its place" % name
    if not _enable._is_on():
        return "tfuse.enable() was not called"
    return "it does not come by a function of Keras that tfuse is behind"


def report(device, found, watch, top):
    total, steps = sum(e.ms for e in found), watch.seen
    print("\nA step, a call of %s, takes %.2f ms; the %s's ops in it, by type, %.2f ms:\n" % (
        watch.name, watch.seconds[id(watch.function)] * 1e3, device, total / steps))
    rows = [(sum(e.ms for e in some), len(some), kind) for kind, some in _by(found, lambda e: e.type).items()]
    _table([("share", "ms", "calls", "op")] + [
        ("%.1f%%" % (100 * ms / total), "%.3f" % (ms / steps), "%.4g" % (calls / steps), kind)
        for ms, calls, kind in sorted(rows, reverse=True)[:top]])
    ours = sum(e.ms for e in found if _ours(e))
    print("\nBy tfuse: %.1f%%." % (100 * ours / total))
    offers = _by([e for e in found if not _ours(e)], watch.owners.offer)
    rows = sorted([(sum(e.ms for e in some), *offer) for offer, some in offers.items() if offer[0]], reverse=True)
    rows = [(ms, name, what) for ms, name, what in rows if ms >= total / 1000][:top]
    if not rows:
        print("Of the rest, tfuse knows nothing that it could serve.")
        return
    print("What tfuse could serve and does not:\n")
    _table([("share", "ms", "what", "by", "why not")] + [
        ("%.1f%%" % (100 * ms / total), "%.3f" % (ms / steps), what, "tfuse." + name, reason(name))
        for ms, name, what in rows])


def _ours(event):
    return event.type.startswith("Tfuse>") or event.type == XLA_CALL


def _by(found, key):
    groups = collections.defaultdict(list)
    for event in found:
        groups[key(event)].append(event)
    return groups


def _table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [c.rjust(w) if i < 2 else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))]
        print("  " + "  ".join(cells).rstrip())


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tfuse profile", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip", type=int, default=3, help="calls of the function that pass first, 1 or more (3)")
    parser.add_argument("--steps", type=int, default=5, help="calls that are profiled (5)")
    parser.add_argument("--top", type=int, default=16, help="lines of a table (16)")
    parser.add_argument("script")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="the script's own arguments")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        with Watch(options.skip, options.steps, folder) as watch:
            run(options.script, options.rest)
        if not watch.seen:
            print("tfuse profile: no tf.function was called %d times in %s" % (options.skip + 1, options.script),
                  file=sys.stderr)
            return 1
        device, found = events(folder)
    if not found:
        print("tfuse profile: the profiler saw no op run", file=sys.stderr)
        return 1
    if device == "CPU" and tf.config.list_logical_devices("GPU"):
        print("The profiler saw nothing of the GPU (is CUPTI there?): these are the CPU's times.")
    report(device, found, watch, options.top)
    return 0
