/* entry.h - what libtfuse.so must know of an op to register it, and what it offers to libraries that have ops of their
 * own. library.h makes the entries. */
#ifndef TFUSE_ENTRY_H_
#define TFUSE_ENTRY_H_

#include "tfuse.h"

/* Raised with every change of what is compiled into a library of ops: tfu_op, tfu_call, tfu_entry, and whatever the
 * headers say that it may include. A library that was built for another number is refused. */
enum { TFU_ABI = 6 };

struct TF_OpKernelConstruction;
struct TF_ShapeInferenceContext;
struct TSL_Status; /* TF_Status */
struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;

/* The handlers that XLA has of an op. What is captured becomes part of a CUDA graph; on the CPU the same target runs as
 * ever. The last is called before each run of what is captured. */
typedef enum tfu_handler {
  TFU_HOST,
  TFU_CUDA,
  TFU_HOST_CAPTURED,
  TFU_CUDA_CAPTURED,
  TFU_REHEARSE,
  TFU_HANDLERS
} tfu_handler;

typedef struct tfu_entry {
  const tfu_op *op;
  const char *stem, *target, *captured_target; /* the targets are XLA's names for the op */
  void *(*create)(struct TF_OpKernelConstruction *);
  void (*infer)(struct TF_ShapeInferenceContext *, struct TSL_Status *);
  struct XLA_FFI_Error *(*handle[TFU_HANDLERS])(struct XLA_FFI_CallFrame *);
} tfu_entry;

typedef struct tfu_library {
  int abi; /* first, in every version */
  int count;
  const tfu_entry *entries;
  struct tfu_library *next;
} tfu_library;

#pragma GCC visibility push(default)
/* Registers the ops with TensorFlow and XLA; called while the library is loaded. tfu_load_error() says, once, what
 * failed. */
void tfu_register(tfu_library *library);
const char *tfu_load_error(void);

/* What the callbacks of an entry do. */
void *tfu_tf_create(const tfu_op *op, struct TF_OpKernelConstruction *ctx);
void tfu_tf_infer(const tfu_op *op, struct TF_ShapeInferenceContext *ctx, struct TSL_Status *status);
struct XLA_FFI_Error *tfu_xla_handle(const tfu_op *op, struct XLA_FFI_CallFrame *frame, tfu_handler which);
#pragma GCC visibility pop

#endif
