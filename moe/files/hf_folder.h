/* moe/files/hf_folder.h - a model folder as the transformers package writes it.  For the files behind
 * moe_folder_open() only:
 *
 *     hf_folder.c        reads the folder's files, in order
 *     safetensors.c      header of one .safetensors file: stored tensors under their own names
 *     hf_fields.c        config.json with the defaults of the family's configuration class
 *     hf_families.c      the families by model_type, and vision models around one
 *     hf_config.c        config.json to the metadata of a GGUF file
 *     hf_window_heads.c  the same of heads, where layers with a window have others
 *     hf_draft_head.c    the same of EAGLE-3 heads
 *     hf_tensor_names.c  stored tensor names to GGUF names
 *     hf_convert.c       a stored tensor, or a part of it, to a GGUF tensor
 *     hf_quantisation.c  which kinds of quantised tensors config.json announces
 *     hf_packed.c        quantised tensors with codes and scales in separate tensors
 *     hf_medusa.c        a folder of Medusa heads
 *     hf_vocab.c         tokenizer.json and related files to tokenizer.* metadata
 *     hf_pretokenizer.c  the pre-tokeniser of tokenizer.json to its GGUF name
 *     hf_tiktoken.c      tiktoken.model to the content of a tokenizer.json
 *
 * A folder fills the same tables as a GGUF file of the same model, so callers of moe_file_open() need not distinguish
 * the two. */
#ifndef MOE_FILES_HF_FOLDER_H
#define MOE_FILES_HF_FOLDER_H

#include <string.h>

#include "kernels/json.h"
#include "moe/files/internal.h"

/* A tensor as stored in a .safetensors file, outermost dimension first. */
struct moe_stored {
    struct moe_string name;
    const char *dtype;
    int gguf_type; /* -1: GGUF has no such type */
    int n_dim;
    uint64_t dim[4]; /* unused dimensions are 1 */
    int file;
    uint64_t offset, bytes;
};

struct moe_folder {
    struct moe_file *f;
    json_t *config;            /* config.json */
    json_t *fields;            /* the fields of config that the family knows, with defaults for the others */
    struct moe_stored *stored; /* [n_stored] */
    size_t n_stored, room;
    struct moe_index by_name;
    const struct moe_hf_family *family;
    int n_layer, n_expert; /* 0: no experts */
    int n_ahead;           /* MTP layers behind the last layer, as in config.json */
    int d_head, n_rot;     /* values of a head; how many of them are rotated */
    bool no_bias;          /* attention has no biases, even if the files have such tensors */
    bool no_qk_norm;       /* likewise Q and K norms */
    int n_key_head, n_value_head, d_state_key, d_state_value; /* of delta nets */
    unsigned packings;            /* bits 1 << MOE_HF_.. of the kinds of packed weights that config.json announces */
    int scale_rows, scale_values; /* FP8 in blocks: rows by values per scale; values 0: none */
    int group_values;             /* INT4, GPTQ, AWQ: values of a row per scale */
    uint32_t gptq_zeros;          /* GPTQ: the word of qzeros with eight zero points of 8 */
    int zero_less;                /* GPTQ: zero points are stored less by this */
    bool gptq_any_zero;           /* GPTQ: zero points may be other than 8 */
    bool gptq_plain;              /* config.json states that zero points are symmetric and inputs in order */
    bool wrapped;                 /* a mistral3 or llama4: the language model is under "language_model." */
    bool tied;                    /* the output matrix is the embedding */
    int err;                      /* first failure while config.json is read and metadata added */
};

/* Layers that have the sliding window: none; all; the layers from max_window_layers on; those with an even number, of all
 * or of the first max_window_layers; all but each sliding_window_pattern-th; all but the first and each sixth.  A list in layer_types comes first, if the
 * family knows that field. */
enum moe_hf_windows {
    WINDOW_NONE,
    WINDOW_ALL,
    WINDOW_FROM,
    WINDOW_EVEN,
    WINDOW_EVEN_BEFORE,
    WINDOW_PERIOD,
    WINDOW_NOT_FIRST
};

/* Conversion rules of one model_type. */
struct moe_hf_family {
    const char *model_type, *arch;
    bool experts;
    bool turned;        /* Q and K rows of a head are stored in halves; GGUF has pairs */
    bool post_norm;     /* post_attention_layernorm is post_attention_norm in GGUF, not ffn_norm */
    bool expert_is_ffn; /* the width of an expert is intermediate_size */
    bool shared_is_ffn; /* the width of the shared expert is intermediate_size */
    bool sigmoid;       /* router probabilities by sigmoid, else by softmax */
    bool transposed;    /* unquantised experts are stored input-major: only llama4's are read, by quantize */
    bool latent;        /* multi-head latent attention (MLA) */
    bool delta;         /* has delta nets */
    bool norms_less_1;  /* norm weights, except those inside delta nets, are stored minus 1 */
    bool tiled;         /* with delta nets: GGUF has value heads in another order than the folder */
    enum moe_hf_windows windows;
    int window_period; /* WINDOW_PERIOD: GGUF's period without a list */
    bool nested;       /* vision model: the language model is in text_config */
    const char
        *aside[3];     /* tensors with names that begin so are not used: of a vision part, of unsupported MTP layers */
    bool geglu;        /* the activation is GELU approximated with tanh, not SiLU */
    bool query_scale;  /* queries grow with their position: llama_4_scaling_beta, and yarn */
    bool window_rope;  /* layers with a window have their own RoPE settings */
    bool mtp_apart;    /* MTP layers are stored under "mtp." */
    bool window_heads; /* layers with a window may have other heads than the others */
    bool chunks;       /* llama4: attention in chunks, in all layers with a rotation */
    bool head;         /* EAGLE-3 head: its tensors have names of their own, and its vocabulary is the target's */
};

/* A vision model: its language model is in text_config, with a model_type of its own, one of `inner`. */
#define MOE_HF_INNER 3
struct moe_hf_outer {
    const char *model_type, *inner[MOE_HF_INNER];
    bool tied; /* the output matrix is the embedding, if the outer configuration does not say */
};

/* hf_families.c.  NULL: there is none.  The lists are text for messages: of all families; of the inner model_types. */
const struct moe_hf_family *moe_hf_find_family(const char *model_type);
const struct moe_hf_outer *moe_hf_find_outer(const char *model_type);
void moe_hf_list_families(char *out, size_t size);
void moe_hf_list_inner(const struct moe_hf_outer *outer, char *out, size_t size);

/* hf_folder.c.  Returns code, with the message "path: error: field: reason". */
int moe_refuse(int code, const char *path, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int moe_folder_path(const struct moe_folder *d, const char *name, char *out, size_t bytes);
int moe_folder_has(const struct moe_folder *d, const char *name, bool *has); /* a file with this name */

/* Read the file `name` of the folder, at most `most` bytes: as a JSON object (json_decref), or as text (kn_free).  If
 * the file does not exist they return 0 and set the pointer to NULL. */
int moe_folder_json(const struct moe_folder *d, const char *name, size_t most, json_t **out);
int moe_folder_text(const struct moe_folder *d, const char *name, size_t most, char **text, size_t *n);

/* Add metadata.  The first failure is stored in d->err; later calls then do nothing. */
void moe_put_string(struct moe_folder *d, const char *key, const char *s, size_t n);
void moe_put_array(struct moe_folder *d, const char *key, enum moe_type item, const void *data, size_t n);
void moe_put_u32(struct moe_folder *d, const char *key, uint32_t x);
void moe_put_bool(struct moe_folder *d, const char *key, bool x);
void moe_put_f32(struct moe_folder *d, const char *key, double x);

int moe_safetensors_read(struct moe_folder *d, int file);
const struct moe_stored *moe_stored_find(const struct moe_folder *d, const char *name, size_t n); /* or NULL */

/* Finds the tensor with t's name, of which the last `less` bytes are replaced by `more`; or NULL. */
const struct moe_stored *moe_stored_beside(const struct moe_folder *d, const struct moe_stored *t, size_t less,
                                           const char *more);
int moe_refuse_stored(const struct moe_folder *d, const struct moe_stored *t, int code, const char *what);

/* hf_medusa.c.  moe_hf_find_medusa() says whether the folder has Medusa heads, and in which layout; it refuses heads in a
 * .pt file.  moe_hf_medusa() adds their metadata and tensors, once the weights are opened. */
#define MOE_HF_MEDUSA "medusa_lm_head.safetensors"
enum moe_hf_medusa { MOE_HF_NO_MEDUSA, MOE_HF_MEDUSA_AUTHORS, MOE_HF_MEDUSA_VLLM };
int moe_hf_find_medusa(const struct moe_folder *d, enum moe_hf_medusa *out);
int moe_hf_medusa(struct moe_folder *d);

struct moe_tensor moe_as_stored(const struct moe_stored *t); /* dimensions in GGUF order */

static inline bool moe_string_ends(struct moe_string s, const char *with)
{
    return s.n >= strlen(with) && !memcmp(s.data + s.n - strlen(with), with, strlen(with));
}

/* hf_quantisation.c: reads quantization_config, or hf_quant_config.json. */
enum { MOE_HF_FP8, MOE_HF_INT4, MOE_HF_GPTQ4, MOE_HF_AWQ4, MOE_HF_NVFP4 };
int moe_hf_packing(struct moe_folder *d);

/* hf_packed.c.  moe_hf_describe() describes t as a GGUF tensor, *whole, with its scales if they are in another tensor
 * (bytes 0: no such scales), and with the tensor of one scale for all of it (*factor, or NULL; MOE_HF_DIVISOR: the scale is
 * its reciprocal).  moe_hf_check_gptq() reads the tensors beside a GPTQ tensor, checks that zero points are the
 * supported ones, and sets *listed to whether inputs are out of order.  moe_hf_check_zeros() reads t and checks that all bytes are 0; `otherwise` is the
 * error message. */
#define MOE_HF_PACKED  "_packed"              /* suffix of codes of four bits (compressed-tensors) */
#define MOE_HF_GPTQ    "qweight"              /* replaces "weight" in names of GPTQ and AWQ codes */
#define MOE_HF_DIVISOR ".weight_global_scale" /* of NVFP4 (compressed-tensors) */
int moe_hf_describe(const struct moe_folder *d, const struct moe_stored *t, struct moe_tensor *whole,
                    struct off_scales *scales, const struct moe_stored **factor);
int moe_hf_check_gptq(const struct moe_folder *d, const struct moe_stored *t, bool *listed);
/* Describes a GPTQ tensor with inputs out of the order of their groups, as F32, which moe_file_read() computes. */
int moe_hf_describe_listed(const struct moe_folder *d, const struct moe_stored *t, struct moe_tensor *whole,
                           struct off_scales *scales);
int moe_hf_check_zeros(const struct moe_folder *d, const struct moe_stored *t, const char *otherwise);

/* hf_packed.c.  Reads two tensors until they differ: *same is set to whether type, shape and all bytes are equal. */
int moe_hf_compare(const struct moe_folder *d, const struct moe_stored *a, const struct moe_stored *b, bool *same);

/* hf_config.c.  moe_hf_has_window(): the layer has a sliding window, as the family's class derives it; first, period: of
 * WINDOW_FROM and WINDOW_EVEN_BEFORE, of WINDOW_PERIOD.  moe_hf_count_rotated(): values of a head that are rotated.
 * moe_hf_add_divisors() adds a vector of n_rot / 2 divisors of the frequencies, which the caller fills; NULL: d->err. */
bool moe_hf_has_window(struct moe_folder *d, int layer, int64_t first, int64_t period);
int64_t moe_hf_count_rotated(struct moe_folder *d, const json_t *rope, int64_t d_head);
float *moe_hf_add_divisors(struct moe_folder *d, const char *name);

/* hf_window_heads.c.  They add metadata; failures are in d->err.  moe_hf_refuse_near(): models with the family's name but
 * parts of their own. */
void moe_hf_window_heads(struct moe_folder *d, const json_t *rope);
void moe_hf_proportional(struct moe_folder *d, const json_t *rope);
int moe_hf_refuse_near(struct moe_folder *d);

/* hf_draft_head.c.  moe_hf_find_head() sets d->family if config.json is one of an EAGLE-3 head.  moe_hf_put_head() adds
 * the head's own metadata; failures are in d->err. */
bool moe_hf_find_head(struct moe_folder *d);
void moe_hf_put_head(struct moe_folder *d);

/* hf_fields.c.  moe_hf_fields() sets d->fields; d->family is known.  moe_hf_unnest() replaces d->config by the object `key`
 * in it, with the keys added that only the outer config has. */
int moe_hf_fields(struct moe_folder *d);
int moe_hf_unnest(struct moe_folder *d, const char *key);
int moe_hf_config(struct moe_folder *d);
int moe_hf_tensors(struct moe_folder *d);
int moe_hf_vocab(struct moe_folder *d);

#define MOE_HF_TIKTOKEN "tiktoken.model"

/* Converts tiktoken.model to the content of a tokenizer.json plus "cut_as", the pre-tokeniser's GGUF name.  *out is
 * NULL if the file does not exist.  config: tokenizer_config.json, or NULL. */
int moe_hf_tiktoken(const struct moe_folder *d, const json_t *config, json_t **out);

/* The GGUF name of the "pre_tokenizer" of a tokenizer.json; NULL, with a message naming path, if it is unknown. */
const char *moe_hf_pre(const json_t *pre_tokenizer, const char *path);

#endif
