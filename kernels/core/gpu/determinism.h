/* determinism.h - whether tf.config.experimental.enable_op_determinism() was called: two processes that compute the
 * same on the same kind of machine must then get the same bits, so nothing may be chosen by timing. */
#ifndef TFUSE_DETERMINISM_H_
#define TFUSE_DETERMINISM_H_

/* TensorFlow's own function, tsl::OpDeterminismRequired(); NULL where there is none, and nothing is required. A test
 * may put its own here. */
extern _Bool (*tfu_determinism_required)(void);

int tfu_deterministic(void);

#endif
