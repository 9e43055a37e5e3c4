/* check.h - what the C tests share: checks that print their line and go on, shapes, and a binding of their own. */
#ifndef TFUSE_CHECK_H_
#define TFUSE_CHECK_H_

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/cpu/cpu.h"
#include "ops/core/bind.h"

static int failures;

#define CHECK(condition) check((condition) != 0, __FILE__, __LINE__, #condition, " ")
#define CHECK_FOR(condition, ...) check((condition) != 0, __FILE__, __LINE__, #condition, __VA_ARGS__)
#define CHECK_TEXT(got, want) check(!strcmp(got, want), __FILE__, __LINE__, #got, "is \"%s\", not \"%s\"", got, want)

__attribute__((format(printf, 5, 6))) static inline void check(int right, const char *file, int line, const char *text,
                                                               const char *format, ...) {
  va_list ap;
  if (right) return;
  failures++;
  va_start(ap, format);
  printf("%s:%d: failed: %s ", file, line, text);
  vprintf(format, ap);
  puts("");
  fflush(stdout); /* what was found is in the log, also where the test dies of it */
  va_end(ap);
}

#define SHAPE(...)                                                        \
  {                                                                       \
    .rank = TFU_COUNT(((int64_t[]){__VA_ARGS__})), .dim = { __VA_ARGS__ } \
  }
#define SCALAR \
  { .rank = 0 }
#define ANY \
  { .rank = TFU_UNKNOWN }
#define _ TFU_UNKNOWN

static inline int same_shape(const tfu_shape *a, const tfu_shape *b) {
  if (a->rank != b->rank) return 0;
  for (int i = 0; i < a->rank; i++)
    if (a->dim[i] != b->dim[i]) return 0;
  return 1;
}

/* A binding for tests: scratch comes from malloc, until none is left. */
typedef struct run {
  tfu_call call;
  tfu_error err;
  void *held[2 * TFU_MAX_ARGS]; /* as many as the bindings have */
  int n, most;
} run;

static inline void *allocate(tfu_call *call, size_t bytes) {
  run *r = call->binding;
  return r->n == r->most ? NULL : (r->held[r->n++] = malloc(bytes));
}

static inline run *start(const tfu_op *op) {
  run *r = calloc(1, sizeof *r);
  r->most = TFU_COUNT(r->held);
  r->call = (tfu_call){.op = op, .err = &r->err, .allocate = allocate, .binding = r};
  return r;
}

static inline tfu_code finish(run *r, const char *route) {
  tfu_shape out[TFU_MAX_ARGS];
  int64_t elements;
  tfu_code code = tfu_infer(&r->call, out, &elements);
  for (int i = 0; code == TFU_OK && r->call.op->out[i]; i++) CHECK(same_shape(&out[i], &r->call.out[i].shape));
  if (code == TFU_OK) code = tfu_execute(&r->call, route, 0);
  while (r->n > 0) free(r->held[--r->n]);
  return code;
}

/* Runs f in a child process; what it leaves in *shared can be read here. */
static inline int in_child(int (*f)(void *), void *shared) {
  int status = 1;
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60); /* ends it, should it hang */
    failures = 0;
    const int right = f(shared);
    fflush(stdout);
    _exit(!right || failures);
  }
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* The last line of main. */
static inline int verdict(void) {
  printf(failures ? "%d checks failed\n" : "all right\n", failures);
  return failures != 0;
}

#endif
