/* The gated delta rule: every instruction set equals the specification bit for bit, a batch of rows equals
 * the same rows one by one, only state and outputs are written, and the specification equals the formula.
 *
 * One thread: not under MODE=tsan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/kernels.h"

#define D_MOST 256
#define N_ROW  9
#define GUARD  64

struct guarded {
    float before[GUARD], x[D_MOST * D_MOST], after[GUARD];
};
struct outputs {
    float before[GUARD], x[N_ROW][D_MOST], after[GUARD];
};

static const int shapes[][2] = { { 128, 128 }, { 64, 64 }, { 1, 1 },   { 3, 5 },    { 16, 8 },
                                 { 17, 33 },   { 32, 40 }, { 24, 96 }, { 130, 31 }, { 256, 256 } };
#define N_SHAPE ((int)(sizeof shapes / sizeof *shapes))

static uint64_t seed;
static float q[N_ROW][D_MOST], k[N_ROW][D_MOST], v[N_ROW][D_MOST];
static struct guarded start, want, got;
static struct outputs want_out, got_out;

static float uniform(void) /* -1 .. 1 */ { return (float)(int32_t)(kn_mix(seed += KN_GOLDEN) >> 32) * 0x1p-31f; }

enum fill { PLAIN, DENORMAL, HUGE_ONES, STRANGE, N_FILL };

static float draw(enum fill fill)
{
    static const float strange[] = { NAN, INFINITY, -0.0f, 1e-45f, 3e38f };
    float u = uniform();
    if (fill == STRANGE && kn_mix(seed) % 97 == 0)
        return strange[kn_mix(seed + 1) % 5];
    return fill == DENORMAL ? u * 0x1p-130f : fill == HUGE_ONES ? u * 0x1p60f : u;
}

/* Padding of the state is 0, as in a new state. */
static void fill_all(enum fill fill, int d_key, int d_value)
{
    memset(&start, 0x5a, sizeof start);
    memset(start.x, 0, kn_delta_floats(d_key, d_value) * sizeof(float));
    for (int i = 0; i < d_key; i++)
        for (int j = 0; j < d_value; j++)
            start.x[j / KN_DELTA_TILE * KN_DELTA_TILE * d_key + i * KN_DELTA_TILE + j % KN_DELTA_TILE] = draw(fill);
    for (int r = 0; r < N_ROW; r++)
        for (int i = 0; i < D_MOST; i++) {
            q[r][i] = draw(fill);
            k[r][i] = draw(fill);
            v[r][i] = draw(fill);
        }
}

/* Every third row wants no output, and so has no query. */
static void run(const struct kn_ops *ops, int d_key, int d_value, int n_at_once, struct guarded *s, struct outputs *out)
{
    struct kn_delta_row row[N_ROW];
    *s = start;
    memset(out, 0x5a, sizeof *out);
    for (int r = 0; r < N_ROW; r++)
        row[r] = (struct kn_delta_row){ .q = r % 3 == 2 ? NULL : q[r],
                                        .k = k[r],
                                        .v = v[r],
                                        .decay = 0.5f + 0.05f * (float)r,
                                        .beta = 0.9f - 0.1f * (float)r,
                                        .out = r % 3 == 2 ? NULL : out->x[r] };
    for (int r = 0; r < N_ROW; r += n_at_once)
        ops->delta(&(struct kn_delta){ s->x, row + r, kn_min(n_at_once, N_ROW - r), d_key, d_value });
}

/* Equal bits, or both NaN. */
static void assert_same(const void *a, const void *b, size_t bytes, const char *what, int d_key, int d_value)
{
    const float *x = a, *y = b;
    for (size_t i = 0; i < bytes / sizeof *x; i++)
        if (memcmp(&x[i], &y[i], sizeof *x) && !(isnan(x[i]) && isnan(y[i])))
            fail_msg("%s, %d by %d: element %d is %a, not %a", what, d_key, d_value, (int)i - GUARD, y[i], x[i]);
}

static void each_instruction_set_and_any_cut_gives_the_same_bits(void **state)
{
    (void)state;
    for (int s = 0; s < N_SHAPE; s++)
        for (int fill = 0; fill < N_FILL; fill++) {
            int d_key = shapes[s][0], d_value = shapes[s][1];
            seed = (uint64_t)(fill * 100 + s);
            fill_all((enum fill)fill, d_key, d_value);
            run(kn_ops(KN_ISA_SCALAR), d_key, d_value, N_ROW, &want, &want_out);
            for (int isa = 0; isa < KN_ISA_COUNT; isa++) {
                const struct kn_ops *ops = kn_ops((enum kn_isa)isa);
                run(ops, d_key, d_value, isa ? N_ROW : 1, &got, &got_out);
                assert_same(&want, &got, sizeof want, "state", d_key, d_value);
                assert_same(&want_out, &got_out, sizeof want_out, "output", d_key, d_value);
                run(ops, d_key, d_value, 4, &got, &got_out);
                assert_same(&want, &got, sizeof want, "state in parts", d_key, d_value);
                assert_same(&want_out, &got_out, sizeof want_out, "output in parts", d_key, d_value);
            }
        }
}

/* The delta rule in double: decay, the value that the key retrieves, its difference to v, the output. */
static void the_specification_is_the_formula(void **state)
{
    (void)state;
    enum { D = 48, E = 40 };
    static double S[D][E];
    seed = 7;
    fill_all(PLAIN, D, E);
    for (int r = 0; r < N_ROW; r++) { /* keys and queries normalised to length 1 */
        double squares = 0;
        for (int i = 0; i < D; i++)
            squares += (double)k[r][i] * (double)k[r][i];
        for (int i = 0; i < D; i++)
            k[r][i] /= (float)sqrt(squares);
    }
    for (int i = 0; i < D; i++)
        for (int j = 0; j < E; j++)
            S[i][j] = (double)start.x[j / KN_DELTA_TILE * KN_DELTA_TILE * D + i * KN_DELTA_TILE + j % KN_DELTA_TILE];
    run(kn_ops(KN_ISA_SCALAR), D, E, N_ROW, &got, &got_out);
    for (int r = 0; r < N_ROW; r++)
        for (int j = 0; j < E; j++) {
            double decay = (double)(0.5f + 0.05f * (float)r), beta = (double)(0.9f - 0.1f * (float)r);
            double found = 0, out = 0;
            for (int i = 0; i < D; i++)
                S[i][j] *= decay;
            for (int i = 0; i < D; i++)
                found += (double)k[r][i] * S[i][j];
            for (int i = 0; i < D; i++)
                S[i][j] += (double)k[r][i] * beta * ((double)v[r][j] - found);
            for (int i = 0; i < D; i++)
                out += (double)q[r][i] * S[i][j];
            if (r % 3 != 2)
                assert_true(fabs(out - (double)got_out.x[r][j]) < 1e-5);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_instruction_set_and_any_cut_gives_the_same_bits),
        cmocka_unit_test(the_specification_is_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
