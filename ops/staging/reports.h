/* reports.h - numbers on their way back from the device.
 *
 * The op Report has what a step found (its loss, its metrics, its tokens) copied to the host after the step, and nobody
 * waits. Whoever wants them asks for them by the number of the step, and waits for that step alone: TensorFlow's own
 * copies wait for all that is queued by then, which may be steps that follow. */
#ifndef TFUSE_REPORTS_H_
#define TFUSE_REPORTS_H_

#include "tfuse.h"

enum { TFU_REPORT_KEY, TFU_REPORT_TYPES }; /* attributes of Report */
enum {
  TFU_REPORT_TENSORS = 32,    /* of a step                */
  TFU_REPORT_BYTES = 1 << 14, /* of all of these          */
  TFU_REPORT_KEPT = 16,       /* steps, the last ones     */
  TFU_REPORT_KEYS = 64        /* who reports              */
};

typedef struct tfu_reported {
  struct tfu_transfer *transfer; /* kernels/core/gpu/transfer.h; NULL on the CPU, where the numbers are here */
  char numbers[TFU_REPORT_BYTES];
} tfu_reported;

/* What a tensor takes there: each begins at a multiple of 8 bytes. */
static inline size_t tfu_report_bytes(const tfu_tensor *x) {
  return ((size_t)tfu_count(&x->shape) * tfu_dtype_size(x->dtype) + 7) / 8 * 8;
}

/* Where the next step of `key` reports, and the oldest has; one step of a key at a time. It can be read when published.
 */
TFU_MUST_USE tfu_code tfu_report_next(const tfu_call *call, tfu_reported **report);
void tfu_report_publish(const tfu_call *call);

#endif
