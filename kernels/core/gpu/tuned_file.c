#include "kernels/core/gpu/tuned_file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/gpu/own_file.h"
#include "kernels/core/hash.h"
#include "kernels/core/number.h"

/* A new format gets a new first line; older files are then foreign. */
static const char first_line[] = "tfuse tuned 1\n", first_words[] = "tfuse tuned ";

enum { LINE = TFU_TUNED_TEXT + 2 * TFU_TUNED_DATA + TFU_TUNED_LABEL + 64 };

static uint64_t hash_of(const void *bytes, size_t n) { return tfu_hash(TFU_HASH_START, bytes, n); }

/* ---- lists ---- */

void tfu_tuned_append(tfu_tuned_lines *l, const tfu_tuned_line *line) {
  if (l->n == TFU_TUNED_MOST) return;
  if (l->n == l->room) {
    const int room = l->room ? 2 * l->room : 64;
    tfu_tuned_line *more = realloc(l->line, (size_t)room * sizeof *more);
    if (!more) {
      l->lost = 1;
      return;
    }
    l->line = more;
    l->room = room;
  }
  l->line[l->n] = *line;
  l->line[l->n++].hash = hash_of(line->text, strlen(line->text));
}

const tfu_tuned_line *tfu_tuned_find(const tfu_tuned_lines *l, const char *text) {
  const uint64_t hash = hash_of(text, strlen(text));
  for (int i = 0; i < l->n; i++)
    if (l->line[i].hash == hash && !strcmp(l->line[i].text, text)) return &l->line[i];
  return NULL;
}

void tfu_tuned_release(tfu_tuned_lines *l) {
  free(l->line);
  *l = (tfu_tuned_lines){0};
}

/* ---- the place ---- */

const char *tfu_tuned_path(void) {
  static __thread char path[PATH_MAX];
  const char *own = getenv("TFUSE_CACHE"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int n = 0;
  if (own && *own) n = snprintf(path, sizeof path, "%s/tuned", own);
  else if (cache && *cache == '/') n = snprintf(path, sizeof path, "%s/tfuse/tuned", cache);
  else if (home && *home == '/') n = snprintf(path, sizeof path, "%s/.cache/tfuse/tuned", home);
  return n > 0 && n < (int)sizeof path ? path : "";
}

int tfu_tuned_is_own(void) { return tfu_whose_file(AT_FDCWD, tfu_tuned_path(), first_words) == TFU_OURS; }

/* ---- lines ---- */

static int write_line(char *to, const tfu_tuned_line *line) {
  char hex[2 * TFU_TUNED_DATA + 1] = "";
  for (int i = 0; i < TFU_TUNED_DATA; i++) snprintf(hex + 2 * i, 3, "%02x", line->choice.data[i]);
  const int64_t nanoseconds = (int64_t)(line->choice.microseconds * 1e3 + 0.5); /* %f may write a comma: number.h */
  const int n = snprintf(to, LINE, "%s\t%" PRId64 ".%03d\t%s\t%s", line->text, nanoseconds / 1000,
                         (int)(nanoseconds % 1000), hex, line->choice.label);
  return n + snprintf(to + n, (size_t)(LINE - n), "\t%016" PRIx64 "\n", hash_of(to, (size_t)n));
}

static int read_hex(const char *hex, unsigned char *data) {
  if (strlen(hex) != 2 * TFU_TUNED_DATA || strspn(hex, "0123456789abcdef") != 2 * TFU_TUNED_DATA) return 0;
  for (int i = 0; i < TFU_TUNED_DATA; i++) sscanf(hex + 2 * i, "%2hhx", &data[i]);
  return 1;
}

/* `text` is cut into its fields. Whether it is a whole line. */
static int read_line(char *text, tfu_tuned_line *line) {
  enum { FIELDS = 5 };
  char *field[FIELDS], *checksum = strrchr(text, '\t'), *end;
  int n = 0;
  if (!checksum || hash_of(text, (size_t)(checksum - text)) != strtoull(checksum + 1, NULL, 16)) return 0;
  for (char *at = text; at && n < FIELDS; at = end ? end + 1 : NULL) {
    field[n++] = at;
    if ((end = strchr(at, '\t'))) *end = 0;
  }
  *line = (tfu_tuned_line){0};
  if (n != FIELDS || strlen(field[0]) >= sizeof line->text || strlen(field[3]) >= sizeof line->choice.label) return 0;
  strcpy(line->text, field[0]);
  strcpy(line->choice.label, field[3]);
  line->choice.microseconds = (float)tfu_number(field[1], &end);
  return !*end && isfinite(line->choice.microseconds) && line->choice.microseconds > 0 &&
         read_hex(field[2], line->choice.data);
}

/* ---- files ---- */

void tfu_tuned_read(const char *path, tfu_tuned_lines *lines) {
  char text[LINE];
  tfu_tuned_line line;
  FILE *file = *path ? tfu_open_own(path) : NULL;
  if (!file) return;
  if (fgets(text, sizeof text, file) && !strcmp(text, first_line))
    for (int i = 0; i < 2 * TFU_TUNED_MOST && fgets(text, sizeof text, file); i++) {
      char *end = strchr(text, '\n'); /* none: a line that is cut short, or too long */
      if (!end) continue;
      *end = 0;
      if (read_line(text, &line) && !tfu_tuned_find(lines, line.text)) tfu_tuned_append(lines, &line);
    }
  if (ferror(file)) lines->lost = 1;
  fclose(file);
}

void tfu_tuned_write(const char *path, const tfu_tuned_lines *lines) {
  char temporary[PATH_MAX], text[LINE];
  FILE *file = NULL;
  if (!lines->lost && tfu_whose_file(AT_FDCWD, path, first_words) != TFU_OTHERS)
    file = tfu_create_beside(path, temporary);
  if (!file) return;
  int whole = fwrite(first_line, 1, sizeof first_line - 1, file) == sizeof first_line - 1;
  for (int i = 0; whole && i < lines->n; i++) {
    const int n = write_line(text, &lines->line[i]);
    whole = n < LINE && fwrite(text, 1, (size_t)n, file) == (size_t)n;
  }
  tfu_put_in_place(file, whole, temporary, path);
}
