/* engine/serve/multipart.c - reads multipart/form-data as a sequence of states.
 *
 * A part's content ends at CR LF - - BOUNDARY.  A boundary has no CR, so bytes that begin like the delimiter and go on
 * differently are content up to the byte that differs, which may only be the first byte of the delimiter. */
#include "engine/serve/multipart.h"

#include <string.h>
#include <strings.h>

enum { FIRST, DATA, AFTER_DELIMITER, AFTER_CR, AFTER_DASH, HEADERS, END, END_CR, END_LF };

const char *eng_multipart_fault_text(enum eng_multipart_fault f)
{
    static const char *const texts[] = { "",
#define ENG_TEXT(name, text) text,
                                         ENG_MULTIPART_FAULTS(ENG_TEXT)
#undef ENG_TEXT
    };
    return texts[f];
}

/* ---- header values: VALUE *( ; NAME=VALUE ) ---------------------------------------------------- */

static bool is_token(char c) { return c > ' ' && c < 0x7f && !strchr("()<>@,;:\\\"/[]?={}", c); }

static const char *skip_spaces(const char *p) { return p + strspn(p, " \t"); }

/* Reads a token, or a string in quotes in which \ stands before " and \, to out; too long: *is_long.  Returns the position
 * behind it, or NULL. */
static const char *read_value(const char *p, char *out, size_t room, bool *is_long)
{
    size_t n = 0;
    bool quoted = *p == '"';
    for (p += quoted; *p && (quoted ? *p != '"' : is_token(*p)); p++) {
        p += quoted && *p == '\\' && (p[1] == '"' || p[1] == '\\');
        if (n + 1 == room) {
            *is_long = true;
            return NULL;
        }
        out[n++] = *p;
    }
    out[n] = 0;
    return quoted ? (*p == '"' ? p + 1 : NULL) : n ? p : NULL;
}

/* Reads the next parameter behind *p: 1; 0: there is none; -1: it is not valid. */
static int next_parameter(const char **p, char *name, char *value, size_t room, bool *is_long)
{
    const char *at = skip_spaces(*p);
    *is_long = false;
    if (!*at)
        return 0;
    if (*at != ';')
        return -1;
    at = read_value(skip_spaces(at + 1), name, room, is_long);
    if (!at || *at != '=' || !(at = read_value(at + 1, value, room, is_long)))
        return -1;
    *p = at;
    return 1;
}

static bool is_boundary(const char *p)
{
    static const char good[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'()+_,-./:=? ";
    size_t n = strlen(p);
    return n > 0 && n <= 70 && strspn(p, good) == n && p[n - 1] != ' ';
}

enum eng_multipart_fault eng_multipart_open(struct eng_multipart *m, const char *type)
{
    static const char form[] = "multipart/form-data";
    char name[ENG_MULTIPART_NAME_BYTES], value[ENG_MULTIPART_NAME_BYTES], boundary[71] = "";
    bool is_long;
    int got, n_boundary = 0;
    memset(m, 0, sizeof *m);
    if (!type || strncasecmp(type, form, sizeof form - 1) != 0)
        return ENG_MULTIPART_TYPE;
    const char *p = type + sizeof form - 1;
    while ((got = next_parameter(&p, name, value, sizeof name, &is_long)) == 1)
        if (!strcasecmp(name, "boundary")) {
            if (n_boundary++ || !is_boundary(value))
                return ENG_MULTIPART_TYPE;
            strcpy(boundary, value);
        }
    if (got < 0 || !n_boundary)
        return ENG_MULTIPART_TYPE;
    memcpy(m->delimiter, "\r\n--", 4);
    strcpy(m->delimiter + 4, boundary);
    m->n_delimiter = strlen(m->delimiter);
    m->state = FIRST;
    m->n_matched = 2; /* the first delimiter has no line before it */
    return ENG_MULTIPART_OK;
}

/* ---- header lines of a part -------------------------------------------------------------------- */

static enum eng_multipart_fault read_disposition(struct eng_multipart *m, const char *p)
{
    static const char form[] = "form-data";
    char name[ENG_MULTIPART_NAME_BYTES], value[ENG_MULTIPART_NAME_BYTES];
    bool is_long;
    int got, n_name = 0;
    if (strncasecmp(p, form, sizeof form - 1) != 0)
        return ENG_MULTIPART_DISPOSITION;
    p += sizeof form - 1;
    while ((got = next_parameter(&p, name, value, sizeof name, &is_long)) == 1) {
        if (!strcasecmp(name, "name") && !n_name++) {
            strcpy(m->name, value);
        } else if (!strcasecmp(name, "filename") && !m->is_file) {
            strcpy(m->file_name, value);
            m->is_file = true;
        } else if (!strcasecmp(name, "name") || !strcasecmp(name, "filename")) {
            return ENG_MULTIPART_DISPOSITION; /* twice */
        }
    }
    return is_long ? ENG_MULTIPART_NAME_LONG : got < 0 || !m->name[0] ? ENG_MULTIPART_DISPOSITION : ENG_MULTIPART_OK;
}

/* NAME: VALUE; [n] without CR LF, and with a NUL. */
static enum eng_multipart_fault read_line(struct eng_multipart *m, const char *line, size_t n, int *n_disposition)
{
    size_t n_name = 0;
    while (is_token(line[n_name]))
        n_name++;
    if (!n_name || line[n_name] != ':' || strlen(line) != n)
        return ENG_MULTIPART_HEAD;
    const char *value = skip_spaces(line + n_name + 1);
    if (n_name == 19 && !strncasecmp(line, "Content-Disposition", 19))
        return (*n_disposition)++ ? ENG_MULTIPART_DISPOSITION : read_disposition(m, value);
    if (n_name == 25 && !strncasecmp(line, "Content-Transfer-Encoding", 25))
        return !strcasecmp(value, "binary") || !strcasecmp(value, "8bit") || !strcasecmp(value, "7bit")
                   ? ENG_MULTIPART_OK
                   : ENG_MULTIPART_CODING;
    return ENG_MULTIPART_OK;
}

/* m->head holds the header lines, with the empty line that ends them. */
static enum eng_multipart_fault read_head(struct eng_multipart *m)
{
    int n_disposition = 0;
    m->name[0] = m->file_name[0] = 0;
    m->is_file = false;
    for (char *line = m->head, *end = m->head + m->n_head - 2; line < end;) {
        char *stop = memmem(line, (size_t)(end + 2 - line), "\r\n", 2);
        *stop = 0;
        if (memchr(line, '\r', (size_t)(stop - line)) || memchr(line, '\n', (size_t)(stop - line)))
            return ENG_MULTIPART_HEAD;
        enum eng_multipart_fault fault = read_line(m, line, (size_t)(stop - line), &n_disposition);
        if (fault)
            return fault;
        line = stop + 2;
    }
    return n_disposition ? ENG_MULTIPART_OK : ENG_MULTIPART_DISPOSITION;
}

/* ---- the states -------------------------------------------------------------------------------- */

/* Takes a byte of a part's header lines.  True: they are complete. */
static bool take_head(struct eng_multipart *m, char c, enum eng_multipart_fault *fault)
{
    if (m->n_head == sizeof m->head) {
        *fault = ENG_MULTIPART_HEAD_LONG;
        return false;
    }
    m->head[m->n_head++] = c;
    bool ends = m->n_head == 2 ? !memcmp(m->head, "\r\n", 2)
                               : m->n_head >= 4 && !memcmp(m->head + m->n_head - 4, "\r\n\r\n", 4);
    if (ends && !(*fault = read_head(m)))
        return true;
    return false;
}

/* Takes content up to the delimiter, or to the end of p[n].  Bytes of the delimiter's beginning that turn out to be content
 * are returned from m->delimiter. */
static size_t take_data(struct eng_multipart *m, const char *p, size_t n, const char **data, size_t *n_data)
{
    if (m->n_matched == 0) {
        const char *cr = memchr(p, '\r', n);
        *data = p;
        *n_data = cr ? (size_t)(cr - p) : n;
        if (*n_data)
            return *n_data;
    }
    size_t i = 0;
    while (i < n && m->n_matched < m->n_delimiter && p[i] == m->delimiter[m->n_matched]) {
        m->n_matched++;
        i++;
    }
    if (m->n_matched == m->n_delimiter) {
        m->state = AFTER_DELIMITER;
        m->n_matched = 0;
    } else if (i < n) {
        *data = m->delimiter;
        *n_data = m->n_matched;
        m->n_matched = 0;
    }
    return i;
}

/* Takes a byte outside of content and header lines. */
static enum eng_multipart_fault take_byte(struct eng_multipart *m, char c)
{
    switch (m->state) {
    case FIRST:
        if (c != m->delimiter[m->n_matched++])
            return ENG_MULTIPART_DELIMITER;
        if (m->n_matched == m->n_delimiter) {
            m->state = AFTER_DELIMITER;
            m->n_matched = 0;
        }
        return ENG_MULTIPART_OK;
    case AFTER_DELIMITER:
        m->state = c == '\r' ? AFTER_CR : AFTER_DASH;
        return c == '\r' || c == '-' ? ENG_MULTIPART_OK : ENG_MULTIPART_DELIMITER;
    case AFTER_CR:
        m->state = HEADERS;
        m->n_head = 0;
        return c != '\n'                           ? ENG_MULTIPART_DELIMITER
               : ++m->n_part > ENG_MULTIPART_PARTS ? ENG_MULTIPART_PARTS_MANY
                                                   : ENG_MULTIPART_OK;
    case AFTER_DASH:
        m->state = END;
        return c == '-' ? ENG_MULTIPART_OK : ENG_MULTIPART_DELIMITER;
    case END:
        m->state = END_CR;
        return c == '\r' ? ENG_MULTIPART_OK : ENG_MULTIPART_AFTER;
    case END_CR:
        m->state = END_LF;
        return c == '\n' ? ENG_MULTIPART_OK : ENG_MULTIPART_AFTER;
    default:
        return ENG_MULTIPART_AFTER;
    }
}

size_t eng_multipart_take(struct eng_multipart *m, const char *p, size_t n, enum eng_multipart_event *event,
                          const char **data, size_t *n_data, enum eng_multipart_fault *fault)
{
    size_t i = 0;
    *event = ENG_MULTIPART_NONE;
    *fault = ENG_MULTIPART_OK;
    *n_data = 0;
    while (i < n && !*fault && *event == ENG_MULTIPART_NONE) {
        if (m->state == DATA) {
            i += take_data(m, p + i, n - i, data, n_data);
            *event = *n_data ? ENG_MULTIPART_DATA : ENG_MULTIPART_NONE;
        } else if (m->state == HEADERS) {
            if (take_head(m, p[i++], fault)) {
                m->state = DATA;
                m->n_matched = 0;
                *event = ENG_MULTIPART_PART;
            }
        } else {
            *fault = take_byte(m, p[i++]);
            if (!*fault && m->state == END)
                *event = ENG_MULTIPART_END;
        }
    }
    return i;
}
