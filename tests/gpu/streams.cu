/* Kernels for tests of streams. */
extern "C" __global__ void add(unsigned *to, const unsigned *from, unsigned value, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        to[i] = from[i] + value;
}

/* Memory of the host that the device writes while the host looks at it. */
extern "C" __global__ void tell(volatile unsigned *flag, unsigned value) { *flag = value; }
