/* engine/cli/cmd_synth.c - `spillway synth --shape NAME -o FILE`: writes a model with the shape of a
 * real one and random weights.
 *
 * In: a shape's name, and optionally the number of layers, an MTP layer, experts used per token, vocabulary size,
 * formats of the experts and a seed.
 * Out: a GGUF file, the same bytes for the same options.  moe_synth() reports on stderr the tensors that get another
 * format than asked for. */
#include "engine/base/base.h"
#include "engine/cli/cli.h"

int eng_cmd_synth(const struct eng_config *config)
{
    struct moe_synth_options opt = {
        .shape = config->shape,
        .n_layer = config->n_layer,
        .n_vocab = config->n_vocab,
        .n_used = config->n_used,
        .ahead = config->ahead,
        .seed = config->seed_given ? config->sampling.seed : 0,
    };
    if (kn_format_find(config->format, &opt.format)) {
        kn_fail(KN_EINVAL, "--format %s is unknown; the formats are%s", config->format, kn_format_list);
        return 2;
    }
    enum kn_format down;
    if (config->down && kn_format_find(config->down, &down)) {
        kn_fail(KN_EINVAL, "--down %s is unknown; the formats are%s", config->down, kn_format_list);
        return 2;
    }
    opt.down = config->down ? &down : NULL;
    struct eng_progress *bar = NULL;
    int err = kn_team_open(&opt.team, config->n_thread);
    if (!err)
        err = eng_progress_open(&bar, config->output, config->quiet);
    if (!err) {
        opt.progress = eng_progress_counter(bar);
        opt.stop = eng_interrupt();
        err = moe_synth(config->output, &opt);
    }
    eng_progress_close(bar);
    kn_team_close(opt.team);
    return err ? 2 : 0;
}
