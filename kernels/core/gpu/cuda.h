/* cuda.h - our own kernels on the GPU, through the CUDA driver, which is opened on first use.
 *
 * A family's device code is one module; a kernel of it is the __global__ function <name>[_<variant>]_<key>, which takes
 * one struct by value. The key is the tag of a dtype, unless the kernel has keys of its own. Handles do not depend on
 * the context, so they serve every GPU that the image serves. */
#ifndef TFUSE_CUDA_H_
#define TFUSE_CUDA_H_

#include "kernels/core/gpu/images.h"
#include "tfuse.h"

enum { TFU_MAX_IMAGES = 8, TFU_MAX_VARIANTS = 16, TFU_MAX_KEYS = 20 };
_Static_assert((int)TFU_DTYPES <= (int)TFU_MAX_KEYS, "every dtype is a key");

typedef struct tfu_module {
  const tfu_image *images;
  _Atomic(void *) library[TFU_MAX_IMAGES]; /* CUlibrary, once loaded */
} tfu_module;

/* Declares the module of STEM.cu under the name `module`, or one beside it under another. */
#define TFU_MODULE(stem) TFU_MODULE_AS(module, stem)
#define TFU_MODULE_AS(name, stem)               \
  extern const tfu_image tfu_##stem##_images[]; \
  static tfu_module name = {.images = tfu_##stem##_images}

typedef struct tfu_kernel {
  tfu_module *module;
  const char *name;
  const char *const *variants;            /* NULL: the kernel has none */
  const char *const *keys;                /* at most TFU_MAX_KEYS; NULL: the tags of dtypes */
  _Atomic(void *) loaded[TFU_MAX_IMAGES]; /* by variant and key; made with the first that is launched */
} tfu_kernel;

typedef struct tfu_grid {
  unsigned x, y, z;              /* blocks; zero is one                  */
  unsigned threads;              /* of a block …                         */
  unsigned threads_y, threads_z; /* … times these, where it is no line   */
  unsigned shared;               /* bytes of dynamic shared memory       */
  unsigned cluster;              /* blocks along x that share their memory; zero is none */
  int resident;                  /* no more clusters than run at one time: those take the rows of the others */
  int together;                  /* all blocks run at one time, or none does (cooperative launch) */
  int overlap;                   /* the kernel begins before those before it have ended (overlap.cuh) */
} tfu_grid;

#pragma GCC visibility push(default)
/* Launches the kernel for `key`, a dtype or a place in its keys, on the call's stream; args is its one parameter. */
TFU_MUST_USE tfu_code tfu_launch(tfu_call *call, tfu_kernel *kernel, int variant, int key, tfu_grid grid, void *args);

/* How many blocks of a grid with these threads, this shared memory and these clusters can run at one time. */
TFU_MUST_USE tfu_code tfu_resident_blocks(tfu_call *call, tfu_kernel *kernel, int variant, int key, tfu_grid grid,
                                          int64_t *blocks);

/* Keys of kernels that move bits or compare them, whatever they mean, and which of them is for so many bytes; and those
 * of a kernel that serves all. */
extern const char *const tfu_bits[], *const tfu_any[];
int tfu_bits_of(size_t bytes);

/* Where a variable of the module lies on the current GPU, and how large it is. */
TFU_MUST_USE tfu_code tfu_variable(tfu_module *module, const char *name, void **address, size_t *bytes, tfu_error *err);

/* The GPU of the current context. */
typedef struct tfu_device {
  int ordinal, capability, multiprocessors;
  int shared, block_shared; /* bytes of shared memory, of a multiprocessor and at most of a block */
} tfu_device;
TFU_MUST_USE tfu_code tfu_device_now(tfu_device *device, tfu_error *err);
/* Bytes of static shared memory, its own variables, that a kernel with dynamic shared memory has at most; and what is
 * left for that. */
enum { TFU_STATIC_SHARED = 4096 };
static inline int tfu_dynamic_shared(const tfu_device *device) { return device->block_shared - TFU_STATIC_SHARED; }
/* The current GPU's name, "" where it cannot be told. */
void tfu_device_name(char *name, int size);

/* Sets `words` words of 32 bits on the call's stream. */
TFU_MUST_USE tfu_code tfu_fill(tfu_call *call, void *memory, uint32_t value, size_t words);
/* Sets bytes there to zero. */
TFU_MUST_USE tfu_code tfu_clear(tfu_call *call, void *memory, size_t bytes);

/* Whether the host may wait for the call's stream: not while the stream is being captured into a graph. */
int tfu_may_wait(const tfu_call *call);
/* Queues work(with) on the call's stream, some times over, waits for it, and gives the microseconds of one. */
TFU_MUST_USE tfu_code tfu_time(tfu_call *call, tfu_code (*work)(void *with), void *with, float *microseconds);

/* Reads memory of the GPU as it is once all that is queued on the call's stream is done, which the host waits for. */
TFU_MUST_USE tfu_code tfu_peek(tfu_call *call, const void *memory, void *to, size_t bytes);

/* Whether all the call's tensors with this many elements begin on a 16-byte boundary. */
int tfu_aligned(const tfu_call *call, int64_t elements);
#pragma GCC visibility pop

/* What there is one of for each GPU, as a handle or a stream: the current GPU's, which the table makes when it is first
 * asked for, from `with`, and keeps. */
#define TFU_PER_GPU(make_) TFU_TABLE(.value = sizeof(void *), .most = TFU_KEEP_ALL, .make = make_)
struct tfu_table;
TFU_MUST_USE tfu_code tfu_per_gpu(struct tfu_table *table, const void *with, void **mine, tfu_error *err);

/* A kernel that the driver has loaded: the library's own, or one that was compiled at run time. */
typedef struct tfu_function {
  void *kernel;                /* CUkernel                                                  */
  const char *name;            /* for messages                                              */
  int static_shared;           /* bytes, or more                                            */
  _Atomic(uint64_t) unleashed; /* devices, by bit, where it may take all the shared memory  */
  _Atomic(uint64_t) overlaps;  /* and where it may overlap with others                      */
} tfu_function;
/* The one way to launch: on the call's stream, asking for the shared memory and the cluster that the grid wants. */
TFU_MUST_USE tfu_code tfu_start(tfu_call *call, tfu_function *function, tfu_grid grid, void **parameters);
/* "grid (1, 2, 3), block (4, 5, 6), 0 bytes of shared memory" */
typedef struct tfu_launch_text {
  char text[256];
} tfu_launch_text;
tfu_launch_text tfu_show_launch(const int64_t grid[3], const int64_t block[3], int64_t shared);

/* Ends a captured call: XLA refuses a graph without nodes, so one that nothing was queued for gets an empty one. */
TFU_MUST_USE tfu_code tfu_capture_close(const tfu_call *call);
/* While a thread captures a stream, what may allocate memory, as loading code does, is forbidden to it unless it says
 * that it knows. This says so, and returns how it was, to be restored. */
int tfu_capture_relax(void);
void tfu_capture_restore(int mode);

/* The image for a device of this capability, or -1: a cubin of its own major version, else PTX that is not newer. */
int tfu_image_for(const tfu_image *images, int capability);
/* The error where there is none: which there are, and what to do. */
TFU_MUST_USE tfu_code tfu_no_image(const tfu_image *images, int capability, tfu_error *err);

/* A stream of our own that starts after all work queued in the current context; closing it makes all later work there
 * wait for it. Needs a driver of CUDA 12.5. */
TFU_MUST_USE tfu_code tfu_fence_open(void **stream, tfu_error *err);
TFU_MUST_USE tfu_code tfu_fence_close(void *stream, tfu_error *err);

#endif
