/* engine/plan/disk_rate.h - the read rate of a disk, measured outside the engine's own path.  Internal to engine. */
#ifndef ENGINE_PLAN_DISK_RATE_H
#define ENGINE_PLAN_DISK_RATE_H

#include "engine/base/base.h"
#include "offload/offload.h"

#define ENG_DISK_BYTES ((size_t)64 << 20) /* usual buffer of a measurement */
#define ENG_DISK_LEAST ((size_t)1 << 20)  /* no measurement with a smaller buffer or file */

/* Bytes of the buffer for an engine with the budget host_mem: a quarter of it, at most ENG_DISK_BYTES. host_mem 0, no
 * budget: ENG_DISK_BYTES. */
size_t eng_disk_room(size_t host_mem);

/* Measures the read rate of a file: for a third of a second `depth` threads, at most 64, read pieces of 1 MiB, in file
 * order from a random one on, round and round, into a buffer of `room` bytes in all; pieces are smaller if `room` has
 * less than 1 MiB for each thread. fd was opened with O_DIRECT; path is for messages. Two errors come without a
 * message: KN_EUNSUPPORTED, the file cannot be read with O_DIRECT; KN_ESHORT, it is smaller than ENG_DISK_LEAST. */
int eng_disk_rate(const char *path, int fd, int depth, size_t room, double *bytes_per_s);

/* Measures a file by name, with 16 threads. If the folder `mirror` (or NULL) has a copy of it, the result is the rate
 * at which both are read together. KN_EUNSUPPORTED, without a message, if the file cannot be read with O_DIRECT or is
 * smaller than ENG_DISK_LEAST. */
int eng_disk_measure(const char *path, const char *mirror, size_t room, double *bytes_per_s);

/* Writes the path of a model file's copy in a folder; if there is none, of the copy of its pack file. False: the folder
 * has neither. */
bool eng_disk_copy(char *out /* [ENG_PATH_BYTES] */, const char *folder, const char *path);

/* eng_disk_measure() of the largest of a model's files. */
int eng_disk_measure_model(const struct off_files *files, const char *mirror, size_t room, double *bytes_per_s);

/* As eng_disk_measure_model(), but only if *bytes_per_s is 0. It stays 0 if `room`, the bytes for buffers, is below
 * ENG_DISK_LEAST or the measurement fails; only KN_ENOMEM is returned as an error. */
int eng_disk_measure_once(const struct off_files *files, const char *mirror, size_t room, double *bytes_per_s);

/* Creates an unnamed file of `bytes`, rounded up to MiB, in the folder, synced to disk; it is shorter if the disk is
 * slow (writing stops after a second). The caller closes *fd. KN_EUNSUPPORTED, without a message: the folder's file
 * system allows no such file, or no O_DIRECT. */
int eng_disk_trial(const char *folder, size_t bytes, int *fd);

#endif
