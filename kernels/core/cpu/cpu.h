/* cpu.h - what CPU kernels are made of: tiles, storage types, vectorised exp, the table of activations.
 *
 * A kernel works on tiles of at most TFU_TILE elements, in float, or in double for float64. Tiles of float16 and
 * bfloat16 are widened into a buffer that stays in the first-level cache, so loops are written once per arithmetic
 * type, not per storage type. A file that needs both types reads itself through kernels/core/cpu/stamp.h.
 * A task is what a thread takes at a time, a fold a sum down columns; docs/design.md#words says what joined rows are.
 */
#ifndef TFUSE_CPU_H_
#define TFUSE_CPU_H_

#include <string.h>

#include "activations.h"
#include "kernels/core/cpu/parallel.h"
#include "tfuse.h"

/* Every x86 since 2015; the library says so clearly on an older one (tfu_cpu_missing, parallel.h). */
#ifdef __x86_64__
#pragma GCC target("avx2,fma,f16c")
#endif

enum { TFU_TILE = 512 };

/* for (TFU_EACH_TILE(at, n, begin, end)): n elements from `at` on. */
#define TFU_EACH_TILE(at, n, begin, end)               \
  int64_t at = (begin), n;                             \
  (n = (end)-at < TFU_TILE ? (end)-at : TFU_TILE) > 0; \
  at += n

#pragma GCC visibility push(default)
/* Elements at .. at + n as arithmetic values: the memory itself where it is of that type, else widened into buffer. */
const float *tfu_load_f32(const void *data, tfu_dtype dtype, int64_t at, int n, float *buffer);
const double *tfu_load_f64(const void *data, tfu_dtype dtype, int64_t at, int n, double *buffer);
/* Where to compute elements at .. of an output: the memory itself, or buffer; tfu_store_… then rounds them into place.
 */
float *tfu_room_f32(void *data, tfu_dtype dtype, int64_t at, float *buffer);
double *tfu_room_f64(void *data, tfu_dtype dtype, int64_t at, double *buffer);
void tfu_store_f32(void *data, tfu_dtype dtype, int64_t at, int n, const float *values);
void tfu_store_f64(void *data, tfu_dtype dtype, int64_t at, int n, const double *values);
/* The same as tfu_load, but always into `to`, for values that stay or change there; zeros where data is NULL. */
void tfu_copy_f32(float *to, const void *data, tfu_dtype dtype, int64_t at, int n);
void tfu_copy_f64(double *to, const void *data, tfu_dtype dtype, int64_t at, int n);
#pragma GCC visibility pop

/* An output may be an input's own memory (tfu_op.in_place): element i is read before it is written, and nothing else
 * overlaps. This tells the compiler so; TFU_VECTORISED(i, n) is such a loop, for i from 0 up to n. */
#define TFU_VECTORISE _Pragma("GCC ivdep")
#define TFU_VECTORISED(i, n) \
  TFU_VECTORISE              \
  for (int i = 0; i < (n); i++)

/* Defines a function of vectorised loops, whose parameters are in brackets, and after them the same as arguments. Of
 * float, on x86, it is there twice: with wide registers it is faster by half and more where a loop computes more than
 * it moves. Such loops of double call the C library. */
#define TFU_WIDE(...) FN(TFU_WIDE)(__VA_ARGS__)
#define TFU_WIDE_f64(linkage, name, parameters, arguments, ...) \
  linkage void name parameters { __VA_ARGS__ }
#ifdef __x86_64__
#define TFU_WIDE_TARGET __attribute__((target("avx512f,avx2,fma,f16c")))
#define TFU_WIDE_f32(linkage, name, parameters, arguments, ...) \
  TFU_WIDE_TWICE(linkage, name, parameters, arguments, __VA_ARGS__)
#define TFU_WIDE_TWICE(linkage, name, parameters, arguments, ...)                       \
  TFU_WIDE_f64(TFU_WIDE_TARGET static, name##_wide, parameters, arguments, __VA_ARGS__) \
      TFU_WIDE_CHOICE(linkage, name, parameters, arguments, __VA_ARGS__)
#define TFU_WIDE_CHOICE(linkage, name, parameters, arguments, ...)    \
  linkage void name parameters {                                      \
    if (tfu_has_wide_registers()) return (void)name##_wide arguments; \
    __VA_ARGS__                                                       \
  }
#else
#define TFU_WIDE_f32 TFU_WIDE_f64
#endif

/* v[i] = the activation of x[i] * scale[i] + bias[i], or its derivative there. v may be x. */
typedef void tfu_act_f32(float *v, const float *x, const float *scale, const float *bias, int n);
typedef void tfu_act_f64(double *v, const double *x, const double *scale, const double *bias, int n);
typedef struct tfu_activation {
  tfu_act_f32 *value_f32, *grad_f32;
  tfu_act_f64 *value_f64, *grad_f64;
} tfu_activation;
extern const tfu_activation tfu_activations[TFU_ACTS];

#endif
