#define _GNU_SOURCE
#include "kernels/core/gpu/determinism.h"

#include <dlfcn.h>
#include <stddef.h>

_Bool (*tfu_determinism_required)(void);

__attribute__((constructor)) static void find(void) {
  void *framework = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (framework) *(void **)&tfu_determinism_required = dlsym(framework, "_ZN3tsl21OpDeterminismRequiredEv");
}

int tfu_deterministic(void) { return tfu_determinism_required && tfu_determinism_required(); }
