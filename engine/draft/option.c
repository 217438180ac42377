/* engine/draft/option.c - parses --draft, and holds the table of the kinds of drafters. */
#include "engine/draft/option.h"
#include "kernels/core.h"
#include "speculative/speculative.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An EAGLE head drafts a dynamic tree by default: its rows are cheap. A row of a model or an MTP layer costs more. */
static const struct eng_draft_properties kinds[] = {
    [ENG_DRAFT_NONE] = { .name = "none" },
    [ENG_DRAFT_NGRAM] = { .name = "ngram", .copies = true },
    [ENG_DRAFT_SUFFIX] = { .name = "suffix", .may_take_file = true, .copies = true },
    [ENG_DRAFT_MODEL] = { .name = "model", .takes_file = true, .is_network = true },
    [ENG_DRAFT_EAGLE] = { .name = "eagle",
                          .takes_file = true,
                          .is_network = true,
                          .is_head = true,
                          .default_tree = ENG_TREE_DYNAMIC },
    [ENG_DRAFT_MTP] = { .name = "mtp", .is_network = true, .is_head = true, .needs_mtp_layer = true },
    [ENG_DRAFT_ORACLE] = { .name = "oracle", .is_oracle = true },
    [ENG_DRAFT_PREDICTION] = { .name = "prediction", .copies = true, .only_copies = true },
    [ENG_DRAFT_RESIDENT] = { .name = "resident", .is_network = true, .is_target = true },
    [ENG_DRAFT_MEDUSA] = { .name = "medusa",
                           .takes_file = true,
                           .is_network = true,
                           .is_head = true,
                           .is_medusa = true,
                           .default_tree = ENG_TREE_DYNAMIC },
    [ENG_DRAFT_LOOKAHEAD] = { .name = "lookahead", .copies = true, .has_window = true },
};
static const char *const tree_name[] = { "chain", "static", "dynamic" };
#define N_KIND    ((int)(sizeof kinds / sizeof *kinds))
#define N_TREE    ((int)(sizeof tree_name / sizeof *tree_name))
#define FILE_NAME 120 /* bytes of a file's name in a drafter's name */

#define COLUMNS     4  /* of a lookahead window, by default, */
#define GRAM        3  /* and tokens of its n-grams */
#define WINDOW_ROWS 48 /* most rows of a window; a tree has ENG_DRAFT_NODES with the drafts */
_Static_assert(WINDOW_ROWS < ENG_DRAFT_NODES, "a draft beside the window");

const struct eng_draft_properties *eng_draft_properties(enum eng_draft_kind kind) { return &kinds[kind]; }
const char *eng_tree_name(enum eng_tree tree) { return tree_name[tree]; }

static const struct eng_draft_properties *of(const struct eng_draft_option *w) { return &kinds[w->kind]; }

int eng_draft_window_rows(const struct eng_draft_option *o)
{
    return of(o)->has_window ? spec_window_rows(o->n_column, o->n_gram) : 0;
}

/* ---- parsing --------------------------------------------------------------------------------------------- */

static bool is_word(const char *text, size_t n, const char *word)
{
    return strlen(word) == n && !memcmp(text, word, n);
}

/* The number after a key of text[n], as in window=4; -1: it is another key, or no number from least to most. */
static int parse_number(const char *text, size_t n, const char *key, int least, int most)
{
    size_t at = strlen(key);
    int number = 0;
    if (n <= at || n > at + 3 || memcmp(text, key, at) != 0)
        return -1;
    for (; at < n; at++) {
        if (text[at] < '0' || text[at] > '9')
            return -1;
        number = 10 * number + (text[at] - '0');
    }
    return number >= least && number <= most ? number : -1;
}

static int parse_window(struct eng_draft_option *w, const char *text, size_t n)
{
    int columns = parse_number(text, n, "window=", 1, SPEC_WINDOW_COLUMNS);
    int gram = parse_number(text, n, "ngram=", 3, SPEC_WINDOW_GRAM);
    if (columns < 0 && gram < 0)
        return kn_fail(KN_EINVAL,
                       "--draft: '%.*s' is not an option of lookahead; these are window=1 to %d, ngram=3 to %d", (int)n,
                       text, SPEC_WINDOW_COLUMNS, SPEC_WINDOW_GRAM);
    w->n_column = columns < 0 ? w->n_column : columns;
    w->n_gram = gram < 0 ? w->n_gram : gram;
    return 0;
}

static int parse_option(struct eng_draft_option *w, const char *text, size_t n)
{
    if (of(w)->has_window)
        return parse_window(w, text, n);
    if (w->kind == ENG_DRAFT_SUFFIX && is_word(text, n, "shared")) {
        w->shared = true;
        return 0;
    }
    size_t at = sizeof "lengths=" - 1, tree = sizeof "tree=" - 1;
    if (of(w)->takes_file && n > at && n - at < sizeof w->lengths && !memcmp(text, "lengths=", at)) {
        memcpy(w->lengths, text + at, n - at);
        return 0;
    }
    bool grows = of(w)->is_network && !of(w)->is_target && n > tree && !memcmp(text, "tree=", tree);
    for (int i = 0; grows && i < N_TREE; i++)
        if (is_word(text + tree, n - tree, tree_name[i])) {
            w->tree = (enum eng_tree)i;
            return 0;
        }
    return kn_fail(KN_EINVAL, "--draft: '%.*s' is not an option of %s", (int)n, text, of(w)->name);
}

static int parse_argument(struct eng_draft_option *w, const char *text, size_t n)
{
    char *end;
    if (n >= sizeof w->file)
        return kn_fail(KN_ELIMIT, "--draft: the file name has %zu bytes; at most %zu are possible", n,
                       sizeof w->file - 1);
    memcpy(w->file, text, n);
    w->file[n] = 0;
    if (of(w)->is_oracle) {
        w->right = strtod(w->file, &end);
        if (n && !*end && w->right >= 0 && w->right <= 1)
            return 0;
        return kn_fail(KN_EINVAL, "--draft: oracle takes a probability, as in oracle:0.8");
    }
    if (of(w)->takes_file && !n)
        return kn_fail(KN_EINVAL, "--draft: %s takes a %s", of(w)->name,
                       of(w)->is_medusa ? "folder, as in medusa:FOLDER" : "file or a folder, as in model:draft.gguf");
    if (n && !of(w)->takes_file && !of(w)->may_take_file)
        return kn_fail(KN_EINVAL, "--draft: %s takes no argument", of(w)->name);
    return 0;
}

int eng_draft_parse(struct eng_draft_option *out, const char *text)
{
    struct eng_draft_option w = { .kind = ENG_DRAFT_NONE };
    size_t n = strcspn(text, ":,");
    int kind = 0, error;
    while (kind < N_KIND && !is_word(text, n, kinds[kind].name))
        kind++;
    if (kind == N_KIND)
        return kn_fail(KN_EINVAL,
                       "--draft: '%.*s' is not a kind of drafter; these are: none, ngram, suffix, "
                       "lookahead, model:FILE, eagle:FILE, medusa:FOLDER, mtp, resident, prediction, oracle:P",
                       (int)n, text);
    w.kind = (enum eng_draft_kind)kind;
    w.tree = kinds[kind].default_tree;
    w.n_column = kinds[kind].has_window ? COLUMNS : 0;
    w.n_gram = kinds[kind].has_window ? GRAM : 0;
    text += n;
    n = *text == ':' ? strcspn(text + 1, ",") : 0;
    if ((error = parse_argument(&w, text + (*text == ':'), n)))
        return error;
    for (text += n + (*text == ':'); *text == ','; text += n) {
        n = strcspn(++text, ",");
        if ((error = parse_option(&w, text, n)))
            return error;
    }
    if (eng_draft_window_rows(&w) > WINDOW_ROWS)
        return kn_fail(KN_EINVAL,
                       "--draft: a window of %d columns with %d-grams adds %d rows to a pass; at most %d are possible",
                       w.n_column, w.n_gram, eng_draft_window_rows(&w), WINDOW_ROWS);
    *out = w;
    return 0;
}

/* ---- the name in a fit file -------------------------------------------------------------------------------- */

/* Blanks and control characters become '_', and the part that comes from the file name is cut to FILE_NAME bytes, since
 * the reader of fit files ends a value at a space and a line at 200 bytes. */
void eng_draft_name(char *out, const struct eng_draft_option *w)
{
    size_t end = strlen(w->file), from;
    out[0] = 0;
    if (!of(w)->is_network)
        return;
    while (end > 0 && w->file[end - 1] == '/')
        end--;
    for (from = end; from > 0 && w->file[from - 1] != '/';)
        from--;
    int n = snprintf(out, ENG_DRAFT_NAME, "%s%s%.*s", of(w)->name, end ? ":" : "", kn_min((int)(end - from), FILE_NAME),
                     w->file + from);
    if (of(w)->is_head || w->tree != ENG_TREE_CHAIN)
        snprintf(out + n, ENG_DRAFT_NAME - (size_t)n, ",tree=%s", eng_tree_name(w->tree));
    for (char *c = out; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 127)
            *c = '_';
}
