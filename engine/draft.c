/* What may come next: drafters, the drafts of a pass, and how much of it there is.
 *
 * A draft is verified in the pass that would have computed the next token anyway, so it can only cost time,
 * never change a byte (speculative.h).  Several drafters merge their drafts in one tree. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is wished for -------------------------------------------------------------------------------- */

static const char *const kind_name[] = { "none", "ngram", "suffix", "model", "oracle" };
#define N_KIND ((int)(sizeof kind_name / sizeof *kind_name))

static int parse_option(struct eng_draft_wish *w, const char *text, size_t n)
{
    if (w->kind == ENG_DRAFT_SUFFIX && n == 6 && !memcmp(text, "shared", n)) {
        w->shared = true;
        return 0;
    }
    return kn_fail(KN_EINVAL, "--draft: '%.*s' is no option of %s", (int)n, text, kind_name[w->kind]);
}

static int parse_argument(struct eng_draft_wish *w, const char *text, size_t n)
{
    char *end;
    if (n >= sizeof w->file)
        return kn_fail(KN_ELIMIT, "--draft: a file name of %zu bytes; %zu are possible", n, sizeof w->file - 1);
    memcpy(w->file, text, n);
    w->file[n] = 0;
    if (w->kind == ENG_DRAFT_ORACLE) {
        w->right = strtod(w->file, &end);
        if (n && !*end && w->right >= 0 && w->right <= 1)
            return 0;
        return kn_fail(KN_EINVAL, "--draft: oracle takes a probability, as in oracle:0.8");
    }
    if (w->kind == ENG_DRAFT_MODEL && !n)
        return kn_fail(KN_EINVAL, "--draft: model takes a file, as in model:draft.gguf");
    if (n && w->kind != ENG_DRAFT_MODEL && w->kind != ENG_DRAFT_SUFFIX)
        return kn_fail(KN_EINVAL, "--draft: %s takes no argument", kind_name[w->kind]);
    return 0;
}

int eng_draft_parse(struct eng_draft_wish *out, const char *text)
{
    struct eng_draft_wish w = { .kind = ENG_DRAFT_NONE };
    size_t n = strcspn(text, ":,");
    int kind = 0, error;
    while (kind < N_KIND && (strlen(kind_name[kind]) != n || memcmp(kind_name[kind], text, n)))
        kind++;
    if (kind == N_KIND)
        return kn_fail(KN_EINVAL, "--draft: '%.*s' is not a kind of drafter: none, ngram, suffix, model:FILE or "
                       "oracle:P are", (int)n, text);
    w.kind = (enum eng_draft_kind)kind;
    text += n;
    n = *text == ':' ? strcspn(text + 1, ",") : 0;
    if ((error = parse_argument(&w, text + (*text == ':'), n)))
        return error;
    for (text += n + (*text == ':'); *text == ','; text += n) {
        n = strcspn(++text, ",");
        if ((error = parse_option(&w, text, n)))
            return error;
    }
    *out = w;
    return 0;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static int open_one(struct eng_drafter **out, struct eng_engine *e, const struct eng_draft_wish *w)
{
    return w->kind == ENG_DRAFT_MODEL ? eng_draft_model_open(out, e, w) : eng_draft_text_open(out, e, w);
}

int eng_drafters_open(struct eng_engine *e)
{
    for (int i = 0; i < e->opt.n_draft; i++) {
        if (e->opt.draft[i].kind == ENG_DRAFT_NONE)
            continue;
        int error = open_one(&e->drafter[e->n_drafter], e, &e->opt.draft[i]);
        if (error)
            return error;
        e->drafter[e->n_drafter]->number = e->n_drafter;
        e->n_drafter++;
    }
    return 0;
}

int eng_drafters_load(struct eng_engine *e)
{
    int error = 0;
    for (int i = 0; i < e->n_drafter && !error; i++)
        if (eng_draft_is_model(e->drafter[i]))
            error = eng_draft_model_load(e->drafter[i]);
    return error;
}

void eng_drafters_close(struct eng_engine *e)
{
    for (int i = 0; i < e->n_drafter; i++)
        e->drafter[i]->kind->close(e->drafter[i]);
    e->n_drafter = 0;
}

struct eng_extra eng_drafters_need(const struct eng_engine *e)
{
    struct eng_extra all = { 0 };
    for (int i = 0; i < e->n_drafter; i++)
        if (eng_draft_is_model(e->drafter[i])) {
            struct eng_extra one = eng_draft_model_need(e->drafter[i]);
            all.weights += one.weights;
            all.step += one.step;
            all.slot += one.slot;
        }
    return all;
}

/* ---- sessions come and go ------------------------------------------------------------------------------ */

void eng_draft_enter(struct eng_session *s)
{
    for (int i = 0; i < s->engine->n_drafter; i++) {
        s->seat->n_known[i] = 0;
        s->engine->drafter[i]->kind->enter(s->engine->drafter[i], s);
    }
}

void eng_draft_leave(struct eng_session *s)
{
    for (int i = 0; i < s->engine->n_drafter; i++)
        s->engine->drafter[i]->kind->leave(s->engine->drafter[i], s);
}

void eng_draft_commit(struct eng_session *s, int n_new, int n_kept)
{
    for (int i = 0; i < s->engine->n_drafter; i++)
        s->engine->drafter[i]->kind->commit(s->engine->drafter[i], s, n_new, n_kept);
}

/* ---- a pass -------------------------------------------------------------------------------------------- */

/* What a draft of s may have: no more than could be said, and the last of that needs no row. */
static int most_nodes(const struct eng_session *s)
{
    return kn_max(0, kn_min(ENG_DRAFT_NODES, s->n_most - s->n_token - 1));
}

/* Room in the pass and in KV for everyone's draft.  A draft never takes KV from a session. */
static void share_out(struct eng_engine *e, int *n_node)
{
    int wish = e->opt.gamma == ENG_GAMMA_AUTO ? 4 : e->opt.gamma, left = e->n_draft_row;
    for (int i = 0; i < e->n_due; i++) {
        struct eng_session *s = e->due[i];
        n_node[i] = kn_min(kn_min(wish, most_nodes(s)), left / (e->n_due - i));
        if (s->n_row > 1)                       /* the end of a prompt */
            n_node[i] = 0;
        if (eng_kv_reserve(&e->kv, &s->path, s->n_kv + s->n_row + n_node[i]))
            n_node[i] = kn_min(n_node[i], s->path.n_slot - s->n_kv - s->n_row);
        left -= n_node[i];
    }
}

/* Each drafter gets its part of the nodes, and what those before it have left or have in common. */
static void ask(struct eng_engine *e, struct eng_drafter *d, int i)
{
    if (d->broken)
        return;
    for (int k = 0; k < e->n_due; k++)
        e->n_part[k] = e->n_node[k] * (i + 1) / e->n_drafter - e->due[k]->seat->tree.n;
    int error = d->kind->draft(d, e->due, e->n_part, e->n_due);
    if (!error)
        return;
    d->broken = true;
    kn_say(KN_LOG_WARN, "a drafter failed (%s): it is not asked again", kn_error_text(error));
}

void eng_draft(struct eng_engine *e)
{
    for (int i = 0; i < e->n_due; i++)
        spec_tree_clear(&e->due[i]->seat->tree);
    if (!e->n_drafter || !e->n_due || e->opt.gamma == 0)
        return;
    uint64_t start = kn_now_ns();
    share_out(e, e->n_node);
    for (int i = 0; i < e->n_drafter; i++)
        ask(e, e->drafter[i], i);
    e->stats.draft_ns += kn_now_ns() - start;
}

void eng_set_gamma(struct eng_engine *e, int gamma) { e->opt.gamma = gamma; }
