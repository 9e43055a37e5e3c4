/* comma_locale.h - a locale whose numbers have a comma, as German has, whether or not this machine has any. */
#ifndef TFUSE_TESTS_COMMA_LOCALE_H_
#define TFUSE_TESTS_COMMA_LOCALE_H_

#include <locale.h>
#include <sys/stat.h>

#include "tests/check.h"

/* Makes a folder with glibc's file of such a locale, for numbers alone, and sets it in this process. */
static inline void set_comma_locale(void) {
  enum { TEXTS = 32, MAGIC = 0x20031115 ^ LC_NUMERIC };
  /* Where each item is: the point, the separator of thousands, its grouping, both as characters, the encoding. */
  const uint32_t head[] = {MAGIC, 6, TEXTS, TEXTS + 2, TEXTS + 2, TEXTS + 4, TEXTS + 8, TEXTS + 12}, wide[] = {',', 0};
  const char texts[4] = ",", encoding[] = "UTF-8";
  char base[] = "/tmp/comma_locale.XXXXXX", path[64];
  CHECK(mkdtemp(base));
  snprintf(path, sizeof path, "%s/comma", base);
  CHECK(!mkdir(path, 0700));
  strcat(path, "/LC_NUMERIC");
  FILE *file = fopen(path, "w");
  CHECK(file && fwrite(head, sizeof head, 1, file) && fwrite(texts, sizeof texts, 1, file) &&
        fwrite(wide, sizeof wide, 1, file) && fwrite(encoding, sizeof encoding, 1, file) && !fclose(file));
  setenv("LOCPATH", base, 1);
  CHECK(setlocale(LC_NUMERIC, "comma") && strtod("0.5", NULL) == 0 && strtod("0,5", NULL) == 0.5);
  unlink(path);
  *strrchr(path, '/') = 0;
  rmdir(path);
  rmdir(base);
}

#endif
