#include <stdarg.h>
#include <stdio.h>

#include "tfuse.h"

tfu_code tfu_fail(tfu_error *err, tfu_code code, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  vsnprintf(err->text, sizeof err->text, format, ap);
  va_end(ap);
  return code;
}
