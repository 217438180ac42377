/* engine/api/model_sampling.c - reads general.sampling.* of a model's metadata into sampling parameters. */
#include "engine/api/model_sampling.h"

#include "engine/base/bytes.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define KEY   "general.sampling."
#define AT(f) offsetof(struct spec_params, f)

/* In the order in which they are named. */
static const struct {
    size_t at;
    const char *key, *name;
    double least, most;
    bool whole;
} fields[] = {
    { AT(temperature), KEY "temp", "temperature", 0, 100, false },
    { AT(top_k), KEY "top_k", "top-k", 0, INT32_MAX, true },
    { AT(top_p), KEY "top_p", "top-p", 0, 1, false },
    { AT(min_p), KEY "min_p", "min-p", 0, 1, false },
    { AT(xtc_probability), KEY "xtc_probability", "XTC probability", 0, 1, false },
    { AT(xtc_threshold), KEY "xtc_threshold", "XTC threshold", 0, 1, false },
    { AT(repetition), KEY "penalty_repeat", "repeat penalty", 0.01, 100, false },
    { AT(repeat_last), KEY "penalty_last_n", "repeat-last-n", -1, INT32_MAX, true },
};

enum { N_FIELD = (int)(sizeof fields / sizeof *fields), ORDER = 1 << N_FIELD };

unsigned eng_model_sampling_bit(size_t offset)
{
    for (int i = 0; i < N_FIELD; i++)
        if (fields[i].at == offset)
            return 1u << i;
    return offset == AT(order) ? ORDER : 0;
}

static bool is_number(const struct moe_value *v)
{
    return v->type != MOE_STRING && v->type != MOE_ARRAY && v->type != MOE_BOOL;
}

static bool set_field(struct spec_params *p, int i, double x)
{
    void *to = (char *)p + fields[i].at;
    if (!(x >= fields[i].least && x <= fields[i].most) || (fields[i].whole && x != (double)(int)x))
        return false;
    if (fields[i].whole)
        *(int *)to = (int)x;
    else
        *(float *)to = (float)x;
    return true;
}

static void add(struct eng_bytes *said, const char *name, double x)
{
    if (x == (double)(int)x)
        eng_bytes_format(said, "%s%s %d", said->n ? ", " : "", name, (int)x);
    else
        eng_bytes_format(said, "%s%s %.4g", said->n ? ", " : "", name, x);
}

void eng_model_sampling(struct spec_params *p, unsigned given, const struct moe_file *f)
{
    struct eng_bytes said = { 0 };
    for (int i = 0; i < N_FIELD && given != ENG_MODEL_SAMPLING_NONE; i++) {
        const struct moe_value *v = moe_file_find(f, fields[i].key);
        if (!v || given >> i & 1)
            continue;
        double x = is_number(v) ? moe_value_float(v, 0) : NAN;
        if (set_field(p, i, x))
            add(&said, fields[i].name, x);
        else
            kn_say(KN_LOG_WARN, "%s: %s is ignored: it is out of range", moe_file_path(f), fields[i].key);
    }
    const struct moe_value *order = given & ORDER ? NULL : moe_file_find(f, KEY "sequence");
    const struct moe_string *names = order && order->type == MOE_STRING ? order->data : NULL;
    if (names && spec_order_read(p, names->data, names->n))
        eng_bytes_format(&said, "%sits own order of steps", said.n ? ", " : "");
    else if (order)
        kn_say(KN_LOG_WARN, "%s: " KEY "sequence is ignored: it has unknown steps", moe_file_path(f));
    if (said.n && !said.failed)
        kn_say(KN_LOG_INFO, "sampling defaults of the model: %.*s (--sampling-defaults none: off)", (int)said.n,
               said.data);
    eng_bytes_free(&said);
}
