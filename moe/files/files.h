/* moe/files/files.h - model files: metadata and tensors under GGUF names, from a GGUF file, its splits or a folder of
 * the transformers package.
 *
 * moe/moe.h declares the functions of this folder, moe_file_open() and its family: open a file, find values and tensors
 * by key or name, read bytes of a tensor, close.  The struct moe_file owns descriptors, keys, names and arrays until
 * moe_file_close(); every pointer that it returns is valid until then.  One opened file is immutable and may be read
 * from several threads.
 *
 * This header adds facts about published files that moe/model and moe/write need too.  The tables behind struct
 * moe_file are in internal.h, for moe/files only. */
#ifndef MOE_FILES_FILES_H
#define MOE_FILES_FILES_H

#include "kernels/pass.h"
#include "moe/moe.h"

/* <arch>.expert_gating_func, numbered as in files.  CHOSEN: softmax over the logits of the chosen experts alone. */
enum moe_gating {
    MOE_GATING_SOFTMAX = KN_GATING_SOFTMAX,
    MOE_GATING_SIGMOID = KN_GATING_SIGMOID,
    MOE_GATING_CHOSEN = KN_GATING_CHOSEN, /* up to here the value of the key expert_gating_func */
    MOE_GATING_CHOSEN_SIGMOID = KN_GATING_CHOSEN_SIGMOID,
    MOE_GATING_MIXER = KN_GATING_MIXER
};

/* Byte-level BPE writes each byte as one character: a printable byte as itself, the others as the characters from
 * U+0100 on, in order.  Writes that character as UTF-8 with a NUL into letter and returns its code point. */
int moe_byte_letter(int byte, char letter[3]);

/* Matrices that got a fallback format, by kind; all zero: none. */
struct moe_fallbacks {
    int n_kind;
    struct moe_fallback {
        enum kn_format want, got;
        uint64_t n_in;
        int n;
        char first[64]; /* name of the first tensor */
    } kind[8];          /* further kinds count as the last */
};

/* Returns the format in which a matrix with rows of n_in values is written: want, if n_in is a multiple of its block,
 * else a fallback as in published files: Q4_K to Q5_0, Q5_K to Q5_1, Q6_K to Q8_0, smaller K-quants to IQ4_NL, formats
 * with blocks of 32 to F16.  A fallback is noted with `name`, the tensor's name.  moe_fallbacks_log() warns with a line
 * for each kind, since a model may have hundreds of such tensors. */
enum kn_format moe_format_fit(struct moe_fallbacks *all, const char *name, enum kn_format want, uint64_t n_in);
void moe_fallbacks_log(const struct moe_fallbacks *all);

/* general.file_type: the number by which published files name the format of most of their weights. */
uint32_t moe_file_type(enum kn_format f);

/* The properties that the program lacks to run a known family, by its name in GGUF files or in config.json; or NULL. */
const char *moe_family_lacks(struct moe_string name);

/* True for a stack that is stored by input: [matrix][input][output].  The other call reads of one input the values of n rows
 * of one matrix, from row `row` of the tensor on. */
bool moe_file_is_by_input(const struct moe_tensor *t);
int moe_file_read_input(const struct moe_file *f, const struct moe_tensor *t, uint64_t input, uint64_t row, uint64_t n,
                        void *out);

#define MOE_QUANTIZATION_VERSION 2 /* general.quantization_version: the layout of quantised blocks */

#endif
