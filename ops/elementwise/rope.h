/* rope.h - attributes and choices of rope, as kernels see them. */
#ifndef TFUSE_ROPE_H_
#define TFUSE_ROPE_H_

enum { TFU_ROPE_QUERY, TFU_ROPE_KEY, TFU_ROPE_POSITIONS, TFU_ROPE_FREQUENCIES };
enum { TFU_ROPE_BASE, TFU_ROPE_PAIRING, TFU_ROPE_ROTARY, TFU_ROPE_INVERSE, TFU_ROPE_SCALE }; /* in attr[] */

enum { TFU_ROPE_HALF, TFU_ROPE_INTERLEAVED };
#define TFU_ROPE_PAIRING_ATTR "pairing: {'half', 'interleaved'} = 'half'"

#endif
