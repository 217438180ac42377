/* kernels/cpu/repack.tmpl.c - file rows to panels of 16 interleaved rows.
 *
 * Input: rows in file layout, at any alignment.  Output: panels (formats.h), the last one padded with
 * zero rows.  Only bytes move, so a panel is as long as its 16 rows.
 *
 * 16 bytes of each of the 16 rows are transposed at a time, for any item size.  Let a row's 16 bytes be n
 * items: with the rows one after another, item i of row r has index r * n + i.  Each perfect shuffle of the 16
 * registers rotates the bits of the index by one, so four of them give index i * 16 + r.  64 shuffles move 256
 * bytes, two per cycle: about 20 GB/s a core in cache, above the rate of memory. */
#include "kernels/cpu/simd.h"
#include "kernels/internal.h"

#define UNROLL _Pragma("GCC unroll 16")

/* Interleaves the items of the low (high) halves of a and b. */
KN_INLINE __m128i zip_low(__m128i a, __m128i b, int size)
{
    return size == 1 ? _mm_unpacklo_epi8(a, b) : size == 2 ? _mm_unpacklo_epi16(a, b) : _mm_unpacklo_epi32(a, b);
}

KN_INLINE __m128i zip_high(__m128i a, __m128i b, int size)
{
    return size == 1 ? _mm_unpackhi_epi8(a, b) : size == 2 ? _mm_unpackhi_epi16(a, b) : _mm_unpackhi_epi32(a, b);
}

/* Transposes 16 bytes of 16 rows, as items of `size` bytes: item 0 of all rows first, then item 1, ... */
KN_INLINE void transpose(const uint8_t *const row[KN_PANEL], size_t at, int size, __m128i v[16])
{
    UNROLL
    for (int r = 0; r < KN_PANEL; r++)
        v[r] = _mm_loadu_si128((const __m128i *)(row[r] + at));
    UNROLL
    for (int stage = 0; stage < 4; stage++) {
        __m128i t[16];

        UNROLL
        for (int i = 0; i < 8; i++) {
            t[2 * i] = zip_low(v[i], v[i + 8], size);
            t[2 * i + 1] = zip_high(v[i], v[i + 8], size);
        }
        UNROLL
        for (int i = 0; i < 16; i++)
            v[i] = t[i];
    }
}

KN_INLINE void store_all(uint8_t *out, const __m128i v[16])
{
    UNROLL
    for (int i = 0; i < 16; i++)
        _mm_storeu_si128((__m128i *)out + i, v[i]);
}

/* Moves a field of `bytes` bytes per row, a multiple of 16, made of items of `size` bytes. */
KN_INLINE uint8_t *move_field(const uint8_t *const row[KN_PANEL], size_t at, int bytes, int size, uint8_t *out)
{
    for (int i = 0; i < bytes; i += 16, out += 16 * KN_PANEL) {
        __m128i v[16];

        transpose(row, at + (size_t)i, size, v);
        store_all(out, v);
    }
    return out;
}

/* move_field() for items of four bytes, as codes are; not inlined, so that all formats share one copy. */
static __attribute__((noinline)) uint8_t *move_codes(const uint8_t *const row[KN_PANEL], size_t at, int bytes,
                                                     uint8_t *out)
{
    return move_field(row, at, bytes, 4, out);
}

/* Moves a field of one item per row without loads of 16 bytes, which could read past the end of the row. */
KN_INLINE uint8_t *move_item(const uint8_t *const row[KN_PANEL], size_t at, int size, uint8_t *out)
{
    for (int r = 0; r < KN_PANEL; r++)
        memcpy(out + r * size, row[r] + at, (size_t)size);
    return out + KN_PANEL * size;
}

/* Moves one block of 16 rows; row[r] points to the block of row r. */
typedef void block_fn(const uint8_t *const row[KN_PANEL], uint8_t *out);

static void block_of_items2(const uint8_t *const row[KN_PANEL], uint8_t *out) { move_field(row, 0, 16, 2, out); }

static void block_of_items4(const uint8_t *const row[KN_PANEL], uint8_t *out) { move_codes(row, 0, 16, out); }

static void block_q8_0(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_q8_0, d), 2, out);
    move_codes(row, offsetof(struct kn_q8_0, q), 32, out);
}

/* Joins pairs of one-byte items i, i + 1 to items of two bytes. */
KN_INLINE void join(__m128i v[16], int i)
{
    __m128i low = zip_low(v[i], v[i + 1], 1), high = zip_high(v[i], v[i + 1], 1);

    v[i] = low;
    v[i + 1] = high;
}

/* Q4_K, Q5_K: d, dmin and the scales are 16 bytes. */
KN_INLINE uint8_t *move_head(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    __m128i v[16];

    transpose(row, 0, 1, v);
    join(v, 0);
    join(v, 2);
    store_all(out, v);
    return out + 16 * KN_PANEL;
}

static void block_q4_k(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_head(row, out);
    move_codes(row, offsetof(struct kn_q4_k, q), 128, out);
}

static void block_q5_k(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_head(row, out);
    move_codes(row, offsetof(struct kn_q5_k, qh), 32 + 128, out);
}

static void block_q6_k(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_q6_k, d), 2, out);
    out = move_field(row, offsetof(struct kn_q6_k, sc), 16, 1, out);
    out = move_codes(row, offsetof(struct kn_q6_k, ql), 128, out);
    move_codes(row, offsetof(struct kn_q6_k, qh), 64, out);
}

static void block_q2_k(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_q2_k, d), 2, out);
    out = move_item(row, offsetof(struct kn_q2_k, dmin), 2, out);
    out = move_field(row, offsetof(struct kn_q2_k, sc), 16, 1, out);
    move_codes(row, offsetof(struct kn_q2_k, q), 64, out);
}

/* The last 16 bytes of a block are two bytes of codes, the scales and d. */
static void block_q3_k(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    __m128i v[16], head[14];

    transpose(row, sizeof(struct kn_q3_k) - 16, 1, v);
    join(v, 14);
    head[0] = v[14];
    head[1] = v[15];
    UNROLL
    for (int i = 2; i < 14; i++)
        head[i] = v[i];
    UNROLL
    for (int i = 0; i < 14; i++)
        _mm_storeu_si128((__m128i *)out + i, head[i]);
    move_codes(row, 0, 32 + 64, out + sizeof head);
}

static void block_iq4_xs(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_iq4_xs, d), 2, out);
    out = move_item(row, offsetof(struct kn_iq4_xs, sh), 2, out);
    out = move_item(row, offsetof(struct kn_iq4_xs, sl), 4, out);
    move_codes(row, offsetof(struct kn_iq4_xs, q), 128, out);
}

/* The IQ2 and IQ3 formats: all items but d have four bytes. */
static void block_iq2_xxs(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_iq2_xxs, d), 2, out);
    move_codes(row, offsetof(struct kn_iq2_xxs, q), 64, out);
}

static uint8_t *move_words(const uint8_t *const row[KN_PANEL], size_t at, int n, uint8_t *out)
{
    for (int i = 0; i < n; i++)
        out = move_item(row, at + 4 * (size_t)i, 4, out);
    return out;
}

static void block_iq2_xs(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_iq2_xs, d), 2, out);
    out = move_words(row, offsetof(struct kn_iq2_xs, sc), 2, out);
    move_codes(row, offsetof(struct kn_iq2_xs, q), 64, out);
}

static void block_iq2_s(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_iq2_s, d), 2, out);
    out = move_codes(row, offsetof(struct kn_iq2_s, qh), 16, out); /* and sc */
    out = move_codes(row, offsetof(struct kn_iq2_s, sign), 32, out);
    move_codes(row, offsetof(struct kn_iq2_s, q), 32, out);
}

static void block_iq3_xxs(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_iq3_xxs, d), 2, out);
    move_codes(row, offsetof(struct kn_iq3_xxs, q), 64 + 32, out);
}

static void block_iq3_s(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_iq3_s, d), 2, out);
    out = move_words(row, offsetof(struct kn_iq3_s, qh), 2, out);
    out = move_words(row, offsetof(struct kn_iq3_s, sc), 1, out);
    out = move_codes(row, offsetof(struct kn_iq3_s, sign), 32, out);
    move_codes(row, offsetof(struct kn_iq3_s, q), 64, out);
}

static void block_iq1_s(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_iq1_s, d), 2, out);
    move_codes(row, offsetof(struct kn_iq1_s, q), 32 + 16, out);
}

static void block_iq1_m(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_codes(row, offsetof(struct kn_iq1_m, q), 32 + 16, out);
    move_words(row, offsetof(struct kn_iq1_m, sc), 2, out);
}

static void block_mxfp4(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_mxfp4, e), 1, out);
    move_codes(row, offsetof(struct kn_mxfp4, q), 16, out);
}

static void block_nvfp4(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    for (size_t half = 0; half < 2; half++) {
        out = move_item(row, offsetof(struct kn_nvfp4, d) + 2 * half, 1, out);
        out = move_item(row, offsetof(struct kn_nvfp4, d) + 2 * half + 1, 1, out);
        out = move_codes(row, offsetof(struct kn_nvfp4, q) + 16 * half, 16, out);
    }
}

static void block_fp8(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_fp8, d), 4, out);
    move_field(row, offsetof(struct kn_fp8, q), 128, 1, out);
}

static void block_q4_0(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_q4_0, d), 2, out);
    move_codes(row, offsetof(struct kn_q4_0, q), 16, out);
}

static void block_uint4(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_uint4, d), 2, out);
    out = move_item(row, offsetof(struct kn_uint4, z), 1, out);
    move_codes(row, offsetof(struct kn_uint4, q), 16, out);
}

static void block_q4_1(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_q4_1, d), 2, out);
    out = move_item(row, offsetof(struct kn_q4_1, m), 2, out);
    move_codes(row, offsetof(struct kn_q4_1, q), 16, out);
}

static void block_q5_0(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_q5_0, d), 2, out);
    out = move_item(row, offsetof(struct kn_q5_0, qh), 4, out);
    move_codes(row, offsetof(struct kn_q5_0, q), 16, out);
}

static void block_q5_1(const uint8_t *const row[KN_PANEL], uint8_t *out)
{
    out = move_item(row, offsetof(struct kn_q5_1, d), 2, out);
    out = move_item(row, offsetof(struct kn_q5_1, m), 2, out);
    out = move_item(row, offsetof(struct kn_q5_1, qh), 4, out);
    move_codes(row, offsetof(struct kn_q5_1, q), 16, out);
}

void KN_FN(kn_repack)(enum kn_format f, const void *rows, int n_out, int n_in, void *panels, int panel0, int panel1)
{
    static const struct {
        block_fn *block;
        size_t bytes;
    } moves[KN_FORMAT_COUNT] = {
        [KN_F32] = { block_of_items4, 16 },
        [KN_F16] = { block_of_items2, 16 },
        [KN_BF16] = { block_of_items2, 16 },
        [KN_Q8_0] = { block_q8_0, sizeof(struct kn_q8_0) },
        [KN_Q4_K] = { block_q4_k, sizeof(struct kn_q4_k) },
        [KN_Q6_K] = { block_q6_k, sizeof(struct kn_q6_k) },
        [KN_MXFP4] = { block_mxfp4, sizeof(struct kn_mxfp4) },
        [KN_Q4_0] = { block_q4_0, sizeof(struct kn_q4_0) },
        [KN_Q4_1] = { block_q4_1, sizeof(struct kn_q4_1) },
        [KN_Q5_0] = { block_q5_0, sizeof(struct kn_q5_0) },
        [KN_Q5_1] = { block_q5_1, sizeof(struct kn_q5_1) },
        [KN_Q5_K] = { block_q5_k, sizeof(struct kn_q5_k) },
        [KN_Q2_K] = { block_q2_k, sizeof(struct kn_q2_k) },
        [KN_Q3_K] = { block_q3_k, sizeof(struct kn_q3_k) },
        [KN_IQ4_NL] = { block_q4_0, sizeof(struct kn_q4_0) },
        [KN_IQ4_XS] = { block_iq4_xs, sizeof(struct kn_iq4_xs) },
        [KN_IQ2_XXS] = { block_iq2_xxs, sizeof(struct kn_iq2_xxs) },
        [KN_IQ2_XS] = { block_iq2_xs, sizeof(struct kn_iq2_xs) },
        [KN_IQ2_S] = { block_iq2_s, sizeof(struct kn_iq2_s) },
        [KN_IQ3_XXS] = { block_iq3_xxs, sizeof(struct kn_iq3_xxs) },
        [KN_IQ3_S] = { block_iq3_s, sizeof(struct kn_iq3_s) },
        [KN_IQ1_S] = { block_iq1_s, sizeof(struct kn_iq1_s) },
        [KN_IQ1_M] = { block_iq1_m, sizeof(struct kn_iq1_m) },
        [KN_FP8] = { block_fp8, sizeof(struct kn_fp8) },
        [KN_NVFP4] = { block_nvfp4, sizeof(struct kn_nvfp4) },
        [KN_INT4] = { block_q4_0, sizeof(struct kn_q4_0) },
        [KN_UINT4] = { block_uint4, sizeof(struct kn_uint4) },
    };
    static const uint8_t zeros[256];
    const size_t row_bytes = kn_row_bytes(f, n_in), step = moves[f].bytes;
    const int item = kn_format_info(f)->block_bytes;

    kn_assert(row_bytes > 0 && panel0 >= 0 && panel1 <= kn_ceil_div(n_out, KN_PANEL));
    for (int panel = panel0; panel < panel1; panel++) {
        uint8_t *out = (uint8_t *)panels + (size_t)panel * KN_PANEL * row_bytes;
        const uint8_t *row[KN_PANEL];
        size_t stride[KN_PANEL], at = 0;

        for (int r = 0; r < KN_PANEL; r++) {
            size_t i = (size_t)panel * KN_PANEL + (size_t)r;

            row[r] = i < (size_t)n_out ? (const uint8_t *)rows + i * row_bytes : zeros;
            stride[r] = i < (size_t)n_out;
        }
        for (; at + step <= row_bytes; at += step) {
            moves[f].block(row, out + at * KN_PANEL);
            for (int r = 0; r < KN_PANEL; r++)
                row[r] += stride[r] * step;
        }
        for (; at < row_bytes; at += (size_t)item) { /* floats after the last whole 16 bytes */
            move_item(row, 0, item, out + at * KN_PANEL);
            for (int r = 0; r < KN_PANEL; r++)
                row[r] += stride[r] * (size_t)item;
        }
    }
}
