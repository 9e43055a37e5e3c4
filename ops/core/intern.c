/* intern.c - texts of attributes, kept once each while somebody holds them: whoever does may keep the pointer, and
 * compare pointers for texts. */
#include "kernels/core/table.h"

static tfu_table texts = TFU_TABLE(.most = 0);

const char *tfu_intern(const char *bytes, size_t length) {
  tfu_error ignored;
  void *text;
  return tfu_table_get(&texts, bytes, length, NULL, &text, &ignored) == TFU_OK ? text : NULL;
}

void tfu_drop_text(const char *bytes) {
  if (bytes) tfu_table_put(&texts, (void *)bytes, NULL);
}
