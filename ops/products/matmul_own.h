/* matmul_own.h - arguments and attributes of MatmulOwn and its gradient, as kernels see them. */
#ifndef TFUSE_MATMUL_OWN_H_
#define TFUSE_MATMUL_OWN_H_

enum { TFU_MATMUL_OWN_KIND };
#define TFU_MATMUL_OWN_ATTRS "kind: {'tensor', 'tiled', 'naive'} = 'tensor'"
typedef enum tfu_own_kind { TFU_OWN_TENSOR, TFU_OWN_TILED, TFU_OWN_NAIVE } tfu_own_kind;

enum { TFU_MATMUL_A, TFU_MATMUL_B };

/* Of the gradient. */
enum { TFU_MATMULGRAD_DY, TFU_MATMULGRAD_A, TFU_MATMULGRAD_B };
enum { TFU_MATMULGRAD_DA, TFU_MATMULGRAD_DB };

#endif
