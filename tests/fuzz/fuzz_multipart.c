/* The input is the size of the pieces in which a body arrives (a byte), the Content-Type up to a newline, and the body.
 * However the bytes are cut, the events and the content are the same; content is no more than the body; and no event comes
 * after a fault or the end. */
#include "engine/serve/multipart.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct result {
    enum eng_multipart_fault fault;
    int n_part, n_end;
    size_t n_content;
    uint64_t hash;
};

static void read_body(struct result *r, const char *type, const char *p, size_t n, size_t piece)
{
    static struct eng_multipart m;
    *r = (struct result){ .fault = eng_multipart_open(&m, type) };
    for (size_t i = 0; i < n && !r->fault;) {
        enum eng_multipart_event event;
        const char *data = NULL;
        size_t n_data, k = n - i < piece ? n - i : piece;
        size_t taken = eng_multipart_take(&m, p + i, k, &event, &data, &n_data, &r->fault);
        if (taken > k || (!taken && event == ENG_MULTIPART_NONE && !r->fault) ||
            (event == ENG_MULTIPART_DATA) != (n_data > 0) || (event != ENG_MULTIPART_NONE && r->n_end) ||
            (event != ENG_MULTIPART_NONE && r->fault))
            abort();
        if (event == ENG_MULTIPART_PART && (!m.name[0] || strlen(m.name) >= sizeof m.name))
            abort();
        for (size_t j = 0; j < n_data; j++)
            r->hash = kn_mix(r->hash ^ (uint8_t)data[j]) + (uint64_t)r->n_part;
        r->n_content += n_data;
        r->n_part += event == ENG_MULTIPART_PART;
        r->n_end += event == ENG_MULTIPART_END;
        i += taken;
    }
    if (r->n_content > n || r->n_end > 1)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char type[512];
    struct result whole, pieces;
    const char *p = (const char *)data + 1, *line = n > 1 ? memchr(p, '\n', n - 1) : NULL;
    if (!line || (size_t)(line - p) >= sizeof type)
        return 0;
    size_t n_type = (size_t)(line - p), n_body = n - 2 - n_type;
    memcpy(type, p, n_type);
    type[n_type] = 0;
    read_body(&whole, type, line + 1, n_body, n_body);
    read_body(&pieces, type, line + 1, n_body, data[0] % 16 + 1u);
    if (whole.fault != pieces.fault || whole.n_part != pieces.n_part || whole.n_end != pieces.n_end ||
        whole.n_content != pieces.n_content || whole.hash != pieces.hash)
        abort();
    return 0;
}
