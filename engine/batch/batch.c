/* engine/batch/batch.c - a batch without the sessions that compute its answers: lines of the input become parsed requests
 * (`ask`), tokens become answers, answers become output lines.
 *
 * The caller (run.c, or the server) starts the choices of a line and feeds it their events.  Only the journal's thread uses
 * the clock, so no answer depends on the time. */
#include "engine/batch/batch.h"
#include "engine/api/reply.h"
#include "engine/base/base.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define GATHER_NS     1000000000        /* 1 s: the work that a power cut may lose */
#define JOURNAL_BYTES ((size_t)4 << 20) /* memory of pending output lines, while the disk keeps up */
#define LINE_COPIES   6
#define LINE_LEAST    ((size_t)4 << 20) /* for any line: the split counts it to the program's round figure */
#define TOO_LARGE     "reading this line takes more memory than --host-mem leaves for it: shorten it, or raise --host-mem"
#define LONG_LINE     ((size_t)256 << 10) /* the memory freed after such a line is returned to the system */

struct eng_batch {
    struct eng_batch_options opt;
    int in;
    uint64_t in_bytes, longest; /* longest: bytes of the longest line */
    int64_t created_s;
    struct eng_lines lines;
    struct eng_seen seen;
    struct eng_journal journal;
    struct eng_batch_counts counts;
    uint64_t output_bytes; /* of both outputs, with the lines that are still in memory */

    const struct eng_api_setup *setup; /* NULL: not begun */
    int n_line;
    struct eng_batch_line *line;   /* [n_line] */
    struct eng_bytes body, record; /* scratch */
    bool at_end;                   /* the input is read to its end */
    bool expired;
    /* The line that was read last and could not be parsed for want of memory is parsed again: */
    bool again;
    struct eng_line last;
    enum eng_met last_met;
    bool has_met; /* last_met is set */
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
            return kn_fail(KN_EUNSUPPORTED,
                           "%s: its first bytes are those of %s: a batch must be lines of plain UTF-8 text", path,
                           other[i].what);
    return 0;
}

static int open_lines(struct eng_batch *b)
{
    int error = eng_lines_open(&b->lines, b->in, b->opt.in, b->in_bytes);
    b->lines.most = b->opt.most_line_bytes ? b->opt.most_line_bytes : ENG_LINE_MOST;
    return error;
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
    if ((error = open_lines(b)))
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
    if (got == 0 && b->opt.most_lines && b->counts.total > b->opt.most_lines)
        return kn_fail(KN_ELIMIT, "%s: a batch has at most %llu lines", b->opt.in,
                       (unsigned long long)b->opt.most_lines);
    if (got == 0 && b->counts.total == 0)
        return kn_fail(KN_EUNSUPPORTED, "%s: the file has no lines", b->opt.in);
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
    for (int i = 0; i < ENG_OUTLETS; i++)
        b->output_bytes += j->file[i].bytes;
    b->counts.answered_before = j->file[ENG_OUTLET_ANSWERS].n_line;
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
    if (error || (error = open_journal(b)) || (error = open_lines(b))) {
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

void eng_batch_limit_memory(const struct eng_batch *b, int n_parallel, int n_ctx)
{
    kn_heap_limit(LINE_LEAST + request_bytes(b, n_parallel, n_ctx));
}

int eng_batch_begin(struct eng_batch *b, const struct eng_api_setup *setup, int n_line)
{
    if (!(b->line = kn_calloc((size_t)n_line, sizeof *b->line)))
        return kn_fail(KN_ENOMEM, "no memory for %d requests at once", n_line);
    b->n_line = n_line;
    b->setup = setup;
    return 0;
}

static void close_line(struct eng_batch_line *line)
{
    eng_reply_close(line->reply);
    eng_api_request_close(line->ask);
    kn_free(line->custom_id);
    *line = (struct eng_batch_line){ 0 };
}

int eng_batch_settle(struct eng_batch *b)
{
    int status = eng_journal_close(&b->journal);
    uint64_t failed = b->journal.file[ENG_OUTLET_ERRORS].n_line - b->counts.failed_before;
    if (status) { /* lines in memory are lost: count only lines on disk */
        b->counts.done = b->journal.file[ENG_OUTLET_ANSWERS].n_line - b->counts.answered_before + failed;
        b->counts.failed = failed;
    }
    return status;
}

void eng_batch_close(struct eng_batch *b)
{
    if (!b)
        return;
    for (int i = 0; b->line && i < b->n_line; i++)
        close_line(&b->line[i]);
    if (!b->setup)
        eng_journal_unmake(&b->journal);
    (void)eng_batch_settle(b);
    eng_seen_close(&b->seen);
    eng_lines_close(&b->lines);
    kn_file_close(b->in);
    kn_free(b->line);
    eng_bytes_free(&b->body);
    eng_bytes_free(&b->record);
    kn_free(b);
}

/* ---- lines out --------------------------------------------------------------------------------- */

static int write_record(struct eng_batch *b, enum eng_outlet which)
{
    int status = eng_journal_add(&b->journal, which, &b->record);
    if (!status) {
        b->output_bytes += b->record.n;
        b->counts.done++;
        b->counts.failed += which == ENG_OUTLET_ERRORS;
    }
    b->record.n = 0;
    b->record.failed = false;
    return status;
}

static int write_answer(struct eng_batch *b, struct eng_batch_line *line)
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

static struct eng_batch_line *find_free_line(struct eng_batch *b)
{
    for (int i = 0; i < b->n_line; i++)
        if (!b->line[i].ask)
            return &b->line[i];
    kn_assert(!"more lines in progress than eng_batch_begin was told");
    return NULL;
}

/* Whether a line that was denied memory can have it later; if not, it is refused. */
static bool may_get_memory(const struct eng_batch *b, const struct kn_heap_guard *guard)
{
    return guard->denied_bytes <= b->opt.most_heap_bytes;
}

/* Parses a request and opens its reply: 1 and *out.  A refused request goes to the errors file: 0. */
static int take_request(struct eng_batch *b, const struct eng_record *r, struct eng_batch_line **out)
{
    char id[20];
    struct eng_refusal why;
    struct eng_batch_line *line = find_free_line(b);
    uint64_t hash = eng_record_hash(r->custom_id, r->n_custom_id);
    snprintf(id, sizeof id, "%016llx", (unsigned long long)hash);
    struct eng_arrival arrival = { .id = id, .created_s = b->created_s, .seed = hash >> 32 };
    struct kn_heap_guard guard = { .keep = b->opt.keep_heap_bytes };
    kn_heap_guard(&guard);
    int bad = eng_api_request_parse_json(&line->ask, r->api, r->body, b->setup, &arrival, &why);
    kn_heap_guard(NULL);
    if (guard.denied_bytes) {
        close_line(line);
        if (may_get_memory(b, &guard))
            return KN_ELIMIT;
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
    *out = line;
    return 1;
}

static enum eng_met meet(struct eng_batch *b, const struct eng_record *r)
{
    if (!b->has_met && r->custom_id)
        b->last_met = eng_seen_meet(&b->seen, r->custom_id, r->n_custom_id);
    b->has_met = r->custom_id != NULL;
    return b->has_met ? b->last_met : ENG_MET_NEW;
}

static int refuse_line(struct eng_fault *why, const char *code, const char *message)
{
    why->code = code;
    snprintf(why->message, sizeof why->message, "%s", message);
    return KN_EINVAL;
}

/* 1 and *out: the line is a request to answer; 0: it needs no answer, or is refused; KN_E*. */
static int take_record(struct eng_batch *b, const struct eng_line *line, struct eng_record *r,
                       struct eng_batch_line **out)
{
    struct eng_fault why;
    struct kn_heap_guard guard = { .keep = b->opt.keep_heap_bytes };
    kn_heap_guard(&guard);
    int bad = eng_record_parse(r, line, &why);
    kn_heap_guard(NULL);
    if (guard.denied_bytes && may_get_memory(b, &guard))
        return KN_ELIMIT;
    if (guard.denied_bytes)
        bad = refuse_line(&why, "line_too_large", TOO_LARGE);
    else if (line->too_long && b->opt.most_line_bytes)
        bad = refuse_line(&why, "line_too_long", "the line is longer than half of --max-body");
    else if (!bad && b->opt.api && r->api != *b->opt.api)
        bad = refuse_line(&why, "mismatched_url", "the line's \"url\" is not the endpoint of the batch");
    enum eng_met met = meet(b, r);
    if (!bad && met == ENG_MET_TWICE)
        bad = refuse_line(&why, "duplicate_custom_id",
                          "an earlier line has the same custom_id: this line is not answered");
    if (!bad && met == ENG_MET_DONE) {
        b->counts.before++;
        return 0;
    }
    if (!bad && b->expired)
        bad = refuse_line(&why, "batch_expired",
                          "this request could not be executed before the completion window expired");
    return bad ? write_fault(b, r, line->number, &why) : take_request(b, r, out);
}

static int take_line(struct eng_batch *b, struct eng_batch_line **out)
{
    struct eng_record r = { 0 };
    int got = take_record(b, &b->last, &r, out);
    eng_record_close(&r);
    b->again = got == KN_ELIMIT;
    if (!b->again && b->last.n > LONG_LINE)
        kn_heap_trim();
    return got;
}

int eng_batch_next(struct eng_batch *b, struct eng_batch_line **out)
{
    int got = 0;
    while (got == 0) {
        if (!b->again) {
            if (b->at_end || (got = eng_lines_next(&b->lines, &b->last)) <= 0) {
                b->at_end = b->at_end || got == 0;
                return got;
            }
            b->has_met = false;
        }
        got = take_line(b, out);
    }
    return got;
}

void eng_batch_expire(struct eng_batch *b) { b->expired = true; }

/* ---- a line in progress ------------------------------------------------------------------------ */

void eng_batch_line_start(struct eng_batch_line *line, struct eng_request *out)
{
    eng_api_request_of_choice(line->ask, line->n_dealt++, out);
    line->n_live++;
}

bool eng_batch_line_is_dealt(const struct eng_batch_line *line)
{
    return line->n_dealt == eng_api_request_choices(line->ask);
}

int eng_batch_line_feed(struct eng_batch_line *line, const struct eng_event *event)
{
    struct eng_event e = *event;
    e.n_cached = 0; /* an answer must depend on its line alone */
    size_t failures = kn_alloc_failures();
    int got = eng_reply_feed(line->reply, &e);
    if (got < 0 || kn_alloc_failures() != failures) /* text that was parsed with too little memory may be wrong */
        return got < 0 ? got : KN_ENOMEM;
    return got == 1;
}

int eng_batch_line_end(struct eng_batch *b, struct eng_batch_line *line)
{
    if (--line->n_live > 0 || !eng_batch_line_is_dealt(line))
        return 0;
    int status = write_answer(b, line);
    close_line(line);
    return status;
}

void eng_batch_count_token(struct eng_batch *b) { b->counts.n_token++; }
uint64_t eng_batch_output_bytes(const struct eng_batch *b) { return b->output_bytes; }
int eng_batch_status(struct eng_batch *b) { return eng_journal_status(&b->journal); }
void eng_batch_counts(const struct eng_batch *b, struct eng_batch_counts *out) { *out = b->counts; }
