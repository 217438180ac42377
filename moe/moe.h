/* moe/moe.h - model files, models, and the whole forward pass: token rows in, logits out.
 *
 *     moe_file     a GGUF file (or its splits), or a folder as the transformers package writes them:
 *                  metadata and where tensors lie, by GGUF's names either way.  Nothing is mapped; all
 *                  of the headers is read into checked memory.  Enough for tokenize and inspect.
 *     moe_model    weights of one file, bound to a description of its family: opened, then loaded, and
 *                  immutable and shared from then on.
 *     moe_context  KV memory, states, step arena and a worker team: what one thread needs to run a model.
 *                  Several contexts may run over one model at once.
 *     a head       a model that guesses what another one, its target, will think: its rows begin with a
 *                  feature of the target's, or three (EAGLE-3).  EAGLE's is a file of its own; a checkpoint may
 *                  carry one as a layer behind its last (MTP), whose experts lie in the target's store.
 *                  Embedding and output matrix are the target's, but where a head has its own.
 *
 * A batch is rows: one token each, with its own position, its own path through the KV slots and whether
 * its logits are wanted.  Rows of several sequences, of a prompt's chunk and of a token tree are all the
 * same to the forward pass: a row sees exactly the slots on its path.  Slots are numbers that the caller
 * hands out; the row writes its key and value into the slot at its own position, before any row of the
 * batch reads.  A row that cannot be computed has a status of its own; the others do not notice. */
#ifndef MOE_MOE_H
#define MOE_MOE_H

#include "kernels/kernels.h"
#include "offload/offload.h"

/* ---- model files ------------------------------------------------------------------------------- */

/* GGUF value types, numbered as in the file. */
enum moe_type {
    MOE_U8, MOE_I8, MOE_U16, MOE_I16, MOE_U32, MOE_I32, MOE_F32, MOE_BOOL, MOE_STRING, MOE_ARRAY,
    MOE_U64, MOE_I64, MOE_F64, MOE_TYPE_COUNT
};

struct moe_string { const char *data; size_t n; };      /* not terminated; no NUL promised inside */

struct moe_value {
    struct moe_string key;
    enum moe_type type, item;                           /* item: of an array */
    size_t n;                                           /* items of an array, else 1 */
    const void *data;                                   /* packed scalars, aligned; or struct moe_string[n] */
};

struct moe_tensor {
    struct moe_string name;
    uint32_t gguf_type;
    int n_dim;
    uint64_t dim[4];                                    /* dim[0] is contiguous; unused ones are 1 */
    int file;                                           /* which split */
    uint64_t offset, bytes;                             /* from the start of that file */
    const struct moe_layout *layout;                    /* NULL: one run of bytes, as in all GGUF files */
};

/* How a tensor lies that is not one run of bytes in the order in which it is meant. */
struct moe_layout {
    const struct moe_place { int file; uint64_t offset; } *slab;    /* [dim[2]] each matrix's own, or NULL */
    struct off_turn turn;               /* of each matrix, or vector */
    int step;                           /* a vector's values, or rows of codes, lie so many apart; 0: side by side */
    const struct off_scales *scales;    /* [dim[2]] with slabs, else one: codes lie without theirs; or NULL */
    const void *data;                   /* no file has it: here it is; or NULL */
};

struct moe_file;

/* path is a .gguf, the first of its splits (name-00001-of-0000N.gguf), or a folder with config.json and
 * .safetensors. */
int  moe_file_open(struct moe_file **out, const char *path);
void moe_file_close(struct moe_file *f);

const char *moe_file_path(const struct moe_file *f);
const struct off_files *moe_file_files(const struct moe_file *f);
size_t moe_file_value_count(const struct moe_file *f);
size_t moe_file_tensor_count(const struct moe_file *f);
const struct moe_value  *moe_file_value(const struct moe_file *f, size_t i);
const struct moe_tensor *moe_file_tensor(const struct moe_file *f, size_t i);
const struct moe_value  *moe_file_find(const struct moe_file *f, const char *key);           /* or NULL */
const struct moe_tensor *moe_file_find_tensor(const struct moe_file *f, const char *name);   /* or NULL */

/* Bytes of a tensor as they are meant, whatever its layout; for quantised ones whole blocks. */
int moe_file_read(const struct moe_file *f, const struct moe_tensor *t, uint64_t from, void *out, size_t bytes);

uint64_t moe_file_header_bytes(const struct moe_file *f);   /* that were read to open it */

/* Refuses, aloud, to write over one of f's own files, or a folder. */
int moe_file_refuse_target(const struct moe_file *f, const char *path);

/* A number that tells this model from others: of its tensors' names, places and some of their weights. */
int moe_file_id(const struct moe_file *f, uint64_t *out);

/* Scalars by key.  1: found, 0: absent (out untouched), negative: there but not of that kind or out of
 * range, said.  Any integer type does for an integer; the string is a view into the file's memory. */
int moe_file_int(const struct moe_file *f, const char *key, int64_t least, int64_t most, int64_t *out);
int moe_file_float(const struct moe_file *f, const char *key, double *out);
int moe_file_bool(const struct moe_file *f, const char *key, bool *out);
int moe_file_string(const struct moe_file *f, const char *key, struct moe_string *out);

/* The i-th item of an array of numbers, as any integer or float; the caller has checked i and the type. */
int64_t moe_value_int(const struct moe_value *v, size_t i);
double  moe_value_float(const struct moe_value *v, size_t i);
bool    moe_string_is(struct moe_string s, const char *text);

/* A copy fit for a message or a terminal: control characters, backslashes and what is no UTF-8 become
 * \xNN; cut with three dots when it does not fit.  Always terminated; bytes > 8. */
void moe_string_show(struct moe_string s, char *out, size_t bytes);

/* How a GGUF tensor type is called and sized.  NULL: not known; such a tensor's bytes are 0. */
struct moe_tensor_type { const char *name; int block_values, block_bytes; };
const struct moe_tensor_type *moe_tensor_type(uint32_t gguf_type);
#define MOE_TENSOR_I64 27                               /* the number of a list of tokens' type */

/* All experts of a layer in one tensor, or, in old files, one tensor for each. */
bool moe_tensor_is_expert(const struct moe_tensor *t);

/* Writing one: add everything, then write the header, then each tensor's bytes in order.  The file
 * appears under its name only when finished. */
struct moe_writer;
int  moe_writer_open(struct moe_writer **out, const char *path);
void moe_writer_close(struct moe_writer *w);            /* unfinished: nothing is left behind */
int  moe_writer_value(struct moe_writer *w, const char *key, enum moe_type type, const void *value);
int  moe_writer_string(struct moe_writer *w, const char *key, const char *s, size_t n);
int  moe_writer_array(struct moe_writer *w, const char *key, enum moe_type item, const void *data, size_t n);
int  moe_writer_copy(struct moe_writer *w, const struct moe_value *v);        /* as another file has it */
int  moe_writer_tensor(struct moe_writer *w, const char *name, enum kn_format f, int n_dim,
                       const uint64_t *dim);
int  moe_writer_ids(struct moe_writer *w, const char *name, uint64_t n);      /* a tensor of I64 */
int  moe_writer_header(struct moe_writer *w);
int  moe_writer_data(struct moe_writer *w, const void *data, size_t bytes);   /* tensor order, any pieces */
int  moe_writer_finish(struct moe_writer *w);

/* ---- synthetic models -------------------------------------------------------------------------- */

struct moe_synth_options {
    const char *shape;                                  /* "qwen3-30b-a3b" ... */
    int n_layer, n_vocab, n_used;                       /* 0: the shape's own; n_used: experts of a token */
    bool ahead;                                         /* with a layer that guesses ahead */
    enum kn_format format;                              /* of experts and FFN; attention and head: Q8_0 */
    uint64_t seed;
    struct kn_team *team;
    struct off_progress *progress;                      /* may be NULL */
    const atomic_bool *stop;                            /* may be NULL; once true, nothing is left behind */
};
int moe_synth(const char *path, const struct moe_synth_options *opt);
const char *moe_synth_shape(int i);                     /* names, NULL after the last */

/* ---- quantising -------------------------------------------------------------------------------- */

/* The matrices that may have a format of their own.  An embedding that is the head too takes the wider
 * of its two. */
enum moe_part { MOE_EXPERTS, MOE_FFN, MOE_ATTENTION, MOE_EMBEDDING, MOE_HEAD, MOE_PART_COUNT };

struct moe_quantize_options {
    enum kn_format format[MOE_PART_COUNT];
    bool requantize;                                    /* of weights that are quantised already */
    const struct kn_ops *ops;
    struct kn_team *team;
    struct off_progress *progress;                      /* may be NULL */
    const atomic_bool *stop;                            /* may be NULL; once true, nothing is left behind */
};

struct moe_quantized {                                  /* what became of one tensor */
    enum kn_format from, to;
    uint64_t n_value, bytes;                            /* weights, 0 of a list of tokens; bytes as written */
    double square, error;                               /* of its values, and of what they changed by */
};

/* Writes f's model to path: metadata whole, matrices in the formats asked for (rows that are no whole
 * blocks fall back, said), vectors, biases and routers in F32, matrices of no known part as they are.
 * Fills done[moe_file_tensor_count(f)].  The same bytes for any team. */
int moe_quantize(const char *path, const struct moe_file *f, const struct moe_quantize_options *opt,
                 struct moe_quantized *done);

/* ---- models ------------------------------------------------------------------------------------ */

struct moe_model;

struct moe_model_options {
    enum kn_isa isa;                                    /* at most; KN_ISA_COUNT - 1 for the best */
    const struct moe_model *target;                     /* of EAGLE's head: loaded before it, closed after; else NULL */
    bool ahead;                                         /* its store has the experts of the layer that guesses ahead */
};

struct moe_load_options {
    struct kn_team *team;                               /* interleaves; during the load only */
    size_t expert_bytes;                                /* for experts: expert_least or more; 0: for all */
    size_t later_bytes;                                 /* that off_store_grow may add to it */
    enum off_io_kind io;
    const char *heat_path;                              /* keeps what is learnt of experts; NULL: nothing */
    const char *pack_path;                              /* read experts from there if it is theirs; or NULL */
    const char *mirror;                                 /* folder with a second copy of the files; or NULL */
    struct off_progress *progress;                      /* of dense weights; may be NULL */
};

struct moe_shape {                                      /* what others need to know of a model */
    char arch[32];
    int n_layer, d_model, n_head, n_kv, d_head, n_vocab, n_ctx_train;
    size_t state_bytes;                                 /* of what layers without attention know of one text; or 0 */
    int n_expert, n_used, d_ff, d_expert;
    int n_moe_layer, n_expert_total;                    /* layers with experts; all their experts */
    int n_ahead, n_expert_ahead;                        /* layers that guess ahead; their experts in the store */
    size_t ahead_bytes;                                 /* such layers in the file; 0: they were left out of it */
    size_t dense_bytes;                                 /* memory of what every pass needs */
    size_t expert_bytes, expert_least;                  /* memory of all in the store; the least that works */
    size_t expert_file_bytes;                           /* all experts as they lie in the file */
    size_t pass_bytes;                                  /* dense weights that any pass reads */
    size_t widened_bytes;                               /* of these, what is held as F32 but is quantised in the file */
    double row_macs;                                    /* multiply-adds of one row, attention apart */
    double position_macs;                               /* and of its attention, for each position that it sees */
};

/* Open binds a file, which outlives the model, to its description: no weight is read and little memory
 * taken, and the shape and what contexts will take are known.  Load, once, reads the dense weights and
 * opens the store of experts; a model whose load failed can only be closed. */
int  moe_model_open(struct moe_model **out, const struct moe_file *f, const struct moe_model_options *opt);

/* The first layer of target's file that guesses ahead, as a head: target was opened with `ahead`, is loaded before
 * it and closed after. */
int  moe_model_open_ahead(struct moe_model **out, const struct moe_model *target);
int  moe_model_load(struct moe_model *m, const struct moe_load_options *opt);
void moe_model_close(struct moe_model *m);              /* NULL is fine */

/* Writes the experts of an open model, not loaded, to a pack file (off_pack()); path is none of its files. */
struct moe_pack_options {
    struct kn_team *team;
    enum off_io_kind io;
    struct off_progress *progress;                      /* may be NULL */
    const atomic_bool *stop;                            /* may be NULL; once true, the rest is left to another call */
};
int  moe_model_pack(const struct moe_model *m, const char *path, const struct moe_pack_options *opt,
                    struct off_packed *out);
const struct moe_shape *moe_model_shape(const struct moe_model *m);
const struct kn_ops *moe_model_ops(const struct moe_model *m);
struct off_store *moe_model_store(const struct moe_model *m);           /* NULL without experts */

/* ---- contexts ---------------------------------------------------------------------------------- */

struct moe_context;

/* What a pass's rows leave at their slots for heads to read, in the precision of KV: the residual stream after the last
 * norm, which is what the output matrix reads, and as some layers are given it. */
#define MOE_INNER 3
struct moe_features { bool last; int n_inner, inner[MOE_INNER]; };

struct moe_context_options {
    int max_row;                                        /* rows of a batch */
    int max_want;                                       /* rows of a batch that want logits */
    int n_slot;                                         /* KV slots, over all sequences */
    int max_pos;                                        /* positions are below this */
    enum kn_kv kv;
    int n_state;                                        /* of a model with states: how many texts; 0: one */
    int n_draft;                                        /* of a model with states: draft rows of a batch */
    struct moe_features features;                       /* that rows leave at their slots */
    int n_recall;                                       /* tokens whose experts are remembered; 0: none */
    const struct moe_context *target;                   /* of a head: where features lie; opened with them */
    struct kn_team *team;                               /* not owned; one context at a time uses it */
};

/* Of a head: what it goes on from, which its target's context has to keep. */
struct moe_features moe_model_reads(const struct moe_model *head);

size_t moe_context_bytes(const struct moe_model *m, const struct moe_context_options *opt);
size_t moe_kv_slot_bytes(const struct moe_model *m, enum kn_kv kv);
size_t moe_feature_bytes(const struct moe_model *m, enum kn_kv kv, const struct moe_features *f);  /* of one slot, beside */
int    moe_context_open(struct moe_context **out, const struct moe_model *m,
                        const struct moe_context_options *opt);
void   moe_context_close(struct moe_context *c);

/* From the next pass on other threads compute: at most as many as those that it was opened with. */
void   moe_context_set_team(struct moe_context *c, struct kn_team *team);

/* The keys and values of slots from .. from + n - 1 become those of to .. to + n - 1 too; features as well. */
void   moe_context_copy_slots(struct moe_context *c, int32_t from, int32_t to, int n);

/* The last of a row's features.  They lie at the row's slot, and hold as long as the key and the value there. */
void   moe_context_feature(const struct moe_context *c, int32_t slot, float *out /* [d_model] */);

/* Models with recurrent layers (moe_shape.state_bytes) know a text by a state, which lies at one position: a
 * batch's rows of the text follow on it, in order, and become part of it; position 0 begins it anew.  Draft
 * rows leave it as it is.  States are numbers that the caller hands out. */

/* The text went on with these draft rows of the last batch, one after the other: they become part of it. */
void   moe_context_keep(struct moe_context *c, int state, const int32_t *row, int n);

/* What `from` knows `to` knows too. */
void   moe_context_copy_state(struct moe_context *c, int from, int to);

/* How many tokens it knows; -1: a row failed, and it is of no use until it begins anew. */
int    moe_context_state(const struct moe_context *c, int state);
/* Tokens that the next pass will have rows of, as far as they are known or guessed: the experts that they used
 * when they last came by are read while nothing else is, until the pass reaches their layer.  What an earlier
 * call asked for and this one does not is dropped, if it was not begun. */
void   moe_context_expect(struct moe_context *c, const int32_t *token, int n);

/* Of the experts that a token used when it last came by, those that are neither here nor on their way, by the
 * store's numbers: how many; -1: it is not remembered. */
int    moe_context_missing(struct moe_context *c, int32_t token, int32_t *expert /* [n_layer * n_used] */);

/* How well experts are foreseen, of a layer and of one distance: by its router on the rows as they were so many
 * layers before; the last is by what tokens used when they last came by.  Of all passes: experts that were
 * guessed, that were used, and that were both. */
#define MOE_FAR 3
enum moe_sight_of { MOE_SIGHT_FAR1, MOE_SIGHT_FAR2, MOE_SIGHT_FAR3, MOE_SIGHT_TOKEN, MOE_SIGHTS };
struct moe_sight { uint64_t guessed, used, right; };

/* Counts from here on, until NULL.  Routers are run for it as often as there are distances; nothing is read. */
void   moe_context_watch(struct moe_context *c, struct moe_sight *sight /* [n_layer][MOE_SIGHTS] */);

struct moe_row {
    int32_t token, position;
    bool want_logits;
    /* Slot of position p: base[p] below n_base, tail[p - n_base] from there on; both reach to this
     * row's own position.  base is a sequence's table, tail a branch of a draft tree. */
    const int32_t *base, *tail;
    int n_base;
    /* Of a model with states: which one the text has, and whether the row is a draft, after which row. */
    int32_t state;
    bool draft;
    int32_t after;                              /* of the batch: the text's last, or another draft */
    int32_t copy_to;                            /* a state that will know as much as this row; 0: none. No draft's */
    /* Of a head: what the row goes on from, or NULL for the target's feature in feature_slot. */
    const float *feature;                               /* [d_model] may be of the last result */
    int32_t feature_slot;
};

struct moe_batch { const struct moe_row *row; int n_row; };

struct moe_result {
    const float *logits;                                /* [n_want][n_vocab], in row order; valid until the next call */
    const float *feature;                               /* [n_want][feature_stride] theirs; likewise */
    size_t feature_stride;
    const int *status;                                  /* [n_row] */
    int n_want;
    double experts_per_layer;                           /* distinct ones, mean over the layers */
};

/* The first failure among n rows, or 0. */
static inline int moe_rows_status(const struct moe_result *r, int first, int n)
{
    for (int i = first; i < first + n; i++)
        if (r->status[i])
            return r->status[i];
    return 0;
}

int moe_forward(struct moe_context *c, const struct moe_batch *batch, struct moe_result *out);

#endif
