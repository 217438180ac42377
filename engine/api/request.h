/* engine/api/request.h - parses the body of an API request into engine requests.  Internal to engine.
 *
 *     eng_api_request_parse -> [ eng_api_request_of_choice per choice ] -> one reply (reply.h) -> eng_api_request_close
 *
 * Four dialects - completions, chat completions, responses, messages - are parsed into one struct
 * eng_api_request: prompts as tokens, sampling, stop strings, a grammar.  llama-server's and Ollama's own paths are
 * read as completions and chat completions (ollama.h) and have answers of their own form.  Parsing uses no socket, no clock and
 * no engine.  Its inputs beside the body are struct eng_api_setup (constant while the program runs) and
 * struct eng_arrival (one request's id, time and random seed).  Any number of threads may parse at once with
 * one setup.
 *
 * Accepted bodies.  parameters.h has all known members; those that would change the answer and cannot be honoured are
 * refused.  Other members are ignored.  A known member of a wrong type or out of range is refused by name; null
 * counts as absent.  Duplicate members, JSON nested deeper than ENG_API_MAX_DEPTH, and counts beyond the limits below
 * are refused.  A request cannot set the template or a grammar's text, and chat_template_kwargs may only hold variables
 * about reasoning.
 *
 * Choices.  A request has n_prompt prompts and n answers to each: choice i answers prompt i / n with
 * sampling.choice = i, so that equal prompts get different answers.  Each choice is one session, and no other choice
 * changes its bytes. */
#ifndef ENGINE_API_REQUEST_H
#define ENGINE_API_REQUEST_H

#include "engine/api/breakers.h"
#include "engine/text/chat_prompt.h"
#include "engine/engine.h"
#include "engine/text/grammar/grammar.h"
#include "engine/base/bytes.h"
#include "engine/tools/tools.h"

enum eng_api {
    ENG_API_COMPLETIONS, /* POST /v1/completions */
    ENG_API_CHAT,        /* POST /v1/chat/completions */
    ENG_API_RESPONSES,   /* POST /v1/responses, and /v1/responses/input_tokens */
    ENG_API_MESSAGES,    /* POST /v1/messages, and /v1/messages/count_tokens */
    /* Read as one of the above (eng_api_request.api), answered in a form of their own: */
    ENG_API_LLAMA,          /* llama-server's POST /completion */
    ENG_API_OLLAMA_CHAT,    /* Ollama's POST /api/chat */
    ENG_API_OLLAMA_GENERATE /* Ollama's POST /api/generate */
};

enum {
    ENG_API_MAX_DEPTH = 200,      /* nesting levels of the body's JSON */
    ENG_API_MAX_EACH = 64,        /* n, answers per prompt */
    ENG_API_MAX_CHOICES = 128,    /* prompts times n */
    ENG_API_MAX_STOPS = 16,       /* stop strings; also stop tokens */
    ENG_API_MAX_BIASES = 1000,    /* members of logit_bias */
    ENG_API_MAX_MESSAGES = 10000, /* messages; also parts of one message */
    ENG_API_MAX_TOOLS = 512,
    ENG_API_MAX_CHOICE_TEXTS = 1024, /* texts of guided_choice */
    ENG_ID_BYTES = 64
};

static inline bool eng_api_is_ollama(enum eng_api form)
{
    return form == ENG_API_OLLAMA_CHAT || form == ENG_API_OLLAMA_GENERATE;
}

/* Why a request is refused, as reported to the client. */
struct eng_refusal {
    int status;       /* HTTP status; 0: not refused */
    int retry_s;      /* for Retry-After; 0: as the status has it */
    const char *type; /* "invalid_request_error", ... */
    const char *code; /* "context_length_exceeded", "model_not_found", ... or NULL */
    char param[64];   /* the offending member, "" if none */
    char message[512];
};

/* Fills *why; long texts are truncated, and type follows from status.  Returns KN_ELIMIT for 429 and
 * 503, KN_EINVAL for other statuses below 500, KN_EIO otherwise. */
int eng_refuse(struct eng_refusal *why, int status, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Writes the body of an error answer, in OpenAI's form or in that of Anthropic's or Ollama's API. */
void eng_refusal_write(struct eng_bytes *out, const struct eng_refusal *why, enum eng_api api);

/* Settings that are constant while the program runs.  All pointers are borrowed and must outlive the
 * asks and replies. */
struct eng_api_setup {
    const struct eng_vocab *vocab;
    const struct eng_chat *chat;               /* NULL: only completions are possible */
    const struct eng_tool_format *tool_format; /* format of the chat template; NULL without one */
    const struct gr_tokens *gr_tokens;         /* NULL: answers cannot be constrained by a grammar */
    const char *const *model;                  /* [n_model] accepted names; [0] is the name reported */
    int n_model;
    bool any_model;                         /* accept any model name; the answer reports model[0] */
    const char *fingerprint;                /* system_fingerprint, of model and program; NULL: none */
    int n_ctx;                              /* tokens of a prompt and its answer, at most */
    const char *drafter[ENG_DRAFTERS_MOST]; /* [n_drafter] the kinds of the engine's drafters, in its order */
    int n_drafter;
    int n_choice;                     /* choices of one request, at most; 0: ENG_API_MAX_CHOICES */
    struct spec_params sampling;      /* defaults */
    unsigned sampling_given;          /* bits of model_sampling.h: not taken from the model */
    const struct moe_string *breaker; /* [n_breaker] of DRY, if a request gives none; NULL: llama-server's */
    int n_breaker;
    int n_predict;       /* default; -1: to the end of the context */
    bool text_arguments; /* the template takes a call's arguments as text, not as an object */
    bool generic_tools;  /* the template has no tool calls, or of an unknown form: generic_tools.c */
    bool unlisted_tools; /* the template has tool calls, but does not list the tools: generic_tools.c */
    bool no_system;      /* the template has no system messages */
    bool folds_results;  /* the template takes results as a list tool_responses of the message with their calls */
};

/* Sets setup->tool_format and the members that describe the chat template; *format holds the format and must
 * outlive the setup.  Call once, after chat and vocab are set, while the model's file is open. */
void eng_api_setup_from_template(struct eng_api_setup *setup, struct eng_tool_format *format);

/* eng_options.n_prompt_logprob_row of an engine that answers requests: the rows of a pass that may report the logprobs
 * of prompt tokens. */
#define ENG_API_TELL_ROWS 16

/* The name of a model from the path of its file, without the folder and without .gguf; truncated to fit out. */
void eng_api_model_name(char *out, size_t bytes, const char *path);

/* The name of the setup that `name` is; tagged: NAME:latest is NAME, too, as for Ollama.  NULL: none. */
const char *eng_api_model_find(const struct eng_api_setup *setup, const char *name, bool tagged);

/* Memory that a setup points to and that the engine does not own. */
struct eng_api_model {
    struct eng_chat *chat; /* NULL: the model has no template that can be used */
    struct eng_tool_format format;
    char fingerprint[ENG_FINGERPRINT_BYTES];
};

/* Opens the chat template of the model file at path, or the text file `template` if it is not NULL, and fills *setup,
 * except model, n_model, any_model, n_choice, sampling and n_predict, which the caller sets; sampling gets the model's own
 * defaults.  An error is about the
 * chat template: the setup is then filled, too, but only completions are possible. */
int eng_api_model_open(struct eng_api_model *m, struct eng_api_setup *setup, const struct eng_engine *e,
                       const char *path, const char *template);
void eng_api_model_close(struct eng_api_model *m);

/* Values that belong to one request and do not come from its body. */
struct eng_arrival {
    const char *id;    /* fewer than 48 letters and digits: follows the prefix in the answer's id */
    int64_t created_s; /* seconds since 1970 */
    uint64_t seed;     /* random seed if the body has none, below 2^53; reported in the answer */
    bool count;        /* only count the prompt's tokens, generate nothing */
    /* While prompts are tokenized; its error ends the parsing, with any refusal.  NULL: none. */
    struct eng_checkpoint *checkpoint;
};

/* Lists of tokens that ask->sampling points to; its other pointers are NULL. */
struct eng_token_lists {
    struct spec_bias *bias;
    struct eng_ids ids; /* of the banned sequences */
    struct spec_sequence *banned;
    uint32_t *allowed;
    int32_t *late;
    struct eng_breakers breakers;
};
void eng_token_lists_free(struct eng_token_lists *l);

struct eng_api_request {
    enum eng_api api;      /* one of the first four: how the body was read */
    enum eng_api form;     /* of the answer and of its errors */
    char id[ENG_ID_BYTES]; /* "chatcmpl-..." and the like */
    int64_t created_s;
    const char *model; /* one of the setup's names */
    bool stream, include_usage, echo;
    bool shows_special; /* write control tokens as text */

    struct eng_ids *prompt; /* [n_prompt] */
    int n_prompt, n_each; /* n_prompt * n_each choices; 0: nothing to answer, for Ollama's paths (eng_reply_nothing) */

    struct spec_params sampling; /* points into `lists` */
    struct eng_token_lists lists;
    bool seed_given;
    int n_predict; /* -1: to the end of the context */
    bool ignore_eos;
    int min_tokens;             /* of the answer: before them, no stop token and no stop string ends it */
    bool shows_stop;            /* the stop string that ends an answer is part of it */
    bool logprobs;              /* report the logprob of each generated token */
    int n_top;                  /* also report this many most probable tokens at each position */
    int prompt_logprobs;        /* vLLM's member: most probable tokens per prompt token; -1: absent */
    bool wants_prompt_logprobs; /* report the logprobs of prompt tokens */
    const char **stop;          /* [n_stop] strings of the body */
    int n_stop;
    int32_t stop_token[ENG_API_MAX_STOPS]; /* [n_stop_token] tokens that also end an answer */
    int n_stop_token;
    struct gr_grammar *grammar; /* owned; NULL: not constrained */
    json_t *tools;              /* a reference; NULL: calls are not recognised in the answer */
    bool thinks;                /* the answer begins inside the reasoning */
    bool continues;             /* the answer continues the conversation's last message */
    bool in_text;               /* in its text, of which there is some, not in its reasoning */

    struct eng_ids prediction;      /* the text that answers may repeat, for drafts; n 0: none */
    struct eng_draft_limits drafts; /* which drafters draft for it, and how much */

    int priority;  /* a higher one goes first (in the body a lower one, as in vLLM) */
    uint64_t user; /* hash of the body's user id; 0: none */
    json_t *body;  /* the parsed body; owns the strings above */
};

/* Returns 0 and *out, or on refusal KN_EINVAL or KN_ENOMEM with the answer for the client in *why;
 * *out is then untouched. */
int eng_api_request_parse(struct eng_api_request **out, enum eng_api api, const char *body, size_t n,
                          const struct eng_api_setup *setup, const struct eng_arrival *arrival,
                          struct eng_refusal *why);
/* As eng_api_request_parse, for a body that is parsed already: an object without duplicate members.  The ask keeps a
 * reference to it. */
int eng_api_request_parse_json(struct eng_api_request **out, enum eng_api api, json_t *body,
                               const struct eng_api_setup *setup, const struct eng_arrival *arrival,
                               struct eng_refusal *why);
void eng_api_request_close(struct eng_api_request *ask);

/* The deepest nesting of brackets in a JSON text. */
size_t eng_api_request_depth(const char *text, size_t n);

static inline int eng_api_request_choices(const struct eng_api_request *ask) { return ask->n_prompt * ask->n_each; }

/* Sets *out to the engine request of one choice; it borrows from the ask.  out->user is the hash of the
 * body's user id; owner (NULL) and salt (0) are left for the caller to set. */
void eng_api_request_of_choice(const struct eng_api_request *ask, int choice, struct eng_request *out);

/* The prompt of a conversation as text, as eng_api_request_parse tokenizes it; the caller frees *text with
 * kn_free.  For /apply-template.  Returns as eng_api_request_parse does. */
int eng_api_request_render(enum eng_api api, const char *body, size_t n, const struct eng_api_setup *setup, char **text,
                           size_t *n_text, struct eng_refusal *why);

#endif
