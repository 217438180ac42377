/* tests/engine/cli/program.h - starts the program as a user does, in its own temporary folder, and keeps its output.
 *
 * The binary is build/MODE/spillway of the same build, three folders above the test's own. An alarm, which exec keeps,
 * ends a child that hangs. As root the child loses the right to write against file modes. */
#ifndef TESTS_ENGINE_CLI_PROGRAM_H
#define TESTS_ENGINE_CLI_PROGRAM_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <linux/capability.h>

#define HANG_S     300 /* limit for a child that hangs */
#define MOST_WORDS 48

static char program[4096], place[] = "/tmp/spillway-commands-XXXXXX";
static char printed[1 << 20], said[1 << 16]; /* output of the last run, terminated */
static size_t n_printed, n_said;
static const char *hub_endpoint; /* the hub that the program may send requests to; NULL: none */

/* ---- the folder ------------------------------------------------------------------------------------ */

static const char *in_place(const char *name)
{
    static char path[2][512];
    static int turn;
    snprintf(path[turn ^= 1], sizeof path[0], "%s/%s", place, name);
    return path[turn];
}

static void write_bytes(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in_place(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void write_text(const char *name, const char *text) { write_bytes(name, text, strlen(text)); }

/* The caller frees the result. */
static char *read_bytes(const char *name, size_t *n)
{
    struct stat st;
    FILE *f = fopen(in_place(name), "rb");
    if (!f)
        fail_msg("%s is not there", name);
    assert_int_equal(fstat(fileno(f), &st), 0);
    char *bytes = calloc(1, (size_t)st.st_size + 1);
    *n = fread(bytes, 1, (size_t)st.st_size, f);
    fclose(f);
    return bytes;
}

static inline bool is_there(const char *name) { return access(in_place(name), F_OK) == 0; }

static inline bool same_files(const char *a, const char *b)
{
    size_t n, m;
    char *x = read_bytes(a, &n), *y = read_bytes(b, &m);
    bool same = n == m && !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

/* Every name in the folder; for plain files size and modification time. */
static inline void list_place(char *text, size_t size)
{
    struct dirent **entry;
    int n = scandir(place, &entry, NULL, alphasort);
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < n; i++) {
        struct stat st;
        assert_int_equal(lstat(in_place(entry[i]->d_name), &st), 0);
        bool plain = S_ISREG(st.st_mode);
        at += (size_t)snprintf(text + at, size - at, "%s %lld %lld.%ld\n", entry[i]->d_name,
                               plain ? (long long)st.st_size : 0, plain ? (long long)st.st_mtim.tv_sec : 0,
                               plain ? st.st_mtim.tv_nsec : 0);
        free(entry[i]);
    }
    free(entry);
    assert_true(at < size);
}

/* ---- running --------------------------------------------------------------------------------------- */

/* In the child, with its standard files in place. Words are separated by spaces; '' is an empty word. A test started in
 * the background may inherit an ignored SIGINT, so it is reset. */
static inline _Noreturn void become(const char *words)
{
    static char copy[1 << 17];
    char *argv[MOST_WORDS] = { program };
    int n = 1;
    signal(SIGINT, SIG_DFL);
    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok(copy, " "); w && n < MOST_WORDS - 1; w = strtok(NULL, " "))
        argv[n++] = strcmp(w, "''") ? w : w + 2;
    if (chdir(place) != 0)
        _exit(126);
    if (geteuid() == 0)
        (void)prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (char **v = environ; *v; v++) /* remove SPILLWAY_* of the user; not those of the interpreter of PTX */
        if (!strncmp(*v, "SPILLWAY_", 9) && strncmp(*v, "SPILLWAY_GPU_", 13) != 0)
            (*v)[0] = '_';
    setenv("XDG_STATE_HOME", place, 1); /* not the user's history, nor models */
    setenv("HOME", place, 1);
    setenv("HF_HOME", in_place("hf"), 1);
    setenv("HF_ENDPOINT", hub_endpoint ? hub_endpoint : "http://127.0.0.1:1", 1);
    setenv("HF_HUB_OFFLINE", hub_endpoint ? "0" : "1", 1);
    static const char *const unset[] = { "HF_HUB_CACHE",  "HUGGINGFACE_HUB_CACHE",
                                         "HF_TOKEN",      "HUGGING_FACE_HUB_TOKEN",
                                         "HF_TOKEN_PATH", "TRANSFORMERS_OFFLINE",
                                         "OLLAMA_MODELS", "http_proxy" };
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++)
        unsetenv(unset[i]);
    unsetenv("NO_COLOR");
    alarm(HANG_S);
    execv(program, argv);
    _exit(127);
}

/* Starts the program with these descriptors as standard files; -1: /dev/null. */
static inline pid_t start(const char *words, int from, int to, int says)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    int nothing = open("/dev/null", O_RDWR);
    dup2(from < 0 ? nothing : from, STDIN_FILENO);
    dup2(to < 0 ? nothing : to, STDOUT_FILENO);
    dup2(says < 0 ? nothing : says, STDERR_FILENO);
    for (int fd = 3; fd < 64; fd++)
        close(fd);
    become(words);
}

/* The exit status, or 128 + signal, as in a shell. */
static inline int status_of(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline size_t take_text(FILE *f, char *text, size_t size)
{
    rewind(f);
    size_t n = fread(text, 1, size - 1, f);
    assert_true(n < size - 1);
    text[n] = 0;
    fclose(f);
    return n;
}

/* Runs the program to its end with n bytes of input; fills printed and said. */
static inline int given_bytes(const char *words, const void *input, size_t n)
{
    FILE *in = tmpfile(), *to = tmpfile(), *says = tmpfile();
    assert_true(in && to && says);
    assert_int_equal(fwrite(input, 1, n, in), n);
    fflush(in);
    rewind(in);
    int status = status_of(start(words, fileno(in), fileno(to), fileno(says)));
    fclose(in);
    n_printed = take_text(to, printed, sizeof printed);
    n_said = take_text(says, said, sizeof said);
    return status;
}

static inline int given(const char *words, const char *input)
{
    return given_bytes(words, input ? input : "", input ? strlen(input) : 0);
}

static inline void does(const char *words, const char *input)
{
    int status = given(words, input);
    if (status != 0)
        fail_msg("spillway %s: status %d: %s", words, status, said);
}

static inline int make_place(void **state)
{
    (void)state;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n < 0 || !mkdtemp(place))
        return -1;
    program[n] = 0;
    for (int up = 0; up < 4; up++) /* build/MODE/tests/engine/cli/test_x */
        *strrchr(program, '/') = 0;
    strcat(program, "/spillway");
    return access(program, X_OK);
}

static inline int remove_place(void **state)
{
    (void)state;
    char line[64];
    snprintf(line, sizeof line, "rm -rf %s", place);
    return system(line);
}

#endif
