/* rope.h - the choice of pairing, as kernels see it in attr[1].i. */
#ifndef TFUSE_ROPE_H_
#define TFUSE_ROPE_H_

enum { TFU_ROPE_HALF, TFU_ROPE_INTERLEAVED };
#define TFU_ROPE_PAIRING_ATTR "pairing: {'half', 'interleaved'} = 'half'"

#endif
