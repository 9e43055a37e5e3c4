/* attention.h - arguments and attributes of the attention ops, as kernels see them. */
#ifndef TFUSE_ATTENTION_H_
#define TFUSE_ATTENTION_H_

/* Which query and key stand side by side: the first ones of both sequences, or the last ones. */
enum { TFU_ALIGN_FIRST, TFU_ALIGN_LAST };

/* In this order for all of them; paged attention has the first five. */
enum {
  TFU_ATT_SCALE,
  TFU_ATT_ALIGN,
  TFU_ATT_LEFT,
  TFU_ATT_RIGHT,
  TFU_ATT_SOFT_CAP,
  TFU_ATT_RATE,
  TFU_ATT_DETERMINISTIC,
  TFU_ATT_TF32,
};
#define TFU_ATTENTION_ATTRS                                                                        \
  "scale: float = 1.0", "align: {'first', 'last'} = 'first'", "left: int = -1", "right: int = -1", \
      "soft_cap: float = 0.0"

enum {
  TFU_ATT_QUERY,
  TFU_ATT_KEY,
  TFU_ATT_VALUE,
  TFU_ATT_BIAS,
  TFU_ATT_MASK,
  TFU_ATT_QUERY_LENGTHS,
  TFU_ATT_KEY_LENGTHS,
  TFU_ATT_SEED,
  /* Of the gradient alone, which also has the gradient of the output before all of these: */
  TFU_ATT_OUTPUT,
  TFU_ATT_STATS,
  TFU_ATT_DSTATS,
  TFU_ATT_DBIAS_FOR,
};
enum { TFU_ATT_DQUERY, TFU_ATT_DKEY, TFU_ATT_DVALUE, TFU_ATT_DBIAS };

/* Scratch of a captured forward pass: cuDNN's workspace, or what the splits of few queries' keys leave to be joined.
 * Where either takes more, as few queries do in batches of tens of thousands of heads, a kernel serves that takes none.
 */
enum { TFU_ATTENTION_ROOM = 16 << 20 };
/* Parts of the keys of one query, where the call is invariant. */
enum { TFU_INVARIANT_SPLITS = 16 };

#endif
