/* engine/hub/library.c - loads a library and finds its functions. */
#include "engine/hub/internal.h"

#include <dlfcn.h>
#include <string.h>

int hub_library_load(const char *what, const char *package, const char *const *file, const struct hub_call *call, int n)
{
    void *library = NULL, *found;
    for (; *file && !library; file++)
        library = dlopen(*file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return kn_fail(KN_EUNSUPPORTED, "downloads need %s (%s): install the package %s", what, dlerror(), package);
    for (int i = 0; i < n; i++) {
        if (!(found = dlsym(library, call[i].name)))
            return kn_fail(KN_EUNSUPPORTED, "downloads need a newer %s: it has no %s", what, call[i].name);
        memcpy(call[i].at, &found, sizeof found);
    }
    return 0;
}
