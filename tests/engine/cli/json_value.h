/* tests/engine/cli/json_value.h - checks that a text is JSON. */
#ifndef TESTS_ENGINE_CLI_JSON_VALUE_H
#define TESTS_ENGINE_CLI_JSON_VALUE_H

#include <stdbool.h>
#include <string.h>

/* Returns the end of one JSON value; NULL if it is invalid. As strict as the program's own output. */
static inline const char *json_value(const char *s)
{
    if (*s == '"') {
        for (s++; *s != '"'; s++) {
            if ((unsigned char)*s < 0x20 || *s == 0x7f)
                return NULL;
            if (*s == '\\' && !strchr("\"\\u", *++s))
                return NULL;
            if (s[-1] == '\\' && *s == 'u' && strspn(s + 1, "0123456789abcdef") < 4)
                return NULL;
        }
        return s + 1;
    }
    if (*s == '{' || *s == '[') {
        char open = *s++, close = open == '{' ? '}' : ']';
        for (bool first = true; *s != close; first = false) {
            if (!first && *s++ != ',')
                return NULL;
            if (open == '{' && (*s != '"' || !(s = json_value(s)) || *s++ != ':'))
                return NULL;
            if (!(s = json_value(s)))
                return NULL;
        }
        return s + 1;
    }
    size_t n = strspn(s, "-+.0123456789e");
    static const char *const words[] = { "true", "false", "null" };
    for (int i = 0; i < 3 && !n; i++)
        n = strncmp(s, words[i], strlen(words[i])) ? 0 : strlen(words[i]);
    return n ? s + n : NULL;
}

#endif
