/* Runs a fuzzer's function without libFuzzer, so that any compiler and sanitizer will do: replay FILES... runs it on each
 * file, and on copies of the files in which some bytes are changed or the end is cut off, RUNS in all. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core.h"

#define RUNS 1000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint64_t random_state;
static size_t random_below(size_t n) { return (size_t)(kn_mix(random_state += KN_GOLDEN) % n); }

/* A copy in memory of its own, so that AddressSanitizer sees a read behind its end. */
static void run(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    if (n)
        memcpy(copy, data, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

/* Bytes that formats give a meaning; the others are drawn from all. */
static const char marks[] = "\0\xff\"{}[],:\\\n%";

static void run_changed(const uint8_t *data, size_t n)
{
    uint8_t *changed = malloc(n);
    memcpy(changed, data, n);
    for (size_t left = 1 + random_below(4); left > 0; left--) {
        size_t byte = random_below(3) ? random_below(256) : (uint8_t)marks[random_below(sizeof marks - 1)];
        changed[random_below(n)] = (uint8_t)byte;
    }
    run(changed, random_below(4) ? n : random_below(n));
    free(changed);
}

static int replay(const char *path, int n_changed)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    size_t n = (size_t)ftell(f);
    uint8_t *data = malloc(n ? n : 1);
    rewind(f);
    n = fread(data, 1, n, f);
    fclose(f);
    random_state = n;
    run(data, n);
    for (int i = 0; i < n_changed && n; i++)
        run_changed(data, n);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= replay(argv[i], RUNS / argc);
    return failed;
}
