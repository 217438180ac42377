/* Operations of experts: the cases of the host on a CUDA device. */
#include "tests/cuda/on_cuda.h"

#include "tests/kernels/test_pass_layers.c"
