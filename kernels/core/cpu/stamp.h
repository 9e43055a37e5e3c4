/* stamp.h - reads the file named by TFU_SELF twice, for float and for double arithmetic. There, REAL is the type and
 * FN(name) is name_f32 or name_f64. The file keeps its two readings apart by #ifdef REAL. */
#define REAL float
#define FN(name) name##_f32
#include TFU_SELF
#undef REAL
#undef FN
#define REAL double
#define FN(name) name##_f64
#include TFU_SELF
#undef REAL
#undef FN

/* Which of the readings name_f32 and name_f64 serves a call. */
#define TFU_OF_REAL(call, name) (tfu_real((call)->in[0].dtype) == TFU_F64 ? name##_f64 : name##_f32)
/* The entry point `name` of a kernel whose two readings are name_f32 and name_f64. */
#define TFU_BY_REAL(name) \
  tfu_code name(tfu_call *call) { return TFU_OF_REAL(call, name)(call); }
