/* kernels/cpu/encode_grid.c - the encoders of cpu/encode_grid.tmpl.c in plain C: their specification. */
#define KN_ONE_LANE
#include "kernels/cpu/encode_grid.tmpl.c"
