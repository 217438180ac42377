/* engine/cli/terminal.c - the input side of a chat: joins lines from a terminal or a pipe to messages.
 *
 * Out: messages, and commands as an enum.  On a terminal libedit edits the line and keeps the history; it gets
 * characters through read_char() here, because only then does Ctrl-C end a line at once.
 *
 * The terminal is in libedit's mode only inside eng_terminal_read(); libedit restores its mode at the end of each
 * line, and before a signal that ends or stops the program.  So the terminal has its usual mode while an answer is
 * generated.  The prompt goes to stderr: stdout is for answers.
 *
 * Pasted text is one insertion of any number of lines: bracketed paste makes the terminal send marks around it.
 * It is switched off when eng_terminal_read() returns and when SIGTERM ends the program. */
#include "engine/cli/cli.h"

#include <errno.h>
#include <histedit.h>
#include <limits.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#define MAX_HISTORY 500         /* lines */
#define MAX_MESSAGE (16u << 20) /* bytes */
#define FENCE       "\"\"\""
#define PASTE_ON    "\033[?2004h"
#define PASTE_OFF   "\033[?2004l"
#define PASTE_BEGIN "\033[200~"
#define PASTE_END   L"\033[201~"

const char eng_terminal_help[] = "  /retry   answer the last message again\n"
                                 "  /clear   begin a new conversation\n"
                                 "  /info    print the model and the context in use\n"
                                 "  /help    print this list\n"
                                 "  /quit    quit (also Ctrl-D, or Ctrl-C twice)\n"
                                 "  " FENCE "      begin or end a message of several lines\n"
                                 "  Ctrl-C   stop the answer\n";

enum line { LINE_READ, LINE_END, LINE_DROPPED }; /* LINE_DROPPED: by Ctrl-C */

struct eng_terminal {
    EditLine *edit; /* NULL: not a terminal */
    History *history;
    mbstate_t multibyte;                  /* of read_char */
    struct sigaction before, before_term; /* earlier handlers of SIGINT and SIGTERM */
    char *text;                           /* the message so far, NUL-terminated */
    size_t n, room;
    bool fenced;          /* inside a """ message */
    bool catching, marks; /* catching: the handlers are set; marks: bracketed paste works */
};

/* Ctrl-C was pressed: set by the signal handler; read and cleared by the main thread. */
static atomic_bool stop_wanted;
static atomic_bool reading; /* inside eng_terminal_read(); set by the main thread */
static atomic_bool marked;  /* bracketed paste is on; set by the main thread */

/* SIGINT.  A second Ctrl-C while stop_wanted is still set ends the program, except at the prompt. */
static void on_interrupt(int number)
{
    if (atomic_exchange(&stop_wanted, true) && !atomic_load(&reading)) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

/* SIGTERM.  libedit has restored the terminal's mode before, but not bracketed paste. */
static void on_end(int number)
{
    if (atomic_load(&marked))
        (void)!write(STDERR_FILENO, PASTE_OFF, sizeof PASTE_OFF - 1);
    signal(number, SIG_DFL);
    raise(number);
}

bool eng_terminal_stopped(void) { return atomic_load(&stop_wanted); }
bool eng_terminal_is_tty(const struct eng_terminal *t) { return t->edit != NULL; }

/* ---- libedit ----------------------------------------------------------------------------------- */

static char *prompt(EditLine *edit)
{
    static char message[] = "> ", more[] = ". ";
    struct eng_terminal *t;
    el_get(edit, EL_CLIENTDATA, &t);
    return t->fenced ? more : message;
}

static void show_marks(const struct eng_terminal *t, bool on)
{
    if (!t->marks)
        return;
    atomic_store(&marked, true);
    fputs(on ? PASTE_ON : PASTE_OFF, stderr);
    atomic_store(&marked, on);
}

/* Waits for input: returns 1 if there is some, 0 after a signal other than Ctrl-C, -1 after Ctrl-C.  SIGINT is
 * unblocked only inside ppoll(): otherwise it could arrive between the check of stop_wanted and the wait. */
static int wait_for_input(void)
{
    struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
    sigset_t interrupt, before;
    int n = 0;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    if (!atomic_load(&stop_wanted))
        n = ppoll(&input, 1, NULL, &before);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return atomic_load(&stop_wanted) ? -1 : n > 0;
}

/* Reads one character for libedit: returns 1, 0 at the end of input, or -1 after Ctrl-C. */
static int read_char(EditLine *edit, wchar_t *out)
{
    struct eng_terminal *t;
    el_get(edit, EL_CLIENTDATA, &t);
    for (;;) {
        char byte;
        int ready = wait_for_input();
        if (ready < 0)
            return -1;
        if (ready == 0) {
            show_marks(t, true); /* a signal: the window size has changed, or the program continues after Ctrl-Z */
            el_set(edit, EL_REFRESH);
            continue;
        }
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0)
            return (int)n;
        size_t used = mbrtowc(out, &byte, 1, &t->multibyte);
        if (used == (size_t)-1)
            memset(&t->multibyte, 0, sizeof t->multibyte); /* invalid UTF-8 is dropped */
        else if (used != (size_t)-2)
            return 1;
    }
    return -1;
}

/* Inserts pasted text without its trailing line ends, so that only Enter sends the message.  A terminal may end pasted
 * lines with \r, as Enter does. */
static unsigned char on_paste(EditLine *edit, int key)
{
    static const wchar_t end[] = PASTE_END;
    wchar_t c;
    size_t met = 0, n_end = 0; /* met: characters of PASTE_END; n_end: line ends since the last text */
    (void)key;
    while (read_char(edit, &c) == 1) {
        met = c == end[met] ? met + 1 : c == end[0];
        if (met && !end[met])
            return CC_REFRESH;
        if (met)
            continue;
        if (c == '\r' || c == '\n') {
            n_end++;
        } else if (c >= ' ' || c == '\t') {
            char text[MB_LEN_MAX + 1] = "";
            mbstate_t state = { 0 };
            for (; n_end; n_end--)
                el_insertstr(edit, "\n");
            if (wcrtomb(text, c, &state) != (size_t)-1)
                el_insertstr(edit, text);
        }
    }
    return CC_EOF;
}

static int open_edit(struct eng_terminal *t)
{
    HistEvent event;
    const char *kind = NULL;
    setlocale(LC_CTYPE, "C.UTF-8");
    t->edit = el_init("spillway", stdin, stderr, stderr);
    t->history = history_init();
    if (!t->edit || !t->history)
        return kn_fail(KN_ENOMEM, "cannot set up the terminal");
    history(t->history, &event, H_SETSIZE, MAX_HISTORY);
    history(t->history, &event, H_SETUNIQUE, 1);
    el_set(t->edit, EL_CLIENTDATA, t);
    el_set(t->edit, EL_PROMPT, prompt);
    el_set(t->edit, EL_EDITOR, "emacs");
    el_set(t->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(t->edit, EL_HIST, history, t->history);
    el_set(t->edit, EL_GETCFN, read_char);
    el_set(t->edit, EL_SIGNAL, 1);
    el_set(t->edit, EL_ADDFN, "paste", "Insert pasted text", on_paste);
    el_set(t->edit, EL_BIND, PASTE_BEGIN, "paste", NULL);
    el_get(t->edit, EL_TERMINAL, &kind);
    t->marks = kind && strcmp(kind, "dumb") != 0;
    return 0;
}

/* Appends n bytes to the message and terminates it. */
static int append(struct eng_terminal *t, const char *s, size_t n)
{
    if (n > MAX_MESSAGE - t->n)
        return kn_fail(KN_ELIMIT, "the message is longer than %u MiB", MAX_MESSAGE >> 20);
    if (t->n + n + 1 > t->room) {
        size_t room = 2 * (t->n + n + 1);
        char *text = kn_realloc(t->text, t->room, room);
        if (!text)
            return kn_fail(KN_ENOMEM, "no memory for the message");
        t->text = text;
        t->room = room;
    }
    memcpy(t->text + t->n, s, n);
    t->n += n;
    t->text[t->n] = 0;
    return 0;
}

/* ---- lines ------------------------------------------------------------------------------------- */

static int edited_line(struct eng_terminal *t, enum line *what)
{
    HistEvent event;
    int n;
    const char *s = el_gets(t->edit, &n);
    if (!s || n <= 0) {
        *what = atomic_load(&stop_wanted) ? LINE_DROPPED : LINE_END;
        fputc('\n', stderr);
        return 0;
    }
    if (s[strspn(s, " \t\r\n")])
        history(t->history, &event, H_ENTER, s);
    *what = LINE_READ;
    return append(t, s, (size_t)n);
}

static int plain_line(struct eng_terminal *t, enum line *what)
{
    char piece[4096];
    *what = LINE_END;
    while (fgets(piece, sizeof piece, stdin)) {
        size_t n = strlen(piece);
        int e = append(t, piece, n);
        if (e < 0)
            return e;
        *what = LINE_READ;
        if (n > 0 && piece[n - 1] == '\n')
            break;
    }
    if (*what == LINE_END && atomic_load(&stop_wanted))
        *what = LINE_DROPPED;
    clearerr(stdin);
    return 0;
}

/* Appends the next line to the message, without its line end. */
static int next_line(struct eng_terminal *t, enum line *what)
{
    size_t from = t->n;
    int e = t->edit ? edited_line(t, what) : plain_line(t, what);
    while (e == 0 && *what == LINE_READ && t->n > from && strchr("\r\n", t->text[t->n - 1]))
        t->text[--t->n] = 0;
    return e;
}

/* ---- messages ---------------------------------------------------------------------------------- */

/* True for a line that is a slash and letters only: a command, whose kind is set; ENG_INPUT_HELP if it is unknown. */
static bool is_command(const char *s, enum eng_input *kind)
{
    static const struct {
        const char *word;
        enum eng_input kind;
    } commands[] = {
        { "/help", ENG_INPUT_HELP }, { "/clear", ENG_INPUT_CLEAR }, { "/retry", ENG_INPUT_RETRY },
        { "/info", ENG_INPUT_INFO }, { "/quit", ENG_INPUT_QUIT },   { "/exit", ENG_INPUT_QUIT },
    };
    size_t letters = strspn(s + (s[0] == '/'), "abcdefghijklmnopqrstuvwxyz") + 1;
    if (s[0] != '/' || s[letters + strspn(s + letters, " \t")])
        return false;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (letters == strlen(commands[i].word) && !strncmp(s, commands[i].word, letters)) {
            *kind = commands[i].kind;
            return true;
        }
    }
    kn_say(KN_LOG_WARN, "%.*s is not a command; /help lists all", (int)letters, s);
    *kind = ENG_INPUT_HELP;
    return true;
}

static bool ends_with_fence(const char *s, size_t n)
{
    return n >= strlen(FENCE) && !strcmp(s + n - strlen(FENCE), FENCE);
}

/* Completes a message whose first line begins with """: reads lines until one ends with """.  Removes both. */
static int fenced_lines(struct eng_terminal *t, enum line *what)
{
    const size_t fence = strlen(FENCE);
    int e = 0;
    memmove(t->text, t->text + fence, t->n - fence + 1);
    t->n -= fence;
    t->fenced = true;
    *what = LINE_READ;
    for (size_t from = 0; !ends_with_fence(t->text + from, t->n - from);) {
        if (t->n > 0 && (e = append(t, "\n", 1)) < 0)
            break;
        from = t->n;
        if ((e = next_line(t, what)) < 0 || *what != LINE_READ)
            break;
    }
    t->fenced = false;
    if (e == 0 && *what == LINE_READ)
        t->n -= fence;
    while (t->n > 0 && t->text[t->n - 1] == '\n')
        t->n--;
    if (t->text)
        t->text[t->n] = 0;
    return e;
}

/* Reads a message: one line, or all lines between two """. */
static int next_message(struct eng_terminal *t, enum line *what)
{
    t->n = 0;
    int e = append(t, "", 0);
    if (e == 0)
        e = next_line(t, what);
    if (e == 0 && *what == LINE_READ && !strncmp(t->text, FENCE, strlen(FENCE)))
        e = fenced_lines(t, what);
    if (*what == LINE_END && t->n > 0) /* the end of input ends a message of several lines */
        *what = LINE_READ;
    return e;
}

int eng_terminal_read(struct eng_terminal *t, enum eng_input *kind, const char **text)
{
    bool warned = false;
    int e = 0;
    *kind = ENG_INPUT_QUIT;
    atomic_store(&reading, true);
    show_marks(t, true);
    for (;;) {
        enum line what = LINE_END;
        atomic_store(&stop_wanted, false);
        if ((e = next_message(t, &what)) < 0 || what == LINE_END)
            break;
        if (what == LINE_DROPPED) {
            bool empty = t->n == 0 && (!t->edit || el_line(t->edit)->lastchar == el_line(t->edit)->buffer);
            if (warned && empty)
                break;
            if (empty)
                fputs("press Ctrl-C again, or Ctrl-D, to quit\n", stderr);
            warned = empty;
        } else if (is_command(t->text, kind)) {
            break;
        } else if (t->text[strspn(t->text, " \t\n")]) {
            *kind = ENG_INPUT_TEXT;
            *text = t->text;
            break;
        }
    }
    show_marks(t, false);
    atomic_store(&reading, false);
    return e;
}

/* ---- open and close ---------------------------------------------------------------------------- */

int eng_terminal_open(struct eng_terminal **out)
{
    struct sigaction action = { .sa_handler = on_interrupt }; /* without SA_RESTART: a signal ends a read */
    struct eng_terminal *t = kn_calloc(1, sizeof *t);
    if (!t)
        return kn_fail(KN_ENOMEM, "cannot set up the terminal");
    int e = isatty(STDIN_FILENO) && isatty(STDERR_FILENO) ? open_edit(t) : 0;
    if (e < 0) {
        eng_terminal_close(t);
        return e;
    }
    atomic_store(&stop_wanted, false);
    sigaction(SIGINT, &action, &t->before);
    sigaction(SIGTERM, &(struct sigaction){ .sa_handler = on_end }, &t->before_term);
    t->catching = true;
    *out = t;
    return 0;
}

void eng_terminal_close(struct eng_terminal *t)
{
    if (!t)
        return;
    if (t->catching) {
        sigaction(SIGINT, &t->before, NULL);
        sigaction(SIGTERM, &t->before_term, NULL);
    }
    if (t->edit)
        el_end(t->edit);
    if (t->history)
        history_end(t->history);
    kn_free(t->text);
    kn_free(t);
}
