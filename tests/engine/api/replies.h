/* tests/engine/api/replies.h - feeds an answer to a reply and keeps the bytes that it writes.
 *
 * An answer is the text that a model would generate: one token per byte, and a control token for each <s> and
 * <|im_end|>. */
#ifndef TESTS_ENGINE_API_REPLIES_H
#define TESTS_ENGINE_API_REPLIES_H

#include "tests/engine/api/setup.h"

struct said { /* output of a reply */
    char data[1 << 20];
    size_t n;
    int status;
    char type[32];
};

static inline void take(struct eng_reply *r, struct said *out)
{
    size_t n;
    const char *p = eng_reply_take(r, &n);
    assert_true(out->n + n < sizeof out->data);
    if (n)
        memcpy(out->data + out->n, p, n);
    out->n += n;
    out->data[out->n] = 0;
    out->status = eng_reply_status(r);
    snprintf(out->type, sizeof out->type, "%s", eng_reply_type(r));
}

/* The token at the start of text; *length: its bytes. */
static inline int32_t token_at(const char *text, size_t n, size_t *length)
{
    static const struct {
        const char *text;
        int32_t id;
    } marks[] = { { "<s>", FAKE_BOS }, { "<|im_end|>", FAKE_END }, { "hello", FAKE_HELLO } };
    for (int i = 0; i < LEN(marks); i++)
        if (n >= strlen(marks[i].text) && !memcmp(text, marks[i].text, strlen(marks[i].text))) {
            *length = strlen(marks[i].text);
            return marks[i].id;
        }
    *length = 1;
    return (uint8_t)*text;
}

static inline struct eng_event token(int choice, int32_t id)
{
    static struct spec_top top[3];
    top[0] = (struct spec_top){ id, -0.5f };
    top[1] = (struct spec_top){ 'z', -1.5f };
    top[2] = (struct spec_top){ 0xC3, -__builtin_inff() };
    return (struct eng_event){
        .choice = choice, .n_cached = choice == 0, .token = id, .logprob = -0.5f, .top = top, .n_top = 3
    };
}

/* Feeds an answer, then the finish reason `end`. ENG_RUNNING: the reply itself finds the end. */
static inline int feed(struct eng_reply *r, int choice, const char *text, size_t n, enum eng_finish end,
                       struct said *out)
{
    int done = 0;
    for (size_t at = 0, length; at < n && done == 0; at += length) {
        struct eng_event t = token(choice, token_at(text + at, n - at, &length));
        done = eng_reply_feed(r, &t);
        take(r, out);
    }
    if (done == 0 && end != ENG_RUNNING) {
        struct eng_event t = token(choice, end == ENG_STOP ? FAKE_END : ENG_NO_TOKEN);
        t.finish = end;
        t.status = KN_EIO;
        done = eng_reply_feed(r, &t);
        take(r, out);
    }
    return done;
}

static inline void answer(enum eng_api api, const char *body, const char *text, size_t n, enum eng_finish end,
                          struct said *out)
{
    struct eng_api_request *ask = ask_of(api, body);
    struct eng_reply *r;
    *out = (struct said){ .n = 0 };
    assert_int_equal(eng_reply_open(&r, ask, &fake.setup), 0);
    assert_false(eng_reply_began(r));
    for (int i = 0; i < eng_api_request_choices(ask); i++)
        assert_int_equal(feed(r, i, text, n, end, out), 1);
    assert_true(eng_reply_began(r) && eng_reply_done(r));
    eng_reply_close(r);
    eng_api_request_close(ask);
}

#endif
