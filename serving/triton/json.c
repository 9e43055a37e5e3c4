#include "serving/triton/json.h"

#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 64 };

static const char *space(const char *p, const char *end) {
  while (p < end && strchr(" \t\r\n", *p) && *p) p++;
  return p;
}

/* Behind a string; NULL where it does not end. */
static const char *skip_string(const char *p, const char *end) {
  for (p++; p < end && *p != '"'; p++)
    if (*p == '\\' && ++p == end) return NULL;
  return p < end ? p + 1 : NULL;
}

/* Behind the value that begins at p; NULL where none does. */
static const char *skip(const char *p, const char *end, int depth) {
  if (p == end || depth == DEEPEST) return NULL;
  if (*p == '"') return skip_string(p, end);
  if (*p != '{' && *p != '[') {
    const char *begin = p;
    while (p < end && *p && !strchr(" \t\r\n,:]}[{\"", *p)) p++;
    return p > begin ? p : NULL;
  }
  const char close = *p == '{' ? '}' : ']';
  p = space(p + 1, end);
  if (p < end && *p == close) return p + 1;
  while (p < end) {
    if (close == '}') {
      if (*p != '"' || !(p = skip_string(p, end)) || (p = space(p, end)) == end || *p != ':') return NULL;
      p = space(p + 1, end);
    }
    if (!(p = skip(p, end, depth + 1)) || (p = space(p, end)) == end) return NULL;
    if (*p == close) return p + 1;
    if (*p != ',') return NULL;
    p = space(p + 1, end);
  }
  return NULL;
}

tfu_json tfu_json_read(const char *text, size_t n) {
  const char *at = space(text, text + n), *end = skip(at, text + n, 0);
  return end && space(end, text + n) == text + n ? (tfu_json){at, end} : (tfu_json){NULL, NULL};
}

int tfu_json_next(tfu_json all, tfu_json *key, tfu_json *value) {
  if (!all.at || (*all.at != '{' && *all.at != '[')) return 0;
  const char *p = space(value->at ? value->end : all.at + 1, all.end);
  if (value->at) {
    if (*p != ',') return 0;
    p = space(p + 1, all.end);
  }
  if (*p == '}' || *p == ']') return 0;
  *key = (tfu_json){NULL, NULL};
  if (*all.at == '{') {
    *key = (tfu_json){p, skip_string(p, all.end)};
    p = space(space(key->end, all.end) + 1, all.end);
  }
  *value = (tfu_json){p, skip(p, all.end, 0)};
  return value->end != NULL;
}

tfu_json tfu_json_get(tfu_json object, const char *key) {
  if (object.at && *object.at == '{')
    for (tfu_json name, value = {NULL, NULL}; tfu_json_next(object, &name, &value);)
      if (tfu_json_is(name, key)) return value;
  return (tfu_json){NULL, NULL};
}

/* The character of \uXXXX, as UTF-8; 0 where it is none. Halves of pairs stay as they are. */
static size_t unicode(const char *p, const char *end, char out[3]) {
  unsigned c = 0;
  if (end - p < 4) return 0;
  for (int i = 0; i < 4; i++) {
    const char *digits = "0123456789abcdef", *found = p[i] ? strchr(digits, p[i] | 32) : NULL;
    if (!found) return 0;
    c = c * 16 + (unsigned)(found - digits);
  }
  if (c < 0x80) return out[0] = (char)c, 1;
  if (c < 0x800) return out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
  out[0] = (char)(0xe0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 63)), out[2] = (char)(0x80 | (c & 63));
  return 3;
}

int tfu_json_text(tfu_json value, char *text, size_t size) {
  size_t n = 0;
  if (!value.at || *value.at != '"') return 0;
  for (const char *p = value.at + 1, *end = value.end - 1; p < end; p++) {
    char made[3] = {*p};
    size_t bytes = 1;
    if (*p == '\\') {
      const char *from = "nrtbf", *to = "\n\r\t\b\f", *found = strchr(from, *++p);
      made[0] = found && *p ? to[found - from] : *p;
      if (*p == 'u') {
        if (!(bytes = unicode(p + 1, end, made))) return 0;
        p += 4;
      }
    }
    if (n + bytes >= size) return 0;
    memcpy(text + n, made, bytes);
    n += bytes;
  }
  text[n] = 0;
  return strlen(text) == n; /* a zero inside would cut it */
}

int tfu_json_is(tfu_json value, const char *text) {
  char own[256];
  return tfu_json_text(value, own, sizeof own) && !strcmp(own, text);
}

int64_t tfu_json_integer(tfu_json value, int64_t otherwise) {
  char digits[32], *end;
  if (!value.at) return otherwise;
  if (*value.at == '"') {
    if (!tfu_json_text(value, digits, sizeof digits)) return otherwise;
  } else if (snprintf(digits, sizeof digits, "%.*s", (int)(value.end - value.at), value.at) >= (int)sizeof digits) {
    return otherwise;
  }
  const int64_t number = strtoll(digits, &end, 10);
  return *digits && !*end ? number : otherwise;
}

void tfu_json_write(FILE *file, const char *text) {
  fputc('"', file);
  for (; *text; text++)
    if ((unsigned char)*text < 32) fprintf(file, "\\u%04x", *text);
    else fprintf(file, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
  fputc('"', file);
}
