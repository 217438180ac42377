/* tests/moe/load.h - opens a model and loads all its weights, in one call. */
#ifndef TESTS_MOE_LOAD_H
#define TESTS_MOE_LOAD_H

#include "moe/moe.h"

/* On failure everything is closed and *out is untouched. */
static inline int load_model(struct moe_model **out, const struct moe_file *f, enum kn_isa isa, struct kn_team *team,
                             enum off_io_kind io)
{
    struct moe_model *m;
    int error = moe_model_open(&m, f, &(struct moe_model_options){ .isa = isa });
    if (error)
        return error;
    error = moe_model_load(m, &(struct moe_load_options){ .team = team, .io = io });
    if (error)
        moe_model_close(m);
    else
        *out = m;
    return error;
}

#endif
