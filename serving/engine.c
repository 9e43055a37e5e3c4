#include "serving/engine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serving/pages.h"

enum { CHUNKS = 8 }; /* largest chunks of prompts that are read between two steps, at most */
/* So many of those that wait are asked between two steps whether anybody still wants them, in turn: to ask all of
 * 100,000 took 6 ms of each step. */
enum { ASKED = 64 };

typedef struct request {
  struct request *next; /* of those that wait */
  tfu_generation asked;
  int32_t *words; /* of the prompt, then stops */
  int64_t *pages;
  int64_t n_pages, ready, made; /* words of the prompt whose keys and values are in the cache; new tokens */
  int64_t named;                /* pages of the prompt, from the first on, that can be found */
  int32_t current;
  int64_t since; /* when it came, in nanoseconds */
} request;

struct tfu_engine {
  tfu_steps steps;
  tfu_pages *pages;
  request **running; /* in the first `n` rows */
  int n, most_rows;
  int64_t row_pages; /* of the room */
  int64_t *ints, *table, *tokens;
  float *floats;
  /* Shared by threads. */
  pthread_mutex_t lock;
  pthread_cond_t came;
  request *first, **last;       /* that wait, in order of their coming */
  request **ask;                /* of these the one that is asked next, or the end */
  int64_t waiting, most, limit; /* how many there are and may be, and how long each may wait; 0: no bound */
  int started, ending;
  pthread_t thread;
};

static int largest(const int *sizes) {
  int found = 0;
  for (int i = 0; i < TFU_MOST_SIZES && sizes[i]; i++) found = sizes[i];
  return found;
}

static int at_least(const int *sizes, int64_t wanted) {
  int i = 0;
  while (i < TFU_MOST_SIZES - 1 && sizes[i] < wanted && sizes[i + 1]) i++;
  return sizes[i];
}

static int64_t pages_of(const tfu_engine *e, int64_t tokens) { return (tokens + e->steps.page - 1) / e->steps.page; }

/* ---- make and free ---- */

static void free_request(request *r) {
  free(r->words);
  free(r->pages);
  free(r);
}

/* It is told, and forgotten; its pages are free for the next, the last one first: more prompts have the beginning. */
static void end(tfu_engine *e, request *r, int32_t token, tfu_code code, const tfu_error *why) {
  for (int64_t i = r->n_pages; i > 0; i--) tfu_pages_leave(e->pages, r->pages[i - 1]);
  r->asked.tell(r->asked.user, token, 1, code, why);
  free_request(r);
}

void tfu_engine_free(tfu_engine *e) {
  tfu_error why;
  if (!e) return;
  if (e->started) {
    pthread_mutex_lock(&e->lock);
    e->ending = 1;
    pthread_cond_signal(&e->came);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
  }
  const tfu_code code = tfu_fail(&why, (tfu_code)TFU_CANCELLED, "the model was unloaded");
  while (e->n) end(e, e->running[--e->n], -1, code, &why);
  for (request *r = e->first, *next; r; r = next) {
    next = r->next;
    end(e, r, -1, code, &why);
  }
  pthread_mutex_destroy(&e->lock);
  pthread_cond_destroy(&e->came);
  tfu_pages_free(e->pages);
  free(e->running);
  free(e->ints);
  free(e->floats);
  free(e->table);
  free(e->tokens);
  free(e);
}

tfu_code tfu_engine_new(const tfu_steps *steps, int64_t pages, tfu_engine **engine, tfu_error *err) {
  tfu_engine *e = *engine = calloc(1, sizeof *e);
  if (!e) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  e->steps = *steps;
  e->last = e->ask = &e->first;
  pthread_mutex_init(&e->lock, NULL);
  pthread_cond_init(&e->came, NULL);
  e->most_rows = largest(steps->rows);
  e->row_pages = pages_of(e, steps->room);
  const size_t rows = (size_t)e->most_rows, chunk = (size_t)largest(steps->chunks);
  const size_t ints = rows * TFU_ROW_INTS > chunk * TFU_READ_INTS ? rows * TFU_ROW_INTS : chunk * TFU_READ_INTS;
  e->running = calloc(rows + 1, sizeof *e->running);
  e->ints = malloc((ints + 1) * sizeof *e->ints);
  e->floats = malloc((rows * TFU_ROW_FLOATS + 1) * sizeof *e->floats);
  e->table = malloc((rows * (size_t)e->row_pages + 1) * sizeof *e->table);
  e->tokens = malloc((rows * (size_t)largest(steps->times) + 1) * sizeof *e->tokens);
  tfu_code code = tfu_pages_new(pages, steps->page, &e->pages, err);
  if (code == TFU_OK && !(e->running && e->ints && e->floats && e->table && e->tokens))
    code = tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  if (code != TFU_OK) {
    tfu_engine_free(e);
    *engine = NULL;
  }
  return code;
}

void tfu_engine_bound(tfu_engine *e, int64_t waiting, int64_t nanoseconds) {
  e->most = waiting;
  e->limit = nanoseconds;
}

int64_t tfu_engine_available(const tfu_engine *e) { return tfu_pages_available(e->pages); }

/* ---- requests ---- */

static tfu_code check(const tfu_engine *e, const tfu_generation *g, tfu_error *err) {
  TFU_REQUIRE(err, g->prompt_length > 0 && g->new_tokens > 0,
              "a request needs a prompt of at least one token, and at least one new token; got %lld and %lld",
              (long long)g->prompt_length, (long long)g->new_tokens);
  TFU_REQUIRE(err, g->prompt_length <= e->steps.room && g->new_tokens <= e->steps.room - g->prompt_length,
              "a prompt of %lld tokens and %lld new ones are more than the %lld that a request may have",
              (long long)g->prompt_length, (long long)g->new_tokens, (long long)e->steps.room);
  const int64_t all = g->prompt_length + g->new_tokens, pages = tfu_pages_count(e->pages);
  TFU_REQUIRE(err, pages_of(e, all) <= pages, "%lld tokens take %lld pages of %lld, and there are %lld", (long long)all,
              (long long)pages_of(e, all), (long long)e->steps.page, (long long)pages);
  for (int64_t i = 0; i < g->prompt_length; i++)
    TFU_REQUIRE(err, g->prompt[i] >= 0 && g->prompt[i] < e->steps.words, "ids are from 0 to %lld, got %d",
                (long long)e->steps.words - 1, g->prompt[i]);
  TFU_REQUIRE(err, g->temperature >= 0 && g->top_k >= 0 && g->top_p >= 0,
              "temperature, top_k and top_p must not be negative, got %g, %lld and %g", (double)g->temperature,
              (long long)g->top_k, (double)g->top_p);
  TFU_REQUIRE(err, g->n_stops <= TFU_MOST_STOPS, "a request has at most %d stop tokens, got %lld", TFU_MOST_STOPS,
              (long long)g->n_stops);
  return TFU_OK;
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Has it wait, unless too many do. */
static int append(tfu_engine *e, request *r) {
  pthread_mutex_lock(&e->lock);
  const int room = !e->most || e->waiting < e->most;
  if (room) {
    r->since = now(); /* in the lock: so the first has come first */
    *e->last = r;
    e->last = &r->next;
    e->waiting++;
    pthread_cond_signal(&e->came);
  }
  pthread_mutex_unlock(&e->lock);
  return room;
}

tfu_code tfu_engine_add(tfu_engine *e, const tfu_generation *g, tfu_error *err) {
  TFU_TRY(check(e, g, err));
  request *r = calloc(1, sizeof *r);
  if (!r) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  *r = (request){.asked = *g, .current = g->prompt[g->prompt_length - 1]};
  const size_t prompt = (size_t)g->prompt_length * sizeof *r->words, stops = (size_t)g->n_stops * sizeof *r->words;
  r->words = malloc(prompt + stops);
  r->pages = malloc((size_t)pages_of(e, g->prompt_length + g->new_tokens) * sizeof *r->pages);
  if (!r->words || !r->pages) {
    free_request(r);
    return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  }
  memcpy(r->words, g->prompt, prompt);
  if (stops) memcpy(r->words + g->prompt_length, g->stops, stops);
  r->asked.prompt = r->words;
  r->asked.stops = r->words + g->prompt_length;
  if (append(e, r)) return TFU_OK;
  free_request(r);
  return tfu_fail(err, TFU_EXHAUSTED, "%lld requests wait, and no more may: try again later", (long long)e->most);
}

/* Takes a request out of those that wait. */
static request *take_out(tfu_engine *e, request **at) {
  request *r = *at;
  *at = r->next;
  if (e->last == &r->next) e->last = at;
  if (e->ask == &r->next) e->ask = at;
  r->next = NULL;
  e->waiting--;
  return r;
}

static int is_gone(const request *r) { return r->asked.is_gone && r->asked.is_gone(r->asked.user); }

static void end_gone(tfu_engine *e, request *r) {
  tfu_error why;
  const tfu_code code = tfu_fail(&why, (tfu_code)TFU_CANCELLED, "the request was cancelled");
  end(e, r, -1, code, &why);
}

static void end_late(tfu_engine *e, request *r) {
  tfu_error why;
  const tfu_code code = tfu_fail(&why, TFU_EXHAUSTED,
                                 "the request has waited %.3g s, which is as long as one may: try "
                                 "again later",
                                 (double)e->limit / 1e9);
  end(e, r, -1, code, &why);
}

/* Ends those of a list, outside of the lock. */
static void end_all(tfu_engine *e, request *list, void (*end_one)(tfu_engine *e, request *r)) {
  while (list) {
    request *r = list;
    list = r->next;
    end_one(e, r);
  }
}

static void put(request *r, request ***end) {
  **end = r;
  *end = &r->next;
}

/* Of those that wait, the ones that have waited too long, and that nobody wants any more of the next few. */
static void drop_waiting(tfu_engine *e) {
  request *gone = NULL, **gone_end = &gone, *late = NULL, **late_end = &late;
  pthread_mutex_lock(&e->lock);
  const int64_t oldest = e->limit && e->first ? now() - e->limit : INT64_MIN;
  while (e->first && e->first->since < oldest) put(take_out(e, &e->first), &late_end);
  for (int64_t i = e->waiting < ASKED ? e->waiting : ASKED; i > 0; i--) {
    if (!*e->ask) e->ask = &e->first;
    if (is_gone(*e->ask)) put(take_out(e, e->ask), &gone_end);
    else e->ask = &(*e->ask)->next;
  }
  pthread_mutex_unlock(&e->lock);
  end_all(e, late, end_late);
  end_all(e, gone, end_gone);
}

static void drop_gone(tfu_engine *e) {
  int kept = 0;
  for (int i = 0; i < e->n; i++) {
    request *r = e->running[i];
    if (is_gone(r)) end_gone(e, r);
    else e->running[kept++] = r;
  }
  e->n = kept;
}

/* ---- prompts ---- */

static int reads(const request *r) { return r->ready < r->asked.prompt_length - 1; }

/* Gives a request its pages, if there are enough: those that have the beginning of its prompt, and others. */
static int admit(tfu_engine *e, request *r) {
  const int64_t size = e->steps.page, all = pages_of(e, r->asked.prompt_length + r->asked.new_tokens);
  int64_t shared = 0, unused = 0, page = TFU_NO_PAGE;
  while ((shared + 1) * size < r->asked.prompt_length &&
         (page = tfu_pages_find(e->pages, page, r->words + shared * size)) != TFU_NO_PAGE) {
    unused += tfu_pages_is_unused(e->pages, page);
    r->pages[shared++] = page;
  }
  if (all - shared > tfu_pages_available(e->pages) - unused) return 0;
  for (int64_t i = 0; i < shared; i++) tfu_pages_use(e->pages, r->pages[i]);
  for (int64_t i = shared; i < all; i++) r->pages[i] = tfu_pages_take(e->pages);
  r->n_pages = all;
  r->ready = shared * size;
  r->named = shared;
  return 1;
}

static void join(tfu_engine *e) {
  request *gone = NULL, **gone_end = &gone;
  pthread_mutex_lock(&e->lock);
  while (e->first && e->n < e->most_rows) {
    if (is_gone(e->first)) put(take_out(e, &e->first), &gone_end);
    else if (admit(e, e->first)) e->running[e->n++] = take_out(e, &e->first);
    else break;
  }
  pthread_mutex_unlock(&e->lock);
  end_all(e, gone, end_gone);
}

static void put_pages(const tfu_engine *e, const request *r, int64_t *table) {
  memset(table, 0, (size_t)e->row_pages * sizeof *table);
  memcpy(table, r->pages, (size_t)r->n_pages * sizeof *table);
}

static int64_t place_of(const tfu_engine *e, const request *r, int64_t position) {
  return r->pages[position / e->steps.page] * e->steps.page + position % e->steps.page;
}

/* Pages that are full now can be found. Where another has the same words, that one is used from now on, and ours is
 * free: so a page with a name is only ever found after one that its users have, too. */
static void name_pages(tfu_engine *e, request *r) {
  for (; (r->named + 1) * e->steps.page <= r->ready; r->named++) {
    const int32_t *words = r->words + r->named * e->steps.page;
    const int64_t own = r->pages[r->named], before = r->named ? r->pages[r->named - 1] : TFU_NO_PAGE;
    const int64_t page = tfu_pages_find(e->pages, before, words);
    if (page == TFU_NO_PAGE) {
      tfu_pages_name(e->pages, own, before, words);
    } else {
      r->pages[r->named] = page;
      tfu_pages_use(e->pages, page);
      tfu_pages_leave(e->pages, own);
    }
  }
}

/* Reads some words of a prompt, which end where the chunk does. */
static tfu_code read_chunk(tfu_engine *e, request *r, int *chunk, tfu_error *err) {
  const int64_t left = r->asked.prompt_length - 1 - r->ready;
  const int n = *chunk = at_least(e->steps.chunks, left);
  const int64_t words = left < n ? left : n, empty = n - words;
  for (int64_t i = 0; i < n; i++) {
    const int64_t at = r->ready + i - empty;
    e->ints[TFU_WORDS * n + i] = i < empty ? 0 : r->words[at];
    e->ints[TFU_WORD_PLACES * n + i] = i < empty ? -1 : place_of(e, r, at);
    e->ints[TFU_WORD_POSITIONS * n + i] = i < empty ? 0 : at;
  }
  put_pages(e, r, e->table);
  TFU_TRY(e->steps.read(e->steps.of, n, e->ints, e->table, r->ready + words, err));
  r->ready += words;
  name_pages(e, r);
  return TFU_OK;
}

/* Some chunks before a step: the more, the more requests read, against those that wait for the step. */
static void read_some(tfu_engine *e) {
  tfu_error why;
  int reading = 0, kept = 0;
  for (int i = 0; i < e->n; i++) reading += reads(e->running[i]);
  const int others = e->n - reading > 0 ? e->n - reading : 1, share = CHUNKS * reading / others;
  int64_t left = (int64_t)largest(e->steps.chunks) * (share < 1 ? 1 : share > CHUNKS ? CHUNKS : share);
  for (int i = 0; i < e->n; i++) {
    request *r = e->running[i];
    tfu_code code = TFU_OK;
    for (int n; left > 0 && code == TFU_OK && reads(r); left -= n) code = read_chunk(e, r, &n, &why);
    if (code == TFU_OK) e->running[kept++] = r;
    else end(e, r, -1, code, &why);
  }
  e->n = kept;
}

/* ---- steps ---- */

/* Where a sequence is; rows without one are done. */
static void put_row(tfu_engine *e, int row, int rows, const request *r) {
  const int64_t length = r ? r->asked.prompt_length + r->made : 0;
  const int64_t ints[TFU_ROW_INTS] = {[TFU_LENGTHS] = length,
                                      [TFU_LIMITS] = r ? r->asked.prompt_length + r->asked.new_tokens : 0,
                                      [TFU_DONE] = !r,
                                      [TFU_SEEDS] = r ? r->asked.seed : 0,
                                      [TFU_TOP_K] = r ? r->asked.top_k : 0,
                                      [TFU_CURRENT] = r ? r->current : 0,
                                      [TFU_PLACES] = r ? place_of(e, r, length - 1) : -1,
                                      [TFU_POSITIONS] = r ? length - 1 : 0};
  for (int i = 0; i < TFU_ROW_INTS; i++) e->ints[i * rows + row] = ints[i];
  e->floats[TFU_TEMPERATURE * rows + row] = r ? r->asked.temperature : 0;
  e->floats[TFU_TOP_P * rows + row] = r ? r->asked.top_p : 1;
  if (r) put_pages(e, r, e->table + row * e->row_pages);
  else memset(e->table + row * e->row_pages, 0, (size_t)e->row_pages * sizeof *e->table);
}

static int is_stop(const request *r, int32_t token) {
  for (int64_t i = 0; i < r->asked.n_stops; i++)
    if (r->asked.stops[i] == token) return 1;
  return 0;
}

/* Tells a request its tokens, of which a row ends with the last; whether that was its end. */
static int tell(tfu_engine *e, request *r, const int64_t *tokens, int times) {
  const int64_t left = r->asked.new_tokens - r->made, n = left < times ? left : times;
  for (int64_t i = times - n; i < times; i++) {
    r->current = (int32_t)tokens[i];
    r->made++;
    if (r->made == r->asked.new_tokens || is_stop(r, r->current)) {
      end(e, r, r->current, TFU_OK, NULL);
      return 1;
    }
    r->asked.tell(r->asked.user, r->current, 0, TFU_OK, NULL);
  }
  return 0;
}

static void decode(tfu_engine *e) {
  tfu_error why;
  int n = 0, kept = 0;
  int64_t left = 0;
  for (int i = 0; i < e->n; i++) { /* those that have read their prompts come first */
    request *r = e->running[i];
    if (reads(r)) continue;
    e->running[i] = e->running[n];
    e->running[n++] = r;
    if (r->asked.new_tokens - r->made > left) left = r->asked.new_tokens - r->made;
  }
  if (!n) return;
  const int rows = at_least(e->steps.rows, n);
  int times = 1;
  for (int i = 0; n == e->n && i < TFU_MOST_SIZES && e->steps.times[i]; i++)
    if (e->steps.times[i] <= left) times = e->steps.times[i];
  for (int i = 0; i < rows; i++) put_row(e, i, rows, i < n ? e->running[i] : NULL);
  const tfu_code code = e->steps.decode(e->steps.of, rows, times, e->ints, e->floats, e->table, e->tokens, &why);
  for (int i = 0; i < e->n; i++) {
    request *r = e->running[i];
    if (i < n && code != TFU_OK) end(e, r, -1, code, &why);
    else if (i >= n || !tell(e, r, e->tokens + i * times, times)) e->running[kept++] = r;
  }
  e->n = kept;
}

tfu_code tfu_engine_warm_up(tfu_engine *e, tfu_error *err) {
  const tfu_steps *s = &e->steps;
  for (int i = 0; i < TFU_MOST_SIZES && s->chunks[i]; i++) {
    const int n = s->chunks[i];
    memset(e->ints, 0, (size_t)n * TFU_READ_INTS * sizeof *e->ints);
    for (int k = 0; k < n; k++) e->ints[TFU_WORD_PLACES * n + k] = -1;
    memset(e->table, 0, (size_t)e->row_pages * sizeof *e->table);
    TFU_TRY(s->read(s->of, n, e->ints, e->table, 1, err));
  }
  for (int i = 0; i < TFU_MOST_SIZES && s->rows[i]; i++)
    for (int k = 0; k < TFU_MOST_SIZES && s->times[k]; k++) {
      for (int row = 0; row < s->rows[i]; row++) put_row(e, row, s->rows[i], NULL);
      TFU_TRY(s->decode(s->of, s->rows[i], s->times[k], e->ints, e->floats, e->table, e->tokens, err));
    }
  return TFU_OK;
}

int tfu_engine_step(tfu_engine *e) {
  drop_gone(e);
  drop_waiting(e);
  join(e);
  read_some(e);
  decode(e);
  pthread_mutex_lock(&e->lock);
  const int more = e->n || e->first;
  pthread_mutex_unlock(&e->lock);
  return more;
}

/* ---- the thread ---- */

static void *make_steps(void *engine) {
  tfu_engine *e = engine;
  for (int more = 0;;) {
    pthread_mutex_lock(&e->lock);
    while (!more && !e->first && !e->ending) pthread_cond_wait(&e->came, &e->lock);
    const int ending = e->ending;
    pthread_mutex_unlock(&e->lock);
    if (ending) return NULL;
    more = tfu_engine_step(e);
  }
}

tfu_code tfu_engine_start(tfu_engine *e, tfu_error *err) {
  e->started = !pthread_create(&e->thread, NULL, make_steps, e);
  return e->started ? TFU_OK : tfu_fail(err, TFU_EXHAUSTED, "no thread can be started");
}
