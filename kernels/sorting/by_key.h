/* by_key.h - reads the file named by TFU_SELF three times, for keys of 16, 32 and 64 bits. There, KEY is the type and
 * KEYED(name) is name_16, name_32 or name_64. The file keeps these readings apart by #ifdef KEY. */
#define KEY uint16_t
#define KEYED(name) name##_16
#include TFU_SELF
#undef KEY
#undef KEYED
#define KEY uint32_t
#define KEYED(name) name##_32
#include TFU_SELF
#undef KEY
#undef KEYED
#define KEY uint64_t
#define KEYED(name) name##_64
#include TFU_SELF
#undef KEY
#undef KEYED

/* Calls name_16, name_32 or name_64, by the size of a dtype. */
#define TFU_BY_KEY(dtype, name, ...)                          \
  (tfu_dtype_size(dtype) == 2   ? KEYED_16(name)(__VA_ARGS__) \
   : tfu_dtype_size(dtype) == 4 ? KEYED_32(name)(__VA_ARGS__) \
                                : KEYED_64(name)(__VA_ARGS__))
#define KEYED_16(name) name##_16
#define KEYED_32(name) name##_32
#define KEYED_64(name) name##_64
