/* Chat templates. The output equals that of Python's jinja2, for published templates and for each part of the language;
 * other templates are refused with line and text. Every template ends within limits of steps, depth and memory.
 *
 * One thread: not under MODE=tsan. */
#include "engine/text/jinja/jinja.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "tests/faults.h"

#define DATA "tests/engine/data/templates/"
#define NOW  1700000000 /* as in reference.py */

struct rendered {
    int code;
    char *text;
    size_t n;
    struct eng_template_error error;
};

static struct rendered render_with(const char *text, size_t n, const json_t *variables,
                                   const struct eng_template_limits *limits)
{
    struct eng_template *t = NULL;
    struct rendered r = { 0 };
    r.code = eng_template_open(&t, text, n, &r.error);
    if (!r.code)
        r.code = eng_template_render(t, variables, NOW, limits, &r.text, &r.n, &r.error);
    eng_template_close(t);
    return r;
}

static struct rendered render(const char *text, const char *variables)
{
    json_error_t e;
    json_t *v = json_loads(variables, JSON_ALLOW_NUL, &e);
    assert_non_null(v);
    struct rendered r = render_with(text, strlen(text), v, NULL);
    json_decref(v);
    return r;
}

static void gives(const char *text, const char *variables, const char *want)
{
    struct rendered r = render(text, variables);
    if (r.code || r.n != strlen(want) || memcmp(r.text, want, r.n))
        fail_msg("%s gives %s, not %s", text, r.code ? r.error.text : r.text, want);
    kn_free(r.text);
}

static void refuses(const char *text, int line, const char *words)
{
    struct rendered r = render(text, "{\"a\": [1, 2], \"d\": {\"k\": 1}, \"s\": \"text\"}");
    if (r.code != KN_EINVAL || r.error.line != line || !strstr(r.error.text, words) || strchr(r.error.text, '\n'))
        fail_msg("%s: %d, line %d: %s", text, r.code, r.error.line, r.code ? r.error.text : r.text);
}

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*n + 1);
    assert_int_equal(fread(data, 1, *n, f), *n);
    data[*n] = 0;
    fclose(f);
    return data;
}

/* ---- published templates --------------------------------------------------------------------- */

static uint64_t fnv(const char *p, size_t n)
{
    uint64_t h = UINT64_C(0xCBF29CE484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)p[i]) * UINT64_C(0x100000001B3);
    return h;
}

static void check_line(const char *template, size_t n, const json_t *all, const char *line)
{
    char name[64], what[64], hash[64], got[64];
    int fields = sscanf(line, "%63s %63s %63s", name, what, hash);
    const json_t *variables = json_object_get(all, name);
    assert_non_null(variables);
    struct rendered r = render_with(template, n, variables, NULL);
    if (!strcmp(what, "refused")) {
        if (r.code != KN_EINVAL || r.error.raised || r.error.line < 1)
            fail_msg("%s: not refused: %d, %s", line, r.code, r.error.text);
    } else if (!strcmp(what, "raised")) {
        snprintf(got, sizeof got, "%016llx", (unsigned long long)fnv(r.error.text, strlen(r.error.text)));
        if (fields != 3 || !r.error.raised || strcmp(got, hash))
            fail_msg("%s: raised %s", line, r.error.text);
    } else {
        snprintf(got, sizeof got, "%016llx", (unsigned long long)fnv(r.text, r.n));
        if (r.code || strcmp(got, what))
            fail_msg("%s: %s", line, r.code ? r.error.text : r.text);
    }
    kn_free(r.text);
}

static void published_templates_give_what_jinja2_gives(void **state)
{
    json_error_t e;
    char path[256], *template = NULL;
    size_t n, n_golden;
    int n_template = 0, n_line = 0;
    json_t *all = json_load_file(DATA "conversations.json", 0, &e);
    char *golden = read_file(DATA "golden.txt", &n_golden);
    (void)state;
    assert_non_null(all);
    for (char *line = strtok(golden, "\n"); line; line = strtok(NULL, "\n")) {
        if (!strncmp(line, "template ", 9)) {
            free(template);
            snprintf(path, sizeof path, DATA "%s.jinja", line + 9);
            template = read_file(path, &n);
            n_template++;
        } else {
            check_line(template, n, all, line);
            n_line++;
        }
    }
    assert_int_equal(n_template, 49);
    assert_int_equal(n_line, 49 * 88);
    free(template);
    free(golden);
    json_decref(all);
}

/* The same compared with the full text, so that a difference is readable. */
static void one_conversation_is_equal_in_full(void **state)
{
    json_error_t e;
    char name[128], path[256];
    size_t n_full, n, n_text;
    int used, count = 0;
    json_t *all = json_load_file(DATA "conversations.json", 0, &e);
    char *full = read_file(DATA "full.txt", &n_full), *at = full;
    (void)state;
    for (; sscanf(at, "template %127s %zu%n", name, &n_text, &used) == 2; count++) {
        at += used + 1;
        snprintf(path, sizeof path, DATA "%s.jinja", name);
        char *template = read_file(path, &n);
        struct rendered r = render_with(template, n, json_object_get(all, "calls-two-answered-dict"), NULL);
        at[n_text] = 0;
        assert_int_equal(r.code, 0);
        assert_string_equal(r.text, at);
        kn_free(r.text);
        free(template);
        at += n_text + 1;
    }
    assert_true(count > 20);
    free(full);
    json_decref(all);
}

/* ---- the language ---------------------------------------------------------------------------- */

static void random_templates_give_what_jinja2_gives(void **state)
{
    size_t n, count = 0;
    json_error_t e;
    char *lines = read_file(DATA "language.jsonl", &n);
    (void)state;
    for (char *line = strtok(lines, "\n"); line; line = strtok(NULL, "\n"), count++) {
        json_t *l = json_loads(line, JSON_ALLOW_NUL, &e);
        assert_non_null(l);
        const json_t *template = json_array_get(l, 0), *want = json_array_get(l, 2);
        struct rendered r = render_with(json_string_value(template), json_string_length(template), json_array_get(l, 1),
                                        NULL);
        if (r.code || r.n != json_string_length(want) || memcmp(r.text, json_string_value(want), r.n))
            fail_msg("%s\ngives %s", line, r.code ? r.error.text : r.text);
        kn_free(r.text);
        json_decref(l);
    }
    assert_int_equal(count, 500);
    free(lines);
}

static void parts_are_split_from_the_right(void **state)
{
    (void)state;
    gives("{{ 'aaa'.rsplit('aa') }}{{ 'a,,b'.rsplit(',') }}{{ ' a  b '.rsplit() }}", "{}",
          "['a', '']['a', '', 'b']['a', 'b']");
}

static void white_space_is_taken_as_asked(void **state)
{
    (void)state;
    gives("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "{}", "a\n  b\nc");
    gives("a {%- if true -%} \n b \n {%- endif %} c", "{}", "ab c");
    gives("  {%+ if true %}x{% endif +%}\ny", "{}", "  x\ny");
    gives("x {{- 1 -}} y", "{}", "x1y");
    gives("{# c #}\nx{#- c -#} y", "{}", "xy");
    gives("{% raw %}{{ x }}{%- endraw %} ", "{}", "{{ x }} ");
    gives("a\r\nb\rc\n", "{}", "a\nb\nc");
}

static void names_live_where_jinja2_has_them(void **state)
{
    (void)state;
    gives("{% set a = 1 %}{% for i in [1] %}{% set a = 2 %}{{ a }}{% endfor %}{{ a }}", "{}", "21");
    gives("{% for i in [1, 2] %}{{ a }}{% set a = i %}{{ a }}{% endfor %}", "{\"a\": 9}", "9192");
    gives("{% if false %}{% set a = 2 %}{% endif %}{{ a }}", "{\"a\": 9}", "9");
    gives("{% macro m() %}{{ a }}{% endmacro %}{{ m() }}{% set a = 1 %}{{ m() }}", "{\"a\": 9}", "1");
    gives("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor "
          "%}{{ ns.n }}",
          "{}", "3");
    gives("{% for i in [1] %}{% break %}{% else %}none{% endfor %}", "{}", "none");
    gives("{% set a %}x{% endset %}{{ a }}{% with a = 2 %}{{ a }}{% endwith %}{{ a }}", "{}", "x2x");
}

static void a_generator_is_walked_once_and_late(void **state)
{
    (void)state;
    gives("{% set g = [1, 2] | map('string') %}{{ g | join }}{{ g | join }}.", "{}", "12.");
    gives("{% set ns = namespace(on=true) %}{% for i in [1, 2, 3] if ns.on %}{{ i }}{% set ns.on = "
          "i < 2 %}{% endfor %}",
          "{}", "12");
    gives("{{ (['a', 1] | map('int') | first) }}", "{}", "0");
}

static void markup_escapes_what_is_added(void **state)
{
    (void)state;
    gives("{{ '<b>' | safe + \"<'>\" }}{{ 'x' ~ ('<' | safe) }}", "{}", "<b>&lt;&#39;&gt;x<");
    gives("{{ ('<%s>' | safe) % '&' }}{{ '<' | e | e }}", "{}", "<&amp;>&lt;");
}

static void numbers_are_pythons(void **state)
{
    (void)state;
    gives("{{ 7 // -2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1e16 }} {{ 1e15 }} {{ 0.00001 }} {{ 2.5 | "
          "round }} {{ 5.5 % -2 }}",
          "{}", "-4 2 3.5 1e+16 1000000000000000.0 1e-05 2.0 -0.5");
    gives("{{ 9223372036854775807 }} {{ n + 0.5 }} {{ true + 1 }} {{ 1 == 1.0 == true }}", "{\"n\": -9007199254740993}",
          "9223372036854775807 -9007199254740992.0 2 True");
    refuses("{{ 9223372036854775807 + 1 }}", 1, "64 bits");
    refuses("{{ 99999999999999999999 }}", 1, "64 bits");
    refuses("\n{{ 1 // 0 }}", 2, "zero");
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void a_refusal_names_the_line(void **state)
{
    (void)state;
    refuses("a\n{% if a %}\nb", 2, "ends within {% if %}");
    refuses("\n\n{{ a b }}", 3, "got 'b'");
    refuses("\n{% nonsense %}", 2, "unknown tag 'nonsense'");
    refuses("{% for loop in a %}{% endfor %}", 1, "loop variable");
    refuses("\n{{ a | nothing }}", 2, "No filter named 'nothing'");
    refuses("{{ a is nothing }}", 1, "No test named 'nothing'");
    refuses("{% if true %}\n{{ a | nothing }}{% endif %}", 2, "No filter named 'nothing' found");
    refuses("{{ 'x }}", 1, "does not end");
    refuses("{{ (1] }}", 1, "unexpected ']', expected ')'");
    refuses("{# x", 1, "end of comment");
    refuses("{% raw %}", 1, "end of raw");
    refuses("\n{{ nothing.else }}", 2, "'nothing' is undefined");
    refuses("{{ d.x.y }}", 1, "'dict object' has no attribute 'x'");
    refuses("{% break %}", 1, "outside a loop");
    refuses("{% extends 'x' %}", 1, "not supported");
    refuses("{% include 'x' %}", 1, "not supported");
    refuses("{{ s + 1 }}", 1, "can only concatenate str");
    refuses("{{ a | urlize }}", 1, "'urlize' is not supported");
    refuses("{% set d.x = 1 %}", 1, "non-namespace");
    refuses("\xff", 1, "not UTF-8");
    gives("{% if false %}{{ a | nothing }}{% endif %}ok", "{}", "ok");
}

static void what_a_template_raises_is_passed_on(void **state)
{
    struct rendered r = render("\n{{ raise_exception('Only\\nuser \xC3\xA9') }}", "{}");
    (void)state;
    assert_int_equal(r.code, KN_EINVAL);
    assert_true(r.error.raised);
    assert_int_equal(r.error.line, 2);
    assert_string_equal(r.error.text, "Only\nuser \xC3\xA9");
}

/* Ways out of Python sandboxes: here no value has these attributes, or they are undefined. */
static void nothing_but_values_can_be_reached(void **state)
{
    static const char *const attempts[] = {
        "{{ ''.__class__.__mro__ }}",
        "{{ a.__class__.__base__.__subclasses__() }}",
        "{{ d.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__.x }}",
        "{{ namespace.__init__.x }}",
        "{{ (s | attr('__class__')).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(s) }}",
        "{{ a.append(3) }}",
        "{{ d.update(k=2) }}",
        "{{ d.pop('k') }}",
        "{{ a.sort() }}",
        "{{ a['append'](1) }}",
        "{{ self._TemplateReference }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ lipsum.__globals__.os }}",
        "{{ joiner.__init__.x }}",
        "{{ (a | map(attribute='__class__') | list)[0].x }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__class__=1) }}",
        "{{ dict.__class__.x }}",
        "{{ loop.__class__.x }}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++) {
        struct rendered r = render(attempts[i], "{\"a\": [1, 2], \"d\": {\"k\": 1}, \"s\": \"text\"}");
        if (r.code != KN_EINVAL)
            fail_msg("%s gives %s", attempts[i], r.text);
    }
    gives("{{ s.__class__ }}{{ a.append }}{{ s.__class__ is defined }}", "{\"s\": \"x\", \"a\": []}", "False");
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void ends(const char *text, const char *words)
{
    const struct eng_template_limits small = { .memory = 8 << 20, .output = 1 << 20, .steps = 1000000 };
    json_t *none = json_object();
    struct rendered r = render_with(text, strlen(text), none, &small);
    if (!r.code || !strstr(r.error.text, words))
        fail_msg("%.60s: %d, %s", text, r.code, r.code ? r.error.text : "rendered");
    json_decref(none);
}

static void no_template_takes_more_than_it_may(void **state)
{
    (void)state;
    ends("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply");
    ends("{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}", "too deeply");
    ends("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "too deeply");
    ends("{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor "
         "%}{{ ns.x }}",
         "too deeply");
    ends("{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor "
         "%}{{ ns.x | tojson }}",
         "too deeply");
    ends("{% set ns = namespace(x=[], y=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}"
         "{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
         "too deeply");
    ends("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "too deeply");
    ends("{% set ns = namespace(x=[1]) %}{% for i in range(5000) %}{% set ns.x = ns.x | "
         "map('string') %}{% endfor %}"
         "{{ ns.x | join }}",
         "too deeply");
    ends("{% set ns = namespace(x=1) %}{% for i in range(5000) %}{% set ns.x = (ns.x,) %}{% endfor "
         "%}{{ {}[ns.x] }}",
         "too deeply");
    ends("{{ range(10**9) | list }}", "Range too big");
    ends("{{ 'a' * 10**9 }}", "more than");
    ends("{{ [0] * 10**9 }}", "more than");
    ends("{{ 'a'.ljust(10**9) }}", "more than");
    ends("{{ '%*d' % (10**9, 1) }}", "width");
    ends("{{ '{:999999999}'.format(1) }}", "Invalid format");
    ends("{{ 'x' | indent(10**12) }}", "more than");
    ends("{{ {} | tojson(indent=10**12) }}", "more than");
    ends("{{ [1] | batch(10**9, 0) | list }}", "more than");
    ends("{{ [1] | slice(10**9) | list }}", "more than");
    ends("{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
         "endfor %}",
         "more than");
    ends("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "more than the allowed steps");
    ends("{% for a in range(99999) %}{{ 'xxxxxxxxxxxxxxxxxxxx' }}{% endfor %}", "more than the allowed output");
    ends("{% for a in range(99999) %}{{ ('x' * 9999).replace('y', 'z') | length }}{% endfor %}", "more than");
    ends("{% set s = 'a' * 99999 %}{% for a in range(99999) %}{{ s in 'b' ~ s }}{% endfor %}", "more than");
}

static void repeated(const char *open, const char *middle, const char *close, int n, const char *words)
{
    size_t n_open = strlen(open), n_middle = strlen(middle), n_close = strlen(close);
    char *text = malloc((n_open + n_close) * (size_t)n + n_middle + 1), *at = text;
    for (int i = 0; i < n; i++)
        at = (char *)memcpy(at, open, n_open) + n_open;
    at = (char *)memcpy(at, middle, n_middle) + n_middle;
    for (int i = 0; i < n; i++)
        at = (char *)memcpy(at, close, n_close) + n_close;
    *at = 0;
    if (words)
        ends(text, words);
    else
        gives(text, "{}", "1");
    free(text);
}

static void no_template_nests_deeper_than_it_may(void **state)
{
    char text[20100] = "{{ 1";
    (void)state;
    repeated("{{ (", "1", ") }}", 1, NULL);
    repeated("{% if true %}", "1", "{% endif %}", 100, NULL);
    repeated("{% if true %}", "1", "{% endif %}", 10000, "within each other");
    repeated("{% if false %}{% elif false %}{% elif true %}", "1", "{% endif %}", 1000, "within each other");
    for (int i = 0; i < 5000; i++)
        strcat(text + 4 * i, " + 1");
    strcat(text, " }}");
    ends(text, "levels");
    memset(text + 3, '(', 20000);
    ends(text, "within each other");
    memset(text + 3, '[', 20000);
    ends(text, "within each other");
    for (int i = 0; i < 20000; i++)
        text[3 + i] = "-"[0];
    ends(text, "within each other");
    for (int i = 0; i < 20000; i += 4)
        memcpy(text + 3 + i, "not ", 4);
    ends(text, "within each other");
}

static void deep_variables_are_refused(void **state)
{
    char text[6100];
    (void)state;
    memset(text, '[', 3000);
    memset(text + 3000, ']', 3000);
    memcpy(text + 6000, "}", 2);
    json_t *deep = json_array(), *all = json_object();
    for (int i = 0; i < 5000; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, deep);
        deep = outer;
    }
    json_object_set_new(all, "x", deep);
    struct rendered r = render_with("ok", 2, all, NULL);
    assert_int_equal(r.code, KN_EINVAL);
    assert_non_null(strstr(r.error.text, "too deeply"));
    json_decref(all);
}

/* ---- memory and threads ---------------------------------------------------------------------- */

static void any_allocation_may_fail(void **state)
{
    static const char text[] = "{% for m in messages %}{{ m.role | upper }}: {{ m | tojson }}{% endfor %}"
                               "{{ ('y' * 70000) | length }}";
    json_t *v = json_pack("{s:[{s:s}]}", "messages", "role", "user");
    (void)state;
    for (long at = 1;; at++) {
        faults_reset();
        faults_at(FAULT_ALLOC, at, FAULT_ERROR, ENOMEM);
        struct rendered r = render_with(text, sizeof text - 1, v, NULL);
        bool struck = faults.struck;
        assert_int_equal(r.code, struck ? KN_ENOMEM : 0);
        kn_free(r.text);
        assert_true(faults_clean());
        faults_off();
        if (!struck)
            break;
        assert_true(strlen(r.error.text) > 0);
    }
    json_decref(v);
}

struct shared {
    const struct eng_template *template;
    const json_t *variables;
};

static void *render_often(void *arg)
{
    const struct shared *s = arg;
    struct eng_template_error e;
    for (int i = 0; i < 200; i++) {
        char *text;
        size_t n;
        if (eng_template_render(s->template, s->variables, NOW, NULL, &text, &n, &e) ||
            strcmp(text, "1: 1 A 2\n2: 1 A 2\n"))
            return arg;
        kn_free(text);
    }
    return NULL;
}

static void threads_share_a_template(void **state)
{
    static const char text[] = "{% for i in x %}{{ i }}: {{ '\xC3\xA4' | length }} {{ 'a' | upper }} "
                               "{{ '\xC3\xA4' 'b' | length }}\n{% endfor %}";
    struct eng_template *t;
    struct eng_template_error e;
    pthread_t thread[4];
    void *bad;
    (void)state;
    assert_int_equal(eng_template_open(&t, text, sizeof text - 1, &e), 0);
    struct shared s = { t, json_pack("{s:[i,i]}", "x", 1, 2) };
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, render_often, &s), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], &bad);
        assert_null(bad);
    }
    json_decref((json_t *)s.variables);
    eng_template_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_templates_give_what_jinja2_gives),
        cmocka_unit_test(one_conversation_is_equal_in_full),
        cmocka_unit_test(random_templates_give_what_jinja2_gives),
        cmocka_unit_test(parts_are_split_from_the_right),
        cmocka_unit_test(white_space_is_taken_as_asked),
        cmocka_unit_test(names_live_where_jinja2_has_them),
        cmocka_unit_test(a_generator_is_walked_once_and_late),
        cmocka_unit_test(markup_escapes_what_is_added),
        cmocka_unit_test(numbers_are_pythons),
        cmocka_unit_test(a_refusal_names_the_line),
        cmocka_unit_test(what_a_template_raises_is_passed_on),
        cmocka_unit_test(nothing_but_values_can_be_reached),
        cmocka_unit_test(no_template_takes_more_than_it_may),
        cmocka_unit_test(no_template_nests_deeper_than_it_may),
        cmocka_unit_test(deep_variables_are_refused),
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(threads_share_a_template),
    };
    setenv("TZ", "UTC", 1);
    tzset();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
