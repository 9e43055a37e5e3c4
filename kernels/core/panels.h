/* panels.h - the tiles of a product on tensor cores (device/panels.cuh), for those who launch it.
 *
 * A block has ROWS x COLS results, sums LINE bytes of terms at a time, and has STAGES such tiles in shared memory. TF/s
 * on an H200, bfloat16, 8192 x 8192 x 8192, both factors as they lie / b transposed, for terms x tiles: 64 x 3 497 /
 * 489, 32 x 4 483 / 472, 32 x 3 476 / 449. The three take 144 KiB of shared memory for 16 bits, which compute
 * capabilities 8.6, 8.9 and 12.x do not have. What is compiled for 12.x alone leaves the kernels empty. */
#ifndef TFUSE_PANELS_H_
#define TFUSE_PANELS_H_

enum { TFU_PANEL_ROWS = 128, TFU_PANEL_LINE = 128, TFU_PANEL_STAGES = 3 };
/* For elements of so many bytes. */
#define TFU_PANEL_COLS(size) ((size) == 2 ? 256 : 128)
#define TFU_PANEL_DEPTH(size) (TFU_PANEL_LINE / (int)(size))
#define TFU_PANEL_SHARED(size) (TFU_PANEL_STAGES * (TFU_PANEL_ROWS + TFU_PANEL_COLS(size)) * TFU_PANEL_LINE)

#define TFU_HAS_PANELS(capability) ((capability) >= 80 && (capability) / 10 != 12)

#ifndef TFU_DEVICE
#include "kernels/core/gpu/cuda.h"

/* Whether the GPU is one that the kernels are compiled for, and has the memory. */
static inline int tfu_panels_fit(const tfu_device *device, size_t size) {
  return TFU_HAS_PANELS(device->capability) && TFU_PANEL_SHARED(size) <= tfu_dynamic_shared(device);
}
#endif

#endif
