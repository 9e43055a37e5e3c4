/* map_cpu.h - elementwise formulas on the CPU. TFU_MAP1(name, x, formula of x) defines tfu_<name>_cpu; TFU_MAP2 takes
 * two inputs. An input without dimensions serves every element. */
#ifndef TFUSE_MAP_CPU_H_
#define TFUSE_MAP_CPU_H_

#include "kernels/core/cpu/cpu.h"

typedef void tfu_map_f32(float *y, const float *a, const float *b, int n);
typedef void tfu_map_f64(double *y, const double *a, const double *b, int n);
TFU_MUST_USE tfu_code tfu_map_cpu(tfu_call *call, tfu_map_f32 *f32, tfu_map_f64 *f64);

#define TFU_MAP_LOOP_(name, REAL, a, b, formula)                       \
  static void name(REAL *y_, const REAL *a_, const REAL *b_, int n_) { \
    (void)b_;                                                          \
    TFU_VECTORISE                                                      \
    for (int i_ = 0; i_ < n_; i_++) {                                  \
      const REAL a = a_[i_], b = b_ ? b_[i_] : 0;                      \
      (void)b;                                                         \
      y_[i_] = formula;                                                \
    }                                                                  \
  }
#define TFU_MAP2(name, a, b, formula)              \
  TFU_MAP_LOOP_(name##_f32, float, a, b, formula)  \
  TFU_MAP_LOOP_(name##_f64, double, a, b, formula) \
  tfu_code tfu_##name##_cpu(tfu_call *call) { return tfu_map_cpu(call, name##_f32, name##_f64); }
#define TFU_MAP1(name, a, formula) TFU_MAP2(name, a, unused_, formula)

#endif
