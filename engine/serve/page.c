/* engine/serve/page.c - the status and chat page: one file embedded in the program, sent with a strict
 * Content-Security-Policy.
 *
 * A script or style of the page runs only if it has the nonce that the answer's header names.  A random nonce is drawn
 * for each answer and replaces MARK in the page.  The page may load from this server only, no other page may frame it,
 * and the browser refuses to turn text into markup (trusted types). */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "engine/serve/internal.h"

#define MARK "@NONCE@"

extern const char eng_page[], eng_page_end[];
__asm__(".section .rodata\n"
        ".global eng_page\n.global eng_page_end\n"
        "eng_page: .incbin \"engine/serve/page.html\"\n"
        "eng_page_end: .byte 0\n"
        ".previous\n");

static void set_headers(struct eng_exchange *x, const char *nonce)
{
    char policy[512];
    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; "
             "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
             "require-trusted-types-for 'script'; trusted-types 'none'",
             nonce, nonce);
    eng_http_set_header(x, "Content-Security-Policy", policy);
    eng_http_set_header(x, "X-Content-Type-Options", "nosniff");
    eng_http_set_header(x, "Referrer-Policy", "no-referrer");
    eng_http_set_header(x, "Cache-Control", "no-store");
}

void srv_page(struct eng_server *s, struct eng_exchange *x)
{
    struct eng_bytes out = { 0 };
    struct eng_refusal why;
    uint64_t random[2] = { 0 };
    char nonce[33];
    const char *at = eng_page, *mark;
    bool drawn = getrandom(random, sizeof random, 0) == sizeof random;
    snprintf(nonce, sizeof nonce, "%016llx%016llx", (unsigned long long)random[0], (unsigned long long)random[1]);
    while ((mark = memmem(at, (size_t)(eng_page_end - at), MARK, sizeof MARK - 1))) {
        eng_bytes_add(&out, at, (size_t)(mark - at));
        eng_bytes_text(&out, nonce);
        at = mark + sizeof MARK - 1;
    }
    eng_bytes_add(&out, at, (size_t)(eng_page_end - at));
    if (out.failed || !drawn) {
        eng_refuse(&why, 503, NULL, "", "not enough memory or random numbers for the page now: try again");
        srv_answer_refusal(s, x, ENG_API_CHAT, &why);
    } else {
        set_headers(x, nonce);
        srv_answer_plain(s, x, 200, "text/html; charset=utf-8", out.data, out.n);
    }
    eng_bytes_free(&out);
}
