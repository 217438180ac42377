/* engine/hub/pull.c - one model from the hub into the cache.
 *
 * Three kinds of request: the commit of the revision; the list of that commit's files with sizes and hashes; each file
 * that is missing.  Links and the reference are written when all files are verified, so that a snapshot in the cache
 * never has less than the one before it. */
#include "engine/hub/internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define MOST_REPLY ((size_t)64 << 20) /* bytes of one JSON reply */
#define MOST_PAGES 1000
#define URL_BYTES  4096

struct pull {
    struct hub_client client;
    struct hub_name name;
    const char *text; /* the name as it was typed */
    char base[1024], folder[ENG_PATH_BYTES], commit[HUB_COMMIT_BYTES];
    struct hub_files files;
    struct hub_variant *variant;
    int n_variant, chosen;
    uint64_t missing;
};

/* ---- progress ------------------------------------------------------------------------------------ */

void hub_count_bytes(struct hub_client *c, uint64_t n)
{
    char done[32], total[32], rate[32];
    if (c->options->progress)
        atomic_fetch_add_explicit(&c->options->progress->done_bytes, n, memory_order_relaxed);
    c->count.done += n;
    int tenth = c->count.total ? (int)(c->count.done * 10 / c->count.total) : 0;
    if (!c->options->says_progress || tenth <= c->count.n_tenth || tenth > 9)
        return;
    double seconds = (double)(kn_now_ns() - c->count.begin_ns) * 1e-9;
    double per_second = seconds > 0 ? (double)c->count.done / seconds : 0;
    long left = per_second > 0 ? (long)((double)(c->count.total - c->count.done) / per_second) : 0;
    c->count.n_tenth = tenth;
    eng_size_text(done, sizeof done, (double)c->count.done);
    eng_size_text(total, sizeof total, (double)c->count.total);
    eng_size_text(rate, sizeof rate, per_second);
    kn_say(KN_LOG_INFO, "downloaded %d %%: %s of %s, %s/s, %ld:%02ld left", tenth * 10, done, total, rate, left / 60,
           left % 60);
}

static void count_begin(struct pull *p)
{
    p->client.count.total = p->missing;
    p->client.count.begin_ns = kn_now_ns();
    if (p->client.options->progress)
        atomic_store_explicit(&p->client.options->progress->total_bytes, p->missing, memory_order_relaxed);
}

/* ---- the list of files ------------------------------------------------------------------------------ */

static int take_text(void *user, uint64_t at, const char *p, size_t n)
{
    struct eng_bytes *b = user;
    b->n = at < b->n ? (size_t)at : b->n;
    if (n > MOST_REPLY - b->n)
        return kn_fail(KN_ELIMIT, "the server's reply is longer than %zu MiB", MOST_REPLY >> 20);
    eng_bytes_add(b, p, n);
    return b->failed ? kn_fail(KN_ENOMEM, "no memory for the server's reply") : 0;
}

/* Gets a JSON reply; text is emptied first. */
static int get_text(struct pull *p, const char *url, struct eng_bytes *text, struct hub_reply *reply)
{
    int n_failed = 0, result;
    for (;;) {
        text->n = 0;
        result = hub_request(&p->client, url, 0, take_text, text, reply);
        if (result < 0 || (result == 0 && reply->status == 200))
            return result;
        if (!hub_is_passing(result, reply))
            return hub_fail_status(&p->client, &p->name, reply);
        if ((result = hub_wait(&p->client, p->name.repo, &n_failed, result, reply)))
            return result;
    }
}

static int find_commit(struct pull *p, struct eng_bytes *text)
{
    struct hub_reply reply;
    char url[URL_BYTES];
    snprintf(url, sizeof url, "%s/api/models/%s/revision/", p->base, p->name.repo);
    if (!hub_url_add(url, sizeof url, p->name.revision[0] ? p->name.revision : "main", false))
        return kn_fail(KN_ELIMIT, "%s: the address is too long", p->text);
    int error = get_text(p, url, text, &reply);
    return error ? error : hub_reply_commit(p->commit, p->name.repo, text->data, text->n);
}

static int list_files(struct pull *p, struct eng_bytes *text)
{
    struct hub_reply reply;
    char url[URL_BYTES];
    int error = 0;
    snprintf(url, sizeof url, "%s/api/models/%s/tree/%s?recursive=true", p->base, p->name.repo, p->commit);
    for (int page = 0; !error && page < MOST_PAGES; page++) {
        if ((error = get_text(p, url, text, &reply)) ||
            (error = hub_reply_tree(&p->files, p->name.repo, text->data, text->n)) || !reply.next[0])
            break;
        size_t n = strlen(p->base); /* a page elsewhere would get the token */
        if (strncmp(reply.next, p->base, n) != 0 || reply.next[n] != '/')
            return kn_fail(KN_ECORRUPT, "%s: the server's list goes on at another host: %.100s", p->name.repo,
                           reply.next);
        snprintf(url, sizeof url, "%s", reply.next);
    }
    hub_files_sort(&p->files);
    return error;
}

/* ---- the choice ------------------------------------------------------------------------------------- */

static int choose(struct pull *p)
{
    char others[600];
    int error = hub_variants_find(&p->variant, &p->n_variant, &p->files);
    if (error)
        return error;
    for (int i = 0; i < p->n_variant;)
        if (p->variant[i].complete)
            i++;
        else
            return kn_fail(KN_ECORRUPT, "%s: the repository lacks parts of %s", p->name.repo,
                           hub_variant_name(&p->variant[i], &p->files));
    p->chosen = hub_variant_choose(p->variant, p->n_variant, &p->files, p->name.which);
    hub_variants_text(others, sizeof others, p->variant, p->n_variant, &p->files, p->chosen);
    if (p->n_variant == 0)
        return kn_fail(KN_EUNSUPPORTED,
                       "%s has no model that can be run: neither .gguf files nor safetensors with "
                       "config.json",
                       p->name.repo);
    if (p->chosen == -1)
        return kn_fail(KN_ENOENT, "%s has no %s; it has %s", p->name.repo, p->name.which, others);
    if (p->chosen < 0)
        return kn_fail(KN_EINVAL, "%s: several of its files are %s; give the name of a file in its place: %s",
                       p->name.repo, p->name.which, others);
    if (!p->name.which[0] && p->n_variant > 1)
        kn_say(KN_LOG_INFO, "%s: taking %s; it also has %s", p->name.repo,
               hub_variant_name(&p->variant[p->chosen], &p->files), others);
    return 0;
}

static bool is_wanted(const struct pull *p, int i) { return p->files.file[i].variant == p->chosen; }

/* ---- the files -------------------------------------------------------------------------------------- */

static int check_room(const struct pull *p)
{
    char need[32], have[32];
    int fd, error = kn_file_open(&fd, p->folder, O_RDONLY | O_DIRECTORY);
    if (error)
        return error;
    int64_t room = kn_io()->room(fd);
    kn_file_close(fd);
    if (room < 0 || (uint64_t)room >= p->missing)
        return 0;
    eng_size_text(need, sizeof need, (double)p->missing);
    eng_size_text(have, sizeof have, (double)room);
    return kn_fail(KN_ELIMIT, "%s: %s are to be downloaded, and %s has only %s free; HF_HUB_CACHE names another folder",
                   p->text, need, p->folder, have);
}

static int prepare_folder(struct pull *p)
{
    char path[ENG_PATH_BYTES];
    if (!hub_cache_folder(p->folder, p->client.places, p->name.repo) || !hub_path(path, "%s/blobs", p->folder))
        return kn_fail(KN_ELIMIT, "%s: the path is too long", p->text);
    int error = hub_make_folders(p->folder, strlen(p->folder));
    if (!error)
        error = hub_make_folders(path, strlen(p->folder) + 1);
    for (int i = 0; i < p->files.n; i++)
        p->missing += is_wanted(p, i) ? hub_blob_missing(p->folder, &p->files.file[i]) : 0;
    return error ? error : check_room(p);
}

static int get_file(struct pull *p, const struct hub_file *file)
{
    char url[URL_BYTES], bytes[32];
    snprintf(url, sizeof url, "%s/%s/resolve/%s/", p->base, p->name.repo, p->commit);
    if (!hub_url_add(url, sizeof url, file->path, true))
        return kn_fail(KN_ELIMIT, "%s: the address is too long", file->path);
    eng_size_text(bytes, sizeof bytes, (double)file->bytes);
    if (hub_blob_missing(p->folder, file))
        kn_say(KN_LOG_INFO, "downloading %s, %s", file->path, bytes);
    struct hub_blob b = { .client = &p->client, .name = &p->name, .folder = p->folder, .url = url, .file = file };
    return hub_blob_get(&b);
}

/* Small files first: a folder is complete when its weights are. */
static int get_files(struct pull *p)
{
    int error = 0;
    for (int large = 0; large < 2; large++)
        for (int i = 0; i < p->files.n && !error; i++)
            if (is_wanted(p, i) && p->files.file[i].large == large)
                error = get_file(p, &p->files.file[i]);
    for (int i = 0; i < p->files.n && !error; i++)
        if (is_wanted(p, i))
            error = hub_cache_link(p->folder, p->commit, p->files.file[i].path, p->files.file[i].id);
    return error ? error : hub_cache_save_ref(p->folder, p->name.revision, p->commit);
}

/* The model as it stands in the cache now. */
static int describe(struct eng_hub_model *out, const struct pull *p)
{
    char snapshot[ENG_PATH_BYTES], name[ENG_HUB_NAME_BYTES];
    const struct hub_variant *v = &p->variant[p->chosen];
    const char *file = p->files.file[v->first].path, *rev = p->name.revision;
    snprintf(name, sizeof name, "%s%s%s", p->name.repo, rev[0] ? "@" : "", rev);
    if (!hub_path(snapshot, "%s/snapshots/%s", p->folder, p->commit))
        return kn_fail(KN_ELIMIT, "%s: the path is too long", p->text);
    return hub_find_in(out, ENG_HUB_CACHE, snapshot, name, v->is_folder ? v->label : file);
}

static int pull(struct eng_hub_model *out, struct pull *p)
{
    struct eng_bytes text = { 0 };
    size_t n = strlen(p->client.places->endpoint);
    while (n > 0 && p->client.places->endpoint[n - 1] == '/')
        n--;
    if (n >= sizeof p->base)
        return kn_fail(KN_ELIMIT, "HF_ENDPOINT has more than %zu bytes", sizeof p->base - 1);
    memcpy(p->base, p->client.places->endpoint, n);
    int error = find_commit(p, &text);
    if (!error && !(error = list_files(p, &text)))
        error = choose(p);
    eng_bytes_free(&text);
    if (error || (error = prepare_folder(p)))
        return error;
    count_begin(p);
    error = get_files(p);
    if (!error && (error = describe(out, p)) == KN_ENOENT)
        kn_fail(error, "%s: the cache has not all of its files: another program has removed some", p->text);
    return error;
}

int eng_hub_pull(struct eng_hub_model *out, const struct eng_hub_places *places, const char *text,
                 const struct eng_hub_pull_options *options)
{
    struct pull *p = kn_calloc(1, sizeof *p);
    if (!p)
        return kn_fail(KN_ENOMEM, "no memory to download a model");
    p->text = text;
    int error = 0;
    if (!hub_name_parse(&p->name, text))
        error = kn_fail(KN_EINVAL,
                        "'%s' names no repository of the hub; use ORG/NAME, ORG/NAME:QUANT or "
                        "ORG/NAME@REVISION",
                        text);
    else if (places->offline)
        error = kn_fail(KN_EINVAL, "%s cannot be downloaded: --offline or HF_HUB_OFFLINE is set", text);
    else if (!places->cache)
        error = kn_fail(KN_EINVAL, "%s: there is no folder for it: set HF_HUB_CACHE or HOME", text);
    else if (!(error = hub_client_open(&p->client, places, options)))
        error = pull(out, p);
    if (error == KN_ECANCELLED)
        kn_say(KN_LOG_WARN, "%s: stopped; the part is kept, and pull continues it", text);
    else if (error == KN_EIO && p->client.count.done > 0)
        kn_say(KN_LOG_WARN, "%s: the part is kept, and pull continues it", text);
    hub_client_close(&p->client);
    hub_files_free(&p->files);
    kn_free(p->variant);
    kn_free(p);
    return error;
}
