/* engine/draft/report.h - counters of drafts and their acceptance, and the controller's account of each drafter. */
#ifndef ENGINE_DRAFT_REPORT_H
#define ENGINE_DRAFT_REPORT_H

#include "engine/draft/option.h"
#include "speculative/control.h"

#define ENG_EXPLAIN_BYTES 768 /* room for the line of eng_explain() */

enum eng_drafter_state { ENG_DRAFTER_ASKED, ENG_DRAFTER_UNLOADED, ENG_DRAFTER_BROKEN };

/* Counts never fall, not even when a drafter is unloaded. */
struct eng_drafts {
    bool any;         /* a drafter drafts for all requests; or one for predictions alone, and a request had one */
    bool overlap;     /* a drafter can draft during a pass, and --dsi is not off */
    bool has_window;  /* a drafter adds rows of its own to passes */
    uint64_t n_draft; /* drafts verified, each of one session in one pass */
    uint64_t n_accepted[ENG_DRAFT_NODES]; /* [depth - 1] drafts accepted at least to this depth */
    /* Tokens of prompts that drafters with a network read before a draft, and beside passes of the model; those that are
     * read with the first row of a draft are not counted. */
    uint64_t n_text_before, n_text_beside;
    enum spec_why last_why;              /* the controller's last decision */
    uint64_t n_decision[SPEC_WHY_COUNT]; /* passes with tokens due, by the reason for drafting or not */
    int n_choice;                        /* plans that the controller chooses among; 0: the options decide */
    struct eng_draft_choice {
        const char *name; /* a drafter's kind; "all": all drafters; "ahead": during passes; outlives the engine */
        int nth;          /* earlier choices with the same name */
        enum eng_drafter_state state;
        int depth; /* depth that it drafts now; 0: another plan is chosen, or none */
        struct spec_account account;
    } choice[SPEC_DRAFTERS];
    double lost_ns, loss_limit_ns; /* the controller's account; loss_limit_ns 0: not known yet */
    struct spec_target target;     /* of the last decision */
    bool fitted;                   /* the controller's first estimate is a fit, of earlier passes or of --fit FILE */
    double fit_error;              /* its mean error at the passes that it was fitted to */
    uint64_t n_fit_pass;           /* passes of this run that are collected for the next fit */
};

#endif
