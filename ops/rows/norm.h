/* norm.h - arguments and attributes of the norms, as kernels see them. */
#ifndef TFUSE_NORM_H_
#define TFUSE_NORM_H_

enum { TFU_LAYER_NORM, TFU_RMS_NORM };
#define TFU_NORM_KIND_ATTR "kind: {'layer', 'rms'} = 'layer'"

/* Of Norm. */
enum { TFU_NORM_KIND, TFU_NORM_EPSILON, TFU_NORM_RATE };
enum { TFU_NORM_X, TFU_NORM_RESIDUAL, TFU_NORM_GAMMA, TFU_NORM_BETA, TFU_NORM_SEED };
enum { TFU_NORM_Y, TFU_NORM_SUM, TFU_NORM_STATS };

/* Of NormGrad, which has the kind where Norm has it. */
enum { TFU_NORMGRAD_RATE = 1 };
enum {
  TFU_NORMGRAD_DY,
  TFU_NORMGRAD_DSUM,
  TFU_NORMGRAD_X,
  TFU_NORMGRAD_GAMMA,
  TFU_NORMGRAD_BETA,
  TFU_NORMGRAD_STATS,
  TFU_NORMGRAD_SEED
};
enum { TFU_NORMGRAD_DX, TFU_NORMGRAD_DRESIDUAL, TFU_NORMGRAD_DGAMMA, TFU_NORMGRAD_DBETA };

#endif
