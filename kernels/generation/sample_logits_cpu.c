/* sample_logits on the CPU: a row is a task. */
#include <math.h>
#include <stdlib.h>

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
  word *words_of; /* each row's */
} job;

static float logit(const tfu_tensor *t, int64_t at) {
  float room;
  return t->dtype == TFU_F64 ? (float)((const double *)t->data)[at] : *tfu_load_f32(t->data, t->dtype, at, 1, &room);
}

/* The more likely first; of equal ones the first. */
static int by_likelihood(const void *a, const void *b) {
  const word *p = a, *q = b;
  const uint32_t x = sample_key(p->x), y = sample_key(q->x);
  return x != y ? (x < y) - (x > y) : (p->i > q->i) - (p->i < q->i);
}

/* How many of the sorted words are kept. */
static int64_t kept(const word *w, int64_t n, float temperature, int64_t top_k, float top_p) {
  uint64_t all = 0, sum = 0;
  for (int64_t i = 0; i < n; i++) all += sample_mass(w[i].x, w->x, temperature);
  int64_t k = top_k > 0 && top_k < n ? top_k : n;
  if (!(top_p < 1)) return k;
  const double most = (double)(top_p > 0 ? top_p : 0) * (double)all;
  for (int64_t i = 0; i < k; i++)
    if ((double)(sum += sample_mass(w[i].x, w->x, temperature)) > most) return i + 1;
  return k;
}

static void draw(void *arg, int64_t row) {
  const job *j = arg;
  const tfu_tensor *in = j->call->in;
  const float temperature = ((const float *)in[1].data)[row], top_p = ((const float *)in[3].data)[row];
  const int64_t top_k = ((const int64_t *)in[2].data)[row];
  const uint64_t seed = (uint64_t)((const int64_t *)in[4].data)[row],
                 step = (uint64_t)((const int64_t *)in[5].data)[row];
  word *w = j->words_of + row * j->words, most = {.x = -INFINITY};
  int64_t n = 0;
  for (int64_t i = 0; i < j->words; i++) {
    const float x = logit(&in[0], row * j->words + i);
    if (x == x) w[n++] = (word){.x = x, .i = (uint32_t)i};
    if (x > most.x) most = w[n - 1];
  }
  int64_t *id = (int64_t *)j->call->out[0].data + row;
  *id = most.i;
  if (!n || !(temperature > 0)) return;
  if ((top_k > 0 && top_k < n) || top_p < 1) {
    qsort(w, (size_t)n, sizeof *w, by_likelihood);
    n = kept(w, n, temperature, top_k, top_p);
  }
  float best = -INFINITY;
  for (int64_t i = 0; i < n; i++) {
    const float score = sample_score(w[i].x, most.x, temperature, seed, step, w[i].i);
    if (score > best || (score == best && w[i].i < *id)) best = score, *id = w[i].i;
  }
}

tfu_code tfu_sample_logits_cpu(tfu_call *call) {
  const int64_t rows = call->in[0].shape.dim[0];
  job j = {.call = call, .words = call->in[0].shape.dim[1]};
  void *memory;
  TFU_TRY(tfu_scratch(call, (size_t)(rows * j.words) * sizeof *j.words_of, &memory));
  j.words_of = memory;
  tfu_parallel(rows, draw, &j);
  return TFU_OK;
}
