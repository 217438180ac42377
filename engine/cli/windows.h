/* engine/cli/windows.h - a model that computes windows of tokens, each from position 0 with an empty KV cache, in rows that
 * all want logits: for eval and imatrix.
 *
 * Order of calls: eng_windows_tokens() for a text, eng_windows_open(), eng_window_run() for each window,
 * eng_windows_close(), which accepts a half-open struct. */
#ifndef ENGINE_CLI_WINDOWS_H
#define ENGINE_CLI_WINDOWS_H

#include "engine/cli/cli.h"
#include "engine/text/text.h"

struct eng_windows {
    const struct eng_config *config;
    struct kn_team *team;
    const struct kn_device *device;
    struct moe_collector *collector; /* or NULL */
    struct moe_file *file;
    struct moe_model *model;
    struct moe_context *context;
    struct moe_row *row;
    int32_t *slot;
    int n_ctx, n_chunk, n_vocab;
};

/* Called for each token i of a window, in order, with the logits [n_vocab] after it; nonzero ends the window. */
typedef int eng_window_sink(void *arg, int i, const float *logits);

/* Opens the model for windows of n_ctx tokens; 0: of the usual length.  output: a file that will be written, or NULL; it
 * must not be one of the model's.  collect: with a collector of an importance matrix. */
int eng_windows_open(struct eng_windows *w, int n_ctx, const char *output, bool collect);
void eng_windows_close(struct eng_windows *w);

/* Computes the n tokens of a window from position 0, and calls sink for each; NULL: for none. */
int eng_window_run(struct eng_windows *w, const int32_t *token, int n, eng_window_sink *sink, void *arg);

/* The tokens of the file --text, two or more, within the memory that is left before the model is loaded. */
int eng_windows_tokens(struct eng_windows *w, struct eng_ids *ids);

#endif
