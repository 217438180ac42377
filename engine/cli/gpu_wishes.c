/* engine/cli/gpu_wishes.c - the flags of llama.cpp that place weights on a GPU: -ngl, --cpu-moe, --n-cpu-moe.
 *
 * They are wishes: this program follows them as far as it places weights in that way, and one line for each says how.
 * Dense weights, attention and KV cache are on a device for all layers or for none. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/cli.h"
#include "kernels/kernels.h"

#define MANY_LAYERS 100000

/* The number of layers: "all" and "auto" are many.  Negative: no number. */
static long layers(const char *text)
{
    char *end;
    if (!strcmp(text, "all") || !strcmp(text, "auto") || !strcmp(text, "-1"))
        return MANY_LAYERS;
    errno = 0;
    long n = strtol(text, &end, 10);
    return errno || end == text || *end || n < 0 ? -1 : n;
}

static bool is_host(const struct eng_config *c) { return !c->device || !strcmp(c->device, "host"); }

static int place_layers(struct eng_config *c, enum eng_command_id command)
{
    const char *n = c->gpu_layers;
    long wished = layers(n);
    if (wished < 0)
        return kn_fail(KN_EINVAL, "-ngl %s is no number of layers: use 0, a number, auto or all", n);
    if (wished == 0) {
        kn_say(KN_LOG_INFO, is_host(c) ? "-ngl 0: everything is computed on the host"
                                       : "-ngl 0: everything is computed on the host; --device is not used");
        c->device = NULL;
        return 0;
    }
    if (c->device && is_host(c)) {
        kn_say(KN_LOG_INFO, "-ngl %s is not used: --device host", n);
        return 0;
    }
    if (!c->device && command == ENG_imatrix) {
        kn_say(KN_LOG_INFO, "-ngl %s is not used: imatrix computes on the host", n);
        return 0;
    }
    if (!c->device && c->n_dsi > 1) {
        kn_say(KN_LOG_INFO, "-ngl %s is not used: the workers of --dsi %d compute on the host", n, c->n_dsi);
        return 0;
    }
    if (!c->device && kn_device_count() < 1) {
        kn_say(KN_LOG_INFO, "-ngl %s is not used, everything is computed on the host: %s", n, kn_device_why());
        return 0;
    }
    c->device = c->device ? c->device : "cuda";
    kn_say(KN_LOG_INFO,
           "-ngl %s: dense weights, attention and KV cache of all layers go to --device %s, and the most used experts "
           "that fit",
           n, c->device);
    return 0;
}

int eng_gpu_wishes(struct eng_config *c, enum eng_command_id command)
{
    int error = c->gpu_layers ? place_layers(c, command) : 0;
    if (error)
        return error;
    if (c->cpu_moe)
        kn_say(KN_LOG_INFO, is_host(c) ? "--cpu-moe changes nothing: without --device all experts are on the host"
                                       : "--cpu-moe: all experts stay on the host");
    else if (c->n_cpu_moe && is_host(c))
        kn_say(KN_LOG_INFO, "--n-cpu-moe %d changes nothing: without --device all experts are on the host",
               c->n_cpu_moe);
    else if (c->n_cpu_moe)
        kn_say(KN_LOG_INFO,
               "--n-cpu-moe %d: experts of the first %d layers stay on the host; of the others those that fit and are "
               "used most are on the device",
               c->n_cpu_moe, c->n_cpu_moe);
    if (c->cpu_moe)
        c->n_cpu_moe = MANY_LAYERS;
    return 0;
}
