"""Models for tests that serve them: small ones of KerasHub and of tf.Module, as `python -m tfuse export` writes them."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfuse._tools import _export, _model

hub = pytest.importorskip("keras_hub")


def why_not():
    """Why no model can be opened here, or nothing."""
    try:
        _model.file("libtfuse_model.so")
    except _model.NotThere as error:
        return str(error)
    return ""


needs_library = pytest.mark.skipif(bool(why_not()), reason=why_not())


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


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of models, some with a configuration; expected() of a model gives what Python has."""
    return _filled(tmp_path_factory.getbasetemp() / "models")


@functools.lru_cache(None)  # each file that has the fixture would make them anew
def _filled(home):
    home.mkdir()
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
