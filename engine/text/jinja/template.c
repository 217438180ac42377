/* engine/text/jinja/template.c - entry points: opens a template and renders it, within limits.
 *
 * In: a template's text; later variables as JSON.  Out: a tree with resolved names; later the rendered
 * text.  Both entry points call the setjmp to which jin_fail and jin_escape jump. */
#include "engine/text/jinja/internal.h"

#include <stdio.h>

#define MAX_TEXT     (1 << 20) /* bytes of a template */
#define TEMPLATE_MEM (256 << 20)
#define MEMORY       (256 << 20)
#define OUTPUT       (64 << 20)
#define STEPS        50000000
#define DEPTH        2000

/* ---- limits of a rendering ------------------------------------------------------------------- */

__attribute__((noreturn)) static void limit(struct jin *j, const char *what)
{
    j->heap.error->line = j->heap.line;
    snprintf(j->heap.error->text, sizeof j->heap.error->text, "rendering the template needs more than %s", what);
    jin_escape(&j->heap, KN_ELIMIT);
}

void jin_charge(struct jin *j, size_t steps)
{
    if (steps > j->steps)
        limit(j, "the allowed steps");
    j->steps -= steps;
}

void jin_print(struct jin *j, const char *data, size_t n)
{
    if (n > j->out_limit - j->n_out)
        limit(j, "the allowed output");
    if (!j->out || n > j->out_room - j->n_out) {
        size_t room = j->out_room ? j->out_room : 4096;
        while (room < j->n_out + n)
            room *= 2;
        char *grown = kn_realloc(j->out, j->out_room, room + 1);
        if (!grown) {
            snprintf(j->heap.error->text, sizeof j->heap.error->text, "no memory for %zu bytes of output", room);
            jin_escape(&j->heap, KN_ENOMEM);
        }
        j->out = grown;
        j->out_room = room;
    }
    jin_charge(j, n / 64);
    if (n)
        memcpy(j->out + j->n_out, data, n);
    j->n_out += n;
}

struct jin_value jin_capture_end(struct jin *j, size_t begin)
{
    struct jin_value v = jin_string(j, j->out ? j->out + begin : "", j->n_out - begin);
    j->n_out = begin;
    return v;
}

/* ---- JSON to values -------------------------------------------------------------------------- */

static struct jin_value from_json(struct jin *j, const json_t *v);

static struct jin_value from_array(struct jin *j, const json_t *a)
{
    size_t n = json_array_size(a);
    struct jin_value *item = jin_take_n(&j->heap, n, sizeof *item);
    for (size_t i = 0; i < n; i++)
        item[i] = from_json(j, json_array_get(a, i));
    return jin_list_new(j, JIN_LIST, item, n);
}

static struct jin_dict *from_object(struct jin *j, const json_t *o)
{
    struct jin_dict *d = jin_dict_new(j, json_object_size(o));
    for (void *i = json_object_iter((json_t *)o); i; i = json_object_iter_next((json_t *)o, i)) {
        struct jin_value key = jin_of(jin_string_view(&j->heap, json_object_iter_key(i), json_object_iter_key_len(i)));
        jin_dict_put(j, d, key, from_json(j, json_object_iter_value(i)));
    }
    return d;
}

/* Strings are borrowed from v, which outlives the rendering. */
static struct jin_value from_json(struct jin *j, const json_t *v)
{
    struct jin_value out;
    jin_charge(j, 1);
    if (--j->depth < 0)
        JIN_FAIL(j, "the variables are nested too deeply");
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        out = jin_dict_value(from_object(j, v));
        break;
    case JSON_ARRAY:
        out = from_array(j, v);
        break;
    case JSON_STRING:
        out = jin_of(jin_string_view(&j->heap, json_string_value(v), json_string_length(v)));
        break;
    case JSON_INTEGER:
        out = jin_int(json_integer_value(v));
        break;
    case JSON_REAL:
        out = jin_float(json_real_value(v));
        break;
    case JSON_NULL:
        out = jin_none();
        break;
    default:
        out = jin_bool(json_is_true(v));
    }
    j->depth++;
    return out;
}

/* ---- open and render ------------------------------------------------------------------------- */

int eng_template_open(struct eng_template **out, const char *text, size_t n, struct eng_template_error *error)
{
    struct eng_template *t = kn_calloc(1, sizeof *t);
    struct jin_parser *p = kn_calloc(1, sizeof *p);
    int code = 0;
    memset(error, 0, sizeof *error);
    if (!t || !p) {
        snprintf(error->text, sizeof error->text, "no memory for a template");
        code = KN_ENOMEM;
    } else if (n > MAX_TEXT) {
        snprintf(error->text, sizeof error->text, "the template has %zu bytes; the limit is %d", n, MAX_TEXT);
        code = KN_ELIMIT;
    }
    if (!code) {
        jin_heap_init(&t->heap, TEMPLATE_MEM, error);
        p->heap = &t->heap;
        if (setjmp(t->heap.escape) == 0) {
            jin_lexer_init(&p->lexer, &t->heap, text, n);
            t->body = jin_parse(p);
            jin_resolve_names(&p->lexer, t);
        } else {
            code = t->heap.code;
        }
    }
    kn_free(p);
    if (code) {
        eng_template_close(t);
        return code;
    }
    *out = t;
    return 0;
}

void eng_template_close(struct eng_template *t)
{
    if (!t)
        return;
    jin_heap_free(&t->heap);
    kn_free(t);
}

static void render(struct jin *j, const struct eng_template *t, const json_t *variables)
{
    j->variables = from_object(j, variables);
    struct jin_env *env = jin_env_new(j, t->scope, NULL);
    jin_env_enter(j, env);
    jin_execute(j, env, t->body);
    jin_print(j, "", 0);
}

int eng_template_render(const struct eng_template *t, const json_t *variables, int64_t now_s,
                        const struct eng_template_limits *limits, char **out, size_t *n,
                        struct eng_template_error *error)
{
    static const struct eng_template_limits defaults;
    const struct eng_template_limits *l = limits ? limits : &defaults;
    struct jin *j = kn_calloc(1, sizeof *j);
    memset(error, 0, sizeof *error);
    if (!j) {
        snprintf(error->text, sizeof error->text, "no memory for a rendering");
        return KN_ENOMEM;
    }
    jin_heap_init(&j->heap, l->memory ? l->memory : MEMORY, error);
    j->out_limit = l->output ? l->output : OUTPUT;
    j->steps = l->steps ? l->steps : STEPS;
    j->depth = l->depth ? l->depth : DEPTH;
    j->now_s = now_s;
    j->hash_seed = kn_mix(kn_now_ns() ^ (uintptr_t)j);
    if (setjmp(j->heap.escape) == 0)
        render(j, t, variables);
    int code = j->heap.code;
    if (code) {
        kn_free(j->out);
    } else {
        *out = j->out;
        *n = j->n_out;
        (*out)[*n] = 0;
    }
    jin_heap_free(&j->heap);
    kn_free(j);
    return code;
}
