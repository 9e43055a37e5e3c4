/* json.h - JSON as Triton gives it, read where it lies: a value is the part of the text that it takes up. */
#ifndef TFUSE_JSON_H_
#define TFUSE_JSON_H_

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* `at` is NULL where there is no value. */
typedef struct tfu_json {
  const char *at, *end;
} tfu_json;

/* The value that a text is; none where it is not JSON. All below take values that come from here. */
tfu_json tfu_json_read(const char *text, size_t n);

/* The member of an object; none where it is no object, or has no such member. */
tfu_json tfu_json_get(tfu_json object, const char *key);

/* Goes through the elements of an array, or the members of an object; begin with none:
 *   for (tfu_json key, v = {0}; tfu_json_next(all, &key, &v);) …
 * Of an array, key is none. */
int tfu_json_next(tfu_json all, tfu_json *key, tfu_json *value);

/* A string, without its escapes, as text that ends with a zero; 0 where it is none, or too long. */
int tfu_json_text(tfu_json value, char *text, size_t size);
int tfu_json_is(tfu_json value, const char *text); /* whether it is this string */

/* A number, which may be in quotes as those of 64 bits are; `otherwise` where it is none. */
int64_t tfu_json_integer(tfu_json value, int64_t otherwise);

void tfu_json_write(FILE *file, const char *text); /* with its quotes */

#endif
