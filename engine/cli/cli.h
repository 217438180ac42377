/* engine/cli/cli.h - the commands of the program and what they share.  Internal to engine.
 *
 * main.c picks a command from a table and calls it with its configuration; config.c turns arguments,
 * environment and configuration file into struct eng_config (precedence in that order).  Results go to
 * stdout, everything else to stderr.  A command returns 0 done, 1 some failed, 2 usage or refused; it says
 * why in one line before it returns. */
#ifndef ENGINE_CLI_H
#define ENGINE_CLI_H

#include <stdio.h>

#include "engine/engine.h"

/* ---- commands ---------------------------------------------------------------------------------- */

/* In the order in which --help lists them. */
#define ENG_COMMANDS(X)                                                          \
    X(run,      "answer a prompt; without one, chat on the terminal")            \
    X(serve,    "answer requests over HTTP, as OpenAI's and Anthropic's APIs")   \
    X(eval,     "logits of given tokens, or the perplexity of a text")           \
    X(tokenize, "text on stdin to token ids, or back")                           \
    X(render,   "a conversation on stdin to the text of a prompt")               \
    X(inspect,  "what a model file holds")                                       \
    X(quantize, "write a model with its weights in other formats")               \
    X(pack,     "write a model's experts to a file that is faster to read")      \
    X(synth,    "write a model of a real shape with random weights")             \
    X(batch,    "answer a file of requests; resumes by itself")                  \
    X(bench,    "measure speed, with the machine's bound beside each figure")    \
    X(fit,      "measure what passes take, and fit the model of it")             \
    X(plan,     "how memory is split, and the speed to expect, before loading")  \
    X(simulate, "what speculation would bring, without a model")               \
    X(doctor,   "look at this machine, and say what to fix")

enum eng_command_id {
#define ENG_ENUM(name, text) ENG_##name,
    ENG_COMMANDS(ENG_ENUM)
#undef ENG_ENUM
    ENG_COMMAND_COUNT
};

struct eng_config;
typedef int eng_command(const struct eng_config *config);
#define ENG_DECLARE(name, text) eng_command eng_cmd_##name;
ENG_COMMANDS(ENG_DECLARE)
#undef ENG_DECLARE

/* ---- configuration ----------------------------------------------------------------------------- */

#define ENG_MAX_STOP 16
#define ENG_MAX_BIAS 64

/* Each field is one flag of the table in config.c, where its range and default stand too. */
struct eng_config {
    const char *model, *template, *prompt, *input, *output, *ids, *logits, *text, *shape, *format, *config, *fit;
    const char *part_format[MOE_PART_COUNT];            /* NULL: format */
    const char *errors;                                 /* of a batch; NULL: beside its output */
    const char *batches, *against;                      /* "1,4,16", of sequences and of drafted tokens */
    int n_predict;                                      /* -1: until the model stops or the context ends */
    int n_thread, n_ctx, n_chunk;                       /* 0: all CPUs; the model's; - */
    int n_parallel;                                     /* 0: what is expected to be fastest */
    const char *host, *api_key_file, *alias, *cors;     /* of the server */
    int metrics_port;                                   /* of a batch; 0: none */
    int port, n_queue, n_connection, patience_s, idle_s, ping_s, drain_s, stall_s;
    size_t max_body;
    const char *notify_socket;                          /* of the service manager, and how often it wants */
    uint64_t watchdog_us;                               /* to hear of us; both from the environment alone */
    int n_layer, n_vocab, n_used;                       /* 0: the shape's own */
    int n_prompt, n_gen, n_warmup, n_round;             /* n_warmup -1: until settled */
    size_t host_mem, kv_mem;                            /* 0: what is free; what is sound */
    size_t disk_rate, dram_rate;                        /* bytes a second; 0: measured */
    const char *what, *preset, *method, *lookahead;     /* of simulate; lookahead "1,5,10" or "1-200" */
    float target_ms, draft_ms, acceptance, contention, noise;
    int n_target, n_tok, n_repeat;                      /* n_tok, n_repeat 0: as fits the preset */
    enum off_io_kind io;
    const char *mirror;                                 /* folder with a second copy; NULL: none */
    enum kn_isa isa;
    enum kn_kv kv;
    struct eng_draft_option draft[ENG_DRAFTERS_MOST];
    int n_draft, gamma;                                 /* gamma: ENG_GAMMA_AUTO */
    int n_dsi, n_ahead;                                 /* workers that verify, 0: no DSI, ENG_GAMMA_AUTO; their tokens */
    enum spec_rule verify;
    bool json, quiet, decode, special, seed_given, ignore_eos, verbose, requantize, no_pack, explain, ahead, authors,
         retry_failed;
    struct spec_params sampling;                        /* its bias points into this struct */
    struct spec_bias bias[ENG_MAX_BIAS];
    const char *stop[ENG_MAX_STOP];
    int32_t stop_id[ENG_MAX_STOP];
    int n_stop, n_stop_id;
    char pool[16384];                                   /* strings of the configuration file */
    size_t pool_used;
};

/* Fills config for `command` from argv (after the command's name), SPILLWAY_* and --config FILE.  1: help
 * was asked for, and printed.  Strings are argv's, the environment's or the pool's; config stays put. */
int eng_config_parse(struct eng_config *config, enum eng_command_id command, int argc, char **argv);

/* What the flags ask of an engine; the command adds what is its own. */
struct eng_options eng_config_options(const struct eng_config *config);

/* The name most like a mistyped word, or NULL when none is. */
const char *eng_nearest(const char *word, const char *const *names, int n);

/* ---- what several commands need ---------------------------------------------------------------- */

/* Becomes true at Ctrl-C or a request to end, from this call on: for work that must not be left half
 * done. */
const atomic_bool *eng_interrupt(void);

/* Quoted; what is no UTF-8 becomes U+FFFD, since JSON cannot hold it. */
void eng_json_string(FILE *out, struct moe_string s);

/* ---- terminal ---------------------------------------------------------------------------------- */

/* A person's side of a chat: one message at a time from a terminal (line editing, history) or a pipe.  A
 * line that begins with """ opens a message of several lines, one that ends with """ closes it.
 *
 * While it is open Ctrl-C is its: at the prompt it drops the line (twice in a row: quit), while an answer
 * is generated it asks for its end, and twice ends the program.  One at a time, from the main thread. */
struct eng_terminal;

enum eng_input { ENG_INPUT_TEXT, ENG_INPUT_HELP, ENG_INPUT_CLEAR, ENG_INPUT_RETRY, ENG_INPUT_INFO,
                 ENG_INPUT_QUIT };

int  eng_terminal_open(struct eng_terminal **out);
void eng_terminal_close(struct eng_terminal *t);

/* Waits for a message or a command.  For ENG_INPUT_TEXT *text is the message, valid until the next call.
 * Clears the wish to stop. */
int  eng_terminal_read(struct eng_terminal *t, enum eng_input *kind, const char **text);

bool eng_terminal_stopped(void);                        /* Ctrl-C since the last read */
bool eng_terminal_is_tty(const struct eng_terminal *t);
extern const char eng_terminal_help[];                  /* what /help prints */

#endif
