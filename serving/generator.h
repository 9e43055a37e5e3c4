/* generator.h - the steps of a SavedModel that `python -m tfuse export --generate` wrote. */
#ifndef TFUSE_GENERATOR_H_
#define TFUSE_GENERATOR_H_

#include "serving/engine.h"
#include "serving/model.h"

/* Whether it is such a model, by its signatures. */
int tfu_generator_is(const tfu_signature *signatures, int n);

/* The steps of a model, which must outlive them, with a cache of so many pages; 0: as many as all rows may need. Writes
 * how many there are. One engine may have them. */
TFU_MUST_USE tfu_code tfu_generator_steps(tfu_model *model, int64_t *pages, tfu_steps *steps, tfu_error *err);

#endif
