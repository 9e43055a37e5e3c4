/* engine_test.c - the scheduler of generations over a model that stands in: what its cache has of a word depends on all
 * words before it, and the next word on all that the cache has for a sequence, so a wrong page, place, length or order
 * shows in the tokens. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "serving/engine.h"
#include "serving/pages.h"
#include "tests/check.h"

enum { PAGE = 4, ROOM = 32, WORDS = 1000, ROW_PAGES = ROOM / PAGE, MOST_PAGES = 64, UNREADABLE = 999, UNLUCKY = 998 };

static int64_t cache[MOST_PAGES * PAGE];
static int64_t words_read, most_rows;
static int kinds; /* of steps that were made: a bit for each size of a chunk, and of rows with times */

static int64_t mixed(int64_t state, int64_t word) { return (state * 31 + word + 7) % 1000003; }

/* What the cache has of a sequence's word at a position, and where. */
static int64_t *at(const int64_t *table, int64_t position) {
  return &cache[table[position / PAGE] * PAGE + position % PAGE];
}
static int64_t key_of(int64_t before, int64_t word) { return mixed(before, word); }

/* What follows a sequence: of seed, temperature and the like, too, so that they are seen to arrive. */
static int32_t next_word(int64_t keys, const int64_t *extra) {
  for (int i = 0; i < 4; i++) keys = mixed(keys, extra[i]);
  return (int32_t)(keys % 900);
}

static tfu_code read_words(void *of, int chunk, const int64_t *ints, const int64_t *table, int64_t length,
                           tfu_error *err) {
  (void)of;
  kinds |= chunk == 2 ? 1 : 2;
  for (int i = 0; i < chunk; i++) {
    const int64_t word = ints[i], place = ints[chunk + i], position = ints[2 * chunk + i];
    if (place < 0) continue;
    TFU_REQUIRE(err, word != UNREADABLE, "an unreadable word");
    CHECK(position == length - chunk + i && place == table[position / PAGE] * PAGE + position % PAGE);
    *at(table, position) = key_of(position ? *at(table, position - 1) : 1, word);
    words_read++;
  }
  return TFU_OK;
}

static tfu_code decode(void *of, int rows, int times, const int64_t *ints, const float *floats, const int64_t *table,
                       int64_t *tokens, tfu_error *err) {
  (void)of;
  kinds |= 4 << ((rows == 6) + 2 * (times == 4));
  for (int b = 0, there = 0; b < rows; b++) {
    int64_t length = ints[TFU_LENGTHS * rows + b], current = ints[TFU_CURRENT * rows + b];
    const int64_t limit = ints[TFU_LIMITS * rows + b], *pages = table + b * ROW_PAGES;
    const int64_t extra[] = {ints[TFU_SEEDS * rows + b], ints[TFU_TOP_K * rows + b],
                             (int64_t)(floats[TFU_TEMPERATURE * rows + b] * 8),
                             (int64_t)(floats[TFU_TOP_P * rows + b] * 8)};
    if (ints[TFU_DONE * rows + b]) {
      CHECK(ints[TFU_PLACES * rows + b] == -1 && length == 0);
      continue;
    }
    if (++there > most_rows) most_rows = there;
    CHECK(ints[TFU_POSITIONS * rows + b] == length - 1);
    CHECK(ints[TFU_PLACES * rows + b] == pages[(length - 1) / PAGE] * PAGE + (length - 1) % PAGE);
    int64_t found[8], n = 0;
    for (; n < times && length < limit; n++) {
      TFU_REQUIRE(err, current != UNLUCKY, "an unlucky number");
      *at(pages, length - 1) = key_of(length > 1 ? *at(pages, length - 2) : 1, current);
      int64_t keys = 0;
      for (int64_t i = 0; i < length; i++) keys = mixed(keys, *at(pages, i));
      found[n] = current = next_word(keys, extra);
      length++;
    }
    for (int64_t i = 0; i < n; i++) tokens[b * times + times - n + i] = found[i];
  }
  return TFU_OK;
}

static const tfu_steps steps = {.page = PAGE,
                                .room = ROOM,
                                .words = WORDS,
                                .rows = {2, 6},
                                .times = {1, 4},
                                .chunks = {2, 8},
                                .read = read_words,
                                .decode = decode};

/* ---- clients ---- */

typedef struct client {
  int32_t prompt[ROOM], got[ROOM];
  tfu_generation asked;
  int n, leaves_at; /* tokens; leaves_at: after so many it is gone, and with -1 already */
  int began, rank;  /* of all, when its first token came */
  atomic_int ended;
  tfu_code code;
  tfu_error why;
} client;

static int begun, looks; /* requests that got a token; how often one was asked whether it is gone */

static void tell(void *user, int32_t token, int ended, tfu_code code, const tfu_error *why) {
  client *c = user;
  CHECK(!c->ended && (code == TFU_OK) == (token >= 0) && (code == TFU_OK) == !why);
  if (token >= 0 && !c->n) c->rank = begun++, c->began = 1;
  if (token >= 0) c->got[c->n++] = token;
  c->code = code;
  if (why) c->why = *why;
  c->ended = ended;
}

static int is_gone(void *user) {
  const client *c = user;
  looks++;
  return c->leaves_at && c->n >= c->leaves_at;
}

static uint64_t seed = 1;
static int64_t any(int64_t n) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((seed >> 33) % (uint64_t)n);
}

/* A prompt that begins with `common` words that others have, too. */
static void ask(client *c, int64_t common, int64_t length, int64_t new_tokens) {
  *c = (client){.n = 0};
  for (int64_t i = 0; i < length; i++) c->prompt[i] = (int32_t)(i < common ? 100 + i : any(900));
  c->asked = (tfu_generation){.prompt = c->prompt,
                              .prompt_length = length,
                              .new_tokens = new_tokens,
                              .top_p = 1,
                              .seed = any(5),
                              .top_k = any(5),
                              .user = c,
                              .is_gone = is_gone,
                              .tell = tell};
}

/* Whether it got what it would get alone, as far as it came. */
static int is_right(const client *c) {
  int64_t key = 1, keys = 0;
  const int64_t extra[] = {c->asked.seed, c->asked.top_k, (int64_t)(c->asked.temperature * 8),
                           (int64_t)(c->asked.top_p * 8)};
  for (int64_t i = 0; i < c->asked.prompt_length; i++) keys = mixed(keys, key = key_of(key, c->prompt[i]));
  for (int i = 0; i < c->n; i++) {
    if (c->got[i] != next_word(keys, extra)) return 0;
    keys = mixed(keys, key = key_of(key, c->got[i]));
  }
  return 1;
}

static tfu_engine *engine_with(const tfu_steps *wanted, int64_t pages) {
  tfu_engine *e;
  tfu_error err;
  words_read = most_rows = 0;
  CHECK(tfu_engine_new(wanted, pages, &e, &err) == TFU_OK && tfu_engine_available(e) == pages);
  return e;
}

static tfu_engine *engine_of(int64_t pages) { return engine_with(&steps, pages); }

static void add(tfu_engine *e, client *c) {
  tfu_error err;
  CHECK(tfu_engine_add(e, &c->asked, &err) == TFU_OK);
}

static void finish_all(tfu_engine *e) {
  for (int i = 0; tfu_engine_step(e); i++) CHECK(i < 100000);
}

/* ---- tests ---- */

static void test_as_alone(void) {
  enum { N = 40 };
  client c[N];
  tfu_engine *e = engine_of(20); /* for two or three of the longest: others wait */
  for (int i = 0; i < N; i++) {
    const int64_t length = 1 + any(20);
    ask(&c[i], any(2) * any(length), length, 1 + any(ROOM - 20));
    c[i].asked.temperature = (float)any(3);
    c[i].asked.top_p = i % 2 ? 1 : 0.5f;
    add(e, &c[i]);
    if (i % 3 == 0) tfu_engine_step(e); /* they come while others run */
  }
  finish_all(e);
  for (int i = 0; i < N; i++) CHECK(c[i].ended && c[i].n == c[i].asked.new_tokens && is_right(&c[i]));
  CHECK(most_rows > 2 && most_rows <= 6 && tfu_engine_available(e) == 20);
  tfu_engine_free(e);
}

static void test_warm_up(void) {
  client c;
  tfu_error err;
  tfu_engine *e = engine_of(8);
  kinds = 0;
  CHECK(tfu_engine_warm_up(e, &err) == TFU_OK && kinds == 63);
  CHECK(words_read == 0 && most_rows == 0 && tfu_engine_available(e) == 8);
  ask(&c, 0, 10, 5);
  add(e, &c);
  finish_all(e);
  CHECK(c.n == 5 && is_right(&c));
  tfu_engine_free(e);
}

static void test_a_common_beginning_is_read_once(void) {
  client first, second;
  tfu_engine *e = engine_of(12);
  ask(&first, 12, 15, 5);
  ask(&second, 12, 14, 5);
  add(e, &first);
  finish_all(e);
  CHECK(words_read == 14);
  add(e, &second);
  finish_all(e);
  CHECK(words_read == 14 + 1 && is_right(&first) && is_right(&second)); /* of 13 words 12 are there */
  tfu_engine_free(e);
}

/* A prompt of pages that are each of one word, over and over, and a last word. */
static void ask_pages(client *c, const char *pages, int64_t new_tokens) {
  const int64_t n = (int64_t)strlen(pages);
  ask(c, 0, n * PAGE + 1, new_tokens);
  for (int64_t i = 0; i < n * PAGE; i++) c->prompt[i] = pages[i / PAGE];
}

/* How many of its pages were read. */
static int64_t run_pages(tfu_engine *e, client *c, const char *pages) {
  const int64_t before = words_read;
  ask_pages(c, pages, 1);
  add(e, c);
  finish_all(e);
  CHECK(c->ended && is_right(c) && tfu_engine_available(e) == 6);
  return (words_read - before) / PAGE;
}

/* Pages that nobody uses stay until others need them, oldest first, and what comes after one before that. */
static void test_pages_that_stay(void) {
  client c;
  tfu_engine *e = engine_of(6);
  CHECK(run_pages(e, &c, "ab") == 2 && run_pages(e, &c, "ab") == 0 && run_pages(e, &c, "ac") == 1);
  CHECK(run_pages(e, &c, "xyz") == 3); /* there are a, b, c and three others: it takes the oldest, b, for its own */
  CHECK(run_pages(e, &c, "ac") == 0 && run_pages(e, &c, "ab") == 1);
  CHECK(run_pages(e, &c, "pqrst") == 5); /* all but one are taken */
  CHECK(run_pages(e, &c, "qb") == 2 && run_pages(e, &c, "ab") == 2 && run_pages(e, &c, "xyz") == 3);
  CHECK(run_pages(e, &c, "ayz") >= 2); /* y and z after an x are no others' */
  tfu_engine_free(e);
  /* Of a long beginning the last page is taken first, and the others are found again. */
  e = engine_of(6);
  CHECK(run_pages(e, &c, "abc") == 3 && run_pages(e, &c, "xyz") == 3 && run_pages(e, &c, "abc") == 1);
  tfu_engine_free(e);
}

/* Two read the same first page at a time. They share it from then on, so that it stays while one of them uses it. */
static void test_a_page_that_two_read(void) {
  client first, second, third, fourth;
  tfu_engine *e = engine_of(8);
  ask_pages(&first, "ab", 1);
  ask_pages(&second, "ac", 7);
  add(e, &first);
  add(e, &second);
  tfu_engine_step(e);
  CHECK(first.ended && second.n == 4);
  CHECK(tfu_engine_available(e) == 4); /* the other three are the second's own */
  ask_pages(&third, "pqr", 1);
  add(e, &third);
  tfu_engine_step(e);
  CHECK(third.ended && !second.ended);
  ask_pages(&fourth, "pqrc", 1);
  add(e, &fourth);
  finish_all(e);
  CHECK(is_right(&first) && is_right(&second) && is_right(&third) && fourth.n == 1 && is_right(&fourth));
  CHECK(tfu_engine_available(e) == 8);
  tfu_engine_free(e);
}

/* Prompts of a few pages in any order. Steps read little, so pages are given away while prompts that begin like them
 * are half read: whatever is shared, each gets what it would get alone. */
static void test_any_order_of_pages(void) {
  enum { N = 20000 };
  static client c[N];
  tfu_steps slow = steps;
  slow.chunks[1] = 0;
  tfu_engine *e = engine_with(&slow, 22);
  for (int i = 0; i < N; i++) {
    char pages[ROW_PAGES] = "";
    const int64_t n = any(ROW_PAGES);
    for (int64_t k = 0; k < n; k++) pages[k] = (char)('a' + any(2));
    ask_pages(&c[i], pages, 1 + any(3));
    add(e, &c[i]);
    for (int64_t k = any(3); k > 0; k--) tfu_engine_step(e);
  }
  finish_all(e);
  int wrong = 0;
  for (int i = 0; i < N; i++) wrong += !c[i].ended || c[i].n != c[i].asked.new_tokens || !is_right(&c[i]);
  CHECK_FOR(!wrong, "%d of %d are wrong", wrong, N);
  CHECK(tfu_engine_available(e) == 22);
  tfu_engine_free(e);
}

static void test_stops_and_vanished(void) {
  enum { N = 12 };
  client c[N];
  tfu_engine *e = engine_of(16);
  for (int i = 0; i < N; i++) {
    ask(&c[i], 0, 5, 20);
    c[i].leaves_at = i % 3 == 0 ? 1 + i / 3 : 0;
    add(e, &c[i]);
  }
  finish_all(e);
  for (int i = 0; i < N; i++) {
    CHECK(c[i].ended && is_right(&c[i]));
    if (!c[i].leaves_at) CHECK(c[i].code == TFU_OK && c[i].n == 20);
    if (c[i].leaves_at) CHECK((int)c[i].code == TFU_CANCELLED && c[i].n >= c[i].leaves_at && c[i].n < 20);
  }
  CHECK(tfu_engine_available(e) == 16);
  client again = c[1]; /* the same prompt, which stops at its sixth token */
  const int32_t stop = c[1].got[5];
  again.n = again.ended = 0;
  again.asked.user = &again;
  again.asked.prompt = again.prompt;
  again.asked.stops = &stop;
  again.asked.n_stops = 1;
  add(e, &again);
  finish_all(e);
  int at = 0;
  while (c[1].got[at] != stop) at++;
  CHECK(again.code == TFU_OK && again.n == at + 1 && is_right(&again) && tfu_engine_available(e) == 16);
  client waits;
  ask(&waits, 0, 5, 20);
  ask(&c[0], 0, 5, 20);
  add(e, &c[0]);
  add(e, &waits);
  tfu_engine_step(e);
  tfu_engine_free(e); /* with requests under way */
  CHECK(c[0].ended && waits.ended);
  CHECK_TEXT(waits.why.text, "the model was unloaded");
}

static void test_refused(void) {
  client c;
  tfu_error err;
  tfu_engine *e = engine_of(4);
  const struct {
    int64_t length, new_tokens;
    const char *why;
  } cases[] = {
      {0, 1, "a request needs a prompt of at least one token, and at least one new token; got 0 and 1"},
      {1, 0, "a request needs a prompt of at least one token, and at least one new token; got 1 and 0"},
      {5, INT64_MAX,
       "a prompt of 5 tokens and 9223372036854775807 new ones are more than the 32 that a request may have"},
      {20, 13, "a prompt of 20 tokens and 13 new ones are more than the 32 that a request may have"},
      {10, 7, "17 tokens take 5 pages of 4, and there are 4"},
  };
  for (int i = 0; i < TFU_COUNT(cases); i++) {
    ask(&c, 0, cases[i].length, 1);
    c.asked.new_tokens = cases[i].new_tokens;
    CHECK(tfu_engine_add(e, &c.asked, &err) == TFU_INVALID);
    CHECK_TEXT(err.text, cases[i].why);
  }
  ask(&c, 0, 2, 2);
  c.prompt[1] = WORDS;
  CHECK(tfu_engine_add(e, &c.asked, &err) == TFU_INVALID);
  CHECK_TEXT(err.text, "ids are from 0 to 999, got 1000");
  static const int32_t stops[TFU_MOST_STOPS + 1];
  ask(&c, 0, 2, 2);
  c.asked.stops = stops;
  c.asked.n_stops = TFU_COUNT(stops);
  CHECK(tfu_engine_add(e, &c.asked, &err) == TFU_INVALID);
  CHECK_TEXT(err.text, "a request has at most 256 stop tokens, got 257");
  CHECK(!tfu_engine_step(e) && !c.ended && tfu_engine_available(e) == 4);
  tfu_engine_free(e);
}

/* A model that fails: an error to those whom it concerns, and the others go on. */
static void test_failures(void) {
  client bad, good;
  tfu_engine *e = engine_of(16);
  ask(&bad, 0, 12, 4);
  bad.prompt[9] = UNREADABLE;
  ask(&good, 0, 12, 10);
  add(e, &good);
  add(e, &bad);
  finish_all(e);
  CHECK(good.n == 10 && is_right(&good) && bad.n == 0 && bad.code == TFU_INVALID);
  CHECK_TEXT(bad.why.text, "an unreadable word");
  ask(&bad, 0, 3, 4);
  bad.prompt[2] = UNLUCKY;
  add(e, &bad);
  finish_all(e);
  CHECK_TEXT(bad.why.text, "an unlucky number");
  ask(&good, 0, 3, 4);
  add(e, &good);
  finish_all(e);
  CHECK(good.n == 4 && is_right(&good) && tfu_engine_available(e) == 16);
  tfu_engine_free(e);
}

/* ---- those that wait ---- */

static void ask_some(client *c, int n, tfu_engine *e) {
  for (int i = 0; i < n; i++) {
    ask(&c[i], 0, 2, 3);
    add(e, &c[i]);
  }
}

/* They begin in the order in which they came, without those that nobody wants any more; and these are told so. */
static void test_order(void) {
  enum { N = 2000 };
  static client c[N];
  tfu_engine *e = engine_of(20);
  int gone = 0, last = -1;
  ask_some(c, N, e);
  for (int i = 0; i < N; i++) gone += (c[i].leaves_at = any(3) ? 0 : -1) < 0;
  begun = 0;
  for (int i = 0; i < N / 64 + 2; i++) tfu_engine_step(e); /* in so many steps each was asked */
  for (int i = 0; i < N; i++)
    if (c[i].leaves_at) CHECK(c[i].ended && c[i].n == 0 && (int)c[i].code == TFU_CANCELLED);
  ask(&c[0], 0, 2, 3); /* one that comes when others were taken out */
  CHECK(c[1].n || c[1].leaves_at);
  add(e, &c[0]);
  finish_all(e);
  for (int i = 1; i < N; i++) {
    if (c[i].leaves_at) continue;
    CHECK_FOR(c[i].began && c[i].n == 3 && c[i].rank > last && is_right(&c[i]), "request %d of rank %d after %d", i,
              c[i].rank, last);
    last = c[i].rank;
  }
  CHECK(gone > N / 4 && c[0].n == 3 && c[0].rank > last && tfu_engine_available(e) == 20);
  tfu_engine_free(e);
}

/* All at once go: the first, the last, and all, and others can come after that. */
static void test_all_vanish(void) {
  client c[100];
  for (int kind = 0; kind < 3; kind++) {
    tfu_engine *e = engine_of(20);
    ask_some(c, TFU_COUNT(c), e);
    for (int i = 0; i < TFU_COUNT(c); i++)
      if (kind == 2 || (kind ? i > 50 : i < 50)) c[i].leaves_at = -1;
    for (int i = 0; i < 2; i++) tfu_engine_step(e);
    client more[3];
    ask_some(more, TFU_COUNT(more), e);
    finish_all(e);
    for (int i = 0; i < TFU_COUNT(c); i++) CHECK(c[i].ended && c[i].n == (c[i].leaves_at ? 0 : 3));
    for (int i = 0; i < TFU_COUNT(more); i++) CHECK(more[i].n == 3 && is_right(&more[i]));
    tfu_engine_free(e);
  }
}

/* A step asks a few of those that wait. */
static void test_a_step_does_not_ask_all(void) {
  enum { N = 10000 };
  static client c[N];
  tfu_engine *e = engine_of(20);
  ask_some(c, N, e);
  looks = 0;
  for (int i = 0; i < 10; i++) tfu_engine_step(e);
  CHECK_FOR(looks <= 10 * (64 + 6), "%d asked in 10 steps", looks);
  tfu_engine_free(e);
  for (int i = 0; i < N; i++) CHECK(c[i].ended);
}

static void test_bounds(void) {
  client c[12], more;
  tfu_error err;
  tfu_engine *e = engine_of(20);
  tfu_engine_bound(e, 12, 0);
  ask_some(c, TFU_COUNT(c), e);
  ask(&more, 0, 2, 3);
  CHECK(tfu_engine_add(e, &more.asked, &err) == TFU_EXHAUSTED);
  CHECK_TEXT(err.text, "12 requests wait, and no more may: try again later");
  tfu_engine_step(e); /* six join, and leave room for as many */
  client later[7];
  for (int i = 0; i < TFU_COUNT(later); i++) {
    ask(&later[i], 0, 2, 3);
    CHECK(tfu_engine_add(e, &later[i].asked, &err) == (i < 6 ? TFU_OK : TFU_EXHAUSTED));
  }
  finish_all(e);
  for (int i = 0; i < 6; i++) CHECK(c[i].n == 3 && c[6 + i].n == 3 && later[i].n == 3 && !later[6].n);
  tfu_engine_free(e);
  /* Those that run have all the time that they need; those that wait have not. */
  e = engine_of(20);
  tfu_engine_bound(e, 0, 20000000);
  ask_some(c, TFU_COUNT(c), e);
  for (int i = 0; i < TFU_COUNT(c); i++) c[i].asked.new_tokens = 3;
  tfu_engine_step(e);
  nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
  ask(&more, 0, 2, 3);
  add(e, &more);
  finish_all(e);
  for (int i = 0; i < TFU_COUNT(c); i++) {
    CHECK_FOR(c[i].ended && c[i].n == (i < 6 ? 3 : 0) && c[i].code == (i < 6 ? TFU_OK : TFU_EXHAUSTED), "request %d",
              i);
    if (i >= 6)
      CHECK_TEXT(c[i].why.text, "the request has waited 0.02 s, which is as long as one may: try again later");
  }
  CHECK(more.n == 3 && tfu_engine_available(e) == 20);
  tfu_engine_free(e);
}

/* Pages are found and taken in the same time, however many there are. On a busy machine all of this takes 10 ms; by
 * looking through all pages each time it took 4 s. */
static void test_many_pages(void) {
  enum { N = 1 << 16, SIZE = 16, TIMES = 20000 };
  tfu_pages *p = NULL;
  tfu_error err;
  struct timespec begin, end;
  int32_t words[SIZE] = {0};
  int64_t before = TFU_NO_PAGE;
  CHECK(tfu_pages_new(N, SIZE, &p, &err) == TFU_OK);
  for (int i = 0; i < N; i++) {
    const int64_t page = tfu_pages_take(p);
    words[i % SIZE] = i;
    tfu_pages_name(p, page, before, words);
    tfu_pages_leave(p, page);
    CHECK(tfu_pages_find(p, before, words) == page);
    if (i % 8 == 0) before = page;
  }
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  for (int i = 0; i < TIMES; i++) {
    words[0] = -1 - i;
    CHECK(tfu_pages_find(p, 3, words) == TFU_NO_PAGE);
    const int64_t page = tfu_pages_take(p);
    tfu_pages_name(p, page, 3, words);
    tfu_pages_leave(p, page);
  }
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  const double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
  CHECK_FOR(seconds < 0.2, "%g s", seconds);
  CHECK(tfu_pages_available(p) == N);
  tfu_pages_free(p);
}

enum { EACH = 200, THREADS = 4 };
static client many[THREADS][EACH];
static tfu_engine *shared;

static void *add_many(void *mine) {
  for (int i = 0; i < EACH; i++) add(shared, &((client *)mine)[i]);
  return NULL;
}

static void test_threads(void) {
  pthread_t thread[THREADS];
  tfu_error err;
  shared = engine_of(24);
  for (int t = 0; t < THREADS; t++)
    for (int i = 0; i < EACH; i++) {
      const int64_t length = 1 + any(20);
      ask(&many[t][i], any(2) * any(length), length, 1 + any(ROOM - 20));
      many[t][i].leaves_at = any(5) ? 0 : 1 + (int)any(6);
    }
  CHECK(tfu_engine_start(shared, &err) == TFU_OK);
  for (int t = 0; t < THREADS; t++) pthread_create(&thread[t], NULL, add_many, many[t]);
  for (int t = 0; t < THREADS; t++) pthread_join(thread[t], NULL);
  for (int t = 0; t < THREADS; t++)
    for (int i = 0; i < EACH; i++)
      while (!many[t][i].ended) sched_yield();
  for (int t = 0; t < THREADS; t++)
    for (int i = 0; i < EACH; i++)
      CHECK(is_right(&many[t][i]) &&
            (many[t][i].code ? many[t][i].leaves_at : many[t][i].n == many[t][i].asked.new_tokens));
  tfu_engine_free(shared);
}

int main(void) {
  test_as_alone();
  test_warm_up();
  test_a_common_beginning_is_read_once();
  test_pages_that_stay();
  test_a_page_that_two_read();
  test_any_order_of_pages();
  test_stops_and_vanished();
  test_refused();
  test_failures();
  test_order();
  test_all_vanish();
  test_a_step_does_not_ask_all();
  test_bounds();
  test_many_pages();
  test_threads();
  return verdict();
}
