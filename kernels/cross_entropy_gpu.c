#include "kernels/cross_entropy.h"

TFU_MODULE(cross_entropy);

/* By measurement on an H200 at [8192, 50304], bfloat16: at 1, 4, 16 waves forward reaches 94, 101, 97% of the copy
 * speed, backward 74, 85, 92%. */
enum { FORWARD_WAVES = 4, BACKWARD_WAVES = 16 };

static tfu_code run(tfu_call *call, tfu_kernel *kernel, int sparse, int gradient) {
  const tfu_tensor *x = &call->in[0], *against = &call->in[1];
  const tfu_row_wish wish = {.rows = tfu_rows(&x->shape),
                             .cols = tfu_cols(&x->shape),
                             .dtype = x->dtype,
                             .tensors = sparse ? 1 : 2,
                             .elements = TFU_CROSS_ENTROPY_ELEMENTS,
                             .threads = 1024,
                             .looks = 1,
                             .separate = gradient,
                             .waves = gradient ? BACKWARD_WAVES : FORWARD_WAVES,
                             .aligned = tfu_aligned(call, tfu_count(&x->shape))};
  cross_entropy_args a = {.x = x->data,
                          .targets = sparse ? NULL : against->data,
                          .labels = sparse ? against->data : NULL,
                          .loss = gradient ? NULL : call->out[0].data,
                          .stats = gradient ? call->in[2].data : call->out[1].data,
                          .dx = gradient ? call->out[0].data : NULL,
                          .dtargets = gradient && !sparse && tfu_given(&call->out[1].shape) ? call->out[1].data : NULL,
                          .dloss = gradient ? call->in[3].data : NULL,
                          .ignore = sparse ? call->attr[2].i : 0,
                          .wide = against->dtype == TFU_I64,
                          .smoothing = call->attr[0].f,
                          .z_loss = call->attr[1].f};
  return tfu_launch_rows(call, kernel, kernel, wish, 0, &a.rows, &a);
}

#define ENTRY(stem, sparse, gradient)                                                            \
  tfu_code tfu_##stem##_gpu(tfu_call *call) {                                                    \
    static tfu_kernel kernel = {.module = &module, .name = #stem, .variants = tfu_row_variants}; \
    return run(call, &kernel, sparse, gradient);                                                 \
  }
ENTRY(sparse_cross_entropy, 1, 0)
ENTRY(sparse_cross_entropy_grad, 1, 1)
ENTRY(cross_entropy, 0, 0)
ENTRY(cross_entropy_grad, 0, 1)
