"""What a decoder is made of, in one form for all families: norms, products, attention.

Nothing here computes: families.py reads decoders from models of KerasHub, and steps.py writes a decoder's step as a chain.
"""

import dataclasses
import typing

import tensorflow as tf


class NotServed(ValueError):
    """Why a model is left to KerasHub."""


@dataclasses.dataclass
class Norm:
    kind: str  # "rms" or "layer"
    gamma: tf.Tensor
    beta: typing.Optional[tf.Tensor]
    epsilon: float


@dataclasses.dataclass
class Product:
    """x . kernel + bias, of a kernel [in, out]."""
    kernel: tf.Tensor
    bias: typing.Optional[tf.Tensor] = None

    @property
    def outputs(self):
        return self.kernel.shape[1]


@dataclasses.dataclass
class Quantized:
    """The same with a kernel of 8 or 4 bits as Keras keeps it, by the names that tfuse.quantized_linear has."""
    kernel: tf.Tensor
    scale: tf.Tensor
    zero: typing.Optional[tf.Tensor] = None
    input_scale: typing.Optional[tf.Tensor] = None
    bias: typing.Optional[tf.Tensor] = None
    bits: int = 8
    group: typing.Optional[int] = None
    order: str = "rows"
    divide: bool = False
    quantize_rows: bool = False
    dtype: typing.Optional[tf.DType] = None  # of x
    halves: bool = False  # of 4 bits, two neighbouring inputs share a byte, not outputs

    @property
    def outputs(self):
        return self.scale.shape[0 if self.order == "columns" else -1]


@dataclasses.dataclass
class Tiled:
    """The same in tiles, as tfuse.pack_kernel makes them: what chains have of it."""
    kernel: tf.Tensor
    scale: tf.Tensor
    input_scale: typing.Optional[tf.Tensor]
    bias: typing.Optional[tf.Tensor]
    bits: int
    group: int
    quantize_rows: bool

    @property
    def outputs(self):
        return self.scale.shape[2]

    @property
    def how(self):
        return {"bits": self.bits, "group": self.group, "quantize_rows": self.quantize_rows}


@dataclasses.dataclass
class Attention:
    query: Product
    key: Product
    value: Product
    output: Product
    heads: int
    shared_heads: int  # those of keys and values
    scale: float
    rope: typing.Optional[dict]  # attributes of the op Rope …
    window: int = -1  # keys before its own that a query attends to; -1: all
    soft_cap: float = 0.0
    query_norm: typing.Optional[Norm] = None  # of each head
    key_norm: typing.Optional[Norm] = None
    frequencies: typing.Optional[tf.Tensor] = None  # … and its input, where they are no powers

    @property
    def head_dim(self):
        return self.key.outputs // self.shared_heads


@dataclasses.dataclass
class Mlp:
    gate: typing.Optional[Product]  # None: act(x . up) alone, else act(x . gate) * (x . up)
    up: Product
    down: Product
    activation: str


@dataclasses.dataclass
class Experts:
    """A mixture of gated products, of which each token has some: those to which the router gives most, and as much of each."""
    router: Product
    gate: tf.Tensor  # [experts, in, inner], or with up beside it
    up: typing.Optional[tf.Tensor]
    down: tf.Tensor  # [experts, inner, out]
    top_k: int
    normalized: bool  # the router's weights are, so that their sum is 1
    activation: str
    shared: typing.Optional[Mlp] = None  # an expert that each token has …
    shared_gate: typing.Optional[Product] = None  # … as much of as the sigmoid of this


@dataclasses.dataclass
class Block:
    """x += attention(norm(x)); x += mlp(norm(x)), each sum normed before it is added where there is such a norm."""
    before_attention: Norm
    attention: Attention
    before_mlp: Norm
    mlp: typing.Union[Mlp, Experts]
    after_attention: typing.Optional[Norm] = None
    after_mlp: typing.Optional[Norm] = None


@dataclasses.dataclass
class Decoder:
    table: tf.Tensor  # [words, width]
    blocks: list
    norm: Norm
    head: typing.Optional[Product] = None  # None: the table
    positions: typing.Optional[tf.Tensor] = None  # [positions, width], learned
    limit: typing.Optional[int] = None  # tokens of a sequence, at most
    scale: float = 1.0  # of the embedding
    soft_cap: float = 0.0  # of the logits

    def room(self, wanted):
        """Tokens of a sequence, at most, where so many are wanted."""
        return wanted if self.limit is None else min(wanted, self.limit)


def mapped(part, kind, function):
    """A decoder, or a part of it, with function(x) for each x of a kind."""
    if isinstance(part, kind):
        return function(part)
    if isinstance(part, list):
        return [mapped(p, kind, function) for p in part]
    if dataclasses.is_dataclass(part):
        return dataclasses.replace(part, **{field.name: mapped(getattr(part, field.name), kind, function)
                                            for field in dataclasses.fields(part)})
    return part


def all_of(part, kind):
    """All that a decoder has of a kind, each once, in one order."""
    found = {}
    mapped(part, kind, lambda x: found.setdefault(id(x), x))
    return list(found.values())
