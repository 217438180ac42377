/* moe/files/hf_folder.h - a model's folder as the transformers package writes it.  For the files behind
 * moe_folder_open() only:
 *
 *     folder.c       what lies in the folder, and the order of things
 *     safetensors.c  where the tensors of one file lie, by the names it has for them
 *     hf_config.c    config.json to the metadata of a GGUF file
 *     hf_tensors.c   those tensors by the names, and in the shapes, of a GGUF file
 *     hf_take.c      what of a tensor, in its file, is one of those
 *     hf_packed.c    which of them are codes whose scales are another tensor, and how
 *     hf_vocab.c     tokenizer.json and what stands beside it to tokenizer.*; hf_pre.c: how text is cut
 *     hf_tiktoken.c  tiktoken.model to what tokenizer.json would say
 *
 * So a folder becomes the same tables that a GGUF file of the same model has, and nobody behind
 * moe_file_open() can tell them apart. */
#ifndef MOE_FOLDER_H
#define MOE_FOLDER_H

#include <jansson.h>
#include <string.h>

#include "moe/files/internal.h"

/* A tensor as a file has it, outermost dimension first. */
struct moe_stored {
    struct moe_string name;
    const char *dtype;
    int gguf_type;                              /* -1: GGUF has none */
    int n_dim;
    uint64_t dim[4];                            /* beyond n_dim 1 */
    int file;
    uint64_t offset, bytes;
};

struct moe_folder {
    struct moe_file *f;
    json_t *config;                             /* config.json */
    struct moe_stored *stored;                  /* [n_stored] */
    size_t n_stored, room;
    struct moe_index by_name;
    const struct moe_hf_family *family;
    int n_layer, n_expert;                      /* 0: no experts */
    int n_ahead;                                /* layers behind the last, as config.json has it */
    int d_head;
    int n_key_head, n_value_head, d_state_key, d_state_value;      /* of delta nets */
    int scale_rows, scale_values;               /* of packed weights: a scale's; values 0: none are packed */
    uint32_t gptq_zeros;                        /* eight zero points as such a folder has them; 0: it is none */
    bool gptq_plain;                            /* config.json says that zeros are these, and inputs in order */
    bool tied;
    int err;                                    /* the first failure of those who get and put */
};

/* What a model_type stands for. */
struct moe_hf_family {
    const char *model_type, *arch;
    bool experts;
    bool turned;                                /* heads' rows lie in halves, GGUF has pairs */
    bool post_norm;                             /* GGUF's name of the norm before the FFN */
    bool norm_topk_false;                       /* where config.json does not say */
    bool expert_is_ffn;                         /* experts are intermediate_size wide */
    bool sigmoid;                               /* gates */
    bool transposed;                            /* experts that are not packed lie with their inputs first */
    bool latent;                                /* keys and values are made of one */
    bool delta;                                 /* has delta nets; norms' weights lie one below themselves */
    bool tiled;                                 /* GGUF has value heads in another order */
    bool nested;                                /* a language model within one that sees */
};

/* folder.c */
int moe_refuse(int code, const char *path, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int moe_folder_path(const struct moe_folder *d, const char *name, char *out, size_t bytes);

/* A JSON object of at most so many bytes; *out is NULL when there is no such file. */
int moe_folder_json(const struct moe_folder *d, const char *name, size_t most, json_t **out);
int moe_folder_text(const struct moe_folder *d, const char *name, size_t most, char **text, size_t *n);

/* Metadata; after a failure nothing happens. */
void moe_put_string(struct moe_folder *d, const char *key, const char *s, size_t n);
void moe_put_array(struct moe_folder *d, const char *key, enum moe_type item, const void *data, size_t n);
void moe_put_u32(struct moe_folder *d, const char *key, uint32_t x);
void moe_put_bool(struct moe_folder *d, const char *key, bool x);
void moe_put_f32(struct moe_folder *d, const char *key, double x);

int moe_safetensors_read(struct moe_folder *d, int file);
const struct moe_stored *moe_stored_find(const struct moe_folder *d, const char *name, size_t n);    /* or NULL */

/* Another tensor beside t: its name with so many letters less and some more; or NULL. */
const struct moe_stored *moe_stored_beside(const struct moe_folder *d, const struct moe_stored *t, size_t less,
                                           const char *more);
int moe_refuse_stored(const struct moe_folder *d, const struct moe_stored *t, int code, const char *what);
struct moe_tensor moe_as_stored(const struct moe_stored *t);    /* its shape as GGUF has shapes; type as GGUF has it */

static inline bool moe_string_ends(struct moe_string s, const char *with)
{
    return s.n >= strlen(with) && !memcmp(s.data + s.n - strlen(with), with, strlen(with));
}

/* hf_packed.c: what quantization_config says; what t is meant to be, and its scales (bytes 0: it has none); whether
 * what lies with its inputs first has them in order and no other zero points; whether a tensor is nothing but zeros. */
#define MOE_HF_PACKED "_packed"                 /* what follows the name of a tensor in groups */
#define MOE_HF_GPTQ   "qweight"                 /* what is instead of "weight" */
int moe_hf_packing(struct moe_folder *d);
int moe_hf_describe(const struct moe_folder *d, const struct moe_stored *t, struct moe_tensor *whole,
                    struct off_scales *scales);
int moe_hf_check_gptq(const struct moe_folder *d, const struct moe_stored *t);
int moe_hf_check_zeros(const struct moe_folder *d, const struct moe_stored *t, const char *otherwise);

int moe_hf_config(struct moe_folder *d);
int moe_hf_tensors(struct moe_folder *d);
int moe_hf_vocab(struct moe_folder *d);

#define MOE_HF_TIKTOKEN "tiktoken.model"

/* What tokenizer.json would say where tiktoken.model is instead, and "cut_as", the name of how text is cut; *out is
 * NULL when there is no such file.  config: tokenizer_config.json, or NULL. */
int moe_hf_tiktoken(const struct moe_folder *d, const json_t *config, json_t **out);

/* The name that GGUF files give to this way of cutting text, or NULL, said. */
const char *moe_hf_pre(const json_t *pre_tokenizer, const char *path);

#endif
