#include "kernels/core/gpu/determinism.h"

#include "kernels/core/gpu/library.h"

_Bool (*tfu_determinism_required)(void);

__attribute__((constructor)) static void find(void) {
  *(void **)&tfu_determinism_required = tfu_of_tensorflow("_ZN3tsl21OpDeterminismRequiredEv");
}

int tfu_deterministic(void) { return tfu_determinism_required && tfu_determinism_required(); }
