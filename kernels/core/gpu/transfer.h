/* transfer.h - copies between host and GPU through page-locked memory, in fixed order with the streams that make and
 * read the data, so that the host waits for one copy and never for all that is queued. Private to libtfuse.so. */
#ifndef TFUSE_TRANSFER_H_
#define TFUSE_TRANSFER_H_

#include "tfuse.h"

/* Page-locked memory for one batch, and two events: `sent`, the last copy between it and the GPU; `taken`, what last
 * read that copy on the GPU. */
typedef struct tfu_transfer tfu_transfer;

/* For the current GPU. The memory there that will be sent to is free once all that is queued on `stream` by now is
 * done. */
TFU_MUST_USE tfu_code tfu_transfer_open(tfu_transfer **transfer, size_t bytes, void *stream, tfu_error *err);
/* The page-locked memory, once the last copy from it or to it is done, which the host waits for. From any thread. */
TFU_MUST_USE tfu_code tfu_transfer_memory(tfu_transfer *transfer, void **memory, tfu_error *err);

/* Host to GPU: queues a copy of the first bytes, on a stream of its own, for when what was there last is taken. From
 * any thread. */
TFU_MUST_USE tfu_code tfu_transfer_send(tfu_transfer *transfer, void *to, size_t bytes, tfu_error *err);
/* Then, on the GPU: `stream` waits for it, copies pieces of it, and marks it as taken. */
TFU_MUST_USE tfu_code tfu_transfer_await(tfu_transfer *transfer, void *stream, tfu_error *err);
TFU_MUST_USE tfu_code tfu_transfer_take(void *stream, void *to, const void *from, size_t bytes, tfu_error *err);
TFU_MUST_USE tfu_code tfu_transfer_taken(tfu_transfer *transfer, void *stream, tfu_error *err);

/* GPU to host: queues a copy on `stream` to this byte of the page-locked memory; and marks what was fetched as sent. */
TFU_MUST_USE tfu_code tfu_transfer_fetch(tfu_transfer *transfer, void *stream, size_t at, const void *from,
                                         size_t bytes, tfu_error *err);
TFU_MUST_USE tfu_code tfu_transfer_fetched(tfu_transfer *transfer, void *stream, tfu_error *err);

/* Waits for its copies and releases it; NULL is fine. */
void tfu_transfer_close(tfu_transfer *transfer);

#endif
