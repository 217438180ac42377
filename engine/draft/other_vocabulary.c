/* engine/draft/other_vocabulary.c - a small model with another vocabulary drafts for the target.
 *
 * Only text is passed between the two. The target's tokens become bytes, which are cut into the draft model's tokens; its
 * drafted tokens become bytes, which are cut into the target's tokens. An incomplete character at the end of a draft is
 * left out.
 *
 * Cutting is incremental. The last bytes of a sequence, its tail, may be cut differently when more bytes follow; the
 * tokens before are fixed. A tail that has grown long is fixed up to the last beginning of a word that has enough text
 * behind it. After a tail was cut again, its computed tokens that are the same as before, drafted ones too, stay computed.
 *
 * Noise belongs to token ids, so the two models cannot share it: the draft is the most probable text, whatever the
 * request's temperature. Verification compares with the target's own tokens, as for any draft.
 *
 * Keys and values lie at the sequence's own slots: an equal share of the context for each seat, in the order of
 * positions. Prefixes are not shared among sequences. */
#include "engine/draft/internal.h"

#include <string.h>

#define MAX_PREFILL_ROWS   256 /* rows of a pass, beside one for each session */
#define LONG_TAIL          256 /* bytes of a tail that are too many */
#define MIN_TAIL           48  /* bytes behind the place up to which a tail is fixed */
#define MAX_DRAFT_BYTES    512 /* of a draft; more are not read */
#define TOKENS_PER_CONTEXT 1.5 /* the draft model's tokens for one of the target's, at most, if contexts are full */

struct text {       /* of one seat: the sequence as the draft model reads it */
    int32_t *token; /* [n_slot + SPEC_DEPTHS + 1] the sequence's, then drafted ones */
    int32_t *slot;  /* [n_slot] */
    char *tail;     /* [n_tail] the bytes of token[n_fixed .. n_token) */
    int n_token, n_fixed, n_computed, n_tail;
    int n_read;  /* tokens of the target that were read */
    bool is_cut; /* the tail's tokens are those of its bytes */
    bool full;   /* the sequence has more tokens than slots: no more drafts */
    struct eng_decoder decoder;
};

struct item { /* a session in a draft */
    struct eng_seq *s;
    struct text *t;
    int n_node;
    int n; /* drafted tokens behind t->n_token */
    int n_byte;
    int at[SPEC_DEPTHS]; /* of each drafted token: its end in `byte` */
    float survival[SPEC_DEPTHS];
    bool goes_on;
    char byte[MAX_DRAFT_BYTES];
};

struct other {
    struct eng_drafter base;
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
    struct eng_vocab *vocab;
    struct spec_sampler **sampler;             /* [threads] of this vocabulary's size */
    struct eng_recutter *to_draft, *to_target; /* cut a tail, and a draft */
    struct text *text;                         /* [n_parallel] */
    int n_slot, tail_bytes;                    /* of a sequence, at most; of a tail */
    struct moe_row *row;                       /* [MAX_PREFILL_ROWS + n_parallel] */
    struct item *item;                         /* [n_parallel] */
    struct item **chooses;                     /* [n_parallel] */
    struct spec_top *choice;                   /* [n_parallel] by row of logits */
    struct moe_result result;
};

static const struct eng_drafter_kind other_kind;

/* ---- opening ------------------------------------------------------------------------------------------- */

static struct moe_context_options context_options(const struct other *d, int n_slot)
{
    const struct eng_draft_host *host = &d->base.drafting->host;
    return (struct moe_context_options){ .max_row = MAX_PREFILL_ROWS + host->n_parallel,
                                         .max_want = host->n_parallel,
                                         .n_slot = n_slot,
                                         .max_pos = d->n_slot,
                                         .max_path = 2 * host->n_parallel + 2,
                                         .kv = host->kv_format,
                                         .team = host->team };
}

static void close_other(struct eng_drafter *base)
{
    struct other *d = (struct other *)base;
    for (int i = 0; d->sampler && i < kn_team_size(base->drafting->host.team); i++)
        spec_sampler_close(d->sampler[i]);
    for (int i = 0; d->text && i < base->drafting->host.n_parallel; i++) {
        kn_free(d->text[i].token);
        kn_free(d->text[i].slot);
        kn_free(d->text[i].tail);
    }
    eng_recutter_close(d->to_draft);
    eng_recutter_close(d->to_target);
    moe_context_close(d->context);
    moe_model_close(d->model);
    eng_vocab_close(d->vocab);
    moe_file_close(d->file);
    kn_free(d->sampler);
    kn_free(d->text);
    kn_free(d->row);
    kn_free(d->item);
    kn_free(d->chooses);
    kn_free(d->choice);
    kn_free(d);
}

static int open_texts(struct other *d)
{
    const struct eng_draft_host *host = &d->base.drafting->host;
    size_t n = (size_t)host->n_parallel, n_slot = (size_t)d->n_slot, bytes = (size_t)d->tail_bytes;
    d->text = kn_calloc(n, sizeof *d->text);
    d->row = kn_calloc(MAX_PREFILL_ROWS + n, sizeof *d->row);
    d->item = kn_calloc(n, sizeof *d->item);
    d->chooses = kn_calloc(n, sizeof(struct item *));
    d->choice = kn_calloc(n, sizeof *d->choice);
    bool any = d->text && d->row && d->item && d->chooses && d->choice;
    for (size_t i = 0; any && i < n; i++) {
        struct text *t = &d->text[i];
        t->token = kn_calloc(n_slot + SPEC_DEPTHS + 1, sizeof *t->token);
        t->slot = kn_calloc(n_slot, sizeof *t->slot);
        t->tail = kn_calloc(bytes, 1);
        any = t->token && t->slot && t->tail;
    }
    return any ? 0 : kn_fail(KN_ENOMEM, "no memory for a drafter");
}

static int open_cutters(struct other *d)
{
    const struct eng_draft_host *host = &d->base.drafting->host;
    int n_thread = kn_team_size(host->team), error = eng_recutter_open(&d->to_draft, d->vocab, (size_t)d->tail_bytes);
    if (!error)
        error = eng_recutter_open(&d->to_target, host->vocab, MAX_DRAFT_BYTES);
    d->sampler = kn_calloc((size_t)n_thread, sizeof(struct spec_sampler *));
    if (!error && !d->sampler)
        error = kn_fail(KN_ENOMEM, "no memory for a drafter");
    for (int i = 0; i < n_thread && !error; i++)
        error = spec_sampler_open(&d->sampler[i], eng_vocab_size(d->vocab));
    return error;
}

/* Options that need the target's own vocabulary. */
static int check_option(const struct eng_draft_option *w)
{
    if (w->tree == ENG_TREE_CHAIN)
        return 0;
    return kn_fail(KN_EUNSUPPORTED, "%s has another vocabulary: it drafts chains only, leave out tree=%s", w->file,
                   eng_tree_name(w->tree));
}

int eng_draft_other_open(struct eng_drafter **out, struct eng_drafting *g, const struct eng_draft_option *w,
                         struct moe_file *file, struct eng_vocab *vocab)
{
    struct other *d = kn_calloc(1, sizeof *d);
    if (!d) {
        eng_vocab_close(vocab);
        moe_file_close(file);
        return kn_fail(KN_ENOMEM, "no memory for a drafter");
    }
    d->file = file;
    d->vocab = vocab;
    d->base = (struct eng_drafter){ .kind = &other_kind, .drafting = g };
    int error = check_option(w);
    if (!error)
        error = eng_draft_open_network(&d->model, file, g, w);
    if (!error && eng_vocab_size(d->vocab) > moe_model_shape(d->model)->n_vocab)
        error = kn_fail(KN_ECORRUPT, "%s: %d tokens but only %d rows of embeddings", w->file, eng_vocab_size(d->vocab),
                        moe_model_shape(d->model)->n_vocab);
    d->n_slot = (int)(g->host.n_ctx * TOKENS_PER_CONTEXT);
    d->tail_bytes = 2 * LONG_TAIL + (int)eng_decoder_room(g->host.vocab);
    if (error || (error = open_texts(d)) || (error = open_cutters(d))) {
        close_other(&d->base);
        return error;
    }
    eng_draft_check_length(d->model, g, w);
    *out = &d->base;
    return 0;
}

static struct eng_extra need(const struct eng_drafter *base)
{
    const struct other *d = (const struct other *)base;
    struct moe_context_options one = context_options(d, 1);
    return eng_whole_network_extra(d->model, &one);
}

/* As many slots as the target's KV has, in equal shares. No text is computed. */
static int load(struct eng_drafter *base)
{
    struct other *d = (struct other *)base;
    const struct eng_draft_host *host = &base->drafting->host;
    struct moe_context_options co = context_options(d, host->split->n_kv_slot);
    d->n_slot = kn_min(d->n_slot, co.n_slot / host->n_parallel);
    for (int i = 0; i < host->n_parallel; i++) {
        d->text[i].n_computed = 0;
        for (int k = 0; k < d->n_slot; k++)
            d->text[i].slot[k] = i * d->n_slot + k;
    }
    return eng_drafter_load_network(base, d->model, &co, &d->context);
}

static void unload(struct eng_drafter *base)
{
    struct other *d = (struct other *)base;
    eng_drafter_unload_network(d->model, &d->context);
}

/* ---- the text of a sequence ------------------------------------------------------------------------------ */

static void enter(struct eng_drafter *base, struct eng_seq *s)
{
    struct other *d = (struct other *)base;
    struct text *t = &d->text[s->number];
    t->n_token = t->n_fixed = t->n_computed = t->n_tail = t->n_read = 0;
    t->full = d->n_slot <= SPEC_DEPTHS; /* too few slots even for a draft */
    t->is_cut = true;
    eng_decoder_init(&t->decoder, base->drafting->host.vocab, ENG_DECODE_RAW);
    if (eng_vocab_adds_bos(d->vocab))
        t->token[t->n_token++] = eng_vocab_bos(d->vocab);
    t->n_fixed = t->n_token;
}

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Fixes the tokens of a long tail: up to the last word that begins with a blank and has MIN_TAIL bytes behind it; all of
 * them if there is none or it leaves too much, or if the tokens are not the bytes of the tail one by one. */
static void fix_tokens(const struct other *d, struct text *t)
{
    int at = 0, n_fixed = t->n_fixed, n_byte = 0;
    for (int i = t->n_fixed; i < t->n_token; i++) {
        bool word = at > 0 && at + 1 < t->n_tail && is_blank(t->tail[at]) && !is_blank(t->tail[at - 1]) &&
                    !is_blank(t->tail[at + 1]);
        if (word && t->n_tail - at >= MIN_TAIL) {
            n_fixed = i;
            n_byte = at;
        }
        at += (int)eng_vocab_text(d->vocab, t->token[i]).n;
    }
    if (at != t->n_tail || t->n_tail - n_byte > LONG_TAIL || n_byte == 0) {
        n_fixed = t->n_token;
        n_byte = t->n_tail;
    }
    t->n_fixed = n_fixed;
    t->n_tail -= n_byte;
    memmove(t->tail, t->tail + n_byte, (size_t)t->n_tail);
}

/* Cuts the tail into tokens. Those that are the same as before, at the same place, stay computed. */
static int cut_tail(struct other *d, struct text *t)
{
    const int32_t *ids;
    int same = 0;
    if (t->is_cut)
        return 0;
    int n = eng_recut(d->to_draft, (struct moe_string){ .data = t->tail, .n = (size_t)t->n_tail },
                      ENG_TEXT_PARSE_SPECIAL, &ids);
    if (n < 0)
        return n;
    t->full |= t->n_fixed + n + SPEC_DEPTHS > d->n_slot;
    if (t->full)
        return 0;
    while (same < n && t->n_fixed + same < t->n_computed && t->token[t->n_fixed + same] == ids[same])
        same++;
    t->n_computed = kn_min(t->n_computed, t->n_fixed + same);
    memcpy(t->token + t->n_fixed, ids, (size_t)n * sizeof *ids);
    t->n_token = t->n_fixed + n;
    t->is_cut = true;
    if (t->n_tail >= LONG_TAIL)
        fix_tokens(d, t);
    return 0;
}

/* Reads the target's new tokens. Its BOS has no text. */
static int read_text(struct other *d, struct text *t, const struct eng_seq *s)
{
    int32_t bos = eng_vocab_bos(d->base.drafting->host.vocab);
    int error = 0;
    while (!error && !t->full && t->n_read < s->n_token) {
        int32_t id = s->token[t->n_read++];
        if (id == bos && t->n_read == 1)
            continue;
        t->n_tail += (int)eng_decoder_feed(&t->decoder, id, t->tail + t->n_tail);
        t->is_cut = false;
        if (t->n_tail >= 2 * LONG_TAIL || t->n_read == s->n_token)
            error = cut_tail(d, t);
    }
    return error;
}

const int32_t *eng_draft_other_text(const struct eng_drafter *base, int seat, int *n)
{
    const struct text *t = &((const struct other *)base)->text[seat];
    *n = t->n_token;
    return t->token;
}

static int n_uncomputed(const struct eng_drafter *base, const struct eng_seq *s)
{
    const struct text *t = &((const struct other *)base)->text[s->number];
    return t->full ? 0 : kn_max(0, t->n_token - t->n_computed + s->n_token - t->n_read - 1);
}

/* ---- a draft --------------------------------------------------------------------------------------------- */

/* Lays rows for the tokens that are not computed, of which the sequence's own may be n_row at most and drafted ones
 * follow. Returns whether all are laid: then the last one's logits are wanted. */
static bool lay_rows(struct other *d, struct item *it, int room, int *n_row)
{
    struct text *t = it->t;
    int n_text = t->n_token + it->n, at = kn_min(t->n_computed, n_text - 1), end = kn_min(n_text, at + room);
    d->base.n_text += kn_max(0, kn_min(end, t->n_token) - at);
    for (; at < end; at++)
        d->row[(*n_row)++] = (struct moe_row){
            .token = t->token[at], .position = at, .want_logits = at == n_text - 1, .base = t->slot, .n_base = d->n_slot
        };
    t->n_computed = at;
    return at == n_text;
}

static void choose_item(void *arg, int i, int thread)
{
    struct other *d = arg;
    const float *logits = d->result.logits + (size_t)i * (size_t)moe_model_shape(d->model)->n_vocab;
    spec_top(d->sampler[thread], logits, 1, &d->choice[i]);
}

/* Adds a token to the draft. A token without text, such as one that ends the text, ends the draft. */
static void extend(struct other *d, struct item *it, const struct spec_top *top, int depth)
{
    struct moe_string text = eng_vocab_text(d->vocab, top->token);
    float before = it->n ? it->survival[it->n - 1] : 1;
    it->goes_on = eng_vocab_type(d->vocab, top->token) != ENG_TOKEN_CONTROL && text.n > 0 &&
                  !eng_vocab_is_stop(d->vocab, top->token) && text.n <= (size_t)(MAX_DRAFT_BYTES - it->n_byte);
    if (!it->goes_on)
        return;
    memcpy(it->byte + it->n_byte, text.data, text.n);
    it->t->token[it->t->n_token + it->n] = top->token;
    it->at[it->n] = it->n_byte += (int)text.n;
    it->survival[it->n++] = before * (float)kn_exp((double)top->logprob);
    it->goes_on = it->n < depth;
}

/* One pass over all sessions that continue: one more token for each, or up to MAX_PREFILL_ROWS of its text. Returns the
 * number of sessions that continue, or an error. */
static int draft_token(struct other *d, int n_item, int depth)
{
    int n_row = 0, n_want = 0, n_left = 0;
    for (int i = 0; i < n_item; i++) {
        struct item *it = &d->item[i];
        int room = MAX_PREFILL_ROWS + d->base.drafting->host.n_parallel - (n_item - 1 - i) - n_row;
        if (!it->goes_on)
            continue;
        if (lay_rows(d, it, room, &n_row))
            d->chooses[n_want++] = it;
        else
            it->goes_on = false;
        it->s->draft->drafter_prefilling |= !it->goes_on;
    }
    if (n_row == 0)
        return 0;
    int error = moe_forward(d->context, &(struct moe_batch){ .row = d->row, .n_row = n_row }, &d->result);
    if (error || (error = moe_rows_status(&d->result, 0, n_row)))
        return error;
    kn_parallel_for(d->base.drafting->host.team, n_want, choose_item, d);
    for (int i = 0; i < n_want; i++) {
        extend(d, d->chooses[i], &d->choice[i], depth);
        n_left += d->chooses[i]->goes_on;
    }
    return n_left;
}

/* Computes the texts up to READ_ROWS tokens before their ends, as far as the step has time for prompts. */
static int catch_up(struct other *d, int n_item)
{
    struct eng_prompts *p = &d->base.drafting->prompts;
    int error = 0, n_behind;
    do {
        int n_row = 0;
        n_behind = 0;
        for (int i = 0; i < n_item; i++)
            n_behind += kn_max(0, d->item[i].t->n_token - 1 - d->item[i].t->n_computed);
        if (n_behind <= MAX_PREFILL_ROWS || (p->room <= 0 && p->row_ns > 0))
            return 0;
        uint64_t start = kn_now_ns();
        for (int i = 0; i < n_item; i++) {
            struct text *t = d->item[i].t;
            int room = kn_min(MAX_PREFILL_ROWS - n_row, t->n_token - 1 - t->n_computed);
            if (room > 0)
                lay_rows(d, &d->item[i], room, &n_row);
        }
        error = moe_forward(d->context, &(struct moe_batch){ .row = d->row, .n_row = n_row }, &d->result);
        if (!error)
            error = moe_rows_status(&d->result, 0, n_row);
        eng_prompts_count(d->base.drafting, n_row, kn_now_ns() - start);
    } while (!error);
    return error;
}

/* The bytes of whole characters at the start of text[n]: without the first bytes of one at its end. */
static int n_whole(const char *text, int n)
{
    int bad;
    bool cut;
    for (int back = 1; back <= kn_min(3, n); back++)
        if (!eng_utf8_next(text + n - back, (size_t)back, &bad, &cut) && cut)
            return n - back;
    return n;
}

/* Cuts the drafted text into the target's tokens, and adds them to the tree as a chain. A token survives as the last
 * drafted token that it has bytes of. */
static int write_chain(struct other *d, struct item *it)
{
    struct eng_drafting *g = d->base.drafting;
    const int32_t *ids;
    int n_byte = n_whole(it->byte, it->n_byte), at = 0, node = SPEC_ROOT;
    int n = eng_recut(d->to_target, (struct moe_string){ .data = it->byte, .n = (size_t)n_byte }, 0, &ids);
    for (int i = 0, k = 0; i < kn_min(n, it->n_node); i++) {
        at += (int)eng_vocab_text(g->host.vocab, ids[i]).n;
        while (k + 1 < it->n && it->at[k] < at)
            k++;
        if (eng_vocab_is_stop(g->host.vocab, ids[i]))
            break;
        node = spec_tree_add(&it->s->draft->tree, node, ids[i], it->survival[k], (uint8_t)(1 << d->base.number));
        if (node < 0)
            break;
        eng_prefetch_add(g, ids[i]);
    }
    return n < 0 ? n : 0;
}

static int draft(struct eng_drafter *base, struct eng_seq **s, const int *n_node, int n, int depth)
{
    struct other *d = (struct other *)base;
    int n_item = 0, going = 1, error = 0;
    for (int i = 0; i < n && !error; i++) {
        struct text *t = &d->text[s[i]->number];
        if (n_node[i] <= 0)
            continue;
        error = read_text(d, t, s[i]);
        if (!t->full && t->n_token)
            d->item[n_item++] = (struct item){ .s = s[i], .t = t, .n_node = n_node[i], .goes_on = true };
    }
    if (!error)
        error = catch_up(d, n_item);
    while (!error && going > 0)
        if ((going = draft_token(d, n_item, kn_min(depth, SPEC_DEPTHS))) < 0)
            error = going;
    for (int i = 0; i < n_item && !error; i++)
        if (d->item[i].n)
            error = write_chain(d, &d->item[i]);
    if (!error)
        eng_prefetch_request(base->drafting);
    return error;
}

static void commit(struct eng_drafter *base, struct eng_seq *s, const struct spec_verify *v, int n_new, int n_accepted)
{
    (void)base, (void)s, (void)v, (void)n_new, (void)n_accepted; /* read_text() reads the tokens with the next draft */
}

static const struct eng_drafter_kind other_kind = { .name = "other vocabulary",
                                                    .enter = enter,
                                                    .commit = commit,
                                                    .draft = draft,
                                                    .close = close_other,
                                                    .load = load,
                                                    .unload = unload,
                                                    .reads_prompts = true,
                                                    .n_uncomputed = n_uncomputed,
                                                    .need = need };
