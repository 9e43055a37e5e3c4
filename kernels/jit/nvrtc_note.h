/* nvrtc_note.h - what is known of NVRTC from an earlier process. It is a large library to load, and a process that
 * finds its kernels in the cache needs but a few numbers of it: these are in a file beside them. */
#ifndef TFUSE_NVRTC_NOTE_H_
#define TFUSE_NVRTC_NOTE_H_

#include <limits.h>

/* What names of notes begin with, and what notes do. */
#define JIT_NOTE "nvrtc-"
#define JIT_NOTE_WORD "tfunrtc"

enum { JIT_MOST_ARCHS = 64 };

typedef struct jit_nvrtc_facts {
  int version; /* 1209 for 12.9; 0: there is none */
  int archs, arch[JIT_MOST_ARCHS];
  char path[PATH_MAX]; /* where the library was loaded from */
} jit_nvrtc_facts;

/* Reads what jit_note_write has written for the library that would be loaded now: for this LD_LIBRARY_PATH and this
 * library of ours, where the file at `path` is the one that it was. Whether there is such a note, undamaged. */
int jit_note_read(jit_nvrtc_facts *facts);
void jit_note_write(const jit_nvrtc_facts *facts);
void jit_note_forget(void);

#endif
