/* moe/files/strings.c - strings of model files: comparison, the characters of byte-level BPE, names for messages.
 *
 * moe_string_show() makes a name from a file safe to print: bytes that are not printable UTF-8 become \xNN, and a name
 * that is too long ends in "...". */
#include "moe/files/files.h"

#include <stdio.h>
#include <string.h>

bool moe_string_is(struct moe_string s, const char *text) { return s.n == strlen(text) && !memcmp(s.data, text, s.n); }

int moe_byte_letter(int byte, char letter[3])
{
    int code = byte; /* not printable: bytes 0-32, 127-160 and the soft hyphen, 173 */
    if (byte < 33)
        code = 256 + byte;
    else if (byte > 126 && byte < 161)
        code = 256 + 33 + (byte - 127);
    else if (byte == 173)
        code = 256 + 33 + 34;
    size_t n = 0;
    if (code < 0x80) {
        letter[n++] = (char)code;
    } else {
        letter[n++] = (char)(0xc0 | code >> 6);
        letter[n++] = (char)(0x80 | (code & 0x3f));
    }
    letter[n] = '\0';
    return code;
}

/* Length in bytes of the UTF-8 character at s; 0 if it is invalid, as overlong forms and surrogates are. */
static size_t utf8_length(const uint8_t *s, size_t n)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t length = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (!length || length > n)
        return 0;
    uint32_t c = length == 1 ? s[0] : s[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (s[i] >> 6 != 2)
            return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    return c < least[length] || c > 0x10ffff || c >> 11 == 0x1b ? 0 : length;
}

void moe_string_show(struct moe_string s, char *out, size_t bytes)
{
    kn_assert(bytes > 8);
    size_t at = 0, dots = 0; /* dots: last position at which "..." still fits */
    for (size_t i = 0, length; i < s.n; i += length) {
        const uint8_t *c = (const uint8_t *)s.data + i;
        length = utf8_length(c, s.n - i);
        bool c1 = length == 2 && c[0] == 0xc2 && c[1] < 0xa0;
        bool plain = length && !c1 && c[0] >= 0x20 && c[0] != 0x7f && c[0] != '\\';
        length = plain ? length : 1;
        size_t take = plain ? length : 4;
        if (at + take >= bytes) {
            memcpy(out + dots, "...", 3);
            at = dots + 3;
            break;
        }
        if (plain)
            memcpy(out + at, c, length);
        else
            snprintf(out + at, 5, "\\x%02x", c[0]);
        at += take;
        dots = at + 3 < bytes ? at : dots;
    }
    out[at] = '\0';
}
