/* engine/internal.h - the engine's own insides: KV blocks, who advances, what is drafted, sessions. */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/grammar/grammar.h"
#include "engine/plan.h"
#include "speculative/control.h"

/* ---- kv.c, prefix.c: slot numbers, in blocks.  Integers only; the memory is the context's. -------- */

#define ENG_KV_BLOCK 64                         /* slots: one chunk of attention */

/* A block is free; or taken by one path that still writes it; or kept: known by its tokens and by the
 * block before it, never written again, and shared by any number of paths.  Kept blocks that no path
 * uses stay until their room is wanted, the one unused longest first, later parts of a text before
 * earlier ones. */
struct eng_block {
    int32_t n_user;
    int32_t n_token;                            /* 0: not kept; less than all: only the tail of a text */
    int32_t parent, child, next, prev;          /* kept ones: a tree of texts; siblings are a list; -1: none */
    int32_t older, newer;                       /* kept ones without users */
    int32_t same_hash;                          /* next in the table's list */
    uint8_t drafted;                            /* bit i: drafter i has keys and values for all of it */
    uint64_t salt;
    uint64_t key[2];                            /* of the salt and all tokens up to this block's end */
    int32_t token[ENG_KV_BLOCK];
};

/* What the lists take of memory for each slot: a block, its place on the stack, two in the table. */
#define ENG_KV_SLOT_BYTES ((sizeof(struct eng_block) + 5 * sizeof(int32_t) + ENG_KV_BLOCK - 1) / ENG_KV_BLOCK)

struct eng_kv {
    struct eng_block *block;                    /* [n_block] */
    int32_t *free_block;                        /* [n_unused] a stack */
    int32_t *table;                             /* [n_table] first block by key, -1: none */
    int n_block, n_table, n_unused;
    int n_free;                                 /* unused ones, and kept ones without users */
    int32_t oldest, newest;                     /* of those */
    int32_t first_child;                        /* blocks that begin a text */
    uint64_t secret[2];                         /* so that nobody can choose texts whose keys meet */
};

/* The KV of one text: the first n_kept positions lie in kept blocks, the rest in its own. */
struct eng_path {
    int32_t *slot;                              /* by position */
    int n_slot;                                 /* reserved, whole blocks */
    int n_kept;
    uint64_t salt;
};

int  eng_kv_open(struct eng_kv *kv, int n_block, const uint64_t *secret /* [2] */);
void eng_kv_close(struct eng_kv *kv);

/* Grows the path to hold n positions; all or nothing. */
int  eng_kv_reserve(struct eng_kv *kv, struct eng_path *path, int n);

/* Goes on with kept blocks that hold what follows in token[n]; returns how many positions the path has.
 * All that it has must be kept. */
int  eng_kv_find(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n);

/* How many of the blocks that eng_kv_find would take have users already: they cost nothing. */
int  eng_kv_count_shared(const struct eng_kv *kv, uint64_t salt, const int32_t *token, int n);

/* The kept block that goes on most like token[n] from the path's end, and for how long: its slots are to
 * be copied.  It stays until eng_kv_unpin.  0: none, and nothing is pinned. */
int  eng_kv_pin_like(struct eng_kv *kv, const struct eng_path *path, const int32_t *token, int n,
                     int32_t *block);
void eng_kv_unpin(struct eng_kv *kv, int32_t block);

/* The first n positions are written for good: whole blocks of them become kept, or make way for blocks
 * that hold the same already. */
void eng_kv_keep(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n);

/* Gives back what was reserved beyond n positions. */
void eng_kv_trim(struct eng_kv *kv, struct eng_path *path, int n);

/* Gives everything back; the first n positions stay known while there is room, a part of a block too. */
void eng_kv_leave(struct eng_kv *kv, struct eng_path *path, const int32_t *token, int n);

/* prefix.c: the tree of kept blocks and the table of their keys. */
void eng_prefix_add(struct eng_kv *kv, int32_t block, int32_t parent, uint64_t salt, const int32_t *token,
                    int n);
void eng_prefix_drop(struct eng_kv *kv, int32_t block);         /* has no children */
int32_t eng_prefix_find(const struct eng_kv *kv, int32_t parent, uint64_t salt, const int32_t *token);
int32_t eng_prefix_like(const struct eng_kv *kv, int32_t parent, uint64_t salt, const int32_t *token,
                        int n, int *n_same);

/* ---- pace.c: how much of prompts a pass takes beside tokens that people wait for ------------------ */

#define ENG_PACE_SIZES 14                       /* powers of two */

struct eng_pace {
    double stretch;                             /* such a pass may take this many times one without */
    double base_ns[ENG_PACE_SIZES];             /* of a pass without prompts, by rows; 0: not known yet */
    double row_ns[ENG_PACE_SIZES];              /* that one row of a prompt adds, by how many there are */
};

void eng_pace_init(struct eng_pace *p, double stretch);
/* Rows of prompts in a pass with n_due others, at most `most`. */
int  eng_pace_rows(const struct eng_pace *p, int n_due, int most);
void eng_pace_learn(struct eng_pace *p, int n_due, int n_prompt, double pass_ns);

/* ---- seats: what a session has while it advances ------------------------------------------------------ */

#define ENG_DRAFT_NODES 64                      /* of one session's draft */

struct eng_seat {
    int number;
    int32_t *slot;                              /* [n_ctx + 1 + ENG_DRAFT_NODES] the path's */
    struct spec_tree tree;                      /* the draft of the pass under way */
    struct spec_verify verify;                  /* and what became of it */
    int32_t *tail;                              /* [ENG_DRAFT_TAILS] slots of each node's branch */
    struct gr_state *grammar;                   /* along the walk; NULL: no grammars */
    int n_known[ENG_DRAFTERS_MOST];             /* tokens that each drafter has taken in */
    bool lags;                                  /* who was to draft was still taking in the text */
};

#define ENG_DRAFT_TAILS (ENG_DRAFT_NODES * (ENG_DRAFT_NODES + 1) / 2)

/* ---- sessions ---------------------------------------------------------------------------------- */

struct eng_share { uint64_t user, served; int n_running; };     /* n_running 0: free */

struct eng_session {
    struct eng_engine *engine;
    bool open;
    enum eng_finish finish;
    struct eng_seat *seat;                      /* NULL: it waits, or does not run */
    int priority;
    uint64_t arrival;
    struct eng_share *share;                    /* of its user; while it runs */
    int32_t *token;                             /* [n_ctx + 1] */
    int n_token, n_prompt, n_most;              /* n_most: tokens it may reach */
    int n_kv;                                   /* the first n_kv have their keys and values */
    int n_reached;                              /* the most that n_kv has been */
    int n_cached;                               /* of the prompt, what was found and not computed */
    struct eng_path path;                       /* while it has a seat */
    struct spec_params sampling;                /* its bias is the array below */
    struct spec_bias *bias;                     /* [ENG_REQUEST_BIAS + n_stop] */
    const struct gr_grammar *grammar;           /* or NULL */
    struct gr_state *grammar_state;             /* of all tokens so far */
    int n_top;
    const int32_t *told;                        /* [n_told] what it will say, for the oracle; the caller's */
    int n_told;
    int first_row, n_row, want;                 /* of the pass under way, without drafts; want -1: no logits */
};

/* What one thread needs to choose a token. */
struct eng_chooser {
    struct spec_sampler *sampler;
    struct gr_scratch *scratch;                 /* NULL: no grammars */
    uint32_t *mask;
};

struct eng_engine {
    struct eng_options opt;
    struct eng_split split;
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
    struct eng_vocab *vocab;
    struct gr_tokens *tokens;                   /* NULL: no grammars */
    struct kn_team *team;
    struct eng_kv kv;
    struct eng_pace pace;
    struct eng_session *session;                /* [n_session] */
    struct eng_session **active;                /* [n_active] those with a seat, who goes first first */
    int n_active;
    struct eng_seat *seat;                      /* [n_parallel] */
    struct eng_seat **free_seat;                /* [n_parallel - n_active] a stack */
    struct eng_share *share;                    /* [n_session] */
    uint64_t n_arrival;
    struct eng_drafter *drafter[ENG_DRAFTERS_MOST];     /* [n_drafter] */
    int n_drafter;
    struct spec_control *control;               /* NULL: no drafters */
    struct spec_decision decision;              /* of the pass under way */
    struct spec_cut *cut;                       /* [n_parallel] */
    struct spec_outcome *outcome;               /* [n_parallel] in the order of due */
    int *due_seat;                              /* [n_parallel] their seats' numbers */
    uint64_t draft_ns;                          /* of the pass under way */
    bool all_lag;                               /* it was to have drafts, and says nothing of what they are worth */
    struct off_stats store_then;                /* before the pass under way */
    struct moe_row *row;                        /* [n_chunk + n_draft_row] */
    int n_draft_row;                            /* rows of drafts in a pass, at most */
    bool features;                              /* a drafter reads what the model thinks */
    struct eng_chooser *chooser;                /* [threads] */
    struct eng_session **due;                   /* [n_parallel] of the pass under way */
    int n_due;
    int *n_node, *n_part;                       /* [n_parallel] that its draft may have; from one drafter */
    int *choice_status;                         /* [n_parallel] */
    struct spec_top *top;                       /* [n_parallel + n_draft_row][ENG_TOP] by row of logits */
    int32_t *stop;                              /* [n_stop] the tokens that end a text */
    int n_stop;
    struct moe_result result;                   /* of the pass under way */
    struct eng_stats stats;
};

/* ---- schedule.c: who advances ----------------------------------------------------------------------- */

/* Gives seats to those that wait, and plans the pass: sets n_row of all that have a seat, with KV for it. */
void eng_schedule(struct eng_engine *e);
void eng_schedule_enter(struct eng_session *s, uint64_t user);  /* it runs from now on */
void eng_schedule_leave(struct eng_session *s);                 /* it has ended: seat, KV and share go back */
void eng_schedule_served(struct eng_session *s, int n_row);

void eng_session_end(struct eng_session *s, enum eng_finish finish);    /* of one that runs */

/* Says what is wrong with a request, whatever session gets it. */
int eng_request_check(const struct eng_engine *e, const struct eng_request *r);

/* Its sampling, with the ends that are to be ignored among bias[ENG_REQUEST_BIAS + n_stop]. */
void eng_request_sampling(const struct eng_engine *e, const struct eng_request *r, struct spec_params *out,
                          struct spec_bias *bias);

/* ---- draft.c: what may come next ----------------------------------------------------------------------- */

/* A drafter is one of several kinds behind this table.  Its KV, if it has any, lies in memory of its own at
 * the slots of the session's path: what is true of a slot is true there too. */
struct eng_drafter_kind {
    const char *name;
    /* The session has got a seat; or loses it.  NULL: nothing is to be done. */
    void (*enter)(struct eng_drafter *d, struct eng_session *s);
    void (*leave)(struct eng_drafter *d, struct eng_session *s, bool ended);
    /* Tokens were committed; n_kept of them were in the draft. */
    void (*commit)(struct eng_drafter *d, struct eng_session *s, int n_new, int n_kept);
    /* Adds at most n_node[i] nodes to the tree of s[i], about `depth` deep; KV for as many more is reserved. */
    int  (*draft)(struct eng_drafter *d, struct eng_session **s, const int *n_node, int n, int depth);
    void (*close)(struct eng_drafter *d);
    int  (*load)(struct eng_drafter *d);        /* NULL: nothing is to be read */
    struct eng_extra (*need)(const struct eng_drafter *d);      /* beside what open took; NULL: nothing */
};

struct eng_drafter {
    const struct eng_drafter_kind *kind;
    const char *name;
    struct eng_engine *engine;
    int number;                                 /* its bit in a tree's source */
    bool broken;                                /* it has failed once */
};

/* Opens what e->opt.draft names, so far that its memory is known; eng_drafters_load takes the memory. */
int  eng_drafters_open(struct eng_engine *e);
int  eng_drafters_load(struct eng_engine *e);
void eng_drafters_close(struct eng_engine *e);
struct eng_extra eng_drafters_need(const struct eng_engine *e);

/* Drafts for those of the pass that are due: their seats' trees. */
void eng_draft(struct eng_engine *e, int n_beside);
void eng_draft_look(const struct eng_engine *e, struct off_stats *out);     /* the store, if anyone learns */
void eng_draft_learn(struct eng_engine *e, int n_row, int n_beside, uint64_t pass_ns);
void eng_draft_enter(struct eng_session *s);
void eng_draft_leave(struct eng_session *s, bool ended);
void eng_draft_commit(struct eng_session *s, int n_new, int n_kept);

int  eng_draft_text_open(struct eng_drafter **out, struct eng_engine *e, const struct eng_draft_wish *w);
int  eng_draft_model_open(struct eng_drafter **out, struct eng_engine *e, const struct eng_draft_wish *w);
bool eng_draft_is_model(const struct eng_drafter *d);
const struct moe_model *eng_draft_model_of(const struct eng_drafter *d);
int  eng_draft_eagle_open(struct eng_drafter **out, struct eng_engine *e, const struct eng_draft_wish *w);

/* draft_known.c: what a network has taken in of a text; tokens, from the first on. */
int *eng_draft_known(const struct eng_drafter *d, struct eng_session *s);
int  eng_draft_first_unknown(const struct eng_drafter *d, struct eng_session *s);
/* Blocks that end at or before n are known: to everyone who has them in his path. */
void eng_draft_mark(struct eng_drafter *d, struct eng_session *s, int from, int n);
/* How many tokens a pass may take in next: a block that may be shared is written whole, in one pass, by one
 * session.  0: there is no room. */
int  eng_draft_span(const struct eng_session *s, int at, int n_text, int room);

#endif
