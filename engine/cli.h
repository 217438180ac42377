/* engine/cli.h - the commands of the program and what they share.  Internal to engine.
 *
 * main.c picks a command from a table and calls it with the arguments after its name; config.c turns
 * arguments, environment and configuration file into struct eng_config (precedence in that order).
 * Results go to stdout, everything else to stderr.  A command returns 0 done, 1 some failed, 2 usage or
 * refused; it says why in one line before it returns. */
#ifndef ENGINE_CLI_H
#define ENGINE_CLI_H

#include <stdio.h>

#include "moe/moe.h"
#include "speculative/speculative.h"

struct eng_config {
    const char *model, *prompt, *output, *ids, *logits, *text, *shape, *format, *input;
    int n_predict, n_thread, n_ctx, n_parallel, n_layer, n_vocab, n_prompt, n_gen, n_warmup, n_chunk;
    size_t host_mem, kv_mem;
    enum kn_isa isa;
    enum kn_kv kv;
    const char *batches;                                /* "1,4,16" */
    bool json, quiet, decode, special, seed_given, ignore_eos, verbose;
    struct spec_params sampling;
    const char *stop[16];
    int n_stop;
};

/* Fills config for `command` from argv (after the command's name), SPILLWAY_* and --config FILE. */
int eng_config_parse(struct eng_config *config, const char *command, int argc, char **argv);

typedef int eng_command(const struct eng_config *config);
eng_command eng_cmd_run, eng_cmd_eval, eng_cmd_tokenize, eng_cmd_inspect, eng_cmd_synth, eng_cmd_bench,
            eng_cmd_doctor;

/* A progress bar on stderr, drawn by a thread of its own, only on a terminal and unless quiet. */
struct eng_progress;
int  eng_progress_open(struct eng_progress **out, const char *what, bool quiet);
struct off_progress *eng_progress_counter(struct eng_progress *p);
void eng_progress_close(struct eng_progress *p);        /* ends the line with the rate reached */

#endif
