/* engine/text/jinja/jinja.h - chat templates: a template and a conversation to the text of a prompt.
 *
 *     eng_template_open -> eng_template_render* -> eng_template_close
 *
 * The language is Jinja as chat templates use it, with the settings that the transformers package
 * gives it (trim_blocks, lstrip_blocks, loop controls, {% generation %}, its tojson,
 * raise_exception, strftime_now): the text is byte for byte what Python's jinja2 would give, or the
 * template is refused with one line that names the line of the template.  What is refused although
 * Python takes it: inheritance and inclusion ({% extends %}, {% block %}, {% include %}, {% import
 * %}), {% autoescape %}, integers beyond 64 bits, printing an object that has only an address, and
 * a few filters (see filters.c).
 *
 * A template is data from strangers.  It sees plain values alone: what has a name is looked up in
 * fixed tables, nothing walks the attributes of anything; there is no file, no environment, no
 * clock but the one handed in. Every step, byte of memory, byte of output and level of depth is
 * counted, and rendering ends with a message when there are too many.
 *
 * An open template is immutable: any number of threads may render it at once. */
#ifndef ENGINE_JINJA_JINJA_H
#define ENGINE_JINJA_JINJA_H

#include <jansson.h>

#include "kernels/core.h"

struct eng_template;

/* What was wrong, for whoever asked: a person's log line, or the answer to a request.  It is not
 * logged here. */
struct eng_template_error {
    int line;                                   /* of the template; 0: not about a line */
    bool raised; /* text is the template's own, from raise_exception */
    char text[1024]; /* one line, unless raised; UTF-8, cut where it is too long */
};

struct eng_template_limits {                    /* 0: the default */
    size_t memory;                              /* bytes, without the output; 256 MiB */
    size_t output;                              /* bytes; 64 MiB */
    uint64_t steps;                             /* nodes evaluated and words touched; 50 million */
    int depth;                                  /* nodes within nodes, calls included; 2000 */
};

/* KN_EINVAL: not a template, KN_ELIMIT, KN_ENOMEM.  The text is copied. */
int eng_template_open(struct eng_template **out, const char *text, size_t n,
                      struct eng_template_error *error);
void eng_template_close(struct eng_template *t);

/* Renders with the members of `variables`, an object, as variables.  now_s is the time for
 * strftime_now, in seconds since 1970.  *out is *n bytes and a NUL, to be freed with kn_free. */
int eng_template_render(const struct eng_template *t, const json_t *variables, int64_t now_s,
                        const struct eng_template_limits *limits, char **out, size_t *n,
                        struct eng_template_error *error);

#endif
