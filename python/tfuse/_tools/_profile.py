"""python -m tfuse profile SCRIPT: where the time of a script's steps goes, and which part of it tfuse could serve but does not.

A step is a call of the tf.function that the script calls repeatedly, either its own or the one inside model.fit. The first
calls are warm-up, and the last of them is timed; the next ones run under TensorFlow's profiler, and then the script is
stopped. On a GPU the time of an op is that of its kernels, and a line below says how long the GPU was idle and what it waited
for; on the CPU it is that of the op itself, summed over threads. XLA fuses several ops into one: the time counts for the op
that XLA names it after, most often the last of them; on the CPU, helper threads are not seen.
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
import traceback

import keras
import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tfuse
from tfuse._core import _explain, _library
from tfuse._keras import _enable
from tfuse._tools import _idle, _numbers
from tfuse.lists import together

# What serves the ops of a Keras layer, and those that come from elsewhere; and what explain() calls it where it does not.
BY_LAYER = {
    "Dense": "linear", "EinsumDense": "linear", "LayerNormalization": "layer_norm", "RMSNormalization": "rms_norm",
    "GroupNormalization": "group_norm", "BatchNormalization": "batch_norm", "Softmax": "softmax", "Dropout": "dropout",
    "MultiHeadAttention": "attention", "GroupedQueryAttention": "attention",
    **{"Conv%dD%s" % (axes, kind): "conv" + "_transpose" * (kind != "") for axes in (1, 2, 3) for kind in ("", "Transpose")},
    **{"%s%dD" % (layer, axes): function for axes in (1, 2, 3) for layer, function in (
        ("DepthwiseConv", "depthwise_conv"), ("SeparableConv", "separable_conv"), ("MaxPooling", "max_pool"),
        ("AveragePooling", "average_pool"), ("GlobalAveragePooling", "global_average_pool"))},
}
# Those that no layer has, tfuse.enable() leaves alone.
PRODUCTS = {"MatMul": "linear", "_FusedMatMul": "linear", "BatchMatMulV2": "batched_matmul",
            "BatchMatMulV3": "batched_matmul"}
BY_TYPE = {
    **PRODUCTS, "BiasAdd": "linear", "BiasAddGrad": "linear", "Softmax": "softmax",
    "LogSoftmax": "softmax", "SparseSoftmaxCrossEntropyWithLogits": "sparse_cross_entropy",
    "SoftmaxCrossEntropyWithLogits": "cross_entropy", "Erf": "gelu", "Erfc": "gelu", "Softplus": "softplus",
    "SoftplusGrad": "softplus", "Elu": "elu", "EluGrad": "elu", "Einsum": "attention",
}
# What tfuse.enable() leaves to Keras where there is no GPU.
ON_A_GPU = {"linear", "conv", "conv_transpose", "depthwise_conv", "separable_conv", "max_pool", "average_pool",
            "global_average_pool"}
BY_SCOPE = {"dot_product_attention": "attention", "Gelu": "gelu", "gelu": "gelu", "swish": "silu",
            "layer_normalization": "layer_norm", "moments": "layer_norm"}
EXPLAINED = {"linear": "dense|linear", "attention": "attention", "layer_norm": "layer_norm|^norm", "gelu": "gelu|scale_bias",
             "conv": "^(base)?conv", "depthwise_conv": "depthwise", "separable_conv": "separable", "max_pool": "max_?pool",
             "average_pool": "average_?pool", "global_average_pool": "^globalaverage", "rms_norm": "rms_norm|^norm",
             "sparse_cross_entropy": "sparse_c", "cross_entropy": "^(categorical|cross)"}
# Ops that no kernel stands behind: they run others, or wait for them.
NO_WORK = re.compile("^(__inference_.*|_?(Arg|Retval|Send|Recv|HostSend|HostRecv)|NoOp|.*PartitionedCall|_Xla.*|"
                     "Xla(Launch|Run)|While|If|Stateless(If|While))$")

# XLA's instructions that run others, which on the CPU are there on their own.
XLA_RUNS_OTHERS = ("while", "conditional", "call")
# Where the profiler keeps no text of the program, tfuse's calls are named so, and XLA's own most often by what they do.
XLA_CALL = "XLA custom-call"

# An op's name in the graph and its type; in the table it may stand under another name, as XLA's instructions do.
Event = collections.namedtuple("Event", "name type ms shown", defaults=[""])


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
    except OSError:  # the script's own, whose line its author wants to see
        traceback.print_exc()
        sys.exit(1)


# ---- what the profiler wrote ----


def planes_in(folder):
    planes = []
    for path in glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True):
        with open(path, "rb") as file:
            planes += xplane_pb2.XSpace.FromString(file.read()).planes
    return planes


def events(planes):
    """What ran: on the GPUs if anything did, else on the CPU; and whether what XLA has compiled is not among it."""
    programs = _xla_programs(planes)
    device, found = "GPU", [e for p in planes if p.name.startswith("/device:GPU") for e in _device_events(p, programs)]
    if not found:
        device, found = "CPU", [e for p in planes if p.name == "/host:CPU" for e in _ops(p, programs)]
    return device, found, bool(programs) and not any(e.shown for e in found)


def _timed(plane, lines=""):
    """(own name, milliseconds, what is told of it) of every event on lines whose names begin so."""
    for line in plane.lines:
        for event in line.events if line.name.startswith(lines) else ():
            yield plane.event_metadata[event.metadata_id].name, event.duration_ps / 1e9, _stats(plane, event)


def _ops(plane, programs):
    """TensorFlow's executor names an op's run `scope/name:Type`; what XLA runs on the CPU has a stat `hlo_op`."""
    for name, ms, stats in _timed(plane):
        scope, colon, kind = name.rpartition(":")
        kind = re.sub("^_Mkl(?:Native)?(Fused)?", lambda made: "_Fused" if made[1] else "", kind)  # oneDNN's, on x86
        if colon and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_>]*", kind) and "::" not in name and not NO_WORK.match(kind):
            yield Event(scope, kind, ms)
        elif "hlo_op" in stats and getattr(_instruction(stats, programs), "opcode", "") not in XLA_RUNS_OTHERS:
            yield _xla_event(stats, ms, programs)


def _device_events(plane, programs):
    """Kernels and copies, by the op that launched them as far as it is told, else by their own name."""
    for own, ms, stats in _timed(plane, "Stream"):
        scope, colon, kind = stats.get("tf_op", "").split("#")[0].rpartition(":")
        if "hlo_op" in stats:
            yield _xla_event(stats, ms, programs)
        elif colon:
            yield Event(scope, kind, ms)
        else:
            yield Event(own, re.sub(r"<.*|\(.*|^void ", "", own).split("::")[-1][:40], ms)


def _stats(plane, event):
    """What is told of an event, as text."""
    kind = lambda stat: stat.WhichOneof("value")
    value = lambda stat: plane.stat_metadata[stat.ref_value].name if kind(stat) == "ref_value" else getattr(stat, kind(stat))
    return {plane.stat_metadata[stat.metadata_id].name: str(value(stat)) for stat in event.stats if kind(stat)}


def _xla_programs(planes):
    """What XLA compiled: the instructions of a program by name. A program is called `name(number)`."""
    programs = {}
    for metadata in (m for p in planes if p.name == "/host:metadata" for m in p.event_metadata.values()):
        for text in (stat.bytes_value for stat in metadata.stats if stat.bytes_value):
            module = hlo_pb2.HloProto.FromString(text).hlo_module
            programs[metadata.name] = {i.name: i for part in module.computations for i in part.instructions}
            programs.setdefault(module.name, programs[metadata.name])  # not every event tells the number
    return programs


def _instruction(stats, programs):
    name = stats.get("hlo_module")
    return (programs.get("%s(%s)" % (name, stats.get("program_id"))) or programs.get(name, {})).get(stats["hlo_op"])


def _xla_event(stats, ms, programs):
    instruction, shown = _instruction(stats, programs), "XLA " + re.sub(r"[._]\d+|%", "", stats["hlo_op"])
    if instruction is None:
        return Event(*stats.get("tf_op", "").partition(":")[::2], ms, shown)
    target, made_of = instruction.custom_call_target, instruction.metadata
    target = target.removesuffix(".captured")  # whether it is in a CUDA graph does not matter here
    return Event(made_of.op_name, made_of.op_type, ms, "XLA " + target if target else shown)


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
                served = _enable.is_on() and optimizer in together.RULES and not told("optimizers." + name)
                served |= event.shown.startswith("XLA") and left_to_keras("optimizers." + name, name)
                return "" if ours or served else "optimizers." + name, name
        for part in reversed(parts):
            if part in BY_SCOPE:
                return BY_SCOPE[part], part
        return BY_TYPE.get(event.type, ""), event.type


def _is(o, kind):
    try:
        return isinstance(o, kind)
    except Exception:  # some objects answer for another that is gone
        return False


def told(name):
    """Why tfuse did not serve it, as explain() has it: the latest comes last."""
    optimizer = name.partition("optimizers.")[2]
    asked = re.compile("^%s$" % optimizer if optimizer else EXPLAINED.get(name, name), re.I)
    return [row["why"] for row in _explain.explain(64)
            if row["route"] in ("Keras's own code", "Keras's own step", "plain TensorFlow") and asked.search(row["op"])]


def reason(name, what):
    """Why tfuse did not serve it, as far as it knows."""
    if told(name):
        return told(name)[-1]
    if what in PRODUCTS:
        return "it is no layer's: call tfuse.%s in its place" % name
    if not _enable.is_on():
        return "tfuse.enable() was not called"
    return "it does not come by a function of Keras that tfuse is behind: call tfuse.%s in its place" % name


def left_to_keras(name, what):
    """Whether tfuse.enable(), which was not called, would change nothing: without a GPU, TensorFlow and XLA are faster at
    products, convolutions and pooling, and XLA at an optimizer's step."""
    left = name in ON_A_GPU and what not in PRODUCTS or name.startswith("optimizers.")
    return left and _library.without_gpu() and not told(name)


def report(device, found, watch, top, idle=()):
    total, steps = sum(e.ms for e in found), watch.seen
    print("\nA step, a call of %s, takes %.2f ms; the %s's ops in it, by type, %.2f ms:\n" % (
        watch.name, watch.seconds[id(watch.function)] * 1e3, device, total / steps))
    rows = [(sum(e.ms for e in some), len(some), kind) for kind, some in _by(found, _shown).items()]
    _table([("share", "ms", "calls", "op")] + [
        ("%.1f%%" % (100 * ms / total), "%.3f" % (ms / steps), "%.4g" % (calls / steps), kind)
        for ms, calls, kind in sorted(rows, reverse=True)[:top]])
    print("\n" * bool(idle) + "\n".join(idle))
    ours = sum(e.ms for e in found if _ours(e))
    print("\nBy tfuse: %.1f%%." % (100 * ours / total))
    untold = sum(e.ms for e in found if not e.name and not _ours(e))
    if untold >= total / 1000:
        print("XLA's, for which op the profiler does not tell: %.1f%%." % (100 * untold / total))
    offers = _by([e for e in found if not _ours(e)], watch.owners.offer)
    served = {watch.owners.offer(e) for e in found if _ours(e)}  # what such layers do beside, as moving averages, stays
    rows = sorted([(sum(e.ms for e in some), *offer) for offer, some in offers.items()
                   if offer[0] and (offer not in served or told(offer[0]))], reverse=True)
    rows = [(ms, name, what) for ms, name, what in rows if ms >= total / 1000]
    left = [row for row in rows if row[1] in ON_A_GPU and left_to_keras(*row[1:])]
    rows = [row for row in rows if row not in left][:top]
    if left:
        print("Left to TensorFlow, which is faster at it where there is no GPU: %s, %.1f%%." % (
            ", ".join(dict.fromkeys(what for *_, what in left)), 100 * sum(ms for ms, *_ in left) / total))
    if not rows:
        print("Of the rest, tfuse knows nothing that it could serve.")
        return
    print("What tfuse could serve and does not:\n")
    _table([("share", "ms", "what", "by", "why not")] + [
        ("%.1f%%" % (100 * ms / total), "%.3f" % (ms / steps), what, "tfuse." + name, reason(name, what))
        for ms, name, what in rows])


def _shown(event):
    return event.shown or event.type


def _ours(event):
    return _shown(event).startswith(("Tfuse>", "XLA tfuse.")) or event.shown == XLA_CALL


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
    parser.add_argument("--skip", type=_numbers.positive, default=3, help="warm-up calls of the function, 1 or more (3)")
    parser.add_argument("--steps", type=_numbers.positive, default=5, help="calls to profile (5)")
    parser.add_argument("--top", type=_numbers.positive, default=16, help="lines per table (16)")
    parser.add_argument("script", help="the Python file")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="the script's own arguments")
    options = parser.parse_args(arguments)
    if not os.path.isfile(options.script) or not os.access(options.script, os.R_OK):
        raise SystemExit("%s is no file that can be read: a Python script is wanted" % options.script)
    with tempfile.TemporaryDirectory() as folder:
        with Watch(options.skip, options.steps, folder) as watch:
            run(options.script, options.rest)
        if not watch.seen:
            print("tfuse profile: no tf.function was called %d times in %s" % (options.skip + 1, options.script),
                  file=sys.stderr)
            return 1
        planes = planes_in(folder)
    device, found, xla_unseen = events(planes)
    if xla_unseen:
        print("XLA has compiled ops of this script, and the profiler saw none of them run%s." % (
            ": on a CPU it does from TensorFlow 2.18 on" if device == "CPU" else ""))
    if not found:
        print("tfuse profile: the profiler saw no op run", file=sys.stderr)
        return 1
    if device == "CPU" and tf.config.list_logical_devices("GPU"):
        print("The profiler saw nothing of the GPU (is CUPTI there?): these are the CPU's times.")
    report(device, found, watch, options.top, _idle.report(planes, watch.seen))
    return 0
