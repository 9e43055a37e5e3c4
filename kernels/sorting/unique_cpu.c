/* Unique on the CPU: a table of slots, open to the next free one, twice as large as there are values. */
#ifndef KEY
#include "kernels/sorting/radix_cpu.h"

#define TFU_SELF "kernels/sorting/unique_cpu.c"
#include "kernels/sorting/by_key.h"

tfu_code tfu_unique_cpu(tfu_call *call) {
  const tfu_dtype dtype = call->in[0].dtype;
  return TFU_BY_KEY(dtype, unique, call, tfu_order_of(dtype, 0, 1));
}
#else

/* The table grows with what it holds, so that few values stay in the cache. */
static tfu_code KEYED(unique)(tfu_call *call, tfu_order order) {
  const int64_t n = tfu_count(&call->in[0].shape);
  const KEY *x = call->in[0].data, nan = (KEY) ~(KEY)0;
  KEY *y = call->out[0].data;
  int32_t *idx = call->out[1].data, *count = call->out[2].data, number = 0;
  int64_t size = 64, most = 64;
  while (most < 2 * n) most *= 2;
  int32_t *table; /* a number of y and 1, or 0 */
  TFU_SCRATCH(call, most, table);
  memset(table, 0, (size_t)size * sizeof *table);
  for (int64_t i = 0; i < n; i++) {
    const KEY key = KEYED(tfu_to_key)(x[i], order);
    uint64_t at = ((uint64_t)key * 0x9e3779b97f4a7c15u >> 20) & (uint64_t)(size - 1);
    while (table[at] && (order.is_float && key == nan ? 1 : KEYED(tfu_to_key)(y[table[at] - 1], order) != key))
      at = (at + 1) & (uint64_t)(size - 1);
    if (table[at]) {
      count[idx[i] = table[at] - 1]++;
      continue;
    }
    y[number] = x[i];
    count[number] = 1;
    idx[i] = number++;
    if (!(order.is_float && key == nan)) table[at] = number;
    if (2 * (int64_t)number <= size || size == most) continue;
    size *= 4;
    if (size > most) size = most;
    memset(table, 0, (size_t)size * sizeof *table);
    for (int32_t k = 0; k < number; k++) {
      const KEY again = KEYED(tfu_to_key)(y[k], order);
      if (order.is_float && again == nan) continue;
      at = ((uint64_t)again * 0x9e3779b97f4a7c15u >> 20) & (uint64_t)(size - 1);
      while (table[at]) at = (at + 1) & (uint64_t)(size - 1);
      table[at] = k + 1;
    }
  }
  if (n) memset(y + number, 0, (size_t)(n - number) * sizeof *y);
  if (n) memset(count + number, 0, (size_t)(n - number) * sizeof *count);
  *(int32_t *)call->out[3].data = number;
  return TFU_OK;
}
#endif
