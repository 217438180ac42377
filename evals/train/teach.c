/* evals/train/teach.c - training data for a draft model, from the target model in this engine.
 *
 *     teach MODEL PROMPTS.jsonl OUT_FOLDER [COUNT [LENGTH]]
 *
 * A line of PROMPTS is a chat, {"messages": [{"role": "user", "content": "..."}]}, or the text of a whole prompt as
 * corpus.py writes it, {"prompt": "..."}. The first COUNT are answered twice each, greedily and at temperature 1,
 * up to LENGTH tokens with the prompt; for each token of an answer the ENG_TOP likeliest tokens are recorded. It
 * does the work of sample.py and lessons.py together, with the engine's speed, arithmetic and memory, but
 * without the features that an EAGLE head learns from (lessons.py adds them). OUT_FOLDER gets one .npy per SHARD
 * prompts, for distil.py and boost.py; existing files are not made again. A prompt's seed is the number of its shard's
 * first prompt plus its index among the answered prompts of the shard. */
#include "engine/base/base.h"
#include "engine/text/chat_prompt.h"
#include "engine/cli/cli.h"
#include "engine/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARD = 500, PARALLEL = 64, HEADER = 256 };

#pragma pack(push, 1)
struct place { /* a token of a document, and its likeliest successors */
    int32_t id;
    uint8_t first;
    int32_t top[ENG_TOP]; /* set from the last token of the prompt on */
    float logp[ENG_TOP];
};
#pragma pack(pop)

struct pupil {
    struct eng_session *session;
    struct place *place; /* [length] */
    int n;
    bool runs;
};

struct shard {
    FILE *file;
    long n;
};

/* A NumPy header, padded to HEADER bytes; it contains the count, so it is written again at the end. */
static void write_header(struct shard *s)
{
    static const char magic[] = "\x93NUMPY\1\0";
    char text[HEADER - 9];
    snprintf(text, sizeof text,
             "{'descr': [('id', '<i4'), ('first', '|b1'), ('top', '<i4', (%d,)), "
             "('logp', '<f4', (%d,))], 'fortran_order': False, 'shape': (%ld,)}",
             ENG_TOP, ENG_TOP, s->n);
    rewind(s->file);
    fwrite(magic, 1, 8, s->file);
    fputc(HEADER - 10, s->file);
    fputc(0, s->file);
    fprintf(s->file, "%-*s\n", HEADER - 11, text);
}

static int start(struct pupil *p, const struct eng_ids *prompt, int length, float temperature, uint64_t seed)
{
    struct eng_request r = {
        .token = prompt->id, .n_token = (int)prompt->n, .n_predict = length - (int)prompt->n, .n_top = ENG_TOP
    };
    spec_params_default(&r.sampling);
    r.sampling.temperature = temperature;
    r.sampling.seed = seed;
    memset(p->place, 0, (size_t)length * sizeof *p->place);
    for (p->n = 0; p->n < (int)prompt->n; p->n++)
        p->place[p->n].id = prompt->id[p->n];
    p->place[0].first = 1;
    p->runs = true;
    return eng_session_start(p->session, &r);
}

/* Records the event's token; a document ends before its last token, because the successors of that are unknown. */
static int hear(struct pupil *p, const struct eng_event *event, struct shard *s)
{
    if (event->finish == ENG_FAILED)
        return event->status;
    if (event->token != ENG_NO_TOKEN) {
        struct place *last = &p->place[p->n - 1];
        for (int i = 0; i < event->n_top; i++) {
            last->top[i] = event->top[i].token;
            last->logp[i] = event->top[i].logprob;
        }
        p->place[p->n++].id = event->token;
    }
    if (event->finish == ENG_RUNNING)
        return 0;
    p->runs = false;
    s->n += p->n - 1;
    return fwrite(p->place, sizeof *p->place, (size_t)p->n - 1, s->file) == (size_t)p->n - 1
               ? 0
               : kn_fail(KN_EIO, "lessons cannot be written");
}

/* Writes the answers to prompts [n] into one file; two per prompt. */
static int teach(struct eng_engine *e, struct pupil *pupil, const struct eng_ids *prompt, int n, int length,
                 uint64_t number, struct eng_event *event, struct shard *s)
{
    int next = 0, n_run = 0, error = 0;
    while (!error && (next < 2 * n || n_run)) {
        for (int i = 0; i < PARALLEL && next < 2 * n && !error; i++)
            if (!pupil[i].runs) {
                error = start(&pupil[i], &prompt[next / 2], length, (float)(next % 2), number + (uint64_t)next / 2);
                next++;
                n_run++;
            }
        int n_event = error ? 0 : eng_step(e, event);
        if (n_event < 0)
            error = n_event;
        for (int k = 0; k < n_event && !error; k++)
            for (int i = 0; i < PARALLEL; i++)
                if (pupil[i].session == event[k].session) {
                    error = hear(&pupil[i], &event[k], s);
                    n_run -= !pupil[i].runs;
                    break;
                }
    }
    return error;
}

static int read_prompt(const struct eng_engine *e, const struct eng_chat *chat, json_t *json, struct eng_ids *out)
{
    const char *text = json_string_value(json_object_get(json, "prompt"));
    struct eng_template_error why;
    if (text)
        return eng_tokenize(eng_vocab(e), text, strlen(text), ENG_TEXT_PARSE_SPECIAL, out);
    if (chat && json_object_get(json, "messages") && !json_object_set_new(json, "add_generation_prompt", json_true()))
        return eng_chat_tokens(chat, json, out, &why);
    return KN_EINVAL;
}

/* Reads prompts that leave space for an answer; returns how many lines were used. */
static int read_prompts(const struct eng_engine *e, const struct eng_chat *chat, char **line, int n_line, int length,
                        struct eng_ids *out)
{
    int n = 0;
    for (int i = 0; i < n_line; i++) {
        json_t *json = json_loads(line[i], 0, NULL);
        out[n].n = 0;
        n += !read_prompt(e, chat, json, &out[n]) && out[n].n && (int)out[n].n < length * 6 / 10;
        json_decref(json);
    }
    return n;
}

static int teach_all(struct eng_engine *e, const struct eng_chat *chat, char **line, int n_line, int length,
                     const char *folder)
{
    static struct pupil pupil[PARALLEL];
    static struct eng_ids prompt[SHARD];
    struct eng_event *event = kn_calloc((size_t)eng_event_room(e), sizeof *event);
    int error = event ? 0 : KN_ENOMEM;
    for (int i = 0; i < PARALLEL && !error; i++) {
        pupil[i].place = kn_calloc((size_t)length, sizeof *pupil[i].place);
        error = pupil[i].place ? eng_session_open(&pupil[i].session, e) : KN_ENOMEM;
    }
    for (int at = 0; at < n_line && !error; at += SHARD) {
        char path[4096], part[4096 + 8];
        snprintf(path, sizeof path, "%s/%04d.npy", folder, at / SHARD);
        snprintf(part, sizeof part, "%s.new", path);
        if (access(path, F_OK) == 0)
            continue;
        struct shard s = { .file = fopen(part, "wb") };
        if (!s.file) {
            error = kn_fail(KN_EIO, "%s: cannot be written: %s", part, strerror(errno));
            break;
        }
        write_header(&s);
        int n_here = n_line - at < SHARD ? n_line - at : SHARD;
        int n = read_prompts(e, chat, line + at, n_here, length, prompt);
        error = teach(e, pupil, prompt, n, length, (uint64_t)at, event, &s);
        write_header(&s);
        if (fclose(s.file) && !error)
            error = kn_fail(KN_EIO, "%s: cannot be written: %s", part, strerror(errno));
        if (!error && rename(part, path))
            error = kn_fail(KN_EIO, "%s: cannot be written: %s", path, strerror(errno));
        if (!error)
            fprintf(stderr, "%s: %ld tokens, answers to %d of %d prompts%s\n", path, s.n, n, n_here,
                    n < n_here ? ": others have no text, or are longer than 6/10 of LENGTH" : "");
    }
    for (int i = 0; i < PARALLEL; i++)
        kn_free(pupil[i].place);
    for (int i = 0; i < SHARD; i++)
        eng_ids_free(&prompt[i]);
    kn_free(event);
    return error;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "teach MODEL PROMPTS.jsonl OUT_FOLDER [COUNT [LENGTH]]\n");
        return 2;
    }
    int most = argc > 4 ? atoi(argv[4]) : 5000, length = argc > 5 ? atoi(argv[5]) : 256, n = 0;
    struct eng_options o = { .model = argv[1], .isa = KN_ISA_COUNT - 1, .n_parallel = PARALLEL, .n_ctx = length };
    struct eng_engine *e;
    struct eng_chat *chat = NULL;
    char *text, *rest;
    size_t bytes;
    if (most < 1 || length < 8 || eng_read_file(argv[2], &text, &bytes))
        return 2;
    char **line = kn_calloc((size_t)most, sizeof *line);
    for (char *l = strtok_r(text, "\n", &rest); l && n < most && line; l = strtok_r(NULL, "\n", &rest))
        line[n++] = l;
    if (mkdir(argv[3], 0777) && errno != EEXIST)
        return kn_fail(KN_EIO, "%s: cannot be made: %s", argv[3], strerror(errno)) != 0;
    if (!line || eng_open(&e, &o))
        return 1;
    eng_chat_open(&chat, eng_file(e), eng_vocab(e), argv[1]); /* without a template: whole prompts only */
    int error = teach_all(e, chat, line, n, length, argv[3]);
    eng_chat_close(chat);
    eng_close(e);
    kn_free(line);
    kn_free(text);
    return error != 0;
}
