#define _GNU_SOURCE
#include "kernels/core/number.h"

#include <locale.h>
#include <pthread.h>
#include <stdlib.h>

static locale_t plain;
static void make(void) { plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

double tfu_number(const char *text, char **end) {
  static pthread_once_t made = PTHREAD_ONCE_INIT;
  pthread_once(&made, make);
  return plain ? strtod_l(text, end, plain) : strtod(text, end);
}
