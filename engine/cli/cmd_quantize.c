/* engine/cli/cmd_quantize.c - `spillway quantize IN.gguf -o OUT.gguf --format q4_k`: converts a model's
 * weights to other formats.
 *
 * In: a model file, the first of its splits or a folder, and optionally a format for each part of the model and an
 * importance matrix.
 * Out: one file, and on stdout a line for each tensor: both formats, bits per weight and relative error (root
 * mean square of the differences over that of the values), then a total; with -q the total only.  With --json the same
 * as one object.
 * moe_quantize() reports on stderr the tensors that get another format than asked for. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/base/base.h"
#include "engine/cli/cli.h"

/* ---- output ---------------------------------------------------------------------------------- */

static double bits_per_weight(const struct moe_quantized *q)
{
    return q->n_value ? (double)q->bytes * 8 / (double)q->n_value : 0;
}

static double relative_error(const struct moe_quantized *q) { return q->square > 0 ? sqrt(q->error / q->square) : 0; }

static struct moe_quantized sum_of(const struct moe_quantized *done, size_t n)
{
    struct moe_quantized sum = { 0 };
    for (size_t i = 0; i < n; i++) {
        sum.n_value += done[i].n_value;
        sum.bytes += done[i].bytes;
        sum.square += done[i].square;
        sum.error += done[i].error;
    }
    return sum;
}

/* The format's name for the output.  A tensor without weights (n_value 0) is a copied list of token ids, of type
 * I64. */
static const char *name_of(const struct moe_quantized *q, enum kn_format f)
{
    return q->n_value ? kn_format_info(f)->name : "I64";
}

static void print_lines(const struct moe_file *f, const struct moe_quantized *done, size_t n, bool quiet)
{
    for (size_t i = 0; i < n && !quiet; i++) {
        const struct moe_quantized *q = &done[i];
        char name[64];
        moe_string_show(moe_file_tensor(f, i)->name, name, sizeof name);
        printf("%-40s %5s to %-5s %6.2f bits  error %.6f\n", name, name_of(q, q->from), name_of(q, q->to),
               bits_per_weight(q), relative_error(q));
    }
    struct moe_quantized sum = sum_of(done, n);
    printf("%zu tensors, %" PRIu64 " weights: %.2f bits per weight, relative error %.6f\n", n, sum.n_value,
           bits_per_weight(&sum), relative_error(&sum));
}

static void print_measures(const struct moe_quantized *q)
{
    printf("\"n_weight\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"bits_per_weight\":%.4f,"
           "\"relative_error\":%.8f",
           q->n_value, q->bytes, bits_per_weight(q), relative_error(q));
}

static void print_json(const char *path, const struct moe_file *f, const struct moe_quantized *done, size_t n)
{
    struct moe_quantized sum = sum_of(done, n);
    printf("{\"file\":");
    eng_json_string(stdout, (struct moe_string){ path, strlen(path) });
    putchar(',');
    print_measures(&sum);
    printf(",\"tensors\":[");
    for (size_t i = 0; i < n; i++) {
        printf(i ? ",{\"name\":" : "{\"name\":");
        eng_json_string(stdout, moe_file_tensor(f, i)->name);
        printf(",\"from\":\"%s\",\"to\":\"%s\",", name_of(&done[i], done[i].from), name_of(&done[i], done[i].to));
        print_measures(&done[i]);
        putchar('}');
    }
    printf("]}\n");
}

/* ---- the conversion -------------------------------------------------------------------------- */

static int read_format(const char *flag, const char *name, enum kn_format *out)
{
    if (!kn_format_find(name, out))
        return 0;
    return kn_fail(KN_EINVAL, "--%s %s is unknown; the formats are%s", flag, name, kn_format_list);
}

static int read_formats(const struct eng_config *config, enum kn_format format[MOE_PART_COUNT])
{
    static const char *const flag[MOE_PART_COUNT] = {
        [MOE_EXPERTS] = "experts",     [MOE_FFN] = "ffn",   [MOE_ATTENTION] = "attention",
        [MOE_EMBEDDING] = "embedding", [MOE_HEAD] = "head",
    };
    int err = 0;
    for (int i = 0; !err && i < MOE_PART_COUNT; i++) {
        const char *own = config->part_format[i];
        err = read_format(own ? flag[i] : "format", own ? own : config->format, &format[i]);
    }
    return err;
}

static int quantize(const struct eng_config *config, const struct moe_file *f, struct moe_quantize_options *opt,
                    struct moe_quantized *done)
{
    struct eng_progress *bar = NULL;
    struct moe_importance *importance = NULL;
    int err = kn_team_open(&opt->team, config->n_thread);
    if (!err && config->imatrix)
        err = moe_importance_open(&importance, config->imatrix);
    opt->importance = importance;
    if (!err)
        err = eng_progress_open(&bar, config->output, config->quiet);
    if (!err) {
        opt->progress = eng_progress_counter(bar);
        opt->stop = eng_interrupt();
        err = moe_quantize(config->output, f, opt, done);
    }
    eng_progress_close(bar);
    moe_importance_close(importance);
    kn_team_close(opt->team);
    return err;
}

int eng_cmd_quantize(const struct eng_config *config)
{
    struct moe_quantize_options opt = { .requantize = config->requantize, .ops = kn_ops(config->isa) };
    struct moe_quantized *done = NULL;
    struct moe_file *f = NULL;
    int err = read_formats(config, opt.format);
    if (!err)
        err = moe_file_open(&f, config->model);
    if (!err)
        err = moe_file_refuse_target(f, config->output);
    size_t n = err ? 0 : moe_file_tensor_count(f);
    if (!err && !(done = kn_calloc(n, sizeof *done)))
        err = kn_fail(KN_ENOMEM, "quantize: no memory for a list of %zu tensors", n);
    if (!err)
        err = quantize(config, f, &opt, done);
    if (!err && config->json)
        print_json(config->output, f, done, n);
    else if (!err)
        print_lines(f, done, n, config->quiet);
    kn_free(done);
    moe_file_close(f);
    return err ? 2 : 0;
}
