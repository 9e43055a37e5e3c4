/* lzma.c - see lzma.h. The format is that of the LZMA specification (LZMA SDK, public domain).
 *
 * A file is 13 bytes, (pb * 5 + lp) * 9 + lc, four of the dictionary's size and eight of the result's, and a stream of
 * binary decisions by a range coder, each with a probability that adapts. They spell literals, matches (a length and a
 * distance back) and repetitions, which are matches at one of the last four distances. The dictionary is the result
 * itself.
 */
#include "kernels/core/gpu/lzma.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
  HEADER = 13,
  STATES = 12, /* what the last few symbols were; below LITERALS, the last one was a literal */
  LITERALS = 7,
  MAX_PLACES = 16, /* 2^pb */
  MAX_LITERAL_BITS = 4,
  LITERAL = 0x300, /* probabilities of one context: plain ones, and two of each where a match's byte is known */
  SHORTEST = 2,
  SLOT_KINDS = 4, /* distances have other probabilities after matches of 2, 3, 4 and more bytes */
  FIRST_DIRECT = 14,
  ALIGN_BITS = 4,
  LARGEST = 1 << 28, /* no image is, and no damaged file asks for more memory */
};

typedef uint16_t probability; /* of a zero, in 1/2048 */

typedef struct lengths {
  probability is_long, is_longest, low[MAX_PLACES][8], middle[MAX_PLACES][8], high[256];
} lengths;

typedef struct model {
  probability is_match[STATES][MAX_PLACES], is_repeat[STATES], is_older[STATES], is_third[STATES], is_fourth[STATES],
      is_more_than_a_byte[STATES][MAX_PLACES];
  lengths of_match, of_repeat;
  probability slot[SLOT_KINDS][64], footer[FIRST_DIRECT - 4][32], align[1 << ALIGN_BITS];
  probability literal[LITERAL << MAX_LITERAL_BITS];
} model;

typedef struct coder {
  const unsigned char *in;
  size_t size, at;
  uint32_t range, code;
} coder;

/* Zeros follow the end; whoever read them has `at` beyond `size`. */
static inline void normalize(coder *c) {
  if (c->range >> 24) return;
  c->range <<= 8;
  c->code = c->code << 8 | (c->at < c->size ? c->in[c->at] : 0);
  c->at++;
}

static inline unsigned bit(coder *c, probability *p) {
  normalize(c);
  const uint32_t bound = (c->range >> 11) * *p;
  if (c->code < bound) {
    c->range = bound;
    *p += (2048 - *p) >> 5;
    return 0;
  }
  c->range -= bound;
  c->code -= bound;
  *p -= *p >> 5;
  return 1;
}

/* `n` bits, the highest first. */
static inline unsigned tree(coder *c, probability *p, int n) {
  unsigned m = 1;
  for (int i = 0; i < n; i++) m = m << 1 | bit(c, &p[m]);
  return m - (1u << n);
}

static inline unsigned reverse_tree(coder *c, probability *p, int n) {
  unsigned m = 1, value = 0;
  for (int i = 0; i < n; i++) {
    const unsigned b = bit(c, &p[m]);
    m = m << 1 | b;
    value |= b << i;
  }
  return value;
}

/* `n` bits that are as likely zero as one. */
static unsigned direct(coder *c, int n) {
  unsigned value = 0;
  while (n--) {
    normalize(c);
    c->range >>= 1;
    const unsigned b = c->code >= c->range;
    if (b) c->code -= c->range;
    value = value << 1 | b;
  }
  return value;
}

static unsigned length(coder *c, lengths *l, unsigned place) {
  if (!bit(c, &l->is_long)) return SHORTEST + tree(c, l->low[place], 3);
  if (!bit(c, &l->is_longest)) return SHORTEST + 8 + tree(c, l->middle[place], 3);
  return SHORTEST + 16 + tree(c, l->high, 8);
}

/* One less than how far back; all ones say that the stream ends. */
static uint32_t distance(coder *c, model *m, unsigned length) {
  const unsigned kind = length - SHORTEST < SLOT_KINDS ? length - SHORTEST : SLOT_KINDS - 1;
  const unsigned slot = tree(c, m->slot[kind], 6);
  if (slot < 4) return slot;
  const int bits = (int)(slot >> 1) - 1;
  const uint32_t high = (uint32_t)(2 | (slot & 1)) << bits;
  if (slot < FIRST_DIRECT) return high + reverse_tree(c, m->footer[slot - 4], bits);
  return high + (direct(c, bits - ALIGN_BITS) << ALIGN_BITS) + reverse_tree(c, m->align, ALIGN_BITS);
}

/* The next byte. After a match, the byte that would have continued it, `expected`, chooses the probabilities up to the
 * first bit in which the two differ. */
static inline unsigned literal(coder *c, probability *p, int after_match, unsigned expected) {
  unsigned symbol = 1;
  while (after_match && symbol < 0x100) {
    const unsigned want = expected >> 7 & 1, b = bit(c, &p[((1 + want) << 8) + symbol]);
    expected <<= 1;
    symbol = symbol << 1 | b;
    after_match = b == want;
  }
  while (symbol < 0x100) symbol = symbol << 1 | bit(c, &p[symbol]);
  return symbol & 0xff;
}

/* Whether the stream gave `size` bytes and then said that it ends. */
static int decode(coder *c, model *m, unsigned lc, unsigned lp, unsigned pb, unsigned char *out, size_t size) {
  uint32_t back[4] = {0}; /* the last four distances, each less one */
  unsigned state = 0;
  size_t at = 0;
  for (;;) {
    const unsigned place = (unsigned)at & ((1u << pb) - 1);
    if (!bit(c, &m->is_match[state][place])) {
      if (at >= size) return 0;
      const unsigned before = at ? out[at - 1] : 0,
                     context = (((unsigned)at & ((1u << lp) - 1)) << lc) + (before >> (8 - lc));
      out[at] = (unsigned char)literal(c, m->literal + LITERAL * context, state >= LITERALS,
                                       state >= LITERALS ? out[at - back[0] - 1] : 0);
      at++;
      state = state < 4 ? 0 : state < 10 ? state - 3 : state - 6;
      continue;
    }
    unsigned n;
    if (!bit(c, &m->is_repeat[state])) {
      memmove(back + 1, back, 3 * sizeof *back);
      n = length(c, &m->of_match, place);
      back[0] = distance(c, m, n);
      if (back[0] == UINT32_MAX) return at == size;
      state = state < LITERALS ? 7 : 10;
    } else {
      const unsigned which = !bit(c, &m->is_older[state])   ? 0
                             : !bit(c, &m->is_third[state]) ? 1
                                                            : 2 + bit(c, &m->is_fourth[state]);
      const int is_byte = !which && !bit(c, &m->is_more_than_a_byte[state][place]);
      const uint32_t chosen = back[which];
      memmove(back + 1, back, which * sizeof *back);
      back[0] = chosen;
      n = is_byte ? 1 : length(c, &m->of_repeat, place);
      state = state >= LITERALS ? 11 : is_byte ? 9 : 8;
    }
    if (back[0] >= at || n > size - at || c->at > c->size) return 0;
    for (const unsigned char *from = out + at - back[0] - 1, *end = from + n; from < end; from++) out[at++] = *from;
  }
}

tfu_code tfu_lzma_decode(const unsigned char *file, size_t size, void **out, size_t *out_size, tfu_error *err) {
  const unsigned properties = size ? file[0] : 0, lc = properties % 9, lp = properties / 9 % 5, pb = properties / 45;
  uint64_t unpacked = 0;
  for (int i = HEADER; size > HEADER + 4 && i-- > 5;) unpacked = unpacked << 8 | file[i];
  *out = NULL;
  if (size <= HEADER + 4 || pb > 4 || lc + lp > MAX_LITERAL_BITS || file[HEADER] || unpacked > LARGEST)
    return tfu_fail(err, TFU_INTERNAL, "%zu bytes of device code are no .lzma file that states its size", size);
  model m;
  coder c = {.in = file, .size = size, .at = HEADER + 5, .range = UINT32_MAX};
  for (int i = 1; i < 5; i++) c.code = c.code << 8 | file[HEADER + i];
  for (size_t i = 0; i < sizeof m / sizeof(probability); i++) ((probability *)&m)[i] = 1024;
  unsigned char *const data = malloc(unpacked ? (size_t)unpacked : 1);
  if (!data) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory: %" PRIu64 " bytes for device code", unpacked);
  int whole = decode(&c, &m, lc, lp, pb, data, (size_t)unpacked);
  normalize(&c);
  whole = whole && !c.code && c.at == size;
  if (!whole) {
    free(data);
    return tfu_fail(err, TFU_INTERNAL, "device code is damaged: install tfuse anew");
  }
  *out = data;
  *out_size = (size_t)unpacked;
  return TFU_OK;
}
