/* engine/cli/cmd_render.c - spillway render: converts a JSON conversation on stdin to the exact prompt text on stdout.
 *
 * The chat template is the model's or a file, or a file with the texts of the model's tokens (bos_token); every member
 * of the JSON object is a variable of the template. */
#include "kernels/json.h"
#include "engine/base/base.h"
#include "engine/text/chat_prompt.h"
#include "engine/cli/cli.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* Reports the template's error, with its line ends replaced by spaces.  Returns code. */
static int refuse(const char *where, int code, struct eng_template_error *e)
{
    for (char *c = e->text; *c; c++)
        *c = *c == '\n' || *c == '\r' ? ' ' : *c;
    if (e->line)
        return kn_fail(code, "%s:%d: %s", where, e->line, e->text);
    return kn_fail(code, "%s: %s", where, e->text);
}

static int read_request(json_t **out)
{
    json_error_t e;
    char *text;
    size_t n;
    int error = eng_read_all(STDIN_FILENO, "stdin", &text, &n);
    if (!error && !(*out = kn_json_load(text, n, JSON_ALLOW_NUL, &e)))
        error = kn_fail(KN_EINVAL, "stdin:%d:%d: %s", e.line, e.column, e.text);
    else if (!error && !json_is_object(*out))
        error = kn_fail(KN_EINVAL, "stdin: not a JSON object such as {\"messages\": [...]}");
    kn_free(text);
    return error;
}

static int with_file(const char *path, const json_t *request, char **out, size_t *n)
{
    struct eng_template *t = NULL;
    struct eng_template_error e;
    char *text;
    size_t n_text;
    int error = eng_read_file(path, &text, &n_text);
    if (!error) {
        error = eng_template_open(&t, text, n_text, &e);
        if (!error)
            error = eng_template_render(t, request, time(NULL), NULL, out, n, &e);
        if (error)
            refuse(path, error, &e);
    }
    kn_free(text);
    eng_template_close(t);
    return error;
}

/* template: a file to use instead of the model's, or NULL. */
static int with_model(const char *path, const char *template, const json_t *request, char **out, size_t *n)
{
    struct moe_file *file = NULL;
    struct eng_vocab *vocab = NULL;
    struct eng_chat *chat = NULL;
    struct eng_template_error e;
    int error = moe_file_open(&file, path);
    if (!error)
        error = eng_vocab_open(&vocab, file);
    if (!error)
        error = template ? eng_chat_open_template(&chat, vocab, template) : eng_chat_open(&chat, file, vocab, path);
    if (!error && (error = eng_chat_render(chat, request, out, n, &e)))
        refuse(template ? template : path, error, &e);
    eng_chat_close(chat);
    eng_vocab_close(vocab);
    moe_file_close(file);
    return error;
}

int eng_cmd_render(const struct eng_config *config)
{
    json_t *request = NULL;
    char *text = NULL;
    size_t n;
    int error = 0;
    if (!config->model && !config->template)
        error = kn_fail(KN_EINVAL, "render needs MODEL, --chat-template FILE or both; see spillway render --help");
    if (!error)
        error = read_request(&request);
    if (!error)
        error = config->model ? with_model(config->model, config->template, request, &text, &n)
                              : with_file(config->template, request, &text, &n);
    if (!error)
        fwrite(text, 1, n, stdout); /* main() checks for write errors */
    kn_free(text);
    json_decref(request);
    return !error ? 0 : error == KN_EIO || error == KN_ENOMEM ? 1 : 2;
}
