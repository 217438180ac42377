/* Operations on rows, of attention and of draft heads, and copies: the cases of the host on a CUDA device. */
#include "tests/cuda/on_cuda.h"

#include "tests/kernels/test_pass.c"
