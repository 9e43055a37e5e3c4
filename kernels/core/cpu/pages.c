#define _DEFAULT_SOURCE
#include "kernels/core/cpu/pages.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

void tfu_large_pages(void *memory, size_t bytes) {
  enum { LEAST = 4 << 20 }; /* less holds too few large pages to be worth a call */
  if (bytes < LEAST) return;
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)memory, end = start + bytes;
  const uintptr_t first = (start + page - 1) / page * page, last = end / page * page;
  (void)madvise((void *)first, last - first, MADV_HUGEPAGE);
}
