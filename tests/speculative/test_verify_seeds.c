/* The distribution of whole sequences over seeds: drafts, dice and positions as in the engine, round after round, so
 * that a dependence between rounds' random numbers shows. A G-test over all sequences of three tokens.
 *
 * Also checks that faults are detected, here and by enumeration (row_distribution.h): verify.c is compiled again, with
 * substitutes for the functions it calls in other files; each substitute can have one fault.
 *
 * One thread: not under MODE=tsan. */
#include "tests/speculative/row_distribution.h"

#include "speculative/internal.h"

/* ---- the same decision, with a fault ------------------------------------------------------------------- */

enum fault {
    NO_FAULT,
    ALWAYS_KEPT,    /* every token of positive probability is accepted */
    RESIDUAL_IS_P,  /* the token after a rejection is drawn from all of p */
    PLACES_FOR_IDS, /* supports are matched by index, not by id */
    P_BEFORE_CUTS,
    PATH_UNSEEN,              /* penalties ignore the tokens of the path */
    CARRY_FORGOTTEN,          /* each row of a block begins with 1 */
    NOTHING_FOR_THE_REJECTED, /* the round ends without a token */
    DRAWS_SORTED,             /* and verified in the order of tokens */
    DRAWS_ONCE,               /* a second draw of the same token is lost */
    Q_BEFORE_CUTS,            /* the drafter's: reports q from before its cuts */
    ONE_DIE,                  /* from here on visible over seeds only: one die for all */
    DICE_OF_THE_DRAFT,        /* the random numbers of the draft are used again */
    DICE_OF_ANY_PLACE,        /* the same dice in each round */
    N_FAULT
};
static enum fault fault;
static int n_before; /* tokens before the root */

static double faulty_prob(const struct spec_dist *d, int32_t token)
{
    return fault == ALWAYS_KEPT ? 0 : spec_dist_prob(d, token);
}

static int32_t faulty_id(const struct spec_dist *d, int i) { return fault == PLACES_FOR_IDS ? i : spec_dist_id(d, i); }

static int faulty_min(int a, int b) { return fault == RESIDUAL_IS_P ? 0 : a < b ? a : b; }

static int faulty_target(struct spec_sampler *s, const struct spec_params *p, const float *logits,
                         const int32_t *history, int n_history, int64_t position, struct spec_dist *out)
{
    struct spec_params q = *p;
    q.top_k = fault == P_BEFORE_CUTS ? 0 : p->top_k;
    return spec_target(s, &q, logits, history, fault == PATH_UNSEEN ? n_before : n_history, position, out);
}

static uint64_t faulty_stream(uint64_t seed, uint32_t choice, int64_t position, enum spec_purpose why)
{
    return spec_stream(seed, choice, fault == DICE_OF_ANY_PLACE ? 0 : position,
                       fault == DICE_OF_THE_DRAFT ? SPEC_FOR_DRAFT : why);
}

static double faulty_uniform(uint64_t stream, uint32_t n) { return spec_uniform(stream, fault == ONE_DIE ? 0 : n); }

void faulty_start(struct spec_verify *v);
int faulty_row(struct spec_verify *v, struct spec_sampler *s, const float *logits, const uint32_t *mask);
void faulty_stop(struct spec_verify *v);

#define spec_dist_prob    faulty_prob
#define spec_dist_id      faulty_id
#define kn_min            faulty_min
#define spec_target       faulty_target
#define spec_stream       faulty_stream
#define spec_uniform      faulty_uniform
#define spec_verify_start faulty_start
#define spec_verify_row   faulty_row
#define spec_verify_stop  faulty_stop
#include "speculative/verify.c"
#undef spec_dist_prob
#undef spec_dist_id
#undef kn_min
#undef spec_target
#undef spec_stream
#undef spec_uniform
#undef spec_verify_start
#undef spec_verify_row
#undef spec_verify_stop

/* Faults of the callers of the verifier. */
static void start_wrong(struct spec_verify *v)
{
    static struct spec_tree other;
    struct spec_draw *draw = other.draw;
    n_before = v->n_history;
    if (fault == DRAWS_SORTED || fault == DRAWS_ONCE) {
        other = *v->tree;
        other.n_draw = 0;
        for (int i = 0; i < v->tree->n_draw; i++) {
            struct spec_draw d = v->tree->draw[i];
            int at = other.n_draw;
            bool again = false;
            for (int k = 0; k < at; k++)
                again |= draw[k].node == d.node;
            if (again && fault == DRAWS_ONCE)
                continue;
            for (; fault == DRAWS_SORTED && at > 0 && other.token[draw[at - 1].node] > other.token[d.node]; at--)
                draw[at] = draw[at - 1];
            draw[at] = d;
            other.n_draw++;
        }
        v->tree = &other;
    }
    faulty_start(v);
}

static int row_wrong(struct spec_verify *v, struct spec_sampler *s, const float *logits, const uint32_t *mask)
{
    int e = faulty_row(v, s, logits, mask);
    v->carry = fault == CARRY_FORGOTTEN ? 1 : v->carry;
    if (fault == NOTHING_FOR_THE_REJECTED && v->node == SPEC_END)
        v->n_out = v->n_path;
    return e;
}

static const struct verifier wrong_verifier = { start_wrong, row_wrong, faulty_stop };

/* ---- sequences from seeds ------------------------------------------------------------------------------- */

static void draft_from_seed(struct table *c)
{
    struct draft *d = &c->d;
    spec_tree_clear(&d->tree);
    for (int i = 0; i < c->shape->n; i++) {
        const struct step *step = &c->shape->step[i];
        int parent = step->under < 0 ? SPEC_ROOT : d->node[step->under];
        struct kept q;
        if (step->how < 'a') {
            d->token[i] = (step->how - '0') % c->target.n_vocab;
            d->node[i] = spec_tree_add(&d->tree, parent, d->token[i], 1, 1);
            continue;
        }
        find_q(c, i, &q);
        d->token[i] = spec_dist_token(&q.d, spec_draft_uniform(&c->p, c->n_said, i));
        d->node[i] = spec_tree_draw(&d->tree, parent, d->token[i], &d->q[i].d, 1, 1);
    }
}

/* Runs rounds until the sequence is long enough; returns its index. */
static int text_from_seed(struct table *c, uint64_t seed)
{
    c->p.seed = seed;
    for (c->n_said = 0; c->n_said < c->length;) {
        draft_from_seed(c);
        struct spec_verify v = { .tree = &c->d.tree,
                                 .rule = c->rule,
                                 .params = &c->p,
                                 .history = c->said,
                                 .n_history = c->n_said,
                                 .position = c->n_said };
        for (c->verifier->start(&v); v.node != SPEC_END;)
            assert_int_equal(table_row(c, &v, c->said), 0);
        for (int i = 0; i < v.n_out; i++)
            c->said[c->n_said++] = v.out[i].token;
        if (v.n_out == 0) /* a fault: the next round must differ from this one */
            c->p.seed = kn_mix(c->p.seed + KN_GOLDEN);
    }
    int number = 0;
    for (int i = 0; i < c->length; i++)
        number = number * c->target.n_vocab + c->said[i];
    c->n_said = 0;
    return number;
}

/* ---- the G-test ------------------------------------------------------------------------------------------ */

/* The probability that chi-square with n degrees of freedom exceeds g: Q(n / 2, g / 2), recursive from n = 1 or 2. */
static double chance_of(double g, int n)
{
    bool odd = n % 2;
    double x = g / 2, sum = odd ? erfc(sqrt(x)) : 0, term = exp(-x) * (odd ? 2 * sqrt(x / acos(-1)) : 1);
    for (double k = odd ? 0.5 : 0; k < n / 2.0 - 0.25; k++) {
        sum += term;
        term *= x / (k + 1);
    }
    return sum;
}

/* The probability of counts as far from the distribution, or farther; sequences expected less than ten times are
 * merged into one class. */
static double chance_of_counts(const int *count, const double *law, int n_text, int n_trial)
{
    double g = 0, rare = 0;
    int n_rare = 0, n_cell = 0;
    for (int i = 0; i < n_text; i++) {
        double want = law[i] * n_trial;
        if (want == 0 && count[i] > 0)
            return 0;
        if (want < 10) {
            rare += want;
            n_rare += count[i];
            continue;
        }
        g += count[i] > 0 ? 2 * count[i] * kn_log(count[i] / want) : 0;
        n_cell++;
    }
    g += n_rare > 0 ? 2 * n_rare * kn_log(n_rare / rare) : 0;
    return chance_of(g, n_cell - (rare < 10));
}

static double chance_of_texts(struct table *c, int n_trial)
{
    static int count[MOST_LAW];
    double law[MOST_LAW] = { 0 };
    int32_t text[MOST_LENGTH];
    memset(count, 0, sizeof count);
    find_target(c);
    add_texts(c, text, 0, 1, law);
    for (int trial = 0; trial < n_trial; trial++)
        count[text_from_seed(c, (uint64_t)trial)]++;
    return chance_of_counts(count, law, law_size(c), n_trial);
}

static void chances_golden(void **state)
{
    (void)state;
    static const struct {
        double g;
        int n;
        double chance;
    } golden[] = {
        { 3.841459, 1, .05 },   { 5.991465, 2, .05 },    { 7.814728, 3, .05 },
        { 38.885139, 26, .05 }, { 55.476020, 27, .001 },
    };
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++)
        assert_true(fabs(chance_of(golden[i].g, golden[i].n) / golden[i].chance - 1) < 1e-5);
}

static const struct shape one = { "one", 1, { { -1, 'q' } } },
                          chain_2 = { "chain of 2", 2, { { -1, 'q' }, { 0, 'q' } } },
                          chain_3 = { "chain of 3", 3, { { -1, 'q' }, { 0, 'q' }, { 1, 'q' } } },
                          two = { "two", 2, { { -1, 'q' }, { -1, 'q' } } },
                          tree = { "two, one below each", 4, { { -1, 'q' }, { -1, 'q' }, { 0, 'q' }, { 1, 'q' } } },
                          both = { "two chains", 4, { { -1, 'q' }, { 0, 'q' }, { -1, 'r' }, { 2, 'r' } } },
                          mixed = { "added chain, drawn chain",
                                    4,
                                    { { -1, '0' }, { 0, '1' }, { -1, 'q' }, { 2, 'q' } } };

struct way {
    const struct shape *shape;
    int process;
    enum spec_rule rule;
};

static const struct way ways[] = {
    { &chain_2, PLAIN, SPEC_COUPLED }, { &chain_2, PLAIN, SPEC_RATIO },     { &chain_2, PLAIN, SPEC_BLOCK },
    { &chain_3, HOT, SPEC_BLOCK },     { &chain_3, PENALTIES, SPEC_RATIO }, { &chain_3, PENALTIES, SPEC_BLOCK },
    { &tree, PLAIN, SPEC_RATIO },      { &tree, TOP_2, SPEC_RATIO },        { &tree, MASKS, SPEC_RATIO },
    { &both, PLAIN, SPEC_RATIO },      { &both, POINT, SPEC_RATIO },        { &mixed, PLAIN, SPEC_BLOCK },
};
enum { N_WAY = sizeof ways / sizeof *ways };

/* The probability that a right verifier fails any test here is one in a million choices of seeds, by Bonferroni. */
#define LEAST_CHANCE (1e-6 / (N_WAY + N_FAULT))

#ifdef DRAWS /* for a long run */
enum { N_TRIAL = DRAWS };
#elif defined __SANITIZE_ADDRESS__ /* checks memory, not distributions */
enum { N_TRIAL = 20000 };
#else
enum { N_TRIAL = 120000 };
#endif

static void seeds_give_the_law(void **state)
{
    (void)state;
    static struct table c;
    random_state = 11;
    for (int i = 0; i < N_WAY; i++) {
        open_table(&c, ways[i].shape, 3, ways[i].process, ways[i].rule);
        double chance = chance_of_texts(&c, N_TRIAL);
        if (!(chance > LEAST_CHANCE))
            fail_msg("%s, process %d, rule %d: such counts have a chance of %g", ways[i].shape->name, ways[i].process,
                     (int)ways[i].rule, chance);
#ifdef DRAWS
        printf("%s, process %d, rule %d: %g\n", ways[i].shape->name, ways[i].process, (int)ways[i].rule, chance);
#endif
        spec_sampler_close(c.s);
    }
}

/* ---- faults are detected ------------------------------------------------------------------------------------ */

static const struct way where[N_FAULT] = {
    [NO_FAULT] = { &chain_2, PLAIN, SPEC_RATIO },          [ALWAYS_KEPT] = { &one, PLAIN, SPEC_RATIO },
    [RESIDUAL_IS_P] = { &one, PLAIN, SPEC_RATIO },         [PLACES_FOR_IDS] = { &chain_2, TOP_2, SPEC_RATIO },
    [P_BEFORE_CUTS] = { &chain_2, TOP_2, SPEC_BLOCK },     [PATH_UNSEEN] = { &chain_2, PENALTIES, SPEC_RATIO },
    [CARRY_FORGOTTEN] = { &chain_3, PLAIN, SPEC_BLOCK },   [NOTHING_FOR_THE_REJECTED] = { &chain_2, PLAIN, SPEC_RATIO },
    [DRAWS_SORTED] = { &two, PLAIN, SPEC_RATIO },          [DRAWS_ONCE] = { &two, PLAIN, SPEC_RATIO },
    [Q_BEFORE_CUTS] = { &chain_2, TOP_2, SPEC_RATIO },     [ONE_DIE] = { &chain_2, PLAIN, SPEC_RATIO },
    [DICE_OF_THE_DRAFT] = { &chain_2, PLAIN, SPEC_RATIO }, [DICE_OF_ANY_PLACE] = { &chain_2, PLAIN, SPEC_RATIO },
};

static void open_fault(struct table *c, enum fault which, uint64_t seed)
{
    random_state = seed;
    open_table(c, where[which].shape, 3, where[which].process, where[which].rule);
    c->verifier = &wrong_verifier;
    c->boasts = which == Q_BEFORE_CUTS;
}

static void faults_are_enumerated(void **state)
{
    (void)state;
    static struct table c;
    for (enum fault which = NO_FAULT; which < ONE_DIE; which++) {
        double right = 0, wrong = 0;
        for (uint64_t seed = 12; seed < 16; seed++) {
            open_fault(&c, which, seed);
            for (int way = 0; way < 2; way++) {
                fault = way ? which : NO_FAULT;
                c.boasts = fault == Q_BEFORE_CUTS;
                find_law(&c);
                *(way ? &wrong : &right) = fmax(way ? wrong : right, law_error(&c));
            }
            spec_sampler_close(c.s);
        }
        fault = NO_FAULT;
        if (!(right < 1e-12) || (wrong < 1e-3) != (which == NO_FAULT))
            fail_msg("fault %d: off by %g, and without it by %g", (int)which, wrong, right);
    }
}

static void faults_are_counted(void **state)
{
    (void)state;
    static struct table c;
    for (enum fault which = NO_FAULT; which < N_FAULT; which++) {
        open_fault(&c, which, 12);
        fault = which;
        double chance = chance_of_texts(&c, N_TRIAL / 4);
        fault = NO_FAULT;
        if ((chance > LEAST_CHANCE) != (which == NO_FAULT))
            fail_msg("fault %d: such counts have a chance of %g", (int)which, chance);
        spec_sampler_close(c.s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chances_golden),
        cmocka_unit_test(seeds_give_the_law),
        cmocka_unit_test(faults_are_enumerated),
        cmocka_unit_test(faults_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
