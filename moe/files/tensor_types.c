/* moe/files/tensor_types.c - type numbers of tensors and of whole files: names, sizes, the format of a matrix, and the
 * names of expert tensors.
 *
 * The table has every type number of published GGUF files with a fixed block size.  Tensors of other types can be
 * listed, but their size is unknown.  Type numbers that were withdrawn or never published are absent. */
#include "moe/files/files.h"

#include <stdio.h>
#include <string.h>

static const struct moe_tensor_type types[] = {
    [0] = { "F32", 1, 4 },         [1] = { "F16", 1, 2 },         [2] = { "Q4_0", 32, 18 },
    [3] = { "Q4_1", 32, 20 },      [6] = { "Q5_0", 32, 22 },      [7] = { "Q5_1", 32, 24 },
    [8] = { "Q8_0", 32, 34 },      [9] = { "Q8_1", 32, 36 },      [10] = { "Q2_K", 256, 84 },
    [11] = { "Q3_K", 256, 110 },   [12] = { "Q4_K", 256, 144 },   [13] = { "Q5_K", 256, 176 },
    [14] = { "Q6_K", 256, 210 },   [15] = { "Q8_K", 256, 292 },   [16] = { "IQ2_XXS", 256, 66 },
    [17] = { "IQ2_XS", 256, 74 },  [18] = { "IQ3_XXS", 256, 98 }, [19] = { "IQ1_S", 256, 50 },
    [20] = { "IQ4_NL", 32, 18 },   [21] = { "IQ3_S", 256, 110 },  [22] = { "IQ2_S", 256, 82 },
    [23] = { "IQ4_XS", 256, 136 }, [24] = { "I8", 1, 1 },         [25] = { "I16", 1, 2 },
    [26] = { "I32", 1, 4 },        [27] = { "I64", 1, 8 },        [28] = { "F64", 1, 8 },
    [29] = { "IQ1_M", 256, 56 },   [30] = { "BF16", 1, 2 },       [34] = { "TQ1_0", 256, 54 },
    [35] = { "TQ2_0", 256, 66 },   [39] = { "MXFP4", 32, 17 },    [40] = { "NVFP4", 64, 36 },
};

/* Spillway's own formats, absent from GGUF: numbers from KN_TYPE_OWN on. */
static const struct moe_tensor_type own[] = { { "FP8", 128, 132 }, { "INT4", 32, 18 }, { "UINT4", 32, 19 } };

const struct moe_tensor_type *moe_tensor_type(uint32_t gguf_type)
{
    if (gguf_type - KN_TYPE_OWN < sizeof own / sizeof *own)
        return &own[gguf_type - KN_TYPE_OWN];
    if (gguf_type >= sizeof types / sizeof *types || !types[gguf_type].name)
        return NULL;
    return &types[gguf_type];
}

uint32_t moe_file_type(enum kn_format f)
{
    static const uint8_t type[KN_GGUF_FORMAT_COUNT] = {
        [KN_F16] = 1,     [KN_Q4_0] = 2,   [KN_Q4_1] = 3,   [KN_Q8_0] = 7,     [KN_Q5_0] = 8,    [KN_Q5_1] = 9,
        [KN_Q2_K] = 10,   [KN_Q3_K] = 12,  [KN_Q4_K] = 15,  [KN_Q5_K] = 17,    [KN_Q6_K] = 18,   [KN_IQ4_NL] = 25,
        [KN_IQ4_XS] = 30, [KN_BF16] = 32,  [KN_MXFP4] = 38, [KN_IQ2_XXS] = 19, [KN_IQ2_XS] = 20, [KN_IQ3_XXS] = 23,
        [KN_IQ3_S] = 26,  [KN_IQ2_S] = 28, [KN_IQ1_S] = 24, [KN_IQ1_M] = 31,   [KN_NVFP4] = 39,
    };
    return type[f];
}

static void note(struct moe_fallbacks *all, const char *name, const struct moe_fallback *f)
{
    int i = 0, most = (int)(sizeof all->kind / sizeof *all->kind);
    while (i < all->n_kind &&
           (all->kind[i].want != f->want || all->kind[i].got != f->got || all->kind[i].n_in != f->n_in))
        i++;
    if (i == all->n_kind && i < most) {
        all->kind[all->n_kind++] = *f;
        snprintf(all->kind[i].first, sizeof all->kind[i].first, "%s", name);
    }
    all->kind[kn_min(i, most - 1)].n++;
}

/* The table smaller[] has the fallback of published files for rows that are no multiple of 256, of NVFP4 of 64: a format
 * with blocks of 32 and at least the same precision. */
enum kn_format moe_format_fit(struct moe_fallbacks *all, const char *name, enum kn_format want, uint64_t n_in)
{
    static const enum kn_format smaller[KN_FORMAT_COUNT] = {
        [KN_Q2_K] = KN_IQ4_NL,  [KN_Q3_K] = KN_IQ4_NL,    [KN_IQ4_XS] = KN_IQ4_NL,  [KN_Q4_K] = KN_Q5_0,
        [KN_Q5_K] = KN_Q5_1,    [KN_Q6_K] = KN_Q8_0,      [KN_IQ2_XXS] = KN_IQ4_NL, [KN_IQ2_XS] = KN_IQ4_NL,
        [KN_IQ2_S] = KN_IQ4_NL, [KN_IQ3_XXS] = KN_IQ4_NL, [KN_IQ3_S] = KN_IQ4_NL,   [KN_IQ1_S] = KN_IQ4_NL,
        [KN_IQ1_M] = KN_IQ4_NL, [KN_NVFP4] = KN_IQ4_NL,
    };
    enum kn_format f = want;
    while (n_in % (uint64_t)kn_format_info(f)->block_values)
        f = kn_format_info(f)->block_values > 32 ? smaller[f] : KN_F16;
    if (f != want)
        note(all, name, &(struct moe_fallback){ .want = want, .got = f, .n_in = n_in });
    return f;
}

void moe_fallbacks_log(const struct moe_fallbacks *all)
{
    for (const struct moe_fallback *k = all->kind; k < all->kind + all->n_kind; k++) {
        char others[48] = "";
        if (k->n > 1)
            snprintf(others, sizeof others, " and %d other tensor%s", k->n - 1, k->n > 2 ? "s" : "");
        kn_say(KN_LOG_WARN, "%s%s: rows of %llu values are no whole blocks of %s; stored as %s", k->first, others,
               (unsigned long long)k->n_in, kn_format_info(k->want)->name, kn_format_info(k->got)->name);
    }
}

bool moe_tensor_is_expert(const struct moe_tensor *t)
{
    static const char *const old[] = { "ffn_gate.", "ffn_up.", "ffn_down." };
    if (memmem(t->name.data, t->name.n, "_exps.weight", 12))
        return true;
    for (int i = 0; i < 3; i++) {
        const char *at = memmem(t->name.data, t->name.n, old[i], strlen(old[i]));
        const char *next = at ? at + strlen(old[i]) : NULL;
        if (at && next < t->name.data + t->name.n && *next >= '0' && *next <= '9')
            return true;
    }
    return false;
}
