/* engine.h - generates for many requests at once: continuous batching.
 *
 * Requests join and leave between steps. Their keys and values lie in pages, which prompts that begin alike share. A
 * request is given all pages that it may need when it joins, so it never stops for want of memory; one that finds no
 * row or too few pages waits for them, in order, and one that could never have enough is refused. The same as
 * tfuse.generation.Engine in Python, but that a step's tokens are waited for before the next step.
 *
 * What a step costs beside the model's own work depends on the requests that run, and neither on how many wait nor on
 * how many pages there are. */
#ifndef TFUSE_ENGINE_H_
#define TFUSE_ENGINE_H_

#include <tfuse.h>

enum { TFU_MOST_SIZES = 8, TFU_MOST_STOPS = 256 };                      /* stops: each new token is compared with all */
enum { TFU_CANCELLED = 1 };                                             /* a code, of TensorFlow's numbers */
enum { TFU_WORDS, TFU_WORD_PLACES, TFU_WORD_POSITIONS, TFU_READ_INTS }; /* rows of ints of `read` */
enum { TFU_LENGTHS, TFU_LIMITS, TFU_DONE, TFU_SEEDS, TFU_TOP_K, TFU_CURRENT, TFU_PLACES, TFU_POSITIONS, TFU_ROW_INTS };
enum { TFU_TEMPERATURE, TFU_TOP_P, TFU_ROW_FLOATS };

/* What makes steps: a model (generator.h), or what stands in for one. All sizes are in ascending order. */
typedef struct tfu_steps {
  void *of;
  int64_t page, room, words;  /* tokens of a page, and of a request at most; words that there are */
  int rows[TFU_MOST_SIZES];   /* that a step may have; 0: no more */
  int times[TFU_MOST_SIZES];  /* steps that may be made at a time; the first is 1 */
  int chunks[TFU_MOST_SIZES]; /* words of a prompt that may be read at a time */
  /* Puts keys and values of words into the cache: ints is [TFU_READ_INTS, chunk], of which a place of -1 is none, table
   * the pages of the sequence, length its words after that. */
  tfu_code (*read)(void *of, int chunk, const int64_t *ints, const int64_t *table, int64_t length, tfu_error *err);
  /* Appends words to sequences: ints is [TFU_ROW_INTS, rows], floats [TFU_ROW_FLOATS, rows], table [rows, pages of the
   * room]. tokens, [rows, times], gets the last ones of each. */
  tfu_code (*decode)(void *of, int rows, int times, const int64_t *ints, const float *floats, const int64_t *table,
                     int64_t *tokens, tfu_error *err);
} tfu_steps;

/* A request. */
typedef struct tfu_generation {
  const int32_t *prompt, *stops; /* stops: tokens that end it, and are its last */
  int64_t prompt_length, n_stops, new_tokens;
  float temperature, top_p; /* temperature 0: the likeliest; top_p 1: all */
  int64_t top_k, seed;      /* top_k 0: all */
  void *user;
  int (*is_gone)(void *user); /* whether nobody waits for it any more */
  /* Called with each token as it comes, by the thread that makes steps. The last call has `ended`; where the request
   * failed, or nobody waits for it, it has no token (-1) and says why. */
  void (*tell)(void *user, int32_t token, int ended, tfu_code code, const tfu_error *why);
} tfu_generation;

typedef struct tfu_engine tfu_engine;

TFU_MUST_USE tfu_code tfu_engine_new(const tfu_steps *steps, int64_t pages, tfu_engine **engine, tfu_error *err);
/* Requests that have not ended are told so. NULL is fine. */
void tfu_engine_free(tfu_engine *engine);

/* How many requests may wait at a time, and for how long; 0: any number, and for ever, as it is without this call. One
 * that would be too many is refused, and one that has waited too long is told so, both with TFU_EXHAUSTED. Before any
 * request. */
void tfu_engine_bound(tfu_engine *engine, int64_t waiting, int64_t nanoseconds);

/* Makes each kind of step once, with nothing in it: what the first of a kind takes longer, no request waits for. Before
 * any request. */
TFU_MUST_USE tfu_code tfu_engine_warm_up(tfu_engine *engine, tfu_error *err);

/* Adds a request, from any thread; prompt and stops are copied. Where it is refused, it is not told. */
TFU_MUST_USE tfu_code tfu_engine_add(tfu_engine *engine, const tfu_generation *request, tfu_error *err);

/* Requests join, some read a part of their prompts, and those that have read theirs get a token, or some. Returns
 * whether there is more to do. For one thread, or tfu_engine_start's. */
int tfu_engine_step(tfu_engine *engine);

/* Has a thread of its own make steps while there are requests; tfu_engine_free ends it. */
TFU_MUST_USE tfu_code tfu_engine_start(tfu_engine *engine, tfu_error *err);

int64_t tfu_engine_available(const tfu_engine *engine); /* pages that nobody uses; not while steps are made */

#endif
