/* JSON: jansson with the heap's allocations, fed so that its reader never lacks memory for a token.
 *
 * jansson 2.14 collects the bytes of a token in a buffer, and ignores that the buffer could not grow: the byte is dropped.
 * Without the quote that ends a string it then reads and writes beyond its memory, and without the byte behind a number
 * an assertion ends the program.  The buffer begins with 16 bytes and doubles when it is full; it does not shrink between
 * tokens.  So the byte that makes it grow is known in advance.  feed() gives jansson the text in chunks, and before that
 * byte it takes the memory: the next allocation of this size gets it.  If there is none, the text ends before the byte,
 * inside a token, which jansson refuses. */
#include "kernels/json.h"

#include <stdio.h>

#include "kernels/core.h"

#define FIRST_BYTES 16 /* of the buffer */

struct feed {
    const char *text;
    size_t n, at;
    size_t n_token, n_buffer;  /* bytes of the token so far, bytes of the buffer: once jansson has read up to `at` */
    bool in_string, is_escape; /* is_escape: behind a backslash */
    void *grown;               /* [n_buffer] taken for the buffer; NULL: jansson has it */
};
static _Thread_local struct feed *feeding;

static void *allocate(size_t bytes)
{
    struct feed *f = feeding;
    if (!f || !f->grown || bytes != f->n_buffer)
        return kn_heap_alloc(bytes);
    void *p = f->grown;
    f->grown = NULL;
    return p;
}

/* Before main: memory that jansson took from one allocator must not go back to another. */
__attribute__((constructor)) static void set_allocator(void) { json_set_alloc_funcs(allocate, kn_heap_free); }

static bool is_between_tokens(char c)
{
    return c == ' ' || c == ',' || c == '[' || c == ']' || c == ':' || c == '{' || c == '}' || (c >= '\t' && c <= '\r');
}

/* Whether the next byte makes the buffer grow.  The byte behind a number is in the buffer for a moment, too.  In text that
 * is no JSON a token may be shorter than it seems here, and is jansson's last. */
static bool grows_next(const struct feed *f) { return f->n_token + 1 >= f->n_buffer; }

/* Takes the memory that the buffer grows to. */
static bool grow(struct feed *f)
{
    kn_heap_free(f->grown);
    f->n_buffer *= 2;
    f->grown = kn_heap_alloc(f->n_buffer);
    return f->grown;
}

/* Follows the token through one more byte. */
static void follow(struct feed *f, char c)
{
    bool ends = f->in_string ? c == '"' && !f->is_escape : is_between_tokens(c);
    f->n_token = ends ? 0 : f->n_token + 1;
    f->is_escape = f->in_string && c == '\\' && !f->is_escape;
    f->in_string = f->in_string ? !ends : c == '"';
}

/* Copies the next bytes of the text; 0: the text ends here.  A chunk ends before a byte that makes the buffer grow: jansson
 * asks for that byte when it is in its token, and allocates nothing else before it puts the byte into the buffer. */
static size_t feed(void *to, size_t most, void *arg)
{
    struct feed *f = arg;
    size_t n = 0;
    if (f->at < f->n && grows_next(f) && !grow(f))
        return 0;
    for (; n < most && f->at < f->n && !grows_next(f); n++) {
        char c = f->text[f->at++];
        ((char *)to)[n] = c;
        follow(f, c);
    }
    return n;
}

json_t *kn_json_load(const char *text, size_t n, size_t flags, json_error_t *error)
{
    size_t before = kn_alloc_failures();
    struct feed f = { .text = text, .n = n, .n_buffer = FIRST_BYTES };
    feeding = &f;
    json_t *value = json_load_callback(feed, &f, flags, error);
    feeding = NULL;
    kn_heap_free(f.grown);
    if (kn_alloc_failures() == before)
        return value;
    json_decref(value);
    if (error) { /* jansson names other reasons, such as a string that lacks its end */
        snprintf(error->text, sizeof error->text, "no memory for it");
        error->text[sizeof error->text - 1] = json_error_out_of_memory;
    }
    return NULL;
}
