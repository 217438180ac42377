/* engine/api/request.h - the body of a request, and what the engine is asked for it.  Internal to
 * engine.
 *
 *     eng_ask_parse -> [ eng_ask_request per choice ] -> replies (reply.h) -> eng_ask_close
 *
 * Four dialects of the same request - completions, chat completions, responses, messages - become
 * one struct: prompts as tokens, sampling, stop strings, a grammar.  Pure: no socket, no clock, no
 * engine; what a request cannot know comes in with the desk (what stays as it is while the program
 * runs) and the arrival (what is this request's own).  Any number of threads may parse at once over
 * one desk.
 *
 * What a body may be.  Unknown members are ignored; a known one of the wrong type or out of range
 * is refused by name; null is the same as absence.  A member said twice, JSON nested deeper than
 * ENG_ASK_DEPTH, and every count beyond the limits below are refused.  A template or a grammar's
 * text is never taken from a request, and of chat_template_kwargs only what asks for more or less
 * thinking.
 *
 * Choices.  A request has n_prompt prompts and n answers to each: choice i answers prompt i / n
 * with the noise of sampling.choice = i % n.  Each is one session, and the same bytes as alone. */
#ifndef ENGINE_SERVE_ASK_H
#define ENGINE_SERVE_ASK_H

#include "engine/text/chat_prompt.h"
#include "engine/engine.h"
#include "engine/text/grammar/grammar.h"
#include "engine/base/bytes.h"
#include "engine/tools/tools.h"

enum eng_api {
    ENG_API_COMPLETIONS, /* POST /v1/completions */
    ENG_API_CHAT,        /* POST /v1/chat/completions */
    ENG_API_RESPONSES,   /* POST /v1/responses, and /v1/responses/input_tokens */
    ENG_API_MESSAGES     /* POST /v1/messages, and /v1/messages/count_tokens */
};

enum {
    ENG_ASK_DEPTH = 200,      /* of the body's JSON */
    ENG_ASK_EACH = 64,        /* n */
    ENG_ASK_CHOICES = 128,    /* prompts times n */
    ENG_ASK_STOPS = 16,       /* stop strings, and stop tokens */
    ENG_ASK_BIASES = 1000,    /* logit_bias */
    ENG_ASK_MESSAGES = 10000, /* and parts of a message */
    ENG_ASK_TOOLS = 512,
    ENG_ID_BYTES = 64
};

/* Why not, as a client is told. */
struct eng_refusal {
    int status;       /* of HTTP */
    const char *type; /* "invalid_request_error", ... */
    const char *code; /* "context_length_exceeded", "model_not_found", ... or NULL */
    char param[64];   /* the member, "" if none */
    char message[512];
};

/* Fills it, cut where it is too long; type follows from status.  Returns KN_EINVAL for 400s,
 * KN_ELIMIT for 429 and 503, KN_EIO otherwise. */
int eng_refuse(struct eng_refusal *why, int status, const char *code, const char *param,
               const char *format, ...) __attribute__((format(printf, 5, 6)));

/* The body of an answer that only refuses: OpenAI's shape, or Anthropic's for ENG_API_MESSAGES. */
void eng_refusal_write(struct eng_bytes *out, const struct eng_refusal *why, enum eng_api api);

/* What stays as it is.  Everything is borrowed, and outlives asks and replies. */
struct eng_api_setup {
    const struct eng_vocab *vocab;
    const struct eng_chat *chat;           /* NULL: only completions */
    const struct eng_speech_style *speech; /* of the chat template; NULL without one */
    const struct gr_tokens *gr_tokens;     /* NULL: no answer can be constrained */
    const char *const *model;              /* [n_model] the first is the one that is told */
    int n_model;
    bool any_model;              /* whatever name a request has will do */
    const char *fingerprint;     /* of model and program, or NULL */
    int n_ctx;                   /* tokens of a prompt and its answer */
    int n_choice;                /* at most, of one request; 0: ENG_ASK_CHOICES */
    struct spec_params sampling; /* where the request says nothing */
    int n_predict;               /* likewise; -1: to the end of the context */
    bool text_arguments;         /* see eng_api_setup_from_template */
};

/* Finds out from the chat template by which marks the model thinks and calls, which *style keeps and
 * desk->speech says from then on, and what form of a call's arguments it takes: once, when chat and
 * vocab are set, while the model's file is open. */
void eng_api_setup_from_template(struct eng_api_setup *desk, struct eng_speech_style *style);

/* The rows of a pass that report prompt tokens: n_tell of an engine that answers requests. */
#define ENG_API_TELL_ROWS 16

/* The name of a model by its file: without folder and ending. */
void eng_api_model_name(char *out, size_t bytes, const char *path);

/* The parts of an opened model that a setup points to, beside the engine. */
struct eng_api_model {
    struct eng_chat *chat; /* NULL: without a template that can be used */
    struct eng_speech_style style;
    char fingerprint[ENG_FINGERPRINT_BYTES];
};

/* Fills *desk but for the names, limits and defaults, which the caller sets.  An error is the chat template's: the
 * setup then takes completions only. */
int eng_api_model_open(struct eng_api_model *m, struct eng_api_setup *desk, const struct eng_engine *e,
                       const char *path);
void eng_api_model_close(struct eng_api_model *m);

/* What is this request's own. */
struct eng_arrival {
    const char *id;    /* letters and digits, fewer than 48: the answer's id ends with it */
    int64_t created_s; /* since 1970 */
    uint64_t seed;     /* for a request without one, less than 2^53; it is reported */
    bool count;        /* only count the prompt's tokens: nothing will be generated */
};

struct eng_ask {
    enum eng_api api;
    char id[ENG_ID_BYTES]; /* "chatcmpl-..." and the like */
    int64_t created_s;
    const char *model; /* the desk's */
    bool stream, include_usage, echo;
    bool shows_special; /* control tokens are text */

    struct eng_ids *prompt; /* [n_prompt] */
    int n_prompt, n_each;   /* n_prompt * n_each choices */

    struct spec_params sampling; /* its bias is the ask's */
    bool seed_given;
    int n_predict; /* -1: to the end of the context */
    bool ignore_eos;
    bool logprobs;
    int n_top;
    int prompt_logprobs;        /* vLLM's: so many of the likeliest beside each of the prompt; -1: none */
    bool tells_prompt;          /* one of the two wants to know of the prompt's tokens */
    const char **stop; /* [n_stop] */
    int n_stop;
    int32_t stop_token[ENG_ASK_STOPS]; /* [n_stop_token] end an answer too */
    int n_stop_token;
    struct gr_grammar *grammar; /* or NULL */
    json_t *tools;              /* calls of these are told apart from text; NULL: none are */
    bool thinks;                /* the prompt ends within the model's thoughts */

    int priority;  /* higher goes first (a request says it the other way around, as vLLM has it) */
    uint64_t user; /* a hash of "user", 0: none */
    json_t *body;  /* what was asked; strings above are its */
};

/* On refusal 0 is not returned, *out is untouched and *why says what to tell the client. */
int eng_ask_parse(struct eng_ask **out, enum eng_api api, const char *body, size_t n,
                  const struct eng_api_setup *desk, const struct eng_arrival *arrival,
                  struct eng_refusal *why);
/* The same of a body that is JSON already, an object without duplicates, of which the ask keeps a reference. */
int eng_ask_parse_json(struct eng_ask **out, enum eng_api api, json_t *body,
                       const struct eng_api_setup *desk, const struct eng_arrival *arrival,
                       struct eng_refusal *why);
void eng_ask_close(struct eng_ask *ask);

/* How deep brackets nest in a text of JSON. */
size_t eng_ask_depth(const char *text, size_t n);

static inline int eng_ask_choices(const struct eng_ask *ask) { return ask->n_prompt * ask->n_each; }

/* The engine's request of one choice; owner and salt stay 0, for the caller to set. */
void eng_ask_request(const struct eng_ask *ask, int choice, struct eng_request *out);

/* The prompt of a conversation as text, as eng_ask_parse would tokenize it: *text is to be freed
 * with kn_free.  For /apply-template. */
int eng_ask_render(enum eng_api api, const char *body, size_t n, const struct eng_api_setup *desk,
                   char **text, size_t *n_text, struct eng_refusal *why);

#endif
