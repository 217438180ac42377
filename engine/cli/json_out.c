/* engine/cli/json_out.c - writes arbitrary bytes as JSON strings. */
#include "engine/cli/cli.h"
#include "engine/base/bytes.h"
#include "engine/text/text.h"

#include <string.h>

size_t eng_json_piece(struct moe_string s, size_t *at, char *out)
{
    int bad = 1;
    bool cut;
    const char *p = s.data + *at;
    size_t n = (size_t)eng_utf8_next(p, s.n - *at, &bad, &cut);
    uint8_t c = (uint8_t)*p;
    *at += n ? n : (size_t)bad;
    if (!n)
        return (size_t)snprintf(out, ENG_JSON_PIECE, "\\ufffd");
    if (c < 0x20 || c == 0x7f)
        return (size_t)snprintf(out, ENG_JSON_PIECE, "\\u%04x", c);
    if (c == '"' || c == '\\')
        return (size_t)snprintf(out, ENG_JSON_PIECE, "\\%c", c);
    memcpy(out, p, n);
    return n;
}

void eng_json_string(FILE *out, struct moe_string s)
{
    char escaped[ENG_JSON_PIECE];
    fputc('"', out);
    for (size_t at = 0; at < s.n;)
        fwrite(escaped, 1, eng_json_piece(s, &at, escaped), out);
    fputc('"', out);
}
