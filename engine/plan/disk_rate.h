/* engine/plan/disk_rate.h - the read rate of a disk, measured outside the engine's own path.  Internal to engine. */
#ifndef ENGINE_DISK_H
#define ENGINE_DISK_H

#include "engine/base/base.h"
#include "offload/offload.h"

/* Buffer of a measurement: ENG_DISK_BYTES, or less if less is free. eng_disk_room: the buffer for an engine with the
 * budget host_mem (0: no budget). */
#define ENG_DISK_BYTES ((size_t)64 << 20)
#define ENG_DISK_LEAST ((size_t)1 << 20) /* no measurement with a smaller buffer or file */
size_t eng_disk_room(size_t host_mem);

/* For a third of a second, `depth` threads read pieces of 1 MiB of the file, each the next unread piece, into `room`
 * bytes in all; pieces are smaller if `room` has less than 1 MiB for each thread. fd is opened with O_DIRECT. Two
 * errors come without a message: KN_EUNSUPPORTED, the file cannot be read with O_DIRECT; KN_ESHORT, it is smaller
 * than ENG_DISK_LEAST. */
int eng_disk_rate(const char *path, int fd, int depth, size_t room, double *bytes_per_s);

/* The same for a file by name, at a depth of 16; plus the rate of its copy in the folder `mirror`, if that has one
 * (mirror NULL: no copy). KN_EUNSUPPORTED, without a message, in either of the two cases above. */
int eng_disk_measure(const char *path, const char *mirror, size_t room, double *bytes_per_s);

/* Finds the copy of a file in a folder, or the copy of its pack file, which is read instead. False: there is
 * neither. */
bool eng_disk_copy(char *out /* [ENG_PATH_BYTES] */, const char *folder, const char *path);

/* eng_disk_measure() of the largest of a model's files. */
int eng_disk_measure_model(const struct off_files *files, const char *mirror, size_t room, double *bytes_per_s);

/* The same, unless *bytes_per_s is set already. It stays 0 if `room` is too small for a measurement or the files
 * cannot be read past the page cache. Fails only for lack of memory. */
int eng_disk_measure_once(const struct off_files *files, const char *mirror, size_t room, double *bytes_per_s);

/* Creates an unnamed file of up to `bytes` in the folder, synced to disk; it is shorter if the disk is slow (writing
 * stops after a second). The caller closes *fd. KN_EUNSUPPORTED, without a message: the folder's file system allows
 * no such file, or no O_DIRECT. */
int eng_disk_trial(const char *folder, size_t bytes, int *fd);

#endif
