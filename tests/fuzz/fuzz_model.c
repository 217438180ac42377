/* The input is a whole model file: it is refused, or it opens and computes a batch without a memory error.
 * In scalar C, so that the sanitizers see every access. */
#include "moe/moe.h"
#include "tests/fuzz/memory_file.h"

#define MOST_BYTES ((size_t)32 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void compute(const struct moe_model *m, struct kn_team *team)
{
    static const int32_t slot[3] = { 2, 0, 1 };
    const struct moe_shape *shape = moe_model_shape(m);
    struct moe_context_options opt = {
        .max_row = 3, .max_want = 1, .n_slot = 3, .max_pos = 3, .kv = KN_KV_F16, .team = team
    };
    struct moe_context *c = NULL;
    struct moe_result result;
    struct moe_row row[3];
    if (moe_context_open(&c, m, &opt))
        return;
    for (int i = 0; i < 3; i++)
        row[i] = (struct moe_row){
            .token = i * (shape->n_vocab - 1) / 2, .position = i, .base = slot, .n_base = 3, .want_logits = i == 2
        };
    moe_forward(c, &(struct moe_batch){ .row = row, .n_row = 3 }, &result);
    moe_context_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct kn_team *team = NULL;
    struct moe_file *f = NULL;
    struct moe_model *m = NULL;
    memory_file_set(data, n);
    if (kn_team_open(&team, 1))
        abort();
    if (moe_file_open(&f, "x.gguf") == 0 &&
        moe_model_open(&m, f, &(struct moe_model_options){ .isa = KN_ISA_SCALAR }) == 0) {
        const struct moe_shape *s = moe_model_shape(m);
        struct moe_load_options opt = { .team = team, .expert_bytes = s->expert_least };
        if (s->dense_bytes < MOST_BYTES && s->expert_least < MOST_BYTES && moe_model_load(m, &opt) == 0)
            compute(m, team);
    }
    moe_model_close(m);
    moe_file_close(f);
    kn_team_close(team);
    return 0;
}
