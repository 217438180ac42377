/* engine/cli/terminal.c - the input side of a chat: joins lines from a terminal or a pipe to messages.
 *
 * Out: messages and commands.  On a terminal line_editor.c edits the line; this file reads the keys, handles signals,
 * and sets the terminal's mode.  A terminal without escape sequences (TERM=dumb) keeps its own line editing.
 *
 * The terminal is in raw mode only inside eng_terminal_read(); a signal that ends or stops the program restores its
 * mode first.  So the terminal has its usual mode while an answer is generated, but does not show the keys that are
 * typed then: they would stand in the middle of the answer.  The prompt goes to stderr: stdout is for answers.
 *
 * Pasted text is one insertion of any number of lines: bracketed paste makes the terminal send marks around it.  It is
 * on in raw mode only. */
#include "engine/cli/cli.h"
#include "engine/cli/input_history.h"
#include "engine/cli/line_editor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define MAX_HISTORY 500         /* lines */
#define MAX_MESSAGE (16u << 20) /* bytes */
#define FENCE       "\"\"\""
#define PROMPT      "> "
#define MORE_PROMPT ". "
#define PASTE_ON    "\033[?2004h"
#define PASTE_OFF   "\033[?2004l"

enum line { LINE_READ, LINE_END, LINE_DROPPED }; /* LINE_DROPPED: by Ctrl-C */

struct eng_terminal {
    struct eng_editor *editor;  /* NULL: not a terminal, or one without escape sequences */
    const char *path;           /* of the history's file; NULL: none */
    struct sigaction before[4]; /* [signals] earlier handlers */
    bool catching, is_tty;      /* catching: the handlers are set */
    char keys[1024];            /* [n_key] bytes read, from at_key on not yet used */
    size_t n_key, at_key;
    char *text; /* the message so far, NUL-terminated */
    size_t n, room;
    bool dropped_empty;   /* the line that Ctrl-C dropped was empty */
    bool fenced, several; /* inside a """ message; the message has several lines, or was in """ */
};

/* ---- signals and the terminal's mode ------------------------------------------------------------ */

/* Ctrl-C was pressed: set by the signal handler; read and cleared by the main thread. */
static atomic_bool stop_wanted;
static atomic_bool reading;  /* inside eng_terminal_read(); set by the main thread */
static atomic_bool resized;  /* by SIGWINCH */
static atomic_bool redraw;   /* the line must be drawn on new rows: set after a stop of the program */
static atomic_int mode;      /* enum mode; set by the main thread */
static struct termios usual; /* the terminal's mode when MODE_USUAL was last left; valid in the other modes */

enum mode { MODE_USUAL, MODE_QUIET, MODE_RAW }; /* quiet: as usual, without echo */

static const int signals[4] = { SIGINT, SIGTERM, SIGTSTP, SIGWINCH };

/* Sets a mode; async-signal-safe. */
static void apply(enum mode m)
{
    struct termios t = usual;
    if (m != MODE_USUAL)
        t.c_lflag &= ~(tcflag_t)ECHO;
    if (m == MODE_RAW) {
        t.c_lflag &= ~(tcflag_t)(ICANON | IEXTEN);
        t.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IGNCR | IXON | ISTRIP);
        t.c_cc[VMIN] = 1;
        t.c_cc[VTIME] = 0;
    }
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &t);
    if (m == MODE_RAW)
        (void)!write(STDERR_FILENO, PASTE_ON, sizeof PASTE_ON - 1);
}

static void leave(enum mode m)
{
    if (m == MODE_RAW)
        (void)!write(STDERR_FILENO, PASTE_OFF, sizeof PASTE_OFF - 1);
    if (m != MODE_USUAL)
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &usual);
}

static void change_mode(enum mode to)
{
    enum mode from = (enum mode)atomic_load(&mode);
    if (from == to)
        return;
    if (from == MODE_USUAL && tcgetattr(STDIN_FILENO, &usual) != 0)
        return;
    if (from == MODE_RAW)
        leave(from);
    atomic_store(&mode, (int)to); /* before: a signal in between restores the usual mode once more */
    apply(to);
}

static void end_by(int number)
{
    leave((enum mode)atomic_load(&mode));
    signal(number, SIG_DFL);
    raise(number);
}

/* SIGINT.  A second Ctrl-C while stop_wanted is still set ends the program, except at the prompt. */
static void on_interrupt(int number)
{
    if (atomic_exchange(&stop_wanted, true) && !atomic_load(&reading))
        end_by(number);
}

/* SIGTSTP, Ctrl-Z: stops with the usual mode; restores its own when the program continues. */
static void on_stop(int number)
{
    enum mode m = (enum mode)atomic_load(&mode);
    struct sigaction mine, standard = { .sa_handler = SIG_DFL };
    int kept = errno;
    sigset_t set;
    leave(m);
    sigaction(number, &standard, &mine);
    raise(number);
    sigemptyset(&set);
    sigaddset(&set, number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL); /* stops here */
    sigaction(number, &mine, NULL);
    if (m != MODE_USUAL)
        apply(m);
    atomic_store(&redraw, true);
    errno = kept;
}

static void on_resize(int number)
{
    (void)number;
    atomic_store(&resized, true);
}

static void catch_signals(struct eng_terminal *t)
{
    void (*const handlers[4])(int) = { on_interrupt, end_by, on_stop, on_resize };
    for (int i = 0; i < 4; i++) {
        /* SIGINT ends a read; ppoll() ends with every signal */
        struct sigaction action = { .sa_handler = handlers[i], .sa_flags = i == 0 ? 0 : SA_RESTART };
        sigaction(signals[i], &action, &t->before[i]);
    }
    t->catching = true;
}

bool eng_terminal_stopped(void) { return atomic_load(&stop_wanted); }
bool eng_terminal_is_tty(const struct eng_terminal *t) { return t->is_tty; }

/* ---- keys -------------------------------------------------------------------------------------- */

/* Waits for input: returns 1 if there is some, 0 if the line must be drawn again after a signal, -1 after Ctrl-C.  The
 * signals are unblocked only inside ppoll(): otherwise one could arrive between the check of its flag and the wait. */
static int wait_for_input(void)
{
    struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
    sigset_t mine, before;
    int n = 0;
    sigemptyset(&mine);
    for (int i = 0; i < 4; i++)
        sigaddset(&mine, signals[i]);
    pthread_sigmask(SIG_BLOCK, &mine, &before);
    while (n == 0 && !atomic_load(&stop_wanted) && !atomic_load(&resized) && !atomic_load(&redraw)) {
        n = ppoll(&input, 1, NULL, &before);
        n = n < 0 && errno == EINTR ? 0 : n;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return atomic_load(&stop_wanted) ? -1 : n != 0;
}

/* The size of the terminal that shows the line. */
static void get_size(int *columns, int *rows)
{
    struct winsize w;
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0;
    *columns = known && w.ws_col > 0 ? w.ws_col : 80;
    *rows = known && w.ws_row > 0 ? w.ws_row : 24;
}

static void write_drawing(struct eng_terminal *t)
{
    size_t n;
    const char *s = eng_editor_take(t->editor, &n);
    while (n > 0) {
        ssize_t done = write(STDERR_FILENO, s, n);
        if (done < 0 && errno != EINTR)
            return;
        s += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
}

/* Draws the line again after a signal: the window has another size, or the program continues after Ctrl-Z. */
static void after_signal(struct eng_terminal *t)
{
    int columns, rows;
    atomic_store(&resized, false);
    get_size(&columns, &rows);
    if (atomic_exchange(&redraw, false))
        eng_editor_restart(t->editor, columns, rows);
    else
        eng_editor_resize(t->editor, columns, rows);
    write_drawing(t);
}

/* Reads keys into t->keys: returns 1, 0 at the end of input, or -1 after Ctrl-C. */
static int read_keys(struct eng_terminal *t)
{
    t->n_key = t->at_key = 0;
    for (;;) {
        int ready = wait_for_input();
        if (ready < 0)
            return -1;
        if (ready == 0) {
            after_signal(t);
            continue;
        }
        ssize_t n = read(STDIN_FILENO, t->keys, sizeof t->keys);
        if (n < 0 && errno == EINTR)
            continue;
        t->n_key = n > 0 ? (size_t)n : 0;
        return n > 0;
    }
}

static void enter_line(void *arg, const char *text) { eng_editor_remember(arg, text); }

static int open_edit(struct eng_terminal *t, const char *kind)
{
    t->is_tty = true;
    if (!kind || !kind[0] || !strcmp(kind, "dumb"))
        return 0;
    int error = eng_editor_open(&t->editor, MAX_MESSAGE, MAX_HISTORY);
    if (!error && t->path)
        eng_history_load(t->path, MAX_HISTORY, enter_line, t->editor);
    return error;
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

static void keep_line(struct eng_terminal *t, const char *s, size_t n)
{
    if (!s[strspn(s, " \t\r\n")])
        return;
    eng_editor_remember(t->editor, s);
    if (t->path && eng_history_append(t->path, s, n)) {
        kn_say(KN_LOG_WARN, "%s: the history cannot be written; --no-history turns it off", t->path);
        t->path = NULL;
    }
}

static int edited_line(struct eng_terminal *t, enum line *what)
{
    enum eng_edit done = ENG_EDIT_MORE;
    int columns, rows, got = 1, e = 0;
    size_t n;
    get_size(&columns, &rows);
    eng_editor_begin(t->editor, t->fenced ? MORE_PROMPT : PROMPT, columns, rows);
    eng_editor_draw(t->editor);
    while (done == ENG_EDIT_MORE && got > 0) {
        while (t->at_key < t->n_key && done == ENG_EDIT_MORE)
            done = eng_editor_key(t->editor, (unsigned char)t->keys[t->at_key++]);
        if (done != ENG_EDIT_MORE)
            break;
        eng_editor_draw(t->editor);
        write_drawing(t);
        got = read_keys(t);
    }
    const char *s = eng_editor_text(t->editor, &n);
    *what = done == ENG_EDIT_LINE ? LINE_READ : got < 0 ? LINE_DROPPED : LINE_END;
    t->dropped_empty = n == 0;
    if (*what == LINE_READ && !(e = append(t, s, n)))
        keep_line(t, s, n);
    eng_editor_finish(t->editor);
    write_drawing(t);
    return e;
}

static int plain_line(struct eng_terminal *t, enum line *what)
{
    char piece[4096];
    *what = LINE_END;
    if (t->is_tty)
        fputs(t->fenced ? MORE_PROMPT : PROMPT, stderr);
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
    if (t->is_tty && *what != LINE_READ)
        fputs("\n", stderr);
    t->dropped_empty = true;
    clearerr(stdin);
    return 0;
}

/* Appends the next line to the message, without its line end. */
static int next_line(struct eng_terminal *t, enum line *what)
{
    size_t from = t->n;
    int e = t->editor ? edited_line(t, what) : plain_line(t, what);
    while (e == 0 && *what == LINE_READ && t->n > from && strchr("\r\n", t->text[t->n - 1]))
        t->text[--t->n] = 0;
    return e;
}

/* ---- messages ---------------------------------------------------------------------------------- */

/* True for one line that begins with a slash: a command.  Of two slashes the first is removed, and the line is text. */
static bool is_command(struct eng_terminal *t)
{
    if (t->text[0] != '/' || t->several)
        return false;
    if (t->text[1] == '/')
        memmove(t->text, t->text + 1, t->n--);
    else
        return true;
    return false;
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
    t->several = memchr(t->text, '\n', t->n) != NULL || !strncmp(t->text, FENCE, strlen(FENCE));
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
    if (t->is_tty)
        change_mode(t->editor ? MODE_RAW : MODE_USUAL);
    for (;;) {
        enum line what = LINE_END;
        atomic_store(&stop_wanted, false);
        if ((e = next_message(t, &what)) < 0 || what == LINE_END)
            break;
        if (what == LINE_DROPPED) {
            bool empty = t->n == 0 && t->dropped_empty;
            if (warned && empty)
                break;
            if (empty)
                fputs("press Ctrl-C again, or Ctrl-D, to quit\n", stderr);
            warned = empty;
        } else if (t->text[strspn(t->text, " \t\n")]) {
            bool command = is_command(t);
            *kind = command ? ENG_INPUT_COMMAND : ENG_INPUT_TEXT;
            *text = t->text + command;
            break;
        }
    }
    if (t->is_tty)
        change_mode(t->editor && *kind == ENG_INPUT_TEXT ? MODE_QUIET : MODE_USUAL);
    atomic_store(&reading, false);
    return e;
}

/* ---- open and close ---------------------------------------------------------------------------- */

int eng_terminal_open(struct eng_terminal **out, const char *kind, const char *history)
{
    struct eng_terminal *t = kn_calloc(1, sizeof *t);
    if (!t)
        return kn_fail(KN_ENOMEM, "cannot set up the terminal");
    t->path = history;
    int e = isatty(STDIN_FILENO) && isatty(STDERR_FILENO) ? open_edit(t, kind) : 0;
    if (e < 0) {
        eng_terminal_close(t);
        return e;
    }
    atomic_store(&stop_wanted, false);
    catch_signals(t);
    *out = t;
    return 0;
}

void eng_terminal_close(struct eng_terminal *t)
{
    if (!t)
        return;
    if (t->is_tty)
        change_mode(MODE_USUAL);
    for (int i = 0; i < 4 && t->catching; i++)
        sigaction(signals[i], &t->before[i], NULL);
    eng_editor_close(t->editor);
    kn_free(t->text);
    kn_free(t);
}
