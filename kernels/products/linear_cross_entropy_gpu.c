/* linear_cross_entropy on the GPU: for each chunk of rows, cuBLASLt makes the logits, the kernels of cross_entropy find
 * the losses and turn the logits into dlogits in place, and two more products make dx and dkernel of these.
 *
 * Memory, at 16384 rows of 768 inputs and 50304 classes in bfloat16, where all logits would be 1648 MB: a chunk has
 * 129 MB. dkernel grows from chunk to chunk, and must in float32: rounded to 16 bits at every step it would lose
 * digits. That is twice its own size; half of its rows can grow in the output itself, before that gets its values, the
 * others in 77 MB of scratch. */
#include "kernels/products/linear_cross_entropy.h"

#include "activations.h"
#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/channels.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/core/recycle.h"
#include "kernels/elementwise/scale_bias_act.h"
#include "kernels/products/gemm_gpu.h"
#include "kernels/rows/cross_entropy.h"
#include "ops/products/linear_cross_entropy.h"

TFU_MODULE(linear_cross_entropy);
static tfu_kernel total_kernel = {.module = &module, .name = "linear_cross_entropy_total"};
static tfu_kernel narrow_kernel = {.module = &module, .name = "linear_cross_entropy_narrow"};

/* Rows of a chunk: an eighth of all, less the scratch for dkernel, counted in rows. Fewer than LEAST would have the GPU
 * wait for memory, since every chunk reads the kernel twice and dkernel once, and writes it; more than MOST gain
 * nothing. A multiple of STEP keeps chunks on one alignment, and so on one choice of algorithm. */
enum { LEAST = 1024, MOST = 4096, STEP = 128, SHARE = 8 };

/* Rows of dkernel that grow in one place. */
typedef struct part {
  int64_t first, rows;
  void *sums;
} part;

typedef struct job {
  tfu_call *call;
  tfu_recycled space;
  tfu_dtype dtype, real;
  size_t size; /* of an element */
  int64_t rows, inputs, classes, step;
  int transposed, wide, wanted; /* wide: dkernel grows in float32, and is of 16 bits */
  tfu_tensor x, kernel, bias, labels, weights;
  tfu_tensor dx, dkernel, dbias; /* without elements: not wanted */
  void *logits, *stats, *loss;
  void *dbias_sums; /* [chunks][classes] */
  part part[2];
} job;

static int has(const tfu_tensor *t) { return tfu_count(&t->shape) > 0; }
static void *row_of(const tfu_tensor *t, int64_t row, int64_t cols) {
  return (char *)t->data + (size_t)(row * cols) * tfu_dtype_size(t->dtype);
}

static job read_call(tfu_call *call, const tfu_tensor *gradients) {
  const tfu_tensor *in = call->in;
  job j = {.call = call,
           .dtype = in[TFU_LCE_X].dtype,
           .real = tfu_real(in[TFU_LCE_X].dtype),
           .size = tfu_dtype_size(in[TFU_LCE_X].dtype),
           .rows = tfu_rows(&in[TFU_LCE_X].shape),
           .inputs = tfu_cols(&in[TFU_LCE_X].shape),
           .transposed = call->attr[TFU_LCE_TRANSPOSED].b,
           .x = in[TFU_LCE_X],
           .kernel = in[TFU_LCE_KERNEL],
           .bias = in[TFU_LCE_BIAS],
           .labels = in[TFU_LCE_LABELS],
           .weights = in[TFU_LCE_WEIGHTS],
           .dx = gradients[TFU_LCE_DX],
           .dkernel = gradients[TFU_LCE_DKERNEL],
           .dbias = gradients[TFU_LCE_DBIAS]};
  j.classes = j.kernel.shape.dim[j.transposed ? 0 : 1];
  j.wanted = has(&j.dx) || has(&j.dkernel) || has(&j.dbias);
  j.wide = j.real != j.dtype && has(&j.dkernel);
  return j;
}

/* ---- memory ---- */

/* Half of the rows in the output, as far as they keep the other half aligned. */
static tfu_code place_sums(job *j) {
  const int64_t rows = j->dkernel.shape.dim[0], cols = j->dkernel.shape.dim[1], here = j->wide ? rows / 16 * 8 : rows;
  if (!has(&j->dkernel)) return TFU_OK;
  j->part[0] = (part){.rows = here, .sums = j->dkernel.data};
  j->part[1] = (part){.first = here, .rows = rows - here};
  return tfu_scratch(j->call, (size_t)(j->part[1].rows * cols) * sizeof(float), &j->part[1].sums);
}

static tfu_code take_memory(job *j) {
  const size_t real = tfu_dtype_size(j->real);
  TFU_TRY(place_sums(j));
  const int64_t held = j->part[1].rows ? divide_up(j->part[1].rows * tfu_cols(&j->dkernel.shape) * 2, j->classes) : 0;
  int64_t most = j->rows / SHARE - held;
  most = most < LEAST ? LEAST : least(most, MOST);
  const int64_t chunks = divide_up(j->rows, most / STEP * STEP);
  j->step = divide_up(divide_up(j->rows, chunks), STEP) * STEP;
  const int64_t rows = least(j->step, j->rows);
  TFU_TRY(tfu_scratch(j->call, (size_t)(rows * j->classes) * j->size, &j->logits));
  TFU_TRY(tfu_scratch(j->call, (size_t)rows * 2 * real, &j->stats));
  if (!j->loss) TFU_TRY(tfu_scratch(j->call, (size_t)j->rows * real, &j->loss));
  return has(&j->dbias) ? tfu_scratch(j->call, (size_t)(chunks * j->classes) * real, &j->dbias_sums) : TFU_OK;
}

/* ---- products ---- */

static tfu_code run_product(job *j, const tfu_gemm_gpu *g) {
  int served;
  TFU_TRY(tfu_gemm_gpu_run(tfu_recycle(&j->space), g, &served));
  if (served) return TFU_OK;
  return tfu_fail(j->call->err, TFU_UNIMPLEMENTED, "cuBLASLt has no product of [%lld, %lld] and [%lld, %lld] in %s",
                  (long long)g->m, (long long)g->k, (long long)g->k, (long long)g->n, tfu_dtype_name(g->dtype));
}

static tfu_code make_logits(job *j, int64_t first, int64_t n) {
  tfu_gemm_gpu g = {.a = row_of(&j->x, first, j->inputs),
                    .b = j->kernel.data,
                    .d = j->logits,
                    .m = n,
                    .n = j->classes,
                    .k = j->inputs,
                    .b_transposed = j->transposed,
                    .dtype = j->dtype,
                    .tf32 = j->call->attr[TFU_LCE_TF32].b,
                    .bias = has(&j->bias) ? j->bias.data : NULL};
  int served = 0;
  if (g.k > 0 && g.bias) TFU_TRY(tfu_gemm_gpu_run(tfu_recycle(&j->space), &g, &served));
  if (served) return TFU_OK;
  const void *bias = g.bias;
  g.bias = NULL;
  if (g.k == 0) TFU_TRY(tfu_clear(j->call, j->logits, (size_t)(n * j->classes) * j->size)); /* an empty sum */
  else TFU_TRY(run_product(j, &g));
  if (!bias) return TFU_OK;
  return tfu_bias_act_launch(tfu_recycle(&j->space), TFU_ACT_linear, j->dtype, n * j->classes, j->classes, j->logits,
                             j->logits, bias);
}

static tfu_code make_dx(job *j, int64_t first, int64_t n) {
  const tfu_gemm_gpu g = {.a = j->logits,
                          .b = j->kernel.data,
                          .d = row_of(&j->dx, first, j->inputs),
                          .m = n,
                          .n = j->inputs,
                          .k = j->classes,
                          .b_transposed = !j->transposed,
                          .dtype = j->dtype,
                          .tf32 = j->call->attr[TFU_LCE_TF32].b};
  return run_product(j, &g);
}

/* Rows of dkernel, from n rows of x and of dlogits: x^T . dlogits, or the other way round. */
static tfu_gemm_gpu product_for_part(const job *j, const part *p, int64_t first, int64_t n) {
  const void *x = row_of(&j->x, first, j->inputs);
  const char *a = j->transposed ? j->logits : x;
  return (tfu_gemm_gpu){.a = a + (size_t)p->first * j->size,
                        .b = j->transposed ? x : j->logits,
                        .c = first ? p->sums : NULL,
                        .d = p->sums,
                        .m = p->rows,
                        .n = j->dkernel.shape.dim[1],
                        .k = n,
                        .a_transposed = 1,
                        .a_row = j->dkernel.shape.dim[0],
                        .dtype = j->dtype,
                        .wide = j->wide,
                        .tf32 = j->call->attr[TFU_LCE_TF32].b};
}

/* Products that add to what is there are tried out before anything is. */
static tfu_code tune_sums(job *j) {
  const int64_t last = (j->rows - 1) / j->step * j->step;
  for (int i = 0; i < 2; i++) {
    float ignored;
    int served;
    if (!j->part[i].rows || !last) continue;
    const tfu_gemm_gpu whole = product_for_part(j, &j->part[i], j->step, least(j->step, j->rows - j->step));
    const tfu_gemm_gpu rest = product_for_part(j, &j->part[i], last, j->rows - last);
    TFU_TRY(tfu_gemm_gpu_time(tfu_recycle(&j->space), &whole, &served, &ignored));
    TFU_TRY(tfu_gemm_gpu_time(tfu_recycle(&j->space), &rest, &served, &ignored));
  }
  return TFU_OK;
}

/* ---- chunks ---- */

static tfu_code find_losses(job *j, int64_t first, int64_t n) {
  const size_t real = tfu_dtype_size(j->real);
  cross_entropy_args a = {.x = j->logits,
                          .labels = row_of(&j->labels, first, 1),
                          .loss = (char *)j->loss + (size_t)first * real,
                          .stats = j->stats,
                          .dx = j->logits,
                          .dloss = j->wanted ? row_of(&j->weights, first, 1) : NULL,
                          .ignore = j->call->attr[TFU_LCE_IGNORE].i,
                          .wide = j->labels.dtype == TFU_I64,
                          .smoothing = j->call->attr[TFU_LCE_SMOOTHING].f,
                          .z_loss = j->call->attr[TFU_LCE_Z_LOSS].f};
  TFU_TRY(tfu_sparse_cross_entropy_launch(tfu_recycle(&j->space), 0, j->dtype, n, j->classes, 1, &a));
  if (!j->wanted) return TFU_OK;
  return tfu_sparse_cross_entropy_launch(tfu_recycle(&j->space), 1, j->dtype, n, j->classes, 1, &a);
}

/* The sums of a chunk, by the pass that takes an activation's slope, which for none leaves dlogits as they are. */
static tfu_code sum_rows(job *j, int64_t first, int64_t n) {
  const tfu_tensor sums = {
      .data = (char *)j->dbias_sums + (size_t)(first / j->step * j->classes) * tfu_dtype_size(j->real),
      .dtype = j->real,
      .shape = {.rank = 1, .dim = {j->classes}}};
  return tfu_act_grad_launch(tfu_recycle(&j->space), TFU_ACT_linear, j->dtype, n * j->classes, j->classes, j->logits,
                             j->logits, j->logits, &sums);
}

static tfu_code run_chunk(job *j, int64_t first, int64_t n) {
  TFU_TRY(make_logits(j, first, n));
  TFU_TRY(find_losses(j, first, n));
  if (has(&j->dx)) TFU_TRY(make_dx(j, first, n));
  for (int i = 0; i < 2; i++) {
    if (!j->part[i].rows) continue;
    const tfu_gemm_gpu g = product_for_part(j, &j->part[i], first, n);
    TFU_TRY(run_product(j, &g));
  }
  return has(&j->dbias) ? sum_rows(j, first, n) : TFU_OK;
}

/* ---- all of it ---- */

static tfu_code narrow(job *j, void *to, const float *from, int64_t n) {
  linear_cross_entropy_narrow_args a = {.to = to, .from = from, .n = n};
  const tfu_grid grid = {.x = (unsigned)divide_up(n, TFU_THREADS * TFU_NARROW_ELEMENTS), .threads = TFU_THREADS};
  return n ? tfu_launch(j->call, &narrow_kernel, 0, j->dtype, grid, &a) : TFU_OK;
}

/* The part that grew in the output becomes half as large in place, front to back: elements from `done` up to twice that
 * move to where those before them were, which have moved already. */
static tfu_code give_dkernel(job *j) {
  const int64_t cols = j->dkernel.shape.dim[1], here = j->part[0].rows * cols,
                block = TFU_THREADS * TFU_NARROW_ELEMENTS;
  const float *sums = j->part[0].sums;
  char *to = j->dkernel.data;
  for (int64_t done = 0, n; done < here; done += n) {
    n = least(done ? done : block, here - done);
    TFU_TRY(narrow(j, to + (size_t)done * j->size, sums + done, n));
  }
  return narrow(j, to + (size_t)here * j->size, j->part[1].sums, j->part[1].rows * cols);
}

static tfu_code clear(job *j, const tfu_tensor *t) {
  return has(t) ? tfu_clear(j->call, t->data, (size_t)tfu_count(&t->shape) * tfu_dtype_size(t->dtype)) : TFU_OK;
}

static tfu_code run(job *j) {
  if (j->rows == 0) {
    TFU_TRY(clear(j, &j->dkernel));
    return clear(j, &j->dbias);
  }
  TFU_TRY(take_memory(j));
  tfu_recycled_open(&j->space, j->call);
  TFU_TRY(tune_sums(j));
  for (int64_t first = 0; first < j->rows; first += j->step)
    TFU_TRY(run_chunk(j, first, least(j->step, j->rows - first)));
  if (j->wide) TFU_TRY(give_dkernel(j));
  j->call->kernel = j->wanted ? "chunks: products, cross entropy and its gradient" : "chunks: products, cross entropy";
  if (!has(&j->dbias)) return TFU_OK;
  return tfu_fold_gpu(j->call, j->dbias_sums, divide_up(j->rows, j->step), j->classes, 1, &j->dbias);
}

tfu_code tfu_linear_cross_entropy_gpu(tfu_call *call) {
  job j = read_call(call, call->out + 1);
  const int summed = tfu_given(&j.weights.shape);
  const tfu_grid one = {.x = 1, .threads = TFU_THREADS};
  if (!summed) j.loss = call->out[0].data;
  TFU_TRY(run(&j));
  if (!summed) return TFU_OK;
  linear_cross_entropy_total_args a = {
      .total = call->out[0].data, .losses = j.loss, .weights = j.weights.data, .n = j.rows};
  return tfu_launch(call, &total_kernel, 0, j.real, one, &a);
}

tfu_code tfu_linear_cross_entropy_grad_gpu(tfu_call *call) {
  job j = read_call(call, call->out);
  return run(&j);
}

#include "kernels/products/scale_linear_cross_entropy.h"
