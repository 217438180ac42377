/* engine/api/parameters.h - the table of all members of a request's body that a client may send.  Internal to
 * engine/api.
 *
 * Each name is, in each dialect, honoured, refused with advice, or without effect on the answer.  Nothing that would
 * change the answer is dropped: a name of the table that is neither honoured nor without effect is refused, unless its
 * value asks for nothing.  A name that is not in the table is ignored, as other servers of these APIs do. */
#ifndef ENGINE_API_PARAMETERS_H
#define ENGINE_API_PARAMETERS_H

#include "engine/api/internal.h"

enum eng_parameter_kind { ENG_HONOURED, ENG_REFUSED, ENG_WITHOUT_EFFECT };

struct eng_parameter {
    unsigned apis; /* bit 1 << enum eng_api for each dialect of this entry */
    const char *name;
    enum eng_parameter_kind kind;
    /* Refused: a JSON list of values that ask for nothing, or NULL (null, "", [] and {} always do); and the rest of
     * the message after the name. */
    const char *neutral, *instead;
};

const struct eng_parameter *eng_parameter_at(int i);                                /* NULL after the last */
const struct eng_parameter *eng_parameter_find(enum eng_api api, const char *name); /* NULL: not in the table */

/* Refuses the request if a refused parameter's value asks for something. */
void eng_parameters_check(struct eng_parse *p);

#endif
