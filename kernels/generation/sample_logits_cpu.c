/* sample_logits on the CPU: a row is a task. */
#include <math.h>

#include "kernels/core/cpu/parallel.h"
#include "kernels/core/cpu/rows_cpu.h"
#include "kernels/generation/draw.h"

typedef struct word {
  float x;
  uint32_t i;
} word;

typedef struct job {
  tfu_call *call;
  int64_t words;
  word *words_of; /* each row's, and room for one more */
} job;

/* n logits from `at` on, as float. */
static const float *tile(const tfu_tensor *logits, int64_t at, int n, float *room) {
  if (logits->dtype != TFU_F64) return tfu_load_f32(logits->data, logits->dtype, at, n, room);
  for (int i = 0; i < n; i++) room[i] = (float)((const double *)logits->data)[at + i];
  return room;
}

/* The place of a word among all: the more likely is larger, and of equal ones the first. No two have the same. */
static uint64_t rank(word w) { return (uint64_t)sample_key(w.x) << 32 | (uint32_t)~w.i; }

static void swap(word *a, word *b) {
  const word was = *a;
  *a = *b;
  *b = was;
}

/* What a word adds to the sum that is wanted: its probability, or without a temperature 1. */
static uint64_t mass(word w, float most, float temperature) {
  return temperature > 0 ? sample_mass(w.x, most, temperature) : 1;
}

/* Moves the likeliest words to the front, until their sum is more than `enough`; returns how many these are. They are
 * in no order: a pivot parts those that are left (quickselect), and the sum tells on which side the last one is. */
static int64_t keep_until(word *w, int64_t n, double enough, float most, float temperature) {
  int64_t low = 0, high = n; /* those before low are kept, and those from high on are not */
  uint64_t before = 0, any = 1;
  while (low < high) {
    uint64_t sum = 0;
    any = any * 6364136223846793005u + 1442695040888963407u; /* no order of words makes all pivots bad */
    swap(&w[low + (int64_t)((any >> 33) % (uint64_t)(high - low))], &w[high - 1]);
    const uint64_t pivot = rank(w[high - 1]);
    int64_t at = low;
    for (int64_t i = low; i < high - 1; i++)
      if (rank(w[i]) > pivot) sum += mass(w[i], most, temperature), swap(&w[at++], &w[i]);
    swap(&w[at], &w[high - 1]);
    if ((double)(before + sum) > enough) {
      high = at;
      continue;
    }
    before += sum + mass(w[at], most, temperature);
    low = at + 1;
    if ((double)before > enough) break;
  }
  return low;
}

/* Moves the words that are drawn from to the front, and returns how many these are. */
static int64_t keep(word *w, int64_t n, float most, float temperature, int64_t top_k, float top_p) {
  uint64_t all = 0;
  for (int64_t i = 0; i < n && top_p < 1; i++) all += sample_mass(w[i].x, most, temperature);
  if (top_k > 0 && top_k < n) n = keep_until(w, n, (double)(top_k - 1), most, 0);
  return top_p < 1 ? keep_until(w, n, (double)(top_p > 0 ? top_p : 0) * (double)all, most, temperature) : n;
}

/* The likeliest word of a row, of equal ones the first; 0 where none is a number. */
static int64_t likeliest(const tfu_tensor *logits, int64_t row, int64_t words) {
  float best = -INFINITY;
  int64_t id = 0;
  for (TFU_EACH_TILE(at, count, 0, words)) {
    float room[TFU_TILE];
    const float *x = tile(logits, row * words + at, (int)count, room);
    const float most = tfu_greatest_f32(x, (int)count);
    if (most <= best) continue; /* not where one is NaN */
    for (int64_t i = 0; i < count; i++)
      if (x[i] > best) best = x[i], id = at + i;
  }
  return id;
}

/* Those words of a row that are numbers; returns how many. */
static int64_t read_row(const tfu_tensor *logits, int64_t row, int64_t words, word *w) {
  int64_t n = 0;
  for (TFU_EACH_TILE(at, count, 0, words)) {
    float room[TFU_TILE];
    const float *x = tile(logits, row * words + at, (int)count, room);
    for (int64_t i = 0; i < count; i++) {
      w[n] = (word){.x = x[i], .i = (uint32_t)(at + i)};
      n += w[n].x == w[n].x;
    }
  }
  return n;
}

static void draw(void *arg, int64_t row) {
  const job *j = arg;
  const tfu_tensor *in = j->call->in;
  const float temperature = ((const float *)in[1].data)[row], top_p = ((const float *)in[3].data)[row];
  const int64_t top_k = ((const int64_t *)in[2].data)[row];
  const uint64_t seed = (uint64_t)((const int64_t *)in[4].data)[row],
                 step = (uint64_t)((const int64_t *)in[5].data)[row];
  word *w = j->words_of + row * (j->words + 1);
  int64_t *id = (int64_t *)j->call->out[0].data + row;
  *id = likeliest(&in[0], row, j->words);
  if (!(temperature > 0) || !j->words) return;
  float room;
  const float most = *tile(&in[0], row * j->words + *id, 1, &room);
  const int64_t n = keep(w, read_row(&in[0], row, j->words, w), most, temperature, top_k, top_p);
  float best = -INFINITY;
  for (int64_t i = 0; i < n; i++) {
    const float score = sample_score(w[i].x, most, temperature, seed, step, w[i].i);
    if (score > best || (score == best && w[i].i < *id)) best = score, *id = w[i].i;
  }
}

tfu_code tfu_sample_logits_cpu(tfu_call *call) {
  const int64_t rows = call->in[0].shape.dim[0];
  job j = {.call = call, .words = call->in[0].shape.dim[1]};
  void *memory;
  TFU_TRY(tfu_scratch(call, (size_t)(rows * (j.words + 1)) * sizeof *j.words_of, &memory));
  j.words_of = memory;
  tfu_parallel(rows, draw, &j);
  return TFU_OK;
}
