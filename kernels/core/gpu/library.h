/* library.h - NVIDIA's libraries, opened when they are first needed. */
#ifndef TFUSE_LIBRARY_H_
#define TFUSE_LIBRARY_H_

/* The first of the names (NULL-ended) that TensorFlow has opened; else that the system finds; else that lies in one of
 * the folders (NULL-ended, as pip lays them out beside TensorFlow, which knows the place where dlopen does not). NULL:
 * none does. */
void *tfu_open_library(const char *const *names, const char *const *folders);
/* Those of the names that are loaded now stay so, whoever closes them. */
void tfu_keep_loaded(const char *const *names);

#endif
