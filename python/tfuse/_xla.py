"""An XLA custom call from inside TensorFlow: StableHLO written as text, handed to XLA by TensorFlow's call_module."""

import struct

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla as tfxla

_TYPES = {tf.float32: "f32", tf.float16: "f16", tf.bfloat16: "bf16", tf.float64: "f64"}


def custom_call(target, inputs, specs, attributes):
    """Calls `target` with tensors of known shape; returns a list of outputs as `specs` says.

    The module is for CPU and CUDA alike: the target is registered under one name on both, so what is traced, and saved,
    on one runs on the other. With several platforms XLA wants the platform's index as the first argument.
    """
    types = [_type(i.dtype, i.shape) for i in inputs]
    results = [_type(s.dtype, s.shape) for s in specs]
    names = ["%%a%d" % i for i in range(len(types))]
    signature = ", ".join(["%platform: tensor<i32>"] + ["%s: %s" % pair for pair in zip(names, types)])
    config = ", ".join("%s = %s" % (name, _literal(value)) for name, value in sorted(attributes.items()))
    many = len(results) > 1
    module = f"""module @tfuse {{
  func.func public @main({signature}) -> ({", ".join(results)}) {{
    %r{":%d" % len(results) if many else ""} = stablehlo.custom_call @{target}({", ".join(names)}) {{
      api_version = 4 : i32, backend_config = {{{config}}}
    }} : ({", ".join(types)}) -> ({", ".join(results)})
    return {", ".join("%%r#%d" % i for i in range(len(results))) if many else "%r"} : {", ".join(results)}
  }}
}}"""
    return tfxla.call_module(list(inputs), version=9, module=module, Tout=[s.dtype for s in specs],
                             Sout=[s.shape for s in specs], platforms=["CPU", "CUDA"])


def _type(dtype, shape):
    return "tensor<%s>" % "x".join([str(d) for d in shape] + [_TYPES[dtype]])


def _literal(value):
    """An attribute in MLIR's notation; floats by their bits, which spells infinity and NaN too."""
    if isinstance(value, str):
        return '"%s"' % value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return "%d : i64" % value
    return "0x%08X : f32" % struct.unpack("<I", struct.pack("<f", value))[0]
