/* engine/draft/text_drafter.c - drafters without a network: n-grams, suffixes, lookahead decoding, reference texts and the
 * oracle. spec_drafter does the work; this file gives it sessions, by the number of their seat, and documents. */
#include "engine/base/base.h"
#include "engine/draft/internal.h"

#include <string.h>
#include <sys/stat.h>

#define MAX_SESSION_TOKENS   8192      /* tokens remembered of one session */
#define MAX_SHARED_TOKENS    (1 << 20) /* tokens of ended sessions, for drafts of other sessions */
#define LEARN_BYTES_PER_BYTE 6         /* memory to learn a document of prose, over its size */

struct draft_text {
    struct eng_drafter base;
    struct spec_drafter *drafter;
    struct spec_drafter_options opt;
};

/* Adds the session's new tokens, of its first n, to the drafter. */
static void add_tokens(struct draft_text *d, struct eng_seq *s, int n)
{
    int *known = eng_draft_computed(&d->base, s);
    spec_drafter_commit(d->drafter, s->number, s->token + *known, n - *known);
    *known = n;
}

static void add_new_tokens(struct draft_text *d, struct eng_seq *s) { add_tokens(d, s, s->n_token); }

static void enter(struct eng_drafter *base, struct eng_seq *s)
{
    struct draft_text *d = (struct draft_text *)base;
    spec_drafter_begin(d->drafter, s->number, s->path.salt);
    if (base->copies && s->n_reference &&
        (s->draft->usable >> base->number & 1)) { /* the answer repeats it, not the prompt */
        add_tokens(d, s, s->n_prompt);
        spec_drafter_set_reference(d->drafter, s->number, s->reference, s->n_reference);
    }
    add_new_tokens(d, s);
}

/* The tokens of an ended session may be shared; those of its last pass are added first. A preempted session comes back,
 * so its tokens are dropped. */
static void leave(struct eng_drafter *base, struct eng_seq *s, bool ended)
{
    struct draft_text *d = (struct draft_text *)base;
    if (!ended) {
        spec_drafter_end_unshared(d->drafter, s->number);
        return;
    }
    add_new_tokens(d, s);
    spec_drafter_end(d->drafter, s->number);
}

static void commit(struct eng_drafter *base, struct eng_seq *s, const struct spec_verify *v, int n_new, int n_accepted)
{
    struct draft_text *d = (struct draft_text *)base;
    (void)n_new;
    if (base->n_window)
        spec_drafter_learn_window(d->drafter, s->number, s->tree, s->target_token, v->path, n_accepted);
    add_new_tokens(d, s);
}

static void window(struct eng_drafter *base, struct eng_seq *s, int n_node)
{
    spec_draft_window(((struct draft_text *)base)->drafter, s->number, n_node, &s->draft->tree);
}

static double window_value(const struct eng_drafter *base)
{
    return spec_window_value(((const struct draft_text *)base)->drafter);
}

static int draft(struct eng_drafter *base, struct eng_seq **s, const int *n_node, int n, int depth)
{
    struct draft_text *d = (struct draft_text *)base;
    bool oracle = d->opt.kind == SPEC_DRAFT_ORACLE;
    for (int i = 0; i < n; i++) {
        int said = s[i]->n_token - s[i]->n_prompt;
        if (!n_node[i])
            continue;
        if (oracle && s[i]->n_oracle > said)
            spec_drafter_set_oracle(d->drafter, s[i]->number, s[i]->oracle + said, s[i]->n_oracle - said);
        if (!oracle || s[i]->n_oracle > said)
            spec_draft(d->drafter, s[i]->number, n_node[i], depth, (uint8_t)(1 << base->number), &s[i]->draft->tree);
    }
    return 0;
}

static void close_text(struct eng_drafter *base)
{
    struct draft_text *d = (struct draft_text *)base;
    spec_drafter_close(d->drafter);
    kn_free(d);
}

/* The index is mapped memory, which kn_alloc does not count, so its size is reported here. */
static struct eng_extra need(const struct eng_drafter *base)
{
    return (struct eng_extra){ .step = spec_drafter_bytes(&((const struct draft_text *)base)->opt) };
}

static const struct eng_drafter_kind text_kind = { .name = "text",
                                                   .free = true,
                                                   .enter = enter,
                                                   .leave = leave,
                                                   .commit = commit,
                                                   .draft = draft,
                                                   .window = window,
                                                   .window_value = window_value,
                                                   .close = close_text,
                                                   .need = need };

static int check_room(const struct eng_drafting *g, const char *path, size_t bytes)
{
    if (!g->host.host_mem || bytes <= g->host.host_mem)
        return 0;
    return kn_fail(KN_ELIMIT,
                   "%s: learning it takes about %zu MiB, and the budget is %zu MiB: name a shorter text, or "
                   "raise --host-mem",
                   path, bytes >> 20, g->host.host_mem >> 20);
}

static int read_document(const struct eng_drafting *g, const char *path, struct eng_ids *ids)
{
    char *text = NULL;
    size_t n = 0;
    struct stat st;
    int error = stat(path, &st) == 0 && S_ISREG(st.st_mode)
                    ? check_room(g, path, LEARN_BYTES_PER_BYTE * (size_t)st.st_size)
                    : 0;
    if (!error)
        error = eng_read_file(path, &text, &n);
    if (!error)
        error = eng_tokenize(g->host.vocab, text, n, 0, ids);
    kn_free(text);
    if (!error && ids->n > INT32_MAX / 4)
        error = kn_fail(KN_ELIMIT, "%s: %zu tokens are too many to learn", path, ids->n);
    return error;
}

int eng_draft_text_open(struct eng_drafter **out, struct eng_drafting *g, const struct eng_draft_option *w)
{
    static const enum spec_drafter_kind kinds[] = { [ENG_DRAFT_NGRAM] = SPEC_DRAFT_NGRAM,
                                                    [ENG_DRAFT_SUFFIX] = SPEC_DRAFT_SUFFIX,
                                                    [ENG_DRAFT_ORACLE] = SPEC_DRAFT_ORACLE,
                                                    [ENG_DRAFT_PREDICTION] = SPEC_DRAFT_COPY,
                                                    [ENG_DRAFT_LOOKAHEAD] = SPEC_DRAFT_LOOKAHEAD };
    struct eng_ids ids = { 0 };
    struct draft_text *d = kn_calloc(1, sizeof *d);
    int error = d ? 0 : kn_fail(KN_ENOMEM, "no memory for a drafter");
    if (!error && w->kind == ENG_DRAFT_SUFFIX && *w->file)
        error = read_document(g, w->file, &ids);
    if (!error) {
        d->opt = (struct spec_drafter_options){ .kind = kinds[w->kind],
                                                .n_vocab = eng_vocab_size(g->host.vocab),
                                                .n_session = g->host.n_parallel,
                                                .n_own = kn_min(g->host.n_ctx, MAX_SESSION_TOKENS),
                                                .n_shared = w->shared ? MAX_SHARED_TOKENS : 0,
                                                .n_learn = (int)ids.n,
                                                .n_column = w->n_column,
                                                .n_gram = w->n_gram,
                                                .right = w->right,
                                                .seed = 1 };
        error = ids.n ? check_room(g, w->file, spec_drafter_bytes(&d->opt)) : 0;
    }
    if (!error)
        error = spec_drafter_open(&d->drafter, &d->opt);
    if (!error && ids.n)
        spec_drafter_learn(d->drafter, ids.id, (int)ids.n);
    eng_ids_free(&ids);
    if (error) {
        kn_free(d);
        return error;
    }
    d->base = (struct eng_drafter){ .kind = &text_kind, .drafting = g };
    *out = &d->base;
    return 0;
}
