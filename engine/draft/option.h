/* engine/draft/option.h - the option --draft: KIND[:ARG][,key=value]*, and the table of the kinds of drafters. */
#ifndef ENGINE_DRAFT_OPTION_H
#define ENGINE_DRAFT_OPTION_H

#include <stdbool.h>
#include <stdint.h>

#define ENG_DRAFTERS_MOST 5    /* drafters of one engine: those of --draft, and prediction */
#define ENG_DRAFT_NODES   64   /* nodes of one session's draft tree */
#define ENG_GAMMA_AUTO    (-1) /* the controller chooses the number of drafted tokens */

enum eng_draft_kind { /* in the order of the table in option.c */
                      ENG_DRAFT_NONE,
                      ENG_DRAFT_NGRAM,
                      ENG_DRAFT_SUFFIX,
                      ENG_DRAFT_MODEL,
                      ENG_DRAFT_EAGLE,
                      ENG_DRAFT_MTP,
                      ENG_DRAFT_ORACLE,
                      ENG_DRAFT_PREDICTION,
                      ENG_DRAFT_RESIDENT,
                      ENG_DRAFT_LOOKAHEAD,
                      ENG_DRAFT_MEDUSA
};
enum eng_tree { ENG_TREE_CHAIN, ENG_TREE_STATIC, ENG_TREE_DYNAMIC }; /* the shape of a network's draft */

enum eng_dsi_mode { ENG_DSI_OFF, ENG_DSI_ON, ENG_DSI_AUTO }; /* draft while a pass verifies: overlap.c */

struct eng_draft_option {
    enum eng_draft_kind kind;
    char file[256];    /* a draft model, an EAGLE head, or a document for a suffix index */
    char lengths[256]; /* network that predicts the accepted length of drafts; empty: none */
    double right;      /* oracle: the probability of the right token */
    enum eng_tree tree;
    int n_column, n_gram; /* lookahead: columns of the window, tokens of an n-gram; else 0 */
    bool shared;          /* suffix: drafts may use the tokens of ended sessions with the same salt */
};

/* Limits of the drafts of one request; all zero: no limits. */
struct eng_draft_limits {
    uint8_t unused; /* bit i: drafter i of the engine does not draft for it */
    int n_max;      /* most tokens drafted in a step; 0: no limit */
    int n_min;      /* a draft of fewer tokens is dropped */
    float
        p_min; /* a token is dropped, and all after it, if its drafter gives it a lower probability, given those before it */
};

/* Parses the text of one --draft; on error a message says why. */
int eng_draft_parse(struct eng_draft_option *out, const char *text);

/* One row for each kind of drafter. Nothing outside this table compares kinds to find these properties. */
struct eng_draft_properties {
    const char *name;
    bool takes_file;      /* KIND:FILE must be given */
    bool may_take_file;   /* KIND:FILE may be given */
    bool is_network;      /* it has weights: it takes time and memory */
    bool is_target;       /* it is the target itself, by the experts in memory */
    bool is_head;         /* it continues from the target's features */
    bool needs_mtp_layer; /* its layer is in the target's file */
    bool is_oracle;       /* bench only: it is given the tokens to come */
    bool copies;          /* it drafts from the reference text of a request, if there is one */
    bool only_copies;     /* and from nothing else */
    bool has_window;      /* it adds rows of its own to passes */
    enum eng_tree default_tree;
    bool is_medusa; /* it is several heads, each of which predicts one token from a feature */
};
const struct eng_draft_properties *eng_draft_properties(enum eng_draft_kind kind);
const char *eng_tree_name(enum eng_tree tree);
int eng_draft_window_rows(const struct eng_draft_option *o); /* rows of its own of one sequence in a pass; 0: none */

/* The name by which a fit file knows a drafter: its kind, its file without the folder, its tree; empty for a drafter
 * without a network, since its drafts take no time worth measuring. */
#define ENG_DRAFT_NAME 160
void eng_draft_name(char *out /* [ENG_DRAFT_NAME] */, const struct eng_draft_option *option);

#endif
