/* memory.h - copies between host memory and that of a request, which may be a GPU's. */
#ifndef TFUSE_TRITON_MEMORY_H_
#define TFUSE_TRITON_MEMORY_H_

#include "serving/model.h"
#include "serving/triton/triton_api.h"

/* Copies, and waits until it is done. `type` and `id` are Triton's words for the one of the two that is not the host's.
 */
TFU_MUST_USE tfu_code tfu_memory_copy(void *to, const void *from, size_t bytes, TRITONSERVER_MemoryType type,
                                      int64_t id, tfu_error *err);

#endif
