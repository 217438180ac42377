/* engine/base/side_files.c - the names of the files that stand beside a model: its pack file, heat file and fit file. */
#include "engine/base/base.h"

#include <stdio.h>
#include <string.h>

#define MODEL_SUFFIX ".gguf"
#define PACK_SUFFIX  ".experts"
#define HEAT_SUFFIX  ".heat"
#define FIT_SUFFIX   ".fit"

int eng_pack_path(char *out, const char *model)
{
    size_t n = strlen(model), suffix = sizeof MODEL_SUFFIX - 1;
    if (n > suffix && !strcmp(model + n - suffix, MODEL_SUFFIX))
        n -= suffix;
    if (n + sizeof PACK_SUFFIX > ENG_PATH_BYTES)
        return kn_fail(KN_ELIMIT, "%s: the name is too long", model);
    memcpy(out, model, n);
    memcpy(out + n, PACK_SUFFIX, sizeof PACK_SUFFIX);
    return 0;
}

bool eng_heat_path(char *out, const char *model)
{
    return snprintf(out, ENG_PATH_BYTES, "%s" HEAT_SUFFIX, model) < ENG_PATH_BYTES;
}

bool eng_fit_path(char *out, const char *model)
{
    return snprintf(out, ENG_PATH_BYTES, "%s" FIT_SUFFIX, model) < ENG_PATH_BYTES;
}
