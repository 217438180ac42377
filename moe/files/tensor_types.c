/* moe/files/tensor_types.c - what files call things: the types of tensors and of whole files, which tensors are
 * experts, how vocabularies spell bytes, and names made fit to be shown.
 *
 * The table has every type number that GGUF files have been published with and whose size is plain
 * blocks times bytes; a type that is not here can be listed but not measured.  Numbers that never
 * reached a file, or were withdrawn, are absent. */
#include "moe/files/files.h"

#include <stdio.h>
#include <string.h>

static const struct moe_tensor_type types[] = {
    [0]  = { "F32", 1, 4 },        [1]  = { "F16", 1, 2 },        [2]  = { "Q4_0", 32, 18 },
    [3]  = { "Q4_1", 32, 20 },     [6]  = { "Q5_0", 32, 22 },     [7]  = { "Q5_1", 32, 24 },
    [8]  = { "Q8_0", 32, 34 },     [9]  = { "Q8_1", 32, 36 },     [10] = { "Q2_K", 256, 84 },
    [11] = { "Q3_K", 256, 110 },   [12] = { "Q4_K", 256, 144 },   [13] = { "Q5_K", 256, 176 },
    [14] = { "Q6_K", 256, 210 },   [15] = { "Q8_K", 256, 292 },   [16] = { "IQ2_XXS", 256, 66 },
    [17] = { "IQ2_XS", 256, 74 },  [18] = { "IQ3_XXS", 256, 98 }, [19] = { "IQ1_S", 256, 50 },
    [20] = { "IQ4_NL", 32, 18 },   [21] = { "IQ3_S", 256, 110 },  [22] = { "IQ2_S", 256, 82 },
    [23] = { "IQ4_XS", 256, 136 }, [24] = { "I8", 1, 1 },         [25] = { "I16", 1, 2 },
    [26] = { "I32", 1, 4 },        [27] = { "I64", 1, 8 },        [28] = { "F64", 1, 8 },
    [29] = { "IQ1_M", 256, 56 },   [30] = { "BF16", 1, 2 },       [34] = { "TQ1_0", 256, 54 },
    [35] = { "TQ2_0", 256, 66 },   [39] = { "MXFP4", 32, 17 },    [40] = { "NVFP4", 64, 36 },
};

/* Formats that no GGUF file has, from KN_TYPE_OWN on. */
static const struct moe_tensor_type own[] = { { "FP8", 128, 132 }, { "INT4", 32, 18 } };

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
        [KN_F16] = 1,   [KN_Q4_0] = 2,  [KN_Q4_1] = 3,  [KN_Q8_0] = 7,    [KN_Q5_0] = 8,    [KN_Q5_1] = 9,
        [KN_Q2_K] = 10, [KN_Q3_K] = 12, [KN_Q4_K] = 15, [KN_Q5_K] = 17,   [KN_Q6_K] = 18,
        [KN_IQ4_NL] = 25, [KN_IQ4_XS] = 30, [KN_BF16] = 32, [KN_MXFP4] = 38,
    };
    return type[f];
}

/* As published files do where a row is no multiple of 256: blocks of 32 with no less precision. */
enum kn_format moe_format_fit(const char *name, enum kn_format want, uint64_t n_in)
{
    static const enum kn_format smaller[KN_FORMAT_COUNT] = {
        [KN_Q2_K] = KN_IQ4_NL, [KN_Q3_K] = KN_IQ4_NL, [KN_IQ4_XS] = KN_IQ4_NL, [KN_Q4_K] = KN_Q5_0,
        [KN_Q5_K] = KN_Q5_1, [KN_Q6_K] = KN_Q8_0,
    };
    enum kn_format f = want;
    while (n_in % (uint64_t)kn_format_info(f)->block_values)
        f = kn_format_info(f)->block_values == 256 ? smaller[f] : KN_F16;
    if (f != want)
        kn_say(KN_LOG_WARN, "%s: rows of %llu values are no whole blocks of %s; it is stored as %s",
               name, (unsigned long long)n_in, kn_format_info(want)->name, kn_format_info(f)->name);
    return f;
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

int moe_byte_letter(int byte, char letter[3])
{
    int code = byte;                            /* others: 33 in front, 34 in the middle, and the soft hyphen */
    if (byte < 33)
        code = 256 + byte;
    else if (byte > 126 && byte < 161)
        code = 256 + 33 + (byte - 127);
    else if (byte == 173)
        code = 256 + 33 + 34;
    size_t n = 0;
    if (code < 0x80) {
        letter[n++] = (char)code;
    } else {
        letter[n++] = (char)(0xc0 | code >> 6);
        letter[n++] = (char)(0x80 | (code & 0x3f));
    }
    letter[n] = '\0';
    return code;
}

/* Bytes of the UTF-8 character at s, 0 when it is none (overlong forms and surrogates are none). */
static size_t utf8_length(const uint8_t *s, size_t n)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t length = s[0] < 0x80     ? 1
                    : s[0] >> 5 == 6  ? 2
                    : s[0] >> 4 == 14 ? 3
                    : s[0] >> 3 == 30 ? 4
                                      : 0;
    if (!length || length > n)
        return 0;
    uint32_t c = length == 1 ? s[0] : s[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (s[i] >> 6 != 2)
            return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    return c < least[length] || c > 0x10ffff || c >> 11 == 0x1b ? 0 : length;
}

void moe_string_show(struct moe_string s, char *out, size_t bytes)
{
    kn_assert(bytes > 8);
    size_t at = 0, dots = 0;                        /* dots: the last place where they still fit */
    for (size_t i = 0, length; i < s.n; i += length) {
        const uint8_t *c = (const uint8_t *)s.data + i;
        length = utf8_length(c, s.n - i);
        bool c1 = length == 2 && c[0] == 0xc2 && c[1] < 0xa0;
        bool plain = length && !c1 && c[0] >= 0x20 && c[0] != 0x7f && c[0] != '\\';
        length = plain ? length : 1;
        size_t take = plain ? length : 4;
        if (at + take >= bytes) {
            memcpy(out + dots, "...", 3);
            at = dots + 3;
            break;
        }
        if (plain)
            memcpy(out + at, c, length);
        else
            snprintf(out + at, 5, "\\x%02x", c[0]);
        at += take;
        dots = at + 3 < bytes ? at : dots;
    }
    out[at] = '\0';
}

bool moe_string_is(struct moe_string s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.data, text, s.n);
}
