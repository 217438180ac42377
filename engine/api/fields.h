/* engine/api/fields.h - typed, range-checked access to the members of a request's JSON objects.
 * Internal to engine/api.
 *
 * Each function reads one member.  If the member is absent or null, *out is unchanged.  The first
 * invalid member is reported in *why with its full path ("messages[3].role").  After a refusal every
 * function with the same `why` treats its member as absent.  So a parser reads all members in a row
 * and checks eng_refused() once at the end. */
#ifndef ENGINE_API_FIELDS_H
#define ENGINE_API_FIELDS_H

#include "engine/api/request.h"

enum { ENG_FIELD_PATH = 64 };

struct eng_fields {
    json_t *object; /* borrowed; NULL: absent, so all members are absent */
    struct eng_refusal *why;
    char path[ENG_FIELD_PATH]; /* put before a member's name in refusals: "", "messages[3]." */
};

static inline bool eng_refused(const struct eng_refusal *why) { return why->status != 0; }

/* Sets *why to status 400 and the message 'PATH.NAME' followed by format ("must be a string").  With
 * name "" the message is about the object itself.  Does nothing after an earlier refusal. */
void eng_field_refuse(const struct eng_fields *f, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The member's value of any type, borrowed; NULL if absent or null. */
json_t *eng_field(const struct eng_fields *f, const char *name);

/* Return true and set *out if the member is present, of this type, and from least to most; else false. */
bool eng_field_bool(const struct eng_fields *f, const char *name, bool *out);
bool eng_field_int(const struct eng_fields *f, const char *name, int64_t least, int64_t most, int64_t *out);
bool eng_field_number(const struct eng_fields *f, const char *name, double least, double most, double *out);

/* The member if it is a string, or a list of at most `most` items: borrowed; NULL if absent or refused. */
json_t *eng_field_string(const struct eng_fields *f, const char *name);
json_t *eng_field_array(const struct eng_fields *f, const char *name, size_t most);

/* A member that is an object.  If it is absent, all its fields are absent. */
struct eng_fields eng_field_object(const struct eng_fields *f, const char *name);
/* `item`, the i-th item of the array `name`; refused unless it is an object. */
struct eng_fields eng_field_item(const struct eng_fields *f, const char *name, size_t i, json_t *item);

/* The index in word[n] of the member's value; -1 if the member is absent, or if it is none of these words and so
 * refused. */
int eng_field_choice(const struct eng_fields *f, const char *name, const char *const *word, int n);

#endif
