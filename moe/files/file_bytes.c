/* moe/files/file_bytes.c - the files that a struct moe_file has open, and the bytes of its tensors.
 *
 * The table has a path and a descriptor for each open file: one GGUF file, each of its splits, or each .safetensors
 * file of a folder.  moe_file_close() closes them.
 *
 * moe_file_read() returns any part of a tensor's bytes in GGUF's order.  A tensor of a GGUF file is contiguous.  A
 * tensor of a folder may have a layout: its matrices may be at separate positions, its rows in another order or with a
 * stride, and codes of a quantised format apart from their scales, which are joined here block by block.  Two layouts are
 * only for quantize: GPTQ codes with inputs in another order, decoded here, and stacks of floats stored by input.  moe_file_id()
 * is a hash of names, positions and samples of the weights; heat and pack files
 * contain it, so that they are used with the model file they were made from only. */
#include "moe/files/internal.h"

#include <string.h>

/* ---- open files ------------------------------------------------------------------------------ */

int moe_file_reserve(struct moe_file *f, int n)
{
    int *fd = kn_calloc((size_t)n, sizeof *fd);
    char **names = kn_calloc((size_t)n, sizeof *names);
    if (!fd || !names) {
        kn_free(fd);
        kn_free(names);
        return kn_fail(KN_ENOMEM, "%s: no memory for %d files", f->name, n);
    }
    for (int i = 0; i < n; i++) {
        fd[i] = i < f->files.n_file ? f->fd[i] : -1;
        names[i] = i < f->files.n_file ? f->path[i] : NULL;
    }
    kn_free(f->fd);
    kn_free(f->path);
    f->fd = fd;
    f->path = names;
    f->files = (struct off_files){ n, fd, (const char *const *)names, NULL };
    return 0;
}

int moe_file_open_nth(struct moe_file *f, int file, const char *path)
{
    f->path[file] = kn_strdup(path);
    if (!f->path[file])
        return kn_fail(KN_ENOMEM, "%s: no memory for its name", path);
    return kn_file_open_read(&f->fd[file], path);
}

int moe_file_add(struct moe_file *f, const char *path, int *file)
{
    int n = f->files.n_file, err = moe_file_reserve(f, n + 1);
    if (!err)
        err = moe_file_open_nth(f, n, path);
    *file = n;
    return err;
}

/* ---- bytes of tensors ------------------------------------------------------------------------ */

/* Maps byte `at` of a matrix in GGUF order to its stored offset.  *left: number of bytes from this one on that are
 * contiguous in both orders. */
static uint64_t turned_from(const struct off_stride_permutation *t, uint64_t at, uint64_t *left)
{
    if (at < t->first) {
        *left = t->first - at;
        return at;
    }
    uint64_t unit = (at - t->first) / t->bytes, in = (at - t->first) % t->bytes, n = (uint64_t)t->n;
    *left = t->bytes - in;
    return t->first + (unit / n * n + (uint64_t)off_stored_index(t, (int)(unit % n))) * t->bytes + in;
}

/* Reads a vector of which only every layout->step-th stored value belongs to it. */
static int read_apart(const struct moe_file *f, const struct moe_tensor *t, uint64_t from, uint8_t *out, size_t bytes)
{
    uint8_t some[4096];
    size_t step = (size_t)t->layout->step, one = (size_t)moe_tensor_type(t->gguf_type)->block_bytes;
    kn_assert(from % one == 0 && bytes % one == 0 && step * one <= sizeof some);
    for (size_t part; bytes; bytes -= part, from += part, out += part) {
        size_t n = sizeof some / (step * one);
        n = n < bytes / one ? n : bytes / one;
        part = n * one;
        int error = kn_file_read(f->fd[t->file], f->path[t->file], some, ((n - 1) * step + 1) * one,
                                 t->offset + from * step);
        if (error)
            return error;
        for (size_t i = 0; i < n; i++)
            memcpy(out + i * one, some + i * step * one, one);
    }
    return 0;
}

enum { SOME = 128 }; /* most blocks in a call of join_some() */

/* Reads codes and scales of n consecutive blocks, from block `col` of row `row` of matrix e on, and joins them to
 * blocks in out. */
static int join_some(const struct moe_file *f, const struct moe_tensor *t, uint64_t e, uint64_t row, uint64_t col,
                     size_t n, uint8_t *out)
{
    uint8_t codes[SOME * 128], scale[SOME * 4];
    const struct moe_layout *l = t->layout;
    const struct off_scales *s = &l->scales[l->slab ? e : 0];
    enum kn_format format = KN_F32;
    kn_assert(kn_format_from_gguf(t->gguf_type, &format) == 0 && n <= SOME);
    uint64_t block = (uint64_t)kn_format_info(format)->block_values, code = kn_code_bytes(format);
    struct moe_place at = { t->file, t->offset };
    if (l->slab)
        at = l->slab[e];
    else
        row += e * t->dim[1];
    row *= l->step ? (uint64_t)l->step : 1;
    uint64_t per_row = (t->dim[0] + (uint64_t)s->values - 1) / (uint64_t)s->values;
    uint64_t per_scale = (uint64_t)s->values / block, left;
    uint64_t first = (row / (uint64_t)s->rows * per_row + col / per_scale) * (uint64_t)s->bytes;
    uint64_t from = (row * (t->dim[0] / block) + col) * code;
    size_t n_scale = (size_t)((col + n - 1) / per_scale - col / per_scale) + 1;
    if (l->turn.n)
        from = turned_from(&l->turn, from, &left);
    if (s->turn.n)
        first = turned_from(&s->turn, first, &left);
    int error = kn_file_read(f->fd[at.file], f->path[at.file], codes, n * code, at.offset + from);
    if (!error)
        error = kn_file_read(f->fd[s->file], f->path[s->file], scale, n_scale * (size_t)s->bytes, s->offset + first);
    if (!error)
        kn_join(format, codes, scale, s->bytes, (int)per_scale, n, out);
    return error;
}

enum { SLICE = 16 }; /* outputs that join_columns() reads at a time: those of a panel */

/* The n_word words from `first` on in each of n_row rows of `stride` words, from file offset `offset` on. */
static int read_words(const struct moe_file *f, int file, uint64_t offset, uint64_t stride, uint64_t first, int n_row,
                      int n_word, uint32_t *to)
{
    int error = 0;
    for (int i = 0; i < n_row && !error; i++)
        error = kn_file_read(f->fd[file], f->path[file], to + i * n_word, (size_t)n_word * sizeof *to,
                             offset + ((uint64_t)i * stride + first) * sizeof *to);
    return error;
}

/* For matrices stored by input: reads and joins block `col` of rows row .. row + n - 1 of matrix e, which are stored as
 * neighbouring outputs within one slice, and writes one every n_row blocks (the blocks of a row) to out. */
static int join_columns(const struct moe_file *f, const struct moe_tensor *t, uint64_t e, uint64_t output, uint64_t col,
                        size_t n, uint64_t n_row, uint8_t *out)
{
    uint32_t code[32 * SLICE / 8], zero[SLICE / 8];
    uint16_t scale[SLICE];
    uint8_t panel[32 * KN_PANEL];
    const struct off_scales *s = &t->layout->scales[t->layout->slab ? e : 0];
    struct kn_columns c = { .codes = code,
                            .zeros = zero,
                            .scales = scale,
                            .awq = s->order == OFF_BY_INPUT_AWQ,
                            .n_in = 32,
                            .per_scale = 1,
                            .zero_less = s->zero_less };
    kn_assert(kn_format_from_gguf(t->gguf_type, &c.format) == 0);
    struct moe_place at = t->layout->slab ? t->layout->slab[e] : (struct moe_place){ t->file, t->offset };
    size_t block = (size_t)kn_format_info(c.format)->block_bytes;
    uint64_t n_out = t->dim[1], first = output / SLICE * SLICE, group = col * 32 / (uint64_t)s->values;
    c.n_out = n_out - first < SLICE ? (int)(n_out - first) : SLICE;
    uint64_t stride = c.awq ? n_out / 8 : n_out, word0 = (c.awq ? 32 : 4) * col * stride;
    int error = kn_file_read(f->fd[s->file], f->path[s->file], scale, (size_t)c.n_out * sizeof *scale,
                             s->offset + (group * n_out + first) * sizeof *scale);
    if (!error)
        error = c.awq ? read_words(f, at.file, at.offset, stride, word0 + first / 8, 32, c.n_out / 8, code)
                      : read_words(f, at.file, at.offset, stride, word0 + first, 4, c.n_out, code);
    if (!error && c.format == KN_UINT4)
        error = read_words(f, s->zero_file, s->zero_offset, 0, (group * n_out + first) / 8, 1, c.n_out / 8, zero);
    if (error)
        return error;
    kn_join_columns(&c, 0, panel);
    for (size_t r = 0; r < n; r++)
        kn_panel_row(c.format, panel, 32, (int)(output - first + r), out + r * n_row * block);
    return 0;
}

/* The stored output of row `row` of a matrix stored by input: only the layout's permutation is applied. */
static uint64_t output_of(const struct moe_layout *l, uint64_t row)
{
    const struct kn_columns c = {
        .turn_first = (int)l->turn.first, .turn_rows = (int)l->turn.bytes, .turn_n = l->turn.n, .turn_by = l->turn.by
    };
    return (uint64_t)kn_columns_output(&c, (int)row);
}

static int read_columns(const struct moe_file *f, const struct moe_tensor *t, uint64_t from, uint8_t *out, size_t bytes)
{
    const struct moe_tensor_type *type = moe_tensor_type(t->gguf_type);
    size_t block = (size_t)type->block_bytes;
    uint64_t n_row = t->dim[0] / (uint64_t)type->block_values, at = from / block, left = bytes / block, rows, cols;
    kn_assert(from % block == 0 && bytes % block == 0);
    for (; left; left -= rows * cols, at += rows * cols, out += rows * cols * block) {
        uint64_t row = at / n_row, col = at % n_row, below = t->dim[1] - row % t->dim[1];
        rows = col ? 1 : left / n_row;
        uint64_t output = output_of(t->layout, row % t->dim[1]), most = t->layout->turn.n ? 1 : SLICE - output % SLICE;
        rows = rows < 1 ? 1 : rows < below ? rows : below;
        rows = rows < most ? rows : most;
        cols = n_row - col < left ? n_row - col : left;
        for (uint64_t c = 0; c < cols; c++) {
            int error = join_columns(f, t, row / t->dim[1], output, col + c, (size_t)rows, n_row, out + c * block);
            if (error)
                return error;
        }
    }
    return 0;
}

/* ---- GPTQ with listed inputs: decoded as they are read ------------------------------------------------ */

enum { CHUNK = 256 }; /* codes of so many inputs are read at a time: whole words of eight */

/* One slice of outputs, with the scales and zero points of all groups. */
struct listed {
    const struct moe_file *f;
    const struct moe_tensor *t;
    const struct off_scales *s;
    struct moe_place at;
    uint64_t first;  /* output */
    int n_out;       /* outputs of the slice */
    uint32_t *list;  /* [dim[0]] the group of each input */
    uint32_t *zero;  /* [n_group][SLICE / 8] */
    uint16_t *scale; /* [n_group][SLICE] */
};

static int read_slice(struct listed *x, uint64_t n_group)
{
    const struct off_scales *s = x->s;
    uint64_t n_out = x->t->dim[1];
    int error = kn_file_read(x->f->fd[s->list_file], x->f->path[s->list_file], x->list,
                             (size_t)x->t->dim[0] * sizeof *x->list, s->list_offset);
    for (uint64_t i = 0; i < x->t->dim[0] && !error; i++)
        if (x->list[i] >= n_group) /* the file has changed since it was opened */
            error = kn_fail(KN_ECORRUPT, "%s: g_idx names a group beyond the last one", x->f->name);
    for (uint64_t g = 0; g < n_group && !error; g++) {
        uint64_t at = g * n_out + x->first;
        error = kn_file_read(x->f->fd[s->file], x->f->path[s->file], x->scale + g * SLICE,
                             (size_t)x->n_out * sizeof *x->scale, s->offset + at * sizeof *x->scale);
        if (!error)
            error = kn_file_read(x->f->fd[s->zero_file], x->f->path[s->zero_file], x->zero + g * (SLICE / 8),
                                 (size_t)x->n_out / 2, s->zero_offset + at / 2);
    }
    return error;
}

/* Writes inputs k0 .. k1 - 1 of outputs output .. output + n - 1, of the slice, to out; rows are row_values apart. */
static int decode_listed(const struct listed *x, uint64_t output, size_t n, uint64_t k0, uint64_t k1,
                         uint64_t row_values, float *out)
{
    uint32_t code[CHUNK / 8 * SLICE];
    int error = 0;
    for (uint64_t from = k0 / 8 * 8; from < k1 && !error; from += CHUNK) {
        uint64_t to = from + CHUNK < k1 ? from + CHUNK : k1;
        error = read_words(x->f, x->at.file, x->at.offset, x->t->dim[1], from / 8 * x->t->dim[1] + x->first,
                           (int)((to - from + 7) / 8), x->n_out, code);
        for (uint64_t k = from > k0 ? from : k0; k < to && !error; k++)
            for (size_t r = 0; r < n; r++) {
                size_t o = (size_t)(output - x->first) + r, g = x->list[k];
                int q = (int)(code[(k - from) / 8 * (uint64_t)x->n_out + o] >> k % 8 * 4 & 15);
                int z = (int)(x->zero[g * (SLICE / 8) + o / 8] >> o % 8 * 4 & 15) + x->s->zero_less;
                out[r * row_values + (k - k0)] = (float)(q - (z & 15)) * kn_f16_to_f32(x->scale[g * SLICE + o]);
            }
    }
    return error;
}

static int read_listed(const struct moe_file *f, const struct moe_tensor *t, uint64_t from, uint8_t *out, size_t bytes)
{
    uint64_t n_in = t->dim[0], at = from / sizeof(float), left = bytes / sizeof(float), rows, cols;
    uint64_t n_group = n_in / (uint64_t)t->layout->scales->values;
    struct listed x = { .f = f, .t = t };
    float *to = (float *)(void *)out;
    int error = 0;
    kn_assert(from % sizeof(float) == 0 && bytes % sizeof(float) == 0);
    x.list = kn_alloc((size_t)n_in * sizeof *x.list +
                      (size_t)n_group * (SLICE / 8 * sizeof *x.zero + SLICE * sizeof *x.scale));
    if (!x.list)
        return kn_fail(KN_ENOMEM, "%s: no memory for the groups of %llu inputs", f->name, (unsigned long long)n_in);
    x.zero = x.list + n_in;
    x.scale = (uint16_t *)(void *)(x.zero + n_group * (SLICE / 8));
    for (; left && !error; left -= rows * cols, at += rows * cols, to += rows * cols) {
        uint64_t row = at / n_in, col = at % n_in, e = row / t->dim[1], below = t->dim[1] - row % t->dim[1];
        uint64_t output = output_of(t->layout, row % t->dim[1]), most = t->layout->turn.n ? 1 : SLICE - output % SLICE;
        rows = col ? 1 : left / n_in;
        rows = rows < 1 ? 1 : rows < below ? rows : below;
        rows = rows < most ? rows : most;
        cols = n_in - col < left ? n_in - col : left;
        x.s = &t->layout->scales[t->layout->slab ? e : 0];
        x.at = t->layout->slab ? t->layout->slab[e] : (struct moe_place){ t->file, t->offset };
        x.first = output / SLICE * SLICE;
        x.n_out = t->dim[1] - x.first < SLICE ? (int)(t->dim[1] - x.first) : SLICE;
        error = read_slice(&x, n_group);
        if (!error)
            error = decode_listed(&x, output, (size_t)rows, col, col + cols, cols, to);
    }
    kn_free(x.list);
    return error;
}

/* ---- stacks of floats stored by input ----------------------------------------------------------------- */

int moe_file_read_input(const struct moe_file *f, const struct moe_tensor *t, uint64_t input, uint64_t row, uint64_t n,
                        void *out)
{
    const struct moe_layout *l = t->layout;
    const size_t one = (size_t)moe_tensor_type(t->gguf_type)->block_bytes;
    uint64_t e = row / t->dim[1], at = (e * t->dim[0] + input) * l->n_output + l->output0 + row % t->dim[1];
    return kn_file_read(f->fd[t->file], f->path[t->file], out, (size_t)n * one, t->offset + at * one);
}

bool moe_file_is_by_input(const struct moe_tensor *t) { return t->layout && t->layout->n_output > 0; }

enum { COLUMNS = 64 }; /* outputs of an input that are read at a time */

/* Any part of a tensor; slow for much of it, which moe/write/strip.c reads. */
static int read_by_input(const struct moe_file *f, const struct moe_tensor *t, uint64_t from, uint8_t *out,
                         size_t bytes)
{
    uint8_t some[COLUMNS * sizeof(float)];
    const size_t one = (size_t)moe_tensor_type(t->gguf_type)->block_bytes;
    uint64_t n_in = t->dim[0], at = from / one, left = bytes / one, rows, cols;
    kn_assert(from % one == 0 && bytes % one == 0 && one <= sizeof(float));
    for (; left; left -= rows * cols, at += rows * cols, out += rows * cols * one) {
        uint64_t row = at / n_in, col = at % n_in, below = t->dim[1] - row % t->dim[1];
        rows = col ? 1 : left / n_in;
        rows = rows < 1 ? 1 : rows < below ? rows : below;
        rows = rows < COLUMNS ? rows : COLUMNS;
        cols = n_in - col < left ? n_in - col : left;
        for (uint64_t k = 0; k < cols; k++) {
            int error = moe_file_read_input(f, t, col + k, row, rows, some);
            if (error)
                return error;
            for (uint64_t i = 0; i < rows; i++)
                memcpy(out + (i * cols + k) * one, some + i * one, one);
        }
    }
    return 0;
}

/* ---- codes and scales by row ---------------------------------------------------------------------- */

/* Blocks from block `col` of a row on that are stored one after the other: units of a permutation may be parts of rows. */
static size_t in_order(const struct moe_tensor *t, uint64_t col)
{
    enum kn_format format = KN_F32;
    kn_assert(kn_format_from_gguf(t->gguf_type, &format) == 0);
    size_t unit = t->layout->turn.bytes / kn_code_bytes(format);
    return t->layout->turn.n ? unit - (size_t)(col % unit) : SOME;
}

static int read_joined(const struct moe_file *f, const struct moe_tensor *t, uint64_t from, uint8_t *out, size_t bytes)
{
    const struct moe_tensor_type *type = moe_tensor_type(t->gguf_type);
    const struct off_scales *s = t->layout->scales;
    size_t block = (size_t)type->block_bytes, left = bytes / block, n;
    uint64_t n_row = t->dim[0] / (uint64_t)type->block_values, at = from / block;
    uint64_t per_scale = (uint64_t)s->values / (uint64_t)type->block_values;
    kn_assert(from % block == 0 && bytes % block == 0);
    for (; left; left -= n, at += n, out += n * block) {
        uint64_t row = at / n_row, col = at % n_row;
        uint64_t most = per_scale > 1 ? per_scale - col % per_scale : SOME; /* ends at a scale's last block */
        n = n_row - col < left ? (size_t)(n_row - col) : left;
        n = n < most ? n : (size_t)most;
        n = n < SOME ? n : SOME;
        n = n < in_order(t, col) ? n : in_order(t, col);
        int error = join_some(f, t, row / t->dim[1], row % t->dim[1], col, n, out);
        if (error)
            return error;
    }
    return 0;
}

/* Replaces F32 values by their reciprocals. */
static int invert(void *values, size_t bytes)
{
    float *x = values;
    kn_assert(bytes % sizeof *x == 0);
    for (size_t i = 0; i < bytes / sizeof *x; i++)
        x[i] = 1 / x[i];
    return 0;
}

int moe_file_read(const struct moe_file *f, const struct moe_tensor *t, uint64_t from, void *out, size_t bytes)
{
    const struct moe_layout *l = t->layout;
    const size_t whole = bytes;
    uint8_t *to = out;
    kn_assert(from <= t->bytes && bytes <= t->bytes - from);
    if (!l)
        return kn_file_read(f->fd[t->file], f->path[t->file], out, bytes, t->offset + from);
    if (l->data)
        memcpy(out, (const uint8_t *)l->data + from, bytes);
    if (l->data)
        return 0;
    if (l->n_output)
        return read_by_input(f, t, from, out, bytes);
    if (l->scales && l->scales->order == OFF_BY_INPUT_LISTED)
        return read_listed(f, t, from, out, bytes);
    if (l->scales)
        return (l->scales->order != OFF_BY_ROW ? read_columns : read_joined)(f, t, from, out, bytes);
    if (l->step)
        return read_apart(f, t, from, out, bytes);
    uint64_t slab = t->bytes / (l->slab && t->n_dim == 1 ? t->dim[0] : t->dim[2] * t->dim[3]);
    for (size_t part; bytes; bytes -= part, from += part, to += part) {
        struct moe_place at = { t->file, t->offset + from / slab * slab };
        uint64_t within = from % slab, left = slab - within;
        if (l->slab)
            at = l->slab[from / slab];
        if (l->turn.n)
            within = turned_from(&l->turn, within, &left);
        part = left < bytes ? (size_t)left : bytes;
        int error = kn_file_read(f->fd[at.file], f->path[at.file], to, part, at.offset + within);
        if (error)
            return error;
    }
    return l->inverse ? invert(out, whole) : 0;
}

/* ---- identity -------------------------------------------------------------------------------- */

#define N_SAMPLE 16

static uint64_t fold(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, (const uint8_t *)data + i, bytes - i < 8 ? bytes - i : 8);
        h = kn_mix(h + KN_GOLDEN + word);
    }
    return h;
}

int moe_file_id(const struct moe_file *f, uint64_t *out)
{
    uint64_t h = f->tensors.n, sample[64];
    for (size_t i = 0; i < f->tensors.n; i++) {
        const struct moe_tensor *t = &f->tensors.item[i];
        uint64_t shape[4] = { t->offset, t->bytes, t->gguf_type, (uint64_t)t->file };
        h = fold(fold(h, shape, sizeof shape), t->name.data, t->name.n);
    }
    for (size_t i = 0; i < N_SAMPLE && f->tensors.n; i++) { /* weight samples tell fine-tunes apart */
        const struct moe_tensor *t = &f->tensors.item[f->tensors.n * i / N_SAMPLE];
        size_t bytes = t->bytes < sizeof sample ? (size_t)t->bytes : sizeof sample;
        if (t->layout && t->layout->scales) /* whole blocks */
            bytes -= bytes % (size_t)moe_tensor_type(t->gguf_type)->block_bytes;
        int error = moe_file_read(f, t, 0, sample, bytes);
        if (error)
            return error;
        h = fold(h, sample, bytes);
    }
    *out = h;
    return 0;
}
