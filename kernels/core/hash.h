/* hash.h - FNV-1a, by bytes: its lower bits depend on all of them. */
#ifndef TFUSE_HASH_H_
#define TFUSE_HASH_H_

#include <stddef.h>
#include <stdint.h>

#define TFU_HASH_START 0xcbf29ce484222325u

/* The hash of what `hash` is of, followed by these bytes. */
static inline uint64_t tfu_hash(uint64_t hash, const void *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
  return hash;
}

#endif
