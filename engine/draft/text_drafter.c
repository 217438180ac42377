/* Drafters that need no model: what has been said before is said again.  spec_drafter does the work; here
 * it meets sessions, by the number of their seat, and documents. */
#include "engine/base/base.h"
#include "engine/internal.h"

#include <string.h>
#include <sys/stat.h>

#define OWN     8192                            /* tokens remembered of one session */
#define SHARED  (1 << 20)                       /* of ended ones, when they may help others */
#define LEARNING 6                              /* times its bytes is what prose takes while it is learnt */

struct draft_text {
    struct eng_drafter base;
    struct spec_drafter *drafter;
    struct spec_drafter_options opt;
};

/* What it has not seen of the session's text yet. */
static void take(struct draft_text *d, struct eng_session *s)
{
    int *known = eng_draft_known(&d->base, s);
    spec_drafter_commit(d->drafter, s->seat->number, s->token + *known, s->n_token - *known);
    *known = s->n_token;
}

static void enter(struct eng_drafter *base, struct eng_session *s)
{
    struct draft_text *d = (struct draft_text *)base;
    spec_drafter_begin(d->drafter, s->seat->number, s->path.salt);
    take(d, s);
}

/* Only what has ended is a text for others, with what its last pass said; what is preempted comes again. */
static void leave(struct eng_drafter *base, struct eng_session *s, bool ended)
{
    struct draft_text *d = (struct draft_text *)base;
    if (!ended) {
        spec_drafter_drop(d->drafter, s->seat->number);
        return;
    }
    take(d, s);
    spec_drafter_end(d->drafter, s->seat->number);
}

static void commit(struct eng_drafter *base, struct eng_session *s, int n_new, int n_kept)
{
    (void)n_new;
    (void)n_kept;
    take((struct draft_text *)base, s);
}

static int draft(struct eng_drafter *base, struct eng_session **s, const int *n_node, int n, int depth)
{
    struct draft_text *d = (struct draft_text *)base;
    bool oracle = d->opt.kind == SPEC_DRAFT_ORACLE;
    for (int i = 0; i < n; i++) {
        int said = s[i]->n_token - s[i]->n_prompt;
        if (!n_node[i])
            continue;
        if (oracle && s[i]->n_told > said)
            spec_drafter_tell(d->drafter, s[i]->seat->number, s[i]->told + said, s[i]->n_told - said);
        if (!oracle || s[i]->n_told > said)
            spec_draft(d->drafter, s[i]->seat->number, n_node[i], depth, (uint8_t)(1 << base->number),
                       &s[i]->seat->tree);
    }
    return 0;
}

static void close_text(struct eng_drafter *base)
{
    struct draft_text *d = (struct draft_text *)base;
    spec_drafter_close(d->drafter);
    kn_free(d);
}

/* Its memory is mapped, not allocated, so it does not count by itself. */
static struct eng_extra need(const struct eng_drafter *base)
{
    return (struct eng_extra){ .step = spec_drafter_bytes(&((const struct draft_text *)base)->opt) };
}

static const struct eng_drafter_kind text_kind = {
    .name = "text", .free = true, .enter = enter, .leave = leave, .commit = commit, .draft = draft, .close = close_text,
    .need = need };

static int check_room(const struct eng_engine *e, const char *path, size_t bytes)
{
    if (!e->opt.host_mem || bytes <= e->opt.host_mem)
        return 0;
    return kn_fail(KN_ELIMIT, "%s: to learn it takes about %zu MiB, and there are %zu for all: name a shorter text, or "
                   "raise --host-mem", path, bytes >> 20, e->opt.host_mem >> 20);
}

static int read_document(const struct eng_engine *e, const char *path, struct eng_ids *ids)
{
    char *text = NULL;
    size_t n = 0;
    struct stat st;
    int error = stat(path, &st) == 0 && S_ISREG(st.st_mode) ? check_room(e, path, LEARNING * (size_t)st.st_size) : 0;
    if (!error)
        error = eng_read_file(path, &text, &n);
    if (!error)
        error = eng_tokenize(e->vocab, text, n, 0, ids);
    kn_free(text);
    if (!error && ids->n > INT32_MAX / 4)
        error = kn_fail(KN_ELIMIT, "%s: %zu tokens are too many to learn", path, ids->n);
    return error;
}

int eng_draft_text_open(struct eng_drafter **out, struct eng_engine *e, const struct eng_draft_option *w)
{
    static const enum spec_drafter_kind kinds[] = {
        [ENG_DRAFT_NGRAM] = SPEC_DRAFT_NGRAM, [ENG_DRAFT_SUFFIX] = SPEC_DRAFT_SUFFIX,
        [ENG_DRAFT_ORACLE] = SPEC_DRAFT_ORACLE };
    struct eng_ids ids = { 0 };
    struct draft_text *d = kn_calloc(1, sizeof *d);
    int error = d ? 0 : kn_fail(KN_ENOMEM, "no memory for a drafter");
    if (!error && w->kind == ENG_DRAFT_SUFFIX && *w->file)
        error = read_document(e, w->file, &ids);
    if (!error) {
        d->opt = (struct spec_drafter_options){
            .kind = kinds[w->kind], .n_vocab = eng_vocab_size(e->vocab), .n_session = e->opt.n_parallel,
            .n_own = kn_min(e->opt.n_ctx, OWN), .n_shared = w->shared ? SHARED : 0, .n_learn = (int)ids.n,
            .right = w->right, .seed = 1 };
        error = ids.n ? check_room(e, w->file, spec_drafter_bytes(&d->opt)) : 0;
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
    d->base = (struct eng_drafter){ .kind = &text_kind, .engine = e };
    *out = &d->base;
    return 0;
}
