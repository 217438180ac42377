/* engine/cli/line_editor.c - a line editor for text of any script.
 *
 * The text is a buffer of UTF-8, and the cursor a byte offset in it.  After each change the whole line is
 * drawn again: to its first row, prompt and text, erase the rest of the screen, back to the cursor.  layout() computes
 * rows and columns from the widths of grapheme clusters.  Long rows are wrapped by the terminal itself, so that it can
 * fold them again when the window's width changes; layout() with the new width then gives the row of the cursor.  A
 * text with more rows than the screen shows a part around the cursor. */
#include "engine/cli/line_editor.h"

#include "engine/base/base.h"
#include "engine/base/bytes.h"
#include "engine/cli/text_width.h"

#include <string.h>

#define TAB_STOP     8
#define MOST_CSI     16
#define PASTE_END    "\033[201~"
#define CTRL(letter) ((letter)&0x1F)
#define DELETE       0x7F
#define ESCAPE       0x1B

enum state { IN_TEXT, IN_ESCAPE, IN_SEQUENCE, IN_PASTE };

struct eng_editor {
    struct eng_bytes text, killed, draft, pattern, lead, out, taken; /* lead: drawn before the text */
    size_t cursor, most_bytes;
    const char *prompt;
    int columns, rows;
    int cursor_row; /* row of the cursor on the screen, below the first row drawn */
    bool drawn;     /* the line is on the screen */
    bool changed;   /* a key came after it was drawn */
    enum state state;
    char sequence[MOST_CSI], bytes[4]; /* sequence: of an escape sequence; bytes: of an incomplete character */
    size_t n_sequence, n_byte, n_end;  /* n_end: bytes of PASTE_END met */
    size_t n_newline;                  /* of a paste: line ends since its last text */
    bool carriage;                     /* of a paste: the last byte was \r */
    char **history;                    /* [n_history] oldest first */
    int n_history, most_history, at;   /* at: the entry that is edited; n_history: the draft */
    bool searching;
};

/* ---- text ------------------------------------------------------------------------------------ */

static void terminate(struct eng_editor *e)
{
    char *end = eng_bytes_room(&e->text, 1);
    if (end)
        *end = 0;
}

static void insert(struct eng_editor *e, const char *s, size_t n)
{
    if (n > e->most_bytes - e->text.n || !eng_bytes_room(&e->text, n + 1)) {
        eng_bytes_text(&e->out, "\a");
        return;
    }
    char *at = e->text.data + e->cursor;
    memmove(at + n, at, e->text.n - e->cursor);
    memcpy(at, s, n);
    e->text.n += n;
    e->cursor += n;
    terminate(e);
}

static void erase(struct eng_editor *e, size_t from, size_t to)
{
    memmove(e->text.data + from, e->text.data + to, e->text.n - to);
    e->text.n -= to - from;
    e->cursor = from;
    terminate(e);
}

static void kill_text(struct eng_editor *e, size_t from, size_t to)
{
    if (from == to)
        return;
    e->killed.n = 0;
    eng_bytes_add(&e->killed, e->text.data + from, to - from);
    erase(e, from, to);
}

static void set_text(struct eng_editor *e, const char *s, size_t n)
{
    e->text.n = e->cursor = 0;
    insert(e, s, n);
}

/* ---- positions ------------------------------------------------------------------------------- */

static size_t after(const struct eng_editor *e, size_t at)
{
    int width;
    return at + eng_cluster_next(e->text.data + at, e->text.n - at, &width);
}

static size_t before(const struct eng_editor *e, size_t at)
{
    size_t from = at, last = at;
    while (from > 0 && e->text.data[from - 1] != '\n') /* clusters do not span lines */
        from--;
    if (from == at)
        return at > 0 ? at - 1 : 0;
    for (; from < at; from = after(e, from))
        last = from;
    return last;
}

static size_t line_begin(const struct eng_editor *e)
{
    size_t at = e->cursor;
    while (at > 0 && e->text.data[at - 1] != '\n')
        at--;
    return at;
}

static size_t line_end(const struct eng_editor *e)
{
    size_t at = e->cursor;
    while (at < e->text.n && e->text.data[at] != '\n')
        at++;
    return at;
}

static bool is_word(const struct eng_editor *e, size_t at)
{
    unsigned char c = (unsigned char)e->text.data[at];
    return c >= 0x80 || c == '_' || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

static size_t word_begin(const struct eng_editor *e)
{
    size_t at = e->cursor;
    while (at > 0 && !is_word(e, at - 1))
        at--;
    while (at > 0 && is_word(e, at - 1))
        at--;
    return at;
}

static size_t word_end(const struct eng_editor *e)
{
    size_t at = e->cursor;
    while (at < e->text.n && !is_word(e, at))
        at++;
    while (at < e->text.n && is_word(e, at))
        at++;
    return at;
}

/* The beginning of the word before the cursor, where blanks divide words. */
static size_t blank_word_begin(const struct eng_editor *e)
{
    size_t at = e->cursor;
    while (at > 0 && strchr(" \t\n", e->text.data[at - 1]))
        at--;
    while (at > 0 && !strchr(" \t\n", e->text.data[at - 1]))
        at--;
    return at;
}

/* ---- drawing --------------------------------------------------------------------------------- */

struct place {
    int row, column;
};

/* The columns of the cluster s[n] at `column`: a tab reaches to the next stop, or to the row's end. */
static int columns_of(const struct eng_editor *e, const char *s, int width, int column)
{
    if (*s != '\t')
        return width;
    int to = TAB_STOP - column % TAB_STOP;
    return column + to > e->columns && column < e->columns ? e->columns - column : to;
}

/* Sets e->lead to the prompt, or to the pattern of a search. */
static void make_lead(struct eng_editor *e)
{
    e->lead.n = 0;
    if (e->searching)
        eng_bytes_format(&e->lead, "search '%.*s': ", (int)e->pattern.n, e->pattern.n ? e->pattern.data : "");
    else
        eng_bytes_text(&e->lead, e->prompt);
}

/* Walks over lead and text.  Returns the place behind the text; *cursor: the place of the cursor.  draw: also writes
 * the rows from top to bottom. */
static struct place layout(struct eng_editor *e, struct place *cursor, bool draw, int top, int bottom)
{
    struct place p = { 0, 0 };
    const size_t lead = e->lead.n;
    for (size_t at = 0, n; at < lead + e->text.n; at += n) {
        const char *s = at < lead ? e->lead.data + at : e->text.data + (at - lead);
        int width;
        n = eng_cluster_next(s, at < lead ? lead - at : e->text.n - (at - lead), &width);
        width = columns_of(e, s, width, p.column);
        bool visible = draw && p.row >= top && p.row <= bottom;
        if (p.column + width > e->columns) {
            if (visible && p.column < e->columns)
                eng_bytes_text(&e->out, "\033[K");
            p = (struct place){ p.row + 1, 0 };
            visible = draw && p.row >= top && p.row <= bottom;
        }
        if (at == lead + e->cursor)
            *cursor = p;
        if (visible && *s == '\n' && p.row < bottom)
            eng_bytes_text(&e->out, "\033[K\r\n");
        else if (visible && *s == '\t')
            eng_bytes_format(&e->out, "%*s", width, "");
        else if (visible && *s != '\n')
            eng_bytes_add(&e->out, s, n);
        p = *s == '\n' ? (struct place){ p.row + 1, 0 } : (struct place){ p.row, p.column + width };
    }
    if (p.column >= e->columns) {
        if (draw && p.row + 1 <= bottom) /* the terminal goes to the next row only for another character */
            eng_bytes_text(&e->out, " \r");
        p = (struct place){ p.row + 1, 0 };
    }
    if (e->cursor == e->text.n)
        *cursor = p;
    return p;
}

static void move_up(struct eng_editor *e, int n)
{
    if (n > 0)
        eng_bytes_format(&e->out, "\033[%dA", n);
}

void eng_editor_draw(struct eng_editor *e)
{
    struct place cursor, last;
    make_lead(e);
    last = layout(e, &cursor, false, 0, 0);
    int top = kn_max(0, kn_min(last.row - e->rows + 1, cursor.row - e->rows / 2));
    int bottom = kn_min(last.row, top + e->rows - 1);
    if (e->drawn) {
        move_up(e, e->cursor_row);
        eng_bytes_text(&e->out, "\r");
    }
    (void)layout(e, &cursor, true, top, bottom);
    eng_bytes_text(&e->out, "\033[J"); /* at the end: at the top left, tmux would keep the erased rows as history */
    move_up(e, bottom - cursor.row);
    eng_bytes_text(&e->out, "\r");
    if (cursor.column)
        eng_bytes_format(&e->out, "\033[%dC", cursor.column);
    e->cursor_row = cursor.row - top;
    e->drawn = true;
    e->changed = false;
}

static void set_size(struct eng_editor *e, int columns, int rows)
{
    e->columns = kn_max(columns, 4);
    e->rows = kn_max(rows, 2);
}

void eng_editor_resize(struct eng_editor *e, int columns, int rows)
{
    struct place cursor;
    set_size(e, columns, rows);
    (void)layout(e, &cursor, false, 0, 0);
    e->cursor_row = kn_min(cursor.row, e->rows - 1);
    eng_editor_draw(e);
}

void eng_editor_restart(struct eng_editor *e, int columns, int rows)
{
    set_size(e, columns, rows);
    e->drawn = false;
    eng_editor_draw(e);
}

void eng_editor_finish(struct eng_editor *e)
{
    bool changes = e->changed || e->searching || e->cursor != e->text.n;
    e->cursor = e->text.n;
    e->searching = false;
    if (changes)
        eng_editor_draw(e);
    eng_bytes_text(&e->out, "\r\n");
    e->drawn = false;
}

/* ---- history --------------------------------------------------------------------------------- */

void eng_editor_remember(struct eng_editor *e, const char *text)
{
    if (e->n_history && !strcmp(e->history[e->n_history - 1], text))
        return;
    char *kept = kn_strdup(text);
    if (!kept)
        return;
    if (e->n_history == e->most_history) {
        kn_free(e->history[0]);
        memmove(e->history, e->history + 1, (size_t)(e->n_history - 1) * sizeof *e->history);
        e->n_history--;
    }
    e->history[e->n_history++] = kept;
}

static void show_entry(struct eng_editor *e, int at)
{
    if (at < 0 || at > e->n_history || at == e->at)
        return;
    if (e->at == e->n_history) {
        e->draft.n = 0;
        eng_bytes_add(&e->draft, e->text.data, e->text.n);
    }
    e->at = at;
    if (at == e->n_history)
        set_text(e, e->draft.n ? e->draft.data : "", e->draft.n);
    else
        set_text(e, e->history[at], strlen(e->history[at]));
}

static bool contains(const char *text, const struct eng_bytes *pattern)
{
    return pattern->n && memmem(text, strlen(text), pattern->data, pattern->n);
}

/* Shows the newest entry before `from` that contains the pattern. */
static void search(struct eng_editor *e, int from)
{
    int at = kn_min(from, e->n_history) - 1;
    while (at >= 0 && !contains(e->history[at], &e->pattern))
        at--;
    if (at >= 0)
        show_entry(e, at);
    else if (e->pattern.n)
        eng_bytes_text(&e->out, "\a");
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void control(struct eng_editor *e, unsigned char key)
{
    switch (key) {
    case CTRL('A'):
        e->cursor = line_begin(e);
        break;
    case CTRL('E'):
        e->cursor = line_end(e);
        break;
    case CTRL('B'):
        e->cursor = before(e, e->cursor);
        break;
    case CTRL('F'):
        e->cursor = after(e, e->cursor);
        break;
    case CTRL('H'):
    case DELETE:
        erase(e, before(e, e->cursor), e->cursor);
        break;
    case CTRL('D'):
        erase(e, e->cursor, after(e, e->cursor));
        break;
    case CTRL('K'):
        kill_text(e, e->cursor, line_end(e) > e->cursor ? line_end(e) : after(e, e->cursor));
        break;
    case CTRL('U'):
        kill_text(e, line_begin(e), e->cursor);
        break;
    case CTRL('W'):
        kill_text(e, blank_word_begin(e), e->cursor);
        break;
    case CTRL('Y'):
        insert(e, e->killed.n ? e->killed.data : "", e->killed.n);
        break;
    case CTRL('L'):
        eng_bytes_text(&e->out, "\033[H\033[2J");
        e->drawn = false;
        break;
    case CTRL('P'):
        show_entry(e, e->at - 1);
        break;
    case CTRL('N'):
        show_entry(e, e->at + 1);
        break;
    case CTRL('R'):
        e->searching = true;
        e->pattern.n = 0;
        break;
    default:
        break;
    }
}

/* The keys after Escape: of the keyboard's Alt. */
static void alt(struct eng_editor *e, unsigned char key)
{
    if (key == 'b')
        e->cursor = word_begin(e);
    else if (key == 'f')
        e->cursor = word_end(e);
    else if (key == 'd')
        kill_text(e, e->cursor, word_end(e));
    else if (key == DELETE || key == CTRL('H'))
        kill_text(e, word_begin(e), e->cursor);
}

/* An escape sequence: e->sequence[n_sequence] is all after "\033[" or "\033O". */
static void special(struct eng_editor *e)
{
    static const struct {
        const char *sequence;
        unsigned char key;
        bool alt;
    } keys[] = {
        { "A", CTRL('P'), false },  { "B", CTRL('N'), false },  { "C", CTRL('F'), false },  { "D", CTRL('B'), false },
        { "H", CTRL('A'), false },  { "F", CTRL('E'), false },  { "1~", CTRL('A'), false }, { "7~", CTRL('A'), false },
        { "4~", CTRL('E'), false }, { "8~", CTRL('E'), false }, { "3~", CTRL('D'), false }, { "1;5C", 'f', true },
        { "1;5D", 'b', true },      { "1;3C", 'f', true },      { "1;3D", 'b', true },
    };
    if (!strcmp(e->sequence, "200~")) {
        e->state = IN_PASTE;
        e->n_end = e->n_newline = 0;
        e->carriage = false;
        return;
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(e->sequence, keys[i].sequence))
            (keys[i].alt ? alt : control)(e, keys[i].key);
}

static void sequence_byte(struct eng_editor *e, unsigned char byte)
{
    if (e->n_sequence + 1 < sizeof e->sequence)
        e->sequence[e->n_sequence++] = (char)byte;
    if (byte < 0x40 || byte > 0x7E)
        return;
    e->sequence[e->n_sequence] = 0;
    e->state = IN_TEXT;
    special(e);
}

/* Collects the bytes of a character and adds it to the text, or to the pattern of a search.  Invalid UTF-8 is dropped.
 * */
static void text_byte(struct eng_editor *e, unsigned char byte)
{
    int n_bad;
    bool cut;
    e->bytes[e->n_byte++] = (char)byte;
    int n = eng_utf8_next(e->bytes, e->n_byte, &n_bad, &cut);
    if (n > 0 && e->searching) {
        eng_bytes_add(&e->pattern, e->bytes, (size_t)n);
        search(e, e->n_history);
    } else if (n > 0) {
        insert(e, e->bytes, (size_t)n);
    }
    if (n > 0 || !cut)
        e->n_byte = 0;
}

/* A byte of pasted text.  Its line ends are kept, except those at its end, so that only Enter sends the message.  A
 * terminal may send \r for a line end, as Enter does. */
static void paste_byte(struct eng_editor *e, unsigned char byte)
{
    static const char end[] = PASTE_END;
    e->n_end = byte == (unsigned char)end[e->n_end] ? e->n_end + 1 : byte == (unsigned char)end[0];
    if (!end[e->n_end]) {
        e->state = IN_TEXT;
        return;
    }
    bool newline = byte == '\r' || (byte == '\n' && !e->carriage);
    e->carriage = byte == '\r';
    if (e->n_end > 0)
        return;
    if (newline) {
        e->n_newline++;
    } else if (byte >= ' ' || byte == '\t') {
        for (; e->n_newline; e->n_newline--)
            insert(e, "\n", 1);
        text_byte(e, byte);
    }
}

/* A key during a search.  False: the search has ended, and the key is still to be done. */
static bool search_key(struct eng_editor *e, unsigned char byte)
{
    if (byte == CTRL('R')) {
        search(e, e->at);
    } else if (byte == DELETE || byte == CTRL('H')) {
        e->pattern.n -= e->pattern.n > 0;
        while (e->pattern.n && ((unsigned char)e->pattern.data[e->pattern.n - 1] & 0xC0) == 0x80)
            e->pattern.n--;
        search(e, e->n_history);
    } else if (byte >= ' ') {
        text_byte(e, byte);
    } else {
        e->searching = false;
        e->pattern.n = 0;
        if (byte == CTRL('G'))
            show_entry(e, e->n_history);
        return byte == CTRL('G');
    }
    return true;
}

enum eng_edit eng_editor_key(struct eng_editor *e, unsigned char byte)
{
    e->changed = true;
    if (e->state == IN_PASTE) {
        paste_byte(e, byte);
    } else if (e->state == IN_SEQUENCE) {
        sequence_byte(e, byte);
    } else if (e->state == IN_ESCAPE) {
        bool sequence = byte == '[' || byte == 'O';
        e->state = sequence ? IN_SEQUENCE : IN_TEXT;
        e->n_sequence = 0;
        if (!sequence)
            alt(e, byte);
    } else if (e->searching && search_key(e, byte)) {
        return ENG_EDIT_MORE;
    } else if (byte == '\r' || byte == '\n') {
        return ENG_EDIT_LINE;
    } else if (byte == CTRL('D') && e->text.n == 0) {
        return ENG_EDIT_END;
    } else if (byte == ESCAPE) {
        e->state = IN_ESCAPE;
    } else if (byte < ' ' || byte == DELETE) {
        control(e, byte);
    } else {
        text_byte(e, byte);
    }
    return ENG_EDIT_MORE;
}

/* ---- the editor ------------------------------------------------------------------------------ */

void eng_editor_begin(struct eng_editor *e, const char *prompt, int columns, int rows)
{
    e->prompt = prompt;
    set_size(e, columns, rows);
    e->text.n = e->cursor = e->n_byte = e->draft.n = e->pattern.n = 0;
    e->state = IN_TEXT;
    e->searching = e->drawn = false;
    e->at = e->n_history;
    e->cursor_row = 0;
    terminate(e);
}

const char *eng_editor_text(const struct eng_editor *e, size_t *n)
{
    *n = e->text.n;
    return e->text.data ? e->text.data : "";
}

const char *eng_editor_take(struct eng_editor *e, size_t *n)
{
    struct eng_bytes given = e->taken;
    e->taken = e->out;
    e->out = given;
    e->out.n = 0;
    *n = e->taken.n;
    return e->taken.data;
}

int eng_editor_open(struct eng_editor **out, size_t most_bytes, int most_history)
{
    struct eng_editor *e = kn_calloc(1, sizeof *e);
    if (e)
        e->history = kn_calloc((size_t)most_history, sizeof *e->history);
    if (!e || !e->history) {
        eng_editor_close(e);
        return kn_fail(KN_ENOMEM, "no memory for the terminal");
    }
    e->most_bytes = most_bytes;
    e->most_history = most_history;
    e->prompt = "";
    *out = e;
    return 0;
}

void eng_editor_close(struct eng_editor *e)
{
    if (!e)
        return;
    struct eng_bytes *const owned[] = { &e->text, &e->killed, &e->draft, &e->pattern, &e->lead, &e->out, &e->taken };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        eng_bytes_free(owned[i]);
    for (int i = 0; i < e->n_history; i++)
        kn_free(e->history[i]);
    kn_free(e->history);
    kn_free(e);
}
