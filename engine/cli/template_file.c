/* engine/cli/template_file.c - checks the file of --chat-template before a model is loaded, which may take minutes. */
#include "engine/base/base.h"
#include "engine/cli/cli.h"
#include "engine/text/jinja/jinja.h"

int eng_template_file_check(const char *path)
{
    struct eng_template *t = NULL;
    struct eng_template_error e;
    char *text = NULL;
    size_t n;
    if (!path)
        return 0;
    int error = eng_read_file(path, &text, &n);
    if (!error && (error = eng_template_open(&t, text, n, &e)))
        kn_fail(error, "%s: line %d: %s", path, e.line, e.text);
    eng_template_close(t);
    kn_free(text);
    return error;
}
