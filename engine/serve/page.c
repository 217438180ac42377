/* engine/serve/page.c - the page: a chat and the status, as files that are embedded in the program.
 *
 * engine/serve/page/embed.sh collects the files at build time.  They are sent with a strict Content-Security-Policy: the
 * page may load scripts, styles and fonts from this server only and send requests to this server only; a script or a
 * style within the document does not run; no other page may frame it; the browser refuses to turn text into markup
 * (trusted types).  Browsers keep the files, and ask with the entity tag whether they have changed. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/serve/internal.h"

static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
                             "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                             "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/* Whether the list of an Accept-Encoding header has gzip, with a weight that is not 0. */
static bool accepts_gzip(const char *list)
{
    const char *p;
    for (size_t n; eng_http_next_element(&list, &p, &n);) {
        if (strncasecmp(p, "gzip", 4) != 0 || !strchr(" \t;,", p[4]))
            continue;
        const char *weight = p + 4 + strspn(p + 4, " \t;");
        if (strncasecmp(weight, "q=0", 3) != 0)
            return true;
        weight += 3 + strspn(weight + 3, ".0");
        return *weight >= '1' && *weight <= '9';
    }
    return false;
}

void srv_page(struct eng_server *s, struct eng_exchange *x)
{
    const char *path = eng_http_path(x), *known = eng_http_header(x, "If-None-Match");
    const struct srv_page_file *f = NULL;
    struct eng_refusal why;
    char tag[48];
    for (int i = 0; i < srv_n_page_file && !f; i++)
        if (!strcmp(path, srv_page_files[i].path))
            f = &srv_page_files[i];
    if (!f) {
        eng_refuse(&why, 404, NULL, "", "the page has no file of this name");
        srv_answer_refusal(s, x, ENG_API_CHAT, &why);
        return;
    }
    bool zipped = f->zipped && accepts_gzip(eng_http_header(x, "Accept-Encoding"));
    snprintf(tag, sizeof tag, "\"%s%s\"", f->tag, zipped ? "-gzip" : "");
    eng_http_set_header(x, "ETag", tag);
    eng_http_set_header(x, "Cache-Control", "no-cache"); /* a copy may be used once the server has confirmed its tag */
    eng_http_set_header(x, "Content-Security-Policy", policy);
    eng_http_set_header(x, "X-Content-Type-Options", "nosniff");
    eng_http_set_header(x, "Referrer-Policy", "no-referrer");
    if (f->zipped)
        eng_http_set_header(x, "Vary", "Accept-Encoding");
    if (known && (strstr(known, tag) || !strcmp(known, "*"))) {
        srv_answer_plain(s, x, 304, NULL, "", 0);
        return;
    }
    if (zipped)
        eng_http_set_header(x, "Content-Encoding", "gzip");
    srv_answer_plain(s, x, 200, f->type, zipped ? f->zipped : f->data, zipped ? f->n_zipped : f->n);
}
