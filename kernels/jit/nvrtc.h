/* nvrtc.h - CUDA C as text becomes code for a GPU: NVIDIA's run-time compiler, opened when it is first needed. */
#ifndef TFUSE_NVRTC_H_
#define TFUSE_NVRTC_H_

#include "tfuse.h"

/* What sources may include, as text; ends with a row of NULLs. Written by the build (tools/nvrtc.py). */
typedef struct jit_header {
  const char *name, *text;
} jit_header;
extern const jit_header jit_headers[];

/* What was compiled: code, and what it calls the kernel. Freed by free(). */
typedef struct jit_image {
  size_t size;
  char entry[512];
  unsigned char code[];
} jit_image;

/* These are answered without NVRTC where there is a note of it (nvrtc_note.h), until jit_nvrtc_open has opened it or
 * found that it cannot be.
 *
 * Why nothing can be compiled, or "". */
const char *jit_nvrtc_missing(void);
/* 1209 for 12.9; 0 where it is missing. */
int jit_nvrtc_version(void);
/* What is compiled for a GPU of this capability: the newest that this NVRTC knows of its generation, for older code
 * runs on it; 0 where there is none. */
int jit_nvrtc_capability(int capability);
/* The options, one line each, of which the architecture is not one. */
const char *jit_nvrtc_options(void);

/* Opens NVRTC, if it is not open; whether any of these answers is another now. */
int jit_nvrtc_open(void);

/* `name` is what messages call the text, `entry` the kernel, as C++ calls it. With `quick`, division and roots are
 * right to two units of the last place, and take few instructions. The error is the compiler's own log. */
TFU_MUST_USE tfu_code jit_compile(const char *name, const char *text, const char *entry, int capability, int quick,
                                  jit_image **image, tfu_error *err);

#endif
