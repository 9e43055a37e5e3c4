/* lzma_test.c - the decoder of device code: a file, every file that differs from it in one byte, and its beginnings.
 * That it reads what the build writes, whatever that is, tests/tools/test_release.py shows. */
#include "kernels/core/gpu/lzma.h"
#include "tests/check.h"

static const char text[] = "a tile, a tile of tiles, and tiles of a tile: 0123456789 of 0123456789";
static const unsigned char file[] = {0xd8, 0x00, 0x00, 0x80, 0x00, 0x47, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                                     0x30, 0x88, 0x0a, 0x86, 0x93, 0x61, 0x94, 0x58, 0x20, 0x90, 0x58, 0x80, 0xde, 0x68,
                                     0xeb, 0xa4, 0x49, 0xfa, 0x0a, 0x3e, 0x55, 0x6a, 0x03, 0x55, 0xb4, 0x28, 0x91, 0xdb,
                                     0x2b, 0x3f, 0x41, 0x01, 0x3e, 0x60, 0xcc, 0xec, 0x56, 0x2c, 0x86, 0xe6, 0xb6, 0x81,
                                     0x62, 0x07, 0xd8, 0x75, 0x27, 0x7f, 0xff, 0x86, 0x1a, 0x00, 0x00};

static tfu_code decode(const unsigned char *bytes, size_t size, void **out, size_t *out_size) {
  tfu_error err = {""};
  const tfu_code code = tfu_lzma_decode(bytes, size, out, out_size, &err);
  CHECK_FOR(!code == !err.text[0] && (!code || !*out), "%s", err.text);
  return code;
}

static void test_a_file(void) {
  void *out;
  size_t size = 0;
  CHECK(decode(file, sizeof file, &out, &size) == TFU_OK && size == sizeof text && !memcmp(out, text, size));
  free(out);
}

/* Most of them are no files. One that is has the size that it states, and no decoder reads or writes beyond its memory,
 * which a sanitizer sees. */
static void test_damaged_files(void) {
  int failed = 0;
  for (size_t i = 0; i < sizeof file; i++) {
    for (int change = 1; change < 256; change++) {
      unsigned char other[sizeof file];
      void *out;
      size_t size = 0;
      memcpy(other, file, sizeof file);
      other[i] ^= (unsigned char)change;
      if (decode(other, sizeof other, &out, &size)) failed++;
      else CHECK_FOR(size == sizeof text || (i > 4 && i < 13), "byte %zu gave %zu", i, size);
      free(out);
    }
    unsigned char *const start = malloc(i + 1);
    void *out;
    size_t size;
    memcpy(start, file, i);
    CHECK_FOR(decode(start, i, &out, &size) == TFU_INTERNAL, "the first %zu bytes", i);
    free(start);
  }
  CHECK_FOR(failed > (int)sizeof file * 200, "%d", failed);
}

int main(void) {
  test_a_file();
  test_damaged_files();
  return verdict();
}
