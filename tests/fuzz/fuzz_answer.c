/* The input is an answer: in every tool-call format, parsing it whole and byte by byte gives the same result, a
 * completed call has a JSON object as arguments, and no output contains text that is not in the input.
 *
 * The first byte picks the format, whether the answer begins inside thoughts, and whether there are
 * tools. */
#include <stdlib.h>
#include <string.h>

#include "engine/tools/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Strings by which templates are recognised. */
static const char *const signs[] = {
    "<think>",
    "<tool_call> arguments <think>",
    "<function= <parameter=",
    "<seed:tool_call> <parameter= <seed:think>",
    "<|start_header_id|> \"parameters\": ",
    "[TOOL_CALLS] [ARGS] [THINK]",
    "<｜tool▁call▁begin｜> <think>",
    "<|tool_call_begin|> <|tool_call_argument_begin|>",
    "<arg_key> <arg_value> <think>",
    "<|channel|> <|message|>",
    "<|header_start|> [func_name1(",
    "<|im_start|> List of tools: <think>",
    "<|tool_call>call: <|\"|> <|channel>thought\n",
    "<|header_start|> \"parameters\": ",
};

static const char tools_text[] =
    "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"e\":{\"type\":"
    "\"string\",\"enum\":[\"a\"]},\"b\":{\"type\":\"boolean\"}}}}]";

struct told {
    struct text all, arguments;
    int kind;
};

static void add(struct text *t, const char *p, size_t n)
{
    if (!eng_text_add(t, p, n))
        abort();
}

/* Jansson accepts fewer numbers and characters than JSON allows. */
static void check_json(const struct text *t)
{
    json_error_t e;
    json_t *v = json_loadb(t->p, t->n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    if (!v && json_error_code(&e) != json_error_numeric_overflow && json_error_code(&e) != json_error_invalid_utf8 &&
        json_error_code(&e) != json_error_null_byte_in_key && !strstr(e.text, "Unicode"))
        abort();
    if (v && !json_is_object(v))
        abort();
    json_decref(v);
}

static void take(struct eng_answer_parser *s, struct told *t)
{
    struct eng_answer_event e;
    while (eng_answer_next(s, &e)) {
        const char mark[2] = { (char)('0' + e.kind), (char)('0' + e.whole) };
        if ((int)e.kind != t->kind || e.kind == ENG_ANSWER_CALL || e.kind == ENG_ANSWER_CALL_END)
            add(&t->all, mark, 2);
        add(&t->all, e.text, e.n);
        t->kind = (int)e.kind;
        if (e.kind == ENG_ANSWER_CALL)
            t->arguments.n = 0;
        if (e.kind == ENG_ANSWER_ARGUMENTS)
            add(&t->arguments, e.text, e.n);
        if (e.kind == ENG_ANSWER_CALL_END && e.whole)
            check_json(&t->arguments);
    }
}

static void read_in(const struct eng_answer_options *o, const char *p, size_t n, size_t piece, struct told *t)
{
    struct eng_answer_parser *s;
    *t = (struct told){ .kind = -1 };
    if (eng_answer_open(&s, o))
        abort();
    for (size_t i = 0; i < n; i += piece) {
        if (eng_answer_feed(s, p + i, piece < n - i ? piece : n - i))
            abort();
        take(s, t);
    }
    if (eng_answer_finish(s, n % 2))
        abort();
    take(s, t);
    eng_answer_close(s);
}

static void forget(struct told *t)
{
    kn_free(t->all.p);
    kn_free(t->arguments.p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct eng_tool_format format;
    struct told whole, bytes;
    if (!n)
        return 0;
    const char *sign = signs[data[0] / 4 % (sizeof signs / sizeof *signs)];
    eng_tool_format_find(&format, sign, strlen(sign), NULL);
    json_t *tools = data[0] & 1 ? json_loads(tools_text, 0, NULL) : NULL;
    struct eng_answer_options o = { .format = &format, .tools = tools, .thinks = data[0] & 2 };
    read_in(&o, (const char *)data + 1, n - 1, n, &whole);
    read_in(&o, (const char *)data + 1, n - 1, 1, &bytes);
    if (whole.all.n != bytes.all.n || (whole.all.n && memcmp(whole.all.p, bytes.all.p, whole.all.n)))
        abort();
    if (whole.all.n > 12 * n + 64)
        abort();
    forget(&whole);
    forget(&bytes);
    json_decref(tools);
    return 0;
}
