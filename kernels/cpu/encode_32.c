/* kernels/cpu/encode_32.c - the encoders of cpu/encode_32.tmpl.c in plain C: their specification. */
#define KN_ONE_LANE
#include "kernels/cpu/encode_32.tmpl.c"
