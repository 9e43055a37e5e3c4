/* transpose on the CPU. Where the last axis stays, rows are copied whole. Else tiles of the two last axes, x's and y's,
 * go through a buffer in the first-level cache: it is filled along x's and emptied along y's, so that every line of
 * memory is touched once. Bits are moved by the size of elements, whatever they mean. */
#include "kernels/layout/transpose.h"

#include <string.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/parallel.h"

enum { SIDE = 64 }; /* of a tile: its rows are 64 bytes or more */

typedef struct job {
  const char *x;
  char *y;
  size_t size;
  tfu_permutation permutation;
  int a, b;             /* the axes of tiles: of y's, the one that is x's last, and the last */
  int64_t across, down; /* tiles along b, and along a                                        */
} job;

/* Where in x and y matrix or row number i of the axes beside `a` and `b` begins, in elements. */
static void place(const tfu_permutation *t, int a, int b, int64_t i, int64_t *from, int64_t *to) {
  *from = *to = 0;
  for (int axis = t->axes; axis-- > 0;) {
    if (axis == a || axis == b) continue;
    *from += i % t->size[axis] * t->from[axis];
    *to += i % t->size[axis] * t->to[axis];
    i /= t->size[axis];
  }
}

static void copy_rows(void *arg, int64_t begin, int64_t end) {
  const job *j = arg;
  const tfu_permutation *t = &j->permutation;
  const size_t bytes = (size_t)t->size[t->axes - 1] * j->size;
  for (int64_t row = begin; row < end; row++) {
    int64_t from, to;
    place(t, j->b, j->b, row, &from, &to);
    memcpy(j->y + to * (int64_t)j->size, j->x + from * (int64_t)j->size, bytes);
  }
}

/* tile[a][b] = x[b][a]. Blocks of N by N, of whole vectors, are transposed in registers: a step puts the elements of
 * row i and of row i + N / 2 alternately into rows 2 i and 2 i + 1, and as many steps as N has bits transpose the
 * block. What is left at the edges moves element by element. */
#define FILL(type, N)                                                                            \
  static void fill_##type(type *tile, const type *x, int64_t far, int na, int nb) {              \
    typedef type vector __attribute__((vector_size(16)));                                        \
    vector low, high;                                                                            \
    for (int i = 0; i < N; i++) {                                                                \
      low[i] = (type)(i / 2 + i % 2 * N);                                                        \
      high[i] = (type)(low[i] + N / 2);                                                          \
    }                                                                                            \
    const int whole_a = na / N * N, whole_b = nb / N * N;                                        \
    for (int b = 0; b < whole_b; b += N)                                                         \
      for (int a = 0; a < whole_a; a += N) {                                                     \
        vector rows[N], transposed[N];                                                           \
        for (int i = 0; i < N; i++) memcpy(&rows[i], x + (b + i) * far + a, sizeof rows[i]);     \
        for (int step = N; step > 1; step /= 2) {                                                \
          for (int i = 0; i < N / 2; i++) {                                                      \
            transposed[2 * i] = __builtin_shuffle(rows[i], rows[i + N / 2], low);                \
            transposed[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + N / 2], high);           \
          }                                                                                      \
          memcpy(rows, transposed, sizeof rows);                                                 \
        }                                                                                        \
        for (int i = 0; i < N; i++) memcpy(tile + (a + i) * SIDE + b, &rows[i], sizeof rows[i]); \
      }                                                                                          \
    for (int b = 0; b < nb; b++)                                                                 \
      for (int a = b < whole_b ? whole_a : 0; a < na; a++) tile[a * SIDE + b] = x[b * far + a];  \
  }
FILL(uint8_t, 16)
FILL(uint16_t, 8)
FILL(uint32_t, 4)
FILL(uint64_t, 2)

static void fill(void *tile, const void *x, size_t size, int64_t far, int na, int nb) {
  if (size == 1) fill_uint8_t(tile, x, far, na, nb);
  else if (size == 2) fill_uint16_t(tile, x, far, na, nb);
  else if (size == 4) fill_uint32_t(tile, x, far, na, nb);
  else fill_uint64_t(tile, x, far, na, nb);
}

static void permute_tiles(void *arg, int64_t begin, int64_t end) {
  const job *j = arg;
  const tfu_permutation *t = &j->permutation;
  const int64_t size = (int64_t)j->size, far = t->from[j->b], apart = t->to[j->a];
  for (int64_t i = begin; i < end; i++) {
    const int64_t a = i % j->down * SIDE, b = i / j->down % j->across * SIDE;
    const int na = t->size[j->a] - a < SIDE ? (int)(t->size[j->a] - a) : SIDE;
    const int nb = t->size[j->b] - b < SIDE ? (int)(t->size[j->b] - b) : SIDE;
    uint64_t tile[SIDE * SIDE];
    int64_t from, to;
    place(t, j->a, j->b, i / j->down / j->across, &from, &to);
    fill(tile, j->x + (from + b * far + a) * size, j->size, far, na, nb);
    char *y = j->y + (to + a * apart + b) * size;
    for (int k = 0; k < na; k++, y += apart * size) memcpy(y, (char *)tile + k * SIDE * size, (size_t)(nb * size));
  }
}

tfu_code tfu_transpose_cpu(tfu_call *call) {
  job j = {.x = call->in[0].data,
           .y = call->out[0].data,
           .size = tfu_dtype_size(call->in[0].dtype),
           .permutation = tfu_permutation_of(call)};
  tfu_permutation *t = &j.permutation;
  int64_t n = tfu_count(&call->in[0].shape);
  j.b = t->axes - 1;
  while (t->from[j.a] != 1) j.a++;
  if (j.a == j.b) {
    if (t->axes == 1) { /* all of it is one row: cut it, so that threads have something to share */
      enum { PIECE = 1 << 16 };
      const int64_t whole = n / PIECE * PIECE, done = whole * (int64_t)j.size;
      memcpy(j.y + done, j.x + done, (size_t)(n - whole) * j.size);
      if (!whole) return TFU_OK;
      *t = (tfu_permutation){.axes = 2, .size = {n / PIECE, PIECE}, .from = {PIECE, 1}, .to = {PIECE, 1}};
      j.b = 1;
      n = whole;
    }
    const int64_t row = t->size[j.b];
    tfu_parallel_ranges(n / row, divide_up(tfu_task_size(n, 512), row), copy_rows, &j);
    return TFU_OK;
  }
  j.across = divide_up(t->size[j.b], SIDE);
  j.down = divide_up(t->size[j.a], SIDE);
  const int64_t all = n / t->size[j.a] / t->size[j.b] * j.across * j.down, each = n / all > 0 ? n / all : 1;
  tfu_parallel_ranges(all, divide_up(tfu_task_size(n, 512), each), permute_tiles, &j);
  return TFU_OK;
}
