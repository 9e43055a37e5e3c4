"""A SavedModel's files as they lie there: its graphs, and whether they are whole."""

import math

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from tfuse._tools import _files

VARIABLES = "VarHandleOp", "VariableV2", "Variable"  # ops whose values are in the folder variables/


def is_one(path):
    return (path / "saved_model.pb").exists()


def graphs(folder):
    """The graphs of a SavedModel, or a SystemExit that says what is wrong with its file."""
    path = folder / "saved_model.pb"
    try:
        found = saved_model_pb2.SavedModel.FromString(path.read_bytes()).meta_graphs
    except OSError as error:
        raise SystemExit("%s cannot be read: %s" % (path, error.strerror))
    except DecodeError:
        raise SystemExit("%s is damaged, or was not written to its end" % path)
    if not found:
        raise SystemExit("%s has no graph: it is damaged, or no SavedModel" % path)
    return found


def spec(name, port):
    """A tf.TensorSpec of an input or output."""
    try:
        shape, dtype = tf.TensorShape(port.tensor_shape), tf.as_dtype(port.dtype)
    except (TypeError, ValueError) as error:
        raise SystemExit("the model's %s is no tensor of a known dtype and shape: %s" % (ascii(name), error))
    if port.WhichOneof("encoding") != "name":
        raise SystemExit("the model's %s is no plain tensor: export it with another signature" % ascii(name))
    return tf.TensorSpec(shape, dtype)


def ops(folder):
    """The name of the op of each node of a SavedModel."""
    for graph in graphs(folder):
        yield from (node.op for node in graph.graph_def.node)
        yield from (node.op for function in graph.graph_def.library.function for node in function.node_def)


def check(folder):
    """Refuses a SavedModel whose variables are missing or cut short."""
    if not set(VARIABLES).intersection(ops(folder)):
        return
    index = folder / "variables/variables.index"
    if not index.is_file():
        raise SystemExit("%s is missing, and the model has variables: copy the whole folder of the SavedModel" % index)
    reader = _files.loaded(str(index.with_suffix("")), tf.train.load_checkpoint, exists=index)
    dtypes, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    wanted = sum(math.prod(shapes[name]) * dtype.size for name, dtype in dtypes.items() if dtype != tf.string)
    there = sum(path.stat().st_size for path in index.parent.glob("variables.data-*"))
    if there < wanted:
        raise SystemExit("%s/variables.data-* have %d bytes, and the variables %d: copy the whole folder of the SavedModel" % (
            index.parent, there, wanted))
