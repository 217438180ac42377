/* engine/plan/disk_rate.h - what a disk can do, outside the engine's own path.  Internal to engine. */
#ifndef ENGINE_DISK_H
#define ENGINE_DISK_H

#include "engine/base/base.h"
#include "offload/offload.h"

/* Memory that a measurement takes while it lasts: this, or less where there is less; and beside an engine of a
 * budget, 0: any. */
#define ENG_DISK_BYTES ((size_t)64 << 20)
#define ENG_DISK_LEAST ((size_t)1 << 20)        /* what is less, of memory or of a file, is not measured */
size_t eng_disk_room(size_t host_mem);

/* `depth` threads read the file's megabytes, each the next that none has, for a third of a second, into `room` bytes
 * at most: smaller pieces where that is less than a megabyte for each.  fd has O_DIRECT.  Nothing said:
 * KN_EUNSUPPORTED, this file cannot be read so; KN_ESHORT, it has less than ENG_DISK_LEAST. */
int eng_disk_rate(const char *path, int fd, int depth, size_t room, double *bytes_per_s);

/* The same of a file by name, at the depth where disks are fast; together with its copy in the folder `mirror`, if
 * there is one (NULL: none is looked for).  KN_EUNSUPPORTED, nothing said: for either reason. */
int eng_disk_measure(const char *path, const char *mirror, size_t room, double *bytes_per_s);

/* A file's copy in a folder, or that of its pack file, which is read in its place.  False: there is none. */
bool eng_disk_copy(char *out /* [ENG_PATH_BYTES] */, const char *folder, const char *path);

/* The same of the largest of a model's files. */
int eng_disk_measure_model(const struct off_files *files, const char *mirror, size_t room, double *bytes_per_s);

/* The same, unless *bytes_per_s holds a rate already. It stays 0 where `room` is too small for a measurement and where
 * the files cannot be read past the page cache. Fails only for lack of memory. */
int eng_disk_measure_once(const struct off_files *files, const char *mirror, size_t room, double *bytes_per_s);

/* A nameless file of up to `bytes` in the folder, on the disk when this returns; shorter when the disk is
 * slow.  KN_EUNSUPPORTED, nothing said: none can be made there, or none with O_DIRECT. */
int eng_disk_trial(const char *folder, size_t bytes, int *fd);

#endif
