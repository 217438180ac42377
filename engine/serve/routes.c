/* engine/serve/routes.c - checks of a request (API key, origin, state) and the table of routes.
 *
 * If the server has keys, all routes that are not marked open in the table need a key, and unknown paths need one, too.
 * A server without keys listens on a loopback address only.  A browser on this machine may still send requests for
 * pages of other sites, so such a server refuses requests with a foreign Origin header. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/serve/internal.h"

/* clang-format off */
static const struct srv_route routes[] = {
    { "POST", "/v1/chat/completions",        .api = ENG_API_CHAT },
    { "POST", "/v1/completions",             .api = ENG_API_COMPLETIONS },
    { "POST", "/v1/responses",               .api = ENG_API_RESPONSES },
    { "POST", "/v1/responses/input_tokens",  .api = ENG_API_RESPONSES, .counts = true },
    { "POST", "/v1/messages",                .api = ENG_API_MESSAGES },
    { "POST", "/v1/messages/count_tokens",   .api = ENG_API_MESSAGES, .counts = true },
    { "POST", "/chat/completions",           .api = ENG_API_CHAT }, /* for base URLs without /v1 */
    { "POST", "/completion",                 .api = ENG_API_LLAMA },
    { "POST", "/api/chat",                   .api = ENG_API_OLLAMA_CHAT },
    { "POST", "/api/generate",               .api = ENG_API_OLLAMA_GENERATE },
    { "POST", "/api/show",                   .work = srv_work_ollama_show, .api = ENG_API_OLLAMA_CHAT },
    { "GET",  "/api/tags",                   .now = srv_ollama_tags },
    { "GET",  "/api/ps",                     .now = srv_ollama_ps },
    { "GET",  "/api/version",                .now = srv_ollama_version },
    { "GET",  "/models",                     .now = srv_models },
    { "GET",  "/v1/models",                  .now = srv_models },
    { "GET",  "/v1/models/*",                .now = srv_model },
    { "POST", "/v1/files",                   .files = true, .transfer = srv_upload_open },
    { "GET",  "/v1/files",                   .files = true, .work = srv_work_files },
    { "GET",  "/v1/files/*/content",         .files = true, .transfer = srv_download_open },
    { "GET",  "/v1/files/*",                 .files = true, .work = srv_work_file },
    { "DELETE", "/v1/files/*",               .files = true, .work = srv_work_file_delete },
    { "POST", "/v1/batches",                 .files = true, .work = srv_work_batch_create },
    { "GET",  "/v1/batches",                 .files = true, .work = srv_work_batches },
    { "POST", "/v1/batches/*/cancel",        .files = true, .work = srv_work_batch_cancel },
    { "GET",  "/v1/batches/*",               .files = true, .work = srv_work_batch },
    { "POST", "/tokenize",                   .work = srv_work_tokenize },
    { "POST", "/detokenize",                 .work = srv_work_detokenize },
    { "POST", "/apply-template",             .work = srv_work_apply_template },
    { "GET",  "/tokenizer_info",             .now = srv_tokenizer_info },
    { "GET",  "/props",                      .now = srv_props },
    { "GET",  "/slots",                      .now = srv_slots },
    { "GET",  "/health",                     .open = true, .now = srv_health },
    { "GET",  "/v1/health",                  .open = true, .now = srv_health },
    { "GET",  "/ping",                       .open = true, .now = srv_health },
    { "GET",  "/ready",                      .now = srv_ready },
    { "GET",  "/metrics",                    .now = srv_metrics },
    { "GET",  "/version",                    .now = srv_version },
    { "GET",  "/status",                     .now = srv_status },
    { "GET",  "/status/stream",              .now = srv_status_stream },
    { "GET",  "/",                           .open = true, .now = srv_page },
    { "GET",  "/page/*",                     .open = true, .now = srv_page },
};
/* clang-format on */

#define ALLOWED_BYTES 64
#define N_ROUTE       ((int)(sizeof routes / sizeof *routes))

/* Beginnings of paths that other servers of these APIs have and this one has not, with advice.  The answer
 * is 404, not 501, after which OpenAI's libraries would try again. */
static const struct {
    const char *path, *instead;
} elsewhere[] = {
    { "/v1/embeddings", "this server only generates text: run an embedding model beside it" },
    { "/embeddings", "this server only generates text: run an embedding model beside it" },
    { "/embedding", "this server only generates text: run an embedding model beside it" },
    { "/api/embed", "this server only generates text: run an embedding model beside it" },
    { "/v1/rerank", "this server only generates text: run a reranking model beside it" },
    { "/rerank", "this server only generates text: run a reranking model beside it" },
    { "/score", "this server only generates text: log-probabilities of a prompt come with 'prompt_logprobs'" },
    { "/infill", "an answer only continues its prompt: write the model's own fill-in-the-middle tokens into the prompt "
                 "of /v1/completions" },
    { "/v1/audio/", "this server only generates text" },
    { "/v1/images/", "this server only generates text" },
    { "/v1/videos", "this server only generates text" },
    { "/v1/realtime", "this server only generates text: use 'stream' with /v1/chat/completions" },
    { "/v1/moderations", "no text is judged here: ask the model in /v1/chat/completions" },
    { "/v1/files", "no files are stored here: start the server with --files DIR" },
    { "/v1/batches", "no files are stored here: start the server with --files DIR" },
    { "/v1/uploads", "files are not sent in parts: use POST /v1/files" },
    { "/v1/fine_tuning/", "models are not trained here" },
    { "/v1/assistants", "nothing is stored here: use /v1/responses or /v1/chat/completions" },
    { "/v1/threads", "nothing is stored here: send the whole conversation to /v1/chat/completions" },
    { "/v1/vector_stores", "nothing is stored here" },
    { "/v1/responses/", "answers are not stored: the answer to POST /v1/responses is all there is" },
    { "/v1/chat/completions/", "answers are not stored: the answer to POST /v1/chat/completions is all there is" },
    { "/api/pull", "the server has the one model that it was started with" },
    { "/api/push", "the server has the one model that it was started with" },
    { "/api/create",
      "the server has the one model that it was started with: give 'system' and 'options' in a request" },
    { "/api/copy", "the server has the one model that it was started with: --alias gives it further names" },
    { "/api/delete", "the server has the one model that it was started with" },
    { "/api/blobs", "the server has the one model that it was started with" },
};

/* ---- routes ---------------------------------------------------------------------------------- */

/* A * stands for a segment that is not empty; at the end of the pattern, for one or more. */
static bool matches(const char *pattern, const char *path)
{
    for (; *pattern; pattern++) {
        if (*pattern == '*') {
            size_t n = pattern[1] ? strcspn(path, "/") : strlen(path);
            if (n == 0)
                return false;
            path += n;
        } else if (*path++ != *pattern) {
            return false;
        }
    }
    return !*path;
}

/* The route, or NULL and the methods of this path, such as "GET, POST", in allowed, [ALLOWED_BYTES]; "": no such path. */
static const struct srv_route *find_route(const struct eng_server *s, const char *method, const char *path,
                                          char *allowed)
{
    allowed[0] = 0;
    if (!strcmp(method, "HEAD"))
        method = "GET";
    for (int i = 0; i < N_ROUTE; i++) {
        if (!matches(routes[i].path, path) || (routes[i].files && !s->store))
            continue;
        if (!strcmp(routes[i].method, method))
            return &routes[i];
        if (!strstr(allowed, routes[i].method))
            snprintf(allowed + strlen(allowed), ALLOWED_BYTES - strlen(allowed), "%s%s%s", allowed[0] ? ", " : "",
                     routes[i].method, !strcmp(routes[i].method, "GET") ? ", HEAD" : "");
    }
    return NULL;
}

/* The route to suggest for an unknown path: the longest one that is a suffix of path (the client's base URL is too
 * long) or that is path without its last slash; or NULL. */
static const char *nearest_route(const char *path)
{
    size_t n = strlen(path), most = 1; /* 1: skips the page's "/", a suffix of many paths */
    const char *best = NULL;
    for (int i = 0; i < N_ROUTE; i++) {
        size_t m = strlen(routes[i].path);
        if (m <= most || m >= n)
            continue;
        if (!strcmp(path + n - m, routes[i].path) ||
            (n == m + 1 && path[m] == '/' && !strncmp(path, routes[i].path, m))) {
            best = routes[i].path;
            most = m;
        }
    }
    return best;
}

static int refuse_route(struct eng_exchange *x, const char *method, const char *path, const char *allowed,
                        struct eng_refusal *why)
{
    char shown[128];
    moe_string_show((struct moe_string){ path, strlen(path) }, shown, sizeof shown);
    if (allowed[0]) {
        eng_http_set_header(x, "Allow", allowed);
        return eng_refuse(why, 405, NULL, "", "%s accepts %s, not %s", shown, allowed, method);
    }
    const char *near = nearest_route(path);
    if (near)
        return eng_refuse(why, 404, NULL, "", "no such path: %s; use %s, or correct the base URL", shown, near);
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (!strncmp(path, elsewhere[i].path, strlen(elsewhere[i].path)))
            return eng_refuse(why, 404, NULL, "", "%s is not offered: %s", shown, elsewhere[i].instead);
    return eng_refuse(why, 404, NULL, "", "no such path: %s", shown);
}

/* The dialect of a client that asks for a path which is no route: its errors have this dialect's form. */
static enum eng_api dialect_of(const char *path)
{
    if (!strncmp(path, "/api/", 5))
        return ENG_API_OLLAMA_CHAT;
    return strncmp(path, "/v1/messages", 12) ? ENG_API_CHAT : ENG_API_MESSAGES;
}

/* ---- keys and origins ------------------------------------------------------------------------ */

/* True if pages of origin, http://host:port, may send requests: this machine's and those of the --cors origin. */
static bool origin_is_ours(const struct eng_server *s, const char *origin)
{
    static const char *const local[] = { "localhost", "127.0.0.1", "[::1]" };
    if (s->opt.cors && (!strcmp(s->opt.cors, "*") || !strcasecmp(s->opt.cors, origin)))
        return true;
    const char *host = strstr(origin, "://");
    for (size_t i = 0; host && i < sizeof local / sizeof *local; i++) {
        size_t n = strlen(local[i]);
        if (!strncasecmp(host + 3, local[i], n) && (host[3 + n] == 0 || host[3 + n] == ':'))
            return true;
    }
    return false;
}

/* A key for metrics may read nothing else; if there is one, no other key may read them. */
static int check_metrics_key(struct eng_server *s, const struct srv_route *r, int key, struct eng_refusal *why)
{
    bool metrics = r && r->now == srv_metrics, scraper = eng_api_keys_rules(s->keys, key)->only_metrics;
    if (scraper && !metrics)
        return eng_refuse(why, 403, NULL, "", "this API key may only read /metrics");
    if (metrics && !scraper && eng_api_keys_has_scraper(s->keys))
        return eng_refuse(why, 403, NULL, "", "/metrics is for API keys with only=metrics in the key file");
    return 0;
}

static int check_who(struct eng_server *s, struct eng_exchange *x, const struct srv_route *r, uint64_t *key,
                     struct eng_account **account, struct eng_refusal *why)
{
    const char *given, *origin = eng_http_header(x, "Origin");
    *key = 0;
    if (r && r->open)
        return 0;
    if (!s->keys) {
        if (origin && !origin_is_ours(s, origin))
            return eng_refuse(why, 403, NULL, "",
                              "requests from pages of other sites are refused: allow the site with --cors, or "
                              "use keys (--api-key-file)");
        return 0;
    }
    given = eng_api_keys_given(eng_http_header(x, "Authorization"), eng_http_header(x, "x-api-key"));
    int found = given ? eng_api_keys_find(s->keys, given) : -1;
    if (found >= 0) {
        *key = eng_api_keys_id(s->keys, found);
        *account = s->accounts.account[s->accounts.of_key[found]];
        (*account)->used |= !eng_api_keys_rules(s->keys, found)->only_metrics;
        return check_metrics_key(s, r, found, why);
    }
    s->metrics.n_unauthorized++;
    eng_http_set_header(x, "WWW-Authenticate", "Bearer");
    return eng_refuse(why, 401, "invalid_api_key", "",
                      given ? "unknown API key" : "an API key is required: Authorization: Bearer KEY");
}

/* ---- limits and state ------------------------------------------------------------------------ */

/* True if the body's content type is JSON's or absent.  The examples in Ollama's documentation send JSON with curl's
 * default type, so its paths and llama-server's take every type; not from a page, which can send only a few types
 * without being asked for permission (CORS). */
static bool takes_type(const struct srv_route *r, const struct eng_exchange *x)
{
    const char *type = eng_http_header(x, "Content-Type");
    return !type || !strncasecmp(type, "application/json", 16) ||
           (r->api >= ENG_API_LLAMA && !eng_http_header(x, "Origin"));
}

/* Checks a request that a reader thread will parse: its content type, the state of the server, the queue, and the bytes
 * that other clients have not taken yet: half of their limit is left for answers that are being made. */
static int check_call(struct eng_server *s, const struct srv_route *r, struct eng_exchange *x, struct eng_refusal *why)
{
    if (!takes_type(r, x))
        return eng_refuse(why, 415, NULL, "", "send JSON: Content-Type: application/json");
    if (s->state == SRV_LOADING)
        return eng_refuse(why, 503, "loading", "", "the model is being loaded");
    if (s->state != SRV_SERVING)
        return eng_refuse(why, 503, NULL, "", "the server is shutting down");
    if (eng_http_unsent(s->http) > s->limits.unsent / 2)
        return eng_refuse(why, 503, NULL, "", "too many clients do not read their answers: try again later");
    if (s->n_call >= s->n_session) {
        srv_refuse_full(s, why);
        return KN_ELIMIT;
    }
    return 0;
}

/* A long body waits while it would leave too little of the memory for requests to the one that is read.  This memory comes
 * back as long requests are read and as clients take their answers. */
bool srv_has_room(void *arg, size_t n_body)
{
    const struct eng_server *s = arg;
    return n_body <= ENG_TASK_SHORT || s->state != SRV_SERVING ||
           kn_heap_room() >= s->limits.requests / SRV_KEPT_BY_WAITING;
}

/* Answers a CORS preflight request. */
static void answer_preflight(struct eng_server *s, struct eng_exchange *x)
{
    const char *asked = eng_http_header(x, "Access-Control-Request-Headers");
    eng_http_set_header(x, "Access-Control-Allow-Methods", "GET, POST, DELETE");
    eng_http_set_header(x, "Access-Control-Allow-Headers",
                        asked && strlen(asked) < 1000 ? asked : "Authorization, Content-Type");
    eng_http_set_header(x, "Access-Control-Max-Age", "86400");
    srv_answer_plain(s, x, 204, NULL, "", 0);
}

void srv_request(void *arg, struct eng_exchange *x)
{
    struct eng_server *s = arg;
    struct eng_refusal why;
    struct srv_names names;
    uint64_t key;
    int error;
    char allowed[ALLOWED_BYTES];
    const char *method = eng_http_method(x), *path = eng_http_path(x);
    const struct srv_route *r = find_route(s, method, path, allowed);
    enum eng_api api = r ? r->api : dialect_of(path);
    srv_set_common_headers(s, x, &names);
    if (s->opt.cors && !strcmp(method, "OPTIONS")) {
        answer_preflight(s, x);
        return;
    }
    error = check_who(s, x, r, &key, &names.account, &why);
    if (!error && !r)
        error = refuse_route(x, method, path, allowed, &why);
    if (!error && !r->now && !r->transfer)
        error = check_call(s, r, x, &why);
    if (!error && r->transfer && s->state >= SRV_DRAINING)
        error = eng_refuse(&why, 503, NULL, "", "the server is shutting down");
    if (error) {
        srv_log_refusal(&names, x, &why);
        srv_answer_refusal(s, x, api, &why);
    } else if (r->now) {
        r->now(s, x);
    } else if (r->transfer) {
        r->transfer(s, x, &names, key);
    } else {
        srv_call_open(s, x, r, &names, key);
    }
}

/* Uploads are read while they arrive. */
size_t srv_streams(void *arg, const struct eng_exchange *x)
{
    const struct eng_server *s = arg;
    char allowed[ALLOWED_BYTES];
    const struct srv_route *r = find_route(s, eng_http_method(x), eng_http_path(x), allowed);
    return r && r->transfer == srv_upload_open ? ENG_HTTP_BODY_BYTES : 0;
}

void srv_body(void *arg, struct eng_exchange *x)
{
    if (eng_http_user(x))
        srv_upload_read(arg, x);
    else
        srv_request(arg, x);
}

void srv_gone(void *arg, struct eng_exchange *x)
{
    if (srv_transfer_gone(arg, x))
        return;
    if (eng_http_user(x))
        srv_call_gone(eng_http_user(x));
    else
        srv_status_gone(arg, x);
}
