/* The input is the header of a GGUF file: it is refused, or all of its metadata can be read. */
#include "moe/moe.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void touch(const struct moe_value *v)
{
    char shown[40];
    moe_string_show(v->key, shown, sizeof shown);
    for (size_t i = 0; i < v->n; i++)
        if (v->item == MOE_STRING)
            moe_string_show(((const struct moe_string *)v->data)[i], shown, sizeof shown);
        else if (moe_value_int(v, i) == INT64_MIN && moe_value_float(v, i) > 0)
            abort();
}

static void check(const struct moe_file *f, size_t n)
{
    char name[128];
    for (size_t i = 0; i < moe_file_value_count(f); i++) {
        const struct moe_value *v = moe_file_value(f, i);
        touch(v);
        if (v->key.n < sizeof name && !memchr(v->key.data, 0, v->key.n)) {
            memcpy(name, v->key.data, v->key.n);
            name[v->key.n] = '\0';
            int64_t x;
            double y;
            struct moe_string s;
            if (moe_file_find(f, name) != v)
                abort();
            moe_file_int(f, name, -5, 1000, &x);
            moe_file_float(f, name, &y);
            moe_file_string(f, name, &s);
        }
    }
    for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
        const struct moe_tensor *t = moe_file_tensor(f, i);
        if (t->offset > n || t->bytes > n - t->offset || t->n_dim < 1 || t->n_dim > 4)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct moe_file *f = NULL;
    memory_file_set(data, n);
    if (moe_file_open(&f, "x-00001-of-00002.gguf") == 0)
        check(f, n);
    moe_file_close(f);
    return 0;
}
