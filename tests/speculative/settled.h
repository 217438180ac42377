/* tests/speculative/settled.h - a controller on a simple machine, on which drafts pay. */
#ifndef TESTS_SPECULATIVE_SETTLED_H
#define TESTS_SPECULATIVE_SETTLED_H

#include "tests/speculative/machine.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* A machine with 3 ms per row and 10 ms per pass, on which drafting pays. */
static struct machine hand = {
    "hand", { .fixed_ns = 10e6, .choose_row_ns = 3e6, .ridge = 1, .growth = 1 }, 0, 0, 0, 0, 0, 0
};
static struct machine_drafter by_hand = { "model", 4, 0.2e6, 0, 0.7, 0, 0 };

/* A controller with these n drafters. */
static inline struct spec_control *open_for(const struct machine_drafter *d, int n, enum spec_rule rule)
{
    struct spec_control_options o = {
        .n_session = MACHINE_SESSIONS, .n_drafter = n, .rule = rule, .gamma = SPEC_AUTO, .n_expert = 16
    };
    for (int i = 0; i < n; i++) {
        o.drafter[i].name = d[i].name;
        o.drafter[i].max_depth = d[i].max_depth;
    }
    struct spec_control *c = NULL;
    assert_int_equal(spec_control_open(&c, &o), 0);
    return c;
}

/* A controller after 600 steps of n sequences. */
static inline struct spec_control *settled(int n)
{
    struct spec_control *c = open_for(&by_hand, 1, SPEC_COUPLED);
    machine_seed = 9;
    machine_go(c, &hand, &by_hand, n, 600, NULL, NULL);
    return c;
}

/* Runs steps until the controller has drafts on because of a measured gain. */
static inline void decide_on(struct spec_control *c, int n)
{
    struct spec_decision d = { .drafter = SPEC_OFF };
    int session[4] = { 0, 1, 2, 3 }, nodes[4];
    for (int i = 0; i < 50; i++) {
        spec_control_decide(c, session, n, 0, &d, nodes);
        if (d.why == SPEC_WHY_GAINS || d.why == SPEC_WHY_SMALL_DIFFERENCE)
            break;
        machine_go(c, &hand, &by_hand, n, 1, NULL, NULL);
    }
    assert_int_equal(d.drafter, 0);
}

#endif
