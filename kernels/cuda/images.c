/* The images of the kernels, embedded in the program.  KN_CUDA_FOLDER: the folder where the build has put them; without
 * nvcc it is not defined, and there are none. */
#include "kernels/cuda/internal.h"

#ifdef KN_CUDA_FOLDER
#define KN_EMBED(name)                                                                                                 \
    extern const char kn_cuda_image_##name[], kn_cuda_image_end_##name[];                                              \
    __asm__(".section .rodata\n.balign 16\n"                                                                           \
            ".global kn_cuda_image_" #name "\n"                                                                        \
            "kn_cuda_image_" #name ": .incbin \"" KN_CUDA_FOLDER "/" #name ".fatbin\"\n"                               \
            ".global kn_cuda_image_end_" #name "\n"                                                                    \
            "kn_cuda_image_end_" #name ":\n"                                                                           \
            ".previous\n");
KN_CUDA_FILES(KN_EMBED)
#undef KN_EMBED
#endif

const char *const kn_cuda_images[KN_CUDA_IMAGES] = {
#ifdef KN_CUDA_FOLDER
#define KN_IMAGE(name) kn_cuda_image_##name,
    KN_CUDA_FILES(KN_IMAGE)
#undef KN_IMAGE
#endif
};

const char *const kn_cuda_image_ends[KN_CUDA_IMAGES] = {
#ifdef KN_CUDA_FOLDER
#define KN_END(name) kn_cuda_image_end_##name,
    KN_CUDA_FILES(KN_END)
#undef KN_END
#endif
};
