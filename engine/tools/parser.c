/* engine/tools/parser.c - parser of an answer: bytes to markers and text, text to events.
 *
 * In: pieces of text and control tokens.  Out: a queue of events over one buffer of text.
 *
 * Only a few markers are valid in each state (watched()).  Bytes that may be the beginning of one of
 * them stay pending; all other bytes are processed at once.  The valid markers are looked up again
 * after every byte, since each byte may change the state.  This file handles text, reasoning and
 * gpt-oss messages; calls are in call.c. */
#include "engine/tools/internal.h"

#include <string.h>

/* ---- events ---------------------------------------------------------------------------------- */

static bool reserve_event(struct eng_answer_parser *s)
{
    if (s->n_event < s->cap_event)
        return true;
    size_t more = s->cap_event ? s->cap_event * 2 : 16;
    void *p = kn_realloc(s->event, s->cap_event * sizeof *s->event, more * sizeof *s->event);
    if (!p)
        return false;
    s->event = p;
    s->cap_event = more;
    return true;
}

static void push(struct eng_answer_parser *s, struct queued e, const char *p)
{
    struct queued *last = s->n_event ? &s->event[s->n_event - 1] : NULL;
    const bool joins = last && last->kind == e.kind && last->call == e.call &&
                       (e.kind <= ENG_ANSWER_REASONING || e.kind == ENG_ANSWER_ARGUMENTS);
    e.at = s->out.n;
    if (s->error)
        return;
    if ((!joins && !reserve_event(s)) || !eng_text_add(&s->out, p, e.n)) {
        s->error = KN_ENOMEM;
        return;
    }
    if (joins)
        last->n += e.n;
    else
        s->event[s->n_event++] = e;
}

void eng_answer_emit(struct eng_answer_parser *s, enum eng_answer_kind kind, const char *p, size_t n)
{
    const bool of_call = kind >= ENG_ANSWER_CALL;
    if (n)
        push(s, (struct queued){ .kind = kind, .call = of_call ? s->call : 0, .n = n }, p);
}

void eng_answer_emit_arguments(struct eng_answer_parser *s, const char *json)
{
    eng_answer_emit(s, ENG_ANSWER_ARGUMENTS, json, strlen(json));
}

void eng_answer_emit_string_byte(struct eng_answer_parser *s, uint8_t c)
{
    char p[ENG_JSON_ESCAPE];
    eng_answer_emit(s, ENG_ANSWER_ARGUMENTS, p, eng_json_escape(c, p));
}

void eng_call_begin(struct eng_answer_parser *s)
{
    s->in_call = true;
    s->held.n = 0;
    eng_answer_emit(s, ENG_ANSWER_CALL, s->name.p, s->name.n);
}

void eng_call_end(struct eng_answer_parser *s, bool whole)
{
    push(s, (struct queued){ .kind = ENG_ANSWER_CALL_END, .call = s->call, .whole = whole }, "");
    s->in_call = false;
    s->any_call = true;
    s->held.n = 0;
    s->call++;
}

bool eng_answer_next(struct eng_answer_parser *s, struct eng_answer_event *e)
{
    if (s->next_event == s->n_event)
        return false;
    const struct queued *q = &s->event[s->next_event++];
    *e = (struct eng_answer_event){
        .kind = q->kind, .call = q->call, .whole = q->whole, .text = s->out.p + q->at, .n = q->n
    };
    return true;
}

/* Empties the queue if the caller has read all its events. */
static void forget_events(struct eng_answer_parser *s)
{
    if (s->next_event == s->n_event)
        s->next_event = s->n_event = s->out.n = 0;
}

/* ---- text ------------------------------------------------------------------------------------ */

void eng_answer_hold(struct eng_answer_parser *s, const char *p, size_t n)
{
    if (!s->error && !eng_text_add(&s->held, p, n))
        s->error = KN_ENOMEM;
}

void eng_answer_append(struct eng_answer_parser *s, struct text *t, uint8_t c)
{
    if (!eng_text_add(t, (char *)&c, 1))
        s->error = KN_ENOMEM;
}

static bool in_text(const struct eng_answer_parser *s) { return s->state == IN_TEXT || s->state == IN_THOUGHTS; }

static void give_held(struct eng_answer_parser *s)
{
    eng_answer_emit(s, s->state == IN_THOUGHTS ? ENG_ANSWER_REASONING : ENG_ANSWER_CONTENT, s->held.p, s->held.n);
    s->held.n = 0;
}

void eng_answer_to_text(struct eng_answer_parser *s, bool after_call)
{
    s->state = IN_TEXT;
    s->held.n = 0;
    s->at_start = false;
    s->after_call = after_call;
}

/* True if white space must be held back because it is dropped when a marker follows. */
static bool space_waits(const struct eng_answer_parser *s)
{
    if (s->format->syntax == ENG_SYNTAX_HARMONY || s->held.n >= MARK_BYTES)
        return false;
    return s->state == IN_THOUGHTS || (s->tools && s->format->syntax != ENG_SYNTAX_NONE) ||
           (s->at_start && s->format->thinks);
}

static void text_byte(struct eng_answer_parser *s, uint8_t c)
{
    const uint8_t bare = s->tools && s->state == IN_TEXT ? eng_tool_format_first_byte(s->format) : 0;
    if (eng_is_json_space(c) || (bare && s->after_call && c == ';')) {
        if (s->drop_space)
            return;
        eng_answer_hold(s, (char *)&c, 1);
        if (!space_waits(s))
            give_held(s);
        return;
    }
    s->drop_space = false;
    eng_answer_hold(s, (char *)&c, 1);
    if (bare && c == bare && (s->at_start || s->after_call)) {
        eng_call_open_bare(s);
        return;
    }
    give_held(s);
    s->at_start = s->after_call = false;
}

static void text_mark(struct eng_answer_parser *s, enum mark m)
{
    if (s->state == IN_THOUGHTS || m == MARK_THINK) {
        s->state = m == MARK_THINK ? IN_THOUGHTS : IN_TEXT;
        s->held.n = 0;
        s->drop_space = true;
        s->at_start = m == MARK_THINK_END; /* after reasoning a call without a marker may begin */
    } else if (m == MARK_CALL_END || m == MARK_CALLS_END) {
        s->held.n = 0; /* the closing marker of a call that has ended */
    } else {
        const char *text = s->format->mark[m].text;
        if (!eng_tool_format_marks_text(s->format))
            eng_answer_hold(s, text, strlen(text));
        s->drop_space = false;
        eng_call_open(s, m);
    }
}

/* ---- messages in channels -------------------------------------------------------------------- */

static bool begins_with(const struct text *t, size_t at, const char *word)
{
    size_t n = strlen(word), left = t->n - at;
    return !memcmp(t->p + at, word, left < n ? left : n);
}

static size_t skip_blanks(const struct text *t, size_t at)
{
    while (at < t->n && t->p[at] == ' ')
        at++;
    return at;
}

/* True if the text may be the beginning of a message header of gpt-oss, up to the channel: the role, then the
 * recipient (to=..), each optional. */
static bool may_be_header(const struct text *t)
{
    size_t at = skip_blanks(t, 0), n_role = strlen("assistant");
    if (begins_with(t, at, "assistant"))
        at = skip_blanks(t, at + n_role < t->n ? at + n_role : t->n);
    if (!begins_with(t, at, "to="))
        return false;
    while (at < t->n && (uint8_t)t->p[at] > ' ')
        at++;
    return skip_blanks(t, at) == t->n && t->n <= ENG_ANSWER_NAME_BYTES;
}

static bool has_channel(const struct eng_answer_parser *s)
{
    const char *mark = s->format->mark[MARK_CHANNEL].text;
    return s->held.n && memmem(s->held.p, s->held.n, mark, strlen(mark));
}

/* The word in t that follows the text `lead`, up to a blank or a marker; empty if t does not contain `lead`. */
static struct moe_string word_after(const struct text *t, const char *lead)
{
    const char *p = t->n ? memmem(t->p, t->n, lead, strlen(lead)) : NULL;
    size_t n = 0;
    if (!p)
        return (struct moe_string){ 0 };
    p += strlen(lead);
    while (p + n < t->p + t->n && (uint8_t)p[n] > ' ' && p[n] != '<')
        n++;
    return (struct moe_string){ .data = p, .n = n };
}

/* At the end of the message header in s->held: begins reasoning, content or a call, depending on the header's
 * channel and recipient. */
static void open_message(struct eng_answer_parser *s)
{
    static const char functions[] = "functions.", analysis[] = "analysis";
    struct moe_string to = word_after(&s->held, "to=");
    struct moe_string channel = word_after(&s->held, s->format->mark[MARK_CHANNEL].text);
    const bool thinks = channel.n == sizeof analysis - 1 && !memcmp(channel.data, analysis, channel.n);
    s->state = thinks ? IN_THOUGHTS : IN_TEXT;
    s->name.n = 0;
    if (s->tools && to.n >= sizeof functions && !memcmp(to.data, functions, sizeof functions - 1)) {
        s->state = IN_ARGUMENTS;
        if (!eng_text_add(&s->name, to.data + sizeof functions - 1, to.n - sizeof functions + 1))
            s->error = KN_ENOMEM;
    }
    s->held.n = 0;
}

static void header_byte(struct eng_answer_parser *s, uint8_t c)
{
    eng_answer_hold(s, (char *)&c, 1);
    if (s->error)
        return;
    const bool possible = has_channel(s) ? c >= ' ' && s->held.n <= ENG_ANSWER_NAME_BYTES : may_be_header(&s->held);
    if (possible)
        return;
    s->state = IN_TEXT;
    give_held(s);
}

static void header_mark(struct eng_answer_parser *s, enum mark m)
{
    if (m == MARK_MESSAGE)
        open_message(s);
    else if (m == MARK_CHANNEL || m == MARK_CONSTRAIN)
        eng_answer_hold(s, s->format->mark[m].text, strlen(s->format->mark[m].text));
}

static void between_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (eng_is_json_space(c))
        return;
    s->state = IN_TEXT;
    text_byte(s, c);
}

static void between_mark(struct eng_answer_parser *s, enum mark m)
{
    s->held.n = 0;
    s->state = m == MARK_START || m == MARK_CHANNEL ? IN_HEADER : BETWEEN_MESSAGES;
    if (m == MARK_CHANNEL)
        header_mark(s, m);
}

/* ---- marks ----------------------------------------------------------------------------------- */

static const uint32_t call_marks = BIT(MARK_CALLS) | BIT(MARK_CALL) | BIT(MARK_FUNCTION);
static const uint32_t message_ends = BIT(MARK_END) | BIT(MARK_CALL_STOP) | BIT(MARK_RETURN);

/* Bit set of the markers that are valid in the current state. */
static uint32_t watched(const struct eng_answer_parser *s)
{
    const bool harmony = s->format->syntax == ENG_SYNTAX_HARMONY;
    switch (s->state) {
    case IN_TEXT:
        if (harmony)
            return message_ends;
        return (s->at_start || s->format->mark[MARK_THINK].control != ENG_NO_TOKEN ? BIT(MARK_THINK) : 0) |
               (s->tools ? call_marks : 0) | (s->after_call ? BIT(MARK_CALL_END) | BIT(MARK_CALLS_END) : 0);
    case IN_THOUGHTS:
        return harmony ? message_ends : BIT(MARK_THINK_END);
    case IN_HEADER:
        return BIT(MARK_CHANNEL) | BIT(MARK_CONSTRAIN) | BIT(MARK_MESSAGE);
    case BETWEEN_MESSAGES:
        return BIT(MARK_START) | BIT(MARK_CHANNEL) | message_ends;
    default:
        return eng_call_watch(s);
    }
}

void eng_answer_byte(struct eng_answer_parser *s, uint8_t c)
{
    if (in_text(s))
        text_byte(s, c);
    else if (s->state == IN_HEADER)
        header_byte(s, c);
    else if (s->state == BETWEEN_MESSAGES)
        between_byte(s, c);
    else
        eng_call_byte(s, c);
}

void eng_answer_marker(struct eng_answer_parser *s, enum mark m)
{
    const bool means_something = watched(s) >> m & 1;
    if (in_text(s) && means_something && s->format->syntax == ENG_SYNTAX_HARMONY)
        s->state = BETWEEN_MESSAGES;
    else if (in_text(s) && means_something)
        text_mark(s, m);
    else if (s->state == IN_HEADER)
        header_mark(s, m);
    else if (s->state == BETWEEN_MESSAGES)
        between_mark(s, m);
    else if (!in_text(s))
        eng_call_mark(s, m);
}

enum { NO_MARK = -1, MAYBE_MARK = -2 };

/* The valid marker that the pending bytes begin with (*n_mark: its length); MAYBE_MARK if they are only the
 * beginning of a marker; else NO_MARK. */
static int find_mark(const struct eng_answer_parser *s, size_t *n_mark)
{
    int found = NO_MARK;
    uint32_t watch = watched(s);
    for (int m = 0; m < MARK_COUNT; m++) {
        const struct eng_tool_marker *k = &s->format->mark[m];
        if (!(watch >> m & 1) || !k->text || k->control != ENG_NO_TOKEN)
            continue;
        size_t n = strlen(k->text);
        if (memcmp(s->pending, k->text, n < s->n_pending ? n : s->n_pending))
            continue;
        *n_mark = n;
        if (n <= s->n_pending)
            return m;
        found = MAYBE_MARK;
    }
    return found;
}

/* Processes the pending bytes except a possible beginning of a marker at their end; with `all`, every byte. */
static void drain(struct eng_answer_parser *s, bool all)
{
    while (s->n_pending) {
        const uint8_t first = (uint8_t)s->pending[0];
        size_t n = 1;
        int m = s->begins[first] ? find_mark(s, &n) : NO_MARK;
        if (m == MAYBE_MARK && !all)
            return;
        s->again = false;
        if (m < 0) {
            n = 1;
            eng_answer_byte(s, first);
        } else {
            eng_answer_marker(s, (enum mark)m);
        }
        if (s->again) /* process the same bytes in the new state */
            continue;
        s->n_pending -= n;
        memmove(s->pending, s->pending + n, s->n_pending);
    }
}

/* ---- the answer ------------------------------------------------------------------------------ */

int eng_answer_open(struct eng_answer_parser **out, const struct eng_answer_options *o)
{
    struct eng_answer_parser *s = kn_calloc(1, sizeof *s);
    if (!s)
        return KN_ENOMEM;
    s->format = o->format;
    s->tools = json_incref((json_t *)o->tools);
    s->at_start = !o->in_text;
    if (o->format->syntax == ENG_SYNTAX_HARMONY && !o->continues)
        s->state = IN_HEADER;
    else if (o->thinks && o->format->thinks)
        s->state = IN_THOUGHTS;
    s->drop_space = s->state == IN_THOUGHTS && !o->continues;
    for (int m = 0; m < MARK_COUNT; m++)
        if (o->format->mark[m].text) {
            kn_assert(strlen(o->format->mark[m].text) < MARK_BYTES);
            s->begins[(uint8_t)o->format->mark[m].text[0]] = true;
        }
    *out = s;
    return 0;
}

void eng_answer_close(struct eng_answer_parser *s)
{
    if (!s)
        return;
    json_decref(s->tools);
    kn_free(s->event);
    struct text *t[] = { &s->out, &s->held, &s->name, &s->key, &s->value };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        kn_free(t[i]->p);
    kn_free(s);
}

int eng_answer_feed(struct eng_answer_parser *s, const char *text, size_t n)
{
    forget_events(s);
    for (size_t i = 0; i < n && !s->error; i++) {
        s->pending[s->n_pending++] = text[i];
        drain(s, false);
    }
    return s->error;
}

int eng_answer_control(struct eng_answer_parser *s, int32_t token)
{
    forget_events(s);
    for (int m = 0; m < MARK_COUNT; m++)
        if (s->format->mark[m].text && s->format->mark[m].control == token) {
            drain(s, true);
            eng_answer_marker(s, (enum mark)m);
        }
    return s->error;
}

int eng_answer_finish(struct eng_answer_parser *s, bool cut)
{
    forget_events(s);
    const bool in_markup = s->n_pending > 1 || s->after_call || !in_text(s); /* a single < in text is more often text */
    if (cut && in_markup && (s->n_pending || !in_text(s))) {
        s->n_pending = 0;
        s->held.n = 0;
    }
    drain(s, true);
    if (s->state == IN_HEADER && has_channel(s))
        s->held.n = 0;
    else if (in_text(s) && s->after_call)
        s->held.n = 0;
    else if (in_text(s) || s->state == IN_HEADER)
        give_held(s);
    else
        eng_call_finish(s);
    return s->error;
}
