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
