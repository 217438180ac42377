/* Usage statistics of experts, saved beside the model between runs.
 *
 * A small file with the model's id and each expert's share of its group's turns.  It affects speed only, so
 * any fault (another model, another version, damaged, unreadable) is treated as a missing file, and a failure
 * to create the new file is logged at debug level only.
 *
 * Bytes of the fields, in order, little-endian:
 *   8 magic, 8 model id, 4 n_expert, 4 zero, 4 * n_expert shares (float32), 8 checksum */
#include "offload/internal.h"

#include <fcntl.h>
#include <string.h>

struct head {
    char magic[8];
    uint64_t model_id;
    uint32_t n_expert, zero;
};
_Static_assert(sizeof(struct head) == 24, "as it lies in the file");

static const char magic[8] = { 'S', 'P', 'W', 'H', 'E', 'A', 'T', '1' };

static size_t file_bytes(int n) { return sizeof(struct head) + (size_t)n * sizeof(float) + sizeof(uint64_t); }

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

bool off_heat_read(const char *path, uint64_t model_id, float *share, int n)
{
    size_t bytes = file_bytes(n);
    struct head head;
    uint64_t check;
    bool good = false;
    int fd = kn_io()->open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return false;
    uint8_t *file = kn_alloc(bytes);
    if (file && kn_io()->size(fd) == (int64_t)bytes && kn_io()->pread(fd, file, bytes, 0) == (ssize_t)bytes) {
        memcpy(&head, file, sizeof head);
        memcpy(&check, file + bytes - sizeof check, sizeof check);
        good = !memcmp(head.magic, magic, sizeof magic) && head.model_id == model_id && head.n_expert == (uint32_t)n &&
               check == check_of(file, bytes - sizeof check);
    }
    if (good)
        memcpy(share, file + sizeof head, (size_t)n * sizeof *share);
    for (int i = 0; good && i < n; i++)
        good = share[i] >= 0 && share[i] <= 1;
    kn_free(file);
    kn_file_close(fd);
    return good;
}

void off_heat_write(const char *path, uint64_t model_id, const float *share, int n)
{
    struct kn_new_file f;
    size_t bytes = file_bytes(n);
    struct head head = { .model_id = model_id, .n_expert = (uint32_t)n };
    uint8_t *file = kn_alloc(bytes);
    if (!file)
        goto done;
    memcpy(head.magic, magic, sizeof magic);
    memcpy(file, &head, sizeof head);
    memcpy(file + sizeof head, share, (size_t)n * sizeof *share);
    uint64_t check = check_of(file, bytes - sizeof check);
    memcpy(file + bytes - sizeof check, &check, sizeof check);
    if (!kn_new_file_try(&f, path, 0644) && kn_io()->pwrite(f.fd, file, bytes, 0) == (ssize_t)bytes)
        (void)kn_new_file_replace(&f);
    kn_new_file_close(&f);
done:
    kn_free(file);
}
