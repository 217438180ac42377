/* engine/cli/json_out.c - writes arbitrary bytes as JSON strings. */
#include "engine/cli/cli.h"
#include "engine/base/bytes.h"

#include <string.h>

void eng_json_string(FILE *out, struct moe_string s)
{
    char escaped[ENG_JSON_PIECE];
    fputc('"', out);
    for (size_t at = 0; at < s.n;)
        fwrite(escaped, 1, eng_json_piece(s, &at, escaped), out);
    fputc('"', out);
}
