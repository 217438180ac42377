/* kernels/cpu/encode.c - the encoders of cpu/encode.tmpl.c in plain C: their specification. */
#define KN_ONE_LANE
#include "kernels/cpu/encode.tmpl.c"
