/* In-place repacking: a matrix repacked where it was read, by one thread or by a team, equals the repacked rows
 * elsewhere, for every format, shape and offset; nothing outside its place is written.
 *
 * Bytes are random: no test interprets them as numbers.
 *
 * Its threads are those of a team, as in test_pairs.c: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "offload/internal.h"

#define GUARD 4096

/* Random bytes; filled in bulk, because ThreadSanitizer instruments each single write. */
static const uint8_t *random_bytes(size_t n)
{
    static uint8_t *bytes;
    static size_t n_made;
    if (n > n_made)
        bytes = realloc(bytes, n);
    for (; n_made < n; n_made++)
        bytes[n_made] = (uint8_t)kn_mix(n_made);
    return bytes;
}

static void check_place(const struct off_source *s, const struct kn_ops *ops, struct kn_team *team)
{
    size_t file = off_file_bytes(s), place = off_place_bytes(s), head = s->offset % OFF_PAGE;
    size_t bytes = kn_mat_bytes(s->format, s->n_out, s->n_in), scratch = off_scratch_bytes(s, 1);
    uint8_t *at = aligned_alloc(4096, place + GUARD), *want = malloc(bytes);
    const uint8_t *rows = random_bytes(file + s->offset % 256) + s->offset % 256;
    uint8_t *hand = aligned_alloc(64, kn_align_up(scratch * (size_t)(team ? kn_team_size(team) : 1), 64) + 64);
    assert_int_equal(place % OFF_PAGE, 0);
    assert_true(kn_align_up(head + file, OFF_PAGE) <= place); /* offset of the file's bytes in the place */
    kn_ops(KN_ISA_SCALAR)->repack(s->format, rows, s->n_out, s->n_in, want, 0, kn_ceil_div(s->n_out, KN_PANEL));
    memset(at, 0xa5, place + GUARD);
    memcpy(at + head, rows, file);
    memset(hand + scratch, 0x5a, 8);
    if (team)
        off_interleave_team(&(struct off_hands){ ops, team, hand, scratch }, s, at);
    else
        off_interleave(ops, s, at, hand);
    const uint8_t *got = off_place_panels(s, at);
    if ((uintptr_t)got % 64 || got < at || got + bytes > at + place || memcmp(got, want, bytes) != 0)
        fail_msg("format %d, %d x %d at %llu: not its panels", s->format, s->n_out, s->n_in,
                 (unsigned long long)s->offset);
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(at[place + i], 0xa5);
    for (int i = 0; !team && i < 8; i++)
        assert_int_equal(hand[scratch + (size_t)i], 0x5a);
    free(at);
    free(want);
    free(hand);
}

#ifndef __SANITIZE_THREAD__ /* one thread */
/* Rows of one, a few and many blocks; one row less and one more than a panel; every offset in a page that is a
 * multiple of 8, and some that are not. */
static void small_matrices_at_every_offset(void **state)
{
    (void)state;
    static const int n_out[] = { 1, 15, 16, 17, 33, 48 };
    for (int f = 0; f < KN_FORMAT_COUNT; f++)
        for (size_t i = 0; i < sizeof n_out / sizeof *n_out; i++)
            for (uint64_t offset = 0; offset < OFF_PAGE; offset += offset < 128 ? 1 : 8) {
                int n_block = 1 + (int)(offset / 8 % 3);
                struct off_source s = { .offset = 7 * OFF_PAGE + offset,
                                        .format = (enum kn_format)f,
                                        .n_out = n_out[i],
                                        .n_in = n_block * kn_format_info((enum kn_format)f)->block_values };
                check_place(&s, kn_ops(KN_ISA_COUNT - 1), NULL);
                if (offset < 128)
                    check_place(&s, kn_ops(KN_ISA_SCALAR), NULL);
            }
}

#define FIRST_TEAM 1
#define N_OFFSET   12
#else
#define FIRST_TEAM 2
#define N_OFFSET   2
#endif

/* Large enough to be divided among threads: runs of panels, and the panels at their seams. */
static void large_matrices_by_a_team(void **state)
{
    (void)state;
    static const int n_in[KN_FORMAT_COUNT] = { 3,  5,   96,  160, 768, 512, 160, 96,  160, 32,  224, 768, 512, 1024,
                                               96, 768, 256, 512, 768, 256, 512, 768, 256, 192, 256, 96,  96 };
    for (int n_thread = FIRST_TEAM; n_thread <= 3; n_thread++) {
        struct kn_team *team;
        assert_int_equal(kn_team_open(&team, n_thread), 0);
        for (int f = 0; f < KN_FORMAT_COUNT; f++)
            for (int i = 0; i < N_OFFSET; i++) {
                static const uint64_t offset[12] = { 0, 8, 16, 24, 32, 40, 48, 56, 63, 1, 4088, 4032 };
                struct off_source s = { .offset = offset[i], .format = (enum kn_format)f, .n_in = n_in[f] };
                s.n_out = (int)((1 << 20) / kn_row_bytes(s.format, s.n_in)) + i;
                check_place(&s, kn_ops(KN_ISA_COUNT - 1), team);
            }
        /* panels shorter than a cache line are not divided: a seam would contain several of them */
        check_place(&(struct off_source){ .offset = 56, .format = KN_F16, .n_out = 500000, .n_in = 1 },
                    kn_ops(KN_ISA_COUNT - 1), team);
        kn_team_close(team);
    }
}

/* ---- scales in a separate tensor ------------------------------------------------------------------ */

/* Transposes items of `item` bytes from [n_col][n_row] to [n_row][n_col]; the caller frees the result. */
static uint8_t *turned(const uint8_t *from, int n_row, int n_col, size_t item)
{
    uint8_t *to = malloc((size_t)n_row * (size_t)n_col * item);
    for (int r = 0; r < n_row; r++)
        for (int c = 0; c < n_col; c++)
            memcpy(to + (size_t)(r * n_col + c) * item, from + (size_t)(c * n_row + r) * item, item);
    return to;
}

/* A file row of a UINT4 matrix stored by input, from codes, scales and zero points by the definition of struct
 * kn_columns. */
static void join_uint4(const struct off_source *s, uint8_t *const landed[3], int r, struct kn_uint4 *out)
{
    static const int order[8] = { KN_AWQ_ORDER };
    bool awq = s->scales.order == OFF_BY_INPUT_AWQ;
    const uint32_t *codes = (uint32_t *)(void *)landed[1], *zeros = (uint32_t *)(void *)landed[2];
    const int at = 4 * (awq ? order[r % 8] : r % 8);
    for (int k = 0; k < s->n_in; k++) {
        struct kn_uint4 *b = out + k / 32;
        int group = k / s->scales.values, word = (group * s->n_out + r) / 8;
        int q = awq ? (int)(codes[(k * s->n_out + r) / 8] >> at & 15)
                    : (int)(codes[k / 8 * s->n_out + r] >> k % 8 * 4 & 15);
        b->q[k % 16] = (uint8_t)(k % 32 < 16 ? q : b->q[k % 16] | q << 4);
        b->z = (uint8_t)(((zeros[word] >> at & 15) + (uint32_t)s->scales.zero_less) % 16);
        memcpy(b, landed[0] + 2 * (group * s->n_out + r), 2);
    }
}

/* Codes, scales and zero points are read separately, and become the panels of the joined rows. */
static void check_apart(const struct off_source *s, struct kn_team *team)
{
    struct off_job job[OFF_PARTS], *const rows = &job[0], *const scales = &job[1], *const zeros = &job[2];
    size_t place = off_place_bytes(s), bytes = kn_mat_bytes(s->format, s->n_out, s->n_in);
    size_t hands = team ? (size_t)kn_team_size(team) : 1, row = kn_row_bytes(s->format, s->n_in);
    size_t scratch = off_scratch_bytes(s, (int)hands);
    int block = kn_format_info(s->format)->block_values, n_scale = kn_ceil_div(s->n_in, s->scales.values);
    uint8_t *at = aligned_alloc(4096, place + GUARD), *hand = aligned_alloc(64, kn_align_up(scratch * hands + 64, 64));
    uint8_t *want = malloc(bytes), *joined = malloc((size_t)s->n_out * row);
    memset(at, 0xa5, place + GUARD);
    memset(hand + scratch * hands, 0x5a, 8);
    off_place_jobs(s, at, job, 1);
    assert_int_equal(rows->bytes + scales->bytes + zeros->bytes, off_file_bytes(s));
    struct off_job *jobs[3] = { scales, rows, zeros };
    uint8_t *landed[3];
    for (int i = 0; i < 3; i++) {
        landed[i] = jobs[i]->to + jobs[i]->offset % OFF_PAGE;
        assert_int_equal((uintptr_t)jobs[i]->to % OFF_PAGE, 0);
        for (size_t k = 0; k < jobs[i]->bytes; k++)
            landed[i][k] = (uint8_t)kn_mix(k + jobs[i]->offset);
    }
    assert_true(scales->to + kn_align_up(scales->offset % OFF_PAGE + scales->bytes, OFF_PAGE) <= rows->to);
    assert_true(!zeros->bytes ||
                (scales->to + kn_align_up(scales->offset % OFF_PAGE + scales->bytes, OFF_PAGE) <= zeros->to &&
                 zeros->to + kn_align_up(zeros->offset % OFF_PAGE + zeros->bytes, OFF_PAGE) <= rows->to));
    assert_true(rows->to + kn_align_up(rows->offset % OFF_PAGE + rows->bytes, OFF_PAGE) <= at + place);
    size_t code = rows->bytes / (size_t)s->n_out;
    uint8_t *by_row[2] = { 0 };
    bool any_zero = s->format == KN_UINT4;
    for (int r = 0; r < s->n_out && any_zero; r++)
        join_uint4(s, landed, r, (struct kn_uint4 *)(void *)(joined + (size_t)r * row));
    if (s->scales.order != OFF_BY_ROW && !any_zero) {
        landed[0] = by_row[0] = turned(landed[0], s->n_out, n_scale, (size_t)s->scales.bytes);
        landed[1] = by_row[1] = turned(landed[1], s->n_out, s->n_in / 8, 4);
    }
    for (int r = 0; r < s->n_out && !any_zero; r++)
        kn_join(s->format, landed[1] + (size_t)r * code,
                landed[0] + (size_t)(r / s->scales.rows * n_scale * s->scales.bytes), s->scales.bytes,
                s->scales.values / block, (size_t)(s->n_in / block), joined + (size_t)r * row);
    kn_ops(KN_ISA_SCALAR)->repack(s->format, joined, s->n_out, s->n_in, want, 0, kn_ceil_div(s->n_out, KN_PANEL));
    if (team)
        off_interleave_team(&(struct off_hands){ kn_ops(KN_ISA_COUNT - 1), team, hand, scratch }, s, at);
    else
        off_interleave(kn_ops(KN_ISA_COUNT - 1), s, at, hand);
    const uint8_t *got = off_place_panels(s, at);
    if ((uintptr_t)got % 64 || got < at || got + bytes > at + place || memcmp(got, want, bytes))
        fail_msg("format %d, %d x %d at %llu and %llu: not its panels", s->format, s->n_out, s->n_in,
                 (unsigned long long)s->offset, (unsigned long long)s->scales.offset);
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(at[place + i], 0xa5);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(hand[scratch * hands + i], 0x5a);
    free(at);
    free(hand);
    free(want);
    free(joined);
    free(by_row[0]);
    free(by_row[1]);
}

static void scales_apart_come_to_their_codes(void **state)
{
    (void)state;
    static const struct {
        enum kn_format f;
        struct off_scales scales;
        int n_in[3];
    } kind[] = {
        { KN_MXFP4, { .bytes = 1, .rows = 1, .values = 32 }, { 32, 96, 2880 } },
        { KN_INT4, { .bytes = 2, .rows = 1, .values = 32 }, { 32, 224, 2048 } },
        { KN_INT4, { .bytes = 2, .rows = 1, .values = 128 }, { 128, 384, 2048 } },
        { KN_FP8, { .bytes = 4, .rows = 128, .values = 128 }, { 128, 384, 2048 } },
        { KN_FP8, { .bytes = 2, .rows = 128, .values = 128 }, { 128, 256, 1024 } },
        { KN_FP8, { .bytes = 2, .rows = 1, .values = 256 }, { 128, 384, 1024 } },
        { KN_Q4_0, { .bytes = 2, .rows = 1, .values = 32, .order = OFF_BY_INPUT }, { 32, 224, 2048 } },
        { KN_Q4_0, { .bytes = 2, .rows = 1, .values = 128, .order = OFF_BY_INPUT }, { 128, 384, 2048 } },
        { KN_INT4, { .bytes = 2, .rows = 1, .values = 64, .order = OFF_BY_INPUT }, { 64, 192, 1024 } },
        { KN_NVFP4, { .bytes = 4, .rows = 1, .values = 64 }, { 64, 192, 960 } },
        { KN_FP8, { .bytes = 4, .rows = 1, .values = 2048 }, { 128, 384, 1024 } },
        { KN_FP8, { .bytes = 2, .rows = 576, .values = 2048 }, { 128, 384, 1024 } },
        { KN_UINT4,
          { .bytes = 2, .rows = 1, .values = 32, .order = OFF_BY_INPUT, .zero_less = 1, .zero_offset = 4088 },
          { 32, 224, 1024 } },
        { KN_UINT4,
          { .bytes = 2, .rows = 1, .values = 128, .order = OFF_BY_INPUT_AWQ, .zero_offset = 60 },
          { 128, 384, 1024 } },
    };
    static const int n_out[] = { 1, 2, 16, 17, 130, 576 };
    static const uint64_t at[] = { 0, 1, 8, 63, 64, 100, 4090 };
    struct kn_team *team[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(kn_team_open(&team[i], i + 1), 0);
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++)
        for (int i = 0; i < 6 * 3 * 7; i++) {
            struct off_source s = { .offset = 9 * OFF_PAGE + at[i % 7],
                                    .format = kind[k].f,
                                    .n_out = n_out[i / 7 % 6],
                                    .n_in = kind[k].n_in[i / 42],
                                    .scales = kind[k].scales };
            s.scales.offset = 3 * OFF_PAGE + at[(i + i / 7) % 7];
            if (s.format == KN_UINT4)
                s.n_out = (int)kn_align_up((size_t)s.n_out, 8);
            check_apart(&s, NULL);
            check_apart(&s, team[i % 3]);
        }
    for (int i = 0; i < 3; i++)
        kn_team_close(team[i]);
}

static void a_matrix_that_is_not_there_takes_nothing(void **state)
{
    (void)state;
    struct off_source none = { 0 };
    assert_int_equal(off_file_bytes(&none), 0);
    assert_int_equal(off_place_bytes(&none), 0);
    assert_int_equal(off_scratch_bytes(&none, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(small_matrices_at_every_offset),
#endif
        cmocka_unit_test(large_matrices_by_a_team),
        cmocka_unit_test(scales_apart_come_to_their_codes),
        cmocka_unit_test(a_matrix_that_is_not_there_takes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
