/* engine/text/jinja/internal.h - data structures and functions of the template interpreter; names begin
 * with jin_.  Only the files of engine/text/jinja include it.
 *
 *     lexer.c           text to tokens, with white space control
 *     tokens.c          current token and one token of lookahead
 *     parse.c           statements: tokens to a tree of struct jin_node
 *     parse_expression.c                                     expressions: tokens to nodes
 *     scope.c           resolves each name to (environments up, slot)
 *     execute.c         statements        evaluate.c   expressions      macro.c   calls
 *     access.c          x.y, x[y], x[a:b]                string_methods.c   methods of strings
 *     filters.c, sequence_filters.c, tests.c, globals.c  built-in filters, tests and functions
 *     value.c           equality, order, lists, dicts    string.c, case.c   text
 *     number.c          arithmetic                       iterate.c          iteration
 *     show.c            str(), repr() and JSON of values
 *     format.c          '%' and str.format
 *     heap.c            memory, its limit, and failure
 *     template.c        opening and rendering, and the other limits
 *
 * Each template and each rendering has its own heap; a heap is freed as a whole.  A failure anywhere is a
 * longjmp to the entry in template.c (jin_fail).  A rendering holds only its heap and the output
 * buffer, so template.c can release everything. */
#ifndef ENGINE_TEXT_JINJA_INTERNAL_H
#define ENGINE_TEXT_JINJA_INTERNAL_H

#include <setjmp.h>
#include <string.h>

#include "engine/text/jinja/jinja.h"

/* ---- heap.c ---------------------------------------------------------------------------------- */

struct jin_heap {
    struct jin_chunk *chunk; /* list: the chunk being filled, then the older chunks */
    size_t used, limit;      /* bytes */
    int line;                /* current line of the template, for messages */
    int code;                /* error code that the longjmp reports; 0: no failure */
    struct eng_template_error *error;
    jmp_buf escape;
};

void jin_heap_init(struct jin_heap *h, size_t limit, struct eng_template_error *error);
void jin_heap_free(struct jin_heap *h);
void *jin_take(struct jin_heap *h, size_t bytes);             /* allocates: 16-byte aligned, not zeroed */
void *jin_take_n(struct jin_heap *h, size_t n, size_t bytes); /* n elements of `bytes` each */
__attribute__((noreturn, format(printf, 2, 3))) void jin_fail(struct jin_heap *h, const char *fmt, ...);
__attribute__((noreturn)) void jin_escape(struct jin_heap *h, int code); /* after filling h->error */

/* ---- values ---------------------------------------------------------------------------------- */

enum jin_type {
    JIN_MISSING, /* no value: an argument not given, the end of an iteration */
    JIN_UNDEFINED,
    JIN_NONE,
    JIN_BOOL,
    JIN_INT,
    JIN_FLOAT,
    JIN_STRING,
    JIN_LIST,
    JIN_TUPLE,
    JIN_DICT,
    JIN_VIEW,
    JIN_RANGE,
    JIN_ITERATOR,
    JIN_NAMESPACE,
    JIN_MACRO,
    JIN_LOOP,
    JIN_FUNCTION,
    JIN_METHOD,
    JIN_CYCLER,
    JIN_JOINER
};

struct jin_value {
    uint8_t type;
    bool safe; /* the string is marked as markup (HTML): other strings joined to it are HTML-escaped */
    union {
        bool b;
        int64_t i;
        double f;
        const struct jin_string *s;
        const struct jin_list *list; /* also tuples */
        struct jin_dict *dict;       /* also namespaces */
        const struct jin_view *view;
        const struct jin_range *range;
        struct jin_iterator *iterator;
        const struct jin_undefined *undefined;
        const struct jin_macro *macro;
        struct jin_loop *loop;
        const struct jin_function *function;
        const struct jin_method *method;
        struct jin_cycler *cycler;
        struct jin_joiner *joiner;
    };
};

/* The bytes of a string never change.  If a string ends at the used end of its tail buffer, a
 * concatenation extends the buffer in place.  So building a text piece by piece takes linear, not
 * quadratic, time. */
struct jin_tail {
    size_t used, room;
    char data[];
};
struct jin_string {
    const char *data; /* [n] UTF-8 */
    size_t n;
    ptrdiff_t n_char;      /* characters; -1: not counted yet */
    struct jin_tail *tail; /* the buffer that holds data, or NULL */
};

struct jin_list {
    size_t n;
    const struct jin_value *item;
};

struct jin_pair {
    struct jin_value key, value;
    uint64_t hash;
};
struct jin_dict { /* in order of first insertion */
    size_t n, room;
    struct jin_pair *pair; /* [room] */
    uint32_t *index;       /* [2 * room] hash table of 1 + index in pair, 0: free; NULL: too few pairs for a table */
};

struct jin_view {
    enum { JIN_KEYS, JIN_VALUES, JIN_ITEMS } of;
    struct jin_dict *dict;
};
struct jin_range {
    int64_t start, stop, step;
    size_t n;
};

struct jin_undefined {
    const char *hint;      /* the whole message, or NULL */
    const char *owner;     /* type of the value in which the name was looked up, or NULL */
    struct jin_value name; /* the undefined name or key */
};

struct jin_cycler {
    const struct jin_list *items;
    size_t at;
};
struct jin_joiner {
    struct jin_value separator;
    bool used;
};

struct jin; /* a rendering */
struct jin_args;

typedef struct jin_value jin_call(struct jin *j, struct jin_value self, const struct jin_args *args);
struct jin_function {
    const char *name;
    jin_call *call;
};
struct jin_method {
    const struct jin_function *function;
    struct jin_value self;
};

/* ---- tree ------------------------------------------------------------------------------------ */

/* The comment of a kind lists its child nodes (members a, b, c, d, e of jin_node, in this order), then after a
 * semicolon the other members in use.  A plural is a list of nodes. */
enum jin_kind {
    JIN_N_CONST,        /* value */
    JIN_N_NAME,         /* name, up, slot, target */
    JIN_N_NSREF,        /* name, up, slot; value: the attribute's name */
    JIN_N_LIST,         /* items */
    JIN_N_TUPLE,        /* items */
    JIN_N_DICT,         /* keys and values, alternating */
    JIN_N_ATTRIBUTE,    /* object; name */
    JIN_N_ITEM,         /* object, index */
    JIN_N_SLICE,        /* start, stop, step, each may be NULL; only as index of an ITEM */
    JIN_N_CALL,         /* callee; params */
    JIN_N_FILTER,       /* input, NULL: captured text; name, params, found */
    JIN_N_TEST,         /* input; name, params, found */
    JIN_N_NOT,          /* operand */
    JIN_N_NEGATIVE,     /* operand */
    JIN_N_POSITIVE,     /* operand */
    JIN_N_AND,          /* left, right */
    JIN_N_OR,           /* left, right */
    JIN_N_BINARY,       /* left, right; op: + - * / % D for // P for ** */
    JIN_N_CONCAT,       /* items */
    JIN_N_COMPARE,      /* first, COMPARISONs */
    JIN_N_COMPARISON,   /* right; its left operand is the operand before it.  op: = ! < l(<=) > g(>=)
                                                   i(in) n(not in) */
    JIN_N_CONDITION,    /* test, then, else or NULL */
    JIN_N_KEYWORD,      /* argument; name */
    JIN_N_TEXT,         /* value */
    JIN_N_PRINT,        /* expression */
    JIN_N_IF,           /* test, body, else body; elif */
    JIN_N_FOR,          /* target, iterable, body, else, test; scope[3] */
    JIN_N_SET,          /* target, expression */
    JIN_N_SET_BLOCK,    /* target, filter, body; own */
    JIN_N_MACRO,        /* parameters, defaults, body; name, macro, own */
    JIN_N_CALL_BLOCK,   /* as MACRO; d: the call, NULL: {% generation %} */
    JIN_N_FILTER_BLOCK, /* -, filter, body; own */
    JIN_N_WITH,         /* targets, expressions, body; own */
    JIN_N_BREAK,
    JIN_N_CONTINUE
};

struct jin_node {
    uint8_t kind, op;
    bool recursive, extended; /* of FOR: the loop is declared recursive; its body uses `loop` */
    bool target;              /* of NAME: the name is assigned here */
    bool elif;                /* of IF: the else body (c) is an elif */
    int16_t height;           /* levels of nodes below this one */
    int line;
    int up, slot;          /* a name's value is in this slot, `up` environments up; set by scope.c */
    struct jin_node *next; /* next in the same list */
    struct jin_node *a, *b, *c, *d, *e;
    const struct jin_string *name; /* interned: equal names have one address */
    struct jin_value value;
    union {
        struct jin_params *params;
        struct jin_macro_info *macro;
        struct jin_scope *scope[3]; /* of FOR: body, else, test */
    };
    struct jin_scope *own; /* scope of a block that is not a FOR */
    const void *found;     /* of FILTER, TEST: struct jin_filter, jin_test */
};

struct jin_params {
    struct jin_node *position, *keyword, *star, *star_star;
};

/* The first value of a slot when its scope is entered.  PARAMETER: set by the code that enters the scope (arguments of
 * a macro, targets of a loop or with block, `loop`); RESOLVE: the template variable or built-in function `name`; ALIAS:
 * the value of slot `from`, `up` environments above the outer one; UNDEFINED: none. */
enum jin_load { JIN_LOAD_PARAMETER, JIN_LOAD_RESOLVE, JIN_LOAD_ALIAS, JIN_LOAD_UNDEFINED };
struct jin_slot {
    enum jin_load load;
    int up, from;
    const struct jin_string *name;
};
struct jin_scope {
    int n;
    struct jin_slot *slot;
};

struct jin_macro_info {
    int n_parameter, n_default;
    int caller, kwargs, varargs; /* slots of these names; -1: not used, or a parameter has the name */
    bool explicit_caller;        /* a parameter is named caller */
    bool speaks_of_caller;       /* the body uses caller */
};

struct eng_template {
    struct jin_heap heap;
    struct jin_node *body;
    struct jin_scope *scope;
};

/* ---- lexer.c, parse*.c, scope.c -------------------------------------------------------------- */

enum jin_token_kind {
    JIN_T_END,
    JIN_T_DATA,
    JIN_T_PRINT_BEGIN,
    JIN_T_PRINT_END,
    JIN_T_BLOCK_BEGIN,
    JIN_T_BLOCK_END,
    JIN_T_NAME,
    JIN_T_STRING,
    JIN_T_NUMBER,
    JIN_T_OPERATOR
};

struct jin_token {
    enum jin_token_kind kind;
    int op; /* of operators: the character, or E == N != G >= L <= D // P ** */
    int line;
    struct jin_value value; /* data, strings, numbers, names (interned) */
};

struct jin_lexer {
    struct jin_heap *heap;
    const char *text; /* [n] with newlines normalised to \n */
    size_t n, at;
    int line;
    size_t line_at; /* `line` is the line number of this offset */
    enum { JIN_IN_DATA, JIN_IN_PRINT, JIN_IN_BLOCK, JIN_IN_RAW } state;
    bool line_starting; /* the text at `at` begins a line: the last tag removed the newline before it */
    char bracket[256];  /* [n_bracket] closing brackets still expected */
    int n_bracket;
    struct {
        const struct jin_string **slot;
        size_t n, room;
    } names; /* hash table of interned names */
};

void jin_lexer_init(struct jin_lexer *l, struct jin_heap *h, const char *text, size_t n);
void jin_lexer_next(struct jin_lexer *l, struct jin_token *out);
const struct jin_string *jin_intern(struct jin_lexer *l, const char *data, size_t n);

struct jin_parser {
    struct jin_heap *heap;
    struct jin_lexer lexer;
    struct jin_token token, ahead; /* current token; lookahead, valid if `looked` */
    bool looked;
    int depth, n_for, n_loop;       /* nesting; enclosing FORs; enclosing FORs that a break may leave */
    bool soft;                      /* directly in an {% if %}: unknown filters and tests fail only when evaluated */
    const struct jin_node *unknown; /* the first unknown filter or test that makes parsing fail, or NULL */
};

struct jin_node *jin_parse(struct jin_parser *p);
struct jin_node *jin_parse_expression(struct jin_parser *p);
struct jin_node *jin_parse_tuple(struct jin_parser *p, bool conditional, const char *end);
struct jin_node *jin_parse_target(struct jin_parser *p, bool namespaces, const char *end);
struct jin_node *jin_parse_filters(struct jin_parser *p, struct jin_node *input, bool first);
struct jin_node *jin_node(struct jin_parser *p, enum jin_kind kind, int line, struct jin_node *a, struct jin_node *b,
                          struct jin_node *c);
void jin_advance(struct jin_parser *p);
const struct jin_token *jin_look(struct jin_parser *p);
bool jin_at_op(const struct jin_parser *p, int op);
bool jin_at_name(const struct jin_parser *p, const char *name);
bool jin_skip_op(struct jin_parser *p, int op);
bool jin_skip_name(struct jin_parser *p, const char *name);
void jin_expect_op(struct jin_parser *p, int op);
__attribute__((noreturn)) void jin_unexpected(struct jin_parser *p, const char *wanted);
void jin_deeper(struct jin_parser *p);
const struct jin_string *jin_expect_identifier(struct jin_parser *p);

void jin_resolve_names(struct jin_lexer *l, struct eng_template *t);

/* ---- a rendering ----------------------------------------------------------------------------- */

struct jin_env {
    struct jin_env *up;
    const struct jin_scope *scope;
    struct jin_value slot[];
};

struct jin {
    struct jin_heap heap;
    struct jin_dict *variables;
    char *out; /* [n_out] output; text being captured is at its end */
    size_t n_out, out_room, out_limit;
    uint64_t steps; /* steps still allowed */
    int depth;      /* levels of nesting still allowed */
    uint64_t hash_seed;
    int64_t now_s;
};

#define JIN_FAIL(j, ...) jin_fail(&(j)->heap, __VA_ARGS__)

void jin_charge(struct jin *j, size_t steps); /* fails if fewer steps are left */
void jin_print(struct jin *j, const char *data, size_t n);
struct jin_value jin_capture_end(struct jin *j, size_t begin); /* removes out[begin ..] and returns it as a string */

/* ---- execute.c, evaluate.c, macro.c ---------------------------------------------------------- */

enum jin_flow { JIN_ON, JIN_BREAK, JIN_CONTINUE };

struct jin_env *jin_env_new(struct jin *j, const struct jin_scope *scope, struct jin_env *up);
void jin_env_enter(struct jin *j, struct jin_env *env);
enum jin_flow jin_execute(struct jin *j, struct jin_env *env, const struct jin_node *list);
void jin_assign(struct jin *j, struct jin_env *env, const struct jin_node *target, struct jin_value v);
struct jin_value jin_loop_call(struct jin *j, struct jin_loop *loop, const struct jin_args *args);

struct jin_value jin_evaluate(struct jin *j, struct jin_env *env, const struct jin_node *n);
struct jin_value jin_filter_chain(struct jin *j, struct jin_env *env, const struct jin_node *n,
                                  struct jin_value captured);

struct jin_keyword {
    const struct jin_string *name;
    struct jin_value value;
};
struct jin_args {
    const struct jin_value *position; /* [n] */
    int n, n_keyword;
    struct jin_keyword *keyword; /* [n_keyword] */
};

struct jin_macro {
    const struct jin_node *node;
    struct jin_env *env;
    const struct jin_string *name; /* NULL: the macro of a call block */
};

struct jin_args jin_args_of(struct jin *j, struct jin_env *env, const struct jin_params *p,
                            const struct jin_value *caller);
struct jin_value jin_call_value(struct jin *j, struct jin_value f, const struct jin_args *args);
struct jin_value jin_macro_new(struct jin *j, struct jin_env *env, const struct jin_node *n);
struct jin_value jin_macro_call(struct jin *j, const struct jin_macro *m, const struct jin_args *args);

/* Assigns arguments to the parameters of a built-in function.  names lists the parameters, as "a b c"; out has
 * one value for each.  The second argument is the function's name, for messages.  Fails if one of the first
 * `must` parameters is not given; any other parameter that is not given is JIN_MISSING. */
void jin_bind(struct jin *j, const char *what, const struct jin_args *args, const char *names, int must,
              struct jin_value *out);
bool jin_given(struct jin_value v); /* neither missing nor None */

struct jin_loop { /* the value of `loop` */
    const struct jin_node *node;
    struct jin_env *up;
    struct jin_value over; /* the iterable, for loop.length */
    struct jin_iterator *items;
    int64_t index0, length, depth0; /* length -1: not known yet */
    struct jin_value after, current, before, changed;
};
struct jin_value jin_loop_peek(struct jin *j, struct jin_loop *l);
int64_t jin_loop_length(struct jin *j, struct jin_loop *l);

/* ---- value.c --------------------------------------------------------------------------------- */

static inline struct jin_value jin_none(void) { return (struct jin_value){ .type = JIN_NONE }; }
static inline struct jin_value jin_missing(void) { return (struct jin_value){ .type = JIN_MISSING }; }
static inline struct jin_value jin_bool(bool b) { return (struct jin_value){ .type = JIN_BOOL, .b = b }; }
static inline struct jin_value jin_int(int64_t i) { return (struct jin_value){ .type = JIN_INT, .i = i }; }
static inline struct jin_value jin_float(double f) { return (struct jin_value){ .type = JIN_FLOAT, .f = f }; }
static inline struct jin_value jin_of(const struct jin_string *s)
{
    return (struct jin_value){ .type = JIN_STRING, .s = s };
}
static inline bool jin_is_number(struct jin_value v) { return v.type >= JIN_BOOL && v.type <= JIN_FLOAT; }
static inline bool jin_is_integer(struct jin_value v) { return v.type == JIN_BOOL || v.type == JIN_INT; }
static inline int64_t jin_integer(struct jin_value v) { return v.type == JIN_BOOL ? v.b : v.i; }

const char *jin_type_name(struct jin_value v); /* the type's name in Python */
bool jin_truth(struct jin_value v);
bool jin_equal(struct jin *j, struct jin_value a, struct jin_value b);
bool jin_less(struct jin *j, struct jin_value a, struct jin_value b, const char *op); /* a op b, op of < <= > >= */
bool jin_same(struct jin_value a, struct jin_value b); /* Python's `is`; false for int, float, undefined */
bool jin_contains(struct jin *j, struct jin_value in, struct jin_value what);
int64_t jin_length(struct jin *j, struct jin_value v); /* len(v); -1: v has no length */

struct jin_value jin_undefined_name(struct jin_heap *h, const struct jin_string *name);
struct jin_value jin_undefined_of(struct jin *j, struct jin_value owner, struct jin_value name);
struct jin_value jin_undefined_hint(struct jin *j, const char *hint);
void jin_need(struct jin *j, struct jin_value v); /* fails if v is undefined */

struct jin_value jin_list_new(struct jin *j, enum jin_type type, const struct jin_value *item, size_t n);

struct jin_dict *jin_dict_new(struct jin *j, size_t room);
void jin_dict_put(struct jin *j, struct jin_dict *d, struct jin_value key, struct jin_value value);
const struct jin_value *jin_dict_find(struct jin *j, const struct jin_dict *d, struct jin_value key);
const struct jin_value *jin_dict_find_text(struct jin *j, const struct jin_dict *d, const struct jin_string *key);
bool jin_hashable(struct jin *j, struct jin_value v);
struct jin_value jin_dict_value(struct jin_dict *d);

/* A growing list; all zero: empty. */
struct jin_items {
    struct jin_value *item;
    size_t n, room;
};
void jin_items_add(struct jin *j, struct jin_items *l, struct jin_value v);
struct jin_value jin_items_done(struct jin *j, struct jin_items *l, enum jin_type type);

/* ---- string.c -------------------------------------------------------------------------------- */

struct jin_string *jin_string_view(struct jin_heap *h, const char *data, size_t n); /* borrows data */
struct jin_value jin_string(struct jin *j, const char *data, size_t n);             /* copied */
struct jin_value jin_text(struct jin *j, const char *text);                         /* borrows a C string literal */
struct jin_value jin_concat(struct jin *j, const struct jin_string *a, const struct jin_string *b);
bool jin_string_is(const struct jin_string *s, const char *text);
bool jin_string_equal(const struct jin_string *a, const struct jin_string *b);
size_t jin_n_char(const struct jin_string *s);
size_t jin_char_at(const struct jin_string *s, size_t i); /* byte offset of character i, or n */
int jin_decode(const char *p, size_t n, int32_t *code);   /* length of the character at p; n > 0 */
int jin_encode(int32_t code, char out[4]);
bool jin_is_space(int32_t code);
ptrdiff_t jin_find(struct jin *j, const struct jin_string *s, size_t from,
                   const struct jin_string *what); /* byte offset, -1: not found */
struct jin_value jin_sub(struct jin *j, const struct jin_string *s, size_t begin,
                         size_t end); /* bytes [begin, end) of s, not copied */
struct jin_value jin_strip(struct jin *j, const struct jin_string *s, const struct jin_string *chars, int sides);
struct jin_value jin_split(struct jin *j, struct jin_value s, const struct jin_string *by, int64_t most, bool right);
struct jin_value jin_split_lines(struct jin *j, struct jin_value s, bool keep);
struct jin_value jin_replace(struct jin *j, const struct jin_string *s, const struct jin_string *old,
                             const struct jin_string *with, int64_t most);
enum jin_case { JIN_UPPER, JIN_LOWER, JIN_CAPITALIZE, JIN_TITLE, JIN_SWAP, JIN_FOLD };
struct jin_value jin_recase(struct jin *j, const struct jin_string *s, enum jin_case how);
bool jin_is_case(const struct jin_string *s, int which); /* 'u' isupper, 'l' islower, 't' istitle */
struct jin_value jin_escape_html(struct jin *j, struct jin_value v);

/* A growing text; to begin, set j and leave the rest zero. */
struct jin_builder {
    struct jin *j;
    char *data;
    size_t n, room;
};
void jin_add(struct jin_builder *b, const char *data, size_t n);
void jin_add_text(struct jin_builder *b, const char *text);
void jin_add_char(struct jin_builder *b, int32_t code);
void jin_add_repeat(struct jin_builder *b, const struct jin_string *s, int64_t times);
struct jin_value jin_built(struct jin_builder *b);

/* ---- number.c -------------------------------------------------------------------------------- */

struct jin_value jin_arithmetic(struct jin *j, int op, struct jin_value a, struct jin_value b);
struct jin_value jin_negate(struct jin *j, struct jin_value v, bool minus);
/* As int(s, base) and float(s); false if s is no number.  An integer beyond 64 bits, a decimal digit beyond ASCII and a
 * text of more than 511 digits fail; if j is NULL, they give false, and s has no white space around it. */
bool jin_parse_int(const struct jin_string *s, int base, struct jin *j, int64_t *out);
bool jin_parse_float(const struct jin_string *s, struct jin *j, double *out);
bool jin_float_to_int(double f, int64_t *out);                   /* truncates; false: beyond 64 bits */
int jin_compare_numbers(struct jin_value a, struct jin_value b); /* -1, 0, 1; 2: one is NaN */
struct jin_value jin_round(struct jin *j, struct jin_value v, int64_t digits,
                           int how);                                    /* 'r' nearest, 'c' up, 'f' down */
int64_t jin_index(struct jin *j, struct jin_value v, const char *what); /* v as integer, else fails */

/* ---- iterate.c ------------------------------------------------------------------------------- */

struct jin_iterator {
    struct jin_value (*next)(struct jin *j, struct jin_iterator *it); /* JIN_MISSING: the end */
    struct jin_value over;                                            /* the value iterated over */
    size_t at, n;
    struct jin_iterator *inner;
    void *state;      /* of a generator */
    const char *type; /* name in Python of the iterator's type */
};

struct jin_iterator *jin_iterate(struct jin *j, struct jin_value v); /* iter(v); fails if v is not iterable */
bool jin_iterable(struct jin_value v);
struct jin_value jin_next(struct jin *j, struct jin_iterator *it);
struct jin_iterator *jin_generator(struct jin *j, struct jin_value over, void *state,
                                   struct jin_value (*next)(struct jin *, struct jin_iterator *));
struct jin_value jin_iterator_value(struct jin_iterator *it);
struct jin_list *jin_collect(struct jin *j, struct jin_value v); /* list(v) */
struct jin_value jin_reversed(struct jin *j, struct jin_value v, bool filter);

/* ---- access.c, string_methods.c, filters*.c, tests.c, globals.c ------------------------------ */

struct jin_value jin_attribute(struct jin *j, struct jin_value of, const struct jin_string *name);
struct jin_value jin_item(struct jin *j, struct jin_value of, struct jin_value which);
struct jin_value jin_slice(struct jin *j, struct jin_value of, struct jin_value start, struct jin_value stop,
                           struct jin_value step);
const struct jin_function *jin_string_method(const struct jin_string *name);
struct jin_value jin_bind_method(struct jin *j, const struct jin_function *f, struct jin_value self);

/* A filter.  call is NULL for a filter of Jinja that is not supported here. */
struct jin_filter {
    const char *name;
    jin_call *call;
};
const struct jin_filter *jin_filter_find(const struct jin_string *name);
struct jin_value jin_filter_call(struct jin *j, const struct jin_filter *f, const struct jin_string *name,
                                 struct jin_value input, const struct jin_args *args);
extern const struct jin_filter jin_sequence_filters[];

typedef bool jin_check(struct jin *j, struct jin_value v, struct jin_value with);
struct jin_test {
    const char *name;
    jin_check *check;
    int n_arg;
};
const struct jin_test *jin_test_find(const struct jin_string *name);
bool jin_test_call(struct jin *j, const struct jin_test *t, const struct jin_string *name, struct jin_value v,
                   const struct jin_args *args);

bool jin_global(const struct jin_string *name, struct jin_value *out);

/* ---- show.c, format.c ------------------------------------------------------------------------ */

const struct jin_string *jin_str(struct jin *j, struct jin_value v); /* str(v) */
void jin_repr(struct jin_builder *b, struct jin_value v);            /* repr(v) */
size_t jin_show_float(double f, char out[32]);                       /* repr(f) */
struct jin_value jin_to_json(struct jin *j, struct jin_value v, const struct jin_args *args);
bool jin_printable(int32_t code);

struct jin_value jin_format_percent(struct jin *j, struct jin_value s, struct jin_value with);
struct jin_value jin_format_braces(struct jin *j, struct jin_value s, const struct jin_args *args);

#endif
