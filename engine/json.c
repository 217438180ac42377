/* engine/json.c - text that may hold anything, as JSON. */
#include "engine/cli.h"
#include "engine/text.h"

void eng_json_string(FILE *out, struct moe_string s)
{
    fputc('"', out);
    for (size_t i = 0; i < s.n;) {
        int bad = 1;
        bool cut;
        size_t length = (size_t)eng_utf8_next(s.data + i, s.n - i, &bad, &cut);
        uint8_t c = (uint8_t)s.data[i];
        if (!length)
            fputs("\\ufffd", out);
        else if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\u%04x", c);
        else if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else
            fwrite(s.data + i, 1, length, out);
        i += length ? length : (size_t)bad;
    }
    fputc('"', out);
}
