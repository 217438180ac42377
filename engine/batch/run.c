/* engine/batch/run.c - runs a batch: lines become parsed requests (`ask`), their choices get sessions, tokens become
 * answers, answers become output lines.
 *
 * Choices of the line that was read last get sessions as sessions become free.  The next line is read only when all
 * choices of this line have one, so that at most n_parallel + 1 lines are in progress and no session idles while lines
 * are left.  Only the journal's thread uses the clock, so no answer depends on the time. */
#include "engine/batch/batch.h"
#include "engine/api/reply.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define GATHER_NS     1000000000        /* 1 s: the work that a power cut may lose */
#define JOURNAL_BYTES ((size_t)4 << 20) /* memory of pending output lines, while the disk keeps up */
#define LINE_COPIES   6
#define LINE_LEAST    ((size_t)4 << 20) /* for any line: the split counts it to the program's round figure */
#define TOO_LARGE     "reading this line takes more memory than --host-mem leaves for it: shorten it, or raise --host-mem"
#define LONG_LINE     ((size_t)256 << 10) /* the memory freed after such a line is returned to the system */

struct line_in_progress {
    struct eng_api_request *ask; /* NULL: this struct is free */
    struct eng_reply *reply;
    char *custom_id;
    size_t n_custom_id;
    int n_dealt, n_live; /* choices that have got a session; of them, choices that still run */
};

struct slot {
    struct eng_session *session;
    struct line_in_progress *line;
};

struct eng_batch {
    struct eng_batch_options opt;
    int in;
    uint64_t in_bytes, longest; /* longest: bytes of the longest line */
    int64_t created_s;
    struct eng_lines lines;
    struct eng_seen seen;
    struct eng_journal journal;
    struct eng_batch_counts counts;
    uint64_t answered_before; /* lines in the answers file at open */

    struct eng_engine *engine;
    const struct eng_api_setup *setup;
    int n_slot, n_line;
    struct slot *slot;                /* [n_slot] */
    struct line_in_progress *line;    /* [n_line] */
    struct line_in_progress *dealing; /* line with choices that have no session yet, or NULL */
    struct eng_event *event;
    struct eng_bytes body, record; /* scratch */
    bool at_end;                   /* the input is read to its end */
};

/* ---- opening ----------------------------------------------------------------------------------- */

/* Refuses compressed files, UTF-16 text and model files by the first bytes of the first line: otherwise each line
 * would be refused for a misleading reason. */
static int check_text(const struct eng_line *first, const char *path)
{
    static const struct {
        const char *begin;
        size_t n;
        const char *what;
    } other[] = {
        { "\x1f\x8b", 2, "a gzip file" },
        { "BZh", 3, "a bzip2 file" },
        { "\xfd"
          "7zXZ",
          5, "an xz file" },
        { "\x28\xb5\x2f\xfd", 4, "a zstd file" },
        { "PK\3\4", 4, "a zip file" },
        { "\xff\xfe", 2, "UTF-16 text" },
        { "\xfe\xff", 2, "UTF-16 text" },
        { "GGUF", 4, "a model file" },
    };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (first->n >= other[i].n && !memcmp(first->text, other[i].begin, other[i].n))
            return kn_fail(KN_EINVAL, "%s: its first bytes are those of %s: a batch must be lines of plain UTF-8 text",
                           path, other[i].what);
    return 0;
}

static int open_input(struct eng_batch *b)
{
    struct stat st;
    struct eng_line line;
    int got, error = kn_file_open_read(&b->in, b->opt.in);
    if (error)
        return error;
    int64_t bytes = kn_io()->size(b->in);
    if (bytes < 0 || fstat(b->in, &st) < 0)
        return kn_fail(KN_EINVAL, "%s: %s: a batch must be a regular file, because it is read twice", b->opt.in,
                       strerror(errno));
    b->in_bytes = (uint64_t)bytes;
    b->created_s = st.st_mtime;
    if ((error = eng_lines_open(&b->lines, b->in, b->opt.in, b->in_bytes)))
        return error;
    while ((got = eng_lines_next(&b->lines, &line)) == 1) {
        if (b->counts.total++ == 0 && (error = check_text(&line, b->opt.in))) {
            got = error;
            break;
        }
        if (line.n > b->longest)
            b->longest = line.n;
    }
    eng_lines_close(&b->lines);
    if (got == 0 && b->counts.total == 0)
        return kn_fail(KN_EINVAL, "%s: the file has no lines", b->opt.in);
    return got;
}

static bool same_file(const char *path, int fd)
{
    struct stat a, b;
    return stat(path, &a) == 0 && fstat(fd, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int open_journal(struct eng_batch *b)
{
    struct eng_journal *j = &b->journal;
    int error;
    if (same_file(b->opt.out, b->in) || same_file(b->opt.errors, b->in))
        return kn_fail(KN_EINVAL, "%s: is both input and output: name another file for the output", b->opt.in);
    if ((error = eng_journal_open(j, b->opt.out, b->opt.errors)) ||
        (b->opt.retry_failed && (error = eng_journal_forget(j, ENG_OUTLET_ERRORS))))
        return error;
    uint64_t names = 2 * b->counts.total; /* a line adds its custom_id and, if it is not a request, its number */
    for (int i = 0; i < ENG_OUTLETS; i++) {
        if ((error = eng_journal_count(j, (enum eng_outlet)i)))
            return error;
        names += j->file[i].n_line;
    }
    if ((error = eng_seen_open(&b->seen, names)))
        return error;
    for (int i = 0; i < ENG_OUTLETS; i++)
        if ((error = eng_journal_read(j, (enum eng_outlet)i, &b->seen)))
            return error;
    b->answered_before = j->file[ENG_OUTLET_ANSWERS].n_line;
    b->counts.failed_before = j->file[ENG_OUTLET_ERRORS].n_line;
    return eng_journal_start(j, b->opt.gather_ns ? b->opt.gather_ns : GATHER_NS);
}

int eng_batch_open(struct eng_batch **out, const struct eng_batch_options *o)
{
    struct eng_batch *b = kn_calloc(1, sizeof *b);
    if (!b)
        return kn_fail(KN_ENOMEM, "no memory for a batch");
    b->opt = *o;
    b->in = b->journal.file[0].fd = b->journal.file[1].fd = -1;
    int error = open_input(b);
    if (error || (error = open_journal(b)) || (error = eng_lines_open(&b->lines, b->in, b->opt.in, b->in_bytes))) {
        eng_batch_close(b);
        return error;
    }
    *out = b;
    return 0;
}

/* An estimate: JSON in memory takes 4 times its text.  The line that is being parsed is in memory as text, in a buffer of
 * up to twice its size, as JSON and as a prompt.  A line that takes more is refused (take_line).  Each line in progress
 * has the JSON of its ask, of at most 32 bytes for each token of the context, because a longer request is refused, and
 * 64 bytes a token for its prompt and answer. */
static size_t request_bytes(const struct eng_batch *b, int n_parallel, int n_ctx)
{
    size_t line = b->longest < ENG_LINE_MOST ? (size_t)b->longest : ENG_LINE_MOST;
    size_t kept = line < (size_t)n_ctx * 32 ? line : (size_t)n_ctx * 32;
    size_t in_progress = 4 * kept + (size_t)n_ctx * 64;
    return LINE_COPIES * line + ((size_t)n_parallel + 1) * in_progress + JOURNAL_BYTES;
}

size_t eng_batch_bytes(const struct eng_batch *b, int n_parallel, int n_ctx)
{
    return eng_seen_bytes(b->seen.most) + request_bytes(b, n_parallel, n_ctx);
}

int eng_batch_start(struct eng_batch *b, struct eng_engine *e, const struct eng_api_setup *setup, int n_parallel)
{
    b->engine = e;
    b->setup = setup;
    b->n_line = n_parallel + 1;
    b->slot = kn_calloc((size_t)n_parallel, sizeof *b->slot);
    b->line = kn_calloc((size_t)b->n_line, sizeof *b->line);
    b->event = kn_calloc((size_t)eng_event_room(e), sizeof *b->event);
    if (!b->slot || !b->line || !b->event)
        return kn_fail(KN_ENOMEM, "no memory for %d requests at once", n_parallel);
    for (; b->n_slot < n_parallel; b->n_slot++) {
        int error = eng_session_open(&b->slot[b->n_slot].session, e);
        if (error)
            return error;
    }
    kn_heap_limit(LINE_LEAST + request_bytes(b, n_parallel, eng_n_ctx(e)));
    return 0;
}

static void close_line(struct line_in_progress *line)
{
    eng_reply_close(line->reply);
    eng_api_request_close(line->ask);
    kn_free(line->custom_id);
    *line = (struct line_in_progress){ 0 };
}

int eng_batch_settle(struct eng_batch *b)
{
    int status = eng_journal_close(&b->journal);
    uint64_t failed = b->journal.file[ENG_OUTLET_ERRORS].n_line - b->counts.failed_before;
    if (status) { /* lines in memory are lost: count only lines on disk */
        b->counts.done = b->journal.file[ENG_OUTLET_ANSWERS].n_line - b->answered_before + failed;
        b->counts.failed = failed;
    }
    return status;
}

void eng_batch_close(struct eng_batch *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->n_slot; i++)
        eng_session_close(b->slot[i].session);
    for (int i = 0; b->line && i < b->n_line; i++)
        close_line(&b->line[i]);
    if (!b->engine)
        eng_journal_unmake(&b->journal);
    (void)eng_batch_settle(b);
    eng_seen_close(&b->seen);
    eng_lines_close(&b->lines);
    kn_file_close(b->in);
    kn_free(b->slot);
    kn_free(b->line);
    kn_free(b->event);
    eng_bytes_free(&b->body);
    eng_bytes_free(&b->record);
    kn_free(b);
}

/* ---- lines out --------------------------------------------------------------------------------- */

static int write_record(struct eng_batch *b, enum eng_outlet which)
{
    int status = eng_journal_add(&b->journal, which, &b->record);
    if (!status) {
        b->counts.done++;
        b->counts.failed += which == ENG_OUTLET_ERRORS;
    }
    b->record.n = 0;
    b->record.failed = false;
    return status;
}

static int write_answer(struct eng_batch *b, struct line_in_progress *line)
{
    size_t n;
    const char *body = eng_reply_take(line->reply, &n);
    int status = eng_reply_status(line->reply);
    eng_record_write(&b->record, line->custom_id, line->n_custom_id, status, body, n);
    return write_record(b, status == 200 ? ENG_OUTLET_ANSWERS : ENG_OUTLET_ERRORS);
}

static int write_refusal(struct eng_batch *b, const struct eng_record *r, const struct eng_refusal *why)
{
    b->body.n = 0;
    eng_refusal_write(&b->body, why, r->api);
    b->record.failed = b->body.failed;
    eng_record_write(&b->record, r->custom_id, r->n_custom_id, why->status, b->body.data, b->body.n);
    return write_record(b, ENG_OUTLET_ERRORS);
}

/* Writes the fault of line `number` to the errors file, unless an earlier run has written it. */
static int write_fault(struct eng_batch *b, const struct eng_record *r, uint64_t number, const struct eng_fault *why)
{
    char name[ENG_CUSTOM_ID_MOST];
    size_t n = eng_record_number_name(number, name);
    if (eng_seen_meet(&b->seen, name, n) == ENG_MET_DONE) {
        b->counts.before++;
        return 0;
    }
    eng_record_write_fault(&b->record, r, number, why);
    return write_record(b, ENG_OUTLET_ERRORS);
}

/* ---- lines in ---------------------------------------------------------------------------------- */

static struct line_in_progress *find_free_line(struct eng_batch *b)
{
    for (int i = 0; i < b->n_line; i++)
        if (!b->line[i].ask)
            return &b->line[i];
    kn_assert(!"more lines in progress than sessions");
    return NULL;
}

/* Parses a request and opens its reply; its choices then get sessions (b->dealing).  A refused request goes to the
 * errors file. */
static int take_request(struct eng_batch *b, const struct eng_record *r)
{
    char id[20];
    struct eng_refusal why;
    struct line_in_progress *line = find_free_line(b);
    uint64_t hash = eng_record_hash(r->custom_id, r->n_custom_id);
    snprintf(id, sizeof id, "%016llx", (unsigned long long)hash);
    struct eng_arrival arrival = { .id = id, .created_s = b->created_s, .seed = hash >> 32 };
    struct kn_heap_guard guard = { 0 };
    kn_heap_guard(&guard);
    int bad = eng_api_request_parse_json(&line->ask, r->api, r->body, b->setup, &arrival, &why);
    kn_heap_guard(NULL);
    if (guard.denied_bytes) {
        close_line(line);
        bad = eng_refuse(&why, 413, NULL, "", TOO_LARGE);
    }
    if (bad)
        return write_refusal(b, r, &why);
    line->ask->stream = false; /* the answer is one line */
    line->n_custom_id = r->n_custom_id;
    line->custom_id = kn_strdup(r->custom_id);
    int error = line->custom_id ? eng_reply_open(&line->reply, line->ask, b->setup) : KN_ENOMEM;
    if (error) {
        close_line(line);
        return kn_fail(error, "no memory for an answer");
    }
    b->dealing = line;
    return 0;
}

static int take_line(struct eng_batch *b, const struct eng_line *line)
{
    struct eng_record r;
    struct eng_fault why;
    struct kn_heap_guard guard = { 0 };
    kn_heap_guard(&guard);
    int status, bad = eng_record_parse(&r, line, &why);
    kn_heap_guard(NULL);
    if (guard.denied_bytes) {
        why.code = "line_too_large";
        snprintf(why.message, sizeof why.message, TOO_LARGE);
        bad = KN_ENOMEM;
    }
    enum eng_met met = r.custom_id ? eng_seen_meet(&b->seen, r.custom_id, r.n_custom_id) : ENG_MET_NEW;
    if (!bad && met == ENG_MET_TWICE) {
        why.code = "duplicate_custom_id";
        snprintf(why.message, sizeof why.message, "an earlier line has the same custom_id: this line is not answered");
        bad = KN_EINVAL;
    }
    if (bad) {
        status = write_fault(b, &r, line->number, &why);
    } else if (met == ENG_MET_DONE) {
        b->counts.before++;
        status = 0;
    } else {
        status = take_request(b, &r);
    }
    eng_record_close(&r);
    if (line->n > LONG_LINE)
        kn_heap_trim();
    return status;
}

/* Reads lines until one is a request to answer, which becomes b->dealing, or until the end of the input. */
static int deal_next(struct eng_batch *b)
{
    struct eng_line line;
    b->dealing = NULL;
    while (!b->dealing && !b->at_end) {
        int got = eng_lines_next(&b->lines, &line);
        if (got < 0)
            return got;
        b->at_end = got == 0;
        if (!b->at_end && (got = take_line(b, &line)))
            return got;
    }
    return 0;
}

/* ---- sessions ---------------------------------------------------------------------------------- */

static int end_choice(struct eng_batch *b, struct slot *s)
{
    struct line_in_progress *line = s->line;
    s->line = NULL;
    if (--line->n_live > 0 || line->n_dealt < eng_api_request_choices(line->ask))
        return 0;
    int status = write_answer(b, line);
    close_line(line);
    return status;
}

static int feed(struct eng_batch *b, const struct eng_event *e)
{
    struct slot *s = e->owner;
    size_t failures = kn_alloc_failures();
    int got = eng_reply_feed(s->line->reply, e);
    if (got < 0 || kn_alloc_failures() != failures) /* text that was parsed with too little memory may be wrong */
        return kn_fail(got < 0 ? got : KN_ENOMEM, "no memory for an answer");
    if (got == 1)
        eng_session_stop(s->session);
    return got == 1 || e->finish != ENG_RUNNING ? end_choice(b, s) : 0;
}

static int start_choice(struct eng_batch *b, struct slot *s)
{
    struct line_in_progress *line = b->dealing;
    struct eng_request request;
    s->line = line;
    eng_api_request_of_choice(line->ask, line->n_dealt++, &request);
    request.owner = s;
    line->n_live++;
    if (line->n_dealt == eng_api_request_choices(line->ask))
        b->dealing = NULL;
    int status = eng_session_start(s->session, &request);
    if (!status)
        return 0;
    return feed(
        b, &(struct eng_event){
               .owner = s, .choice = request.choice, .token = ENG_NO_TOKEN, .finish = ENG_FAILED, .status = status });
}

/* Starts a choice in each free session, as long as lines are left.  Sets *n_busy to the number of sessions with a
 * choice. */
static int fill_slots(struct eng_batch *b, int *n_busy)
{
    *n_busy = 0;
    for (int i = 0; i < b->n_slot; i++) {
        while (!b->slot[i].line) {
            int error = b->dealing ? 0 : deal_next(b);
            if (!error && b->dealing)
                error = start_choice(b, &b->slot[i]);
            if (error)
                return error;
            if (!b->dealing && b->at_end)
                break;
        }
        *n_busy += b->slot[i].line != NULL;
    }
    return 0;
}

int eng_batch_step(struct eng_batch *b)
{
    int n_busy, error = fill_slots(b, &n_busy);
    if (error || (error = eng_journal_status(&b->journal)))
        return error;
    if (n_busy == 0)
        return 0;
    int n = eng_step(b->engine, b->event);
    for (int i = 0; i < n; i++) {
        struct eng_event *e = &b->event[i];
        if (!((struct slot *)e->owner)->line) /* the session was stopped: ignore its event */
            continue;
        b->counts.n_token += e->token != ENG_NO_TOKEN && !e->of_prompt;
        e->n_cached = 0; /* an answer must depend on its line alone */
        if ((error = feed(b, e)))
            return error;
    }
    return n < 0 ? n : 1;
}

void eng_batch_counts(const struct eng_batch *b, struct eng_batch_counts *out) { *out = b->counts; }
