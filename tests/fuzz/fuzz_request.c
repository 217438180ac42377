/* The input is a request body; its first byte picks the API dialect. The body is refused in one line, or it
 * becomes a request with all numbers within limits, and the answer to it - with the body's own
 * bytes as tokens - is written as a whole and as a stream of JSON. */
#include "engine/api/reply.h"
#include "engine/text/internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define TEMPLATE                                                                                                       \
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.reasoning_content }}{{ m.content }}"                                 \
    "{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", "                               \
    "\"arguments\": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}"                          \
    "{{ tools | tojson if tools }}<s>assistant\n{% if enable_thinking %}<think>{% endif %}"

enum { CTX = 4096, MOST_TOKENS = 2000, BOS = 257, EOS = 258, N_VOCAB = 259 };

static struct eng_api_setup setup = { .n_ctx = CTX, .n_predict = -1 };

static void check(bool ok)
{
    if (!ok)
        abort();
}

/* A token for every byte, one of two bytes, and two control tokens. */
static void write_vocab(const char *path)
{
    static struct eng_letters letters;
    static const char *const more[] = { "he", "<s>", "</s>" };
    static const struct moe_string merge = { "h e", 3 };
    struct moe_string text[N_VOCAB];
    int32_t type[N_VOCAB];
    const uint32_t bos = BOS, eos = EOS;
    struct moe_writer *w;
    eng_letters_init(&letters);
    for (int id = 0; id < N_VOCAB; id++) {
        const char *t = id < 256 ? letters.of_byte[id] : more[id - 256];
        text[id] = (struct moe_string){ t, strlen(t) };
        type[id] = id < BOS ? ENG_TOKEN_NORMAL : ENG_TOKEN_CONTROL;
    }
    check(!moe_writer_open(&w, path));
    moe_writer_string(w, "general.architecture", "none", 4);
    moe_writer_string(w, "tokenizer.ggml.model", "gpt2", 4);
    moe_writer_string(w, "tokenizer.ggml.pre", "gpt-2", 5);
    moe_writer_string(w, "tokenizer.chat_template", TEMPLATE, strlen(TEMPLATE));
    moe_writer_array(w, "tokenizer.ggml.tokens", MOE_STRING, text, N_VOCAB);
    moe_writer_array(w, "tokenizer.ggml.token_type", MOE_I32, type, N_VOCAB);
    moe_writer_array(w, "tokenizer.ggml.merges", MOE_STRING, &merge, 1);
    moe_writer_value(w, "tokenizer.ggml.bos_token_id", MOE_U32, &bos);
    moe_writer_value(w, "tokenizer.ggml.eos_token_id", MOE_U32, &eos);
    check(!moe_writer_header(w) && !moe_writer_finish(w));
    moe_writer_close(w);
}

static void open_desk(void)
{
    static struct eng_vocab *vocab;
    static struct eng_chat *chat;
    static struct gr_tokens *tokens;
    static struct eng_tool_format format;
    struct moe_file *file;
    char path[] = "/tmp/spillway-fuzz-XXXXXX";
    int fd = mkstemp(path);
    check(fd >= 0 && !close(fd));
    write_vocab(path);
    check(!moe_file_open(&file, path) && !unlink(path));
    check(!eng_vocab_open(&vocab, file) && !eng_chat_open(&chat, file, vocab, path));
    check(!gr_tokens_open(&tokens, vocab, 1 << 20));
    setup.vocab = vocab;
    setup.chat = chat;
    setup.gr_tokens = tokens;
    spec_params_default(&setup.sampling);
    eng_api_setup_from_template(&setup, &format);
    moe_file_close(file);
}

static void check_ask(const struct eng_api_request *ask)
{
    if (eng_api_is_ollama(ask->form) && !ask->n_prompt)
        return;
    check(ask->n_prompt >= 1 && eng_api_request_choices(ask) >= 1);
    check(eng_api_request_choices(ask) <= ENG_API_MAX_CHOICES);
    check(ask->n_predict == -1 || ask->n_predict >= 1);
    check(ask->n_stop <= ENG_API_MAX_STOPS && ask->n_stop_token <= ENG_API_MAX_STOPS);
    for (int i = 0; i < eng_api_request_choices(ask); i++) {
        struct eng_request r;
        eng_api_request_of_choice(ask, i, &r);
        check(r.n_token >= 1 && r.n_token < CTX && r.n_top >= 0 && r.n_top <= ENG_TOP);
        check(r.sampling.n_bias <= ENG_REQUEST_BIAS && !spec_params_check(&r.sampling, N_VOCAB));
        for (int k = 0; k < r.n_token; k++)
            check(r.token[k] >= 0 && r.token[k] < N_VOCAB);
    }
}

static void check_json(const char *text, size_t n)
{
    json_t *v = json_loadb(text, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    check(json_is_object(v) || json_is_array(v)); /* a list: llama-server's answers to several prompts */
    json_decref(v);
}

/* Checks every event of a stream, or the body. */
static void check_bytes(const struct eng_reply *r, const char *p, size_t n)
{
    const bool lines = !strcmp(eng_reply_type(r), "application/x-ndjson");
    if (!lines && strcmp(eng_reply_type(r), "text/event-stream") != 0) {
        check_json(p, n);
        return;
    }
    for (const char *end; n; n -= (size_t)(end - p), p = end) {
        end = memchr(p, '\n', n);
        check(end != NULL);
        if (lines)
            check_json(p, (size_t)(end - p));
        else if (n > 6 && !memcmp(p, "data: {", 7))
            check_json(p + 6, (size_t)(end - p) - 6);
        end++;
    }
}

/* Every choice gets the same tokens: the input's bytes, until the length limit. */
static void check_reply(const struct eng_api_request *ask, const uint8_t *data, size_t n)
{
    struct spec_top top[ENG_TOP];
    struct eng_reply *r;
    size_t n_out;
    for (int i = 0; i < ENG_TOP; i++)
        top[i] = (struct spec_top){ (i * 7 + (int)n) % N_VOCAB, (float)-i };
    if (!eng_api_request_choices(ask)) {
        struct eng_bytes out = { 0 };
        eng_reply_nothing(&out, ask);
        check_json(out.data, out.n);
        eng_bytes_free(&out);
        return;
    }
    check(!eng_reply_open(&r, ask, &setup));
    for (int i = 0; i < eng_api_request_choices(ask); i++) {
        size_t most = MOST_TOKENS / (size_t)eng_api_request_choices(ask), k = 0;
        int done = 0;
        for (; done == 0 && k <= most; k++) {
            bool end = k == n || k == most;
            struct eng_event t = { .choice = i,
                                   .token = end ? ENG_NO_TOKEN : data[k],
                                   .logprob = -1,
                                   .top = top,
                                   .n_top = ask->n_top,
                                   .finish = end ? ENG_LENGTH : ENG_RUNNING };
            done = eng_reply_feed(r, &t);
        }
        check(done == 1 && eng_reply_finish(r, i));
    }
    check(eng_reply_done(r));
    const char *p = eng_reply_take(r, &n_out);
    check(n_out > 0);
    check_bytes(r, p, n_out);
    eng_reply_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct eng_api_request *ask = NULL;
    struct eng_refusal why;
    const struct eng_arrival arrival = { .id = "1", .seed = 7 };
    if (!setup.vocab)
        open_desk();
    if (!n)
        return 0;
    const enum eng_api api = (enum eng_api)((data[0] & 7) % (ENG_API_OLLAMA_GENERATE + 1));
    if (eng_api_request_parse(&ask, api, (const char *)data + 1, n - 1, &setup, &arrival, &why)) {
        struct eng_bytes out = { 0 };
        check(why.status >= 400 && why.message[0] && !strchr(why.message, '\n') && !ask);
        eng_refusal_write(&out, &why, api);
        check_json(out.data, out.n);
        eng_bytes_free(&out);
        return 0;
    }
    check_ask(ask);
    check_reply(ask, data + 1, n - 1);
    eng_api_request_close(ask);
    return 0;
}
