/* tests/moe/folder.h - a temporary folder of one test program, and a model path in it; removed at the end, after the
 * real system calls and the default log are restored. Include it last: the names are short. */
#ifndef TESTS_MOE_FOLDER_H
#define TESTS_MOE_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core.h"

static char folder[64], path[128];

static inline int folder_make(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/spillway-test-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    return 0;
}

/* All bytes of a file; the caller frees them. */
static inline uint8_t *folder_read(const char *name, size_t *bytes)
{
    FILE *f = fopen(name, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*bytes);
    assert_int_equal(fread(data, 1, *bytes, f), *bytes);
    fclose(f);
    return data;
}

static inline int folder_remove(void **state)
{
    (void)state;
    kn_io_set(NULL);
    kn_log_set(NULL, KN_LOG_INFO);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

#endif
