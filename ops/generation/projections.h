/* projections.h - arguments of Projections, as kernels see them, and the shape rule that ops of its kind share. */
#ifndef TFUSE_PROJECTIONS_H_
#define TFUSE_PROJECTIONS_H_

#include "tfuse.h"

enum { TFU_PROJECTIONS = 3 }; /* at most */
enum {
  TFU_PROJECT_X,
  TFU_PROJECT_GAMMA,
  TFU_PROJECT_KERNEL,
  TFU_PROJECT_BIAS = TFU_PROJECT_KERNEL + TFU_PROJECTIONS,
  TFU_PROJECT_RESIDUAL = TFU_PROJECT_BIAS + TFU_PROJECTIONS
};
enum { TFU_PROJECT_ACTIVATION, TFU_PROJECT_GATED, TFU_PROJECT_EPSILON };

/* By the number of the product. */
extern const char *const tfu_project_kernels[TFU_PROJECTIONS];

/* The shape of product i, which has a kernel, or may have one: what ops of this kind differ in. */
typedef tfu_code tfu_product_rule(const tfu_shape *in, int i, tfu_shape *y, const tfu_value *attr, tfu_error *err);

/* The rule of such an op, whose arguments are those of Projections first. */
TFU_MUST_USE tfu_code tfu_projections_shape(const tfu_shape *in, tfu_shape *out, const tfu_value *attr,
                                            tfu_product_rule *product, tfu_error *err);
/* y is x . kernel with so many outputs, which `of`, of this shape, has; product i's bias must have as many. */
TFU_MUST_USE tfu_code tfu_project_to(const tfu_shape *in, int i, int64_t outputs, const char *of,
                                     const tfu_shape *of_shape, tfu_shape *y, tfu_error *err);

#endif
