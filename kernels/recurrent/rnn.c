#include "kernels/recurrent/rnn.h"

#include "kernels/core/recycle.h"
#include "ops/products/linear.h"
#include "ops/recurrent/recurrence.h"
#include "ops/recurrent/rnn.h"

/* [batch, steps, width], of x's dtype. */
static tfu_tensor sequences(const tfu_tensor *x, int64_t width) {
  return (tfu_tensor){.dtype = x->dtype, .shape = {.rank = 3, .dim = {x->shape.dim[0], x->shape.dim[1], width}}};
}

static void set_attributes(tfu_call *part, const tfu_call *call) {
  part->attr[TFU_RECUR_CELL].i = call->attr[TFU_RNN_CELL].i;
  part->attr[TFU_RECUR_ACTIVATION].i = TFU_ACT_tanh;
  part->attr[TFU_RECUR_GATES_ACTIVATION].i = TFU_ACT_sigmoid;
  part->attr[TFU_RECUR_TF32].b = call->attr[TFU_RNN_TF32].b;
}

/* What Recurrence keeps, at the beginning of what this op does. */
static tfu_tensor kept_of(const tfu_call *call, const tfu_tensor *kept, const tfu_tensor *x, int64_t units) {
  tfu_tensor t = sequences(x, units * tfu_cell_kept((int)call->attr[TFU_RNN_CELL].i));
  t.data = kept->data;
  return t;
}

tfu_code tfu_rnn_by_parts(tfu_call *call, const rnn_parts *parts) {
  const tfu_tensor *in = call->in, *x = &in[TFU_RNN_X], *kept = &call->out[TFU_RNN_KEPT];
  const int64_t units = in[TFU_RNN_RECURRENT].shape.dim[0];
  tfu_tensor gates;
  tfu_recycled space;
  tfu_recycled_open(&space, call);
  TFU_TRY(tfu_scratch_like(call, sequences(x, in[TFU_RNN_RECURRENT].shape.dim[1]), &gates));
  tfu_call *linear = tfu_part(&space, &tfu_linear);
  linear->attr[TFU_LINEAR_TF32].b = call->attr[TFU_RNN_TF32].b;
  linear->in[TFU_LINEAR_X] = *x;
  linear->in[TFU_LINEAR_KERNEL] = in[TFU_RNN_KERNEL];
  linear->in[TFU_LINEAR_BIAS] = in[TFU_RNN_BIAS];
  linear->out[TFU_LINEAR_Y] = gates;
  if (tfu_count(&gates.shape)) TFU_TRY(parts->linear(linear));
  tfu_call *part = tfu_part(&space, &tfu_recurrence);
  set_attributes(part, call);
  part->in[TFU_RECUR_GATES] = gates;
  part->in[TFU_RECUR_KERNEL] = in[TFU_RNN_RECURRENT];
  part->in[TFU_RECUR_BIAS] = in[TFU_RNN_RECURRENT_BIAS];
  part->in[TFU_RECUR_H] = in[TFU_RNN_H];
  part->in[TFU_RECUR_C] = in[TFU_RNN_C];
  part->in[TFU_RECUR_MASK].dtype = TFU_BOOL;
  part->out[TFU_RECUR_Y] = call->out[TFU_RNN_Y];
  part->out[TFU_RECUR_LAST] = call->out[TFU_RNN_LAST];
  if (tfu_count(&kept->shape)) part->out[TFU_RECUR_KEPT] = kept_of(call, kept, x, units);
  TFU_TRY(parts->recurrence(part));
  call->kernel = part->kernel;
  return TFU_OK;
}

/* Of a matrix product: the gradients of its factors and its bias, which are wanted where there is an output for them.
 */
static tfu_code factors(tfu_call *call, tfu_recycled *space, const rnn_parts *parts, const tfu_tensor *dy,
                        const tfu_tensor *x, const tfu_tensor *kernel, const tfu_tensor *dx, const tfu_tensor *dkernel,
                        const tfu_tensor *dbias) {
  tfu_call *part = tfu_part(space, &tfu_linear_grad);
  part->attr[TFU_LINEAR_TF32].b = call->attr[TFU_RNN_TF32].b;
  part->in[TFU_LINGRAD_DY] = *dy;
  part->in[TFU_LINGRAD_X] = *x;
  if (dx) part->in[TFU_LINGRAD_KERNEL] = *kernel, part->out[TFU_LINGRAD_DX] = *dx;
  part->out[TFU_LINGRAD_DKERNEL] = *dkernel;
  part->out[TFU_LINGRAD_DBIAS] = *dbias;
  return parts->linear_grad(part);
}

/* h and c, where nobody asks for their gradients. */
static tfu_code or_scratch(tfu_call *call, const tfu_tensor *wanted, const tfu_tensor *x, int64_t units,
                           tfu_tensor *t) {
  const tfu_tensor like = {.dtype = x->dtype, .shape = {.rank = 2, .dim = {x->shape.dim[0], units}}};
  *t = *wanted;
  return tfu_given(&wanted->shape) ? TFU_OK : tfu_scratch_like(call, like, t);
}

tfu_code tfu_rnn_grad_by_parts(tfu_call *call, const rnn_parts *parts) {
  const tfu_tensor *in = call->in, *from = in + TFU_RNNGRAD_X, *out = call->out, *x = &from[TFU_RNN_X];
  const int64_t units = from[TFU_RNN_RECURRENT].shape.dim[0], width = from[TFU_RNN_RECURRENT].shape.dim[1];
  const int lstm = call->attr[TFU_RNN_CELL].i == TFU_CELL_LSTM;
  tfu_tensor dgates, dproduct, before;
  tfu_recycled space;
  tfu_recycled_open(&space, call);
  TFU_TRY(tfu_scratch_like(call, sequences(x, width), &dgates));
  TFU_TRY(tfu_scratch_like(call, sequences(x, units), &before));
  dproduct = dgates;
  if (!lstm) TFU_TRY(tfu_scratch_like(call, dgates, &dproduct));
  tfu_tensor dh, dc = {.dtype = x->dtype, .shape = {.rank = 1}};
  TFU_TRY(or_scratch(call, &out[TFU_RNN_H], x, units, &dh));
  if (lstm) TFU_TRY(or_scratch(call, &out[TFU_RNN_C], x, units, &dc));
  tfu_call *part = tfu_part(&space, &tfu_recurrence_grad);
  set_attributes(part, call);
  part->in[TFU_RECGRAD_DY] = in[TFU_RNNGRAD_DY];
  part->in[TFU_RECGRAD_DLAST] = in[TFU_RNNGRAD_DLAST];
  part->in[TFU_RECGRAD_KERNEL] = from[TFU_RNN_RECURRENT];
  part->in[TFU_RECGRAD_H] = from[TFU_RNN_H];
  part->in[TFU_RECGRAD_C] = from[TFU_RNN_C];
  part->in[TFU_RECGRAD_MASK].dtype = TFU_BOOL;
  part->in[TFU_RECGRAD_Y] = in[TFU_RNNGRAD_Y];
  part->in[TFU_RECGRAD_KEPT] = kept_of(call, &in[TFU_RNNGRAD_KEPT], x, units);
  part->out[TFU_RECGRAD_DGATES] = dgates;
  if (!lstm) part->out[TFU_RECGRAD_DPRODUCT] = dproduct;
  part->out[TFU_RECGRAD_DH] = dh;
  part->out[TFU_RECGRAD_DC] = dc;
  if (tfu_count(&dh.shape)) TFU_TRY(parts->recurrence_grad(part));
  call->kernel = part->kernel;
  rnn_before_args a = {.h = tfu_given_data(&from[TFU_RNN_H]),
                       .y = in[TFU_RNNGRAD_Y].data,
                       .before = before.data,
                       .batch = x->shape.dim[0],
                       .steps = x->shape.dim[1],
                       .units = units};
  if (tfu_count(&before.shape)) TFU_TRY(parts->before(call, x->dtype, &a));
  TFU_TRY(factors(call, &space, parts, &dgates, x, &from[TFU_RNN_KERNEL], &out[TFU_RNN_X], &out[TFU_RNN_KERNEL],
                  &out[TFU_RNN_BIAS]));
  return factors(call, &space, parts, &dproduct, &before, NULL, NULL, &out[TFU_RNN_RECURRENT],
                 &out[TFU_RNN_RECURRENT_BIAS]);
}
