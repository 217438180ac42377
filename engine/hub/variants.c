/* engine/hub/variants.c - which models are in a list of files, and which of them a user asks for.
 *
 * A repository of GGUF files has the same model in several quantisations, each one file or split into several; file
 * names end in the quantisation: NAME-Q4_K_M.gguf, NAME.Q8_0.gguf, Q4_K_M/NAME-Q4_K_M-00001-of-00002.gguf.  A
 * repository of safetensors is one model: the weights, config.json and the tokenizer's files at its top.
 *
 * In: a sorted list of files.  Out: variants, and for each file its variant.  Files that are no model (pictures'
 * encoders, importance matrices, read-me files) belong to none. */
#include "engine/hub/internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_VARIANTS 1024

/* The variant taken if none is named: the first of these that the list has, as llama.cpp's users expect, then any. */
static const char *const usual[] = {
    "Q4_K_M", "UD-Q4_K_XL", "Q4_K_XL", "MXFP4_MOE", "MXFP4", "Q4_K_S", "Q4_0", "Q8_0"
};

static const char safetensors[] = "safetensors";

/* Files of a folder of safetensors besides the weights. */
static const char *const beside[] = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "tiktoken.model",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "model.safetensors.index.json",
};

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && !strcasecmp(s + n - m, end);
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Reads -00002-of-00005 at the end of s[n]: the length without it, number and count.  No such end: n, 1, 0. */
static size_t split_of(const char *s, size_t n, int *number, int *count)
{
    char digits[6] = "", of[6] = "";
    *number = 1;
    *count = 0;
    if (n < 16 || s[n - 15] != '-' || strncmp(s + n - 9, "-of-", 4) != 0)
        return n;
    memcpy(digits, s + n - 14, 5);
    memcpy(of, s + n - 5, 5);
    if (strspn(digits, "0123456789") != 5 || strspn(of, "0123456789") != 5)
        return n;
    *number = atoi(digits);
    *count = atoi(of);
    return n - 15;
}

/* True if the word s[n] is a quantisation: Q4_K_M, IQ3_XXS, TQ1_0, F16, BF16, MXFP4_MOE. */
static bool is_quantisation(const char *s, size_t n)
{
    static const char *const whole[] = { "F16", "F32", "BF16", "FP16", "FP32" }, *const begin[] = { "MXFP4", "NVFP4" };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (n == strlen(whole[i]) && !strncasecmp(s, whole[i], n))
            return true;
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
        if (n >= 5 && !strncasecmp(s, begin[i], 5))
            return true;
    size_t q = n > 1 && strchr("IiTt", s[0]) ? 1 : 0;
    return n > q + 1 && (s[q] == 'Q' || s[q] == 'q') && isdigit((unsigned char)s[q + 1]);
}

/* Writes the last quantisation among the words of s[n] in upper case, with "UD-" if it stands before; "": none. */
static void find_label(char *out, const char *s, size_t n)
{
    size_t from = 0, best = n, best_n = 0;
    for (size_t i = 0; i <= n; i++)
        if (i == n || s[i] == '-' || s[i] == '.') {
            if (is_quantisation(s + from, i - from)) {
                best = from;
                best_n = i - from;
            }
            from = i + 1;
        }
    if (best_n > 0 && best >= 3 && !strncasecmp(s + best - 3, "UD-", 3) && (best == 3 || strchr("-.", s[best - 4]))) {
        best -= 3;
        best_n += 3;
    }
    out[0] = 0;
    if (best_n >= ENG_HUB_LABEL_BYTES)
        return;
    for (size_t i = 0; i < best_n; i++)
        out[i] = (char)toupper((unsigned char)s[best + i]);
    out[best_n] = 0;
}

static bool is_model_file(const char *path)
{
    return ends_with(path, ".gguf") && !strstr(path, "mmproj") && !strstr(path, "imatrix");
}

/* True if path is the next split of v: in a sorted list the splits of a model follow each other. */
static bool is_next_split(const struct hub_variant *v, const struct hub_files *f, const char *path, size_t stem,
                          int number, int count)
{
    const char *first = f->file[v->first].path;
    int its, its_count;
    return count > 0 && v->n_split == count && number == v->n_file + 1 &&
           split_of(first, strlen(first) - 5, &its, &its_count) == stem && !strncmp(first, path, stem);
}

static int add_model_file(struct hub_variant *v, int *n, struct hub_files *f, int i)
{
    struct hub_file *file = &f->file[i];
    int number, count;
    size_t stem = split_of(file->path, strlen(file->path) - 5, &number, &count);
    if (*n > 0 && is_next_split(&v[*n - 1], f, file->path, stem, number, count)) {
        v[*n - 1].n_file++;
        v[*n - 1].bytes += file->bytes;
    } else {
        if (*n == MOST_VARIANTS || number != 1) /* a split without those before it is no model */
            return 0;
        v[*n] = (struct hub_variant){ .first = i, .n_file = 1, .n_split = count, .bytes = file->bytes };
        const char *base = base_of(file->path);
        find_label(v[*n].label, base, stem - (size_t)(base - file->path));
        ++*n;
    }
    file->variant = *n - 1;
    v[*n - 1].complete = v[*n - 1].n_file >= v[*n - 1].n_split;
    return 0;
}

static bool is_beside(const char *path)
{
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (!strcmp(path, beside[i]))
            return true;
    return false;
}

static bool has_file(const struct hub_files *f, const char *path)
{
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->file[i].path, path))
            return true;
    return false;
}

static bool is_weights(const char *path, bool named_model)
{
    return !strchr(path, '/') && ends_with(path, ".safetensors") && (!named_model || !strncmp(path, "model", 5));
}

/* The folder of safetensors in the list, if there is one. */
static void add_folder(struct hub_variant *v, int *n, struct hub_files *f)
{
    struct hub_variant folder = { .first = -1, .is_folder = true };
    bool named_model = false;
    int n_weights = 0, n_split = 0;
    for (int i = 0; i < f->n; i++)
        named_model = named_model || is_weights(f->file[i].path, true);
    for (int i = 0; i < f->n; i++) {
        struct hub_file *file = &f->file[i];
        int number, count = 0;
        bool weights = is_weights(file->path, named_model);
        if (!weights && !is_beside(file->path))
            continue;
        if (weights) {
            split_of(file->path, strlen(file->path) - (sizeof safetensors), &number, &count);
            n_weights++;
            n_split = count > n_split ? count : n_split;
            folder.first = folder.first < 0 ? i : folder.first;
        }
        folder.n_file++;
        folder.bytes += file->bytes;
    }
    if (folder.first < 0 || !has_file(f, "config.json") || *n == MOST_VARIANTS)
        return;
    for (int i = 0; i < f->n; i++)
        if (is_weights(f->file[i].path, named_model) || is_beside(f->file[i].path))
            f->file[i].variant = *n;
    folder.n_split = n_split;
    folder.complete = n_weights >= n_split && (has_file(f, "tokenizer.json") || has_file(f, "tiktoken.model"));
    snprintf(folder.label, sizeof folder.label, "%s", safetensors);
    v[(*n)++] = folder;
}

int hub_variants_find(struct hub_variant **out, int *n, struct hub_files *f)
{
    struct hub_variant *v = kn_calloc(MOST_VARIANTS, sizeof *v);
    *n = 0;
    *out = v;
    if (!v)
        return kn_fail(KN_ENOMEM, "no memory for the list of models");
    for (int i = 0; i < f->n; i++)
        f->file[i].variant = -1;
    for (int i = 0; i < f->n; i++)
        if (is_model_file(f->file[i].path))
            add_model_file(v, n, f, i);
    add_folder(v, n, f);
    return 0;
}

const char *hub_variant_name(const struct hub_variant *v, const struct hub_files *f)
{
    return v->label[0] ? v->label : base_of(f->file[v->first].path);
}

/* How well `which` names the variant: 0 not, 1 without its UD-, 2 by its quantisation, 3 by its file. */
static int match(const struct hub_variant *v, const struct hub_files *f, const char *which)
{
    const char *path = f->file[v->first].path, *base = base_of(path);
    int number, count;
    size_t n = strlen(which), stem = split_of(base, strlen(base) - 5, &number, &count);
    if (!v->is_folder &&
        (!strcasecmp(path, which) || !strcasecmp(base, which) || (n == stem && !strncasecmp(base, which, n))))
        return 3;
    if (!strcasecmp(v->label, which))
        return 2;
    return !strncmp(v->label, "UD-", 3) && !strcasecmp(v->label + 3, which);
}

static int choose_named(const struct hub_variant *v, int n, const struct hub_files *f, const char *which)
{
    int best = -1, score = 0;
    for (int i = 0; i < n; i++) {
        int s = match(&v[i], f, which);
        if (s > score) {
            best = i;
            score = s;
        } else if (s == score && s > 0)
            best = -2;
    }
    return best;
}

int hub_variant_choose(const struct hub_variant *v, int n, const struct hub_files *f, const char *which)
{
    if (which[0])
        return choose_named(v, n, f, which);
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        for (int k = 0; k < n; k++)
            if (!strcmp(v[k].label, usual[i]))
                return k;
    return n > 0 ? 0 : -1;
}

void hub_variants_text(char *out, size_t size, const struct hub_variant *v, int n, const struct hub_files *f,
                       int except)
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < n; i++) {
        char bytes[32];
        if (i == except)
            continue;
        eng_size_text(bytes, sizeof bytes, (double)v[i].bytes);
        int k = snprintf(out + at, size - at, "%s%s (%s)", at ? ", " : "", hub_variant_name(&v[i], f), bytes);
        if (k < 0 || (size_t)k >= size - at) {
            snprintf(out + at, size - at, "%s", at + 5 < size ? " ..." : "");
            return;
        }
        at += (size_t)k;
    }
}
