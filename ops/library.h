/* library.h - makes a library of ops: one file of it reads this, and the rows that ops.def names are registered when
 * the library is loaded. So libtfuse.so is made, and so is one of yours:
 * docs/new_op.md#an-op-outside-of-this-repository.
 *
 * TensorFlow's and XLA's callbacks carry no pointer of ours, so each op gets its own, which know its row. */
#include "entry.h"

#define TFU_HANDLER_(stem, which)                                            \
  static struct XLA_FFI_Error *stem##_##which(struct XLA_FFI_CallFrame *f) { \
    return tfu_xla_handle(&tfu_##stem, f, which);                            \
  }
#define X(stem)                                                                                           \
  static void *stem##_create(struct TF_OpKernelConstruction *c) { return tfu_tf_create(&tfu_##stem, c); } \
  static void stem##_infer(struct TF_ShapeInferenceContext *c, struct TSL_Status *s) {                    \
    tfu_tf_infer(&tfu_##stem, c, s);                                                                      \
  }                                                                                                       \
  TFU_HANDLER_(stem, TFU_HOST)                                                                            \
  TFU_HANDLER_(stem, TFU_CUDA)                                                                            \
  TFU_HANDLER_(stem, TFU_HOST_CAPTURED)                                                                   \
  TFU_HANDLER_(stem, TFU_CUDA_CAPTURED)                                                                   \
  TFU_HANDLER_(stem, TFU_REHEARSE)
#include <ops.def>
#undef X

static const tfu_entry tfu_entries[] = {
#define X(stem)                \
  {&tfu_##stem,                \
   #stem,                      \
   "tfuse." #stem,             \
   "tfuse." #stem ".captured", \
   stem##_create,              \
   stem##_infer,               \
   {stem##_TFU_HOST, stem##_TFU_CUDA, stem##_TFU_HOST_CAPTURED, stem##_TFU_CUDA_CAPTURED, stem##_TFU_REHEARSE}},
#include <ops.def>
#undef X
};

__attribute__((constructor)) static void tfu_register_entries(void) {
  static tfu_library library = {TFU_ABI, TFU_COUNT(tfu_entries), tfu_entries, NULL};
  tfu_register(&library);
}
