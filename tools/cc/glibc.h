/* glibc.h - read before every C file: takes each function below in its oldest version, so that the library loads on the
 * oldest systems TensorFlow's wheels support and not just on those as new as the build machine. glibc 2.34 gave dl* and
 * pthread* a new version when they moved into libc, 2.27 and 2.29 did so for mathematics that stopped setting errno, and 2.27
 * for glob.
 * tools/wheel.py states what came of it: manylinux_2_17 when nothing newer is wanted. */
#if defined(__x86_64__)
#define TFU_OLDEST(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5");
#elif defined(__aarch64__)
#define TFU_OLDEST(name) __asm__(".symver " #name "," #name "@GLIBC_2.17");
#else
#define TFU_OLDEST(name)
#endif

TFU_OLDEST(glob) TFU_OLDEST(dladdr) TFU_OLDEST(dlclose) TFU_OLDEST(dlerror) TFU_OLDEST(dlopen) TFU_OLDEST(dlsym)
TFU_OLDEST(pthread_create) TFU_OLDEST(pthread_detach) TFU_OLDEST(pthread_join) TFU_OLDEST(pthread_once)
TFU_OLDEST(pthread_getspecific) TFU_OLDEST(pthread_setspecific) TFU_OLDEST(pthread_key_create)
TFU_OLDEST(pthread_mutex_trylock) TFU_OLDEST(pthread_rwlock_rdlock) TFU_OLDEST(pthread_rwlock_unlock)
TFU_OLDEST(pthread_rwlock_wrlock)
TFU_OLDEST(exp) TFU_OLDEST(exp2) TFU_OLDEST(log) TFU_OLDEST(log2) TFU_OLDEST(pow)
TFU_OLDEST(exp2f) TFU_OLDEST(expf) TFU_OLDEST(log2f) TFU_OLDEST(logf) TFU_OLDEST(powf)

#undef TFU_OLDEST
