/* library.h - libraries that are opened when they are first needed, and may be missing: the driver, NVRTC, cuDNN and
 * cuBLASLt. Of one that is there a table of functions is filled. */
#ifndef TFUSE_LIBRARY_H_
#define TFUSE_LIBRARY_H_

#include <stdatomic.h>

/* What is called of a library is a list of X(result, name, arguments): these make it a struct's members, and texts. */
#define TFU_POINTER(result, name, arguments) result(*name) arguments;
#define TFU_NAME(result, name, arguments) #name,

typedef struct tfu_shared {
  const char *called;                /* in messages */
  const char *names[3], *folders[3]; /* NULL-ended, as tfu_open_library takes them */
  const char *path;                  /* tried last; NULL: none */
  const char *off;                   /* NULL, or the environment variable that forbids it where it is 0 */
  /* NULL-ended. The newer ones, of which there may be no list, stay NULL where the library is too old. */
  const char *const *functions, *const *newer;
  void *table;                /* begins with a pointer for each of them, in this order */
  const char *why;            /* the message where something is missing, whose name comes in the place of %s */
  void (*ready)(void *table); /* NULL, or what else is to be known before it is used */
  /* Its own. */
  atomic_int tried;
  char missing[256];
} tfu_shared;

/* Opens it once, for all threads. NULL, or what is missing, a text that stays. */
const char *tfu_shared_open(tfu_shared *library);

/* The first of the names (NULL-ended) that TensorFlow has opened; else that the system finds; else that lies in one of
 * the folders (NULL-ended, as pip lays them out beside TensorFlow, which knows the place where dlopen does not). NULL:
 * none does. */
void *tfu_open_library(const char *const *names, const char *const *folders);
/* The first of the names that somebody has opened, to be closed; NULL: none is. */
void *tfu_opened_library(const char *const *names);
/* What TensorFlow exports under this name; NULL: nothing. */
void *tfu_of_tensorflow(const char *name);
/* Those of the names that are loaded now stay so, whoever closes them. */
void tfu_keep_loaded(const char *const *names);

/* Whether an environment variable is 0. */
int tfu_switched_off(const char *variable);

#endif
