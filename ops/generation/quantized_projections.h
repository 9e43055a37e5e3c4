/* quantized_projections.h - arguments of QuantizedProjections beside those of Projections, which come first. */
#ifndef TFUSE_QUANTIZED_PROJECTIONS_H_
#define TFUSE_QUANTIZED_PROJECTIONS_H_

#include "ops/generation/projections.h"

enum { TFU_PROJECT_SCALE = TFU_PROJECT_RESIDUAL + 1 };
enum { TFU_PROJECT_BITS = TFU_PROJECT_EPSILON + 1, TFU_PROJECT_GROUP, TFU_PROJECT_ROWS };

#endif
