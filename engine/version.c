/* engine/version.c - the version with its commit, which the Makefile passes as ENG_COMMIT: the commit of the git tree, or
 * that of the archive that the sources come from (engine/commit); neither: not defined. */
#include "engine/engine.h"

#ifdef ENG_COMMIT
const char eng_commit[] = ENG_COMMIT, eng_version_text[] = ENG_VERSION " (" ENG_COMMIT ")";
#else
const char eng_commit[] = "", eng_version_text[] = ENG_VERSION;
#endif
