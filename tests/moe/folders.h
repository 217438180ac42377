/* tests/moe/folders.h - compares two models: their logits, and their tensors byte by byte.
 * Include cmocka first. */
#ifndef TESTS_MOE_FOLDERS_H
#define TESTS_MOE_FOLDERS_H

#include "tests/moe/hf_folder.h"

#define N_TOK 48

/* How a model is run: highest instruction set; least memory for experts; path of the pack file or NULL. */
struct run {
    enum kn_isa isa;
    bool least;
    const char *pack;
};

/* The logits of the last four of N_TOK tokens, computed in one batch: [4][n_vocab]; the caller frees them. */
static inline float *logits_by(const struct golden *g, const char *name, struct run by)
{
    struct kn_team *team;
    struct moe_file *f;
    struct moe_model *m = NULL;
    struct moe_context *c;
    struct moe_row row[N_TOK];
    struct moe_result result;
    int32_t slot[N_TOK];
    size_t bytes = 4 * (size_t)g->n_vocab * sizeof(float);
    assert_int_equal(kn_team_open(&team, 2), 0);
    assert_int_equal(moe_file_open(&f, name), 0);
    assert_int_equal(moe_model_open(&m, f, &(struct moe_model_options){ .isa = by.isa }), 0);
    struct moe_load_options lo = { .team = team,
                                   .pack_path = by.pack,
                                   .expert_bytes = by.least ? moe_model_shape(m)->expert_least : 0 };
    assert_int_equal(moe_model_load(m, &lo), 0);
    assert_int_equal(moe_model_shape(m)->n_vocab, g->n_vocab);
    struct moe_context_options co = {
        .max_row = N_TOK, .max_want = 4, .n_slot = N_TOK, .max_pos = N_TOK, .kv = KN_KV_F32, .team = team
    };
    assert_int_equal(moe_context_open(&c, m, &co), 0);
    for (int i = 0; i < N_TOK; i++) {
        slot[i] = i;
        row[i] = (struct moe_row){
            .token = g->token[i], .position = i, .want_logits = i >= N_TOK - 4, .base = slot, .n_base = N_TOK
        };
    }
    assert_int_equal(moe_forward(c, &(struct moe_batch){ .row = row, .n_row = N_TOK }, &result), 0);
    float *out = malloc(bytes);
    memcpy(out, result.logits, bytes);
    moe_context_close(c);
    moe_model_close(m);
    moe_file_close(f);
    kn_team_close(team);
    return out;
}

static inline float *logits_of(const struct golden *g, const char *name)
{
    return logits_by(g, name, (struct run){ .isa = KN_ISA_COUNT - 1 });
}

/* Every tensor of the GGUF file is in the folder with the same shape and bytes, read in pieces of odd sizes. */
static inline void same_tensors(const struct moe_file *gguf, const struct moe_file *hf)
{
    for (size_t i = 0; i < moe_file_tensor_count(gguf); i++) {
        const struct moe_tensor *t = moe_file_tensor(gguf, i), *u;
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.data);
        u = moe_file_find_tensor(hf, name);
        if (!u && moe_file_find_tensor(hf, "blk.0.attn_kv_b.weight") &&
            (strstr(name, "_k_b.") || strstr(name, "_v_b.")))
            continue; /* one joined tensor in the folder */
        if (!u && moe_file_find_tensor(hf, "blk.0.ssm_in.weight") &&
            (strstr(name, ".attn_qkv.") || strstr(name, ".attn_gate.")))
            continue;
        if (!u && strstr(name, ".ffn_gate_up_exps.")) /* two tensors in the folder */
            continue;
        if (!u)
            fail_msg("%s is not in the folder", name);
        assert_int_equal(t->n_dim, u->n_dim);
        assert_memory_equal(t->dim, u->dim, sizeof t->dim);
        if (t->gguf_type == 0 && u->gguf_type == 30 && t->n_dim == 1)
            continue; /* a vector: F32 in GGUF, BF16 in the folder */
        assert_int_equal(t->gguf_type, u->gguf_type);
        assert_int_equal(t->bytes, u->bytes);
        uint8_t *a = malloc(t->bytes), *b = malloc(t->bytes);
        assert_int_equal(moe_file_read(gguf, t, 0, a, t->bytes), 0);
        for (uint64_t at = 0, n = 4; at < u->bytes; at += n, n = n < 4000 ? 3 * n : 4) {
            n = n < u->bytes - at ? n : u->bytes - at;
            assert_int_equal(moe_file_read(hf, u, at, b + at, n), 0);
        }
        if (memcmp(a, b, t->bytes))
            fail_msg("%s has other bytes", name);
        free(a);
        free(b);
    }
}

#endif
