/* checks.h - what the shape rules of a recurrent layer and of its recurrence have in common. */
#ifndef TFUSE_RECURRENT_CHECKS_H_
#define TFUSE_RECURRENT_CHECKS_H_

#include "ops/recurrent/recurrence.h"
#include "tfuse.h"

#define TFU_MATRIX(rows, cols) ((tfu_shape){.rank = 2, .dim = {(rows), (cols)}})
#define TFU_SEQUENCES(batch, steps, units) ((tfu_shape){.rank = 3, .dim = {(batch), (steps), (units)}})

static const tfu_shape tfu_unknown = {.rank = TFU_UNKNOWN}, tfu_none = {.rank = 1};

/* Of a size that is so many times another, which may be unknown. */
static inline int64_t tfu_times(int64_t size, int by) { return size == TFU_UNKNOWN ? TFU_UNKNOWN : size * by; }

/* Fails unless s is not given or can be the shape `wanted`, which the message calls `what`. */
TFU_MUST_USE static inline tfu_code tfu_fits(const char *name, const tfu_shape *s, tfu_shape wanted, const char *what,
                                             tfu_error *err) {
  return tfu_given(s) ? tfu_match(name, s, what, &wanted, err) : TFU_OK;
}

/* Fails unless `recurrent` can be a recurrent kernel, [units, gates * units]. `cell` is the attribute that says whose,
 * NULL where a rule has none. */
TFU_MUST_USE static inline tfu_code tfu_check_recurrent(const tfu_shape *recurrent, const tfu_value *cell,
                                                        tfu_error *err) {
  TFU_TRY(tfu_has_rank("recurrent_kernel", recurrent, 2, "[units, gates * units]", err));
  if (!cell) return TFU_OK;
  const int gates = tfu_cell_gates((int)cell->i);
  TFU_REQUIRE(err, tfu_may_be(tfu_axis(recurrent, 1), tfu_times(tfu_axis(recurrent, 0), gates)),
              "recurrent_kernel must be [units, %d * units], got shape %s", gates, tfu_show(recurrent).text);
  return TFU_OK;
}

/* Fails unless a bias is not given or can have a value for each column of the recurrent kernel. */
TFU_MUST_USE static inline tfu_code tfu_check_bias(const char *name, const tfu_shape *bias, const tfu_shape *recurrent,
                                                   tfu_error *err) {
  TFU_REQUIRE(err,
              !tfu_given(bias) || bias->rank == TFU_UNKNOWN ||
                  (bias->rank == 1 && tfu_may_be(bias->dim[0], tfu_axis(recurrent, 1))),
              "%s must be a vector with one value per column of recurrent_kernel %s, got shape %s", name,
              tfu_show(recurrent).text, tfu_show(bias).text);
  return TFU_OK;
}

#endif
