/* Turns for a chat on the terminal, by the marks that a vocabulary has.
 *
 * Three ways of marking turns cover the supported families; which one a model uses shows in its special
 * tokens.  A message's text never becomes a special token: marks and text are tokenised apart. */
#include "engine/chat.h"

#include <string.h>

struct style {
    const char *mark;                           /* the special token it is known by */
    const char *before, *after;                 /* around the message; the answer follows */
    const char *end, *between;                  /* closes an answer; what follows a closed one */
};

static const struct style styles[] = {
    { "<|im_start|>", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>", "\n" },
    { "<|start_header_id|>", "<|start_header_id|>user<|end_header_id|>\n\n",
      "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", "" },
    { "[INST]", "[INST] ", " [/INST]", "</s>", "" },
};

static const struct style *style_of(const struct eng_vocab *v)
{
    for (size_t i = 0; i < sizeof styles / sizeof *styles; i++)
        if (eng_vocab_find_special(v, styles[i].mark, strlen(styles[i].mark)) != ENG_NO_TOKEN)
            return &styles[i];
    /* before mistral's marks were tokens of their own they were plain text around <s> and </s> */
    if (eng_vocab_find_special(v, "</s>", 4) != ENG_NO_TOKEN)
        return &styles[2];
    return NULL;
}

int eng_chat_check(const struct eng_vocab *v, const char *path)
{
    if (style_of(v))
        return 0;
    return kn_fail(KN_EUNSUPPORTED, "%s: the vocabulary has no marks for turns that chat knows: give a "
                   "prompt with -p", path);
}

static int add(const struct eng_vocab *v, const char *text, unsigned flags, struct eng_ids *ids)
{
    return eng_tokenize(v, text, strlen(text), flags, ids);
}

int eng_chat_turn(const struct eng_vocab *v, const char *text, struct eng_ids *ids)
{
    const struct style *s = style_of(v);
    int error = 0;
    if (ids->n == 0 && eng_vocab_adds_bos(v) && eng_vocab_bos(v) != ENG_NO_TOKEN)
        error = eng_ids_push(ids, eng_vocab_bos(v));
    if (!error)
        error = add(v, s->before, ENG_TEXT_PARSE_SPECIAL, ids);
    if (!error)
        error = add(v, text, 0, ids);
    return error ? error : add(v, s->after, ENG_TEXT_PARSE_SPECIAL, ids);
}

int eng_chat_end(const struct eng_vocab *v, struct eng_ids *ids)
{
    const struct style *s = style_of(v);
    int32_t end = eng_vocab_find_special(v, s->end, strlen(s->end));
    int error = 0;
    if (ids->n && !eng_vocab_is_stop(v, ids->id[ids->n - 1]) && end != ENG_NO_TOKEN)
        error = eng_ids_push(ids, end);
    return error ? error : add(v, s->between, 0, ids);
}
