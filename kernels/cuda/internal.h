/* kernels/cuda/internal.h - a CUDA device and its queues. */
#ifndef KERNELS_CUDA_INTERNAL_H
#define KERNELS_CUDA_INTERNAL_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/launch.h"

#define KN_CUDA_PATH     1024
#define KN_CUDA_IDENTITY 700 /* bytes that name a GPU, its driver and the program */

/* Files of kernels.  Each was compiled to one image: code for several GPUs and PTX for later ones. */
#define KN_CUDA_FILES(X)                                                                                               \
    X(rows)                                                                                                            \
    X(products)                                                                                                        \
    X(groups)                                                                                                          \
    X(attention)                                                                                                       \
    X(experts)                                                                                                         \
    X(delta_net)

enum {
#define KN_COUNT(name) KN_CUDA_IMAGE_##name,
    KN_CUDA_FILES(KN_COUNT)
#undef KN_COUNT
        KN_CUDA_IMAGES
};

extern const char *const kn_cuda_images[KN_CUDA_IMAGES]; /* NULL: built without nvcc */
extern const char *const kn_cuda_image_ends[KN_CUDA_IMAGES];

/* Kernels that are not one for each format: kn_run_NAME in the files. */
#define KN_CUDA_KERNELS(X)                                                                                             \
    X(embed)                                                                                                           \
    X(add_norm_code)                                                                                                   \
    X(code)                                                                                                            \
    X(keep_features)                                                                                                   \
    X(scale)                                                                                                           \
    X(pack)                                                                                                            \
    X(join)                                                                                                            \
    X(fuse)                                                                                                            \
    X(pair)                                                                                                            \
    X(spread)                                                                                                          \
    X(copy_16)                                                                                                         \
    X(copy_1)                                                                                                          \
    X(copy_overlapping)                                                                                                \
    X(transfer_16)                                                                                                     \
    X(transfer_1)                                                                                                      \
    X(finish_qkv)                                                                                                      \
    X(latent_keep)                                                                                                     \
    X(latent_place)                                                                                                    \
    X(attend_F16)                                                                                                      \
    X(attend_F16_wide)                                                                                                 \
    X(attend_F32)                                                                                                      \
    X(attend_F32_wide)                                                                                                 \
    X(attend_INT8)                                                                                                     \
    X(attend_INT8_wide)                                                                                                \
    X(route)                                                                                                           \
    X(plan)                                                                                                            \
    X(guess)                                                                                                           \
    X(group)                                                                                                           \
    X(choose)                                                                                                          \
    X(choose_F32)                                                                                                      \
    X(choose_F16)                                                                                                      \
    X(choose_BF16)                                                                                                     \
    X(activate)                                                                                                        \
    X(combine)                                                                                                         \
    X(combine_norm)                                                                                                    \
    X(part)                                                                                                            \
    X(conv)                                                                                                            \
    X(delta)                                                                                                           \
    X(delta_outputs)                                                                                                   \
    X(delta_past)                                                                                                      \
    X(keep_draft)

enum kn_cuda_kernel {
#define KN_ENUM(name) KN_CUDA_##name,
    KN_CUDA_KERNELS(KN_ENUM)
#undef KN_ENUM
        KN_CUDA_KERNEL_COUNT
};

struct kn_cuda_device {
    struct kn_device base;
    const struct kn_cuda_driver *driver;
    int device, n_processor;
    struct CUctx_st *context;
    struct CUmod_st *module[KN_CUDA_IMAGES];
    unsigned formats; /* bits of the formats that groups may have */
    struct CUfunc_st *kernel[KN_CUDA_KERNEL_COUNT];
    struct CUfunc_st *product[KN_FORMAT_COUNT][2]; /* for one row of activations, for KN_CUDA_ROWS */
    struct CUfunc_st *group[KN_FORMAT_COUNT];
    bool can_await;     /* the driver has stream memory operations */
    unsigned differing; /* by the self-test: bits of the formats in which products are not the host's */
};

/* A buffer of pinned memory, in pieces that are used in turn: through it a queue copies memory of the host that is not pinned.
 * base NULL: there is none, and the driver copies such memory, while the host waits. */
#define KN_CUDA_STAGES      4
#define KN_CUDA_STAGE_BYTES ((size_t)2 << 20)
struct kn_cuda_stage {
    uint8_t *base;
    struct CUevent_st *event[KN_CUDA_STAGES]; /* the last copy from the piece has run */
    int next;
    struct kn_team *team; /* fills the pieces; NULL: the calling thread */
};

/* Operations that wait for the next one, with which they may be launched as one (fused.c). */
#define KN_CUDA_HELD 4
struct kn_cuda_queue {
    struct kn_queue base;
    const struct kn_cuda_device *device;
    struct CUstream_st *stream;
    kn_cuda_address scratch; /* device memory: */
    float *part;             /* [n_part] of attention, if spans are computed side by side (struct kn_cuda_parts) */
    uint32_t *count;         /* [n_count] of blocks; 0 between launches */
    size_t n_part, n_split, n_count; /* n_split: most heads of rows whose spans are computed side by side */
    struct kn_cuda_stage stage;
    int max_span; /* most spans of a row */
    int error;    /* the first */
    struct kn_cuda_queue *beside;
    struct kn_op held[KN_CUDA_HELD];
    int n_held;
};

extern const struct kn_backend kn_cuda_backend;

/* memory.c: memory of the device; images are pinned memory of the host */
size_t kn_cuda_memory_free(const struct kn_device *d);
int kn_cuda_memory_open(struct kn_memory *m, bool image);
void kn_cuda_memory_close(struct kn_memory *m);
int kn_cuda_memory_write(struct kn_memory *m, size_t at, const void *from, size_t bytes);
int kn_cuda_host_pin(const struct kn_device *d, void *at, size_t bytes, const char **why);
void kn_cuda_host_unpin(const struct kn_device *d, void *at);

/* stage.c: copies from memory of the host that is not pinned */
void kn_cuda_stage_open(struct kn_cuda_queue *q);
void kn_cuda_stage_close(struct kn_cuda_queue *q);
unsigned kn_cuda_transfer(struct kn_cuda_queue *q,
                          const struct kn_op_transfer *o); /* returns the driver's error, or 0 */

/* queue.c: launches, for fused.c */
struct kn_cuda_grid {
    int x, y, z;
};
void kn_cuda_launch(struct kn_cuda_queue *q, struct CUfunc_st *kernel, struct kn_cuda_grid g, int threads,
                    void **parameters);
void kn_cuda_launch_op(struct kn_cuda_queue *q, const struct kn_op *op);
struct kn_cuda_grid kn_cuda_panel_grid(int n_out, int n_in, int y, int z);

/* fused.c: neighbouring operations in one launch */
void kn_cuda_add(struct kn_cuda_queue *q, const struct kn_op *op); /* launches it, or holds it */
void kn_cuda_launch_held(struct kn_cuda_queue *q);                 /* before anything that waits for the queue */

bool kn_cuda_device_has_format(const struct kn_device *d, enum kn_format f);

/* await.c: words that the host and streams wait for */
bool kn_cuda_can_await(const struct kn_device *d);
int kn_cuda_try_await(struct kn_cuda_device *d); /* at the start: finds out whether it can */
int kn_cuda_await(struct kn_queue *q, const uint32_t *word, uint32_t value);

#endif
