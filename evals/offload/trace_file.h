/* evals/offload/trace_file.h - reads a routing trace (evals/offload/README.md), and gives the experts of a batch's rows. */
#ifndef EVALS_OFFLOAD_TRACE_FILE_H
#define EVALS_OFFLOAD_TRACE_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct trace {
    int n_stream, n_pass, n_group, n_expert; /* n_expert: of all groups */
    int *first;                              /* [n_group + 1] number of a group's first expert */
    size_t *at, pass_bytes;                  /* at: [n_group] offset of a group's bitmap in the bytes of a pass */
    uint8_t *bits;                           /* [n_stream][n_pass][pass_bytes] */
};

static inline bool read_trace(struct trace *t, FILE *f)
{
    if (fscanf(f, "spillway-trace 1 streams %d passes %d groups %d experts", &t->n_stream, &t->n_pass, &t->n_group) !=
            3 ||
        t->n_stream < 1 || t->n_pass < 1 || t->n_group < 1)
        return false;
    t->first = calloc((size_t)t->n_group + 1, sizeof *t->first);
    t->at = calloc((size_t)t->n_group, sizeof *t->at);
    for (int g = 0, n; g < t->n_group; g++) {
        if (fscanf(f, "%d", &n) != 1 || n < 1 || n > 65536)
            return false;
        t->at[g] = t->pass_bytes;
        t->pass_bytes += (size_t)(n + 7) / 8;
        t->first[g + 1] = t->n_expert += n;
    }
    size_t n_row = (size_t)t->n_stream * (size_t)t->n_pass;
    t->bits = malloc(n_row * t->pass_bytes);
    return t->bits && fgetc(f) == '\n' && fread(t->bits, t->pass_bytes, n_row, f) == n_row;
}

static inline bool open_trace(struct trace *t, const char *path)
{
    char command[512] = "";
    size_t n = strlen(path);
    bool zipped = n > 3 && !strcmp(path + n - 3, ".gz");
    snprintf(command, sizeof command, "gzip -dc '%s'", path);
    FILE *f = zipped ? popen(command, "r") : fopen(path, "rb");
    bool good = f && read_trace(t, f);
    if (f)
        zipped ? pclose(f) : fclose(f);
    return good;
}

/* The bits of row `row` in pass `pass`.  Each group of `batch` streams is replayed to its end, one group after the
 * other; then all again, with each stream started at another pass, so that few streams make many different passes. */
static inline const uint8_t *row_bits(const struct trace *t, int batch, int pass, int row)
{
    int groups = t->n_stream / batch, round = pass / t->n_pass;
    int stream = round % groups * batch + row;
    int at = (pass + round / groups * (row * 7 + 1)) % t->n_pass;
    return t->bits + ((size_t)stream * (size_t)t->n_pass + (size_t)at) * t->pass_bytes;
}

static inline bool is_used(const uint8_t *bits, int i) { return bits[i / 8] >> i % 8 & 1; }

#endif
