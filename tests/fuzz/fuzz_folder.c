/* The input is a model folder: it is refused, or all of its metadata and tensors can be read and bound, and its
 * vocabulary tokenizes and detokenizes.
 *
 * An input is four files, with a byte 0xFF, which no JSON has, after each of the first three: config.json,
 * tokenizer.json, tokenizer_config.json, model.safetensors, which is medusa_lm_head.safetensors too. Other files do not exist; a tokenizer.json that does not
 * begin like an object is tiktoken.model instead. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "engine/draft/medusa.h"
#include "engine/text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { CONFIG, TOKENIZER, ROLES, WEIGHTS, N_PART, FOLDER = 100, FIRST_FD = 1000 };
static const char *const names[N_PART] = { "config.json", "tokenizer.json", "tokenizer_config.json",
                                           "model.safetensors" };
static struct {
    const uint8_t *data;
    size_t n;
} part[N_PART];

static const char *name_of(int i)
{
    bool ranks = i == TOKENIZER && part[i].n && part[i].data[0] != '{';
    return ranks ? "tiktoken.model" : names[i];
}

static int part_open(const char *path, int flags, int mode)
{
    (void)mode;
    const char *slash = strrchr(path, '/');
    for (int i = 0; i < N_PART && slash; i++)
        if ((!strcmp(slash + 1, name_of(i)) || (i == WEIGHTS && !strcmp(slash + 1, "medusa_lm_head.safetensors"))) &&
            !(flags & O_DIRECT) && part[i].data)
            return FIRST_FD + i;
    errno = flags & O_DIRECT ? EINVAL : ENOENT;
    return strcmp(path, "a/folder") ? -1 : FIRST_FD + FOLDER;
}

static int part_close(int fd) { return fd >= FIRST_FD ? 0 : -1; }

static int64_t part_size(int fd)
{
    errno = EISDIR;
    return fd == FIRST_FD + FOLDER ? -1 : (int64_t)part[fd - FIRST_FD].n;
}

static ssize_t part_read(int fd, void *buf, size_t n, int64_t at)
{
    size_t size = part[fd - FIRST_FD].n;
    if (at < 0)
        abort();
    size_t left = (size_t)at < size ? size - (size_t)at : 0;
    n = n < left ? n : left;
    n = n > 1000 ? n - n / 4 : n;
    if (n)
        memcpy(buf, part[fd - FIRST_FD].data + at, n);
    return (ssize_t)n;
}

static void clean_line(enum kn_level level, const char *line)
{
    (void)level;
    for (; *line; line++)
        if ((unsigned char)*line < 0x20 || *line == 0x7f)
            abort(); /* unescaped bytes of a file in a message */
}

static void take_apart(const uint8_t *data, size_t n)
{
    memset(part, 0, sizeof part);
    for (int i = 0; i < N_PART; i++) {
        const uint8_t *end = i < N_PART - 1 ? memchr(data, 0xFF, n) : NULL;
        part[i].data = data;
        part[i].n = end ? (size_t)(end - data) : n;
        if (!end)
            return;
        n -= part[i].n + 1;
        data = end + 1;
    }
}

/* Reads the first and the last bytes, in whole blocks, of every tensor with a size. */
static void read_ends(const struct moe_file *f)
{
    uint8_t some[300];
    for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
        const struct moe_tensor *t = moe_file_tensor(f, i);
        const struct moe_tensor_type *type = moe_tensor_type(t->gguf_type);
        if (t->n_dim < 1 || t->n_dim > 4)
            abort();
        if (!type || t->bytes % (uint64_t)type->block_bytes)
            continue;
        size_t n = t->bytes < sizeof some ? (size_t)t->bytes : sizeof some;
        n -= n % (size_t)type->block_bytes;
        if (moe_file_read(f, t, 0, some, n) || moe_file_read(f, t, t->bytes - n, some, n))
            abort();
    }
}

static void use_vocab(const struct moe_file *f)
{
    static const char text[] = "a the <s> \xc3\xa9 e\xcc\x81 12  x\xff";
    struct eng_vocab *v = NULL;
    struct eng_ids ids = { 0 };
    if (eng_vocab_open(&v, f))
        return;
    char *out = malloc(eng_decoder_room(v));
    if (!eng_tokenize(v, text, sizeof text - 1, ENG_TEXT_ADD_BOS | ENG_TEXT_PARSE_SPECIAL, &ids)) {
        struct eng_decoder d;
        eng_decoder_init(&d, v, 0);
        for (size_t i = 0; i < ids.n; i++)
            eng_decoder_feed(&d, ids.id[i], out);
    }
    free(out);
    eng_ids_free(&ids);
    eng_vocab_close(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct kn_io io;
    struct moe_file *f = NULL;
    struct moe_model *m = NULL;
    struct eng_medusa *heads = NULL;
    if (!n)
        return 0;
    take_apart(data, n);
    io = kn_io_system;
    io.open = part_open;
    io.close = part_close;
    io.size = part_size;
    io.pread = part_read;
    kn_io_set(&io);
    kn_log_set(clean_line, KN_LOG_DEBUG);
    if (moe_file_open(&f, "a/folder") == 0) {
        read_ends(f);
        use_vocab(f);
        moe_model_open(&m, f, &(struct moe_model_options){ .isa = KN_ISA_SCALAR });
        eng_medusa_open(&heads, f, kn_ops(KN_ISA_SCALAR));
    }
    eng_medusa_close(heads);
    moe_model_close(m);
    moe_file_close(f);
    return 0;
}
