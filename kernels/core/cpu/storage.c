/* storage.c - float16 and bfloat16 on the CPU: widened and rounded a tile at a time. */
#include "kernels/core/cpu/cpu.h"

static void widen_f16(const _Float16 *restrict in, float *restrict out, int n) {
  for (int i = 0; i < n; i++) out[i] = (float)in[i];
}
static void round_f16(const float *restrict in, _Float16 *restrict out, int n) {
  for (int i = 0; i < n; i++) out[i] = (_Float16)in[i];
}

static void widen_bf16(const uint16_t *restrict in, float *restrict out, int n) {
  for (int i = 0; i < n; i++) {
    const uint32_t bits = (uint32_t)in[i] << 16;
    memcpy(&out[i], &bits, sizeof bits);
  }
}
/* To nearest, ties to even; NaN becomes the quiet NaN of its sign, as its payload's low half is lost. */
static void round_bf16(const float *restrict in, uint16_t *restrict out, int n) {
  for (int i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &in[i], sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
    out[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
  }
}

const float *tfu_load_f32(const void *data, tfu_dtype dtype, int64_t at, int n, float *buffer) {
  if (dtype == TFU_F32) return (const float *)data + at;
  if (dtype == TFU_F16) widen_f16((const _Float16 *)data + at, buffer, n);
  else widen_bf16((const uint16_t *)data + at, buffer, n);
  return buffer;
}

float *tfu_room_f32(void *data, tfu_dtype dtype, int64_t at, float *buffer) {
  return dtype == TFU_F32 ? (float *)data + at : buffer;
}

void tfu_store_f32(void *data, tfu_dtype dtype, int64_t at, int n, const float *values) {
  if (dtype == TFU_F16) round_f16(values, (_Float16 *)data + at, n);
  else if (dtype == TFU_BF16) round_bf16(values, (uint16_t *)data + at, n);
  else if (values != (float *)data + at) memcpy((float *)data + at, values, (size_t)n * sizeof *values);
}

void tfu_copy_f32(float *to, const void *data, tfu_dtype dtype, int64_t at, int n) {
  const float *from = data ? tfu_load_f32(data, dtype, at, n, to) : NULL;
  if (!from) memset(to, 0, (size_t)n * sizeof *to);
  else if (from != to) memcpy(to, from, (size_t)n * sizeof *to);
}

const double *tfu_load_f64(const void *data, tfu_dtype dtype, int64_t at, int n, double *buffer) {
  (void)dtype, (void)n, (void)buffer;
  return (const double *)data + at;
}

double *tfu_room_f64(void *data, tfu_dtype dtype, int64_t at, double *buffer) {
  (void)dtype, (void)buffer;
  return (double *)data + at;
}

void tfu_store_f64(void *data, tfu_dtype dtype, int64_t at, int n, const double *values) {
  (void)dtype;
  if (values != (double *)data + at) memcpy((double *)data + at, values, (size_t)n * sizeof *values);
}

void tfu_copy_f64(double *to, const void *data, tfu_dtype dtype, int64_t at, int n) {
  (void)dtype;
  if (data) memcpy(to, (const double *)data + at, (size_t)n * sizeof *to);
  else memset(to, 0, (size_t)n * sizeof *to);
}
