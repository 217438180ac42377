/* speculative/params.c - the parameters of sampling: their defaults, ranges and names of steps. */
#include "speculative/internal.h"

#define MOST_STEP 100 /* range of penalties that are subtracted */

void spec_params_default(struct spec_params *p)
{
    *p = (struct spec_params){
        .temperature = 1,
        .top_p = 1,
        .typical_p = 1,
        .xtc_threshold = 0.1f,
        .dry_base = 1.75f,
        .dry_allowed = 2,
        .dry_last = -1,
        .repetition = 1,
        .repeat_last = 64,
    };
}

static int check_number(const char *name, double x, double least, double most)
{
    if (x >= least && x <= most)
        return 0;
    return kn_fail(KN_EINVAL, "%s must be between %g and %g, not %g", name, least, most, x);
}

static int check_numbers(const struct spec_params *p)
{
    const struct {
        const char *name;
        double x, least, most;
    } number[] = {
        { "temperature", p->temperature, 0, 1000 },
        { "top-k", p->top_k, 0, INT32_MAX },
        { "top-p", p->top_p, 0, 1 },
        { "min-p", p->min_p, 0, 1 },
        { "typical-p", p->typical_p, 0, 1 },
        { "top-n-sigma", p->top_n_sigma, 0, 1000 },
        { "xtc-probability", p->xtc_probability, 0, 1 },
        { "xtc-threshold", p->xtc_threshold, 0, 1 },
        { "dry-multiplier", p->dry_multiplier, 0, 100 },
        { "dry-base", p->dry_base, 1, 100 },
        { "dry-allowed-length", p->dry_allowed, 0, SPEC_DRY_LONGEST },
        { "dry-penalty-last-n", p->dry_last, -1, INT32_MAX },
        { "repetition penalty", p->repetition, 0.01, 100 },
        { "presence penalty", p->presence, -MOST_STEP, MOST_STEP },
        { "frequency penalty", p->frequency, -MOST_STEP, MOST_STEP },
        { "repeat-last-n", p->repeat_last, -1, INT32_MAX },
    };
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        int e = check_number(number[i].name, number[i].x, number[i].least, number[i].most);
        if (e < 0)
            return e;
    }
    return 0;
}

static int check_order(const struct spec_params *p)
{
    if (!p->has_order)
        return 0;
    if (p->n_order < 0 || p->n_order > SPEC_STEPS)
        return kn_fail(KN_EINVAL, "samplers: %d steps; at most %d are possible", p->n_order, SPEC_STEPS);
    for (int i = 0; i < p->n_order; i++)
        for (int j = 0; j < i; j++)
            if (p->order[i] == p->order[j])
                return kn_fail(KN_EINVAL, "samplers: '%s' is listed twice",
                               spec_step_name((enum spec_step)p->order[i]));
    return 0;
}

int spec_params_check(const struct spec_params *p, int n_vocab)
{
    int e = check_numbers(p);
    if (e < 0 || (e = check_order(p)) < 0)
        return e;
    for (int i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token < 0 || p->bias[i].token >= n_vocab)
            return kn_fail(KN_EINVAL, "logit bias: token %d is not one of the model's %d", p->bias[i].token, n_vocab);
        if (!(p->bias[i].add <= FLT_MAX))
            return kn_fail(KN_EINVAL, "logit bias of token %d must be a number or -inf", p->bias[i].token);
    }
    for (int i = 0; i < p->n_banned; i++)
        if (p->banned[i].n < 1)
            return kn_fail(KN_EINVAL, "a banned sequence of tokens is empty");
    return 0;
}

/* ---- names ------------------------------------------------------------------------------------- */

/* The first name is llama-server's own; its letter is the one of the short form. */
static const struct {
    char letter;
    const char *names[6];
} steps[SPEC_STEPS] = {
    [SPEC_STEP_PENALTIES] = { 'e', { "penalties" } },
    [SPEC_STEP_DRY] = { 'd', { "dry" } },
    [SPEC_STEP_TOP_N_SIGMA] = { 's', { "top_n_sigma", "top-n-sigma" } },
    [SPEC_STEP_TOP_K] = { 'k', { "top_k", "top-k" } },
    [SPEC_STEP_TYPICAL_P] = { 'y', { "typ_p", "typical_p", "typical-p", "typ-p", "typical", "typ" } },
    [SPEC_STEP_TOP_P] = { 'p', { "top_p", "top-p", "nucleus" } },
    [SPEC_STEP_MIN_P] = { 'm', { "min_p", "min-p" } },
    [SPEC_STEP_XTC] = { 'x', { "xtc" } },
    [SPEC_STEP_TEMPERATURE] = { 't', { "temperature", "temp" } },
};

const char *spec_step_name(enum spec_step step) { return steps[step].names[0]; }

int spec_step_find(const char *name, size_t n)
{
    for (int i = 0; i < SPEC_STEPS; i++)
        for (int k = 0; k < 6 && steps[i].names[k]; k++)
            if (strlen(steps[i].names[k]) == n && !memcmp(steps[i].names[k], name, n))
                return i;
    return -1;
}

int spec_step_of_letter(char letter)
{
    for (int i = 0; i < SPEC_STEPS; i++)
        if (steps[i].letter == letter)
            return i;
    return -1;
}

bool spec_order_add(struct spec_params *p, int step)
{
    if (step < 0 || memchr(p->order, step, (size_t)p->n_order))
        return false;
    p->order[p->n_order++] = (uint8_t)step;
    return true;
}

bool spec_order_read(struct spec_params *p, const char *names, size_t n)
{
    struct spec_params read = *p;
    read.has_order = true;
    read.n_order = 0;
    for (size_t at = 0; at < n;) {
        const char *end = memchr(names + at, ';', n - at);
        size_t length = end ? (size_t)(end - names) - at : n - at;
        if (!spec_order_add(&read, spec_step_find(names + at, length)))
            return false;
        at += length + 1;
    }
    *p = read;
    return true;
}
