/* pages.h - pages of a cache of keys and values: which are free, and which have the beginning of a prompt that another
 * may have, too. Not for more than one thread at a time. */
#ifndef TFUSE_PAGES_H_
#define TFUSE_PAGES_H_

#include <tfuse.h>

typedef struct tfu_pages tfu_pages;

enum { TFU_NO_PAGE = -1 };

/* `size` is how many words a page has. */
TFU_MUST_USE tfu_code tfu_pages_new(int64_t n, int64_t size, tfu_pages **pages, tfu_error *err);
void tfu_pages_free(tfu_pages *pages);

int64_t tfu_pages_count(const tfu_pages *pages);
int64_t tfu_pages_available(const tfu_pages *pages); /* for tfu_pages_take */
int tfu_pages_is_unused(const tfu_pages *pages, int64_t page);

/* The page that has these words, after those of the page `before`, or of none; TFU_NO_PAGE: there is none. */
int64_t tfu_pages_find(const tfu_pages *pages, int64_t before, const int32_t *words);
void tfu_pages_use(tfu_pages *pages, int64_t page); /* one that was found */

/* A page for words of one's own; there must be one available. That which nobody has used for longest loses its name. */
int64_t tfu_pages_take(tfu_pages *pages);
/* Says what a page has, once it has it. No other page may be found by that, and who uses this one uses `before`. */
void tfu_pages_name(tfu_pages *pages, int64_t page, int64_t before, const int32_t *words);
/* A page with a name keeps what it has until somebody else needs it. Of several, the last is left first: so a page
 * never loses its name before those that come after it. */
void tfu_pages_leave(tfu_pages *pages, int64_t page);

#endif
