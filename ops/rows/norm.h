/* norm.h - the choice that the norms share, as kernels see it in attr[0].i. */
#ifndef TFUSE_NORM_H_
#define TFUSE_NORM_H_

enum { TFU_LAYER_NORM, TFU_RMS_NORM };
#define TFU_NORM_KIND_ATTR "kind: {'layer', 'rms'} = 'layer'"

#endif
