/* tests/engine/tools/answers.h - answer formats of models, and vocabularies, for the tests of the answer parser and of
 * tool-call grammars. */
#ifndef TESTS_ENGINE_TOOLS_SPEECH_H
#define TESTS_ENGINE_TOOLS_SPEECH_H

#include "engine/tools/internal.h"
#include "tests/engine/text/recipe.h"

#define TEMPLATES "tests/engine/data/templates/"

enum { MOST_TEMPLATE = 1 << 16 };

static char *read_template(const char *name, size_t *n)
{
    char path[256];
    snprintf(path, sizeof path, TEMPLATES "%s.jinja", name);
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, MOST_TEMPLATE);
    assert_non_null(f);
    *n = fread(text, 1, MOST_TEMPLATE - 1, f);
    fclose(f);
    return text;
}

static const char *const all_marks[] = { "<think>",
                                         "</think>",
                                         "<tool_call>",
                                         "</tool_call>",
                                         "<arg_key>",
                                         "</arg_key>",
                                         "<arg_value>",
                                         "</arg_value>",
                                         "<|python_tag|>",
                                         "<minimax:tool_call>",
                                         "</minimax:tool_call>",
                                         "[TOOL_CALLS]",
                                         "[CALL_ID]",
                                         "[ARGS]",
                                         "<seed:tool_call>",
                                         "</seed:tool_call>",
                                         "<seed:think>",
                                         "</seed:think>",
                                         "<|start|>",
                                         "<|channel|>",
                                         "<|constrain|>",
                                         "<|message|>",
                                         "<|end|>",
                                         "<|call|>",
                                         "<|return|>",
                                         "<|tool_calls_section_begin|>",
                                         "<|tool_calls_section_end|>",
                                         "<|tool_call_begin|>",
                                         "<|tool_call_argument_begin|>",
                                         "<|tool_call_end|>",
                                         "<|tool_call_start|>",
                                         "<|python_start|>",
                                         "<|python_end|>",
                                         "<|tool_call>",
                                         "<tool_call|>",
                                         "<|\"|>",
                                         "<｜tool▁calls▁begin｜>",
                                         "<｜tool▁calls▁end｜>",
                                         "<｜tool▁call▁begin｜>",
                                         "<｜tool▁call▁end｜>",
                                         "<｜tool▁sep｜>" };

/* Vocabulary with a token per byte, a few words, and each mark as a token of the given type (0: marks are no
 * tokens). */
static inline struct eng_vocab *vocab_with_marks(int type)
{
    static struct recipe r;
    struct eng_vocab *v;
    recipe_bpe(&r);
    recipe_token(&r, "\",\"", ENG_TOKEN_NORMAL, -9);
    recipe_token(&r, "\":\"", ENG_TOKEN_NORMAL, -9);
    recipe_token(&r, "\"}", ENG_TOKEN_NORMAL, -9);
    for (size_t i = 0; type && i < sizeof all_marks / sizeof *all_marks; i++)
        recipe_token(&r, all_marks[i], type, 0);
    assert_int_equal(recipe_open(&r, &v), 0);
    return v;
}

/* Answer format of a published template by name, or of template text that begins with '<'. */
#define MINIMAX      "<think></think><minimax:tool_call><invoke name="
#define LLAMA_3_LIST "<|start_header_id|>[func_name1(a=1)]\"parameters\": "
#define LLAMA_4_LIST "<|header_start|>[func_name1(a=1)]"

static struct eng_tool_format style_of(const char *template, const struct eng_vocab *v)
{
    struct eng_tool_format format;
    size_t n = strlen(template);
    char *text = *template == '<' ? strdup(template) : read_template(template, &n);
    eng_tool_format_find(&format, text, n, v);
    free(text);
    return format;
}

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"o\":{\"type\":"
    "\"object\"},\"b\":{\"type\":\"boolean\"},\"unit\":{\"type\":\"string\",\"enum\":[\"c\",\"f\"]}"
    "},"
    "\"required\":[\"city\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

static inline json_t *load(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    assert_non_null(v);
    return v;
}

#endif
