/* engine/text/jinja/tests.c - tests (after "is") and their lookup. */
#include "engine/text/jinja/internal.h"

#define CHECK(name) static bool name(struct jin *j, struct jin_value v, struct jin_value with)

#define UNUSED (void)j, (void)with

CHECK(is_defined)
{
    UNUSED;
    return v.type != JIN_UNDEFINED;
}
CHECK(is_undefined)
{
    UNUSED;
    return v.type == JIN_UNDEFINED;
}
CHECK(is_none)
{
    UNUSED;
    return v.type == JIN_NONE;
}
CHECK(is_true)
{
    UNUSED;
    return v.type == JIN_BOOL && v.b;
}
CHECK(is_false)
{
    UNUSED;
    return v.type == JIN_BOOL && !v.b;
}
CHECK(is_boolean)
{
    UNUSED;
    return v.type == JIN_BOOL;
}
CHECK(is_integer)
{
    UNUSED;
    return v.type == JIN_INT;
}
CHECK(is_float)
{
    UNUSED;
    return v.type == JIN_FLOAT;
}
CHECK(is_number)
{
    UNUSED;
    return jin_is_number(v);
}
CHECK(is_string)
{
    UNUSED;
    return v.type == JIN_STRING;
}
CHECK(is_mapping)
{
    UNUSED;
    return v.type == JIN_DICT;
}
CHECK(is_iterable)
{
    UNUSED;
    return jin_iterable(v) || v.type == JIN_LOOP;
}
CHECK(is_escaped)
{
    UNUSED;
    return v.type == JIN_STRING && v.safe;
}

CHECK(is_callable)
{
    UNUSED;
    return v.type == JIN_MACRO || v.type == JIN_FUNCTION || v.type == JIN_METHOD || v.type == JIN_LOOP ||
           v.type == JIN_JOINER || v.type == JIN_UNDEFINED;
}

CHECK(is_sequence)
{
    UNUSED;
    return v.type == JIN_STRING || v.type == JIN_LIST || v.type == JIN_TUPLE || v.type == JIN_DICT ||
           v.type == JIN_RANGE || v.type == JIN_UNDEFINED;
}

CHECK(is_divisible)
{
    struct jin_value rest = jin_arithmetic(j, '%', v, with);
    return jin_is_number(rest) && !jin_truth(rest);
}

CHECK(is_odd)
{
    (void)with;
    return jin_equal(j, jin_arithmetic(j, '%', v, jin_int(2)), jin_int(1));
}

CHECK(is_even)
{
    (void)with;
    return is_divisible(j, v, jin_int(2));
}
CHECK(is_lower)
{
    (void)with;
    return jin_is_case(jin_str(j, v), 'l');
}
CHECK(is_upper)
{
    (void)with;
    return jin_is_case(jin_str(j, v), 'u');
}
CHECK(is_equal) { return jin_equal(j, v, with); }
CHECK(is_unequal) { return !jin_equal(j, v, with); }
CHECK(is_less) { return jin_less(j, v, with, "<"); }
CHECK(is_at_most) { return jin_less(j, v, with, "<="); }
CHECK(is_greater) { return jin_less(j, v, with, ">"); }
CHECK(is_at_least) { return jin_less(j, v, with, ">="); }
CHECK(is_in) { return jin_contains(j, with, v); }

CHECK(is_same)
{
    if (v.type == with.type && (v.type == JIN_INT || v.type == JIN_FLOAT || v.type == JIN_STRING))
        JIN_FAIL(j, "'is sameas' of two values of type %s is not supported", jin_type_name(v));
    return jin_same(v, with);
}

CHECK(is_filter)
{
    (void)with;
    if (!jin_hashable(j, v))
        JIN_FAIL(j, "unhashable type: '%s'", jin_type_name(v));
    return v.type == JIN_STRING && jin_filter_find(v.s);
}

CHECK(is_test)
{
    (void)with;
    if (!jin_hashable(j, v))
        JIN_FAIL(j, "unhashable type: '%s'", jin_type_name(v));
    return v.type == JIN_STRING && jin_test_find(v.s);
}

static const struct jin_test tests[] = {
    { "defined", is_defined, 0 },
    { "undefined", is_undefined, 0 },
    { "none", is_none, 0 },
    { "string", is_string, 0 },
    { "mapping", is_mapping, 0 },
    { "iterable", is_iterable, 0 },
    { "sequence", is_sequence, 0 },
    { "true", is_true, 0 },
    { "false", is_false, 0 },
    { "boolean", is_boolean, 0 },
    { "integer", is_integer, 0 },
    { "float", is_float, 0 },
    { "number", is_number, 0 },
    { "callable", is_callable, 0 },
    { "escaped", is_escaped, 0 },
    { "odd", is_odd, 0 },
    { "even", is_even, 0 },
    { "lower", is_lower, 0 },
    { "upper", is_upper, 0 },
    { "filter", is_filter, 0 },
    { "test", is_test, 0 },
    { "divisibleby", is_divisible, 1 },
    { "sameas", is_same, 1 },
    { "in", is_in, 1 },
    { "==", is_equal, 1 },
    { "eq", is_equal, 1 },
    { "equalto", is_equal, 1 },
    { "!=", is_unequal, 1 },
    { "ne", is_unequal, 1 },
    { "<", is_less, 1 },
    { "lt", is_less, 1 },
    { "lessthan", is_less, 1 },
    { "<=", is_at_most, 1 },
    { "le", is_at_most, 1 },
    { ">", is_greater, 1 },
    { "gt", is_greater, 1 },
    { "greaterthan", is_greater, 1 },
    { ">=", is_at_least, 1 },
    { "ge", is_at_least, 1 },
};

const struct jin_test *jin_test_find(const struct jin_string *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (jin_string_is(name, tests[i].name))
            return &tests[i];
    return NULL;
}

bool jin_test_call(struct jin *j, const struct jin_test *t, const struct jin_string *name, struct jin_value v,
                   const struct jin_args *args)
{
    if (!t)
        JIN_FAIL(j, "No test named '%.*s' found.", (int)(name->n < 60 ? name->n : 60), name->data);
    if (args->n + args->n_keyword != t->n_arg)
        JIN_FAIL(j, "test '%s' takes %d arguments (%d given)", t->name, t->n_arg, args->n + args->n_keyword);
    return t->check(j, v, args->n ? args->position[0] : args->n_keyword ? args->keyword[0].value : jin_none());
}
