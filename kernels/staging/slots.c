#include "ops/staging/slots.h"

#include <pthread.h>
#include <string.h>

#include "kernels/core/cpu/parallel.h"
#include "kernels/core/gpu/transfer.h"

static tfu_slot slots[TFU_SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of who has which; not of what is in them */

const tfu_slot *tfu_slot_of(const void *memory) {
  const tfu_slot *found = NULL;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < TFU_SLOTS && !found; i++)
    if (slots[i].memory && slots[i].memory == memory) found = &slots[i];
  pthread_mutex_unlock(&lock);
  return found;
}

tfu_code tfu_slot_give(int64_t number, void *memory, size_t bytes, struct tfu_transfer *transfer, tfu_error *err) {
  tfu_code code = TFU_OK;
  tfu_transfer *before = NULL;
  pthread_mutex_lock(&lock);
  if (number < 0 || number >= TFU_SLOTS || !slots[number].taken) {
    code = tfu_fail(err, TFU_INVALID, "there is no slot %lld", (long long)number);
  } else {
    before = slots[number].transfer;
    for (int i = 0; i < TFU_SLOTS; i++) /* whoever had this memory has lost it, or another could not have got it */
      if (slots[i].memory == memory) slots[i].memory = NULL;
    slots[number] = (tfu_slot){.memory = memory, .bytes = bytes, .transfer = transfer, .taken = 1};
  }
  pthread_mutex_unlock(&lock);
  tfu_transfer_close(before);
  return code;
}

tfu_code tfu_slot_check(tfu_call *call, const tfu_slot **slot) {
  *slot = tfu_slot_of(call->lists->in[0].at->data);
  if (!*slot) return tfu_fail(call->err, TFU_INTERNAL, "the slot is gone");
  for (int i = 0; i < (*slot)->n; i++) {
    const tfu_tensor *y = &call->lists->out[0].at[i];
    const size_t bytes = (size_t)tfu_count(&y->shape) * tfu_dtype_size(y->dtype);
    TFU_REQUIRE(call->err, bytes == (*slot)->tensor[i].bytes, "tensor %d has %zu bytes, and %s%s would have %zu", i,
                (*slot)->tensor[i].bytes, tfu_dtype_name(y->dtype), tfu_show(&y->shape).text, bytes);
  }
  return TFU_OK;
}

/* ---- what Python calls ---- */

/* A slot that nobody has, or -1. */
TFU_EXPORT int tfu_slot_open(void) {
  int mine = -1;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < TFU_SLOTS && mine < 0; i++)
    if (!slots[i].taken) slots[mine = i].taken = 1;
  pthread_mutex_unlock(&lock);
  return mine;
}

TFU_EXPORT void tfu_slot_close(int number) {
  if (number < 0 || number >= TFU_SLOTS) return;
  pthread_mutex_lock(&lock);
  struct tfu_transfer *transfer = slots[number].transfer;
  slots[number] = (tfu_slot){.memory = NULL};
  pthread_mutex_unlock(&lock);
  tfu_transfer_close(transfer);
}

enum { PIECE = 1 << 20 }; /* bytes that a thread copies at a time */

typedef struct copying {
  char *to;
  const char *from;
  size_t bytes;
} copying;

static void copy_piece(void *with, int64_t i) {
  const copying *c = with;
  const size_t at = (size_t)i * PIECE, rest = c->bytes - at;
  memcpy(c->to + at, c->from + at, rest < PIECE ? rest : PIECE);
}

static tfu_code put(tfu_slot *s, int n, const void *const *data, const int64_t *bytes, const int32_t *ranks,
                    const int64_t *dims, tfu_error *err) {
  size_t end = 0;
  void *to = s->memory;
  TFU_REQUIRE(err, s->memory, "the slot has no memory");
  TFU_REQUIRE(err, n > 0 && n <= TFU_SLOT_TENSORS, "a batch of %d tensors, of which a slot holds 1 to %d", n,
              TFU_SLOT_TENSORS);
  for (int i = 0; i < n; i++) {
    TFU_REQUIRE(err, ranks[i] <= TFU_MAX_RANK, "tensor %d has %d dimensions, at most %d are supported", i, ranks[i],
                TFU_MAX_RANK);
    s->tensor[i].at = end;
    s->tensor[i].bytes = (size_t)bytes[i];
    s->tensor[i].shape.rank = ranks[i];
    for (int k = 0; k < ranks[i]; k++) s->tensor[i].shape.dim[k] = *dims++;
    end += ((size_t)bytes[i] + TFU_SLOT_ALIGN - 1) / TFU_SLOT_ALIGN * TFU_SLOT_ALIGN;
  }
  TFU_REQUIRE(err, end <= s->bytes, "a batch of %zu bytes does not fit into a slot of %zu", end, s->bytes);
  if (s->transfer) TFU_TRY(tfu_transfer_memory(s->transfer, &to, err));
  for (int i = 0; i < n; i++) {
    copying c = {.to = (char *)to + s->tensor[i].at, .from = data[i], .bytes = s->tensor[i].bytes};
    tfu_parallel((int64_t)((c.bytes + PIECE - 1) / PIECE), copy_piece, &c);
  }
  if (s->transfer) TFU_TRY(tfu_transfer_send(s->transfer, s->memory, end, err));
  s->n = n;
  return TFU_OK;
}

/* Puts n tensors into a slot: of each its address, bytes, and dimensions, which follow each other in `dims`. Returns
 * "", or what was wrong. When it returns, the tensors may change again. */
TFU_EXPORT const char *tfu_slot_put(int number, int n, const void *const *data, const int64_t *bytes,
                                    const int32_t *ranks, const int64_t *dims) {
  static _Thread_local tfu_error err;
  if (number < 0 || number >= TFU_SLOTS) return "there is no such slot";
  return put(&slots[number], n, data, bytes, ranks, dims, &err) == TFU_OK ? "" : err.text;
}
