/* engine/batch/batch.h - answers a file of requests into a file of answers; resumes after a crash.  Internal to engine.
 *
 *     eng_batch_open -> eng_batch_run_open -> [ eng_batch_run_step ]* -> eng_batch_settle -> eng_batch_run_close, _close
 *
 * Input: JSONL, one request a line, in the format of OpenAI's batches.  Output: JSONL, one answer a line, in any order,
 * with the request's custom_id; requests that cannot be answered go to a second file with the reason.  An answer is
 * appended when it is complete and is on disk about a second later.  There is no other state: a killed batch is
 * restarted with the same command, reads its own output and answers the missing lines.
 *
 * An answer depends on its line alone: a request without a seed gets one from its custom_id, and `created` is the time
 * of the input file.  So a batch that was killed and resumed writes the same lines as an uninterrupted batch.
 *
 *     crc32.c     the checksum of an output line
 *     lines.c     reads lines of a file, in as much memory as the longest one takes
 *     done_ids.c  set of custom_ids that an earlier run finished or this run has read
 *     record.c    parses lines of the input; formats lines of the output and reads them back
 *     journal.c   the two output files: lock, repair, append, sync by a thread
 *     batch.c     a batch: lines to requests, tokens to answers, answers to lines
 *     run.c       computes the answers: keeps the sessions of an engine busy until the input ends
 *
 * Memory does not grow with the number of lines, except the set of done_ids.c: 43 to 128 bytes for each line of the
 * input, allocated at open. */
#ifndef ENGINE_BATCH_BATCH_H
#define ENGINE_BATCH_BATCH_H

#include <pthread.h>

#include "engine/engine.h"
#include "engine/api/request.h"

/* ---- crc32.c ----------------------------------------------------------------------------------- */

/* Continues a CRC-32 with data[n]; crc 0: begins one. */
uint32_t eng_crc32(uint32_t crc, const void *data, size_t n);

/* ---- lines.c ----------------------------------------------------------------------------------- */

#define ENG_LINE_MOST ((size_t)16 << 20) /* bytes of a line; a longer line is refused */

struct eng_line {
    const char *text; /* [n] without the newline, a CR before it, and a byte order mark */
    size_t n;
    uint64_t number, offset; /* line number from 1; file offset of its first byte */
    uint64_t bytes;          /* in the file, without the newline; n is less for a line that is too long */
    bool too_long;           /* text holds only the beginning of the line */
    bool torn;               /* this last line has no newline */
};

struct eng_lines {
    int fd;
    const char *path;
    uint64_t size, at; /* bytes to read; bytes read so far */
    size_t most;       /* bytes of a line, at most ENG_LINE_MOST; a longer one is too_long */
    uint64_t number;
    char *buffer;            /* [room] */
    size_t room, start, end; /* unread bytes: buffer[start .. end) */
};

/* Reads the first `size` bytes of fd, which the caller closes.  path must outlive l. */
int eng_lines_open(struct eng_lines *l, int fd, const char *path, uint64_t size);
void eng_lines_close(struct eng_lines *l);
/* 1 and a line, valid until the next call; 0 at the end; or KN_E*, reported.  Blank lines are skipped, but not an
 * unfinished last one. */
int eng_lines_next(struct eng_lines *l, struct eng_line *out);

/* ---- done_ids.c -------------------------------------------------------------------------------- */

/* Set of names as 127-bit hashes under a random key drawn at open, so that collisions cannot be chosen. */
struct eng_seen {
    struct {
        uint64_t a, b;
    } * slot;               /* [n_slot], a power of two; a 0: free; lowest bit of b: met in this run */
    size_t n_slot, n, most; /* n: names in the set; most: limit of n */
    uint64_t key[2];
};

/* A name that is met was not in the set; was done by an earlier run; or was met earlier in this run. */
enum eng_met { ENG_MET_NEW, ENG_MET_DONE, ENG_MET_TWICE };

size_t eng_seen_bytes(uint64_t most);
int eng_seen_open(struct eng_seen *s, uint64_t most); /* most: limit of all names added */
void eng_seen_close(struct eng_seen *s);
void eng_seen_done(struct eng_seen *s, const char *name, size_t n); /* adds a name that an earlier run finished */
enum eng_met eng_seen_meet(struct eng_seen *s, const char *name, size_t n); /* adds a name that this run has read */

/* ---- record.c ---------------------------------------------------------------------------------- */

#define ENG_CUSTOM_ID_MOST 1024 /* bytes */

struct eng_record {        /* a line of the input */
    json_t *all;           /* owns everything below */
    const char *custom_id; /* NULL: missing or invalid */
    size_t n_custom_id;
    enum eng_api api;
    json_t *body;
};

struct eng_fault {
    const char *code;
    char message[256];
}; /* why a line is not a request */

/* Returns 0; or KN_EINVAL with the reason in *why, and with r->custom_id if the line has a valid one.  Logs nothing.
 * The caller closes r in both cases. */
int eng_record_parse(struct eng_record *r, const struct eng_line *line, struct eng_fault *why);
void eng_record_close(struct eng_record *r);

bool eng_record_api(const char *url, enum eng_api *out); /* false: no request of a batch has this "url" */

/* A hash of a custom_id, the same in every run: for the answer's id and for the seed of a request without a seed. */
uint64_t eng_record_hash(const char *custom_id, size_t n);

/* Writes a line with an answer or a refusal: body is JSON. */
void eng_record_write(struct eng_bytes *out, const char *custom_id, size_t n_custom_id, int status, const char *body,
                      size_t n_body);
/* Writes a line with the reason why line `number` is not a request. */
void eng_record_write_fault(struct eng_bytes *out, const struct eng_record *r, uint64_t number,
                            const struct eng_fault *why);

/* An output line ends with its checksum, in ENG_CHECK_BYTES: ,"crc32":"89abcdef"} */
#define ENG_CHECK_BYTES 20
/* True if the checksum is in the last bytes of a line, end[ENG_CHECK_BYTES]: sets *crc. */
bool eng_record_checksum(const char *end, uint32_t *crc);
/* False if the line of an output file, in memory as a whole, is not as it was written. */
bool eng_record_is_whole(const struct eng_line *line);

/* Writes to name, [ENG_CUSTOM_ID_MOST], the name of the request that a line of an output file answers: its custom_id,
 * or eng_record_number_name of an input line that is not a request.  Returns the bytes of the name; 0: not a line of a
 * batch's output. */
size_t eng_record_read(const struct eng_line *line, char *name);
/* True if the line begins like a line of a batch's output; a torn line may end within this beginning. */
bool eng_record_begins(const struct eng_line *line);
/* Writes the name that stands in the set of done_ids.c for line `number` of the input, if that line is not a request.
 * Returns the bytes of the name. */
size_t eng_record_number_name(uint64_t number, char *name);

/* ---- journal.c --------------------------------------------------------------------------------- */

enum eng_outlet { ENG_OUTLET_ANSWERS, ENG_OUTLET_ERRORS, ENG_OUTLETS };

struct eng_outlet_file {
    const char *path;
    int fd;
    bool made;                         /* created by eng_journal_open */
    uint64_t bytes, n_line;            /* on disk; written by the thread while it runs */
    uint64_t keep;                     /* set by eng_journal_count: bytes of whole lines; the others are cut off */
    struct eng_bytes filling, writing; /* filling: new lines, under lock; writing: used by the thread only */
};

struct eng_journal {
    struct eng_outlet_file file[ENG_OUTLETS];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    bool started, closing; /* closing, status: under lock */
    int status;            /* error of the first failed commit */
    uint64_t gather_ns;    /* time for which the thread collects lines before it writes them */
};

/* Opens or creates both files and locks them.  Does not change a file that does not begin like a batch's output, and
 * fails. */
int eng_journal_open(struct eng_journal *j, const char *answers, const char *errors);
/* Call both before eng_journal_start.  eng_journal_count checks all lines and sets n_line; it fails, naming the lines, if
 * a line is damaged or not a line of a batch's output, unless a power cut or a kill explains it: an end of the file
 * without a newline, or with zeros.  eng_journal_read cuts off such an end, and adds the name of each line to `seen`. */
int eng_journal_count(struct eng_journal *j, enum eng_outlet which);
int eng_journal_read(struct eng_journal *j, enum eng_outlet which, struct eng_seen *seen);
int eng_journal_forget(struct eng_journal *j, enum eng_outlet which); /* empties the file; before start */
void eng_journal_unmake(struct eng_journal *j); /* if the batch does not start: removes empty files that open created */
int eng_journal_start(struct eng_journal *j, uint64_t gather_ns);
/* Appends a line, which is on disk about gather_ns later; waits while 16 MiB are pending.  KN_E*: no memory, or an
 * earlier write has failed. */
int eng_journal_add(struct eng_journal *j, enum eng_outlet which, const struct eng_bytes *line);
int eng_journal_status(struct eng_journal *j); /* 0, or the error of the first failed write */
/* Writes the pending lines and ends the thread.  0: all lines are on disk.  May be called again. */
int eng_journal_close(struct eng_journal *j);

/* ---- batch.c ----------------------------------------------------------------------------------- */

struct eng_batch_options {
    const char *in, *out, *errors;
    bool retry_failed;       /* empty the errors file and answer its lines again */
    uint64_t gather_ns;      /* 0: a second */
    size_t most_line_bytes;  /* of a line of the input; 0: ENG_LINE_MOST */
    uint64_t most_lines;     /* of the input; 0: any number */
    const enum eng_api *api; /* only requests for this endpoint are answered; NULL: for any */
    /* Memory for requests (struct kn_heap_guard): reading a line leaves keep_heap_bytes to others.  A line that takes no
     * more than most_heap_bytes waits for memory (eng_batch_next); one that takes more is refused. */
    size_t keep_heap_bytes, most_heap_bytes;
};

struct eng_batch_counts {         /* lines of the input */
    uint64_t total, before, done; /* before: finished by earlier runs; done: by this run, synced to disk or not */
    /* failed: of done, those in the errors file; failed_before: lines in the errors file at open */
    uint64_t failed, failed_before;
    uint64_t answered_before; /* lines in the answers file at open */
    uint64_t n_token;         /* generated */
};

struct eng_batch;

/* A request in progress.  Its events may be fed by another thread than the one that calls the functions with b. */
struct eng_batch_line {
    struct eng_api_request *ask; /* NULL: this struct is free */
    struct eng_reply *reply;
    char *custom_id;
    size_t n_custom_id;
    int n_dealt, n_live; /* choices that were started; of them, choices that have not ended */
};

/* Counts the lines of the input, opens and locks the outputs, and reads the names of finished lines.  KN_EUNSUPPORTED:
 * the input is no text or has no lines; KN_ELIMIT: it has too many. */
int eng_batch_open(struct eng_batch **out, const struct eng_batch_options *o);
/* The memory that the batch needs beside the engine's, in bytes. */
size_t eng_batch_bytes(const struct eng_batch *b, int n_parallel, int n_ctx);
/* Limits the memory for requests of the process to that of this batch. */
void eng_batch_limit_memory(const struct eng_batch *b, int n_parallel, int n_ctx);
/* n_line: most lines in progress at once.  setup is used to parse requests and must outlive b. */
int eng_batch_begin(struct eng_batch *b, const struct eng_api_setup *setup, int n_line);
/* Reads lines until one is a request to answer: 1, and a line; the caller starts its choices.  0: the end of the input.
 * KN_ELIMIT: there is no memory now for the next line: call again later.  Other KN_E*, reported.  Lines that are no
 * request, and requests that are refused, go to the errors file. */
int eng_batch_next(struct eng_batch *b, struct eng_batch_line **out);
void eng_batch_expire(struct eng_batch *b); /* the lines that are read from now on go to the errors file, as expired */
/* Sets *out to the engine request of the line's next choice, as eng_api_request_of_choice does. */
void eng_batch_line_start(struct eng_batch_line *line, struct eng_request *out);
bool eng_batch_line_is_dealt(const struct eng_batch_line *line); /* all of its choices were started */
/* 0; 1: the choice has ended, and its session may be stopped; or KN_ENOMEM: the answer cannot be completed. */
int eng_batch_line_feed(struct eng_batch_line *line, const struct eng_event *event);
/* Call once for each choice that has ended.  The last one writes the answer and frees the line. */
int eng_batch_line_end(struct eng_batch *b, struct eng_batch_line *line);
void eng_batch_count_token(struct eng_batch *b);            /* for the counts: an event had a generated token */
uint64_t eng_batch_output_bytes(const struct eng_batch *b); /* of both outputs */
int eng_batch_status(struct eng_batch *b);                  /* 0, or the error of the first failed write of an output */
void eng_batch_counts(const struct eng_batch *b, struct eng_batch_counts *out);
/* Call after the last line: ends the writing of the outputs.  0: all finished lines are on disk; or KN_E*, and then
 * eng_batch_counts counts only the lines that are. */
int eng_batch_settle(struct eng_batch *b);
void eng_batch_close(struct eng_batch *b); /* no line may be fed any more */

/* ---- run.c ------------------------------------------------------------------------------------- */

struct eng_batch_run;

/* Opens n_parallel sessions in e, and begins b. */
int eng_batch_run_open(struct eng_batch_run **out, struct eng_batch *b, struct eng_engine *e,
                       const struct eng_api_setup *setup, int n_parallel);
/* Gives requests to free sessions, runs one engine step and writes finished answers.  1: more to do; 0: all lines are
 * finished; or KN_E*, reported. */
int eng_batch_run_step(struct eng_batch_run *r);
void eng_batch_run_close(struct eng_batch_run *r);

#endif
