/* engine/cli/options.h - the table of options: lookup, values, help.  Internal to engine. */
#ifndef ENGINE_CLI_OPTIONS_H
#define ENGINE_CLI_OPTIONS_H

#include "engine/cli/cli.h"

#define ENG_MAX_NAME     32 /* longest option name */
#define ENG_MAX_OPTION   160
#define ENG_ENV_PREFIX   "SPILLWAY_"
#define ENG_ALL_COMMANDS ((1u << ENG_COMMAND_COUNT) - 1)

enum eng_kind {
    ENG_FLAG,
    ENG_INTEGER,
    ENG_NUMBER,
    ENG_SEED,
    ENG_SIZE,
    ENG_TEXT,
    ENG_STOPS,
    ENG_STOP_IDS,
    ENG_BIASES,
    ENG_ISA,
    ENG_KV,
    ENG_IO,
    ENG_DRAFTS,
    ENG_OR_AUTO,
    ENG_VERIFY,
    ENG_STEP_NAMES,
    ENG_STEP_LETTERS,
    ENG_BREAKERS,
    ENG_SAMPLING_DEFAULTS,
    ENG_LOG_FORMAT
};

/* In the order of --help-all; --help has the first only. */
#define ENG_TOPICS(X)                                                                                                  \
    X(COMMON, "")                                                                                                      \
    X(TEXT, "Prompts and answers")                                                                                     \
    X(SAMPLING, "Sampling")                                                                                            \
    X(SERVER, "Server")                                                                                                \
    X(MEMORY, "Memory and speed")                                                                                      \
    X(DRAFTING, "Speculative decoding")                                                                                \
    X(MEASURE, "Measuring")                                                                                            \
    X(SETTINGS, "Settings")

enum eng_topic {
#define ENG_ENUM(name, title) ENG_TOPIC_##name,
    ENG_TOPICS(ENG_ENUM)
#undef ENG_ENUM
        ENG_TOPIC_COUNT
};

struct eng_option {
    const char *name, *alias; /* name: without dashes; alias: names with dashes, separated by spaces */
    enum eng_topic topic;     /* its group in the help text */
    unsigned commands;        /* bit 1 << id for each command that accepts the option */
    enum eng_kind kind;
    size_t at; /* offset of the field in struct eng_config */
    /* Range of ENG_INTEGER, ENG_NUMBER, ENG_OR_AUTO.  ENG_SIZE: a smaller number must have a unit; 0 always passes. */
    double least, most;
    const char *value, *help; /* value: placeholder of the value in the help text, NULL: no value */
};

extern const char *const eng_command_name[ENG_COMMAND_COUNT];

void eng_option_defaults(struct eng_config *c, enum eng_command_id command);

/* The option named by `flag` (name or alias, with dashes) that one of `commands` takes, or NULL. */
const struct eng_option *eng_option_find(const char *flag, unsigned commands);
int eng_option_index(const struct eng_option *o); /* its place in the table */

/* True if `flag`, with its dashes, is one of the space-separated names. */
bool eng_option_has_name(const char *names, const char *flag);

/* Reports a flag that the command does not take, with advice or a similar name; returns KN_EINVAL.  `by`: source of
 * the flag (command, file and line), for the message. */
int eng_option_unknown(const char *by, const char *flag, enum eng_command_id command);

/* Checks that required flags are given and that flags do not contradict.  0, or KN_EINVAL with a message. */
int eng_option_check(const struct eng_config *c, enum eng_command_id command);

/* For help, man page and completion: the i-th of all options, or NULL; the nth required flag of the command, or
 * NULL. */
const struct eng_option *eng_option_at(int i);
const char *eng_option_needed(enum eng_command_id command, int nth);

/* foreign_flags.c: the advice that replaces a flag of another program, as the end of a sentence; NULL: no such flag. */
const char *eng_foreign_advice(const char *flag, enum eng_command_id command);

/* ---- option_values.c ------------------------------------------------------------------------------ */

/* Sets the option's field from s, which must outlive c; a list option gets one more item.  Returns 0, or KN_E* with a
 * message.  by: the source of the value, for the message. */
int eng_option_set(struct eng_config *c, const struct eng_option *o, const char *s, const char *by);

/* Empties the field of a list option, before the list of a stronger source is set: lists of several sources are not
 * joined. */
void eng_option_forget(struct eng_config *c, const struct eng_option *o);

/* choices: the option's values, NULL-terminated, or NULL if they are no fixed list.  default_text: writes its default
 * in c as text; "": none to show. */
const char *const *eng_option_choices(const struct eng_option *o);
void eng_option_default_text(const struct eng_config *c, const struct eng_option *o, char *out, size_t size);

/* ---- manual.c: the table as text on stdout ------------------------------------------------------ */

void eng_option_help(enum eng_command_id command, bool all); /* all: every flag, with all its names */
void eng_manual_page(void);                                  /* troff: spillway(1) */
void eng_manual_completion(void);                            /* bash */

#endif
