/* engine/cli/text_width.c - grapheme clusters and their width, by the tables of utf8proc; texts in lines of a width.
 *
 * A cluster is as wide as its widest code point: a mark that combines has none of its own, and an emoji of several code
 * points is drawn as one.  Two exceptions are two columns wide: a pair of regional indicators (a flag), and a character
 * that U+FE0F turns into an emoji. */
#include "engine/cli/text_width.h"

#include "kernels/core.h"

#include <string.h>
#include <sys/ioctl.h>
#include <utf8proc.h>

#define AS_EMOJI 0xFE0F

static bool is_regional(utf8proc_int32_t c) { return c >= 0x1F1E6 && c <= 0x1F1FF; }

size_t eng_cluster_next(const char *p, size_t n, int *width)
{
    utf8proc_int32_t c, last = 0, state = 0;
    size_t at = 0;
    *width = 0;
    while (at < n) {
        utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)p + at, (utf8proc_ssize_t)(n - at), &c);
        if (len <= 0 && at == 0) {
            *width = 1;
            return 1;
        }
        if (len <= 0 || (at > 0 && utf8proc_grapheme_break_stateful(last, c, &state)))
            break;
        bool two = c == AS_EMOJI || (at > 0 && is_regional(c));
        *width = kn_max(*width, two ? 2 : utf8proc_charwidth(c));
        last = c;
        at += (size_t)len;
    }
    return at;
}

int eng_terminal_columns(int fd)
{
    struct winsize w;
    return ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

void eng_print_wrapped(FILE *out, int at, int indent, const char *text)
{
    int columns = eng_terminal_columns(fileno(out));
    bool begins = true;
    for (const char *word = text + strspn(text, " "); *word; word += strspn(word, " ")) {
        int n = (int)strcspn(word, " ");
        if (!begins && at + 1 + n > columns) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
            begins = true;
        }
        fprintf(out, "%s%.*s", begins ? "" : " ", n, word);
        at += n + !begins;
        begins = false;
        word += n;
    }
    fputc('\n', out);
}
