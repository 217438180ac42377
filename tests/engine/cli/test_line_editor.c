/* The line editor (engine/cli/line_editor.c): the text after keys, and the screen, which an emulator of the few escape
 * sequences shows, at widths at which wide characters do not fit into the last column.
 *
 * One thread: not under MODE=tsan. */
#include "engine/cli/line_editor.h"
#include "engine/cli/text_width.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a screen ---------------------------------------------------------------------------------- */

#define ROWS 12
#define WIDE 64

static struct {
    char cell[ROWS][WIDE][40]; /* "": the second column of a wide character */
    int row, column, columns;
    bool folded[ROWS]; /* the row ends because it was full */
} screen;

static void clear_from(int row, int column)
{
    for (int c = column; c < WIDE; c++)
        strcpy(screen.cell[row][c], " ");
    screen.folded[row] = false;
}

static void put_cluster(const char *s, size_t n, int width)
{
    if (screen.column + width > screen.columns) {
        screen.folded[screen.row] = true;
        screen.row++;
        screen.column = 0;
    }
    assert_true(screen.row < ROWS && width > 0 && n < 40);
    snprintf(screen.cell[screen.row][screen.column], 40, "%.*s", (int)n, s);
    for (int i = 1; i < width; i++)
        screen.cell[screen.row][screen.column + i][0] = 0;
    screen.column += width;
}

static size_t put_escape(const char *s)
{
    char *end;
    long n = strtol(s + 2, &end, 10);
    assert_int_equal(s[1], '[');
    n = n ? n : 1;
    if (*end == 'A')
        screen.row -= (int)n;
    else if (*end == 'C')
        screen.column += (int)n;
    else if (*end == 'K')
        clear_from(screen.row, screen.column);
    else if (*end == 'J')
        for (int r = screen.row; r < ROWS; r++)
            clear_from(r, r == screen.row ? screen.column : 0);
    else if (*end == 'H')
        screen.row = screen.column = 0;
    else
        fail_msg("an unknown sequence: %s", s + 1);
    assert_true(screen.row >= 0 && screen.column <= screen.columns);
    return (size_t)(end + 1 - s);
}

static void show(struct eng_editor *e)
{
    size_t n, len;
    const char *s = eng_editor_take(e, &n);
    char *text = calloc(1, n + 1);
    memcpy(text, s, n);
    for (size_t i = 0; i < n; i += len) {
        int width;
        len = 1;
        if (text[i] == '\r')
            screen.column = 0;
        else if (text[i] == '\n')
            screen.row++;
        else if (text[i] == '\033')
            len = put_escape(text + i);
        else if (text[i] != '\a') {
            len = eng_cluster_next(text + i, n - i, &width);
            put_cluster(text + i, len, width);
        }
        assert_true(screen.row < ROWS);
    }
    free(text);
}

/* The screen as the terminal shows it: rows without trailing blanks, | between them, ^ before the cursor. */
static void screen_is(const char *expected)
{
    char text[4096] = "";
    int last = ROWS - 1;
    bool blank = true;
    for (; last > screen.row && blank; last -= blank)
        for (int c = 0; c < screen.columns; c++)
            blank = blank && !strcmp(screen.cell[last][c], " ");
    for (int r = 0; r <= last; r++) {
        int end = screen.columns;
        while (end > 0 && !strcmp(screen.cell[r][end - 1], " ") && !(r == screen.row && end <= screen.column))
            end--;
        for (int c = 0; c <= end; c++) {
            if (r == screen.row && c == screen.column)
                strcat(text, "^");
            if (c < end)
                strcat(text, screen.cell[r][c]);
        }
        strcat(text, r < last ? "|" : "");
    }
    assert_string_equal(text, expected);
}

static void new_screen(int columns)
{
    screen.row = screen.column = 0;
    screen.columns = columns;
    for (int r = 0; r < ROWS; r++)
        clear_from(r, 0);
}

/* Folds the rows to another width, as terminals do: rows that were full are joined with the next before. */
static void fold_screen(int columns)
{
    static char cluster[ROWS * WIDE][40];
    static int width[ROWS * WIDE];
    int n = 0, cursor = -1, last = 0;
    for (int r = 0; r < ROWS; r++) {
        int end = screen.columns;
        while (end > 0 && !strcmp(screen.cell[r][end - 1], " "))
            end--;
        last = end || r <= screen.row ? r : last;
    }
    for (int r = 0; r <= last; r++) {
        int end = screen.columns;
        while (end > 0 && !strcmp(screen.cell[r][end - 1], " "))
            end--;
        for (int c = 0; c < end || (r == screen.row && c <= screen.column); c++) {
            if (r == screen.row && c == screen.column)
                cursor = n;
            if (c >= end || !screen.cell[r][c][0])
                continue;
            width[n] = c + 1 < screen.columns && !screen.cell[r][c + 1][0] ? 2 : 1;
            strcpy(cluster[n++], screen.cell[r][c]);
        }
        if (!screen.folded[r])
            strcpy(cluster[n++], "\n");
    }
    new_screen(columns);
    int row = 0, column = 0;
    for (int i = 0; i < n; i++) {
        bool end = !strcmp(cluster[i], "\n");
        if (!end && screen.column + width[i] > columns) {
            screen.folded[screen.row++] = true;
            screen.column = 0;
        }
        if (i == cursor)
            row = screen.row, column = screen.column;
        if (end && i + 1 < n)
            screen.row++, screen.column = 0;
        else if (!end)
            put_cluster(cluster[i], strlen(cluster[i]), width[i]);
    }
    screen.row = row;
    screen.column = column;
}

/* ---- keys -------------------------------------------------------------------------------------- */

static struct eng_editor *editor;

static int open_editor(void **state)
{
    (void)state;
    return eng_editor_open(&editor, 1 << 16, 4);
}

static int close_editor(void **state)
{
    (void)state;
    eng_editor_close(editor);
    return 0;
}

static void begin(int columns)
{
    new_screen(columns);
    eng_editor_begin(editor, "> ", columns, ROWS);
    eng_editor_draw(editor);
    show(editor);
}

/* Types keys and draws after each byte. */
static enum eng_edit type(const char *keys)
{
    enum eng_edit got = ENG_EDIT_MORE;
    for (; *keys && got == ENG_EDIT_MORE; keys++) {
        got = eng_editor_key(editor, (unsigned char)*keys);
        eng_editor_draw(editor);
        show(editor);
    }
    assert_int_equal(*keys, 0);
    return got;
}

static void text_is(const char *expected)
{
    size_t n;
    assert_string_equal(eng_editor_text(editor, &n), expected);
    assert_int_equal(n, strlen(expected));
}

/* Types keys into an empty line. */
static void gives(const char *keys, const char *expected)
{
    begin(40);
    assert_int_equal(type(keys), ENG_EDIT_MORE);
    text_is(expected);
}

static void keys_edit_the_text(void **state)
{
    (void)state;
    gives("hello", "hello");
    gives("ab\033[Dc\033[D\033[Dd\033[Ce\033OCf", "daecfb");
    gives("ab\001c\005d\002e\006f", "cabedf");
    gives("abc\002\177\001\004", "c");
    gives("abc\001\033[3~\033[F\010\033[Hx", "xb");
    gives("one two  three\027\027x", "one x");
    gives("one two\001\013\031\031", "one twoone two");
    gives("one two\002\002\025x\005\031", "xwoone t");
    gives("one two three\033b\033bX\033fY\033\177", "one  three");
    gives("one two three\033[1;5D\033[1;5D\033d!\033[1;5Cz", "one ! threez");
    gives("a\033[99;99Xb\033Zc", "abc");
    gives("\343\201", "");                     /* an incomplete character */
    gives("a\377\200\303\251b", "a\303\251b"); /* invalid UTF-8 is dropped */
    begin(40);
    assert_int_equal(type("line\r"), ENG_EDIT_LINE);
    begin(40);
    assert_int_equal(type("\004"), ENG_EDIT_END);
}

/* The cursor moves over whole characters of a reader. */
static void clusters_are_whole(void **state)
{
    (void)state;
    gives("ae\u0301b\033[D\033[D|", "a|e\u0301b");
    gives("ae\u0301b\033[D\177", "ab");
    gives("\U0001F468\u200D\U0001F469\u200D\U0001F467x\033[D\177", "x");
    gives("\U0001F1E9\U0001F1EA\U0001F1EB\U0001F1F7\177", "\U0001F1E9\U0001F1EA");
    gives("\u65e5\u672c\001\004", "\u672c");
}

static void wide_lines_are_drawn(void **state)
{
    (void)state;
    begin(7); /* two columns of prompt and two wide characters: one column is left over */
    type("\u65e5\u672c\u8a9e\u6587");
    screen_is("> \u65e5\u672c|\u8a9e\u6587^");
    type("\u5b57");
    screen_is("> \u65e5\u672c|\u8a9e\u6587\u5b57^");
    type("\033[D\033[D\033[D");
    screen_is("> \u65e5\u672c|^\u8a9e\u6587\u5b57");
    type("x");
    screen_is("> \u65e5\u672cx|^\u8a9e\u6587\u5b57");
    type("\177\177");
    screen_is("> \u65e5^\u8a9e|\u6587\u5b57");
    type("\025");
    screen_is("> ^\u8a9e\u6587|\u5b57");
    type("\013");
    screen_is("> ^");
    type("abcde"); /* exactly a row */
    screen_is("> abcde|^");
    type("f");
    screen_is("> abcde|f^");
    type("\177\177");
    screen_is("> abcd^");
}

static void a_screen_is_redrawn_at_another_width(void **state)
{
    (void)state;
    begin(20);
    type("\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 and text");
    screen_is("> \u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 a|nd text^");
    static const int widths[] = { 9, 31, 5, 20, 12, 40 };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        fold_screen(widths[i]);
        eng_editor_resize(editor, widths[i], ROWS);
        show(editor);
    }
    screen_is("> \u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 and text^");
    type("\001");
    fold_screen(10);
    eng_editor_resize(editor, 10, ROWS);
    show(editor);
    screen_is("> ^\u65e5\u672c\u8a9e\u306e|\u30c6\u30ad\u30b9\u30c8 a|nd text");
    type("\033[200~1\r2\t3\033[201~");
    screen_is("> 1|2       3|^\u65e5\u672c\u8a9e\u306e\u30c6|\u30ad\u30b9\u30c8 and|"
              " text");
}

/* A text of more rows than the screen: the rows around the cursor. */
static void long_texts_show_a_part(void **state)
{
    (void)state;
    char rows[64] = "\033[200~";
    for (int i = 0; i < 16; i++)
        strcat(rows, (char[]){ (char)('a' + i), '\r', 0 });
    begin(10);
    type(rows);
    type("z\033[201~");
    screen_is("f|g|h|i|j|k|l|m|n|o|p|z^");
    for (int i = 0; i < 32; i++)
        type("\033[D");
    screen_is("> a^|b|c|d|e|f|g|h|i|j|k|l");
}

static void pastes(void **state)
{
    (void)state;
    gives("x\033[200~one\r\rtwo\001\033[A\r\n\r\n\033[201~y", "xone\n\ntwoAy");
    gives("\033[200~\033[20\033[201~plain", "plain");
    gives("\033[200~a\nb\r\nc\033[201~", "a\nb\nc");
    gives("\033[200~a\rb\033[201~\001X\033[D\177", "aXb");
}

static void history(void **state)
{
    (void)state;
    static const char *const lines[] = { "zero", "one", "two", "two", "three", "four" };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        eng_editor_remember(editor, lines[i]);
    gives("draft\033[A", "four");
    gives("draft\033[A\033[B", "draft");
    gives("\020\020\020\020\020\020", "one"); /* four entries, "two" once */
    gives("draft\033[Ax\033[A\033[B\033[B", "draft");
    gives("\022t\005", "three");
    gives("\022t\022\005!", "two!");
    gives("keep\022nothing\007", "keep");
    begin(40);
    type("\022tw");
    screen_is("search 'tw': two^");
    assert_int_equal(type("\r"), ENG_EDIT_LINE);
    text_is("two");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(keys_edit_the_text, open_editor, close_editor),
        cmocka_unit_test_setup_teardown(clusters_are_whole, open_editor, close_editor),
        cmocka_unit_test_setup_teardown(wide_lines_are_drawn, open_editor, close_editor),
        cmocka_unit_test_setup_teardown(a_screen_is_redrawn_at_another_width, open_editor, close_editor),
        cmocka_unit_test_setup_teardown(long_texts_show_a_part, open_editor, close_editor),
        cmocka_unit_test_setup_teardown(pastes, open_editor, close_editor),
        cmocka_unit_test_setup_teardown(history, open_editor, close_editor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
