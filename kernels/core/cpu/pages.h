/* pages.h - new memory in large pages. */
#ifndef TFUSE_PAGES_H_
#define TFUSE_PAGES_H_

#include <stddef.h>

/* Asks the system to back the pages that lie inside these bytes, where they have no memory yet, with large ones. A
 * hint: nothing else changes, and it may be refused.
 *
 * A new tensor is the kernel's to clear, page by page at the first touch. On 2 cores of aarch64, filling 64 MiB of 4
 * KiB pages takes 24 ms, of 2 MiB pages 6 ms, and 3 ms where the memory had been used before: most of what a CPU kernel
 * takes is this. NumPy asks the same for arrays of this size. */
void tfu_large_pages(void *memory, size_t bytes);

#endif
