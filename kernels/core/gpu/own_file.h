/* own_file.h - files that a process keeps for the user, and other processes of his. */
#ifndef TFUSE_OWN_FILE_H_
#define TFUSE_OWN_FILE_H_

#include <stdio.h>

/* Opens for reading what is a file of this user alone: what others may write is not to be trusted with what runs here.
 * NULL: it is not. */
FILE *tfu_open_own(const char *path);
/* Whose the file `name` is, in the open folder `at` (AT_FDCWD: a path): ours is a plain file, and no link to one, that
 * begins with `word`. Others may keep theirs in the same folder: only ours are deleted, and only others' not replaced.
 */
typedef enum tfu_whose { TFU_NOBODYS, TFU_OURS, TFU_OTHERS } tfu_whose; /* nobody's: it is not there, or is empty */
tfu_whose tfu_whose_file(int at, const char *name, const char *word);
/* A new file of mode 0600 beside `path`, and its name, which has room for PATH_MAX. NULL: there is no place. */
FILE *tfu_create_beside(const char *path, char *name);
/* Ends writing: puts the file in the place of `path` where all was written, else removes it. */
void tfu_put_in_place(FILE *file, int whole, const char *name, const char *path);

#endif
