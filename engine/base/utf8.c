/* engine/base/utf8.c - the length of one UTF-8 character, by the table of the Unicode standard. */
#include "engine/base/base.h"

/* The range of a character's second byte, by its first; the third and fourth bytes are always 0x80 to 0xBF. */
static void second_byte(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;  /* no overlong form */
    *high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF; /* no surrogate, at most U+10FFFF */
}

int eng_utf8_next(const char *p, size_t n, int *n_bad, bool *cut)
{
    const uint8_t *s = (const uint8_t *)p;
    uint8_t low, high;
    int len;

    *n_bad = 1;
    *cut = !n;
    if (!n)
        return 0;
    if (s[0] < 0x80)
        return 1;
    if (s[0] < 0xC2 || s[0] > 0xF4)
        return 0;
    len = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    second_byte(s[0], &low, &high);
    for (int i = 1; i < len; i++, low = 0x80, high = 0xBF) {
        *n_bad = i;
        if ((size_t)i == n) {
            *cut = true;
            return 0;
        }
        if (s[i] < low || s[i] > high)
            return 0;
    }
    return len;
}
