/* Pack files: a second copy of a model's experts, each in one extent and in slot layout.
 *
 * off_pack_open: from a file name and the experts that the file should hold to the place of each expert, or one
 * log line with the reason that the file is not usable.  No field of the file is trusted: head and table must
 * equal the bytes that this program would write for this model.  Only the experts' checksums are taken from the
 * file; the entries' own checksums protect them.  So sizes and offsets need no further checks.
 *
 * The checksum is XXH3 of 64 bits: on one core of a Zen 5 machine 45 to 57 GB/s from the cache, and 28 from memory.
 * Each expert that is read costs it once, so it has to be far above the disk's rate. */
#include "offload/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

static const char magic[8] = { 'S', 'P', 'W', 'P', 'A', 'C', 'K', 0 };

/* ---- checksums ----------------------------------------------------------------------------------- */

/* The library's header for x86 replaces XXH3_64bits by one that chooses the widest vectors of the processor. */
uint64_t off_check(const void *data, size_t bytes) { return XXH3_64bits(data, bytes); }

uint64_t off_check_expert(const uint64_t matrix[OFF_MATRICES])
{
    return off_check(matrix, OFF_MATRICES * sizeof *matrix);
}

/* ---- expected contents ----------------------------------------------------------------------------- */

size_t off_panel_bytes(const struct off_source *s)
{
    return s->n_out ? kn_align_up(kn_mat_bytes(s->format, s->n_out, s->n_in), OFF_PAGE) : 0;
}

static size_t extent_bytes(const struct off_expert *e)
{
    size_t bytes = 0;
    for (int i = 0; i < OFF_MATRICES; i++)
        bytes += off_panel_bytes(&e->matrix[i]);
    return bytes;
}

/* Offset of the first extent. */
static uint64_t first_extent(int n_expert)
{
    return kn_align_up(sizeof(struct off_pack_head) + (size_t)n_expert * sizeof(struct off_pack_entry), OFF_PAGE);
}

void off_pack_head(struct off_pack_head *out, uint64_t model_id, const struct off_expert *expert, int n_expert)
{
    *out = (struct off_pack_head){ .version = OFF_PACK_VERSION,
                                   .page_bytes = OFF_PAGE,
                                   .model_id = model_id,
                                   .file_bytes = first_extent(n_expert),
                                   .n_expert = (uint32_t)n_expert,
                                   .n_matrix = OFF_MATRICES };
    memcpy(out->magic, magic, sizeof magic);
    for (int i = 0; i < n_expert; i++)
        out->file_bytes += extent_bytes(&expert[i]);
    out->check = off_check(out, offsetof(struct off_pack_head, check));
}

void off_pack_entry(struct off_pack_entry *out, const struct off_pack_head *head, const struct off_expert *e,
                    uint64_t offset, uint64_t check)
{
    *out = (struct off_pack_entry){ .offset = offset, .bytes = extent_bytes(e), .check = check };
    for (int i = 0; i < OFF_MATRICES; i++) {
        const struct off_source *m = &e->matrix[i];
        if (!m->n_out)
            continue;
        out->matrix[i].gguf_type = (uint32_t)kn_format_info(m->format)->gguf_type;
        out->matrix[i].n_out = (uint32_t)m->n_out;
        out->matrix[i].n_in = (uint32_t)m->n_in;
    }
    out->seal = off_check(out, offsetof(struct off_pack_entry, seal)) ^ head->check;
}

int off_pack_count(const struct off_pack_head *head, const struct off_expert *expert,
                   const struct off_pack_entry *table, uint64_t *next)
{
    struct off_pack_entry want;
    int n = 0;
    *next = first_extent((int)head->n_expert);
    for (; n < (int)head->n_expert; n++, *next += want.bytes) {
        off_pack_entry(&want, head, &expert[n], *next, table[n].check);
        if (memcmp(&want, &table[n], sizeof want))
            break;
    }
    return n;
}

/* ---- opening --------------------------------------------------------------------------------------- */

bool off_read_all(int fd, void *to, size_t bytes, uint64_t offset)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = kn_io()->pread(fd, (uint8_t *)to + done, bytes - done, (int64_t)(offset + done));
        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
            return false;
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* The reason that the head is not valid, or NULL. */
static const char *judge_head(int fd, const struct off_pack_head *want)
{
    struct off_pack_head head;
    int64_t bytes = kn_io()->size(fd);
    if (!off_read_all(fd, &head, sizeof head, 0))
        return "it cannot be read, or is cut short";
    if (memcmp(head.magic, magic, sizeof magic))
        return "it is no pack file";
    if (head.version != OFF_PACK_VERSION)
        return "another version of spillway wrote it";
    if (head.check != off_check(&head, offsetof(struct off_pack_head, check)))
        return "its head is damaged";
    if (memcmp(&head, want, sizeof head))
        return "it belongs to another model";
    return bytes == (int64_t)head.file_bytes ? NULL : "it is cut short, or has grown";
}

static const char *judge(int fd, const struct off_pack_head *head, const struct off_expert *expert,
                         struct off_pack_entry *table, struct off_extent *extent)
{
    const char *why = judge_head(fd, head);
    int n = (int)head->n_expert;
    uint64_t end;
    if (why)
        return why;
    if (!off_read_all(fd, table, (size_t)n * sizeof *table, sizeof *head))
        return "its table cannot be read";
    if (off_pack_count(head, expert, table, &end) < n)
        return "its table is damaged, or was not finished";
    for (int e = 0; e < n; e++)
        extent[e] = (struct off_extent){ table[e].offset, (size_t)table[e].bytes, table[e].check };
    return NULL;
}

int off_pack_open(int *fd, const char *path, uint64_t model_id, const struct off_expert *expert, int n_expert,
                  struct off_extent *extent)
{
    struct off_pack_head head;
    const char *why;
    *fd = kn_io()->open(path, O_RDONLY | O_CLOEXEC, 0);
    if (*fd < 0 && errno == ENOENT)
        return 0;
    off_pack_head(&head, model_id, expert, n_expert);
    struct off_pack_entry *table = kn_calloc((size_t)n_expert, sizeof *table);
    if (!table) {
        kn_file_close(*fd);
        *fd = -1;
        return kn_fail(KN_ENOMEM, "no memory for the table of %s", path);
    }
    why = *fd < 0 ? strerror(errno) : judge(*fd, &head, expert, table, extent);
    kn_free(table);
    if (!why)
        return 0;
    kn_say(KN_LOG_WARN,
           "%s is not used: %s; experts are read from the model's own file (spillway pack writes "
           "a new one)",
           path, why);
    kn_file_close(*fd);
    *fd = -1;
    return 0;
}
