/* cubins.h - what was compiled, kept for later processes: files in the folder jit/ beside tuned.h's. A file that is
 * damaged, or whose name stands for something else, is as good as none; where nothing can be written, nothing is kept.
 */
#ifndef TFUSE_CUBINS_H_
#define TFUSE_CUBINS_H_

#include "kernels/jit/nvrtc.h"
#include "tfuse.h"

/* Bytes of all files; evicted oldest first. */
enum { JIT_MOST_BYTES = 64 << 20 };

/* What an image depends on, as two hashes. */
typedef struct jit_key {
  uint64_t hash[2];
} jit_key;
jit_key jit_key_of(const char *text, const char *entry, int capability);

/* The folder, with a slash at its end; "" where there is none. */
TFU_EXPORT const char *tfu_jit_folder(void);

/* NULL: there is none. */
jit_image *jit_cubin_read(const jit_key *key);
void jit_cubin_write(const jit_key *key, const jit_image *image);
void jit_cubin_forget(const jit_key *key);
/* Whether a file of the folder has a name and a beginning of ours: others are neither deleted nor counted. */
TFU_EXPORT int tfu_jit_is_own(const char *name);
/* Removes the oldest of our files until the others have at most so many bytes. */
void jit_cubins_prune(int64_t most);

#endif
