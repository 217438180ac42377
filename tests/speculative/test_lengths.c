/* The network that predicts accepted lengths: its three layers by hand, survivals that sum to its lengths, and their
 * use by the controller.  One thread: not under MODE=tsan. */
#include "speculative/internal.h"
#include "speculative/lengths.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

static void near_to(double x, double expected, double error)
{
    if (!(fabs(x - expected) <= error))
        fail_msg("%.10g is not %.10g", x, expected);
}

/* Two inputs, two hidden: the first layer swaps them, the second subtracts one from the other, the third adds a bias
 * equal to the output's index. */
static void three_layers_by_hand(void **state)
{
    (void)state;
    static const float swap[] = { 0, 1, 1, 0 }, less[] = { 1, -1, -1, 1 }, none[2] = { 0, 0 };
    static float last[2 * SPEC_LENGTHS], bias[SPEC_LENGTHS];
    const struct spec_lengths net = { 2, 2, { swap, less, last }, { none, none, bias } };
    float room[4];
    double out[SPEC_LENGTHS];
    for (int i = 0; i < SPEC_LENGTHS; i++) {
        last[i] = 1; /* weight of the first hidden value */
        last[SPEC_LENGTHS + i] = -1;
        bias[i] = (float)i / 8;
    }
    spec_lengths_predict(&net, (float[]){ 1, 3 }, room, out); /* 3 - 1 = 2 and max(0, 1 - 3) = 0 */
    for (int i = 0; i < SPEC_LENGTHS; i++)
        near_to(out[i], spec_length_depth(i) / (1 + exp(-2 - i / 8.)), 1e-6);
    spec_lengths_predict(&net, (float[]){ 3, -2 }, room, out); /* negatives become 0 after each layer: 0 and 3 */
    for (int i = 0; i < SPEC_LENGTHS; i++)
        near_to(out[i], spec_length_depth(i) / (1 + exp(3 - i / 8.)), 1e-6);
    assert_true(spec_length_width(4) == 1 && spec_length_width(5) == 2 && spec_length_depth(5) == 1);
    assert_true(spec_length_width(14) == 4 && spec_length_depth(14) == 16);
}

static void survivals_add_up(void **state)
{
    (void)state;
    static const double length[][SPEC_LENGTH_DEPTHS] = {
        { 0.8, 1.44, 2.3616, 3.32891136, 3.8873910 }, /* 0.8 at each depth */
        { 0.9, 0.9, 0.9, 0.9, 0.9 },
        { 0, 0, 0, 0, 0 },
        { 1, 2, 4, 8, 16 },
        { 0.5, 0.9, 1.2, 1.3, 1.35 },
    };
    double s[SPEC_DEPTHS];
    for (size_t i = 0; i < sizeof length / sizeof *length; i++) {
        double sum = 0;
        spec_lengths_survival(length[i], s);
        for (int d = 0, k = 0; d < SPEC_DEPTHS; d++) {
            assert_true(s[d] >= 0 && s[d] <= (d ? s[d - 1] : 1));
            sum += s[d];
            if (d + 1 == spec_length_depth(k))
                near_to(sum, length[i][k++], 1e-6);
        }
    }
    spec_lengths_survival(length[0], s);
    near_to(s[5], pow(0.8, 6), 1e-6);
    spec_lengths_survival((double[]){ 0.5, 2, 6, 9, 30 }, s); /* impossible lengths are clamped to possible ones */
    for (int d = 0; d < SPEC_DEPTHS; d++)
        near_to(s[d], 0.5, 1e-6);
}

/* A survival that is set is used; if drafts then report a lower survival, the estimate is lowered by that factor. */
static void the_controller_listens(void **state)
{
    (void)state;
    struct spec_control_options o = { .n_session = 2,
                                      .n_drafter = 1,
                                      .rule = SPEC_COUPLED,
                                      .gamma = 4,
                                      .drafter = { { .name = "model", .max_depth = 4 } } };
    struct spec_control *c;
    static struct spec_tree tree;
    double told[SPEC_DEPTHS], s[4], untold[4];
    int session = 0, nodes;
    assert_int_equal(spec_control_open(&c, &o), 0);
    for (int d = 0; d < SPEC_DEPTHS; d++)
        told[d] = pow(0.9, d + 1);
    spec_control_survival(c, 0, 1, 4, untold);
    spec_control_set_survival(c, 0, 0, told);
    spec_control_survival(c, 0, 0, 4, s);
    for (int d = 0; d < 4; d++)
        near_to(s[d], told[d], 1e-12);
    spec_control_survival(c, 0, 1, 4, s); /* no survival is set for the other session */
    for (int d = 0; d < 4; d++)
        near_to(s[d], untold[d], 0);
    for (int i = 0; i < 400; i++) { /* drafts of 0.5 a level, accepted at that rate */
        struct spec_decision decision;
        spec_control_set_survival(c, 0, 0, told);
        spec_control_decide(c, &session, 1, 0, &decision, &nodes);
        spec_tree_clear(&tree);
        for (int d = 0; d < 4; d++)
            spec_tree_add(&tree, d - 1, d, (float)pow(0.5, d + 1), 1);
        struct spec_cut cut = { .session = 0, .tree = &tree, .n_requested = 4 };
        spec_control_cut(c, &cut, 1, 0);
        int kept = i % 2 ? 0 : i % 4 ? 1 : i % 8 ? 2 : i % 16 ? 3 : 4;
        spec_control_learn(
            c, &(struct spec_outcome_of_pass){ .n_row = 5,
                                               .pass_ns = 1e6,
                                               .n_due = 1,
                                               .outcome = &(struct spec_session_outcome){ 0, &tree, kept, NULL } });
    }
    spec_control_set_survival(c, 0, 0, told);
    spec_control_survival(c, 0, 0, 4, s);
    for (int d = 0; d < 4; d++)
        near_to(s[d], pow(0.5, d + 1), 0.05);
    spec_control_set_survival(c, 0, 0, NULL);
    spec_control_survival(c, 0, 0, 4, s);
    near_to(s[0], 0.5, 0.05); /* its own estimate from outcomes */
    spec_control_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_layers_by_hand),
        cmocka_unit_test(survivals_add_up),
        cmocka_unit_test(the_controller_listens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
