/* tests/moe/one_sequence.h - passes over one sequence: options of a context with room for it, and its rows. */
#ifndef TESTS_MOE_ONE_SEQUENCE_H
#define TESTS_MOE_ONE_SEQUENCE_H

#include "moe/moe.h"

/* Passes of at most `most` rows, all with logits, over n_pos positions; resident_bytes: of a device's memory, for experts. */
static inline struct moe_context_options one_sequence(struct kn_team *team, int most, int n_pos, size_t resident_bytes)
{
    return (struct moe_context_options){ .max_row = most,
                                         .max_want = most,
                                         .n_slot = n_pos,
                                         .max_pos = n_pos,
                                         .kv = KN_KV_F16,
                                         .resident_bytes = resident_bytes,
                                         .team = team };
}

/* n rows from a position on, of the same tokens each time. */
static inline void lay_sequence(struct moe_row *row, const int32_t *slot, int position, int n, int n_vocab)
{
    for (int i = 0; i < n; i++)
        row[i] = (struct moe_row){ .token = (position + i) * 37 % n_vocab,
                                   .position = position + i,
                                   .want_logits = true,
                                   .base = slot,
                                   .n_base = position + n };
}

#endif
