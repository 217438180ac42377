/* kernels/cpu/dispatch.c - selects the functions for this processor.
 *
 * One table per instruction set, all filled by the same macro, so that no table can lack an
 * operation.  kn_ops() never returns a table with instructions that the processor lacks; tests ask for
 * each instruction set in turn. */
#include "kernels/internal.h"

#define KN_TABLE(level, name, products)                                                                                \
    [level] = {                                                                                                        \
        .isa = level,                                                                                                  \
        .matmul = kn_matmul_##products,                                                                                \
        .quantize = kn_quantize_##name,                                                                                \
        .encode = kn_encode_##name,                                                                                    \
        .repack = kn_repack_##name,                                                                                    \
        .attend = kn_attend_##name,                                                                                    \
        .attend_span = kn_attend_span_##name,                                                                          \
        .attend_join = kn_attend_join_##name,                                                                          \
        .delta = kn_delta_##name,                                                                                      \
        .conv = kn_conv_##name,                                                                                        \
        .rms_norm = kn_rms_norm_##name,                                                                                \
        .center = kn_center_##name,                                                                                    \
        .rope = kn_rope_##name,                                                                                        \
        .swiglu = kn_swiglu_##name,                                                                                    \
        .swiglu_clamped = kn_swiglu_clamped_##name,                                                                    \
        .gate = kn_gate_##name,                                                                                        \
        .cap = kn_cap_##name,                                                                                          \
        .softmax = kn_softmax_##name,                                                                                  \
        .add = kn_add_##name,                                                                                          \
        .add_scaled = kn_add_scaled_##name,                                                                            \
        .kv_store = kn_kv_store_##name,                                                                                \
        .largest = kn_largest_##name,                                                                                  \
        .clean_logits = kn_clean_logits_##name,                                                                        \
        .find_first = kn_find_first_##name,                                                                            \
        .exp_sum = kn_exp_sum_##name,                                                                                  \
        .temper = kn_temper_##name,                                                                                    \
        .list_above = kn_list_above_##name,                                                                            \
        .list_noisy = kn_list_noisy_##name,                                                                            \
        .probe_read = kn_probe_read_##name,                                                                            \
        .probe_mac = kn_probe_mac_##name,                                                                              \
    }

static const struct kn_ops tables[KN_ISA_COUNT] = {
    KN_TABLE(KN_ISA_SCALAR, scalar, scalar),
    KN_TABLE(KN_ISA_AVX2, avx2, avx2),
    KN_TABLE(KN_ISA_AVX512, avx512, avx512),
    KN_TABLE(KN_ISA_VBMI, avx512, vbmi),
};

const struct kn_ops *kn_ops(enum kn_isa most)
{
    enum kn_isa best = kn_isa_best();

    kn_assert(most >= KN_ISA_SCALAR && most < KN_ISA_COUNT);
    return &tables[most < best ? most : best];
}
