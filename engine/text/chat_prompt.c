/* engine/text/chat_prompt.c - renders and tokenizes the prompts of conversations.
 *
 * In: a request with messages.  Out: the prompt as text or tokens.  A string of the request must not
 * become a control token.  So before rendering, each place where a string holds the text of a control
 * token, or ends with the beginning of one, gets a fence: a code point that occurs nowhere else in
 * the request, inserted after the first character.  After rendering the fences are removed, and the
 * tokenizer lets no special token span their places.  Nearly all strings need no fence and are not
 * copied. */
#include "engine/text/chat_prompt.h"
#include "engine/base/base.h"

#include <string.h>
#include <time.h>

struct eng_chat {
    struct eng_template *template;
    struct moe_string text; /* source of the template, borrowed from the model's file or from `owned` */
    char *owned;            /* source read from a file of its own, or NULL */
    const struct eng_vocab *vocab;
    bool is_ours;               /* a built-in template: bos_token is set only if the file asks for BOS */
    struct moe_string *control; /* [n_control] texts of the control tokens, borrowed from the vocabulary */
    size_t n_control;
    bool begins[256]; /* [first byte] a control token begins with it */
};

/* Templates for files without a template: the first entry with a `mark` that is a special token is used. */
static const struct {
    const char *mark, *name, *text;
} defaults[] = {
    { "<|im_start|>", "<|im_start|>",
      "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content "
      "}}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}" },
    { "<|start_header_id|>", "<|start_header_id|>",
      "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
      "{{ m.content }}<|eot_id|>{% endfor %}"
      "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif "
      "%}" },
    /* early Mistral models: [INST] and [/INST] are plain text between <s> and </s> */
    { "</s>", "[INST]",
      "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}</s>{% "
      "else %}"
      "[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}" },
};

/* ---- opening --------------------------------------------------------------------------------- */

/* The index in `defaults` of the vocabulary's template, or -1. */
static int find_default(const struct eng_vocab *v)
{
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (eng_vocab_find_special(v, defaults[i].mark, strlen(defaults[i].mark)) != ENG_NO_TOKEN)
            return (int)i;
    return -1;
}

static const char *default_template(const struct eng_vocab *v, const char *path)
{
    int i = find_default(v);
    if (i >= 0) {
        kn_say(KN_LOG_INFO, "%s: the model has no chat template; using the %s format, chosen by its vocabulary", path,
               defaults[i].name);
        return defaults[i].text;
    }
    kn_fail(KN_EUNSUPPORTED,
            "%s: the model has no chat template, and its vocabulary fits no built-in one: give one with "
            "--chat-template FILE",
            path);
    return NULL;
}

bool eng_chat_exists(const struct moe_file *f, const struct eng_vocab *v)
{
    struct moe_string text = { 0 };
    return (moe_file_string(f, "tokenizer.chat_template", &text) > 0 && text.data) || (v && find_default(v) >= 0);
}

static int collect_controls(struct eng_chat *c, const struct eng_vocab *v)
{
    for (int pass = 0; pass < 2; pass++) {
        c->n_control = 0;
        for (int32_t id = 0; id < eng_vocab_size(v); id++) {
            struct moe_string s = eng_vocab_text(v, id);
            if (eng_vocab_type(v, id) != ENG_TOKEN_CONTROL || !s.n)
                continue;
            if (c->control)
                c->control[c->n_control] = s;
            c->begins[(uint8_t)s.data[0]] = true;
            c->n_control++;
        }
        if (!pass && !(c->control = kn_calloc(c->n_control, sizeof *c->control)))
            return kn_fail(KN_ENOMEM, "not enough memory for the vocabulary's %zu control tokens", c->n_control);
    }
    return 0;
}

/* Compiles the template c->text.  where: its place, for log messages.  Closes c on failure. */
static int compile(struct eng_chat *c, const struct eng_vocab *v, const char *where)
{
    struct eng_template_error e;
    int error = eng_template_open(&c->template, c->text.data, c->text.n, &e);
    if (error)
        kn_fail(error, "%s: line %d: %s", where, e.line, e.text);
    else
        error = collect_controls(c, v);
    c->vocab = v;
    if (error)
        eng_chat_close(c);
    return error;
}

int eng_chat_open(struct eng_chat **out, const struct moe_file *f, const struct eng_vocab *v, const char *path)
{
    char where[ENG_PATH_BYTES];
    struct eng_chat *c = kn_calloc(1, sizeof *c);
    int error = c ? 0 : kn_fail(KN_ENOMEM, "no memory for a chat template");
    if (!error && (error = moe_file_string(f, "tokenizer.chat_template", &c->text)) > 0)
        error = 0;
    if (!error && !c->text.data) {
        c->text.data = default_template(v, path);
        c->text.n = c->text.data ? strlen(c->text.data) : 0;
        error = c->text.data ? 0 : KN_EUNSUPPORTED;
        c->is_ours = true;
    }
    if (error) {
        eng_chat_close(c);
        return error;
    }
    snprintf(where, sizeof where, "%s: tokenizer.chat_template", path);
    error = compile(c, v, where);
    *out = error ? *out : c;
    return error;
}

int eng_chat_open_template(struct eng_chat **out, const struct eng_vocab *v, const char *path)
{
    struct eng_chat *c = kn_calloc(1, sizeof *c);
    int error = c ? eng_read_file(path, &c->owned, &c->text.n) : kn_fail(KN_ENOMEM, "no memory for a chat template");
    if (error) {
        eng_chat_close(c);
        return error;
    }
    c->text.data = c->owned;
    error = compile(c, v, path);
    *out = error ? *out : c;
    return error;
}

void eng_chat_close(struct eng_chat *c)
{
    if (!c)
        return;
    eng_template_close(c->template);
    kn_free(c->control);
    kn_free(c->owned);
    kn_free(c);
}

struct moe_string eng_chat_text(const struct eng_chat *c) { return c->text; }

/* ---- marks: code points that the request does not contain ----------------------------------------- */

#define MARK_BYTES 3 /* of one of U+FDD0 to U+FDEF, noncharacters of Unicode, in UTF-8 */
#define N_MARK     32

struct marks {
    char fence[MARK_BYTES]; /* inserted in the strings that hold control tokens; see the head of this file */
    char end[MARK_BYTES];   /* stands behind the text of the last message if that is continued */
};

/* Calls fn on every string of a value, including names of members. */
typedef void on_text(void *arg, const char *text, size_t n);

static void each_text(const json_t *v, on_text *fn, void *arg)
{
    for (void *i = json_object_iter((json_t *)v); i; i = json_object_iter_next((json_t *)v, i)) {
        fn(arg, json_object_iter_key(i), json_object_iter_key_len(i));
        each_text(json_object_iter_value(i), fn, arg);
    }
    for (size_t i = 0; i < json_array_size(v); i++)
        each_text(json_array_get(v, i), fn, arg);
    if (json_is_string(v))
        fn(arg, json_string_value(v), json_string_length(v));
}

static void note_marks(void *arg, const char *text, size_t n)
{
    uint32_t *used = arg;
    for (size_t i = 0; i + 2 < n; i++)
        if ((uint8_t)text[i] == 0xEF && (uint8_t)text[i + 1] == 0xB7 && (uint8_t)text[i + 2] >= 0x90 &&
            (uint8_t)text[i + 2] < 0xB0)
            *used |= UINT32_C(1) << ((uint8_t)text[i + 2] - 0x90);
}

/* Picks the marks for a request; KN_EINVAL if the request leaves no code points for them. */
static int pick_marks(struct marks *out, const json_t *request, struct eng_template_error *error)
{
    char *const mark[] = { out->fence, out->end };
    uint32_t used = 0;
    int n = 0;
    each_text(request, note_marks, &used);
    for (int i = 0; i < N_MARK && n < 2; i++)
        if (!(used >> i & 1))
            memcpy(mark[n++], (const char[]){ '\xEF', '\xB7', (char)(0x90 + i) }, MARK_BYTES);
    if (n == 2)
        return 0;
    *error = (struct eng_template_error){ .text = "the request uses all reserved characters U+FDD0 to U+FDEF" };
    return KN_EINVAL;
}

/* ---- continuing the last message --------------------------------------------------------------- */

/* The member of the last message whose text is continued; NULL: the last message is not continued. */
static const char *continued(const json_t *request)
{
    const json_t *v = json_object_get(request, "continue_final_message");
    return json_is_true(v) ? "content" : json_string_value(v);
}

/* A copy of the message with the mark behind its text; NULL: no memory, or no text. */
static json_t *marked_message(const struct marks *marks, json_t *message, const char *member)
{
    const json_t *text = json_object_get(message, member);
    size_t n = json_string_length(text);
    char *with = json_is_string(text) ? kn_alloc(n + MARK_BYTES) : NULL;
    json_t *out = with ? json_copy(message) : NULL;
    if (out) {
        memcpy(with, json_string_value(text), n);
        memcpy(with + n, marks->end, MARK_BYTES);
    }
    if (out && json_object_set_new_nocheck(out, member, json_stringn_nocheck(with, n + MARK_BYTES))) {
        json_decref(out);
        out = NULL;
    }
    kn_free(with);
    return out;
}

/* A copy of the request for the template.  If the last message is continued, the mark stands behind its text, so that a
 * template that trims the text cannot trim its end.  NULL: as marked_message. */
static json_t *marked(const struct marks *marks, const json_t *request)
{
    const char *member = continued(request);
    json_t *out = json_copy((json_t *)request), *messages = json_copy(json_object_get(request, "messages"));
    size_t n = json_array_size(messages);
    bool good = out &&
                (!member || (n &&
                             !json_array_set_new(messages, n - 1,
                                                 marked_message(marks, json_array_get(messages, n - 1), member)) &&
                             !json_object_set(out, "messages", messages)));
    json_decref(messages);
    json_object_del(out, "continue_final_message");
    if (good)
        return out;
    json_decref(out);
    return NULL;
}

/* Cuts the prompt behind the text of the last message, before the last mark, and removes other marks: a template may
 * write a text twice. */
static int cut_at_mark(const struct marks *marks, char *text, size_t *n, struct eng_template_error *error)
{
    size_t used = 0, end = *n;
    while (end >= MARK_BYTES && memcmp(text + end - MARK_BYTES, marks->end, MARK_BYTES) != 0)
        end--;
    if (end < MARK_BYTES) {
        *error = (struct eng_template_error){ .text = "it does not write the text of the last message, which is to be "
                                                      "continued" };
        return KN_EINVAL;
    }
    end -= MARK_BYTES;
    for (size_t i = 0; i < end;)
        if (end - i >= MARK_BYTES && !memcmp(text + i, marks->end, MARK_BYTES))
            i += MARK_BYTES;
        else
            text[used++] = text[i++];
    text[used] = 0;
    *n = used;
    return 0;
}

/* ---- rendering ------------------------------------------------------------------------------- */

static int no_memory(struct eng_template_error *error)
{
    *error = (struct eng_template_error){ .text = "no memory for the prompt" };
    return KN_ENOMEM;
}

static int add_token(json_t *variables, const char *name, const struct eng_vocab *v, int32_t id)
{
    struct moe_string s = eng_vocab_text(v, id);
    json_t *text = json_stringn_nocheck(s.data, s.n);
    return text ? json_object_set_new_nocheck(variables, name, text) : -1;
}

/* Renders with these variables and drops the caller's reference to them; variables NULL: returns KN_ENOMEM. */
static int render(const struct eng_chat *c, json_t *variables, char **text, size_t *n, struct eng_template_error *error)
{
    int32_t bos = eng_vocab_bos(c->vocab), eos = eng_vocab_eos(c->vocab);
    int failed = variables ? 0 : -1;
    if (c->is_ours && !eng_vocab_adds_bos(c->vocab))
        bos = ENG_NO_TOKEN;
    if (!failed && bos != ENG_NO_TOKEN && !json_object_get(variables, "bos_token"))
        failed = add_token(variables, "bos_token", c->vocab, bos);
    if (!failed && eos != ENG_NO_TOKEN && !json_object_get(variables, "eos_token"))
        failed = add_token(variables, "eos_token", c->vocab, eos);
    int code = failed ? no_memory(error)
                      : eng_template_render(c->template, variables, time(NULL), NULL, text, n, error);
    json_decref(variables);
    return code;
}

/* Renders the variables that marked() made of the request, and drops the caller's reference to them (NULL: returns
 * KN_ENOMEM).  If the request continues the last message, cuts the prompt behind this message's text. */
static int render_marked(const struct eng_chat *c, const struct marks *marks, const json_t *request, json_t *variables,
                         char **text, size_t *n, struct eng_template_error *error)
{
    char *made;
    int code = render(c, variables, &made, n, error);
    if (code)
        return code;
    if (continued(request) && (code = cut_at_mark(marks, made, n, error))) {
        kn_free(made);
        return code;
    }
    *text = made;
    return 0;
}

/* Checks the input of marked(), so that marked() fails only without memory. */
static int check_continued(const json_t *request, struct eng_template_error *error)
{
    const json_t *messages = json_object_get(request, "messages");
    const char *member = continued(request);
    size_t n = json_array_size(messages);
    if (!member || (n && json_is_string(json_object_get(json_array_get(messages, n - 1), member))))
        return 0;
    *error = (struct eng_template_error){ .text = "the last message has no text to continue" };
    return KN_EINVAL;
}

int eng_chat_render(const struct eng_chat *c, const json_t *request, char **text, size_t *n,
                    struct eng_template_error *error)
{
    struct marks marks;
    int code = pick_marks(&marks, request, error);
    if (!code)
        code = check_continued(request, error);
    return code ? code : render_marked(c, &marks, request, marked(&marks, request), text, n, error);
}

/* ---- fences ---------------------------------------------------------------------------------- */

/* True if the text p[n] begins with the text of a control token, or is a beginning of one. */
static bool control_at(const struct eng_chat *c, const char *p, size_t n)
{
    for (size_t i = 0; c->begins[(uint8_t)*p] && i < c->n_control; i++)
        if (!memcmp(c->control[i].data, p, n < c->control[i].n ? n : c->control[i].n))
            return true;
    return false;
}

static size_t char_bytes(char first)
{
    uint8_t u = (uint8_t)first;
    return u < 0xC0 ? 1 : u < 0xE0 ? 2 : u < 0xF0 ? 3 : 4;
}

struct fencing {
    const struct eng_chat *chat;
    const char *fence; /* [MARK_BYTES] */
};

/* A copy of the text with fences, *n_out bytes, which the caller frees.  NULL if the text needs no fences;
 * also NULL, with *failed set, if there is no memory. */
static char *fenced_text(const struct fencing *f, const char *text, size_t n, size_t *n_out, bool *failed)
{
    size_t n_fence = 0, used = 0;
    for (size_t i = 0; i < n; i++)
        n_fence += control_at(f->chat, text + i, n - i);
    char *out = n_fence ? kn_alloc(n + n_fence * MARK_BYTES) : NULL;
    *failed |= n_fence && !out;
    for (size_t i = 0; out && i < n;) {
        bool here = control_at(f->chat, text + i, n - i);
        size_t end = here ? i + char_bytes(text[i]) : i + 1;
        for (; i < end && i < n; i++)
            out[used++] = text[i];
        if (here) {
            memcpy(out + used, f->fence, MARK_BYTES);
            used += MARK_BYTES;
        }
    }
    *n_out = used;
    return out;
}

static json_t *fenced(const struct fencing *f, json_t *v);

static json_t *fenced_object(const struct fencing *f, json_t *v)
{
    json_t *out = json_object();
    bool failed = !out;
    for (void *i = json_object_iter(v); i && !failed; i = json_object_iter_next(v, i)) {
        size_t n;
        char *key = fenced_text(f, json_object_iter_key(i), json_object_iter_key_len(i), &n, &failed);
        json_t *value = failed ? NULL : fenced(f, json_object_iter_value(i));
        failed = failed || json_object_setn_new_nocheck(out, key ? key : json_object_iter_key(i),
                                                        key ? n : json_object_iter_key_len(i), value);
        kn_free(key);
    }
    if (failed)
        json_decref(out);
    return failed ? NULL : out;
}

static json_t *fenced_array(const struct fencing *f, json_t *v)
{
    json_t *out = json_array();
    bool failed = !out;
    for (size_t i = 0; i < json_array_size(v) && !failed; i++)
        failed = json_array_append_new(out, fenced(f, json_array_get(v, i)));
    if (failed)
        json_decref(out);
    return failed ? NULL : out;
}

/* A copy of v with fences in its strings; strings without fences are shared.  NULL: no memory. */
static json_t *fenced(const struct fencing *f, json_t *v)
{
    if (json_is_object(v))
        return fenced_object(f, v);
    if (json_is_array(v))
        return fenced_array(f, v);
    if (!json_is_string(v))
        return json_incref(v);
    size_t n;
    bool failed = false;
    char *text = fenced_text(f, json_string_value(v), json_string_length(v), &n, &failed);
    json_t *out = text ? json_stringn_nocheck(text, n) : failed ? NULL : json_incref(v);
    kn_free(text);
    return out;
}

static size_t count_fences(const struct fencing *f, const char *text, size_t n)
{
    size_t n_fence = 0;
    for (size_t i = 0; i + MARK_BYTES <= n; i++)
        n_fence += !memcmp(text + i, f->fence, MARK_BYTES);
    return n_fence;
}

/* Removes the fences from the text, appends their offsets in the new text to at[*n_at], and returns the new
 * length of the text. */
static size_t take_out(const struct fencing *f, char *text, size_t n, size_t *at, size_t *n_at)
{
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        if (n - i >= MARK_BYTES && !memcmp(text + i, f->fence, MARK_BYTES)) {
            at[(*n_at)++] = used;
            i += MARK_BYTES;
        } else {
            text[used++] = text[i++];
        }
    }
    return used;
}

int eng_chat_tokens(const struct eng_chat *c, const json_t *request, struct eng_ids *ids,
                    struct eng_template_error *error)
{
    struct marks marks;
    struct fencing f = { .chat = c, .fence = marks.fence };
    struct eng_fences fences = { 0 };
    char *text;
    size_t n;
    int code = pick_marks(&marks, request, error);
    if (!code)
        code = check_continued(request, error);
    if (code)
        return code;
    json_t *variables = marked(&marks, request), *safe = variables ? fenced(&f, variables) : NULL;
    json_decref(variables);
    if ((code = render_marked(c, &marks, request, safe, &text, &n, error)))
        return code;
    size_t *at = kn_alloc(count_fences(&f, text, n) * sizeof *at);
    if (at) {
        n = take_out(&f, text, n, at, &fences.n);
        fences.at = at;
        code = eng_tokenize_fenced(c->vocab, (struct moe_string){ text, n }, ENG_TEXT_PARSE_SPECIAL, &fences, ids);
        if (code)
            *error = (struct eng_template_error){ .text = "the prompt cannot be tokenized" };
    } else {
        code = no_memory(error);
    }
    kn_free(at);
    kn_free(text);
    return code;
}
