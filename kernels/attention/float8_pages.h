/* float8_pages.h - a paged KV cache of 8 bits: tensors of uint8 that are float8_e4m3fn (kernels/core/float8.h). Rows
 * are rounded on their way in; for attention in another dtype, pages are widened. Host and device. */
#ifndef TFUSE_KERNELS_FLOAT8_PAGES_H_
#define TFUSE_KERNELS_FLOAT8_PAGES_H_

#include "kernels/core/divisor.h"

enum { FLOAT8_PAGES_THREADS = 256 };

/* Row r of `from` is rounded to row number[r] of `to`, of which there are `rows`, or nowhere. */
typedef struct narrow_rows_args {
  const void *from;
  uint8_t *to;
  const int64_t *number;
  int64_t rows, elements; /* elements: of from */
  tfu_divisor span;       /* elements of a row */
} narrow_rows_args;

/* Pages of sequences, one after the other, those of a sequence in their order: wide[b * width + p] is the page
 * table[b, p], and numbers[b, p] = b * width + p, or -1 where there is no such page. Pages beyond a sequence's length
 * are left as they are. */
typedef struct widen_pages_args {
  const uint8_t *pages[2]; /* keys, values */
  void *wide[2];
  const int64_t *table, *lengths;
  int64_t *numbers;
  int64_t elements[2]; /* of a page */
  int count, width;    /* of wide's pages; of a row of the table */
  int there, size;     /* pages of the cache; rows of a page */
} widen_pages_args;

#ifndef TFU_DEVICE
#include "tfuse.h"

typedef struct float8_pages_parts {
  tfu_code (*widen)(tfu_call *call, tfu_dtype dtype, const widen_pages_args *a);
  tfu_compute_fn *attention;
} float8_pages_parts;

/* Of rows of a tensor that end in axes of heads and head_dim, and the cache they go to. */
static inline narrow_rows_args narrow_rows_of(const tfu_tensor *from, const tfu_tensor *to, const tfu_tensor *number) {
  const tfu_shape *s = &to->shape;
  const int64_t span = s->dim[s->rank - 2] * s->dim[s->rank - 1];
  return (narrow_rows_args){.from = from->data,
                            .to = to->data,
                            .number = number->data,
                            .rows = span ? tfu_count(s) / span : 0,
                            .elements = tfu_count(&from->shape),
                            .span = divisor_of(span ? span : 1)};
}

/* Whether a cache is of 8 bits. It fails unless its dtype is this one or uint8. */
TFU_MUST_USE tfu_code tfu_is_float8_cache(tfu_call *call, tfu_dtype cache, tfu_dtype dtype, int *is_float8);
/* PagedAttention over such a cache: pages of some sequences are widened at a time. */
TFU_MUST_USE tfu_code tfu_float8_paged_attention(tfu_call *call, const float8_pages_parts *parts);

TFU_MUST_USE tfu_code tfu_narrow_rows_cpu(tfu_call *call, tfu_dtype dtype, const narrow_rows_args *a);
TFU_MUST_USE tfu_code tfu_narrow_rows_gpu(tfu_call *call, tfu_dtype dtype, const narrow_rows_args *a);
TFU_MUST_USE tfu_code tfu_widen_pages_cpu(tfu_call *call, tfu_dtype dtype, const widen_pages_args *a);
TFU_MUST_USE tfu_code tfu_widen_pages_gpu(tfu_call *call, tfu_dtype dtype, const widen_pages_args *a);
#endif

#endif
