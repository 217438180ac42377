/* engine/text/jinja/jinja.h - Jinja interpreter for chat templates: a template and a conversation to the
 * text of a prompt.  Internal to engine.
 *
 *     eng_template_open -> eng_template_render* -> eng_template_close
 *
 * The language is Jinja with the settings of the transformers package (trim_blocks, lstrip_blocks,
 * loop controls, {% generation %}, its tojson, raise_exception, strftime_now).  The output is byte for
 * byte that of Python's jinja2.  A template for which this does not hold is refused; the message names
 * the line of the template.  Refused although jinja2 accepts it: inheritance and inclusion ({% extends %},
 * {% block %}, {% include %}, {% import %}), {% autoescape %}, integers beyond 64 bits, printing an
 * object that Python would print as an address, and a few filters (see filters.c).
 *
 * Templates are untrusted.  A template sees only plain values.  Names are looked up in fixed tables;
 * a template cannot reach attributes of C or Python objects, files, the environment, or a clock other
 * than now_s.  Steps, memory, output and depth are counted, and rendering fails with a message at the
 * limits of struct eng_template_limits.
 *
 * An open template is immutable: any number of threads may render it at once. */
#ifndef ENGINE_TEXT_JINJA_JINJA_H
#define ENGINE_TEXT_JINJA_JINJA_H

#include <jansson.h>

#include "kernels/core.h"

struct eng_template;

/* A failure's reason, for the caller to log or to return to the client.  The interpreter logs
 * nothing. */
struct eng_template_error {
    int line;        /* line of the template at which it failed; 0: unknown */
    bool raised;     /* the template called raise_exception, and `text` is its argument */
    char text[1024]; /* one line, unless raised; truncated if too long (unless raised, maybe within a character) */
};

struct eng_template_limits { /* a value of 0 selects the default */
    size_t memory;           /* bytes, without the output; default 256 MiB */
    size_t output;           /* bytes; default 64 MiB */
    uint64_t steps;          /* nodes evaluated, plus data processed; default 50 million */
    int depth;               /* nesting of nodes and calls; default 2000 */
};

/* Compiles a template; text[n] is copied.  Returns 0, KN_EINVAL (not a valid template), KN_ELIMIT or
 * KN_ENOMEM. */
int eng_template_open(struct eng_template **out, const char *text, size_t n, struct eng_template_error *error);
void eng_template_close(struct eng_template *t);

/* Renders the template; the members of the object `variables` are its variables.  now_s is the time that
 * strftime_now formats, in seconds since 1970.  limits NULL: the defaults.  *out is *n bytes and a NUL; the
 * caller frees it with kn_free.  Returns 0, KN_EINVAL (the template failed), KN_ELIMIT or KN_ENOMEM. */
int eng_template_render(const struct eng_template *t, const json_t *variables, int64_t now_s,
                        const struct eng_template_limits *limits, char **out, size_t *n,
                        struct eng_template_error *error);

#endif
