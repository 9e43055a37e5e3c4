/* number.h - numbers in texts, which have a point in any locale: where a program has set one with a comma, as German
 * has, strtod reads "0.5" as 0. */
#ifndef TFUSE_NUMBER_H_
#define TFUSE_NUMBER_H_

/* As strtod in the C locale. */
double tfu_number(const char *text, char **end);

#endif
