/* info.c - what the library is made of, for `python -m tfuse doctor`. */
#include <stdio.h>

#include "bind.h"
#include "kernels/core/cpu/parallel.h"
#include "kernels/core/gpu/cuda.h"

extern const char tfu_build_info[]; /* JSON, written by the build */
extern const tfu_image tfu_fold_images[];

TFU_EXPORT const char *tfu_build(void) { return tfu_build_info; }

/* The image that serves a compute capability ("sm_90", "compute_90"), or "" if none does. All families are built alike.
 */
TFU_EXPORT const char *tfu_image_name(int capability) {
  static _Thread_local char name[24];
  const int i = tfu_image_for(tfu_fold_images, capability);
  if (i < 0) return "";
  snprintf(name, sizeof name, "%s_%d", tfu_fold_images[i].is_ptx ? "compute" : "sm", tfu_fold_images[i].capability);
  return name;
}

/* Why none does. */
TFU_EXPORT const char *tfu_image_missing(int capability) {
  static _Thread_local tfu_error err;
  (void)!tfu_no_image(tfu_fold_images, capability, &err);
  return err.text;
}
