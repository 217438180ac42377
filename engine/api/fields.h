/* engine/api/fields.h - the members of a request's objects, each read with its type and its
 * range.  Internal to engine/serve.
 *
 * A reader gives a member or, when it is absent or null, leaves everything as it was.  The first
 * one that is wrong is told in *why, by its whole name ("messages[3].role"), and from then on every
 * reader with the same `why` finds nothing: a parser reads all it wants in a row and looks once,
 * with eng_refused(). */
#ifndef ENGINE_SERVE_FIELDS_H
#define ENGINE_SERVE_FIELDS_H

#include "engine/api/request.h"

enum { ENG_FIELD_PATH = 64 };

struct eng_fields {
    json_t *object; /* NULL: nothing is there */
    struct eng_refusal *why;
    char path[ENG_FIELD_PATH]; /* before a member's name: "", "messages[3]." */
};

static inline bool eng_refused(const struct eng_refusal *why) { return why->status != 0; }

/* "'path.name' must be ..." for a member that is there and wrong; name "" is the object itself. */
void eng_field_refuse(const struct eng_fields *f, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The member's value whatever it is, or NULL. */
json_t *eng_field(const struct eng_fields *f, const char *name);

/* True when it is there and right. */
bool eng_field_bool(const struct eng_fields *f, const char *name, bool *out);
bool eng_field_int(const struct eng_fields *f, const char *name, int64_t least, int64_t most,
                   int64_t *out);
bool eng_field_number(const struct eng_fields *f, const char *name, double least, double most,
                      double *out);

/* NULL when it is absent or wrong. */
json_t *eng_field_string(const struct eng_fields *f, const char *name);
json_t *eng_field_array(const struct eng_fields *f, const char *name, size_t most);

/* A member that is an object; the fields of one that is absent are all absent. */
struct eng_fields eng_field_object(const struct eng_fields *f, const char *name);
/* The i-th item of a member that is an array; it has to be an object. */
struct eng_fields eng_field_item(const struct eng_fields *f, const char *name, size_t i,
                                 json_t *item);

/* Which of these strings it is, -1 when it is absent; anything else is refused. */
int eng_field_choice(const struct eng_fields *f, const char *name, const char *const *word, int n);

#endif
