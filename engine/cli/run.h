/* engine/cli/run.h - the parts of spillway run: one answer, the conversation, its commands, the chat on a terminal.
 *
 *     cmd_run.c        opens the engine; answers a prompt
 *     run_answer.c     tokens of the engine to printed text, and the statistics after it
 *     conversation.c   messages, settings, and the prompt that the chat template makes of them
 *     chat_commands.c  lines that begin with /
 *     run_chat.c       the chat on a terminal */
#ifndef ENGINE_CLI_RUN_H
#define ENGINE_CLI_RUN_H

#include "engine/api/breakers.h"
#include "engine/base/bytes.h"
#include "engine/cli/answer_printer.h"
#include "engine/cli/cli.h"
#include "engine/dsi.h"
#include "engine/text/chat_prompt.h"
#include "engine/tools/tools.h"

/* ---- the conversation ------------------------------------------------------------------------- */

/* Plain data, changed by chat_commands.c and run_chat.c.  A system message is always the first one. */
struct eng_conversation {
    struct eng_config *config; /* the flags, with the values that /set has changed */
    json_t *messages;          /* [{"role": .., "content": ..}] */
    const char *think;         /* "on", "off" or an effort such as "low"; NULL: as the template decides */
    char think_text[16];
    struct moe_string template; /* its source; empty: no template, each message is completed by itself */
    uint32_t n_retry;           /* retries of the last message; each samples with another choice index */
};

int eng_conversation_open(struct eng_conversation *c, struct eng_config *config, struct moe_string template);
void eng_conversation_close(struct eng_conversation *c);

int eng_conversation_add(struct eng_conversation *c, const char *role, const char *text, size_t n);
void eng_conversation_drop_last(struct eng_conversation *c);
const char *eng_conversation_last_role(const struct eng_conversation *c); /* "": no message */
void eng_conversation_clear(struct eng_conversation *c);                  /* keeps the system message */
/* Removes the oldest message with its answer; false if no message is older than the last one of the user. */
bool eng_conversation_forget(struct eng_conversation *c);

/* The system message, or NULL.  Setting an empty text removes it. */
const char *eng_conversation_system(const struct eng_conversation *c);
int eng_conversation_set_system(struct eng_conversation *c, const char *text);

/* Sets `think`.  KN_EINVAL, with a message, for a value that the template does not know. */
int eng_conversation_set_think(struct eng_conversation *c, const char *value);

/* Saves or loads {"messages": [...]}.  A file that holds anything else is not overwritten. */
int eng_conversation_save(const struct eng_conversation *c, const char *path);
int eng_conversation_load(struct eng_conversation *c, const char *path);

/* Sets ids to the prompt of the conversation. */
int eng_conversation_tokens(const struct eng_conversation *c, const struct eng_chat *chat, struct eng_ids *ids);

/* ---- commands of a chat ----------------------------------------------------------------------- */

enum eng_chat_next {
    ENG_CHAT_READ,   /* done: read the next message */
    ENG_CHAT_ANSWER, /* answer the last message again */
    ENG_CHAT_INFO,   /* print the model and the context in use */
    ENG_CHAT_QUIT
};

/* Executes a line such as "set temp 0.5", without its slash.  Messages go to stderr.  An unknown command and a failed
 * one are ENG_CHAT_READ. */
enum eng_chat_next eng_chat_command(struct eng_conversation *c, const char *line);

/* ---- answers ---------------------------------------------------------------------------------- */

/* The number is eng_run.ids.most, at least twice the context. */
#define ENG_PROMPT_TOO_LONG "the prompt has more than %zu tokens and the context fewer: shorten it, or raise --ctx-size"

struct eng_run {
    struct eng_config *config;
    struct eng_engine *engine;
    struct eng_session *session;
    struct eng_dsi *dsi; /* distributed speculation (--dsi); NULL: plain steps of session */
    struct eng_event *event;
    struct eng_printer *printer;
    char *piece;                   /* text of one token */
    struct eng_ids ids;            /* prompt and answer */
    struct eng_bytes shown, said;  /* shown: text for the printer; said: the last answer without its reasoning */
    struct eng_chat *chat;         /* NULL: texts are completed as they are */
    struct eng_tool_format format; /* of the chat's template */
    struct eng_breakers breakers;  /* of config->sampling */
    size_t n_input;                /* bytes of the prompt; 0: a chat */
    bool seed_said, output_failed;
};

struct eng_timing {
    uint64_t start_ns, first_ns, end_ns;
    int n_prompt, n_token, n_reasoning; /* n_reasoning: tokens of n_token before or between those of the answer */
    bool ended_at_once;                 /* the first token ended the answer */
    bool context_full;                  /* the answer was cut because the context is full */
    struct off_stats store;             /* store, engine: counters at the start */
    struct eng_stats engine;
};

/* Generates and prints an answer to the prompt r->ids, and appends its tokens to r->ids and its text to r->said. */
int eng_run_answer(struct eng_run *r, uint32_t choice, struct eng_timing *t);

/* Completes a text without the chat template, and reports. */
int eng_run_complete(struct eng_run *r, const char *text, size_t n, uint32_t choice);

void eng_run_say_seed(struct eng_run *r); /* prints the seed, once, if it was chosen at random */
void eng_run_report(const struct eng_run *r, const struct eng_timing *t);

int eng_run_chat(struct eng_run *r);

#endif
