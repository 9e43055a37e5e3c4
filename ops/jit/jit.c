/* A kernel that is compiled where it runs: its source and all that is to be known of it are attributes, so that graphs,
 * XLA's calls and saved models carry them.
 *
 *   elementwise  y[i] = body(x0[i], x1[i], …), inputs broadcast against each other
 *   rows         of each row of x0, to which the other inputs broadcast: results of passes (map, then reduce), and from
 *                these one value, or one for each element
 *   raw          any CUDA C, launched as `launch` says: "grid; block; shared; arguments" (ops/jit/jit.h)
 *
 * `shapes` says what the outputs are like: "broadcast", "row" (x0 without its last axis, "row keep": 1 of it; "row same
 * 1 2": inputs 1 and 2 must have one element along a row), or a list of sizes for each, with semicolons between.
 * `program` is the same kernel for the CPU (kernels/jit/program.h).
 *
 * Eager calls name a registered kernel instead of giving its texts (kernels/jit/registered.c). */
#include "ops/jit/jit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tfu_jit_name tfu_jit_name_of(const char *names, int i) {
  tfu_jit_name name = {""};
  while (i-- > 0 && names && (names = strchr(names, ','))) names++;
  if (!names) return name;
  names += strspn(names, " ");
  snprintf(name.text, sizeof name.text, "%.*s", (int)strcspn(names, ", "), names);
  return name;
}

/* All inputs broadcast against each other. */
static tfu_code broadcast(const tfu_list *in, const char *names, tfu_shape *out, tfu_error *err) {
  *out = in->at[0].shape;
  for (int i = 1; i < in->n; i++) {
    const tfu_shape *x = &in->at[i].shape;
    tfu_shape all = x->rank > out->rank ? *x : *out;
    for (int k = 1; k <= x->rank && k <= out->rank; k++) {
      const int64_t a = out->dim[out->rank - k], b = x->dim[x->rank - k];
      TFU_REQUIRE(err, a == b || a == 1 || b == 1, "%s must broadcast with the inputs before it, which give %s, got %s",
                  tfu_jit_name_of(names, i).text, tfu_show(out).text, tfu_show(x).text);
      all.dim[all.rank - k] = a == 1 ? b : a;
    }
    *out = all;
  }
  return TFU_OK;
}

/* What is the same along a row has one element along its last axis. `numbers`: of such inputs. */
static tfu_code check_same(const tfu_list *in, const char *names, const char *numbers, tfu_error *err) {
  for (char *end; *numbers; numbers = end) {
    const long i = strtol(numbers, &end, 10);
    TFU_REQUIRE(err, end != numbers && i >= 0 && i < in->n, "shapes: \"%.40s\" is no number of an input", numbers);
    TFU_REQUIRE(err, tfu_cols(&in->at[i].shape) == 1,
                "%s must be the same along a row, as final uses it: its last axis must be 1, got %s",
                tfu_jit_name_of(names, (int)i).text, tfu_show(&in->at[i].shape).text);
  }
  return TFU_OK;
}

static tfu_code check_rows(const tfu_list *in, const char *names, tfu_error *err) {
  const tfu_jit_name first = tfu_jit_name_of(names, 0);
  TFU_TRY(tfu_has_rows(first.text, &in->at[0].shape, err));
  for (int i = 1; i < in->n; i++)
    TFU_TRY(tfu_broadcasts(tfu_jit_name_of(names, i).text, &in->at[i].shape, first.text, &in->at[0].shape, err));
  return TFU_OK;
}

static tfu_code listed(const char *text, const tfu_list *in, tfu_shape *out, int n, tfu_error *err) {
  tfu_sizes s = {.at = text, .what = "shapes", .in = in, .err = err};
  for (int i = 0; i < n; i++) {
    TFU_TRY(tfu_sizes_list(&s, out[i].dim, TFU_MAX_RANK, &out[i].rank));
    for (int k = 0; k < out[i].rank; k++)
      TFU_REQUIRE(err, out[i].dim[k] >= 0, "shapes: axis %d of output %d would be %" PRId64, k, i, out[i].dim[k]);
  }
  TFU_REQUIRE(err, !*s.at, "shapes has more lists than the %d outputs: \"%.100s\"", n, text);
  return TFU_OK;
}

static tfu_code rule(tfu_lists *l, const tfu_value *attr, tfu_error *err) {
  const char *text = attr[TFU_JIT_SHAPES].s, *names = attr[TFU_JIT_INPUTS].s;
  const tfu_list *in = &l->in[0];
  const int raw = attr[TFU_JIT_KIND].i == TFU_JIT_RAW, most = raw ? TFU_JIT_MOST_RAW : TFU_JIT_MOST_IN;
  TFU_REQUIRE(err, l->inputs <= most && l->outputs <= (raw ? most : TFU_JIT_MOST_OUT),
              "kernel %s has %d inputs and %d outputs, at most %d and %d are supported", attr[TFU_JIT_KERNEL].s,
              l->inputs, l->outputs, most, raw ? most : TFU_JIT_MOST_OUT);
  if (attr[TFU_JIT_KIND].i == TFU_JIT_ROWS) TFU_TRY(check_rows(in, names, err));
  if (!strcmp(text, "broadcast")) {
    TFU_TRY(broadcast(in, names, &l->shapes[0], err));
    for (int i = 1; i < l->outputs; i++) l->shapes[i] = l->shapes[0];
    return TFU_OK;
  }
  if (strncmp(text, "row", strlen("row"))) return listed(text, in, l->shapes, l->outputs, err);
  const char *same = strstr(text, "same");
  if (same) TFU_TRY(check_same(in, names, same + strlen("same"), err));
  for (int i = 0; i < l->outputs; i++) {
    l->shapes[i] = tfu_leading(&in->at[0].shape);
    if (strstr(text, "keep")) l->shapes[i] = tfu_append(&l->shapes[i], 1);
  }
  return TFU_OK;
}

#define ANY_TYPES "list({float, half, bfloat16, double, int32, int64, bool}) >= 1"

const tfu_op tfu_jit = {
    .name = "Jit",
    .doc = "A kernel that is compiled where it runs, from its source.",
    .in = {"x: In"},
    .out = {"y: Out"},
    .attr = {"kernel: string", "kind: {'elementwise', 'rows', 'raw'} = 'elementwise'", "source: string = ''",
             "program: string = ''", "inputs: string = ''", "outputs: string = ''", "shapes: string = 'broadcast'",
             "launch: string = ''", "In: " ANY_TYPES, "Out: " ANY_TYPES},
    .lists = rule,
    TFU_KERNELS(jit),
    .capturable = 1,
    .complete = tfu_jit_complete,
};
