#include "kernels/jit/program.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/number.h"
#include "kernels/core/table.h"

static const struct {
  const char *name;
  int operands;
} functions[] = {
#define X(name, operands, value) {#name, operands},
    JIT_FUNCTIONS(X)
#undef X
};

/* Words with a number after them, and those without. */
static const struct {
  const char *name;
  jit_op op;
  int numbered;
} words[] = {{"x", JIT_INPUT, 1},      {"r", JIT_RESULT, 1}, {"t", JIT_LOCAL, 1}, {"=y", JIT_SET_OUTPUT, 1},
             {"=t", JIT_SET_LOCAL, 1}, {"a", JIT_A, 0},      {"b", JIT_B, 0},     {"n", JIT_N, 0}};

/* Whether the word is a step. */
static int read_step(const char *word, jit_step *step) {
  char *end;
  *step = (jit_step){.op = JIT_CONSTANT, .value = tfu_number(word, &end)};
  if (!*end && !isalpha((unsigned char)word[0])) return 1;
  for (int i = 0; i < TFU_COUNT(functions); i++)
    if (!strcmp(word, functions[i].name)) return step->op = (jit_op)i, 1;
  for (int i = 0; i < TFU_COUNT(words); i++) {
    const size_t n = strlen(words[i].name);
    if (strncmp(word, words[i].name, n)) continue;
    step->op = words[i].op;
    if (!words[i].numbered && !word[n]) return 1;
    if (words[i].numbered && isdigit((unsigned char)word[n])) {
      step->index = (int)strtol(word + n, &end, 10);
      if (!*end) return 1;
    }
  }
  if (!strcmp(word, "inf") || !strcmp(word, "nan"))
    return step->op = JIT_CONSTANT, step->value = tfu_number(word, NULL), 1;
  return 0;
}

int jit_operands(jit_op function) { return functions[function].operands; }

/* What the step takes from the stack, and whether it pushes something. */
static int pops(const jit_step *s) {
  if (s->op < JIT_CONSTANT) return jit_operands(s->op);
  return s->op >= JIT_SET_OUTPUT;
}
static int pushes(const jit_step *s) { return s->op < JIT_SET_OUTPUT; }

static jit_section *section_of(jit_program *p, const char *word) {
  static const struct {
    const char *name;
    size_t at;
    int numbered; /* it is the first of those of the passes */
  } sections[] = {{"body", offsetof(jit_program, body), 0},     {"post", offsetof(jit_program, post), 0},
                  {"final", offsetof(jit_program, final), 0},   {"map", offsetof(jit_program, map), 1},
                  {"reduce", offsetof(jit_program, reduce), 1}, {"identity", offsetof(jit_program, identity), 1}};
  for (int i = 0; i < TFU_COUNT(sections); i++) {
    const size_t n = strlen(sections[i].name);
    char *end = (char *)word + n;
    if (strncmp(word, sections[i].name, n)) continue;
    const long pass = sections[i].numbered ? strtol(end, &end, 10) : 0;
    if (strcmp(end, ":") || pass < 0 || pass >= JIT_MOST_PASSES) return NULL;
    if (sections[i].numbered && p->passes <= pass) p->passes = (int)pass + 1;
    return (jit_section *)((char *)p + sections[i].at) + pass;
  }
  return NULL;
}

static int index_fits(const jit_step *s, const jit_program *p, int inputs, int outputs) {
  const int most = s->op == JIT_INPUT        ? inputs
                   : s->op == JIT_SET_OUTPUT ? outputs
                   : s->op == JIT_RESULT     ? p->passes
                   : s->op == JIT_CONSTANT   ? 1
                                             : JIT_MOST_LOCALS;
  return s->index >= 0 && s->index < most;
}

static int is_among(const jit_section *s, const jit_section *passes) {
  return s >= passes && s < passes + JIT_MOST_PASSES;
}

/* a and b are of reductions alone; identities and final have no column, and so no inputs. */
static int is_seen(const jit_step *s, const jit_program *p, const jit_section *section) {
  if (s->op == JIT_A || s->op == JIT_B) return is_among(section, p->reduce);
  return s->op != JIT_INPUT || !(section == &p->final || is_among(section, p->identity));
}

static tfu_code append(jit_section *section, const jit_step *step, tfu_error *err) {
  if (!(section->n & (section->n - 1))) { /* full at powers of two, and at none */
    jit_step *more = realloc(section->step, (size_t)(section->n ? 2 * section->n : 1) * sizeof *more);
    if (!more) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
    section->step = more;
  }
  section->step[section->n++] = *step;
  return TFU_OK;
}

static tfu_code add_word(jit_program *p, jit_section *section, const char *word, int inputs, int outputs, int *depth,
                         tfu_error *err) {
  jit_step step;
  TFU_REQUIRE(err, section, "program: \"%.40s\" stands before any section", word);
  TFU_REQUIRE(err, read_step(word, &step), "program: \"%.40s\" is no word of it", word);
  TFU_REQUIRE(err, index_fits(&step, p, inputs, outputs), "program: there is no \"%.40s\"", word);
  TFU_REQUIRE(err, is_seen(&step, p, section), "program: \"%.40s\" is not known in its section", word);
  *depth -= pops(&step);
  TFU_REQUIRE(err, *depth >= 0, "program: \"%.40s\" has too few operands", word);
  *depth += pushes(&step);
  TFU_REQUIRE(err, *depth <= JIT_MOST_STACK, "program: more than %d values at a time: use locals", JIT_MOST_STACK);
  if (*depth > p->stack) p->stack = *depth;
  if (step.op == JIT_SET_LOCAL && step.index >= p->locals) p->locals = step.index + 1;
  TFU_REQUIRE(err, step.op != JIT_LOCAL || step.index < p->locals, "program: \"%.40s\" is read before it is set", word);
  return append(section, &step, err);
}

/* body and post leave nothing on the stack; of others the value may be there, or in the first output. */
static tfu_code check_end(const jit_program *p, const jit_section *s, int depth, tfu_error *err) {
  const int value = s && s != &p->body && s != &p->post;
  const jit_step *last = s && s->n ? &s->step[s->n - 1] : NULL;
  const int wanted = value && !(last && last->op == JIT_SET_OUTPUT && last->index == 0);
  TFU_REQUIRE(err, depth == wanted, "program: a section leaves %d values, %d wanted", depth, wanted);
  return TFU_OK;
}

tfu_code jit_program_read(const char *text, int inputs, int outputs, jit_program *p, tfu_error *err) {
  jit_section *section = NULL;
  int depth = 0;
  for (size_t n; text += strspn(text, " \t\n"), (n = strcspn(text, " \t\n")); text += n) {
    char word[64];
    TFU_REQUIRE(err, n < sizeof word, "program: the word \"%.40s\" is too long", text);
    memcpy(word, text, n);
    word[n] = 0;
    if (word[n - 1] != ':') {
      TFU_TRY(add_word(p, section, word, inputs, outputs, &depth, err));
      continue;
    }
    TFU_TRY(check_end(p, section, depth, err));
    section = section_of(p, word);
    TFU_REQUIRE(err, section, "program: \"%.40s\" is no section of it", word);
    depth = 0;
  }
  TFU_TRY(check_end(p, section, depth, err));
  for (int i = 0; i < p->passes; i++)
    TFU_REQUIRE(err, p->map[i].n && p->reduce[i].n && p->identity[i].n,
                "program: pass %d wants the sections map, reduce and identity", i);
  return TFU_OK;
}

void jit_program_free(jit_program *p) {
  jit_section *all[] = {&p->body, &p->post, &p->final};
  for (int i = 0; i < TFU_COUNT(all); i++) free(all[i]->step);
  for (int i = 0; i < JIT_MOST_PASSES; i++) free(p->map[i].step), free(p->reduce[i].step), free(p->identity[i].step);
}

/* ---- those that are kept ---- */

/* What a program is read from; all bytes count, so there is no gap. */
typedef struct source {
  const char *text;
  int inputs, outputs;
} source;

static void release(void *program_) {
  jit_program *program = program_;
  tfu_drop_text(program->text);
  jit_program_free(program);
}

static tfu_code read_kept(const void *key, void *program_, void *with, tfu_error *err) {
  const source *s = key;
  jit_program *program = program_;
  (void)with;
  program->text = tfu_intern(s->text, strlen(s->text)); /* the same pointer, held for the program */
  const tfu_code code = program->text ? jit_program_read(s->text, s->inputs, s->outputs, program, err)
                                      : tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  if (code != TFU_OK) release(program);
  return code;
}

static tfu_table programs =
    TFU_TABLE(.value = sizeof(jit_program), .most = JIT_KEPT_PROGRAMS, .make = read_kept, .release = release);

tfu_code jit_program_of(const char *text, int inputs, int outputs, const jit_program **program, tfu_error *err) {
  const source key = {text, inputs, outputs};
  void *kept = NULL;
  const tfu_code code = tfu_table_get(&programs, &key, sizeof key, NULL, &kept, err);
  *program = kept;
  return code;
}

void jit_program_back(const jit_program *program) { tfu_table_put(&programs, (void *)program, NULL); }
