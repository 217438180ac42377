/* engine/cli/options.h - the table of options, as config.c uses it.  Internal to engine. */
#ifndef ENGINE_OPTIONS_H
#define ENGINE_OPTIONS_H

#include "engine/cli/cli.h"

#define ENG_MAX_NAME     32                     /* letters of an option */
#define ENG_MAX_OPTION   128
#define ENG_ENV_PREFIX   "SPILLWAY_"
#define ENG_ALL_COMMANDS ((1u << ENG_COMMAND_COUNT) - 1)

enum eng_kind {
    ENG_FLAG, ENG_INTEGER, ENG_NUMBER, ENG_SEED, ENG_SIZE, ENG_TEXT, ENG_STOPS, ENG_STOP_IDS, ENG_BIASES, ENG_ISA, ENG_KV,
    ENG_IO, ENG_DRAFTS, ENG_OR_AUTO, ENG_VERIFY
};

struct eng_option {
    const char *name, *alias;                   /* aliases with their dashes, between spaces */
    unsigned commands;                          /* 1 << id of those that take it */
    enum eng_kind kind;
    size_t at;                                  /* in struct eng_config */
    double least, most;                         /* of numbers */
    const char *value, *help;
};

extern const char *const eng_command_name[ENG_COMMAND_COUNT];

void eng_option_defaults(struct eng_config *c, enum eng_command_id command);

/* The option of that name, with its dashes, that one of the commands takes; or NULL. */
const struct eng_option *eng_option_find(const char *flag, unsigned commands);
int  eng_option_index(const struct eng_option *o);

/* Says what a flag that this command does not take should have been.  who: where it was found. */
int  eng_option_unknown(const char *who, const char *flag, enum eng_command_id command);

/* Is everything there that the command cannot do without? */
int  eng_option_check(const struct eng_config *c, enum eng_command_id command);

/* For help, man page and completion: the i-th of all options, or NULL; the i-th of the flags that the command
 * cannot do without, or NULL. */
const struct eng_option *eng_option_at(int i);
const char *eng_option_needed(enum eng_command_id command, int nth);

/* ---- option_values.c ------------------------------------------------------------------------------ */

/* Sets the option's field from text, which must outlive c.  who: where it was found, for the message. */
int  eng_option_set(struct eng_config *c, const struct eng_option *o, const char *s, const char *who);

/* Empties a list.  Sources do not add up: the first of a stronger one starts anew. */
void eng_option_forget(struct eng_config *c, const struct eng_option *o);

/* The values there are, up to a NULL, or NULL when they are no list; what it is unless told. */
const char *const *eng_option_choices(const struct eng_option *o);
void eng_option_default_text(const struct eng_config *c, const struct eng_option *o, char *out, size_t size);

/* ---- manual.c: the table told, on stdout -------------------------------------------------------- */

void eng_option_help(enum eng_command_id command);
void eng_manual_page(void);                             /* troff: spillway(1) */
void eng_manual_completion(void);                       /* bash */

#endif
