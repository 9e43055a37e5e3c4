/* shape.c - dtypes, shapes and the shape rules that ops share. */
#include <inttypes.h>
#include <stdio.h>

#include "tfuse.h"

static const struct {
  const char *name, *tag;
  size_t size;
} dtypes[TFU_DTYPES] = {
    [TFU_F32] = {"float32", "f32", 4},
    [TFU_F16] = {"float16", "f16", 2},
    [TFU_BF16] = {"bfloat16", "bf16", 2},
    [TFU_F64] = {"float64", "f64", 8},
    [TFU_I32] = {"int32", "i32", 4},
    [TFU_I64] = {"int64", "i64", 8},
    [TFU_BOOL] = {"bool", "bool", 1},
    [TFU_U8] = {"uint8", "u8", 1},
    [TFU_I8] = {"int8", "i8", 1},
    [TFU_U16] = {"uint16", "u16", 2},
    [TFU_I16] = {"int16", "i16", 2},
    [TFU_C64] = {"complex64", "c64", 8},
    [TFU_C128] = {"complex128", "c128", 16},
    [TFU_I4] = {"int4", "i4", 1},
    [TFU_U4] = {"uint4", "u4", 1},
    [TFU_E4M3] = {"float8_e4m3fn", "e4m3", 1},
    [TFU_E5M2] = {"float8_e5m2", "e5m2", 1},
};

const char *tfu_dtype_name(tfu_dtype dtype) { return dtypes[dtype].name; }
const char *tfu_dtype_tag(tfu_dtype dtype) { return dtypes[dtype].tag; }
size_t tfu_dtype_size(tfu_dtype dtype) { return dtypes[dtype].size; }
tfu_dtype tfu_real(tfu_dtype dtype) { return dtype == TFU_F64 || dtype == TFU_C128 ? TFU_F64 : TFU_F32; }

int64_t tfu_count(const tfu_shape *shape) { return tfu_rows(shape) * tfu_cols(shape); }
int64_t tfu_cols(const tfu_shape *shape) { return shape->rank > 0 ? shape->dim[shape->rank - 1] : 1; }
int64_t tfu_rows(const tfu_shape *shape) {
  int64_t n = 1;
  for (int i = 0; i + 1 < shape->rank; i++) n *= shape->dim[i];
  return n;
}

tfu_shape_text tfu_show(const tfu_shape *shape) {
  tfu_shape_text out = {"unknown rank"};
  int at = 0;
  if (shape->rank == TFU_UNKNOWN) return out;
  /* Eight dims of 20 digits and two separators fit. */
  for (int i = 0; i < shape->rank; i++) {
    const char *before = i ? ", " : "[";
    if (shape->dim[i] == TFU_UNKNOWN) at += snprintf(out.text + at, sizeof out.text - at, "%s?", before);
    else at += snprintf(out.text + at, sizeof out.text - at, "%s%" PRId64, before, shape->dim[i]);
  }
  snprintf(out.text + at, sizeof out.text - at, shape->rank ? "]" : "[]");
  return out;
}

int tfu_may_be(int64_t a, int64_t b) { return a == b || a == TFU_UNKNOWN || b == TFU_UNKNOWN; }

int tfu_given(const tfu_shape *shape) { return shape->rank != 1 || shape->dim[0] != 0; }
void *tfu_given_data(const tfu_tensor *t) { return t && tfu_given(&t->shape) ? t->data : NULL; }

int tfu_known(const tfu_shape *shape, int from) {
  if (shape->rank == TFU_UNKNOWN) return 0;
  for (int i = from; i < shape->rank; i++)
    if (shape->dim[i] == TFU_UNKNOWN) return 0;
  return 1;
}

int64_t tfu_axis(const tfu_shape *shape, int i) { return shape->rank == TFU_UNKNOWN ? TFU_UNKNOWN : shape->dim[i]; }

tfu_shape tfu_leading(const tfu_shape *shape) {
  tfu_shape out = *shape;
  if (out.rank > 0) out.rank--;
  return out;
}

tfu_shape tfu_append(const tfu_shape *shape, int64_t size) {
  tfu_shape out = *shape;
  if (out.rank >= 0 && out.rank < TFU_MAX_RANK) out.dim[out.rank++] = size;
  else out.rank = TFU_UNKNOWN;
  return out;
}

tfu_shape tfu_like_if(const tfu_shape *shape, const tfu_shape *when) {
  if (!tfu_given(when)) return (tfu_shape){.rank = 1};
  if (when->rank == TFU_UNKNOWN || (when->rank == 1 && when->dim[0] == TFU_UNKNOWN))
    return (tfu_shape){.rank = TFU_UNKNOWN};
  return *shape;
}

tfu_code tfu_has_rows(const char *name, const tfu_shape *x, tfu_error *err) {
  TFU_REQUIRE(err, x->rank != 0, "%s must have at least one dimension, got a single number", name);
  return TFU_OK;
}

tfu_code tfu_has_rank(const char *name, const tfu_shape *x, int rank, const char *axes, tfu_error *err) {
  TFU_REQUIRE(err, x->rank == TFU_UNKNOWN || x->rank == rank, "%s must be %s, got shape %s", name, axes,
              tfu_show(x).text);
  return TFU_OK;
}

tfu_code tfu_broadcasts(const char *a_name, const tfu_shape *a, const char *b_name, const tfu_shape *b,
                        tfu_error *err) {
  if (a->rank == TFU_UNKNOWN || b->rank == TFU_UNKNOWN) return TFU_OK;
  int fits = a->rank <= b->rank;
  for (int i = 1; fits && i <= a->rank; i++)
    fits = a->dim[a->rank - i] == 1 || tfu_may_be(a->dim[a->rank - i], b->dim[b->rank - i]);
  TFU_REQUIRE(err, fits, "%s must broadcast to the shape of %s, %s, got %s", a_name, b_name, tfu_show(b).text,
              tfu_show(a).text);
  return TFU_OK;
}

tfu_code tfu_match(const char *a_name, const tfu_shape *a, const char *b_name, const tfu_shape *b, tfu_error *err) {
  if (a->rank == TFU_UNKNOWN || b->rank == TFU_UNKNOWN) return TFU_OK;
  int same = a->rank == b->rank;
  for (int i = 0; same && i < a->rank; i++) same = tfu_may_be(a->dim[i], b->dim[i]);
  TFU_REQUIRE(err, same, "%s must have the shape of %s, %s, got %s", a_name, b_name, tfu_show(b).text,
              tfu_show(a).text);
  return TFU_OK;
}

tfu_code tfu_per_channel(const tfu_shape *x, const char *name, const tfu_shape *v, tfu_error *err) {
  if (v->rank == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, v->rank == 1, "%s must be a vector with one value per channel of x, got shape %s", name,
              tfu_show(v).text);
  if (v->dim[0] == 0 || v->dim[0] == TFU_UNKNOWN || x->rank == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, x->rank >= 1,
              "x must have at least one dimension to have a value of %s for each channel, got a single number", name);
  TFU_REQUIRE(err, tfu_may_be(tfu_cols(x), v->dim[0]),
              "%s must have %" PRId64 " values, one per channel (last axis) of x %s, got %" PRId64, name, tfu_cols(x),
              tfu_show(x).text, v->dim[0]);
  return TFU_OK;
}

tfu_code tfu_given_per_channel(const tfu_shape *x, const char *name, const tfu_shape *v, tfu_error *err) {
  TFU_TRY(tfu_per_channel(x, name, v, err));
  TFU_REQUIRE(err, tfu_given(v) || x->rank == TFU_UNKNOWN || tfu_may_be(tfu_cols(x), 0),
              "%s must be given, one value per channel (last axis) of x %s, got none", name, tfu_show(x).text);
  return TFU_OK;
}

tfu_code tfu_shape_like_input(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err) {
  (void)attr, (void)err;
  out[0] = in[0];
  return TFU_OK;
}

tfu_code tfu_shape_gradient(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err) {
  (void)attr;
  TFU_TRY(tfu_match("dy", &in[0], "x", &in[1], err));
  out[0] = in[1];
  return TFU_OK;
}
