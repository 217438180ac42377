/* Keeps the result of a GPU's self-test in a file, so that later starts on the same GPU, with the same driver and program, do not
 * repeat it.
 *
 * The file has three lines: a title; the GPU, driver and program; the formats that the GPU computes differently, as bits.
 * A file of another GPU, driver or program is replaced.  Only a test that ran to its end is kept, and a GPU that is refused
 * is tested again at each start. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cuda/internal.h"

#define TITLE "spillway GPU self-test 1"

static char folder[KN_CUDA_PATH]; /* "": results are not kept */

void kn_cuda_keep_tests(const char *path)
{
    folder[0] = 0;
    if (path && strlen(path) < sizeof folder)
        memcpy(folder, path, strlen(path) + 1);
}

/* Without the kernel's word the driver is its library, by size and time.  False: unknown, as in WSL2, where this library only
 * loads that of Windows. */
static bool identify_library(const struct kn_cuda_driver *driver, char *out, size_t room)
{
    void *function;
    Dl_info library;
    struct stat st;
    memcpy(&function, &driver->init, sizeof function);
    if (access("/dev/dxg", F_OK) == 0 || !dladdr(function, &library) || stat(library.dli_fname, &st))
        return false;
    snprintf(out, room, "of %lld bytes, %lld.%09ld", (long long)st.st_size, (long long)st.st_mtim.tv_sec,
             st.st_mtim.tv_nsec);
    return true;
}

/* The exact version of the driver.  False: unknown. */
static bool identify_driver(const struct kn_cuda_driver *driver, char *out, size_t room)
{
    FILE *f = fopen("/proc/driver/nvidia/version", "re");
    if (!f)
        return identify_library(driver, out, room);
    bool read = fgets(out, (int)room, f) != NULL;
    fclose(f);
    if (read)
        out[strcspn(out, "\n")] = 0;
    return read;
}

static uint64_t hash_kernels(void)
{
    uint64_t h = 0, word;
    for (int i = 0; i < KN_CUDA_IMAGES; i++)
        for (const char *p = kn_cuda_images[i]; p < kn_cuda_image_ends[i]; p += sizeof word) {
            size_t left = (size_t)(kn_cuda_image_ends[i] - p);
            word = 0;
            memcpy(&word, p, left < sizeof word ? left : sizeof word);
            h = kn_mix((h ^ word) + KN_GOLDEN);
        }
    return h;
}

/* Title, GPU, driver and program.  False: something of them is unknown. */
static bool identify(const struct kn_cuda_device *d, char *out, size_t room)
{
    char name[256] = "", driver[256];
    int major = 0, minor = 0, cuda = 0;
    struct stat st;
    const struct kn_cuda_driver *f = d->driver;
    if (f->device_name(name, sizeof name, d->device) || f->device_attribute(&major, KN_CUDA_MAJOR, d->device) ||
        f->device_attribute(&minor, KN_CUDA_MINOR, d->device) || f->driver_version(&cuda) ||
        stat("/proc/self/exe", &st) || !identify_driver(f, driver, sizeof driver))
        return false;
    int n = snprintf(out, room,
                     TITLE "\n%s %d.%d, CUDA %d, driver %s, program of %lld bytes, %lld.%09ld, kernels %016llx\n", name,
                     major, minor, cuda, driver, (long long)st.st_size, (long long)st.st_mtim.tv_sec,
                     st.st_mtim.tv_nsec, (unsigned long long)hash_kernels());
    return n > 0 && (size_t)n < room;
}

static void name_file(const struct kn_cuda_device *d, char *out, size_t room)
{
    char name[256] = "";
    d->driver->device_name(name, sizeof name, d->device);
    for (char *p = name; *p; p++)
        if (!(*p >= '0' && *p <= '9') && !((*p | 0x20) >= 'a' && (*p | 0x20) <= 'z'))
            *p = '-';
    snprintf(out, room, "%s/%.200s.gpu", folder, name);
}

/* Reads the formats that differ.  False: no result is kept. */
static bool read_kept(const char *path, const char *identity, unsigned *differing)
{
    char text[KN_CUDA_IDENTITY + 32], *end;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, f), head = strlen(identity);
    fclose(f);
    text[n] = 0;
    if (strncmp(text, identity, head))
        return false;
    unsigned long bits = strtoul(text + head, &end, 16);
    if (end == text + head || strcmp(end, "\n") || bits >> (KN_FORMAT_COUNT - 1) > 1)
        return false;
    *differing = (unsigned)bits;
    return true;
}

/* Makes the folder and those above it that are not there; saving a file says the rest. */
static void make_folder(void)
{
    char path[KN_CUDA_PATH];
    memcpy(path, folder, sizeof path);
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(path, 0755);
            *p = '/';
        }
    mkdir(path, 0755);
}

static void say_differing(const struct kn_cuda_device *d)
{
    for (int f = 0; f < KN_FORMAT_COUNT; f++)
        if (d->differing >> f & 1)
            kn_say(KN_LOG_WARN,
                   "CUDA: this device computes products of %s differently from the host: it gets no weights in %s",
                   kn_format_info((enum kn_format)f)->name, kn_format_info((enum kn_format)f)->name);
}

int kn_cuda_admit_device(struct kn_device *device)
{
    struct kn_cuda_device *d = (struct kn_cuda_device *)device;
    char identity[KN_CUDA_IDENTITY], path[KN_CUDA_PATH + 256], text[KN_CUDA_IDENTITY + 32];
    bool keeps = folder[0] && identify(d, identity, sizeof identity);
    int error = 0;
    if (keeps)
        name_file(d, path, sizeof path);
    if (!keeps || !read_kept(path, identity, &d->differing)) {
        error = kn_cuda_self_test(device);
        if (!error && keeps) {
            snprintf(text, sizeof text, "%s%x\n", identity, d->differing);
            make_folder();
            kn_file_save_optional(path, 0644, text, strlen(text));
        }
    }
    if (!error)
        say_differing(d);
    return error;
}
