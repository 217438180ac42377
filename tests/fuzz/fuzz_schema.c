/* The input is a JSON schema: it is refused in one line, or every random walk of its grammar can be
 * completed, and the completed text is JSON. */
#include "engine/text/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MOST_BYTES = 1 << 17 };

static void finish(const struct gr_grammar *g, const struct gr_state *s, char *text, size_t n)
{
    struct gr_state end;
    size_t more = gr_finish(g, s, text + n, MOST_BYTES - n);
    if (more > MOST_BYTES - n)
        return;
    gr_copy(&end, s);
    for (size_t i = 0; i < more; i++)
        if (!gr_advance(g, &end, (uint8_t)text[n + i]))
            abort();
    if (!gr_can_end(&end))
        abort();
    json_t *value = json_loadb(text, n + more, JSON_DECODE_ANY, NULL);
    if (!value)
        abort();
    json_decref(value);
}

static void walk(const struct gr_grammar *g, uint64_t seed)
{
    static char text[MOST_BYTES];
    struct gr_state s;
    size_t n = 0;
    gr_start(g, &s);
    finish(g, &s, text, 0);
    for (int i = 0; i < 1000 && n < 200; i++) {
        text[n] = (char)kn_mix(seed += KN_GOLDEN);
        n += gr_advance(g, &s, (uint8_t)text[n]);
    }
    finish(g, &s, text, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    json_t *schema = json_loadb((const char *)data, n, JSON_DECODE_ANY, NULL);
    struct gr_builder *b;
    struct gr_grammar *g = NULL;
    if (!schema || gr_builder_open(&b)) {
        json_decref(schema);
        return 0;
    }
    int e = gr_compile(&g, b, gr_schema(b, schema, GR_END), NULL);
    const char *why = gr_builder_why(b);
    if ((e == 0) != (*why == '\0') || strchr(why, '\n'))
        abort();
    for (uint64_t i = 0; i < 2 && e == 0; i++)
        walk(g, i);
    gr_close(g);
    gr_builder_close(b);
    json_decref(schema);
    return 0;
}
