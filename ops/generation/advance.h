#ifndef TFUSE_ADVANCE_H_
#define TFUSE_ADVANCE_H_

#include "tfuse.h"

enum { TFU_ADVANCE_PAGE }; /* attributes of Advance */

#endif
