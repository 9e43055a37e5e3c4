/* jit_calls.h - calls of the op Jit, as the tests of its parts make them. */
#ifndef TFUSE_TESTS_JIT_CALLS_H_
#define TFUSE_TESTS_JIT_CALLS_H_

#include "ops/jit/jit.h"
#include "tests/check.h"

typedef struct jit_test {
  const char *name, *source, *program, *shapes, *launch;
  int kind, inputs, outputs;
  tfu_tensor in[4], out[2];
} jit_test;

static inline const char *text_of(const char *text) {
  return text ? tfu_intern(text, strlen(text)) : tfu_intern("", 0);
}

/* A call of the test's tensors, with its own shapes for the outputs. Its lists are to be closed. */
static inline tfu_code jit_open(jit_test *t, tfu_call *call, tfu_lists *lists, tfu_error *err) {
  *call = (tfu_call){.op = &tfu_jit, .err = err};
  call->attr[TFU_JIT_KERNEL].s = text_of(t->name);
  call->attr[TFU_JIT_KIND].i = t->kind;
  call->attr[TFU_JIT_SOURCE].s = text_of(t->source);
  call->attr[TFU_JIT_PROGRAM].s = text_of(t->program);
  call->attr[TFU_JIT_INPUTS].s = text_of("x, beta, z, w");
  call->attr[TFU_JIT_OUTPUTS].s = text_of("y, u");
  call->attr[TFU_JIT_SHAPES].s = text_of(t->shapes ? t->shapes : "broadcast");
  call->attr[TFU_JIT_LAUNCH].s = text_of(t->launch);
  call->attr[TFU_JIT_IN].i = t->inputs;
  call->attr[TFU_JIT_OUT].i = t->outputs;
  TFU_TRY(tfu_lists_open(call, lists));
  memcpy(lists->in[0].at, t->in, (size_t)t->inputs * sizeof *t->in);
  int64_t elements;
  TFU_TRY(tfu_infer(call, NULL, &elements));
  for (int i = 0; i < t->outputs; i++) t->out[i].shape = lists->shapes[i];
  memcpy(lists->out[0].at, t->out, (size_t)t->outputs * sizeof *t->out);
  return TFU_OK;
}

static inline tfu_code jit_run(jit_test *t, int gpu, tfu_error *err) {
  tfu_call call;
  tfu_lists lists;
  tfu_code code = jit_open(t, &call, &lists, err);
  if (code == TFU_OK) code = tfu_execute(&call, "test", gpu);
  tfu_lists_close(&call);
  return code;
}

#endif
