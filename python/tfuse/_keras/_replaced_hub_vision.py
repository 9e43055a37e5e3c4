"""What tfuse.enable() replaces in KerasHub's models of images and films, as rows of a table: attention that they write
out as products and a softmax, and that tfuse.attention computes as it is. Most of them use Keras's layers, and need no row.

What is left to KerasHub, and why:
  ViTDet, which SAM begins with: a bias for all queries and keys of every head and image, made from the queries.
  Swin: windows of 49 places, and a mask that repeats with their number and not with the batch.
  Qwen 3.5: frames one after the other, in eager mode only.
  VAE: one head of 512 channels; tfuse's fast kernels take heads of up to 256.
  MobileNetV5: queries, keys and values that have channels before places.
"""

import math

from keras import ops

from tfuse._core._explain import reason
from tfuse._keras._replaced import not_taken
from tfuse._keras._replaced_hub_attention import attend, guard, is_training, joined, row, split
from tfuse.attention.attention import attention
from tfuse.rows.softmax import kept


def _gemma4_vision(own, layer, q, k, v, attention_mask, training=False):
    """The mask is [batch, keys]; there is no scale, since query and key are normalised."""
    mask = None if attention_mask is None else kept(attention_mask)[:, None, None]
    return attend(layer.dropout_layer, training, q, k, v, mask=mask, scale=1.0, soft_cap=layer.logit_soft_cap)


def _video_prism(own, layer, query, value, key=None, attention_mask=None, training=None):
    """The mask is [batch, keys], [batch, queries, keys], or has all axes. A scale per channel is in the query already."""
    q, k, v = layer.query_dense(query), layer.key_dense(query if key is None else key), layer.value_dense(value)
    scale = None
    if layer.use_per_dim_scale:
        q, scale = layer.per_dim_scale_layer(q), 1.0
    mask = kept(attention_mask)
    if mask is not None and len(mask.shape) < 4:
        mask = mask[:, None] if len(mask.shape) == 3 else mask[:, None, None]
    return layer.output_dense(attend(layer.dropout_layer, training, q, k, v, mask=mask, scale=scale,
                                     soft_cap=layer.attention_logit_soft_cap))


def _vit(own, block, x, mask=None):
    """Of a block of the vision towers of Gemma 3 and PaliGemma. Their attention returns weights that the block drops."""
    layer = block.attn
    query, key, value = (split(dense(x), layer.num_heads) for dense in (layer.query_proj, layer.key_proj, layer.value_proj))
    return layer.out_proj(joined(attend(layer.dropout_layer, is_training(), query, key, value)))


def _sam(own, layer, query, value, key):
    projected = (layer.query_proj(query), layer.key_proj(key), layer.value_proj(value))
    return layer.out_proj(joined(attention(*(split(x, layer.num_heads) for x in projected))))


def _flux(own, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """Heads come before time."""
    transposed = lambda x: ops.transpose(x, (0, 2, 1, 3))
    return transposed(attention(*map(transposed, (query, key, value)), scale=scale))


def _d_fine(own, layer, hidden_states, position_embeddings=None, attention_mask=None, output_attentions=False,
            training=None):
    """What is called a mask, [queries, keys] or [batch, queries, keys], are numbers that are added to the scores."""
    placed = hidden_states if position_embeddings is None else hidden_states + position_embeddings
    query, key, value = layer.q_proj(placed), layer.k_proj(placed), layer.v_proj(hidden_states)
    bias = attention_mask
    if bias is not None:
        bias = ops.cast(bias if len(bias.shape) == 2 else bias[:, None], query.dtype)
    return layer.out_proj(joined(attend(layer.dropout, training, query, key, value, bias=bias, scale=layer.scaling)))


def _segformer(own, layer, x):
    """Keys and values are of a smaller image, where sr_ratio asks for that."""
    query = split(layer.q(x), layer.num_heads)
    if layer.sr_ratio > 1:
        batch, places, channels = ops.shape(x)
        side = math.isqrt(places)
        x = layer.norm(ops.reshape(layer.sr(ops.reshape(x, (batch, side, side, channels))), (batch, -1, channels)))
    key, value = (split(dense(x), layer.num_heads) for dense in (layer.k, layer.v))
    y = attend(layer.dropout, is_training(), query, key, value, scale=layer.scale)
    return layer.proj_drop(layer.proj(joined(y)))


@reason
def _flux_guard(a):
    yield (a.attn_mask is not None or a.dropout_p or a.is_causal) and "Flux attends to all, without dropout"
    odd = [x for x in (a.query, a.key, a.value) if not hasattr(x, "shape") or len(x.shape) != 4]
    yield odd and "query, key and value are not all [batch, heads, time, head_dim]"
    yield not_taken(a.query, a.key, a.value)


def _vit_guard(a):
    why = "KerasHub adds the mask to the scores as a number"
    return why if a.mask is not None else guard(a.x, a.block.attn.dropout_layer)


TABLE = [
    row("gemma4.gemma4_attention", "Gemma4VisionAttention._compute_attention", _gemma4_vision,
        lambda a: guard(a.q, a.layer.dropout_layer)),
    row("video_prism.video_prism_layers", "VideoPrismAttention.call", _video_prism,
        lambda a: guard(a.query, a.layer.dropout_layer)),
    row("gemma3.gemma3_vision_encoder", "Gemma3VisionEncoderLayer.compute_attention", _vit, _vit_guard),
    row("pali_gemma.pali_gemma_vit", "PaliGemmaVitEncoderBlock.compute_attention", _vit, _vit_guard),
    row("sam.sam_layers", "MultiHeadAttentionWithDownsampling.call", _sam, lambda a: not_taken(a.query, a.value, a.key)),
    row("flux.flux_maths", "scaled_dot_product_attention", _flux, _flux_guard),
    row("d_fine.d_fine_attention", "DFineMultiheadAttention.call", _d_fine, lambda a: (
        "output_attentions" if a.output_attentions else
        not_taken(a.attention_mask) or guard(a.hidden_states, a.layer.dropout))),
    row("mit.mit_layers", "SegFormerMultiheadAttention.call", _segformer, lambda a: guard(a.x, a.layer.dropout)),
]
