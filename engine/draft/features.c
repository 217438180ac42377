/* engine/draft/features.c - for which passes the target stores the last layer's features of all rows.
 *
 * A head that reads the last layer's output needs it of every token of a prompt. Without a head, this layer computes no more than
 * key and value of a prompt's rows: of a model with n layers a head makes prefill longer by about 1/n. So these features are
 * stored only while such a head is loaded, and their time is part of its upkeep (unload.c). Rows with logits, as those of
 * decoding, have features anyway; and where experts are on disk, passes compute the layer for all rows, to learn which experts
 * tokens use.
 *
 * Blocks remember where rows without a feature are (eng_block.gap_end), also for other sequences that share them. A head drafts
 * for a sequence with a gap once ENG_MIN_FEATURES tokens behind it have features; text_rows.c lays its rows. */
#include "engine/draft/internal.h"

uint8_t eng_features_readers(const struct eng_drafting *g)
{
    int bits = 0;
    for (int i = 0; i < g->n_drafter; i++)
        bits |= (g->drafter[i]->reads_last_layer && !g->drafter[i]->broken) << i;
    return (uint8_t)(eng_draft_always_overlaps(g) ? 0 : bits);
}

/* The controller may expect drafts of an unloaded head: soon after it is loaded, sequences have features. */
void eng_features_look_up(struct eng_drafting *g, struct eng_seq *s)
{
    struct eng_draft_seat *seat = s->draft;
    if (!moe_features_of_end(&g->features, g->host.model))
        return;
    seat->first_feature = eng_kv_first_feature(g->host.kv, &s->path, s->n_kv);
    bool lacks = seat->first_feature && s->n_kv - seat->first_feature < ENG_MIN_FEATURES;
    uint8_t usable = seat->allowed;
    if (lacks)
        usable &= (uint8_t) ~(eng_features_readers(g) & eng_draft_loaded(g));
    if (usable == seat->usable)
        return;
    seat->usable = usable;
    if (g->control)
        eng_arms_update(g, s);
}

void eng_features_choose(struct eng_drafting *g)
{
    g->stores_features = g->opt.features || eng_features_readers(g) & eng_draft_loaded(g);
}

bool eng_draft_stores_features(const struct eng_drafting *g) { return g->stores_features; }

/* Rows with logits for a prompt's logprobs are not told apart: they count as rows without. */
static int n_without_logits(const struct eng_seq *s) { return s->n_row - eng_seq_is_due(s); }

void eng_features_note(struct eng_drafting *g, const struct moe_result *r)
{
    if (g->stores_features || !r->may_end_early)
        return;
    for (int i = 0; i < g->n_seq; i++)
        eng_kv_mark_gap(g->host.kv, &g->seq[i]->path, g->seq[i]->n_kv, g->seq[i]->n_kv + n_without_logits(g->seq[i]));
}

/* A layer takes its share of the pass. The time is counted also while no head is loaded: one would cost it. */
void eng_features_count(struct eng_drafting *g, const struct eng_pass_result *r)
{
    int n_layer = moe_model_shape(g->host.model)->n_layer - !g->stores_features;
    if (!r->may_end_early || g->opt.features || !eng_draft_controller_is_on(g))
        return;
    g->feature_ns += (double)r->pass_ns / r->n_row * (g->n_row - g->n_due) / kn_max(1, n_layer);
}
