/* engine/hub/client.c - requests to the hub, by libcurl, which the first request loads.
 *
 * In: an address and an offset.  Out: the status, the few headers that matter, and the body, which goes to a sink as it
 * arrives.  The body of an error is kept for the message instead.
 *
 * The token is sent to the endpoint only: after a redirect to another host or port libcurl leaves the header out.
 * Certificates are checked; plain http is possible only if the endpoint itself is http (a mirror on the loopback).  A
 * transfer that receives nothing for a minute counts as cut. */
#include "engine/hub/internal.h"

#define CURL_DISABLE_TYPECHECK /* its macros take no calls through pointers */
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CONNECT_S  30L
#define SILENT_S   60L
#define REDIRECTS  8L
#define MOST_TRIES 6
#define MOST_WAIT  300 /* seconds; a server that asks for more is not waited for */
#define PIECE_MS   100

#define CURL_CALLS(X)                                                                                                  \
    X(global_init)                                                                                                     \
    X(easy_init)                                                                                                       \
    X(easy_setopt)                                                                                                     \
    X(easy_perform)                                                                                                    \
    X(easy_getinfo)                                                                                                    \
    X(easy_strerror)                                                                                                   \
    X(easy_cleanup)                                                                                                    \
    X(slist_append)                                                                                                    \
    X(slist_free_all)

static struct {
#define FIELD(name) __typeof__(&curl_##name) name;
    CURL_CALLS(FIELD)
#undef FIELD
} curl; /* all NULL until load_library() */

static int load_library(void)
{
    static const char *const file[] = { "libcurl.so.4", "libcurl-gnutls.so.4", NULL };
#define CALL(name) { "curl_" #name, &curl.name },
    static const struct hub_call call[] = { CURL_CALLS(CALL) };
#undef CALL
    return hub_library_load("libcurl", "libcurl4", file, call, (int)(sizeof call / sizeof *call));
}

struct transfer {
    struct hub_client *client;
    struct hub_reply *reply;
    hub_sink *sink;
    void *user;
    uint64_t from, at;
    bool begun;
    int error; /* of the sink */
};

bool hub_is_stopped(const struct hub_client *c) { return c->options->stop && atomic_load(c->options->stop); }

bool hub_url_add(char *url, size_t size, const char *s, bool slash)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = strlen(url);
    for (; *s; s++) {
        unsigned char b = (unsigned char)*s;
        bool plain = (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') || strchr("-._~", b) ||
                     (slash && b == '/');
        if (n + 4 > size)
            return false;
        if (plain)
            url[n++] = (char)b;
        else {
            url[n++] = '%';
            url[n++] = hex[b >> 4];
            url[n++] = hex[b & 15];
        }
        url[n] = 0;
    }
    return true;
}

/* ---- one request ---------------------------------------------------------------------------------- */

static int stop_wanted(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return hub_is_stopped(user);
}

/* The value of header `name` in line[n], without spaces around it; NULL: the line is another header. */
static const char *value_of(const char *line, size_t n, const char *name, size_t *n_value)
{
    size_t k = strlen(name);
    if (n <= k || strncasecmp(line, name, k) != 0 || line[k] != ':')
        return NULL;
    const char *value = line + k + 1, *end = line + n;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
        end--;
    *n_value = (size_t)(end - value);
    return value;
}

/* Link: <https://...>; rel="next" */
static void take_link(struct hub_reply *r, const char *s, size_t n)
{
    const char *end = memchr(s, '>', n);
    if (n > 1 && s[0] == '<' && end && memmem(end, n - (size_t)(end - s), "rel=\"next\"", 10) &&
        (size_t)(end - s) <= sizeof r->next)
        snprintf(r->next, sizeof r->next, "%.*s", (int)(end - s) - 1, s + 1);
}

static size_t take_header(char *line, size_t size, size_t n, void *user)
{
    struct hub_reply *r = ((struct transfer *)user)->reply;
    const char *s;
    size_t k;
    n *= size;
    if (n > 5 && !strncmp(line, "HTTP/", 5))
        *r = (struct hub_reply){ .range_from = -1 }; /* the next answer of a chain of redirects */
    else if ((s = value_of(line, n, "x-error-code", &k)))
        snprintf(r->code, sizeof r->code, "%.*s", (int)k, s);
    else if ((s = value_of(line, n, "content-range", &k)) && k > 6 && !strncasecmp(s, "bytes ", 6))
        r->range_from = strtoll(s + 6, NULL, 10);
    else if ((s = value_of(line, n, "link", &k)))
        take_link(r, s, k);
    return n;
}

static size_t take_body(char *p, size_t size, size_t n, void *user)
{
    struct transfer *t = user;
    struct hub_reply *r = t->reply;
    n *= size;
    curl.easy_getinfo(t->client->curl, CURLINFO_RESPONSE_CODE, &r->status);
    if (r->status != 200 && r->status != 206) {
        size_t have = strlen(r->text), room = sizeof r->text - 1 - have;
        snprintf(r->text + have, room + 1, "%.*s", (int)(n < room ? n : room), p);
        return n;
    }
    if (!t->begun) {
        t->begun = true;
        t->at = r->status == 206 ? t->from : 0; /* 200: the server sends all of it again */
        if (r->status == 206 && r->range_from != (int64_t)t->from)
            t->error = kn_fail(KN_EIO, "the server sends another part of the file than asked for");
    }
    if (!t->error)
        t->error = t->sink(t->user, t->at, p, n);
    t->at += n;
    return t->error ? 0 : n;
}

/* Failures that another try does not mend. */
static int fail_for_good(const struct hub_client *c, CURLcode code, const char *why)
{
    const char *endpoint = c->places->endpoint;
    switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return kn_fail(KN_EIO, "%s: its certificate cannot be verified (%s); SSL_CERT_FILE names a file of authorities",
                       endpoint, why);
    case CURLE_UNSUPPORTED_PROTOCOL:
        return kn_fail(KN_EIO, "%s: refused an address that is not https: %s", endpoint, why);
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_URL_MALFORMAT:
    case CURLE_OUT_OF_MEMORY:
        return kn_fail(KN_EIO, "%s: %s", endpoint, why);
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
        if (!c->reached)
            return kn_fail(KN_EIO, "%s cannot be reached (%s): check the network", endpoint, why);
        return HUB_CUT;
    default:
        return HUB_CUT;
    }
}

int hub_request(struct hub_client *c, const char *url, uint64_t from, hub_sink *sink, void *user, struct hub_reply *r)
{
    struct transfer t = { .client = c, .reply = r, .sink = sink, .user = user, .from = from };
    char range[32], error[CURL_ERROR_SIZE] = "";
    *r = (struct hub_reply){ .range_from = -1 };
    snprintf(range, sizeof range, "%llu-", (unsigned long long)from);
    curl.easy_setopt(c->curl, CURLOPT_URL, url);
    curl.easy_setopt(c->curl, CURLOPT_RANGE, from ? range : NULL);
    curl.easy_setopt(c->curl, CURLOPT_HEADERDATA, &t);
    curl.easy_setopt(c->curl, CURLOPT_WRITEDATA, &t);
    curl.easy_setopt(c->curl, CURLOPT_ERRORBUFFER, error);
    CURLcode code = curl.easy_perform(c->curl);
    curl_off_t wait = 0;
    curl.easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &r->status);
    curl.easy_getinfo(c->curl, CURLINFO_RETRY_AFTER, &wait);
    curl.easy_setopt(c->curl, CURLOPT_ERRORBUFFER, NULL);
    r->wait_s = wait;
    c->reached = c->reached || r->status > 0;
    if (t.error)
        return t.error;
    if (hub_is_stopped(c))
        return KN_ECANCELLED;
    if (code == CURLE_OK)
        return 0;
    snprintf(c->reason, sizeof c->reason, "%s", error[0] ? error : curl.easy_strerror(code));
    return fail_for_good(c, code, c->reason);
}

/* ---- another try ----------------------------------------------------------------------------------- */

bool hub_is_passing(int result, const struct hub_reply *r)
{
    return result == HUB_CUT || (result == 0 && (r->status == 429 || r->status == 408 || r->status >= 500));
}

int hub_wait(struct hub_client *c, const char *name, int *n_failed, int result, const struct hub_reply *r)
{
    char why[300];
    int64_t wait = INT64_C(1) << (*n_failed < 5 ? *n_failed : 5);
    if (result == HUB_CUT)
        snprintf(why, sizeof why, "the connection failed (%s)", c->reason);
    else if (r->status == 429)
        snprintf(why, sizeof why, "the server limits requests (HTTP 429)");
    else
        snprintf(why, sizeof why, "the server has a fault (HTTP %ld)", r->status);
    if (result == 0 && r->wait_s > 0)
        wait = r->wait_s;
    if (wait > MOST_WAIT)
        return kn_fail(KN_EIO, "%s: %s and asks to wait for %lld s: try again later%s", name, why, (long long)wait,
                       r->status == 429 && !c->header ? ", or set HF_TOKEN: its limit is higher" : "");
    if (++*n_failed >= MOST_TRIES)
        return kn_fail(KN_EIO, "%s: %s, after %d tries: try again later, pull continues where it ended", name, why,
                       MOST_TRIES);
    kn_say(KN_LOG_INFO, "%s: %s; trying again in %lld s", name, why, (long long)wait);
    for (int64_t left = wait * c->options->second_ms; left > 0; left -= PIECE_MS) {
        int64_t ms = left < PIECE_MS ? left : PIECE_MS;
        if (hub_is_stopped(c))
            return KN_ECANCELLED;
        nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
    }
    return 0;
}

int hub_fail_status(const struct hub_client *c, const struct hub_name *name, const struct hub_reply *r)
{
    const char *repo = name->repo, *host = c->places->endpoint;
    if (!strcmp(r->code, "GatedRepo") || (r->status == 403 && !r->code[0]))
        return kn_fail(KN_EINVAL,
                       "%s is gated: accept its terms at %s/%s, then set HF_TOKEN to a token of your account", repo,
                       host, repo);
    if (!strcmp(r->code, "RevisionNotFound"))
        return kn_fail(KN_ENOENT, "%s has no revision %s", repo, name->revision[0] ? name->revision : "main");
    if (r->status == 401 && c->header && strstr(r->text, "nvalid"))
        return kn_fail(KN_EINVAL, "%s: %s does not accept the token of HF_TOKEN or of the token file", repo, host);
    if (r->status == 401 || r->status == 404)
        return kn_fail(KN_ENOENT, "%s: no such repository at %s, or it is private%s", repo, host,
                       c->header ? " and not yours" : ": set HF_TOKEN");
    return kn_fail(KN_EIO, "%s: %s answers HTTP %ld%s%s", repo, host, r->status, r->text[0] ? ": " : "", r->text);
}

/* ---- the client ------------------------------------------------------------------------------------ */

/* The token, from the environment or the file that the hub's own client writes at login. */
static bool find_token(char *out, size_t size, const struct eng_hub_places *p)
{
    char *text = NULL;
    size_t n = 0;
    int fd = -1;
    out[0] = 0;
    if (p->token)
        snprintf(out, size, "%s", p->token);
    else if (p->token_file && (fd = kn_io()->open(p->token_file, 0, 0)) >= 0) {
        if (eng_read_all(fd, p->token_file, &text, &n) == 0)
            snprintf(out, size, "%.*s", (int)(n < size ? n : size - 1), text);
        kn_free(text);
        kn_file_close(fd);
    }
    out[strcspn(out, " \t\r\n")] = 0;
    return out[0] != 0;
}

int hub_client_open(struct hub_client *c, const struct eng_hub_places *p, const struct eng_hub_pull_options *o)
{
    char token[512], line[600];
    *c = (struct hub_client){ .places = p, .options = o };
    int error = load_library();
    if (error)
        return error;
    if (curl.global_init(CURL_GLOBAL_DEFAULT) || !(c->curl = curl.easy_init()))
        return kn_fail(KN_ENOMEM, "no memory for requests");
    const char *protocols = strncmp(p->endpoint, "http:", 5) ? "https" : "http,https";
    if (find_token(token, sizeof token, p)) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", token);
        c->header = curl.slist_append(NULL, line);
    }
    curl.easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
    curl.easy_setopt(c->curl, CURLOPT_PROTOCOLS_STR, protocols);
    curl.easy_setopt(c->curl, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
    curl.easy_setopt(c->curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl.easy_setopt(c->curl, CURLOPT_MAXREDIRS, REDIRECTS);
    curl.easy_setopt(c->curl, CURLOPT_CONNECTTIMEOUT, CONNECT_S);
    curl.easy_setopt(c->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl.easy_setopt(c->curl, CURLOPT_LOW_SPEED_TIME, SILENT_S);
    curl.easy_setopt(c->curl, CURLOPT_BUFFERSIZE, 256L << 10);
    curl.easy_setopt(c->curl, CURLOPT_USERAGENT, "spillway");
    curl.easy_setopt(c->curl, CURLOPT_HTTPHEADER, c->header);
    curl.easy_setopt(c->curl, CURLOPT_HEADERFUNCTION, take_header);
    curl.easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, take_body);
    curl.easy_setopt(c->curl, CURLOPT_XFERINFOFUNCTION, stop_wanted);
    curl.easy_setopt(c->curl, CURLOPT_XFERINFODATA, c);
    curl.easy_setopt(c->curl, CURLOPT_NOPROGRESS, 0L);
    if (p->ca_file)
        curl.easy_setopt(c->curl, CURLOPT_CAINFO, p->ca_file);
    return 0;
}

void hub_client_close(struct hub_client *c)
{
    if (c->curl)
        curl.easy_cleanup(c->curl);
    if (c->header)
        curl.slist_free_all(c->header);
    *c = (struct hub_client){ 0 };
}
