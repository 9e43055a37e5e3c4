/* session_config.h - what a session is asked for, as the bytes of a ConfigProto. */
#ifndef TFUSE_SESSION_CONFIG_H_
#define TFUSE_SESSION_CONFIG_H_

#include "serving/model.h"

typedef struct tfu_bytes {
  uint8_t at[256];
  size_t n;
} tfu_bytes;

tfu_bytes tfu_session_config(const tfu_model_options *options);

#endif
