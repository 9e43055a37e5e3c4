/* Slots and reports on the CPU, as Python and TensorFlow use them, and what they refuse. */
#include <string.h>

#include "ops/staging/reports.h"
#include "ops/staging/slots.h"
#include "tests/check.h"

int tfu_slot_open(void);
void tfu_slot_close(int slot);
const char *tfu_slot_put(int slot, int n, const void *const *data, const int64_t *bytes, const int32_t *ranks,
                         const int64_t *dims);
int tfu_reports_open(void);
void tfu_reports_close(int key);
int64_t tfu_reports_steps(int key);
int tfu_reports_read(int key, int64_t step, void *numbers, size_t bytes);

static tfu_error err;

static tfu_code stage(int slot, void *memory, int64_t bytes) {
  tfu_call call = {.op = &tfu_stage, .err = &err, .out = {{memory, TFU_F32, {1, {bytes / 4}}}}};
  call.attr[TFU_STAGE_SLOT].i = slot;
  call.attr[TFU_STAGE_BYTES].i = bytes;
  return tfu_stage_cpu(&call);
}

/* Runs Unstage for n outputs of these dtypes. */
static tfu_code unstage(void *memory, int n, tfu_tensor *y, tfu_shape *shapes) {
  tfu_tensor in = {memory, TFU_F32, {1, {0}}};
  tfu_lists lists = {.in = {{&in, 1}}, .out = {{y, n}}, .inputs = 1, .outputs = n, .shapes = shapes};
  tfu_call call = {.op = &tfu_unstage, .err = &err, .lists = &lists};
  TFU_TRY(tfu_unstage.lists(&lists, call.attr, &err));
  for (int i = 0; i < n; i++) y[i].shape = shapes[i];
  return tfu_unstage_cpu(&call);
}

static void test_slots(void) {
  static char memory[1024];
  const uint8_t bytes[3] = {1, 2, 3};
  const double number = 4.5;
  const void *data[] = {bytes, &number};
  const int64_t sizes[] = {3, 8}, dims[] = {3, 1};
  const int32_t ranks[] = {2, 0};
  uint8_t got_bytes[3] = {0};
  double got = 0;
  tfu_tensor y[2] = {{got_bytes, TFU_U8, {0}}, {&got, TFU_F64, {0}}};
  tfu_shape shapes[2];
  const int slot = tfu_slot_open();
  CHECK(slot >= 0);
  CHECK(strstr(tfu_slot_put(slot, 2, data, sizes, ranks, dims), "no memory"));
  CHECK(stage(slot, memory, sizeof memory) == TFU_OK);
  CHECK(!*tfu_slot_put(slot, 2, data, sizes, ranks, dims));
  CHECK(unstage(memory, 2, y, shapes) == TFU_OK);
  CHECK(!memcmp(got_bytes, bytes, 3) && got == 4.5);
  CHECK(shapes[0].rank == 2 && shapes[0].dim[0] == 3 && shapes[0].dim[1] == 1 && shapes[1].rank == 0);

  CHECK(unstage(memory, 1, y, shapes) == TFU_INVALID && strstr(err.text, "has 2 tensors, and 1"));
  y[1].dtype = TFU_F32;
  CHECK(unstage(memory, 2, y, shapes) == TFU_INVALID && strstr(err.text, "has 8 bytes"));
  CHECK(unstage(memory + 4, 2, y, shapes) == TFU_INVALID && strstr(err.text, "not that of a slot"));
  const int64_t too_many[] = {1000, 8};
  CHECK(strstr(tfu_slot_put(slot, 2, data, too_many, ranks, dims), "does not fit"));
  CHECK(strstr(tfu_slot_put(slot, 0, data, sizes, ranks, dims), "1 to 64"));
  const int32_t deep[] = {9, 0};
  CHECK(strstr(tfu_slot_put(slot, 2, data, sizes, deep, dims), "9 dimensions"));
  CHECK(*tfu_slot_put(-1, 2, data, sizes, ranks, dims) && *tfu_slot_put(TFU_SLOTS, 2, data, sizes, ranks, dims));
  tfu_slot_close(slot);
  CHECK(unstage(memory, 2, y, shapes) == TFU_INVALID);
  CHECK(stage(slot, memory, sizeof memory) == TFU_INVALID && strstr(err.text, "no slot"));
  tfu_slot_close(-1), tfu_slot_close(TFU_SLOTS);
}

/* A slot's memory is given to another: who had it has it no more, whatever still lies in its list of tensors. */
static void test_memory_that_goes_to_another(void) {
  static char memory[256];
  const double first = 1, second = 2;
  const void *data[] = {&first};
  const int64_t sizes[] = {8};
  const int32_t ranks[] = {0};
  double got = 0;
  tfu_tensor y = {&got, TFU_F64, {0}};
  tfu_shape shape;
  const int mine[] = {tfu_slot_open(), tfu_slot_open()};
  CHECK(stage(mine[0], memory, sizeof memory) == TFU_OK);
  CHECK(!*tfu_slot_put(mine[0], 1, data, sizes, ranks, NULL));
  CHECK(stage(mine[1], memory, sizeof memory) == TFU_OK);
  CHECK(strstr(tfu_slot_put(mine[0], 1, data, sizes, ranks, NULL), "no memory"));
  data[0] = &second;
  CHECK(!*tfu_slot_put(mine[1], 1, data, sizes, ranks, NULL));
  CHECK(unstage(memory, 1, &y, &shape) == TFU_OK && got == 2);
  for (int i = 0; i < 2; i++) tfu_slot_close(mine[i]);
}

/* There are as many as there are, and what is closed can be had again. */
static void test_slots_run_out(void) {
  int mine[TFU_SLOTS];
  for (int i = 0; i < TFU_SLOTS; i++) CHECK((mine[i] = tfu_slot_open()) >= 0);
  CHECK(tfu_slot_open() == -1);
  tfu_slot_close(mine[5]);
  CHECK(tfu_slot_open() == mine[5]);
  for (int i = 0; i < TFU_SLOTS; i++) tfu_slot_close(mine[i]);
}

static tfu_code report(int key, int n, tfu_tensor *x) {
  float zero = 1;
  tfu_tensor done = {&zero, TFU_F32, {0}};
  tfu_shape shape;
  tfu_lists lists = {.in = {{x, n}}, .out = {{&done, 1}}, .inputs = n, .outputs = 1, .shapes = &shape};
  tfu_call call = {.op = &tfu_report, .err = &err, .lists = &lists};
  call.attr[TFU_REPORT_KEY].i = key;
  TFU_TRY(tfu_report.lists(&lists, call.attr, &err));
  const tfu_code code = tfu_report_cpu(&call);
  CHECK(code != TFU_OK || zero == 0);
  return code;
}

/* Tensors of odd sizes, each from a multiple of 8 bytes on, and no more than the reader has room for. */
static void test_arrays(int key) {
  float few[3] = {1, 2, 3};
  int64_t many[TFU_REPORT_BYTES / 8 - 2], found[TFU_REPORT_BYTES / 8];
  for (int i = 0; i < TFU_REPORT_BYTES / 8 - 2; i++) many[i] = 7 * i;
  tfu_tensor x[] = {{few, TFU_F32, {1, {3}}}, {many, TFU_I64, {2, {2, TFU_REPORT_BYTES / 16 - 1}}}};
  CHECK(report(key, 2, x) == TFU_OK);
  const int64_t step = tfu_reports_steps(key) - 1;
  CHECK(tfu_reports_read(key, step, found, sizeof found));
  CHECK(!memcmp(found, few, sizeof few) && !memcmp(found + 2, many, sizeof many));
  found[2] = -1;
  CHECK(tfu_reports_read(key, step, found, 2 * sizeof *found) && found[2] == -1);
}

static void test_reports(void) {
  float loss;
  double right;
  char numbers[2 * 8];
  tfu_tensor x[TFU_REPORT_TENSORS + 1] = {{&loss, TFU_F32, {0}}, {&right, TFU_F64, {0}}};
  const int key = tfu_reports_open();
  CHECK(key >= 0 && tfu_reports_steps(key) == 0 && !tfu_reports_read(key, 0, numbers, sizeof numbers));
  for (int step = 0; step < 3 * TFU_REPORT_KEPT; step++) {
    loss = (float)step, right = -step;
    CHECK(report(key, 2, x) == TFU_OK);
    CHECK(tfu_reports_steps(key) == step + 1);
  }
  const int last = 3 * TFU_REPORT_KEPT - 1;
  for (int step = last; step > last - TFU_REPORT_KEPT + 1; step--) {
    CHECK(tfu_reports_read(key, step, numbers, sizeof numbers));
    memcpy(&loss, numbers, sizeof loss);
    memcpy(&right, numbers + 8, sizeof right);
    CHECK(loss == (float)step && right == -step);
  }
  CHECK(!tfu_reports_read(key, last - TFU_REPORT_KEPT, numbers, sizeof numbers) &&
        !tfu_reports_read(key, last + 1, numbers, sizeof numbers));
  CHECK(!tfu_reports_read(key, -1, numbers, sizeof numbers) && !tfu_reports_read(-1, 0, numbers, sizeof numbers));
  CHECK(report(key, TFU_REPORT_TENSORS + 1, x) == TFU_INVALID && strstr(err.text, "at most 32"));
  x[1].shape = (tfu_shape){2, {TFU_REPORT_BYTES / 16, 2}};
  CHECK(report(key, 2, x) == TFU_INVALID && strstr(err.text, "at most 16384"));
  test_arrays(key);
  tfu_reports_close(key);
  x[1].shape.rank = 0;
  CHECK(report(key, 2, x) == TFU_INVALID && strstr(err.text, "nobody reports"));
}

int main(void) {
  test_slots();
  test_memory_that_goes_to_another();
  test_slots_run_out();
  test_reports();
  return verdict();
}
