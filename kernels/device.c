/* Devices by name: the host, those of CUDA, and those that a test offers. */
#include "kernels/device.h"
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

/* A GPU is compared with the host before it computes anything. */
static int open_cuda(struct kn_device **out, int number)
{
    struct kn_device *d;
    int error = kn_cuda_open(&d, number);
    if (!error && (error = kn_cuda_self_test(d)) != 0)
        kn_cuda_close(d);
    if (!error)
        *out = d;
    return error;
}

static struct kn_device_kind kinds[3] = { { "cuda", open_cuda } };
static int n_kind = 1;

void kn_device_offer(const char *name, int (*open)(struct kn_device **out, int number))
{
    kn_assert(n_kind < (int)(sizeof kinds / sizeof *kinds));
    kinds[n_kind++] = (struct kn_device_kind){ name, open };
}

/* "name" or "name:number": whether text names this kind, and its number, by default 0. */
static bool names(const char *text, const char *name, int *number)
{
    size_t n = strlen(name);
    char *end;
    *number = 0;
    if (strncmp(text, name, n) != 0 || (text[n] && text[n] != ':'))
        return false;
    if (text[n]) {
        long l = strtol(text + n + 1, &end, 10);
        if (text[n + 1] < '0' || text[n + 1] > '9' || *end || l > 99)
            return false;
        *number = (int)l;
    }
    return true;
}

int kn_device_open(const struct kn_device **out, const char *name, enum kn_isa isa)
{
    struct kn_device *d;
    int number, error;
    if (!name || strcmp(name, "host") == 0) {
        *out = kn_host_device(isa);
        return 0;
    }
    for (int i = 0; i < n_kind; i++)
        if (names(name, kinds[i].name, &number)) {
            if ((error = kinds[i].open(&d, number)) == 0)
                *out = d;
            return error;
        }
    return kn_fail(KN_EINVAL, "there is no device '%s': host, cuda or cuda:NUMBER", name);
}

void kn_device_close(const struct kn_device *d)
{
    if (d && d->backend->close)
        d->backend->close((struct kn_device *)(uintptr_t)d);
}
