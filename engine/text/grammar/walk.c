/* engine/text/grammar/walk.c - advances a gr_state by bytes, and completes texts.
 *
 * In: a state and a byte.  Out: the next state, built from an empty one: each configuration follows its
 * edge for the byte; the operations of the new automaton state (calls, counts, returns) add configurations; and
 * the frames still in use are copied.  A configuration is added only if its frames and those that its
 * path to the end needs are at most GR_DEPTH.  So every configuration of a state can reach the end of
 * the text, even when others are dropped.
 *
 * After the last byte of a token the path to the end must consist of whole tokens (token_need).  Within a token
 * any bytes will do (need), except for the state to which a call returns: it is checked once, when the call is
 * made. */
#include <string.h>

#include "engine/text/grammar/automaton.h"

void gr_copy(struct gr_state *to, const struct gr_state *from)
{
    to->n_config = from->n_config;
    to->n_frame = from->n_frame;
    to->can_end = from->can_end;
    memcpy(to->config, from->config, from->n_config * sizeof *from->config);
    memcpy(to->frame, from->frame, from->n_frame * sizeof *from->frame);
}

static int depth_of(const struct gr_state *s, int frame) { return frame < 0 ? 0 : s->frame[frame].depth; }

/* The index of the frame with these values, added if missing; -2 if the frames are full. */
static int push_frame(struct gr_state *s, int32_t state, uint32_t count, int parent)
{
    for (int i = s->n_frame - 1; i >= 0; i--)
        if (s->frame[i].state == state && s->frame[i].count == count && s->frame[i].parent == parent)
            return i;
    if (s->n_frame == GR_FRAMES)
        return -2;
    s->frame[s->n_frame] = (struct gr_frame){ state, count, (int16_t)parent, (uint16_t)(depth_of(s, parent) + 1) };
    return s->n_frame++;
}

/* Copies frame f of state `from` and the frames of its callers to `to`; returns the index of f's copy, or -2 if
 * the frames of `to` are full. */
static int carry(const struct gr_state *from, int f, struct gr_state *to)
{
    int chain[GR_DEPTH], n = 0, at = -1;
    for (; f >= 0; f = from->frame[f].parent)
        chain[n++] = f;
    while (n > 0 && at >= -1) {
        const struct gr_frame *x = &from->frame[chain[--n]];
        at = push_frame(to, x->state, x->count, at);
    }
    return at;
}

/* ---- entering -------------------------------------------------------------------------------- */

/* Work list of enter(): configurations reached without a byte; their operations are applied in order. */
struct entering {
    struct gr_config config[2 * GR_CONFIGS];
    int n;
    bool is_last; /* after the last byte of a token */
};

static bool is_there(const struct gr_config *c, int n, const struct gr_config *x)
{
    for (int i = 0; i < n; i++)
        if (c[i].state == x->state && c[i].count == x->count && c[i].frame == x->frame)
            return true;
    return false;
}

static int need_of(const struct gr_grammar *g, int32_t state, bool is_last)
{
    return is_last ? g->state[state].token_need : g->state[state].need;
}

static void want(const struct gr_grammar *g, const struct gr_state *s, struct entering *e, int32_t state,
                 uint32_t count, int frame)
{
    const struct gr_config x = { state, count, (int16_t)frame };
    if (frame < -1 || depth_of(s, frame) + need_of(g, state, e->is_last) > GR_DEPTH)
        return;
    if (e->n < 2 * GR_CONFIGS && !is_there(e->config, e->n, &x))
        e->config[e->n++] = x;
}

static void operate(const struct gr_grammar *g, struct gr_state *s, struct entering *e, const struct gr_config *c,
                    const struct gr_op *op)
{
    switch (op->kind) {
    case GR_CALL:
        if (depth_of(s, c->frame) < GR_DEPTH && depth_of(s, c->frame) + 1 + need_of(g, op->a, e->is_last) <= GR_DEPTH &&
            depth_of(s, c->frame) + g->state[op->b].token_need <= GR_DEPTH)
            want(g, s, e, op->a, 0, push_frame(s, op->b, c->count, c->frame));
        return;
    case GR_COUNT:
        if (op->most != GR_NO_LIMIT ? c->count < op->most : c->count < op->least)
            want(g, s, e, op->a, c->count + 1, c->frame);
        else if (op->most == GR_NO_LIMIT)
            want(g, s, e, op->a, c->count, c->frame);
        return;
    default:
        if (c->count >= op->least)
            want(g, s, e, op->a, c->count, c->frame);
    }
}

/* Adds to s the configuration (state, count, frame) and those that it reaches without a byte, as far as they have
 * edges; sets can_end if the text may end in one of them. */
static void enter(const struct gr_grammar *g, struct gr_state *s, int32_t state, uint32_t count, int frame,
                  bool is_last)
{
    struct entering e;
    e.n = 0;
    e.is_last = is_last;
    want(g, s, &e, state, count, frame);
    for (int i = 0; i < e.n; i++) {
        const struct gr_config c = e.config[i];
        const struct gr_dstate *x = &g->state[c.state];
        if (x->n_edge > 0 && s->n_config < GR_CONFIGS && !is_there(s->config, s->n_config, &c))
            s->config[s->n_config++] = c;
        for (int k = 0; k < x->n_op; k++)
            operate(g, s, &e, &c, &g->op[x->op + k]);
        if (!x->returns)
            continue;
        if (c.frame < 0)
            s->can_end = true;
        else
            want(g, s, &e, s->frame[c.frame].state, s->frame[c.frame].count, s->frame[c.frame].parent);
    }
}

static void clear(struct gr_state *s)
{
    s->n_config = s->n_frame = 0;
    s->can_end = false;
}

void gr_start(const struct gr_grammar *g, struct gr_state *s)
{
    clear(s);
    enter(g, s, g->start, 0, -1, true);
}

/* ---- steps ----------------------------------------------------------------------------------- */

int32_t gr_follow(const struct gr_grammar *g, int32_t state, uint8_t byte)
{
    const struct gr_dstate *s = &g->state[state];
    const struct gr_edge *e = &g->edge[s->edge];
    for (int i = 0; i < s->n_edge && e[i].lo <= byte; i++)
        if (byte <= e[i].hi)
            return g->state[e[i].to].need == GR_NEVER ? -1 : e[i].to;
    return -1;
}

/* The common case, for a state with one configuration: automaton state `next` has no operations and does not
 * return, and every frame is in use.  Then only config[0].state changes. */
static bool stays(const struct gr_grammar *g, const struct gr_state *from, int32_t next)
{
    const struct gr_dstate *x = &g->state[next];
    return x->n_op == 0 && !x->returns && from->n_frame == depth_of(from, from->config[0].frame);
}

static bool step(const struct gr_grammar *g, const struct gr_state *from, uint8_t byte, struct gr_state *to,
                 bool is_last)
{
    if (from->n_config == 1) {
        int32_t next = gr_follow(g, from->config[0].state, byte);
        if (next < 0)
            return false;
        if (stays(g, from, next)) {
            gr_copy(to, from);
            to->can_end = false;
            to->config[0].state = next;
            return from->n_frame + need_of(g, next, is_last) <= GR_DEPTH;
        }
    }
    clear(to);
    for (int i = 0; i < from->n_config; i++) {
        const struct gr_config *c = &from->config[i];
        int32_t next = gr_follow(g, c->state, byte);
        if (next < 0)
            continue;
        int frame = carry(from, c->frame, to);
        if (frame >= -1)
            enter(g, to, next, c->count, frame, is_last);
    }
    return to->n_config > 0 || to->can_end;
}

bool gr_step(const struct gr_grammar *g, const struct gr_state *from, uint8_t byte, struct gr_state *to)
{
    return step(g, from, byte, to, false);
}

bool gr_step_last(const struct gr_grammar *g, const struct gr_state *from, uint8_t byte, struct gr_state *to)
{
    return step(g, from, byte, to, true);
}

void gr_returned(const struct gr_grammar *g, const struct gr_state *from, int i, struct gr_state *to)
{
    const struct gr_frame *f = &from->frame[from->config[i].frame];
    clear(to);
    int frame = carry(from, f->parent, to);
    enter(g, to, f->state, f->count, frame, false);
}

bool gr_advance(const struct gr_grammar *g, struct gr_state *s, uint8_t byte)
{
    struct gr_state to;
    if (!gr_step(g, s, byte, &to))
        return false;
    gr_copy(s, &to);
    return true;
}

bool gr_can_end(const struct gr_state *s) { return s->can_end; }

static bool leads_on(const struct gr_grammar *g, const struct gr_state *s)
{
    struct gr_state to;
    for (int byte = 0; byte < 256; byte++)
        if (gr_step(g, s, (uint8_t)byte, &to))
            return true;
    return false;
}

bool gr_must_end(const struct gr_grammar *g, const struct gr_state *s) { return s->can_end && !leads_on(g, s); }

/* ---- finishing ------------------------------------------------------------------------------- */

/* One configuration, with its frames as a stack. */
struct finisher {
    const struct gr_grammar *g;
    int32_t state;
    uint32_t count;
    struct {
        int32_t state;
        uint32_t count;
    } below[GR_DEPTH]; /* [n] */
    int n;
    char *out;
    size_t n_out, most;
};

/* If the shortest path leads over a GR_ATLEAST (`wanted`) but the count is below its `least`: the GR_COUNT of the same
 * state, which adds a repetition. */
static const struct gr_op *counting(const struct finisher *f, const struct gr_op *wanted)
{
    const struct gr_dstate *s = &f->g->state[f->state];
    for (int i = 0; i < s->n_op; i++) {
        const struct gr_op *op = &f->g->op[s->op + i];
        if (op->kind == GR_COUNT && op->least == wanted->least)
            return op;
    }
    kn_assert(!"a least count without a way to count");
    return NULL;
}

static void finish_op(struct finisher *f, const struct gr_op *op)
{
    if (op->kind == GR_ATLEAST && f->count < op->least)
        op = counting(f, op);
    if (op->kind == GR_CALL) {
        kn_assert(f->n < GR_DEPTH);
        f->below[f->n].state = op->b;
        f->below[f->n++].count = f->count;
        f->count = 0;
    } else if (op->kind == GR_COUNT && (op->most != GR_NO_LIMIT || f->count < op->least)) {
        f->count++;
    }
    f->state = op->a;
}

/* Makes one step along the shortest path (gr_dstate.way); false at the end of the text. */
static bool finish_step(struct finisher *f)
{
    const struct gr_dstate *s = &f->g->state[f->state];
    kn_assert(s->way != GR_WAY_NONE);
    if (s->way == GR_WAY_RETURN) {
        if (f->n == 0)
            return false;
        f->state = f->below[--f->n].state;
        f->count = f->below[f->n].count;
    } else if (s->way < s->n_edge) {
        const struct gr_edge *e = &f->g->edge[s->edge + s->way];
        if (f->n_out < f->most)
            f->out[f->n_out] = (char)e->lo;
        f->n_out++;
        f->state = e->to;
    } else {
        finish_op(f, &f->g->op[s->op + s->way - s->n_edge]);
    }
    return true;
}

static uint64_t way_left(const struct gr_grammar *g, const struct gr_state *s, const struct gr_config *c)
{
    uint64_t n = g->state[c->state].distance;
    for (int f = c->frame; f >= 0; f = s->frame[f].parent)
        n += g->state[s->frame[f].state].distance;
    return n;
}

size_t gr_finish(const struct gr_grammar *g, const struct gr_state *s, char *out, size_t most)
{
    if (s->can_end || s->n_config == 0)
        return 0;
    const struct gr_config *best = &s->config[0];
    for (int i = 1; i < s->n_config; i++)
        if (way_left(g, s, &s->config[i]) < way_left(g, s, best))
            best = &s->config[i];
    struct finisher f = { .g = g, .state = best->state, .count = best->count, .out = out, .most = most };
    f.n = depth_of(s, best->frame);
    for (int i = best->frame, k = f.n; i >= 0; i = s->frame[i].parent) {
        f.below[--k].state = s->frame[i].state;
        f.below[k].count = s->frame[i].count;
    }
    while (f.n_out <= most && finish_step(&f))
        ;
    return f.n_out;
}
