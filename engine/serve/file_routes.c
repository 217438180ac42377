/* engine/serve/file_routes.c - /v1/files and /v1/batches of OpenAI's API over the store (engine/store/store.h).
 *
 * Everything that waits for the disk runs on the threads of a second reader pool.  An upload or a download is a transfer: the
 * serving thread moves bytes between the socket and one buffer, and lends the transfer to the pool, which reads or writes the
 * file; so a transfer holds one buffer, however large its file is.  The other paths are short calls (srv_route.work). */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/api/fields.h"
#include "engine/batch/batch.h"
#include "engine/serve/internal.h"
#include "engine/serve/multipart.h"
#include "kernels/json.h"

#define BUFFER_BYTES   131072
#define FIELD_BYTES    64
#define MOST_FILES     10000 /* objects of a list; batches: MOST_BATCHES */
#define MOST_BATCHES   100
#define SOME_BATCHES   20 /* if the client names no limit */
#define MOST_EXPIRES_S (30 * 86400)
#define HOUR_S         3600
#define MOST_WINDOW_S  (30 * 86400)
#define METADATA_PAIRS 16
#define METADATA_NAME  64
#define METADATA_VALUE 512

enum field { FIELD_NONE, FIELD_PURPOSE, FIELD_ANCHOR, FIELD_SECONDS, FIELD_COUNT };
static const char *const field_name[] = { "", "purpose", "expires_after[anchor]", "expires_after[seconds]" };

struct srv_transfer {
    struct eng_task task; /* first member: a task pointer is the srv_transfer pointer */
    struct eng_server *server;
    struct eng_exchange *x; /* NULL: the client disconnected, or the answer is sent */
    struct srv_transfer *next, **self;
    struct srv_names names;
    uint64_t key;
    bool working; /* lent to the pool, which then owns the fields below */
    char *buffer; /* [n] of BUFFER_BYTES */
    size_t n;
    struct eng_refusal why;
    bool over; /* the whole file was moved */
    /* an upload */
    bool ended; /* the buffer has the body's last bytes */
    struct eng_multipart *form;
    struct eng_store_upload upload;
    enum field field; /* of the part that is being read */
    bool in_file, has_file, form_ended;
    char value[FIELD_COUNT][FIELD_BYTES];
    struct eng_bytes text;
    /* a download */
    bool is_download, begun;
    char id[ENG_STORE_ID_BYTES];
    int fd;
    uint64_t at, n_file;
};

/* The id in a path, between `before` and `behind`; cut if it is too long to be one. */
static const char *id_of(const char *path, const char *before, const char *behind, char *id)
{
    int n = (int)(strlen(path) - strlen(before) - strlen(behind));
    snprintf(id, ENG_STORE_ID_BYTES, "%.*s", kn_min(n, ENG_STORE_ID_BYTES - 1), path + strlen(before));
    return id;
}

/* ---- refusals ---------------------------------------------------------------------------------- */

static int refuse_missing(struct eng_refusal *why, const char *what, const char *id)
{
    char shown[64];
    moe_string_show((struct moe_string){ id, strlen(id) }, shown, sizeof shown);
    return eng_refuse(why, 404, NULL, "id", "no such %s: %s", what, shown);
}

static int refuse_store(struct eng_refusal *why, int error)
{
    if (error == KN_ELIMIT)
        return eng_refuse(why, 507, "storage_full", "",
                          "the files of this server have reached their limit: delete some, or raise --files-max");
    if (error == KN_ENOMEM)
        return eng_refuse(why, 503, NULL, "", "no memory for this request now: other requests have it");
    return eng_refuse(why, 507, "storage_failed", "", "the server cannot write its files: its log has the reason");
}

/* ---- an upload: on a thread of the pool -------------------------------------------------------- */

static void begin_part(struct srv_transfer *t)
{
    t->field = FIELD_NONE;
    t->in_file = !strcmp(t->form->name, "file");
    for (int i = FIELD_NONE + 1; i < FIELD_COUNT; i++)
        if (!strcmp(t->form->name, field_name[i]))
            t->field = (enum field)i;
    if (t->in_file && (t->has_file || !t->form->is_file)) {
        eng_refuse(&t->why, 400, NULL, "file", "the form needs one part 'file', with a file name");
    } else if (t->in_file) {
        t->has_file = true;
        memcpy(t->upload.record.name, t->form->file_name, sizeof t->upload.record.name);
    }
}

static void take_content(struct srv_transfer *t, const char *data, size_t n)
{
    if (t->in_file) {
        int error = eng_store_upload_write(&t->upload, data, n);
        if (error)
            refuse_store(&t->why, error);
    } else if (t->field) {
        char *value = t->value[t->field];
        size_t had = strlen(value);
        if (had + n >= FIELD_BYTES || memchr(data, 0, n)) {
            eng_refuse(&t->why, 400, NULL, field_name[t->field], "its value is too long");
        } else {
            memcpy(value + had, data, n);
            value[had + n] = 0;
        }
    }
}

static void take_form(struct srv_transfer *t)
{
    for (size_t i = 0; i < t->n && !eng_refused(&t->why);) {
        enum eng_multipart_event event;
        enum eng_multipart_fault fault;
        const char *data;
        size_t n;
        i += eng_multipart_take(t->form, t->buffer + i, t->n - i, &event, &data, &n, &fault);
        if (fault) {
            eng_refuse(&t->why, 400, NULL, "", "%s", eng_multipart_fault_text(fault));
        } else if (event == ENG_MULTIPART_PART) {
            begin_part(t);
        } else if (event == ENG_MULTIPART_DATA) {
            take_content(t, data, n);
        }
        t->form_ended = t->form_ended || event == ENG_MULTIPART_END;
    }
}

/* Reads expires_after: the seconds from now; 0: the file does not expire. */
static int read_expiry(struct srv_transfer *t, int64_t *seconds)
{
    const char *anchor = t->value[FIELD_ANCHOR], *text = t->value[FIELD_SECONDS];
    char *end;
    *seconds = 0;
    if (!anchor[0] && !text[0])
        return 0;
    *seconds = strtoll(text, &end, 10);
    if (strcmp(anchor, "created_at") != 0 || !text[0] || *end || *seconds < HOUR_S || *seconds > MOST_EXPIRES_S)
        return eng_refuse(&t->why, 400, NULL, "expires_after",
                          "it needs 'anchor' created_at and 'seconds' from 3600 to 2592000");
    return 0;
}

static void end_upload(struct srv_transfer *t)
{
    struct eng_store_file *f = &t->upload.record;
    int64_t seconds;
    if (!t->form_ended)
        eng_refuse(&t->why, 400, NULL, "", "the multipart body ends before its last boundary");
    else if (!t->has_file)
        eng_refuse(&t->why, 400, NULL, "file", "the form has no part 'file'");
    else if (strcmp(t->value[FIELD_PURPOSE], "batch") != 0)
        eng_refuse(&t->why, 400, NULL, "purpose", "it must be batch: files are only used by /v1/batches");
    if (eng_refused(&t->why) || read_expiry(t, &seconds))
        return;
    f->key = t->key;
    f->expires_s = seconds ? f->created_s + seconds : 0;
    if (!f->name[0])
        strcpy(f->name, "upload.jsonl");
    struct eng_store_file kept = *f;
    int error = eng_store_upload_commit(&t->upload);
    if (error) {
        refuse_store(&t->why, error);
        return;
    }
    eng_store_file_write(&t->text, &kept);
    t->over = true;
}

static void work_upload(struct eng_task *task)
{
    struct srv_transfer *t = (struct srv_transfer *)task;
    int error = t->upload.store ? 0 : eng_store_upload_open(&t->upload, t->server->store);
    if (error)
        refuse_store(&t->why, error);
    take_form(t);
    t->n = 0;
    if (t->ended && !eng_refused(&t->why))
        end_upload(t);
}

/* ---- a download: on a thread of the pool ------------------------------------------------------- */

static void work_download(struct eng_task *task)
{
    struct srv_transfer *t = (struct srv_transfer *)task;
    struct eng_store_file f;
    char path[ENG_PATH_BYTES];
    int error = 0;
    if (t->fd < 0) {
        error = eng_store_file_open(t->server->store, t->key, t->id, &t->fd, &f);
        if (error == KN_ENOENT)
            refuse_missing(&t->why, "file", t->id);
        t->n_file = error ? 0 : f.bytes;
    }
    uint64_t left = t->n_file - t->at;
    t->n = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES;
    eng_store_path(t->server->store, t->id, path);
    if (!error)
        error = kn_file_read(t->fd, path, t->buffer, t->n, t->at);
    if (error && !eng_refused(&t->why))
        eng_refuse(&t->why, 500, NULL, "", "the server cannot read the file: its log has the reason");
    t->at += t->n;
    t->over = t->at == t->n_file;
}

/* ---- transfers: on the serving thread ---------------------------------------------------------- */

static void free_transfer(struct srv_transfer *t)
{
    if ((*t->self = t->next))
        t->next->self = t->self;
    t->server->n_transfer--;
    if (!t->is_download)
        eng_store_upload_close(&t->upload);
    if (t->fd >= 0)
        kn_file_close(t->fd);
    eng_bytes_free(&t->text);
    kn_free(t->form);
    kn_free(t->buffer);
    kn_free(t);
}

static void lend(struct srv_transfer *t, void (*work)(struct eng_task *))
{
    t->task = (struct eng_task){ .run = work, .bytes = BUFFER_BYTES, .key = t->key };
    t->working = true;
    eng_reader_pool_add(t->server->file_pool, &t->task);
}

static void answer_refusal(struct srv_transfer *t, const struct eng_refusal *why)
{
    struct eng_exchange *x = t->x;
    t->x = NULL;
    srv_log_refusal(&t->names, x, why);
    srv_answer_refusal(t->server, x, ENG_API_CHAT, why);
}

/* NULL: refused. */
static struct srv_transfer *open_transfer(struct eng_server *s, struct eng_exchange *x, const struct srv_names *names,
                                          uint64_t key)
{
    struct eng_refusal why = { 0 };
    struct srv_transfer *t = s->n_transfer < SRV_MAX_TRANSFER ? kn_calloc(1, sizeof *t) : NULL;
    if (s->n_transfer >= SRV_MAX_TRANSFER)
        eng_refuse(&why, 429, "too_many_transfers", "", "%d files are being sent now: try again later",
                   SRV_MAX_TRANSFER);
    else if (!t || !(t->buffer = kn_alloc(BUFFER_BYTES)) || !(t->form = kn_alloc(sizeof *t->form)))
        eng_refuse(&why, 503, NULL, "", "no memory for this request now: other requests have it");
    if (eng_refused(&why)) {
        if (t)
            kn_free(t->buffer);
        kn_free(t);
        srv_log_refusal(names, x, &why);
        srv_answer_refusal(s, x, ENG_API_CHAT, &why);
        return NULL;
    }
    t->server = s;
    t->x = x;
    t->names = *names;
    t->key = key;
    t->fd = -1;
    t->upload = (struct eng_store_upload){ .file = { .fd = -1 } };
    t->self = &s->transfers;
    if ((t->next = s->transfers))
        t->next->self = &t->next;
    s->transfers = t;
    s->n_transfer++;
    eng_http_set_user(x, t);
    return t;
}

static struct srv_transfer *find(struct eng_server *s, const struct eng_exchange *x)
{
    struct srv_transfer *t = s->transfers;
    while (t && t->x != x)
        t = t->next;
    return t;
}

void srv_upload_open(struct eng_server *s, struct eng_exchange *x, const struct srv_names *names, uint64_t key)
{
    struct srv_transfer *t = open_transfer(s, x, names, key);
    if (!t)
        return;
    enum eng_multipart_fault fault = eng_multipart_open(t->form, eng_http_header(x, "Content-Type"));
    if (fault) {
        eng_refuse(&t->why, 400, NULL, "", "%s", eng_multipart_fault_text(fault));
        answer_refusal(t, &t->why);
        free_transfer(t);
    } else {
        srv_upload_read(s, x);
    }
}

void srv_upload_read(struct eng_server *s, struct eng_exchange *x)
{
    struct srv_transfer *t = find(s, x);
    enum eng_http_fault fault;
    if (!t || t->working)
        return;
    t->n = eng_http_read(x, t->buffer, BUFFER_BYTES, &fault);
    if (fault) {
        eng_refuse(&t->why, eng_http_fault_status(fault), NULL, "", "%s", eng_http_fault_text(fault));
        answer_refusal(t, &t->why);
        free_transfer(t);
        return;
    }
    t->ended = eng_http_has_ended(x);
    if (t->n || t->ended)
        lend(t, work_upload);
}

void srv_download_open(struct eng_server *s, struct eng_exchange *x, const struct srv_names *names, uint64_t key)
{
    struct srv_transfer *t = open_transfer(s, x, names, key);
    if (!t)
        return;
    t->is_download = true;
    (void)id_of(eng_http_path(x), "/v1/files/", "/content", t->id);
    lend(t, work_download);
}

/* Sends the piece that was read; the next is read once the client has taken it. */
static void send_piece(struct srv_transfer *t)
{
    struct eng_exchange *x = t->x;
    if (!t->begun) {
        eng_http_set_header(x, "X-Content-Type-Options", "nosniff");
        eng_http_begin(x, 200, "application/octet-stream");
        t->server->metrics.n_answered[2]++;
        t->begun = true;
    }
    if (t->over) {
        t->x = NULL;
        eng_http_end(x, t->buffer, t->n);
        free_transfer(t);
        return;
    }
    eng_http_chunk(x, t->buffer, t->n);
    if (eng_http_is_sent(x))
        lend(t, work_download);
}

void srv_transfer_sent(void *arg, struct eng_exchange *x)
{
    struct srv_transfer *t = find(arg, x);
    if (t && t->is_download && t->begun && !t->working)
        lend(t, work_download);
}

static void take_back(struct srv_transfer *t)
{
    struct eng_exchange *x = t->x;
    t->working = false;
    if (!x) {
        free_transfer(t);
    } else if (eng_refused(&t->why) &&
               t->begun) { /* status 200 was sent: the client must see that the file is not whole */
        eng_http_cut(x);
    } else if (eng_refused(&t->why)) {
        answer_refusal(t, &t->why);
        free_transfer(t);
    } else if (t->is_download) {
        send_piece(t);
    } else if (t->over) {
        t->x = NULL;
        srv_log_done(&t->names, x, "a new file");
        srv_answer_json(t->server, x, &t->text);
        free_transfer(t);
    } else {
        srv_upload_read(t->server, x);
    }
}

void srv_transfers_take(struct eng_server *s)
{
    for (struct eng_task *task; s->file_pool && (task = eng_reader_pool_take(s->file_pool));) {
        if (task->run == work_upload || task->run == work_download)
            take_back((struct srv_transfer *)task);
        else
            srv_call_take_read(task);
    }
}

bool srv_transfer_gone(struct eng_server *s, struct eng_exchange *x)
{
    struct srv_transfer *t = find(s, x);
    if (!t)
        return false;
    t->x = NULL;
    if (!t->working)
        free_transfer(t);
    return true;
}

void srv_transfers_fail(struct eng_server *s)
{
    for (struct srv_transfer *t = s->transfers, *next; t; t = next) {
        next = t->next;
        if (!t->x)
            continue;
        if (t->begun) {
            eng_http_cut(t->x);
            continue;
        }
        struct eng_refusal why = { 0 }; /* t->why may be the pool's now */
        eng_refuse(&why, 503, NULL, "", "the server is shutting down");
        answer_refusal(t, &why);
        if (!t->working)
            free_transfer(t);
    }
}

void srv_transfers_close(struct eng_server *s)
{
    while (s->transfers)
        free_transfer(s->transfers);
}

/* ---- short calls: on a thread of the pool ------------------------------------------------------ */

/* The value of a member of the query, [room]; false: it is absent, or too long. */
static bool read_query(const char *query, const char *name, char *out, size_t room)
{
    size_t n_name = strlen(name);
    for (const char *p = query; *p; p += strcspn(p, "&"), p += *p == '&') {
        size_t n = strcspn(p, "&");
        if (n <= n_name || strncmp(p, name, n_name) != 0 || p[n_name] != '=' || n - n_name - 1 >= room)
            continue;
        snprintf(out, room, "%.*s", (int)(n - n_name - 1), p + n_name + 1);
        return true;
    }
    return false;
}

struct listing {
    struct eng_store_page page;
    char after[ENG_STORE_ID_BYTES], purpose[32];
};

static int read_page(struct srv_call *c, struct listing *l, int some, int most)
{
    char text[16], *end;
    l->page = (struct eng_store_page){ .limit = some, .after = l->after };
    l->after[0] = 0;
    if (read_query(c->query, "limit", text, sizeof text)) {
        long n = strtol(text, &end, 10);
        if (*end || n < 1 || n > most)
            return eng_refuse(&c->why, 400, NULL, "limit", "it must be a number from 1 to %d", most);
        l->page.limit = (int)n;
    }
    if (read_query(c->query, "order", text, sizeof text)) {
        l->page.ascending = !strcmp(text, "asc");
        if (!l->page.ascending && strcmp(text, "desc") != 0)
            return eng_refuse(&c->why, 400, NULL, "order", "it must be asc or desc");
    }
    if (read_query(c->query, "purpose", l->purpose, sizeof l->purpose))
        l->page.purpose = l->purpose;
    (void)read_query(c->query, "after", l->after, sizeof l->after);
    return 0;
}

static void end_call(struct srv_call *c, int refused) { c->refused = refused != 0; }

void srv_work_files(struct srv_call *c)
{
    struct listing l;
    int error = read_page(c, &l, MOST_FILES, MOST_FILES);
    if (!error && eng_store_files_write(c->server->store, c->key, &l.page, &c->text))
        error = refuse_missing(&c->why, "file", l.after);
    end_call(c, error);
}

void srv_work_file(struct srv_call *c)
{
    char id[ENG_STORE_ID_BYTES];
    struct eng_store_file f;
    int error = 0;
    if (eng_store_file_get(c->server->store, c->key, id_of(c->path, "/v1/files/", "", id), &f))
        error = refuse_missing(&c->why, "file", id);
    else
        eng_store_file_write(&c->text, &f);
    end_call(c, error);
}

void srv_work_file_delete(struct srv_call *c)
{
    char id[ENG_STORE_ID_BYTES], batch[ENG_STORE_ID_BYTES];
    int error = eng_store_file_delete(c->server->store, c->key, id_of(c->path, "/v1/files/", "", id), batch);
    if (error == KN_EINVAL)
        error = eng_refuse(&c->why, 400, NULL, "id", "%s reads the file: cancel it first, or wait for its end", batch);
    else if (error)
        error = refuse_missing(&c->why, "file", id);
    else
        eng_bytes_format(&c->text, "{\"id\":\"%s\",\"object\":\"file\",\"deleted\":true}", id);
    end_call(c, error);
}

/* Reads a completion_window such as 24h: a number of minutes, hours or days. */
static int64_t read_window(const char *text)
{
    char *end;
    int64_t n = strtoll(text, &end, 10), unit = *end == 'm' ? 60 : *end == 'h' ? HOUR_S : *end == 'd' ? 86400 : 0;
    return !unit || end[1] || n < 1 || n > MOST_WINDOW_S / unit ? 0 : n * unit;
}

static int read_metadata(struct eng_fields *f, char **out)
{
    json_t *object = json_object_get(f->object, "metadata"), *value;
    const char *name;
    if (!object || json_is_null(object))
        return 0;
    bool good = json_is_object(object) && json_object_size(object) <= METADATA_PAIRS;
    json_object_foreach(object, name, value) good = good && strlen(name) <= METADATA_NAME && json_is_string(value) &&
                                                    json_string_length(value) <= METADATA_VALUE;
    if (!good)
        return eng_refuse(f->why, 400, NULL, "metadata",
                          "it must be an object of up to 16 strings of 512 bytes, with names of 64");
    *out = eng_json_text(object);
    return *out ? 0 : refuse_store(f->why, KN_ENOMEM);
}

static int read_batch(struct eng_fields *f, struct eng_store_batch *b, int64_t *window_s)
{
    enum eng_api api;
    const char *input = json_string_value(eng_field_string(f, "input_file_id")),
               *endpoint = json_string_value(eng_field_string(f, "endpoint")),
               *window = json_string_value(eng_field_string(f, "completion_window"));
    if (eng_refused(f->why))
        return KN_EINVAL;
    if (!input)
        return eng_refuse(f->why, 400, NULL, "input_file_id", "it is missing");
    if (!endpoint || strlen(endpoint) >= sizeof b->endpoint || !eng_record_api(endpoint, &api))
        return eng_refuse(f->why, 400, NULL, "endpoint",
                          "it must be /v1/chat/completions, /v1/completions, /v1/responses or /v1/messages");
    if (!window || strlen(window) >= sizeof b->window || !(*window_s = read_window(window)))
        return eng_refuse(f->why, 400, NULL, "completion_window",
                          "it must be a number of minutes, hours or days, such as 24h, and at most 30d");
    snprintf(b->input, sizeof b->input, "%s", input);
    strcpy(b->endpoint, endpoint);
    strcpy(b->window, window);
    return read_metadata(f, &b->metadata);
}

void srv_work_batch_create(struct srv_call *c)
{
    struct eng_store_batch b = { .key = c->key };
    json_t *root = srv_body_object(c);
    struct eng_fields f = { .object = root, .why = &c->why };
    int64_t window_s = 0;
    if (!root)
        return;
    int error = read_batch(&f, &b, &window_s);
    if (!error) {
        error = eng_store_batch_create(c->server->store, &b, (int64_t)time(NULL), window_s);
        if (error == KN_ENOENT)
            error = eng_refuse(&c->why, 400, NULL, "input_file_id", "no such file with purpose batch");
        else if (error == KN_ELIMIT)
            error = eng_refuse(&c->why, 429, "too_many_batches", "", "too many batches are unfinished");
        else if (error)
            error = refuse_store(&c->why, error);
    }
    if (!error) {
        (void)eng_store_batch_write(c->server->store, c->key, b.id, &c->text);
        srv_batches_wake(c->server);
    }
    kn_free(b.metadata);
    json_decref(root);
    end_call(c, error);
}

void srv_work_batches(struct srv_call *c)
{
    struct listing l;
    int error = read_page(c, &l, SOME_BATCHES, MOST_BATCHES);
    if (!error && eng_store_batches_write(c->server->store, c->key, &l.page, &c->text))
        error = refuse_missing(&c->why, "batch", l.after);
    end_call(c, error);
}

void srv_work_batch(struct srv_call *c)
{
    char id[ENG_STORE_ID_BYTES];
    int error = eng_store_batch_write(c->server->store, c->key, id_of(c->path, "/v1/batches/", "", id), &c->text);
    end_call(c, error ? refuse_missing(&c->why, "batch", id) : 0);
}

void srv_work_batch_cancel(struct srv_call *c)
{
    char id[ENG_STORE_ID_BYTES];
    int error = eng_store_batch_cancel(c->server->store, c->key, id_of(c->path, "/v1/batches/", "/cancel", id),
                                       (int64_t)time(NULL), &c->text);
    if (error == KN_ENOENT)
        error = refuse_missing(&c->why, "batch", id);
    else if (error == KN_EINVAL)
        error = eng_refuse(&c->why, 400, NULL, "id", "the batch has ended or is finalizing: it cannot be cancelled");
    else if (error)
        error = refuse_store(&c->why, error);
    else
        srv_batches_wake(c->server);
    end_call(c, error);
}
