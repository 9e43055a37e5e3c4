/* lists.c - arguments that are lists of tensors: how many there are of each, and where they are kept. */
#include <stdlib.h>
#include <string.h>

#include "bind.h"

/* "x: N * T" has as many tensors as the attribute N says, "x: In" as many as the list In has types, "x: T" has one. */
static int length(const tfu_op *op, const char *argument, const tfu_value *attr) {
  const char *kind = strchr(argument, ':') + 1;
  kind += strspn(kind, " ");
  const size_t n = strcspn(kind, " *");
  const int many = strchr(kind, '*') != NULL;
  for (int i = 0; op->attr[i]; i++) { /* in every run: tfu_attr_parse would take some microseconds */
    const char *text = op->attr[i];
    if (strncmp(text, kind, n) || (text[n] != ':' && text[n] != ' ')) continue;
    text += n + strspn(text + n, ": ");
    if (many || !strncmp(text, "list", strlen("list"))) return (int)attr[i].i;
  }
  return !many;
}

static int lengths(const tfu_call *call, const char *const *arguments, tfu_list *lists) {
  int all = 0;
  for (int i = 0; arguments[i]; i++) all += lists[i].n = length(call->op, arguments[i], call->attr);
  return all;
}

static void place(tfu_list *lists, const char *const *arguments, tfu_tensor *at) {
  for (int i = 0; arguments[i]; at += lists[i++].n) lists[i].at = at;
}

tfu_code tfu_lists_open(tfu_call *call, tfu_lists *lists) {
  const tfu_op *op = call->op;
  if (!op->lists) return TFU_OK;
  *lists = (tfu_lists){.shapes = NULL};
  lists->inputs = lengths(call, op->in, lists->in);
  lists->outputs = lengths(call, op->out, lists->out);
  const size_t tensors = (size_t)(lists->inputs + lists->outputs);
  tfu_tensor *room = malloc(tensors * sizeof *room + (size_t)lists->outputs * sizeof *lists->shapes);
  if (!room) return tfu_fail(call->err, TFU_EXHAUSTED, "out of host memory");
  place(lists->in, op->in, room);
  place(lists->out, op->out, room + lists->inputs);
  lists->shapes = (tfu_shape *)(room + tensors);
  call->lists = lists;
  return TFU_OK;
}

void tfu_lists_close(tfu_call *call) {
  if (call->lists) free(call->lists->in[0].at);
  call->lists = NULL;
}

tfu_tensor *tfu_inputs(tfu_call *call, int *n) {
  *n = call->lists ? call->lists->inputs : tfu_args(call->op->in);
  return call->lists ? call->lists->in[0].at : call->in;
}

tfu_tensor *tfu_outputs(tfu_call *call, int *n) {
  *n = call->lists ? call->lists->outputs : tfu_args(call->op->out);
  return call->lists ? call->lists->out[0].at : call->out;
}

static const char *name(const tfu_list *lists, const char *const *arguments, int i) {
  int k = 0;
  while (arguments[k + 1] && i >= lists[k].n) i -= lists[k++].n;
  return arguments[k];
}

const char *tfu_input_name(const tfu_call *call, int i) {
  return call->lists ? name(call->lists->in, call->op->in, i) : call->op->in[i];
}

const char *tfu_output_name(const tfu_call *call, int i) {
  return call->lists ? name(call->lists->out, call->op->out, i) : call->op->out[i];
}
