/* engine/text/stop_strings.c - passes on text that comes in pieces, up to the first stop string in it.
 *
 * If the text so far ends with the beginning of a stop string, that beginning is held back (of several, the
 * longest).  The stop string that is complete first ends the text; of two that end at the same byte, the
 * longer does.  So the result does not depend on how the text is cut into pieces. */
#include "engine/text/text.h"

#include <string.h>

int eng_stop_init(struct eng_stop *s, const char *const *text, int n)
{
    for (int i = 0; i < n; i++) {
        size_t bytes = strlen(text[i]);
        if (bytes < 1 || bytes > ENG_STOP_BYTES)
            return kn_fail(KN_EINVAL, "a stop string has %zu bytes; the limits are 1 to %d", bytes, ENG_STOP_BYTES);
    }
    *s = (struct eng_stop){ .text = text, .n = n };
    return 0;
}

/* Compares stop string i with the text p[n].  Returns 1 if the text begins with the stop string, 0 if the whole
 * text is a beginning of the stop string, else -1. */
static int stands(const struct eng_stop *s, int i, const char *p, size_t n)
{
    size_t bytes = strlen(s->text[i]);
    if (memcmp(p, s->text[i], bytes < n ? bytes : n) != 0)
        return -1;
    return bytes <= n;
}

size_t eng_stop_feed(struct eng_stop *s, const char *bytes, size_t n, char *out)
{
    if (s->hit)
        return 0;
    memcpy(out, s->held, s->n_held);
    memcpy(out + s->n_held, bytes, n);
    n += s->n_held;
    size_t shown = n, end = SIZE_MAX;
    for (size_t at = 0; at < n; at++)
        for (int i = 0; i < s->n; i++) {
            int found = stands(s, i, out + at, n - at);
            if (found > 0 && at + strlen(s->text[i]) < end) {
                s->hit = true;
                s->which = i;
                shown = at;
                end = at + strlen(s->text[i]);
            }
            if (found == 0 && !s->hit && at < shown)
                shown = at;
        }
    s->n_held = s->hit ? 0 : n - shown;
    memcpy(s->held, out + shown, s->n_held);
    return shown;
}

size_t eng_stop_finish(struct eng_stop *s, char *out)
{
    size_t n = s->hit ? 0 : s->n_held;
    memcpy(out, s->held, n);
    s->n_held = 0;
    return n;
}
