/* Goldens in which a property has no effect prove nothing.  So here each property of a description is removed in turn,
 * and the logits must then differ from the golden ones by more than test_forward.c tolerates, at some position.
 *
 * Properties are removed in two ways: a key of the file is left out, if the description changes by that; and a field
 * of the description, which the family's row in family_table.c may have set, gets the value that it has in other families.
 *
 * One thread: not under MODE=tsan.
 *
 * test_forward.c runs its code: not under MODE=asan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

#include "moe/model/internal.h"
#include "tests/moe/golden.h"
#include "tests/moe/load.h"

#define TOLERANCE  1e-4
#define CHUNK      60
#define N_POSITION 300 /* of a golden model's context */

static struct kn_team *team;
static char path[64];

/* The largest difference to the golden logits; stops behind the first chunk that has one above the tolerance. */
static double run(const struct golden *g, const struct moe_model *m)
{
    struct moe_context_options co = {
        .max_row = CHUNK, .max_want = CHUNK, .n_slot = g->n_tok, .max_pos = g->n_tok, .kv = KN_KV_F32, .team = team
    };
    struct moe_context *c;
    struct moe_row row[CHUNK];
    int32_t *slot = calloc((size_t)g->n_tok, sizeof *slot);
    double worst = 0;
    assert_int_equal(moe_context_open(&c, m, &co), 0);
    for (int i = 0; i < g->n_tok; i++)
        slot[i] = i;
    for (int done = 0; done < g->n_tok && worst <= TOLERANCE; done += CHUNK) {
        struct moe_result result;
        int n = kn_min(CHUNK, g->n_tok - done);
        for (int i = 0; i < n; i++)
            row[i] = (struct moe_row){
                .token = g->token[done + i], .position = done + i, .want_logits = true, .base = slot, .n_base = g->n_tok
            };
        assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = n }, &result), 0);
        for (int i = 0; i < n; i++) {
            double apart = golden_apart(g, &g->row[done + i], result.logits + (size_t)i * (size_t)g->n_vocab);
            worst = apart > worst || isnan(apart) ? apart : worst;
            if (isnan(apart))
                worst = INFINITY;
        }
    }
    moe_context_close(c);
    free(slot);
    return worst;
}

/* ---- fields ------------------------------------------------------------------------------------------ */

/* Each removes one property from m and returns true, or returns false if the model does not have it. */
#define SET(name, field, value)                                                                                        \
    static bool name(struct moe_model *m)                                                                              \
    {                                                                                                                  \
        struct moe_desc *d = &m->desc;                                                                                 \
        bool differs = d->field != (value);                                                                            \
        d->field = (value);                                                                                            \
        return differs;                                                                                                \
    }
#define CLEAR(name, vector)                                                                                            \
    static bool name(struct moe_model *m)                                                                              \
    {                                                                                                                  \
        bool had = false;                                                                                              \
        for (int i = 0; i < m->desc.n_layer; i++) {                                                                    \
            had |= m->layer[i].vector != NULL;                                                                         \
            m->layer[i].vector = NULL;                                                                                 \
        }                                                                                                              \
        return had;                                                                                                    \
    }

SET(usual_rope_base, rope_base, 10000)
SET(no_window_rope, window_rope_base, 0)
SET(no_scaling, scaling, MOE_SCALING_NONE)
SET(no_scaling_attn, scaling_attn, 1)
SET(usual_scale, attend_scale, 1 / sqrtf((float)d->d_head))
SET(no_embed_scale, embed_scale, 1)
SET(no_residual_scale, residual_scale, 1)
SET(no_logit_scale, logit_scale, 1)
SET(swiglu, activation, MOE_SWIGLU)
SET(no_limit, swiglu_limit, 0)
SET(early_qk_norm, late_qk_norm, false)
SET(no_clamp, clamp_qkv, 0)
SET(no_query_growth, query_growth, 0)
SET(no_expert_scale, expert_scale, 1)
SET(no_shared, d_shared, 0)
SET(no_query_offset, query_offset, 0)
SET(queries_grow_everywhere, query_unrotated, false)
SET(windows_slide, chunked, false)
SET(no_unit_qk_norm, unit_qk_norm, false)
SET(scaled_output, scaled_input, false)
SET(no_mixer_gap, mixer_gap, 0)
CLEAR(no_attn_norm_bias, attn_norm_bias)
CLEAR(no_ffn_norm_bias, ffn_norm_bias)
CLEAR(no_qkv_bias, q_bias)
CLEAR(no_o_bias, o_bias)
CLEAR(no_sinks, sinks)
CLEAR(no_attn_out_norm, attn_out_norm)
CLEAR(no_ffn_out_norm, ffn_out_norm)
CLEAR(no_router_bias, router_bias)
CLEAR(no_select_bias, select_bias)
CLEAR(no_gate_bias, gate_bias)
CLEAR(no_down_bias, down_bias)

SET(no_logit_cap, logit_cap, 0)
CLEAR(no_v_norm, v_norm)
CLEAR(no_expert_out_norm, expert_out_norm)
CLEAR(no_shared_out_norm, shared_out_norm)
CLEAR(no_factors_of_experts, expert_scale)

CLEAR(no_q_norm, q_norm)

static bool no_qk_norm(struct moe_model *m)
{
    for (int i = 0; i < m->desc.n_layer; i++)
        m->layer[i].k_norm = NULL;
    return no_q_norm(m);
}

static bool no_v_scale(struct moe_model *m)
{
    bool had = m->desc.v_scale > 0 && m->desc.v_scale != 1;
    m->desc.v_scale = 0;
    return had;
}

static bool no_layer_scale(struct moe_model *m)
{
    bool had = false;
    for (int i = 0; i < m->desc.n_layer; i++) {
        had |= m->layer[i].scale != 1;
        m->layer[i].scale = 1;
    }
    return had;
}

/* Router, experts and dense FFN read the same norm, of one of them. */
static bool shared_norm(struct moe_model *m, bool of_router)
{
    bool had = false;
    for (int i = 0; i < m->desc.n_layer; i++) {
        struct moe_layer *l = &m->layer[i];
        had |= l->router_norm != NULL;
        if (l->router_norm)
            *(of_router ? &l->router_norm : &l->expert_norm) = l->ffn_norm;
    }
    return had;
}
static bool no_router_norm(struct moe_model *m) { return shared_norm(m, true); }
static bool no_expert_norm(struct moe_model *m) { return shared_norm(m, false); }

/* Without effect where the weights sum to 1 by their softmax. */
static bool other_norm_topk(struct moe_model *m)
{
    m->desc.norm_topk = !m->desc.norm_topk;
    return m->desc.n_expert > 0 && m->desc.gating != MOE_GATING_CHOSEN && m->desc.gating != MOE_GATING_MIXER;
}

#define CLEAR_MODEL(name, vector)                                                                                      \
    static bool name(struct moe_model *m)                                                                              \
    {                                                                                                                  \
        bool had = m->vector != NULL;                                                                                  \
        m->vector = NULL;                                                                                              \
        return had;                                                                                                    \
    }
CLEAR_MODEL(no_out_norm_bias, out_norm_bias)
CLEAR_MODEL(no_out_bias, out_bias)

/* Groups of experts by their largest score, or by the sum of their two largest. */
static bool other_group_best(struct moe_model *m)
{
    bool had = m->desc.n_group > 1;
    m->desc.group_best = 3 - m->desc.group_best;
    return had;
}

static bool no_groups(struct moe_model *m)
{
    bool had = m->desc.n_group > 1;
    m->desc.n_group = 1;
    return had;
}

static bool no_extra(struct moe_model *m)
{
    float **extra = moe_rotates_long(&m->desc, N_POSITION) ? &m->long_extra : &m->rope_extra;
    bool had = *extra != NULL;
    *extra = NULL;
    return had;
}

/* Short contexts have the divisors of long ones, and long contexts those of short ones. */
static bool other_contexts(struct moe_model *m)
{
    m->desc.scaling_ctx = moe_rotates_long(&m->desc, N_POSITION) ? N_POSITION : 1;
    return m->desc.long_rope;
}

static bool wide_scaling_ctx(struct moe_model *m)
{
    bool differs = m->desc.scaling == MOE_SCALING_YARN && m->desc.scaling_ctx != m->desc.n_ctx_train;
    m->desc.scaling_ctx = m->desc.n_ctx_train;
    return differs;
}

static bool other_gating(struct moe_model *m)
{
    enum moe_gating *g = &m->desc.gating;
    bool sigmoid = *g == MOE_GATING_SIGMOID || *g == MOE_GATING_CHOSEN_SIGMOID;
    *g = sigmoid ? MOE_GATING_SOFTMAX : MOE_GATING_SIGMOID;
    return m->desc.n_expert > 0;
}

static bool no_window(struct moe_model *m)
{
    bool had = false;
    for (int i = 0; i < m->desc.n_layer; i++) {
        had |= m->layer[i].window > 0;
        m->layer[i].window = 0;
    }
    return had;
}

static bool window_everywhere(struct moe_model *m)
{
    bool other = false;
    for (int i = 0; i < m->desc.n_layer; i++) {
        other |= m->desc.window && !m->layer[i].window;
        m->layer[i].window = m->desc.window;
    }
    return other;
}

static bool all_rotated(struct moe_model *m)
{
    uint64_t *bits = m->desc.unrotated_layers, had = 0;
    for (int i = 0; i < MOE_MAX_LAYER / 64; i++) {
        had |= bits[i];
        bits[i] = 0;
    }
    return had != 0;
}

static bool no_shared_gate(struct moe_model *m)
{
    bool had = false;
    for (int i = 0; i < m->desc.n_layer; i++) {
        had |= m->layer[i].shared_gate.n_out > 0;
        m->layer[i].shared_gate.n_out = 0;
    }
    return had;
}

static bool other_rope_kind(struct moe_model *m)
{
    m->desc.rope = m->desc.rope == KN_ROPE_PAIRS ? KN_ROPE_HALVES : KN_ROPE_PAIRS;
    return true;
}

/* The published epsilons are too small to show. */
static bool no_wide_eps(struct moe_model *m)
{
    bool wide = m->desc.eps >= 1e-3f;
    m->desc.eps = 1e-6f;
    return wide;
}

static const struct {
    const char *name;
    bool (*remove)(struct moe_model *m);
} changes[] = {
#define CHANGE(f)                                                                                                      \
    {                                                                                                                  \
#f, f                                                                                                          \
    }
    CHANGE(other_rope_kind),
    CHANGE(usual_rope_base),
    CHANGE(no_window_rope),
    CHANGE(no_scaling),
    CHANGE(no_scaling_attn),
    CHANGE(wide_scaling_ctx),
    CHANGE(no_extra),
    CHANGE(usual_scale),
    CHANGE(no_embed_scale),
    CHANGE(no_residual_scale),
    CHANGE(no_logit_scale),
    CHANGE(swiglu),
    CHANGE(no_limit),
    CHANGE(early_qk_norm),
    CHANGE(no_qk_norm),
    CHANGE(no_clamp),
    CHANGE(no_groups),
    CHANGE(other_norm_topk),
    CHANGE(no_expert_scale),
    CHANGE(no_shared),
    CHANGE(no_shared_gate),
    CHANGE(no_qkv_bias),
    CHANGE(no_o_bias),
    CHANGE(no_sinks),
    CHANGE(no_attn_out_norm),
    CHANGE(no_ffn_out_norm),
    CHANGE(no_router_bias),
    CHANGE(no_select_bias),
    CHANGE(no_gate_bias),
    CHANGE(no_down_bias),
    CHANGE(other_gating),
    CHANGE(no_window),
    CHANGE(window_everywhere),
    CHANGE(all_rotated),
    CHANGE(no_wide_eps),
    CHANGE(no_query_growth),
    CHANGE(other_contexts),
    CHANGE(no_query_offset),
    CHANGE(windows_slide),
    CHANGE(queries_grow_everywhere),
    CHANGE(no_unit_qk_norm),
    CHANGE(scaled_output),
    CHANGE(no_mixer_gap),
    CHANGE(no_attn_norm_bias),
    CHANGE(no_ffn_norm_bias),
    CHANGE(no_out_norm_bias),
    CHANGE(no_out_bias),
    CHANGE(other_group_best),
    CHANGE(no_logit_cap),
    CHANGE(no_v_norm),
    CHANGE(no_expert_out_norm),
    CHANGE(no_shared_out_norm),
    CHANGE(no_factors_of_experts),
    CHANGE(no_v_scale),
    CHANGE(no_layer_scale),
    CHANGE(no_router_norm),
    CHANGE(no_expert_norm),
};
#define N_CHANGE (sizeof changes / sizeof *changes)

/* The fields that a change may write. */
struct kept {
    struct moe_desc desc;
    struct moe_layer *layer;
    float *rope_extra, *long_extra, *out_norm_bias, *out_bias;
};

static void set_rotation(struct moe_model *m)
{
    assert_int_equal(moe_rope_freq(&m->desc, m->rope_extra, m->rope_freq), 0);
    if (m->desc.long_rope)
        assert_int_equal(moe_rope_freq(&m->desc, m->long_extra, m->long_freq), 0);
}

static void removed_fields_change_the_logits(struct golden *g, struct moe_model *m)
{
    size_t bytes = (size_t)m->desc.n_layer * sizeof *m->layer;
    struct kept kept = { m->desc, malloc(bytes), m->rope_extra, m->long_extra, m->out_norm_bias, m->out_bias };
    int n = 0;
    memcpy(kept.layer, m->layer, bytes);
    for (size_t i = 0; i < N_CHANGE; i++) {
        bool had = changes[i].remove(m);
        set_rotation(m);
        if (had && !(run(g, m) > TOLERANCE))
            fail_msg("the golden logits do not depend on the property that %s removes", changes[i].name);
        n += had;
        m->desc = kept.desc;
        memcpy(m->layer, kept.layer, bytes);
        m->rope_extra = kept.rope_extra;
        m->long_extra = kept.long_extra;
        m->out_norm_bias = kept.out_norm_bias;
        m->out_bias = kept.out_bias;
    }
    set_rotation(m);
    free(kept.layer);
    assert_true(run(g, m) <= TOLERANCE);
    print_message("%d fields, ", n);
}

/* ---- keys -------------------------------------------------------------------------------------------- */

/* Reads the golden model, leaves out its key number `without` (-1: none), and opens it.  0: the file has no such key or it
 * is none of the architecture's. */
static int open_without(struct golden *g, const char *name, int without, struct moe_file **out)
{
    static const char arch_key[] = "general.architecture str ";
    assert_int_equal(golden_read(g, name), 0);
    assert_int_equal(strncmp(g->meta[0], arch_key, sizeof arch_key - 1), 0);
    const char *arch = g->meta[0] + sizeof arch_key - 1;
    size_t n = strlen(arch);
    if (without >= g->n_meta || (without >= 0 && (strncmp(g->meta[without], arch, n) || g->meta[without][n] != '.')))
        return 0;
    if (without >= 0) {
        g->n_meta--;
        memmove(g->meta + without, g->meta + without + 1, (size_t)(g->n_meta - without) * sizeof *g->meta);
    }
    assert_int_equal(golden_write(g, path), 0);
    assert_int_equal(moe_file_open(out, path), 0);
    unlink(path);
    return 1;
}

/* Sets the fields that are not read in the pass of this model, so that descriptions that differ in these only are equal. */
static void blank_unread(struct moe_desc *d)
{
    d->n_ctx_train = 0;
    if (d->scaling != MOE_SCALING_YARN && !moe_rotates_long(d, N_POSITION))
        d->scaling_ctx = 0;
    if (d->n_group <= 1)
        d->n_group = d->n_group_used = 0;
}

/* True if the model can be opened without a key, and its logits are the golden ones although its description
 * differs. */
static bool is_unproven(struct golden *g, const struct moe_file *f, const struct moe_desc *whole)
{
    struct moe_desc d, base = *whole;
    struct moe_model *m = NULL;
    if (moe_desc_read(&d, f))
        return false;
    blank_unread(&d);
    blank_unread(&base);
    if (!memcmp(&d, &base, sizeof d) || load_model(&m, f, KN_ISA_COUNT - 1, team, OFF_IO_AUTO))
        return false;
    bool unproven = !(run(g, m) > TOLERANCE);
    moe_model_close(m);
    return unproven;
}

static void removed_keys_change_the_logits(const char *name, const struct moe_desc *whole)
{
    int n = 0;
    for (int i = 0; i < 64; i++) {
        struct golden g;
        struct moe_file *f;
        if (open_without(&g, name, i, &f)) {
            if (is_unproven(&g, f, whole))
                fail_msg("the golden logits do not depend on key number %d of the file", i);
            moe_file_close(f);
            n++;
        }
        golden_free(&g);
    }
    print_message("%d keys of %s\n", n, name);
}

static void each_property_shows(void **state)
{
    struct golden g;
    struct moe_file *f;
    struct moe_model *m = NULL;
    assert_int_equal(open_without(&g, *state, -1, &f), 1);
    assert_int_equal(g.n_tok, N_POSITION);
    assert_int_equal(load_model(&m, f, KN_ISA_COUNT - 1, team, OFF_IO_AUTO), 0);
    removed_fields_change_the_logits(&g, m);
    removed_keys_change_the_logits(*state, &m->desc);
    moe_model_close(m);
    moe_file_close(f);
    golden_free(&g);
}

int main(void)
{
    static char *const name[] = { GOLDEN_NAMES };
    struct CMUnitTest tests[sizeof name / sizeof *name];
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        tests[i] = (struct CMUnitTest){ name[i], each_property_shows, NULL, NULL, name[i] };
    snprintf(path, sizeof path, "/tmp/spillway-description-%d.gguf", getpid());
    if (kn_team_open(&team, 1))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kn_team_close(team);
    return failed;
}
