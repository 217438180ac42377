/* engine/text/byte_letters.c - how vocabularies spell bytes and spaces, and back.
 *
 * In: token texts as a file has them.  Out: the bytes they stand for.  Byte-level BPE writes every
 * byte as a letter: printable Latin-1 as itself, the other 68 as what follows U+00FF in ascending
 * order (so a space is U+0120).  SentencePiece writes a space as U+2581 and a byte that has no
 * piece as <0x41>. */
#include <string.h>

#include "engine/base/base.h"
#include "engine/text/internal.h"

void eng_letters_init(struct eng_letters *l)
{
    int next = 256;

    for (int i = 0; i < ENG_N_LETTER; i++)
        l->byte_of[i] = -1;
    for (int b = 0; b < 256; b++) {
        const bool printable = (b > 32 && b < 127) || (b > 160 && b != 173);
        const int letter = printable ? b : next++;
        char *s = l->of_byte[b];

        l->byte_of[letter] = (int16_t)b;
        if (letter < 128) {
            s[0] = (char)letter;
            s[1] = 0;
        } else {
            s[0] = (char)(0xC0 | letter >> 6);
            s[1] = (char)(0x80 | (letter & 63));
            s[2] = 0;
        }
    }
}

size_t eng_letters_to_bytes(const struct eng_letters *l, struct moe_string s, char *out)
{
    size_t n = 0;
    bool cut;
    int bad;

    for (size_t i = 0, len; i < s.n; i += len) {
        const uint8_t *p = (const uint8_t *)s.data + i;
        unsigned letter = ENG_N_LETTER;

        len = (size_t)eng_utf8_next(s.data + i, s.n - i, &bad, &cut);
        if (len == 1)
            letter = p[0];
        if (len == 2)
            letter = (p[0] & 31u) << 6 | (p[1] & 63u);
        if (letter < ENG_N_LETTER && l->byte_of[letter] >= 0) {
            out[n++] = (char)l->byte_of[letter];
        } else {
            memcpy(out + n, p, len);
            n += len;
        }
    }
    return n;
}

size_t eng_spaces_from_marks(struct moe_string s, char *out)
{
    size_t n = 0;

    for (size_t i = 0; i < s.n; n++) {
        const bool mark = s.n - i >= 3 && !memcmp(s.data + i, "\xE2\x96\x81", 3);

        out[n] = mark ? ' ' : s.data[i];
        i += mark ? 3 : 1;
    }
    return n;
}

int eng_byte_from_name(struct moe_string s)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *high, *low;

    if (s.n != 6 || memcmp(s.data, "<0x", 3) || s.data[5] != '>')
        return -1;
    high = memchr(digits, s.data[3], 16);
    low = memchr(digits, s.data[4], 16);
    return high && low ? (int)((high - digits) << 4 | (low - digits)) : -1;
}
