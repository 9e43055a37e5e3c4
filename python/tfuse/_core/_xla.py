"""An XLA custom call from inside TensorFlow: StableHLO written as text, handed to XLA by TensorFlow's call_module."""

import contextlib
import struct
import threading
import weakref

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla as tfxla
from tensorflow.python.eager import record
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

_TYPES = {tf.float32: "f32", tf.float16: "f16", tf.bfloat16: "bf16", tf.float64: "f64",
          tf.int32: "i32", tf.int64: "i64", tf.bool: "i1", tf.int8: "i8", tf.uint8: "ui8",
          tf.complex64: "complex<f32>", tf.complex128: "complex<f64>"}
# A dtype to cast to and back, which loses nothing of float32 nor of this one.
_WIDER = {tf.bfloat16: tf.float32, tf.float16: tf.float32, tf.float64: tf.complex128}
_SAME_DTYPE = {"Identity", "IdentityN", "Reshape", "Transpose"}  # ops whose output has the dtype that their input has in XLA


def custom_call(target, inputs, specs, dims, attributes, aliases=(), room=0):
    """Calls `target`; returns a list of outputs as `specs` says. dims: for each output, where its dimensions come from: a
    number, (input, axis), or a list of these, whose sizes broadcast. aliases: for each output, the number of the input whose
    memory it takes; XLA copies that input before where somebody needs it still. room: bytes of scratch memory that the
    target wants as one more result, which is nobody's.

    The module is for CPU and CUDA alike: the target is registered under one name on both, so what is traced, and saved,
    on one runs on the other. With several platforms XLA wants the platform's index as the first argument.
    """
    types = [_type(i.dtype, i.shape) for i in inputs]
    outputs = [_type(s.dtype, s.shape) for s in specs]
    results = outputs + ["tensor<%dxi8>" % room] * (room > 0)
    names = ["%%a%d" % i for i in range(len(types))]
    signature = ", ".join(["%platform: tensor<i32>"] + ["%s: %s" % pair for pair in zip(names, types)])
    config = ["api_version = 4 : i32", "backend_config = {%s}" % ", ".join(
        "%s = %s" % (name, _literal(value)) for name, value in sorted(attributes.items()))]
    lines, polymorphic = [], any("?" in t for t in types)
    if polymorphic:  # an operand per result says its shape; XLA folds it away once it knows the inputs' sizes
        config.append("indices_of_shape_operands = dense<%s> : tensor<%dxi64>" % (
            [len(types) + i for i in range(len(results))], len(results)))
        dims = [*dims, [room]] if room else dims
        for i, shape in enumerate(dims):
            lines += _shape("%%s%d" % i, shape, types)
        names += ["%%s%d" % i for i in range(len(results))]
        types = types + ["tensor<%dxi32>" % len(shape) for shape in dims]
    # Row-major, all of them: left to itself, XLA hands over whatever order a transpose before the call left behind.
    config += ["operand_layouts = [%s]" % ", ".join(map(_row_major, types)),
               "result_layouts = [%s]" % ", ".join(map(_row_major, results))]
    many = len(results) > 1
    if aliases:
        config.append("output_operand_aliases = [%s]" % ", ".join(
            "#stablehlo.output_operand_alias<output_tuple_indices = [%s], operand_index = %d, operand_tuple_indices = []>" % (
                i if many else "", operand) for i, operand in enumerate(aliases)))
    body = "\n    ".join(lines + [
        "%%r%s = stablehlo.custom_call @%s(%s) {%s} : (%s) -> (%s)" % (
            ":%d" % len(results) if many else "", target, ", ".join(names), ", ".join(config), ", ".join(types),
            ", ".join(results)),
        "return %s : %s" % (", ".join("%%r#%d" % i for i in range(len(outputs))) if many else "%r", ", ".join(outputs))])
    module = f"""module @tfuse {"attributes {jax.uses_shape_polymorphism = true} " if polymorphic else ""}{{
  func.func public @main({signature}) -> ({", ".join(outputs)}) {{
    {body}
  }}
}}"""
    return tfxla.call_module([_of_promised_dtype(x) for x in inputs], version=9, module=module, Tout=[s.dtype for s in specs],
                             Sout=[s.shape for s in specs], platforms=["CPU", "CUDA"])


def _of_promised_dtype(x):
    """The tensor, in XLA of the dtype that the graph says.

    A module takes its arguments in these dtypes only, and some XLA kernels compute in float32 and leave their result in that,
    whatever the graph says: that of ResizeBilinearGrad does. An XLA cast converts what it gets, so one to a wider dtype and
    back repairs such a value. A 16-bit value that is right stays as it is, because XLA removes the pair; of float64, one pass
    is left. Tensors from casts, constants and tfuse's own calls are right: a training step of a transformer of 12 layers in
    mixed_bfloat16 gets 24 pairs, for 2,266 tensors.
    """
    if x.dtype not in _WIDER or isinstance(x, ops.EagerTensor):
        return x
    source = x
    while source.op.type in _SAME_DTYPE:
        source = source.op.inputs[source.value_index]
    made, of = source.op, source.op.get_attr
    if made.type in ("XlaCallModule", "Const") or made.type == "Cast" and of("SrcT") != of("DstT"):
        return x
    return tf.cast(tf.cast(x, _WIDER[x.dtype]), x.dtype)


def differentiable(compute, gradient, inputs):
    """compute(inputs), a list of outputs, whose gradient is gradient(inputs, outputs, *dy). That may be differentiated in its
    turn, any number of times: the outputs that it sees have a gradient themselves.

    tf.custom_gradient would do, but for tapes that are outside of the compiled function: TensorFlow differentiates the
    graph of its gradient then, in which the tensors that a Python function has kept are unknown, and which does not say
    that XLA compiles it. So tensors come from the node that is differentiated. A SavedModel that keeps gradients asks for
    that of no node, and records what its graph captures.
    """
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    name = "CustomGradient-%d" % ops.uid()  # as TensorFlow calls its own, which a SavedModel knows
    with record.stop_recording():
        before = [*compute(inputs), *inputs]
        with ops.get_default_graph().gradient_override_map({"IdentityN": name}):
            after = tf.identity_n(before)
    n, compiled = len(before) - len(inputs), is_inside()

    def of_node(inputs, outputs, dy):
        with inside() if compiled else contextlib.nullcontext():
            found = gradient(inputs[n:], outputs[:n], *dy[:n])
        return [None] * n + (list(found) if isinstance(found, (list, tuple)) else [found])

    if not tf.executing_eagerly():  # where the tape alone asks
        _register(name, after[0], of_node)
    # The copies of the inputs are not recorded: nobody sees them, and a tape would make zeros for each.
    record.record_operation(name, after[:n], before, lambda *dy: of_node(before, after, dy))
    return after[:n]


def _register(name, output, of_node):
    """What is registered stays for good, and so must not hold the graph."""
    graph, own = weakref.ref(output.graph), output.op.name

    @tf.autograph.experimental.do_not_convert
    def of_any(node, *dy):
        node = node or graph().get_operation_by_name(own)
        return of_node(list(node.inputs), list(node.outputs), dy)

    tf.RegisterGradient(name)(of_any)


_within = threading.local()


@contextlib.contextmanager
def inside():
    """For what is built here is_inside() says yes."""
    before = getattr(_within, "now", False)
    _within.now = True
    try:
        yield
    finally:
        _within.now = before


def is_inside():
    """Whether what is built now is compiled by XLA."""
    return getattr(_within, "now", False) or control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def _shape(name, shape, types):
    """StableHLO that computes a shape as a vector called `name`."""
    lines, parts = [], []
    for k, size in enumerate(shape):
        part = "%s_%d" % (name, k)
        parts.append(part + "_v")
        lines += _size(part, size, types)
        lines.append("%s_v = stablehlo.reshape %s : (tensor<i32>) -> tensor<1xi32>" % (part, part))
    if not shape:
        return ["%s = stablehlo.constant dense<> : tensor<0xi32>" % name]
    return lines + ["%s = stablehlo.concatenate %s, dim = 0 : (%s) -> tensor<%dxi32>" % (
        name, ", ".join(parts), ", ".join(["tensor<1xi32>"] * len(parts)), len(parts))]


def _size(name, size, types):
    """StableHLO that computes one dimension as a number called `name`."""
    if isinstance(size, int):
        return ["%s = stablehlo.constant dense<%d> : tensor<i32>" % (name, size)]
    if isinstance(size, tuple):
        return ["%s = stablehlo.get_dimension_size %%a%d, dim = %d : (%s) -> tensor<i32>" % (name, *size, types[size[0]])]
    first, *others = size
    if not others:
        return _size(name, first, types)
    rest, own = name + "_r", name + "_o"
    return [*_size(rest, others, types), *_size(own, first, types), *_size(name + "_1", 1, types),
            "%s_s = stablehlo.compare EQ, %s, %s_1 : (tensor<i32>, tensor<i32>) -> tensor<i1>" % (name, own, name),
            "%s = stablehlo.select %s_s, %s, %s : tensor<i1>, tensor<i32>" % (name, name, rest, own)]


def _type(dtype, shape):
    return "tensor<%s>" % "x".join(["?" if d is None else str(d) for d in shape] + [_TYPES[dtype]])


def _row_major(type_):
    rank = type_.replace("complex", "").count("x")
    return "dense<%s> : tensor<%dxindex>" % (list(range(rank))[::-1] if rank else "", rank)


def _literal(value):
    """An attribute in MLIR's notation; floats by their bits, which spells infinity and NaN too."""
    if isinstance(value, str):
        return '"%s"' % "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else "\\%02X" % b for b in value.encode())
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return "%d : i64" % value
    return "0x%08X : f32" % struct.unpack("<I", struct.pack("<f", value))[0]
