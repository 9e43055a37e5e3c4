/* tuned_file.h - the file of tuned.h: lists of lines, read and written. Private to tuned.c and its test. */
#ifndef TFUSE_TUNED_FILE_H_
#define TFUSE_TUNED_FILE_H_

#include "kernels/core/gpu/tuned.h"

typedef struct tfu_tuned_line {
  char text[TFU_TUNED_TEXT];
  uint64_t hash; /* of the text, of lines in a list: thousands differ in their last characters only */
  tfu_choice choice;
} tfu_tuned_line;

typedef struct tfu_tuned_lines {
  tfu_tuned_line *line;
  int n, room;
  int lost; /* lines could not be read, or there was no memory for them */
} tfu_tuned_lines;

/* Does nothing where there are TFU_TUNED_MOST already, or no memory. */
void tfu_tuned_append(tfu_tuned_lines *lines, const tfu_tuned_line *line);
const tfu_tuned_line *tfu_tuned_find(const tfu_tuned_lines *lines, const char *text);
void tfu_tuned_release(tfu_tuned_lines *lines);

/* Appends the lines of the file that are whole. */
void tfu_tuned_read(const char *path, tfu_tuned_lines *lines);
/* Puts a new file in its place, or leaves all as it is: so where lines are lost, which the file may still have, and
 * where the file is not of ours. */
void tfu_tuned_write(const char *path, const tfu_tuned_lines *lines);

#endif
