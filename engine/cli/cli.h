/* engine/cli/cli.h - the commands of the program and their shared parts.  Internal to engine.
 *
 * main.c picks a command from a table and calls it with its configuration; config.c turns arguments,
 * environment and configuration file into struct eng_config (precedence in that order).  Results go to
 * stdout, everything else to stderr.  A command returns the exit status: 0 done; 1 failed in part, or the output could
 * not be written; 2 wrong usage, refused, or failed as a whole.  Before it returns 1 or 2 it prints the reason. */
#ifndef ENGINE_CLI_CLI_H
#define ENGINE_CLI_CLI_H

#include <stdio.h>

#include "engine/api/breakers.h"
#include "engine/engine.h"
#include "engine/hub/hub.h"
#include "engine/serve/serve.h"

/* ---- commands ---------------------------------------------------------------------------------- */

/* In the order in which --help lists them. */
#define ENG_COMMANDS(X)                                                                                                \
    X(run, "answer a prompt; without one, chat on the terminal")                                                       \
    X(serve, "HTTP server with the APIs of OpenAI, Anthropic and Ollama")                                              \
    X(pull, "download a model of the Hugging Face hub, by name")                                                       \
    X(list, "list the models on this machine")                                                                         \
    X(rm, "remove a downloaded model")                                                                                 \
    X(eval, "compute logits of given tokens, or the perplexity of a text")                                             \
    X(tokenize, "convert text on stdin to token ids, or ids to text")                                                  \
    X(render, "convert a JSON conversation on stdin to the prompt text")                                               \
    X(inspect, "print whether a model runs here, how fast, and a summary of its file")                                 \
    X(quantize, "convert a model's weights to other formats")                                                          \
    X(imatrix, "measure which columns of a model's matrices matter, for quantize")                                     \
    X(pack, "write a model's experts to a file that is faster to read")                                                \
    X(synth, "write a model with the shape of a real one and random weights")                                          \
    X(batch, "answer a file of requests; run again, it resumes")                                                       \
    X(bench, "measure speed, and print the machine's bound beside it")                                                 \
    X(fit, "measure the time of passes and fit a cost model to it")                                                    \
    X(plan, "print the memory split and the expected speed before loading")                                            \
    X(simulate, "simulate speculative (SI) and distributed (DSI) decoding, no model")                                  \
    X(doctor, "check this machine and suggest fixes")

enum eng_command_id {
#define ENG_ENUM(name, text) ENG_##name,
    ENG_COMMANDS(ENG_ENUM)
#undef ENG_ENUM
        ENG_COMMAND_COUNT
};

enum eng_log_form { ENG_LOG_TEXT, ENG_LOG_JSON, ENG_LOG_FORMS }; /* of serve */

struct eng_config;
typedef int eng_command(const struct eng_config *config);
#define ENG_DECLARE(name, text) eng_command eng_cmd_##name;
ENG_COMMANDS(ENG_DECLARE)
#undef ENG_DECLARE

/* ---- configuration ----------------------------------------------------------------------------- */

#define ENG_MAX_STOP 16
#define ENG_MAX_BIAS 64

/* Each field has the value of one flag; the table in options.c has the flag's range, and eng_option_defaults() sets its
 * default.  Strings are not owned: see eng_config_parse(). */
struct eng_config {
    const char *model, *template, *system, *prompt, *input, *output, *ids, *logits, *text, *shape, *format, *config,
        *fit, *imatrix;
    const char *name;                        /* of pull and rm */
    const char *down;                        /* of synth; NULL: `format` */
    const char *part_format[MOE_PART_COUNT]; /* of quantize, by enum moe_part; NULL: `format` */
    const char *errors;                      /* of batch; NULL: output + ".errors" */
    const char *batches, *against;           /* lists as "1,4,16": batch sizes, draft lengths */
    int n_predict;                           /* -1: until the model stops or the context ends */
    /* n_thread 0: all CPUs.  n_ctx: tokens of a request; 0: the command's default.  n_chunk: most prompt tokens of a
     * pass; 0: see struct eng_options. */
    int n_thread, n_ctx, n_chunk;
    int n_parallel; /* requests at once; 0: the number expected to be fastest */
    const char *host, *allowed_host, *api_key_file, *alias, *cors; /* of serve */
    const char *files;                                             /* of serve; NULL: none */
    size_t files_most;                                             /* bytes */
    bool any_model;                                                /* of serve */
    int metrics_port;                                              /* of batch; 0: no metrics */
    int port, n_queue, n_connection, patience_s, idle_s, ping_s, drain_s, stall_s;
    size_t max_body;
    enum eng_log_form log_format;           /* of serve */
    const char *notify_socket;              /* sd_notify socket, or NULL; from the environment only */
    uint64_t watchdog_us;                   /* systemd's watchdog interval, 0: none; from the environment only */
    int n_layer, n_vocab, n_used;           /* of synth; 0: as in the shape */
    int n_prompt, n_gen, n_warmup, n_round; /* of bench; n_warmup -1: until the hit rate has settled */
    /* Bytes.  host_mem 0: the free memory less a margin.  kv_mem 0: n_parallel contexts, or fewer in favour of experts
     * (engine/plan/memory_split.c). */
    size_t host_mem, device_mem, kv_mem;
    size_t disk_rate, dram_rate;                    /* bytes per second; 0: measured */
    const char *what, *preset, *method, *lookahead; /* of simulate; lookahead as "1,5,10" or "1-200" */
    float target_ms, draft_ms, target_prefill_ms, draft_prefill_ms, acceptance, contention, noise;
    int n_target, n_tok, n_repeat; /* n_tok, n_repeat 0: the preset's default */
    enum off_io_kind io;
    const char *mirror; /* folder with a copy of the model; NULL: none */
    enum kn_isa isa;
    const char *device;
    const char *gpu_layers; /* a number, "all" or "auto"; NULL: not given */
    int n_cpu_moe;          /* experts of so many first layers stay on the host */
    bool cpu_moe;           /* of all */
    enum kn_kv kv;
    struct eng_draft_option draft[ENG_DRAFTERS_MOST];
    int n_draft, gamma; /* gamma: draft length, or ENG_GAMMA_AUTO */
    /* n_dsi 0: no DSI; 1: drafts during verification; above 1: number of verifying workers of run; or ENG_GAMMA_AUTO.
     * n_ahead: tokens drafted during one verification; 0: as many as its duration allows. */
    int n_dsi, n_ahead;
    enum spec_rule verify;
    unsigned model_sampling; /* 0: the model's own defaults of sampling apply; 1: they do not */
    bool json, quiet, decode, special, seed_given, ignore_eos, verbose, requantize, no_pack, explain, ahead, authors,
        retry_failed, raw, no_history, no_color; /* no_color: NO_COLOR of the environment */
    bool yes, no_heat;                           /* no_heat: no heat file is written beside the model */
    struct eng_hub_places hub;                   /* from the environment, but for offline */
    const char *state_dir, *home, *terminal;     /* of run: XDG_STATE_HOME, HOME, TERM; NULL: unset */
    const char *cache_dir;                       /* of this program, in XDG_CACHE_HOME or ~/.cache; NULL: unknown */
    struct spec_params sampling;                 /* sampling.bias points to `bias` */
    unsigned sampling_given;                     /* bits of engine/api/model_sampling.h: set by the user */
    struct moe_string breaker[ENG_BREAKERS_MOST];
    int n_breaker; /* -1: the usual ones of DRY */
    struct spec_bias bias[ENG_MAX_BIAS];
    const char *stop[ENG_MAX_STOP];
    int32_t stop_id[ENG_MAX_STOP];
    int n_stop, n_stop_id;
    char pool[16384]; /* copies of the configuration file's strings */
    size_t pool_used;
};

/* Fills config for `command` from argv (the words after the command's name), SPILLWAY_* variables and --config
 * FILE.  Returns 0, 1 when --help was given and printed, or KN_E*.  Strings point into argv, the environment or
 * the pool, so config must not be moved or copied. */
int eng_config_parse(struct eng_config *config, enum eng_command_id command, int argc, char **argv);

#define ENG_ANY_MEMORY                                                                                                 \
    ((size_t)1 << 50) /* a budget that is more than any machine has, to learn the smallest that works */

/* The least important messages that are shown, by --quiet and --verbose. */
enum kn_level eng_message_level(const struct eng_config *config);

/* No message is shown from here to eng_messages_show(), which returns the first error of those; "": there was none.  The text
 * is valid until the next call of eng_messages_hold(). */
void eng_messages_hold(void);
const char *eng_messages_show(const struct eng_config *config);

/* Applies the flags of llama.cpp about GPUs, and says how; once messages can be shown.  0 or KN_EINVAL. */
int eng_gpu_wishes(struct eng_config *config, enum eng_command_id command);

/* Engine options from the flags; the command sets the rest (parallel sequences, progress, reserved memory). */
struct eng_options eng_config_options(const struct eng_config *config, bool answers_requests);

/* Options of the server from the flags. */
struct eng_serve_options eng_config_serve_options(const struct eng_config *config);

/* The name closest to a mistyped word, or NULL when none is close. */
const char *eng_nearest(const char *word, const char *const *names, int n);

/* ---- used by several commands ------------------------------------------------------------------- */

/* From this call on SIGINT, SIGTERM and SIGHUP set the returned flag instead of ending the process (SIGHUP only if it
 * was not ignored).  For commands that write files: they poll the flag; when it is set they stop, and delete the file,
 * or keep the part written so far if the same command can resume from it (pack, batch). */
const atomic_bool *eng_interrupt(void);
void eng_interrupt_end(void); /* the signals have their effects of before again */

/* Replaces the names of models in c->model and c->draft by paths (model_name.c).  0, or KN_E* with a message. */
int eng_model_resolve(struct eng_config *c, enum eng_command_id command);

/* 0 if path is NULL or a file with a chat template; otherwise says why not. */
int eng_template_file_check(const char *path);

/* Writes s as a quoted JSON string; invalid UTF-8 becomes U+FFFD. */
void eng_json_string(FILE *out, struct moe_string s);

/* ---- terminal ---------------------------------------------------------------------------------- */

/* The input side of a chat: one message at a time from a terminal (line editing, history) or a pipe.  A line
 * that begins with """ opens a message of several lines, a line that ends with """ closes it.  One line that begins
 * with a slash is a command; with two slashes it is text that begins with one.
 *
 * While a terminal is open it handles Ctrl-C: at the prompt Ctrl-C drops the line (twice in a row: quit); during
 * an answer Ctrl-C requests the answer's end, and a second Ctrl-C ends the program.  One terminal at a time, used from
 * the main thread. */
struct eng_terminal;

enum eng_input { ENG_INPUT_TEXT, ENG_INPUT_COMMAND, ENG_INPUT_QUIT };

/* kind: TERM of the environment; history: file with the lines typed in earlier chats, to which new ones are added;
 * NULL: none. */
int eng_terminal_open(struct eng_terminal **out, const char *kind, const char *history);
void eng_terminal_close(struct eng_terminal *t);

/* Waits for a message or a command: *text, without the command's slash, is valid until the next call.  Afterwards
 * eng_terminal_stopped() is false. */
int eng_terminal_read(struct eng_terminal *t, enum eng_input *kind, const char **text);

bool eng_terminal_stopped(void); /* Ctrl-C was pressed since the last read */
bool eng_terminal_is_tty(const struct eng_terminal *t);

#endif
