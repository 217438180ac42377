/* offload/internal.h - what the files of offload/ share. */
#ifndef OFFLOAD_INTERNAL_H
#define OFFLOAD_INTERNAL_H

#include "offload/offload.h"

#define OFF_MAX_FILES 1024

#endif
