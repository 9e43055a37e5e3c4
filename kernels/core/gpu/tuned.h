/* tuned.h - autotuning, choices that were made by timing: which of several ways is fastest for a shape, on this GPU.
 *
 * A choice is made once and remembered, in memory by a key of bytes and in the user's cache folder by a line of text:
 *
 *   what was asked <tab> microseconds <tab> the choice in hex <tab> its name <tab> checksum
 *
 * after a first line that names the format. The folder is $TFUSE_CACHE, else tfuse in $XDG_CACHE_HOME or ~/.cache, of
 * mode 0700. A file that cannot be read, or lines that are damaged, cost another timing and nothing else; one that
 * cannot be written is not. Processes that write at once each leave a whole file. TFUSE_AUTOTUNE=0 switches timing and
 * file off, and so does determinism.h: the library's own first proposal is taken then.
 *
 * A model whose batches or lengths change asks for a new size in nearly every step. So TFU_TUNED_KIND sizes of a kind
 * are timed; another one then takes the choice of the nearest, unless that is more than a factor of 2 away. */
#ifndef TFUSE_TUNED_H_
#define TFUSE_TUNED_H_

#include "tfuse.h"

enum {
  TFU_TUNED_KEY = 136,
  TFU_TUNED_DATA = 80,
  TFU_TUNED_TEXT = 320,
  TFU_TUNED_LABEL = 96,
  TFU_TUNED_MOST = 4096,
  TFU_TUNED_KIND = 16
};

typedef struct tfu_choice {
  unsigned char data[TFU_TUNED_DATA];
  float microseconds;          /* 0: not timed                            */
  int none;                    /* there is nothing to choose from         */
  char label[TFU_TUNED_LABEL]; /* for tfuse.explain(); neither tab nor newline */
} tfu_choice;

typedef enum tfu_chosen {
  TFU_CHOSEN,      /* may be remembered; kept in the file too where it was timed  */
  TFU_CHOSEN_ONCE, /* for this call only: nothing could be timed now             */
} tfu_chosen;

/* One kind of question. `with` is the caller's. */
typedef struct tfu_tuner {
  size_t bytes; /* of a key, all of which count; at most TFU_TUNED_KEY */
  /* The key as a line of text, without tabs, which tells keys of other tuners and library versions apart. The GPU's
   * name is put before it. */
  void (*describe)(const void *key, void *with, char *text, size_t size);
  /* Whether a choice that was read from a file can be used. */
  int (*usable)(const void *key, void *with, const tfu_choice *choice);
  tfu_chosen (*choose)(const void *key, void *with, tfu_choice *choice);
  /* How far a key's size is from another's, in powers of 2; negative where they are not of one kind. NULL: no two are.
   */
  double (*apart)(const void *key, const void *other);
  /* Makes another key's choice, which was timed, one for this key; whether it can be used. */
  int (*adopt)(const void *key, const void *other, void *with, tfu_choice *choice);
} tfu_tuner;

/* The choice for a key: remembered, read or made. Returns its label where it is remembered, NULL where it was made for
 * this call only. Threads that ask the same at once wait for the first. TFU_TUNED_MOST are remembered, and as many are
 * in the file; then the one that was not asked for longest makes room. A label's memory is never freed, but has the
 * newer choice's text then: it is to be shown, not to be compared. */
const char *tfu_tuned_get(const tfu_tuner *tuner, const void *key, void *with, tfu_choice *choice);

/* Names a choice, and says after that how long it took, where it was timed. */
void tfu_choice_label(tfu_choice *choice, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether choices are made by timing, at present. */
int tfu_tuning(void);

/* The path of the file, or "" where there is no place for one. */
__attribute__((visibility("default"))) const char *tfu_tuned_path(void);

/* Whether that file is one of ours, of any version: others are neither deleted nor replaced. */
TFU_EXPORT int tfu_tuned_is_own(void);

/* Forgets all that was read and chosen, for tests. Nobody may hold a choice. */
void tfu_tuned_forget(void);

#endif
