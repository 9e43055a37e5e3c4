/* gemm_key.h - the choice of an algorithm for a product (gemm_gpu.c), what it depends on, in memory and as a line of
 * text, and which products are alike. */
#ifndef TFUSE_GEMM_KEY_H_
#define TFUSE_GEMM_KEY_H_

#include "kernels/core/nvidia/cublaslt_api.h"
#include "kernels/products/gemm_gpu.h"

/* All that a choice depends on. Compared as bytes, so it has no gaps. */
typedef struct tfu_gemm_key {
  int64_t m, n, k, a_row, batch;
  int64_t stride[4]; /* of a, b, c and d; of a single product 0 */
  int32_t ordinal, dtype, tf32, wide, a_transposed, b_transposed, epilogue, bias, c;
  int32_t float8, outer; /* types of a and b, see gemm_key.c; 0: they are of dtype */
  int32_t align[5];      /* of a, b, c, d and the rest: what addresses are multiples of, see gemm_key.c */
} tfu_gemm_key;
_Static_assert(sizeof(tfu_gemm_key) == 9 * sizeof(int64_t) + 16 * sizeof(int32_t), "a gap would be compared too");

typedef struct tfu_gemm_choice {
  cublasLtMatmulAlgo_t algo;
  uint64_t workspace;
} tfu_gemm_choice;
/* Bytes at most: what NVIDIA recommends for Hopper. Where it is not needed it is not taken. */
enum { TFU_GEMM_WORKSPACE = 32 << 20 };

tfu_gemm_key tfu_gemm_key_of(const tfu_gemm_gpu *g, int ordinal);

/* The names of epilogues, by tfu_epilogue. */
extern const char *const tfu_epilogue_names[TFU_EPIS];

/* `library` is cuBLASLt's version. */
void tfu_gemm_key_text(const tfu_gemm_key *key, int library, char *text, size_t size);

/* How far apart the sizes of two products are, in powers of 2; negative where they are not of one kind. */
double tfu_gemm_apart(const tfu_gemm_key *key, const tfu_gemm_key *other);
/* Multiplications. */
double tfu_gemm_work(const tfu_gemm_key *key);

#endif
