/* Arrays: plain memory on the outside, tensors of TensorFlow on the inside. Strings are 24 bytes each in a tensor,
 * whose layout is TensorFlow's own business. */
#define _GNU_SOURCE
#include "serving/array.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64 }; /* of tensors: what lies otherwise TensorFlow copies */
/* From LARGE on, malloc asks the system for new memory each time. To come by its pages takes longer than to copy to
 * them, unless they are huge ones. */
enum { LARGE = 1 << 25, HUGE_PAGE = 1 << 21 };

static const struct {
  const char *name;
  size_t size;
} dtypes[] = {
    [TFU_TF_FLOAT] = {"float32", 4},     [TFU_TF_DOUBLE] = {"float64", 8},
    [TFU_TF_INT32] = {"int32", 4},       [TFU_TF_UINT8] = {"uint8", 1},
    [TFU_TF_INT16] = {"int16", 2},       [TFU_TF_INT8] = {"int8", 1},
    [TFU_TF_INT64] = {"int64", 8},       [TFU_TF_STRING] = {"string", sizeof(tfu_text)},
    [TFU_TF_BOOL] = {"bool", 1},         [TFU_TF_UINT16] = {"uint16", 2},
    [TFU_TF_BFLOAT16] = {"bfloat16", 2}, [TFU_TF_HALF] = {"float16", 2},
    [TFU_TF_UINT32] = {"uint32", 4},     [TFU_TF_UINT64] = {"uint64", 8},
};

static int known(int dtype) { return dtype > 0 && dtype < TFU_COUNT(dtypes); }
const char *tfu_tf_dtype_name(int dtype) { return known(dtype) ? dtypes[dtype].name : NULL; }
size_t tfu_tf_dtype_size(int dtype) { return known(dtype) ? dtypes[dtype].size : 0; }

tfu_code tfu_array_size(int dtype, const tfu_shape *shape, size_t *elements, size_t *bytes, tfu_error *err) {
  const size_t size = tfu_tf_dtype_size(dtype);
  int64_t count = 1;
  int empty = 0, over = 0;
  TFU_REQUIRE(err, size, "dtype number %d is not one that can be served", dtype);
  TFU_REQUIRE(err, shape->rank >= 0 && shape->rank <= TFU_MAX_RANK, "the rank must be 0 to %d, got %d", TFU_MAX_RANK,
              shape->rank);
  for (int i = 0; i < shape->rank; i++) {
    TFU_REQUIRE(err, shape->dim[i] >= 0, "size %d of shape %s is negative", i, tfu_show(shape).text);
    empty |= !shape->dim[i];
    /* Also where another size is 0: TensorFlow itself multiplies them in this order, and dies where that overflows. */
    if (shape->dim[i]) over |= __builtin_mul_overflow(count, shape->dim[i], &count);
  }
  /* A tensor's strings take 24 bytes each. */
  if (over || (uint64_t)count > (uint64_t)INT64_MAX / 32 || (uint64_t)count > SIZE_MAX / 32)
    return tfu_fail(err, TFU_EXHAUSTED, "shape %s has more elements than any memory", tfu_show(shape).text);
  *elements = empty ? 0 : (size_t)count;
  *bytes = *elements * size;
  return TFU_OK;
}

/* No overflow: tfu_array_size has bounded the elements. */
size_t tfu_array_counted(int dtype, size_t elements) {
  return elements * (dtype == TFU_TF_STRING ? sizeof(tfu_text) + sizeof(TF_TString) : tfu_tf_dtype_size(dtype));
}

tfu_code tfu_check_limit(size_t bytes, size_t most, tfu_error *err) {
  TFU_REQUIRE(err, !most || bytes <= most, "the inputs are %zu bytes, and the limit is %zu", bytes, most);
  return TFU_OK;
}

/* ---- memory of tensors ---- */

static void free_numbers(void *data, size_t bytes, void *unused) {
  (void)bytes, (void)unused;
  free(data);
}

static void free_strings(void *data, size_t bytes, void *tf) {
  for (size_t i = 0; i < bytes / sizeof(TF_TString); i++)
    ((const tfu_tensorflow *)tf)->TF_StringDealloc((TF_TString *)data + i);
  free(data);
}

/* A tensor whose memory is ours: TensorFlow's own allocator would end the process where there is none. */
static tfu_code new_tensor(const tfu_tensorflow *tf, int dtype, const tfu_shape *shape, TF_Tensor **tensor, void **data,
                           tfu_error *err) {
  size_t elements, bytes;
  TFU_TRY(tfu_array_size(dtype, shape, &elements, &bytes, err));
  const int strings = dtype == TFU_TF_STRING;
  if (strings) bytes = elements * sizeof(TF_TString);
  const int large = bytes >= LARGE;
  if (posix_memalign(data, large ? HUGE_PAGE : ALIGNMENT, bytes ? bytes : 1))
    return tfu_fail(err, TFU_EXHAUSTED, "out of host memory: %zu bytes for shape %s", bytes, tfu_show(shape).text);
  if (large) (void)madvise(*data, bytes, MADV_HUGEPAGE); /* where it has none, nothing is lost */
  for (size_t i = 0; strings && i < elements; i++) tf->TF_StringInit((TF_TString *)*data + i);
  *tensor = tf->TF_NewTensor((TF_DataType)dtype, shape->dim, shape->rank, *data, bytes,
                             strings ? free_strings : free_numbers, (void *)tf);
  return *tensor ? TFU_OK : tfu_fail(err, TFU_INVALID, "TensorFlow refuses shape %s", tfu_show(shape).text);
}

/* What an array holds: the tensor, and of strings their texts. */
typedef struct holding {
  TF_Tensor *tensor;
  tfu_text *texts;
} holding;

static void drop(const tfu_tensorflow *tf, holding *h) {
  if (h->tensor) tf->TF_DeleteTensor(h->tensor);
  free(h->texts);
  free(h);
}

void tfu_array_free(tfu_array *array) {
  const tfu_tensorflow *tf = tfu_tensorflow_now();
  if (array->held && tf) drop(tf, array->held);
  *array = (tfu_array){0};
}

/* What tells the owner of memory that was lent. */
typedef struct lent {
  void (*done)(void *owner);
  void *owner;
} lent;

static void give_back(void *data, size_t bytes, void *argument) {
  lent *l = argument;
  (void)data, (void)bytes;
  l->done(l->owner);
  free(l);
}

int tfu_array_lend(tfu_array *array, void (*done)(void *owner), void *owner) {
  const tfu_tensorflow *tf = tfu_tensorflow_now();
  size_t elements, bytes;
  tfu_error why;
  if (!tf || array->held || array->dtype == TFU_TF_STRING || !array->data || (uintptr_t)array->data % ALIGNMENT ||
      tfu_array_size(array->dtype, &array->shape, &elements, &bytes, &why) != TFU_OK || !bytes)
    return 0;
  holding *h = calloc(1, sizeof *h);
  lent *l = malloc(sizeof *l);
  if (h && l) {
    *l = (lent){done, owner};
    h->tensor = tf->TF_NewTensor((TF_DataType)array->dtype, array->shape.dim, array->shape.rank, array->data, bytes,
                                 give_back, l);
    if (!h->tensor) { /* it was given back; a run copies */
      free(h);
      h = NULL;
    }
    array->held = h;
    return 1;
  }
  free(h);
  free(l);
  return 0;
}

tfu_code tfu_array_new(int dtype, const tfu_shape *shape, tfu_array *array, tfu_error *err) {
  const tfu_tensorflow *tf = tfu_tensorflow_now();
  *array = (tfu_array){.dtype = dtype, .shape = *shape};
  if (!tf) return tfu_fail(err, TFU_PRECONDITION, "no model has been opened yet");
  TFU_REQUIRE(err, dtype != TFU_TF_STRING, "strings have no memory of this kind: their data is an array of tfu_text");
  holding *h = calloc(1, sizeof *h);
  if (!h) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  const tfu_code code = new_tensor(tf, dtype, shape, &h->tensor, &array->data, err);
  if (code != TFU_OK) {
    drop(tf, h);
    *array = (tfu_array){0};
    return code;
  }
  array->held = h;
  return TFU_OK;
}

/* ---- in and out of a run ---- */

tfu_code tfu_array_to_tensor(const tfu_tensorflow *tf, const tfu_array *array, TF_Tensor **tensor, int *owned,
                             tfu_error *err) {
  size_t elements, bytes;
  void *data;
  *tensor = NULL;
  *owned = !array->held || array->dtype == TFU_TF_STRING;
  if (!*owned) {
    *tensor = ((const holding *)array->held)->tensor;
    return TFU_OK;
  }
  TFU_TRY(tfu_array_size(array->dtype, &array->shape, &elements, &bytes, err));
  TFU_REQUIRE(err, array->data || !elements, "shape %s has no data", tfu_show(&array->shape).text);
  TFU_TRY(new_tensor(tf, array->dtype, &array->shape, tensor, &data, err));
  if (array->dtype != TFU_TF_STRING) {
    if (bytes) memcpy(data, array->data, bytes);
    return TFU_OK;
  }
  const tfu_text *texts = array->data;
  for (size_t i = 0; i < elements; i++)
    tf->TF_StringCopy((TF_TString *)data + i, texts[i].bytes ? texts[i].data : "", texts[i].bytes);
  return TFU_OK;
}

tfu_code tfu_array_of_tensor(const tfu_tensorflow *tf, TF_Tensor *tensor, tfu_array *array, tfu_error *err) {
  holding *h = calloc(1, sizeof *h);
  *array = (tfu_array){.dtype = (int)tf->TF_TensorType(tensor), .held = h};
  size_t elements = 0, bytes = 0;
  const int rank = tf->TF_NumDims(tensor);
  tfu_code code = h ? TFU_OK : tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  if (code == TFU_OK && rank > TFU_MAX_RANK)
    code = tfu_fail(err, TFU_UNIMPLEMENTED, "its rank is %d, and ranks up to %d are served", rank, TFU_MAX_RANK);
  for (int i = 0; code == TFU_OK && i < rank; i++) array->shape.dim[array->shape.rank++] = tf->TF_Dim(tensor, i);
  if (code == TFU_OK) code = tfu_array_size(array->dtype, &array->shape, &elements, &bytes, err);
  if (code == TFU_OK && array->dtype == TFU_TF_STRING) {
    const TF_TString *strings = tf->TF_TensorData(tensor);
    h->texts = malloc(bytes + 1);
    if (!h->texts) code = tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
    for (size_t i = 0; h->texts && i < elements; i++)
      h->texts[i] = (tfu_text){tf->TF_StringGetDataPointer(&strings[i]), tf->TF_StringGetSize(&strings[i])};
  }
  if (code != TFU_OK) {
    tf->TF_DeleteTensor(tensor);
    free(h);
    *array = (tfu_array){0};
    return code;
  }
  h->tensor = tensor;
  array->data = h->texts ? (void *)h->texts : tf->TF_TensorData(tensor);
  return TFU_OK;
}
