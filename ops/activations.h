/* activations.h - the activations that fused ops take, by name. Their formulas: kernels/core/activation_math.h. */
#ifndef TFUSE_ACTIVATIONS_H_
#define TFUSE_ACTIVATIONS_H_

/* linear comes first and stands apart, so that the list can be joined by commas. */
#define TFU_ACTIVATIONS_BUT_LINEAR(X) \
  X(relu)                             \
  X(leaky_relu) X(elu) X(gelu) X(gelu_tanh) X(silu) X(mish) X(sigmoid) X(tanh) X(softplus) X(hard_swish) X(relu6)
#define TFU_ACTIVATIONS(X) X(linear) TFU_ACTIVATIONS_BUT_LINEAR(X)

#define X(name) TFU_ACT_##name,
enum { TFU_ACTIVATIONS(X) TFU_ACTS };
#undef X

/* A table of their names, by TFU_ACT_…. */
#define TFU_NAMED_(name) #name,
#define TFU_ACTIVATION_NAMES \
  { TFU_ACTIVATIONS(TFU_NAMED_) }

/* The row attribute; a kernel sees it as TFU_ACT_… in attr[].i. */
#define TFU_QUOTED_(name) ", '" #name "'"
#define TFU_ACTIVATION_ATTR "activation: {'linear'" TFU_ACTIVATIONS_BUT_LINEAR(TFU_QUOTED_) "} = 'linear'"

#endif
