/* Graphs: works that streams captured, and that a launch submits again.
 *
 * A capture has a branch for each of its streams.  A launch puts the works of the first branch in its own stream and
 * those of the others in streams that belong to the graph, with events where the capture had them.  So parallel
 * branches run in random orders, and a missing dependency is found, as without a graph. */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/streams.h"

#define MAX_BRANCH 16

struct item {
    int branch, event; /* event: of a record or wait, its number in the graph */
    struct gpu_work work;
};

struct gpu_graph {
    int users; /* its handle and the instances made of it */
    struct item *item;
    uint32_t n_item, room;
    int n_branch, n_event;
    struct gpu_stream *branch[MAX_BRANCH];
    uint32_t works[MAX_BRANCH], knows[MAX_BRANCH][MAX_BRANCH]; /* works of each branch; those that came before */
    struct gpu_event **event;                                  /* [n_event] handles, while it is captured */
    uint32_t (*event_knows)[MAX_BRANCH];                       /* [n_event] */
    bool is_broken;
};

struct gpu_exec {
    struct gpu_graph *graph;
    struct gpu_stream *stream[MAX_BRANCH]; /* of the branches but the first */
    struct gpu_event **event;              /* [n_event] */
};

static void release_graph(struct gpu_graph *g)
{
    if (!g || --g->users)
        return;
    for (uint32_t i = 0; i < g->n_item; i++)
        free(g->item[i].work.owned);
    free(g->item);
    free(g->event);
    free(g->event_knows);
    free(g);
}

static int add_branch(struct gpu_graph *g, struct gpu_stream *s)
{
    if (g->n_branch == MAX_BRANCH)
        return GPU_OUT_OF_MEMORY;
    s->branch = g->n_branch;
    s->capture = g;
    g->branch[g->n_branch++] = s;
    return GPU_OK;
}

static int add_item(struct gpu_graph *g, int branch, int event, const struct gpu_work *w)
{
    if (g->is_broken)
        return GPU_CAPTURE_INVALIDATED;
    if (g->n_item == g->room) {
        uint32_t room = g->room ? g->room * 2 : 64;
        struct item *more = realloc(g->item, room * sizeof *more);
        if (!more)
            return GPU_OUT_OF_MEMORY;
        g->item = more;
        g->room = room;
    }
    g->item[g->n_item++] = (struct item){ branch, event, *w };
    if (w->kind != WORK_RECORD)
        g->knows[branch][branch] = ++g->works[branch];
    return GPU_OK;
}

int gpu_capture_work(struct gpu_stream *s, const struct gpu_work *w) { return add_item(s->capture, s->branch, -1, w); }

/* The capture ends with an error: a stream that is being captured was waited for. */
void gpu_capture_break(struct gpu_stream *s) { s->capture->is_broken = true; }

int gpu_capture_record(struct gpu_stream *s, struct gpu_event *e)
{
    struct gpu_graph *g = s->capture;
    size_t n = (size_t)g->n_event + 1;
    struct gpu_event **events = realloc(g->event, n * sizeof *events);
    g->event = events ? events : g->event;
    uint32_t(*knows)[MAX_BRANCH] = realloc(g->event_knows, n * sizeof *knows);
    g->event_knows = knows ? knows : g->event_knows;
    if (!events || !knows)
        return GPU_OUT_OF_MEMORY;
    int error = add_item(g, s->branch, g->n_event, &(struct gpu_work){ .kind = WORK_RECORD });
    if (error)
        return error;
    memcpy(knows[g->n_event], g->knows[s->branch], sizeof *knows);
    events[g->n_event] = e;
    e->users++;
    e->capture = g;
    e->number = g->n_event++;
    return GPU_OK;
}

/* A stream that waits for an event of a capture becomes a branch of it. */
int gpu_capture_wait(struct gpu_stream *s, struct gpu_event *e)
{
    struct gpu_graph *g = e->capture;
    if (!g || (s->capture && s->capture != g))
        return GPU_CAPTURE_ISOLATION;
    int error = s->capture ? GPU_OK : add_branch(g, s);
    if (!error)
        error = add_item(g, s->branch, e->number, &(struct gpu_work){ .kind = WORK_WAIT_EVENT });
    for (int b = 0; b < MAX_BRANCH && !error; b++)
        if (g->knows[s->branch][b] < g->event_knows[e->number][b])
            g->knows[s->branch][b] = g->event_knows[e->number][b];
    return error;
}

GPU_API int cuStreamBeginCapture_v2(struct gpu_stream *handle, unsigned mode)
{
    GPU_ENTER;
    pthread_mutex_lock(&gpu_lock);
    struct gpu_stream *s = gpu_find_stream(handle);
    int error = !s || !handle || mode > 2 ? GPU_INVALID_VALUE : s->capture ? GPU_ILLEGAL_STATE : GPU_OK;
    struct gpu_graph *g = error ? NULL : calloc(1, sizeof *g);
    if (!error && !g)
        error = GPU_OUT_OF_MEMORY;
    if (!error) {
        g->users = 1;
        add_branch(g, s);
    }
    pthread_mutex_unlock(&gpu_lock);
    return error;
}

GPU_API int cuStreamIsCapturing(struct gpu_stream *handle, unsigned *status)
{
    GPU_ENTER;
    pthread_mutex_lock(&gpu_lock);
    struct gpu_stream *s = gpu_find_stream(handle);
    if (s)
        *status = !s->capture ? 0 : s->capture->is_broken ? 2 : 1;
    pthread_mutex_unlock(&gpu_lock);
    return s ? GPU_OK : GPU_INVALID_HANDLE;
}

/* All branches must have been joined: their last work came before that of the first branch. */
static int end_capture(struct gpu_stream *s)
{
    struct gpu_graph *g = s->capture;
    int error = s->branch ? GPU_CAPTURE_UNMATCHED : g->is_broken ? GPU_CAPTURE_INVALIDATED : GPU_OK;
    if (s->branch)
        return error;
    for (int b = 1; b < g->n_branch && !error; b++)
        error = g->knows[0][b] < g->works[b] ? GPU_CAPTURE_UNJOINED : GPU_OK;
    for (int b = 0; b < g->n_branch; b++)
        g->branch[b]->capture = NULL;
    for (int k = 0; k < g->n_event; k++) {
        if (g->event[k]->capture == g)
            g->event[k]->capture = NULL;
        gpu_release_event(g->event[k]);
    }
    return error;
}

GPU_API int cuStreamEndCapture(struct gpu_stream *handle, struct gpu_graph **graph)
{
    GPU_ENTER;
    pthread_mutex_lock(&gpu_lock);
    struct gpu_stream *s = gpu_find_stream(handle);
    int error = s && s->capture ? GPU_OK : GPU_ILLEGAL_STATE;
    if (!error) {
        struct gpu_graph *g = s->capture;
        error = end_capture(s);
        *graph = error ? NULL : g;
        if (error && !s->branch)
            release_graph(g);
    }
    pthread_mutex_unlock(&gpu_lock);
    return error;
}

GPU_API int cuGraphDestroy(struct gpu_graph *g)
{
    GPU_ENTER;
    pthread_mutex_lock(&gpu_lock);
    release_graph(g);
    pthread_mutex_unlock(&gpu_lock);
    return GPU_OK;
}

static void close_exec(struct gpu_exec *x)
{
    for (int b = 1; b < x->graph->n_branch; b++)
        if (x->stream[b])
            gpu_close_stream(x->stream[b]);
    for (int k = 0; k < x->graph->n_event && x->event; k++)
        if (x->event[k]) {
            x->event[k]->is_destroyed = true;
            gpu_release_event(x->event[k]);
        }
    free(x->event);
    release_graph(x->graph);
    free(x);
}

static struct gpu_exec *open_exec(struct gpu_graph *g)
{
    struct gpu_exec *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->graph = g;
    g->users++;
    bool ok = (x->event = calloc((size_t)g->n_event + 1, sizeof *x->event)) != NULL;
    for (int k = 0; k < g->n_event && ok; k++)
        if ((ok = (x->event[k] = calloc(1, sizeof **x->event)) != NULL))
            x->event[k]->users = 1;
    for (int b = 1; b < g->n_branch && ok; b++)
        ok = (x->stream[b] = gpu_open_stream(true)) != NULL;
    if (ok)
        return x;
    close_exec(x);
    return NULL;
}

GPU_API int cuGraphInstantiateWithFlags(struct gpu_exec **exec, struct gpu_graph *g, unsigned long long flags)
{
    GPU_ENTER;
    (void)flags;
    pthread_mutex_lock(&gpu_lock);
    struct gpu_exec *x = open_exec(g);
    if (x)
        *exec = x;
    pthread_mutex_unlock(&gpu_lock);
    return x ? GPU_OK : GPU_OUT_OF_MEMORY;
}

GPU_API int cuGraphExecDestroy(struct gpu_exec *x)
{
    GPU_ENTER;
    pthread_mutex_lock(&gpu_lock);
    close_exec(x);
    pthread_mutex_unlock(&gpu_lock);
    return GPU_OK;
}

static int submit_item(struct gpu_exec *x, const struct item *item, struct gpu_stream *s)
{
    struct gpu_work w = item->work;
    if (w.kind == WORK_LAUNCH) {
        size_t bytes = w.launch.f->param_bytes + 16;
        if (!(w.owned = malloc(bytes)))
            return GPU_OUT_OF_MEMORY;
        memcpy(w.owned, item->work.owned, bytes);
        w.launch.param = w.owned;
    }
    if (item->event >= 0) {
        w.event = x->event[item->event];
        w.event_number = w.kind == WORK_RECORD ? ++w.event->recorded : w.event->recorded;
    }
    int error = gpu_enqueue(item->branch ? x->stream[item->branch] : s, &w);
    if (error)
        free(w.owned);
    return error;
}

GPU_API int cuGraphLaunch(struct gpu_exec *x, struct gpu_stream *handle)
{
    GPU_ENTER;
    pthread_mutex_lock(&gpu_lock);
    struct gpu_stream *s = gpu_find_stream(handle);
    int error = !s ? GPU_INVALID_HANDLE : s->capture ? GPU_NOT_SUPPORTED : GPU_OK;
    for (uint32_t i = 0; i < x->graph->n_item && !error; i++)
        error = submit_item(x, x->graph->item + i, s);
    pthread_mutex_unlock(&gpu_lock);
    return error;
}

GPU_API int cuGraphUpload(struct gpu_exec *x, struct gpu_stream *s)
{
    GPU_ENTER;
    return x && gpu_find_stream(s) ? GPU_OK : GPU_INVALID_VALUE;
}
