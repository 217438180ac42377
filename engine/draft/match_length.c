/* engine/draft/match_length.c - predicts the accepted length of the next draft from the target's last feature: a
 * network for each drafter that was given one (--draft KIND:FILE,lengths=FILE). The controller gets the prediction
 * before it decides.
 *
 * The feature is that of the last computed token, the one before the row of this pass. It lies in the model's context
 * at the token's slot, as for an EAGLE head. */
#include "engine/draft/internal.h"

#include <stdio.h>

#define MAX_WIDTH 16384

struct eng_lengths {
    struct eng_drafting *drafting;
    struct spec_lengths net;
    float *weights, *scratch;        /* scratch: [n_parallel][n_in + 2 * n_hidden] */
    double (*survival)[SPEC_DEPTHS]; /* [n_parallel] by due sequence */
};

/* ---- the file: F32 tensors lengths.N.weight [inputs][outputs] and lengths.N.bias --------------------------- */

static int read_tensor(const struct moe_file *f, const char *what, int layer, uint64_t n_out, uint64_t n_in, float *out)
{
    char name[32];
    snprintf(name, sizeof name, "lengths.%d.%s", layer, what);
    const struct moe_tensor *t = moe_file_find_tensor(f, name);
    if (!t || t->gguf_type != 0 || t->dim[0] != n_out || t->dim[1] != n_in || t->bytes != n_out * n_in * sizeof *out)
        return kn_fail(KN_EINVAL, "%s: %s is not an F32 tensor of %llu by %llu: evals/lengths writes such files",
                       moe_file_path(f), name, (unsigned long long)n_out, (unsigned long long)n_in);
    return moe_file_read(f, t, 0, out, (size_t)t->bytes);
}

/* The first matrix gives the width of the layers. */
static int read_net(struct spec_lengths *net, float **weights, const struct moe_file *f)
{
    const struct moe_tensor *first = moe_file_find_tensor(f, "lengths.0.weight");
    uint64_t n = first ? first->dim[0] : 0, n_in = first ? first->dim[1] : 0;
    if (n < 1 || n > MAX_WIDTH || n_in < 1 || n_in > MAX_WIDTH)
        return kn_fail(KN_EINVAL, "%s: has no lengths.0.weight of up to %d by %d: evals/lengths writes such files",
                       moe_file_path(f), MAX_WIDTH, MAX_WIDTH);
    uint64_t in[] = { n_in, n, n }, out[] = { n, n, SPEC_LENGTHS };
    float *at = *weights = kn_calloc((size_t)((n_in + n + 2) * n + (n + 1) * SPEC_LENGTHS), sizeof *at);
    int error = at ? 0 : kn_fail(KN_ENOMEM, "no memory for %s", moe_file_path(f));
    *net = (struct spec_lengths){ .n_in = (int)n_in, .n_hidden = (int)n };
    for (int i = 0; i < SPEC_LENGTH_LAYERS && !error; i++) {
        net->weight[i] = at;
        net->bias[i] = at + in[i] * out[i];
        if (!(error = read_tensor(f, "weight", i, out[i], in[i], at)))
            error = read_tensor(f, "bias", i, out[i], 1, at + in[i] * out[i]);
        at += (in[i] + 1) * out[i];
    }
    return error;
}

int eng_lengths_read(struct spec_lengths *out, float **weights, const char *path)
{
    struct moe_file *f;
    int error = moe_file_open(&f, path);
    if (error)
        return error;
    error = read_net(out, weights, f);
    moe_file_close(f);
    return error;
}

int eng_lengths_open(struct eng_drafting *g, int drafter, const char *path)
{
    int d_model = moe_model_shape(g->host.model)->d_model;
    struct eng_lengths *l = g->lengths[drafter] = kn_calloc(1, sizeof *l);
    int error = l ? eng_lengths_read(&l->net, &l->weights, path) : kn_fail(KN_ENOMEM, "no memory for %s", path);
    if (!error && l->net.n_in != d_model)
        error = kn_fail(KN_EUNSUPPORTED, "%s predicts lengths from features of %d values, %s has %d", path, l->net.n_in,
                        g->host.model_path, d_model);
    if (error)
        return error;
    l->drafting = g;
    l->scratch = kn_calloc((size_t)g->host.n_parallel * (size_t)(d_model + 2 * l->net.n_hidden), sizeof *l->scratch);
    l->survival = kn_calloc((size_t)g->host.n_parallel, sizeof *l->survival);
    g->features.last = true;
    return l->scratch && l->survival ? 0 : kn_fail(KN_ENOMEM, "no memory for %s", path);
}

void eng_lengths_close(struct eng_drafting *g)
{
    for (int i = 0; i < ENG_DRAFTERS_MOST; i++) {
        struct eng_lengths *l = g->lengths[i];
        if (!l)
            continue;
        kn_free(l->weights);
        kn_free(l->scratch);
        kn_free(l->survival);
        kn_free(l);
    }
}

/* ---- a pass ------------------------------------------------------------------------------------------------- */

/* Where the feature of a due sequence is, before the scratch of its prediction. */
static float *feature_of(const struct eng_lengths *l, int i)
{
    return l->scratch + (size_t)i * (size_t)(l->net.n_in + 2 * l->net.n_hidden);
}

/* Predicts for one due sequence. The network predicts for 1, 2 and 4 nodes a level. With coupled verification a drafter
 * may draft several nodes a level, of which the best are verified: the prediction for 4 is taken. Under the other rules
 * the choice of nodes must not depend on the drafted tokens: the prediction for 1. */
static void guess_item(void *arg, int i, int thread)
{
    struct eng_lengths *l = arg;
    struct eng_drafting *g = l->drafting;
    float *feature = feature_of(l, i);
    double length[SPEC_LENGTHS];
    (void)thread;
    if (!eng_has_last_feature(g->due[i]))
        return;
    spec_lengths_predict(&l->net, feature, feature + l->net.n_in, length);
    int width = g->opt.verify == SPEC_COUPLED ? SPEC_LENGTH_WIDTHS - 1 : 0;
    spec_lengths_survival(length + width * SPEC_LENGTH_DEPTHS, l->survival[i]);
}

void eng_lengths_predict(struct eng_drafting *g)
{
    for (int k = 0; k < g->n_drafter; k++) {
        struct eng_lengths *l = g->lengths[k];
        if (!l || g->drafter[k]->upkeep.unloaded)
            continue;
        for (int i = 0; i < g->n_due; i++) {
            const struct eng_seq *s = g->due[i];
            if (eng_has_last_feature(s))
                moe_context_feature(g->host.context, s->path.slot[s->n_kv - 1], feature_of(l, i));
        }
        kn_parallel_for(g->host.team, g->n_due, guess_item, l);
        for (int i = 0; i < g->n_due; i++)
            if (g->due[i]->draft->usable >> k & 1)
                spec_control_set_survival(g->control, k, g->due[i]->number,
                                          eng_has_last_feature(g->due[i]) ? l->survival[i] : NULL);
    }
}
