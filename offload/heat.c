/* Usage statistics and checksums of experts, saved beside the model between runs.
 *
 * A small file with the model's id and, for each expert, its share of its group's turns and its checksum.  Shares
 * affect speed only.  Checksums hold for the bytes that the model's files had: they are used only if every file has
 * the size and the time of change of its contents that are saved with them, so a replaced model starts without any.
 * A file of format 1 has shares only; the next save upgrades it.  A file of another format, of another model, or with a
 * wrong checksum of its own is not used, and this is logged.  A failure to create the new file is logged at debug level.
 *
 * Bytes of the fields, in order, little-endian:
 *   format 1  8 magic SPWHEAT1, 8 model id, 4 n_expert, 4 zero,
 *             4 * n_expert shares (float32), 8 checksum of all before it
 *   format 2  8 magic SPWHEAT2, 8 model id, 4 n_expert, 4 n_file, 4 layout (OFF_PACK_VERSION), 4 zero,
 *             24 * n_file identities, 8 * n_expert checksums, 4 * n_expert shares, 8 checksum of all before it */
#include "offload/internal.h"

#include <fcntl.h>
#include <string.h>

#define FORMAT     '2'
#define MOST_BYTES ((int64_t)16 << 20) /* a longer file is no heat file */

struct old_head {
    char magic[8];
    uint64_t model_id;
    uint32_t n_expert, zero;
};
struct head {
    char magic[8];
    uint64_t model_id;
    uint32_t n_expert, n_file, layout, zero;
};
_Static_assert(sizeof(struct old_head) == 24 && sizeof(struct head) == 32, "as they lie in the file");

static const char magic[] = "SPWHEAT"; /* then the format, one digit */

/* Bytes of a file from its head on, without its checksum at the end. */
static size_t old_bytes(int n_expert) { return sizeof(struct old_head) + (size_t)n_expert * sizeof(float); }

static size_t new_bytes(int n_expert, int n_file)
{
    return sizeof(struct head) + (size_t)n_file * sizeof(struct off_file_id) +
           (size_t)n_expert * (sizeof(uint64_t) + sizeof(float));
}

static uint64_t check_of(const uint8_t *p, size_t bytes)
{
    uint64_t h = bytes;
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t word;
        memcpy(&word, p + i, 4);
        h = kn_mix(h + KN_GOLDEN + word);
    }
    return h;
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static const char *judge_shares(const float *share, int n)
{
    for (int i = 0; i < n; i++)
        if (!(share[i] >= 0 && share[i] <= 1))
            return "it is damaged";
    return NULL;
}

/* The reason that the n bytes of a file are not valid for this model, or NULL after taking its fields. */
static const char *take_old(const uint8_t *file, size_t n, struct off_heat *h)
{
    struct old_head head;
    memcpy(&head, file, sizeof head);
    if (head.model_id != h->model_id || head.n_expert != (uint32_t)h->n_expert)
        return "it belongs to another model";
    if (n != old_bytes(h->n_expert))
        return "it is damaged";
    memcpy(h->share, file + sizeof head, (size_t)h->n_expert * sizeof *h->share);
    return judge_shares(h->share, h->n_expert);
}

static const char *take(const uint8_t *file, size_t n, struct off_heat *h)
{
    struct head head;
    size_t n_expert = (size_t)h->n_expert;
    const uint8_t *at = file + sizeof head;
    bool same = true;
    if (n < sizeof head)
        return "it is damaged";
    memcpy(&head, file, sizeof head);
    if (head.model_id != h->model_id || head.n_expert != (uint32_t)h->n_expert || head.n_file != (uint32_t)h->n_file)
        return "it belongs to another model";
    if (n != new_bytes(h->n_expert, h->n_file))
        return "it is damaged";
    for (int i = 0; i < h->n_file; i++, at += sizeof *h->id) {
        struct off_file_id last, *now = &h->id[i];
        memcpy(&last, at, sizeof last);
        same = same && now->bytes && now->bytes == last.bytes && now->mtime_ns == last.mtime_ns;
        *now = last;
    }
    if (same && head.layout == OFF_PACK_VERSION)
        memcpy(h->check, at, n_expert * sizeof *h->check);
    memcpy(h->share, at + n_expert * sizeof *h->check, n_expert * sizeof *h->share);
    return judge_shares(h->share, h->n_expert);
}

/* The reason that a file is not valid for this model, or NULL after taking its fields. */
static const char *judge(const uint8_t *file, size_t n, struct off_heat *h)
{
    uint64_t check;
    if (n < sizeof(struct old_head) + sizeof check || memcmp(file, magic, sizeof magic - 1))
        return "it is no heat file";
    char format = (char)file[sizeof magic - 1];
    if (format != '1' && format != FORMAT)
        return "another version of spillway wrote it";
    n -= sizeof check;
    memcpy(&check, file + n, sizeof check);
    if (check != check_of(file, n))
        return "it is damaged";
    return format == '1' ? take_old(file, n, h) : take(file, n, h);
}

bool off_heat_read(const char *path, struct off_heat *h)
{
    int fd = kn_io()->open(path, O_RDONLY | O_CLOEXEC, 0);
    int64_t bytes = fd < 0 ? -1 : kn_io()->size(fd);
    memset(h->check, 0, (size_t)h->n_expert * sizeof *h->check);
    if (fd < 0)
        return false;
    size_t n = bytes < 0 ? 0 : bytes < MOST_BYTES ? (size_t)bytes : MOST_BYTES;
    uint8_t *file = kn_alloc(n + 1);
    const char *why = !file || bytes < 0 || !off_read_all(fd, file, n, 0) ? "it cannot be read" : judge(file, n, h);
    if (why)
        kn_say(KN_LOG_INFO, "%s is not used: %s; the statistics of experts begin again", path, why);
    else if (file[sizeof magic - 1] == '1')
        kn_say(KN_LOG_INFO, "%s is from an older version of spillway: it is upgraded at the end", path);
    if (why)
        memset(h->check, 0, (size_t)h->n_expert * sizeof *h->check);
    kn_free(file);
    kn_file_close(fd);
    return !why;
}

/* ---- writing ----------------------------------------------------------------------------------------- */

static void fill(uint8_t *file, size_t n, const struct off_heat *h)
{
    struct head head = { .model_id = h->model_id,
                         .n_expert = (uint32_t)h->n_expert,
                         .n_file = (uint32_t)h->n_file,
                         .layout = OFF_PACK_VERSION };
    uint8_t *at = file + sizeof head;
    size_t n_expert = (size_t)h->n_expert, ids = (size_t)h->n_file * sizeof *h->id;
    memcpy(head.magic, magic, sizeof magic - 1);
    head.magic[sizeof magic - 1] = FORMAT;
    memcpy(file, &head, sizeof head);
    memcpy(at, h->id, ids);
    memcpy(at + ids, h->check, n_expert * sizeof *h->check);
    memcpy(at + ids + n_expert * sizeof *h->check, h->share, n_expert * sizeof *h->share);
    uint64_t check = check_of(file, n);
    memcpy(file + n, &check, sizeof check);
}

void off_heat_write(const char *path, const struct off_heat *h)
{
    size_t n = new_bytes(h->n_expert, h->n_file), bytes = n + sizeof(uint64_t);
    uint8_t *file = kn_alloc(bytes);
    if (!file)
        return;
    fill(file, n, h);
    kn_file_save_optional(path, 0644, file, bytes);
    kn_free(file);
}
