/* kernels/cpu/math.c - the functions of math.h and expf.h, for callers of other folders. */
#include "kernels/cpu/math.h"
#include "kernels/kernels.h"

float kn_expf(float x) { return kn_expf_inline(x); }

double kn_exp(double x) { return kn_exp_inline(x); }

double kn_log(double x) { return kn_log_inline(x); }

double kn_pow(double x, double y) { return kn_pow_inline(x, y); }

void kn_sincos(double x, double *s, double *c) { kn_sincos_inline(x, s, c); }
