/* engine/text/grammar/builder.c - stores the nodes of a grammar while it is built, and makes the basic ones.
 *
 * In: calls that make nodes, from the last to the first.  Out: an array of nodes for determine.c.
 * The builder stores the first failure and its message; calls after a failure do nothing, so callers
 * need not check each call. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/text/grammar/automaton.h"

int32_t gr_fail(struct gr_builder *b, int code, const char *fmt, ...)
{
    if (b->error)
        return GR_END;
    va_list args;
    va_start(args, fmt);
    vsnprintf(b->why, sizeof b->why, fmt, args);
    va_end(args);
    for (char *p = b->why; *p; p++) /* the message may hold bytes of a request */
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
            *p = '?';
    b->error = code;
    return GR_END;
}

bool gr_grow(void **array, size_t *cap, size_t n, size_t size)
{
    if (n < *cap)
        return true;
    size_t more = *cap ? *cap * 2 : 64;
    void *p = kn_realloc(*array, *cap * size, more * size);
    if (!p)
        return false;
    *array = p;
    *cap = more;
    return true;
}

static int32_t add(struct gr_builder *b, struct gr_node node)
{
    if (b->error)
        return GR_END;
    if (b->n_node >= GR_MOST_NODES)
        return gr_fail(b, KN_ELIMIT, "the schema is too large: it needs more than %d nodes", GR_MOST_NODES);
    if (!gr_grow((void **)&b->node, &b->cap_node, b->n_node, sizeof node))
        return gr_fail(b, KN_ENOMEM, "no memory for the schema's automaton");
    b->node[b->n_node] = node;
    return (int32_t)b->n_node++;
}

static void add_alternative(struct gr_builder *b, int32_t node)
{
    if (b->error)
        return;
    if (!gr_grow((void **)&b->alt, &b->cap_alt, b->n_alt, sizeof *b->alt)) {
        gr_fail(b, KN_ENOMEM, "no memory for the schema's automaton");
        return;
    }
    b->alt[b->n_alt++] = node;
}

int gr_builder_open(struct gr_builder **out)
{
    struct gr_builder *b = kn_calloc(1, sizeof *b);
    if (!b)
        return KN_ENOMEM;
    add(b, (struct gr_node){ .kind = GR_RETURN });
    gr_base_rules(b);
    if (b->error) {
        gr_builder_close(b);
        return KN_ENOMEM;
    }
    *out = b;
    return 0;
}

void gr_builder_close(struct gr_builder *b)
{
    if (!b)
        return;
    kn_free(b->node);
    kn_free(b->alt);
    kn_free(b);
}

const char *gr_builder_why(const struct gr_builder *b) { return b->why; }

/* ---- nodes ----------------------------------------------------------------------------------- */

int32_t gr_bytes_node(struct gr_builder *b, int lo, int hi, int32_t next)
{
    return add(b, (struct gr_node){ .kind = GR_BYTES, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .a = next });
}

int32_t gr_literal(struct gr_builder *b, const char *p, size_t n, int32_t next)
{
    while (n-- > 0)
        next = gr_bytes_node(b, (uint8_t)p[n], (uint8_t)p[n], next);
    return next;
}

int32_t gr_text(struct gr_builder *b, const char *text, int32_t next)
{
    return gr_literal(b, text, strlen(text), next);
}

int32_t gr_control(struct gr_builder *b, int32_t token, int32_t next)
{
    const char name[4] = { (char)GR_CONTROL_BYTE, (char)(token >> 16), (char)(token >> 8), (char)token };
    return gr_literal(b, name, sizeof name, next);
}

int32_t gr_alternatives(struct gr_builder *b, const int32_t *node, size_t n)
{
    const size_t first = b->n_alt;
    for (size_t i = 0; i < n; i++)
        add_alternative(b, node[i]);
    return add(b, (struct gr_node){ .kind = GR_SPLIT, .a = (int32_t)first, .b = (int32_t)n });
}

int32_t gr_either(struct gr_builder *b, int32_t x, int32_t y)
{
    return gr_alternatives(b, (const int32_t[]){ x, y }, 2);
}

int32_t gr_call(struct gr_builder *b, int32_t rule, int32_t next)
{
    return add(b, (struct gr_node){ .kind = GR_CALL, .a = rule, .b = next });
}

int32_t gr_count(struct gr_builder *b, uint32_t least, uint32_t most, int32_t next)
{
    return add(b, (struct gr_node){ .kind = GR_COUNT, .least = least, .most = most, .a = next });
}

int32_t gr_at_least(struct gr_builder *b, uint32_t least, int32_t next)
{
    return add(b, (struct gr_node){ .kind = GR_ATLEAST, .least = least, .a = next });
}

int32_t gr_forward(struct gr_builder *b) { return gr_alternatives(b, NULL, 0); }

void gr_set(struct gr_builder *b, int32_t forward, int32_t node)
{
    if (b->error)
        return;
    kn_assert(b->node[forward].kind == GR_SPLIT && b->node[forward].b == 0);
    b->node[forward].a = (int32_t)b->n_alt;
    b->node[forward].b = 1;
    add_alternative(b, node);
}

/* ---- free text ------------------------------------------------------------------------------- */

/* Aho-Corasick automaton: a trie of the triggers' bytes.  At a byte without a trie edge, the search goes on
 * from the longest suffix of the text so far that is the beginning of a trigger.  A control token is four
 * bytes that are not text: for a control token that is no trigger the states 1, 2, 3 and then 0 follow. */
struct finder {
    int32_t (*to)[256];          /* [n] -1 until finder_complete */
    int32_t *fall, *node, *next; /* [n] fall: the state of the longest proper suffix that begins a trigger; node: the
                                    state's builder node; next: node after the trigger that ends here, or -1 */
    uint8_t *inside;             /* [n] bytes of a control token read so far; 0: text */
    size_t n, cap;
};

static int32_t finder_add(struct finder *f, int inside)
{
    memset(f->to[f->n], 0xff, sizeof *f->to);
    f->fall[f->n] = 0;
    f->next[f->n] = -1;
    f->inside[f->n] = (uint8_t)inside;
    return (int32_t)f->n++;
}

static void finder_put(struct finder *f, const struct gr_trigger *t)
{
    const bool is_control = t->control >= 0;
    const uint8_t control[4] = { GR_CONTROL_BYTE, (uint8_t)(t->control >> 16), (uint8_t)(t->control >> 8),
                                 (uint8_t)t->control };
    const uint8_t *p = is_control ? control : (const uint8_t *)t->text;
    size_t n = is_control ? sizeof control : t->n;
    int32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t child = f->to[at][p[i]];
        if (child < 0)
            child = f->to[at][p[i]] = finder_add(f, is_control ? (int)(i + 1) : 0);
        at = child;
    }
    if (f->next[at] < 0)
        f->next[at] = t->next;
}

static int32_t finder_past(const struct finder *f, int32_t at, int c)
{
    if (f->inside[at])
        return (f->inside[at] + 1) % 4;
    return at ? f->to[f->fall[at]][c] : 0;
}

/* Fills the edges that are not in the trie.  Breadth first, so that the states of shorter suffixes are complete
 * when they are needed. */
static void finder_complete(struct finder *f, int32_t *queue)
{
    size_t head = 0, tail = 0;
    queue[tail++] = 0;
    queue[tail++] = 2; /* no trie edges lead to states 2 and 3 */
    queue[tail++] = 3;
    while (head < tail) {
        int32_t at = queue[head++];
        if (f->next[at] < 0 && !f->inside[at])
            f->next[at] = f->next[f->fall[at]];
        for (int c = 0; c < 256; c++) {
            int32_t past = finder_past(f, at, c), child = f->to[at][c];
            if (child < 0) {
                f->to[at][c] = past;
                continue;
            }
            f->fall[child] = f->inside[child] ? 0 : past;
            queue[tail++] = child;
        }
    }
}

/* Makes the node of a finder state: adjacent bytes with the same target become one byte range. */
static void finder_emit(struct gr_builder *b, const struct finder *f, int32_t at, bool may_end)
{
    int32_t out[257], n = 0;
    for (int lo = 0, hi; lo < 256; lo = hi + 1) {
        for (hi = lo; hi < 255 && f->to[at][hi + 1] == f->to[at][lo]; hi++)
            ;
        int32_t to = f->to[at][lo];
        out[n++] = gr_bytes_node(b, lo, hi, f->next[to] >= 0 ? f->next[to] : f->node[to]);
    }
    if (may_end && !f->inside[at])
        out[n++] = GR_END;
    gr_set(b, f->node[at], gr_alternatives(b, out, (size_t)n));
}

static int32_t free_text(struct gr_builder *b, struct finder *f, const struct gr_trigger *t, size_t n, bool may_end)
{
    finder_add(f, 0);
    for (int i = 1; i < 4; i++)
        finder_add(f, i);
    f->to[0][GR_CONTROL_BYTE] = 1;
    for (size_t i = 0; i < n; i++)
        finder_put(f, &t[i]);
    finder_complete(f, f->node); /* node[] is used as the queue before it holds nodes */
    for (size_t i = 0; i < f->n; i++)
        f->node[i] = gr_forward(b);
    for (size_t i = 0; i < f->n; i++)
        if (f->next[i] < 0)
            finder_emit(b, f, (int32_t)i, may_end);
    return b->error ? GR_END : f->node[0];
}

int32_t gr_free_until(struct gr_builder *b, const struct gr_trigger *t, size_t n, bool may_end)
{
    struct finder f = { .cap = 4 };
    for (size_t i = 0; i < n; i++) {
        f.cap += t[i].control >= 0 ? 3 : t[i].n;
        if (t[i].control < 0 && (t[i].n == 0 || memchr(t[i].text, GR_CONTROL_BYTE, t[i].n)))
            return gr_fail(b, KN_EINVAL, "a trigger is empty or not a string");
    }
    if (f.cap > 4096)
        return gr_fail(b, KN_ELIMIT, "the triggers have more than 4096 bytes");
    f.to = kn_calloc(f.cap, sizeof *f.to);
    f.fall = kn_calloc(f.cap, sizeof *f.fall);
    f.next = kn_calloc(f.cap, sizeof *f.next);
    f.node = kn_calloc(f.cap, sizeof *f.node);
    f.inside = kn_calloc(f.cap, sizeof *f.inside);
    int32_t start = f.to && f.fall && f.next && f.node && f.inside
                        ? free_text(b, &f, t, n, may_end)
                        : gr_fail(b, KN_ENOMEM, "no memory for %zu bytes of triggers", f.cap);
    kn_free(f.to);
    kn_free(f.fall);
    kn_free(f.next);
    kn_free(f.node);
    kn_free(f.inside);
    return start;
}
