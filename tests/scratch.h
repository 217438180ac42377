/* tests/scratch.h - a new folder for the files of a test: in memory where possible, since on a disk each sync takes
 * milliseconds. */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Sets out, [size], to the path of a new folder, whose name begins with spillway-NAME. */
static inline bool scratch_make(char *out, size_t size, const char *name)
{
    snprintf(out, size, "%s/spillway-%s-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", name);
    return mkdtemp(out) != NULL;
}

#endif
