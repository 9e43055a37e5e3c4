/* Rotary embedding of query and key, [batch, time, heads, head_dim], in one pass: pair i of a head's first d = `rotary`
 * elements (0: all) is rotated by the angle position * base^(-2i / d); the rest stays as it is. Pairs are (i, i + d /
 * 2), or (2i, 2i + 1) where interleaved. key is an empty tensor where not given; it may have another number of heads.
 * Where frequencies are given, d / 2 of them, the angle is position * frequencies[i].
 *
 * position of (b, t): positions + t for one number, positions[b] + t for a vector, positions[b, t] for a matrix. The
 * gradient is the same op with `inverse`, which rotates back. */
#include "ops/elementwise/rope.h"

#include "tfuse.h"

static tfu_code check_positions(const tfu_shape *x, const tfu_shape *p, tfu_error *err) {
  if (p->rank == TFU_UNKNOWN || p->rank == 0) return TFU_OK;
  tfu_shape wanted = *x;
  wanted.rank = p->rank;
  TFU_REQUIRE(err, p->rank <= 2, "positions must be a number, [batch] or [batch, time], got shape %s",
              tfu_show(p).text);
  return tfu_match("positions", p, p->rank == 1 ? "[batch] of query" : "[batch, time] of query", &wanted, err);
}

/* `head` is the number of elements of one, or unknown. */
static tfu_code check_frequencies(const tfu_shape *f, int64_t head, const tfu_value *attr, tfu_error *err) {
  if (!tfu_given(f) || f->rank == TFU_UNKNOWN || !attr) return TFU_OK;
  const int64_t rotary = attr[TFU_ROPE_ROTARY].i ? attr[TFU_ROPE_ROTARY].i : head;
  TFU_REQUIRE(err, f->rank == 1 && (rotary == TFU_UNKNOWN || tfu_may_be(f->dim[0], rotary / 2)),
              "frequencies must be one for each pair that is rotated, %d, got shape %s", (int)(rotary / 2),
              tfu_show(f).text);
  return TFU_OK;
}

TFU_SHAPE_RULE(shape) {
  static const char *const names[] = {"query", "key"};
  for (int i = 0; i < 2; i++) {
    out[i] = in[i];
    if ((i && !tfu_given(&in[i])) || in[i].rank == TFU_UNKNOWN) continue;
    TFU_REQUIRE(err, in[i].rank == 4, "%s must be [batch, time, heads, head_dim], got shape %s", names[i],
                tfu_show(&in[i]).text);
    const int64_t head = in[i].dim[3];
    TFU_REQUIRE(err, head == TFU_UNKNOWN || head % 2 == 0, "head_dim of %s must be even, got shape %s", names[i],
                tfu_show(&in[i]).text);
    if (attr && (attr[TFU_ROPE_ROTARY].i < 0 || attr[TFU_ROPE_ROTARY].i % 2 || attr[TFU_ROPE_ROTARY].i > head))
      return tfu_fail(err, TFU_INVALID, "rotary must be even and at most head_dim, %d, got %d", (int)head,
                      (int)attr[TFU_ROPE_ROTARY].i);
  }
  if (in[0].rank != 4) return TFU_OK;
  TFU_TRY(check_positions(&in[0], &in[TFU_ROPE_POSITIONS], err));
  TFU_TRY(check_frequencies(&in[TFU_ROPE_FREQUENCIES], in[0].dim[3], attr, err));
  if (in[1].rank != 4) return TFU_OK;
  tfu_shape wanted = in[0];
  wanted.dim[2] = in[1].dim[2];
  return tfu_match("key", &in[1], "query up to the heads", &wanted, err);
}

const tfu_op tfu_rope = {
    .name = "Rope",
    .doc = "Rotary position embedding of query and key, [batch, time, heads, head_dim].",
    .in = {"query: T", "key: T", "positions: P", "frequencies: float"},
    .out = {"rotated_query: T", "rotated_key: T"},
    .attr = {"base: float = 10000.0", TFU_ROPE_PAIRING_ATTR, "rotary: int = 0", "inverse: bool = false",
             "scale: float = 1.0", "P: {int32, int64} = DT_INT32", TFU_T_FLOATS},
    .shape = shape,
    TFU_KERNELS(rope),
    .capturable = 1,
};
