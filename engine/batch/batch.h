/* engine/batch/batch.h - a file of requests to a file of answers, whatever happens on the way.  Internal to
 * engine.
 *
 *     eng_batch_open -> eng_batch_start -> [ eng_batch_step ]* -> eng_batch_settle -> eng_batch_close
 *
 * In: JSONL, one request a line, as OpenAI's batches have them.  Out: JSONL, one answer a line, in any order,
 * under the request's custom_id; what cannot be answered goes to a second file, with the reason.  Lines are
 * appended as they are done, and are on the disk about a second later.  There is no other state: a job that
 * was killed is begun again with the same command, reads what it has written, and does the rest.
 *
 * What an answer is depends on its line alone: a request without a seed gets one from its custom_id, and
 * `created` is the time of the input file.  So a job that was killed ends with the lines of one that was not.
 *
 *     lines.c     lines of a file, in as much memory as the longest takes
 *     done_ids.c  which custom_ids are done, and which have been met
 *     record.c    a line of the input to a request; answers and reasons to lines
 *     journal.c   the two output files: locked, mended, appended to, made durable by a thread
 *     run.c       sessions kept busy, until there are no more lines
 *
 * Memory does not grow with the job, but for 16 to 32 bytes a line (done_ids.c), which are taken at open. */
#ifndef ENGINE_BATCH_H
#define ENGINE_BATCH_H

#include <pthread.h>

#include "engine/engine.h"
#include "engine/api/request.h"

/* ---- lines.c ----------------------------------------------------------------------------------- */

#define ENG_LINE_MOST ((size_t)16 << 20)        /* bytes of a line; a longer one is no request */

struct eng_line {
    const char *text;                           /* [n] without its end */
    size_t n;
    uint64_t number, offset;                    /* from 1; of its first byte in the file */
    bool too_long;                              /* text is only its beginning */
    bool torn;                                  /* the file ends before the line does */
};

struct eng_lines {
    int fd;
    const char *path;
    uint64_t size, at;                          /* bytes to be read; read so far */
    uint64_t number;
    char *buffer;                               /* [room] */
    size_t room, start, end;                    /* what is not given yet: buffer[start .. end) */
};

/* Of the first `size` bytes of a file.  It stays the caller's. */
int  eng_lines_open(struct eng_lines *l, int fd, const char *path, uint64_t size);
void eng_lines_close(struct eng_lines *l);
/* 1 and a line, valid until the next call; 0 at the end; or KN_E*, said.  Blank lines are passed over. */
int  eng_lines_next(struct eng_lines *l, struct eng_line *out);

/* ---- done_ids.c -------------------------------------------------------------------------------- */

/* Names as 127 bits under a key drawn at open, so that nobody can choose two that are taken for one. */
struct eng_seen {
    struct { uint64_t a, b; } *slot;            /* [n_slot] a power of two; b's lowest bit: met in this run */
    size_t n_slot, n, most;
    uint64_t key[2];
};

enum eng_met { ENG_MET_NEW, ENG_MET_DONE, ENG_MET_TWICE };

size_t eng_seen_bytes(uint64_t most);
int  eng_seen_open(struct eng_seen *s, uint64_t most);          /* names, all of both calls below */
void eng_seen_close(struct eng_seen *s);
void eng_seen_done(struct eng_seen *s, const char *name, size_t n);         /* by an earlier run */
enum eng_met eng_seen_meet(struct eng_seen *s, const char *name, size_t n); /* in this one */

/* ---- record.c ---------------------------------------------------------------------------------- */

#define ENG_CUSTOM_ID_MOST 1024                 /* bytes */

struct eng_record {                             /* a line of the input */
    json_t *all;                                /* everything below is its */
    const char *custom_id;                      /* NULL: it has none that could be told */
    size_t n_custom_id;
    enum eng_api api;
    json_t *body;
};

struct eng_fault { const char *code; char message[256]; };      /* why a line is no request */

/* KN_EINVAL, with custom_id as far as there is one, and why; nothing is said. */
int  eng_record_parse(struct eng_record *r, const struct eng_line *line, struct eng_fault *why);
void eng_record_close(struct eng_record *r);

/* A number that names a custom_id, the same in every run: of its answer's id and, unless given, its seed. */
uint64_t eng_record_hash(const char *custom_id, size_t n);

/* A line with an answer, or with a refusal: body is JSON. */
void eng_record_write(struct eng_bytes *out, const char *custom_id, size_t n_custom_id, int status,
                      const char *body, size_t n_body);
/* A line that says why another is no request. */
void eng_record_write_fault(struct eng_bytes *out, const struct eng_record *r, uint64_t number,
                            const struct eng_fault *why);

/* What a line of an output file says is done: a custom_id, or the number of a line that was no request.
 * name has room for ENG_CUSTOM_ID_MOST; 0 bytes: it is no such line. */
size_t eng_record_read(const struct eng_line *line, char *name);
/* Is it the beginning of such a line, or as much of one as there is? */
bool eng_record_begins(const struct eng_line *line);
/* The name of a line that was no request. */
size_t eng_record_number_name(uint64_t number, char *name);

/* ---- journal.c --------------------------------------------------------------------------------- */

enum eng_outlet { ENG_OUTLET_ANSWERS, ENG_OUTLET_ERRORS, ENG_OUTLETS };

struct eng_outlet_file {
    const char *path;
    int fd;
    bool made;                                  /* it was not there before */
    uint64_t bytes, n_line;                     /* that are there, on the disk; the thread's while it runs */
    struct eng_bytes filling, writing;          /* filling: under the lock */
};

struct eng_journal {
    struct eng_outlet_file file[ENG_OUTLETS];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    bool started, closing;                      /* closing, status: under the lock */
    int status;                                 /* of the first commit that failed */
    uint64_t gather_ns;                         /* that a line waits for others before it is written */
};

/* Opens or makes both, keeps others out, and refuses what does not begin as a batch's output, untouched. */
int  eng_journal_open(struct eng_journal *j, const char *answers, const char *errors);
/* Their lines, counted; then noted in `seen`, and one that was not finished is cut off.  What is no line of a batch
 * is refused.  Before start. */
int  eng_journal_count(struct eng_journal *j, enum eng_outlet which);
int  eng_journal_read(struct eng_journal *j, enum eng_outlet which, struct eng_seen *seen);
int  eng_journal_forget(struct eng_journal *j, enum eng_outlet which);      /* empties it; before start */
void eng_journal_unmake(struct eng_journal *j);         /* of a batch that was refused: removes what it made, if empty */
int  eng_journal_start(struct eng_journal *j, uint64_t gather_ns);
/* Appends a line; it is on the disk about gather_ns later.  KN_E* once that has failed. */
int  eng_journal_add(struct eng_journal *j, enum eng_outlet which, const struct eng_bytes *line);
int  eng_journal_status(struct eng_journal *j);
/* When this returns 0 everything is on the disk.  May be called again. */
int  eng_journal_close(struct eng_journal *j);

/* ---- run.c ------------------------------------------------------------------------------------- */

struct eng_batch_options {
    const char *in, *out, *errors;
    bool retry_failed;
    uint64_t gather_ns;                         /* 0: a second */
};

struct eng_batch_counts {                       /* lines; before: dealt with by earlier runs */
    uint64_t total, before, done;
    uint64_t failed, failed_before;             /* of those; all that stand in the errors file */
    uint64_t n_token;
};

struct eng_batch;

/* Reads what there is to do and what is done.  bytes: memory that it will take beside the engine's. */
int  eng_batch_open(struct eng_batch **out, const struct eng_batch_options *o);
size_t eng_batch_bytes(const struct eng_batch *b, int n_parallel, int n_ctx);
/* setup: what requests are read with; n_parallel sessions are opened in e. */
int  eng_batch_start(struct eng_batch *b, struct eng_engine *e, const struct eng_api_setup *setup, int n_parallel);
/* 1: goes on; 0: all lines are dealt with; or KN_E*, said. */
int  eng_batch_step(struct eng_batch *b);
void eng_batch_counts(const struct eng_batch *b, struct eng_batch_counts *out);
/* No more steps: 0 when everything that is done is on the disk, or why it is not. */
int  eng_batch_settle(struct eng_batch *b);
void eng_batch_close(struct eng_batch *b);

#endif
