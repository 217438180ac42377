/* moe/moe.h - model files, models, and the whole forward pass: token rows in, logits out.
 *
 *     moe_file     a GGUF file with all its splits, or a folder written by the transformers package: metadata and
 *                  the position of every tensor, under GGUF names in both cases.  Files are read, not mapped, and
 *                  every header field is checked.  A moe_file is enough to tokenize and to inspect.
 *     moe_model    the weights of one file, bound to a description of the model family.  A model is opened, then
 *                  loaded; after the load it is immutable and shared by all contexts.
 *     moe_context  KV cache, recurrent states, scratch memory and a worker team.  One thread uses a context at a
 *                  time; several contexts may run over one model at once.
 *     draft head   a model that predicts tokens of another model, its target, from the target's features (hidden
 *                  states): one feature a row, or three (EAGLE-3).  EAGLE heads are files of their own.  An MTP head
 *                  is a layer behind the last one in the target's file; its experts are in the target's store.
 *                  A head uses the target's embedding and output matrix unless it has its own.
 *
 * Order of calls: moe_file_open, moe_model_open, moe_model_load, moe_context_open, moe_forward once for each batch, and
 * the closes in reverse order.
 *
 * A batch is a list of rows.  A row is one token with a position, a path through the KV slots and a flag that asks for
 * its logits.  The forward pass treats decode rows of several sequences, rows of a prefill chunk and rows of a draft
 * tree alike: a row attends only to the slots on its path, one for each position from 0 to its own.  The caller assigns
 * the slot numbers.  In each layer every row writes its key and value into the slot of its own position before any row
 * of the batch reads.  A row fails if an expert that it needs cannot be read; its status is then an error code.  Rows
 * of the batch with the failed row on their path may be wrong too, even if their status is 0.  Rows of other sequences
 * are not affected.
 *
 * Unless stated otherwise an int result is 0 or a negative KN_E* code, and the reason has been reported (kn_fail). */
#ifndef MOE_MOE_H
#define MOE_MOE_H

#include "kernels/device.h"
#include "offload/offload.h"

/* ---- model files ------------------------------------------------------------------------------- */

/* GGUF value types, numbered as in the file. */
enum moe_type {
    MOE_U8,
    MOE_I8,
    MOE_U16,
    MOE_I16,
    MOE_U32,
    MOE_I32,
    MOE_F32,
    MOE_BOOL,
    MOE_STRING,
    MOE_ARRAY,
    MOE_U64,
    MOE_I64,
    MOE_F64,
    MOE_TYPE_COUNT
};

struct moe_string {
    const char *data;
    size_t n;
}; /* n bytes without a terminating NUL */

struct moe_value {
    struct moe_string key;
    enum moe_type type, item; /* item: type of an array's items, else equal to type */
    size_t n;                 /* items of an array, else 1 */
    const void *data;         /* packed scalars, aligned; or struct moe_string[n] */
};

struct moe_tensor {
    struct moe_string name;
    uint32_t gguf_type;
    int n_dim;
    uint64_t dim[4];                 /* dim[0] is contiguous; unused dimensions are 1 */
    int file;                        /* index into moe_file_files() */
    uint64_t offset, bytes;          /* offset from the start of that file; size as in GGUF */
    const struct moe_layout *layout; /* NULL: the bytes are contiguous at offset, as in every GGUF file */
};

/* Storage of a tensor from a .safetensors folder that is not stored as the contiguous bytes of the GGUF tensor. */
struct moe_layout {
    const struct moe_place {
        int file;
        uint64_t offset;
    } * slab; /* [dim[2]] position of each matrix, or [dim[0]] of each value of a vector; NULL:
                                         * one after the other at offset */
    struct off_stride_permutation turn; /* stored order of the rows or elements of each matrix or vector */
    int step;                           /* stride, in values of a vector or rows of a matrix; 0: contiguous */
    const struct off_scales *scales;    /* scales stored apart from the codes: [dim[2]] with slab, else one; or NULL */
    const void *data;                   /* values computed at open, in no file: the tensor's bytes; or NULL */
    bool inverse;                       /* F32 values, stored as their reciprocals */
    /* Over 0: matrices stored by input, with this number of outputs for each input.  Those from output0 on belong to the
     * tensor. */
    uint64_t n_output, output0;
};

struct moe_file;

/* path is a .gguf file, the first of several splits (name-00001-of-0000N.gguf), or a folder with config.json and
 * .safetensors files.  The moe_file is immutable after the open and owns all memory that the functions below return
 * pointers to.  Close accepts NULL. */
int moe_file_open(struct moe_file **out, const char *path);
void moe_file_close(struct moe_file *f);

const char *moe_file_path(const struct moe_file *f);
const struct off_files *moe_file_files(const struct moe_file *f);
size_t moe_file_value_count(const struct moe_file *f);
size_t moe_file_tensor_count(const struct moe_file *f);
const struct moe_value *moe_file_value(const struct moe_file *f, size_t i);
const struct moe_tensor *moe_file_tensor(const struct moe_file *f, size_t i);
const struct moe_value *moe_file_find(const struct moe_file *f, const char *key);          /* or NULL */
const struct moe_tensor *moe_file_find_tensor(const struct moe_file *f, const char *name); /* or NULL */

/* Reads bytes [from, from + bytes) of a tensor in GGUF order, for any layout.  If the layout has scales or a step, from
 * and bytes must be multiples of the type's block size. */
int moe_file_read(const struct moe_file *f, const struct moe_tensor *t, uint64_t from, void *out, size_t bytes);

uint64_t moe_file_header_bytes(const struct moe_file *f); /* bytes read by the open */

/* For a command that writes to path: fails, with a message, if path is a folder, a link, a device or one of f's own
 * files. */
int moe_file_refuse_target(const struct moe_file *f, const char *path);

/* Fingerprint of the weights: a hash of the names, types, sizes and positions of all tensors and of the first 512 bytes
 * of 16 of them.  Metadata is not part of it. */
int moe_file_id(const struct moe_file *f, uint64_t *out);

/* Read a scalar by key.  Return 1: found; 0: absent (out untouched); negative: wrong type or out of range, with a
 * message.  moe_file_int accepts every integer type.  The string points into f's memory. */
int moe_file_int(const struct moe_file *f, const char *key, int64_t least, int64_t most, int64_t *out);
int moe_file_float(const struct moe_file *f, const char *key, double *out);
int moe_file_bool(const struct moe_file *f, const char *key, bool *out);
int moe_file_string(const struct moe_file *f, const char *key, struct moe_string *out);

/* Item i of an array of numbers, or a scalar with i 0, converted.  The caller has checked i and the type. */
int64_t moe_value_int(const struct moe_value *v, size_t i);
double moe_value_float(const struct moe_value *v, size_t i);
bool moe_string_is(struct moe_string s, const char *text);

/* Copies s for a message or a terminal: control characters, backslashes and invalid UTF-8 become \xNN; a longer
 * string is cut and ends in "...".  out is always terminated; bytes > 8. */
void moe_string_show(struct moe_string s, char *out, size_t bytes);

/* Name and block size of a GGUF tensor type.  NULL: unknown type; a tensor of such a type has bytes 0. */
struct moe_tensor_type {
    const char *name;
    int block_values, block_bytes;
};
const struct moe_tensor_type *moe_tensor_type(uint32_t gguf_type);
#define MOE_TENSOR_I64 27 /* GGUF type of a list of token ids */

/* True for a tensor of expert weights: all experts of a layer in one tensor, or one expert's tensor (old files). */
bool moe_tensor_is_expert(const struct moe_tensor *t);

/* Writing a GGUF file: add all values and tensors, then write the header, then the data of each tensor in the order
 * added.  The file gets its name only in moe_writer_finish().  After a failure every later call returns the same
 * error, so a caller may check the last call only. */
struct moe_writer;
int moe_writer_open(struct moe_writer **out, const char *path);
void moe_writer_close(struct moe_writer *w); /* removes an unfinished file; NULL is fine */
int moe_writer_value(struct moe_writer *w, const char *key, enum moe_type type, const void *value);
int moe_writer_string(struct moe_writer *w, const char *key, const char *s, size_t n);
int moe_writer_array(struct moe_writer *w, const char *key, enum moe_type item, const void *data, size_t n);
int moe_writer_copy(struct moe_writer *w, const struct moe_value *v); /* copies key and value unchanged */
int moe_writer_tensor(struct moe_writer *w, const char *name, enum kn_format f, int n_dim, const uint64_t *dim);
int moe_writer_ids(struct moe_writer *w, const char *name, uint64_t n); /* a list of n token ids, I64 */
int moe_writer_header(struct moe_writer *w);
int moe_writer_data(struct moe_writer *w, const void *data, size_t bytes); /* may be called in pieces of any size */
int moe_writer_finish(struct moe_writer *w);

/* ---- synthetic models -------------------------------------------------------------------------- */

struct moe_synth_options {
    const char *shape;            /* a name that moe_synth_shape() returns, as "qwen3-30b-a3b" */
    int n_layer, n_vocab, n_used; /* 0: the shape's number; n_used: experts per token */
    bool ahead;                   /* adds an MTP layer */
    enum kn_format format;        /* of experts and FFN; attention, embedding and output matrix: Q8_0 */
    const enum kn_format *down;   /* of the down matrices of experts in every second layer; NULL: as the others */
    uint64_t seed;
    struct kn_team *team;
    struct off_progress *progress; /* may be NULL */
    const atomic_bool *stop;       /* true cancels and removes the file; may be NULL */
};

/* Writes a GGUF file with the shape opt->shape and random weights.  The same options give the same bytes. */
int moe_synth(const char *path, const struct moe_synth_options *opt);
const char *moe_synth_shape(int i); /* name of shape i; NULL after the last */

/* ---- importance matrices ----------------------------------------------------------------------- */

/* An importance matrix as a file, in either form that llama.cpp writes.  check() returns 1: it has an entry for this
 * tensor; 0: it has none; or a code that has been reported: the entry has another shape.  read() sets the weight of each
 * column for kn_ops.encode(). */
struct moe_importance;
int moe_importance_open(struct moe_importance **out, const char *path);
void moe_importance_close(struct moe_importance *m); /* NULL is fine */
int moe_importance_check(const struct moe_importance *m, const struct moe_tensor *t);
int moe_importance_read(const struct moe_importance *m, const struct moe_tensor *t,
                        float *weight /* [dim[3], dim[2], dim[0]] */);

/* Making one: the inputs of all matrices of a model are summed up while its contexts run on the collector's device.  The
 * order of calls: moe_model_open() with the host as its device, moe_collector_open(), moe_model_load(),
 * moe_context_open() with moe_collector_device(), passes in which all rows want logits, moe_collector_write(); then the
 * closes in reverse order.  One context at a time. */
struct moe_model;
struct moe_collector;
int moe_collector_open(struct moe_collector **out, const struct moe_model *m);
void moe_collector_close(struct moe_collector *c); /* NULL is fine */
const struct kn_device *moe_collector_device(struct moe_collector *c);

/* The text of a collector: its name, and its number of windows. */
struct moe_calibration {
    const char *text;
    int n_chunk, chunk_tokens;
};

struct moe_collected {
    size_t n_matrix;            /* entries written */
    size_t n_expert, n_reached; /* experts, over all layers; those that a row reached */
};
int moe_collector_write(struct moe_collector *c, const char *path, const struct moe_calibration *text,
                        struct moe_collected *out);

/* ---- quantising -------------------------------------------------------------------------------- */

/* Parts of a model that can be given different formats.  A tied embedding, which is also the output matrix, gets the
 * wider of the two formats. */
enum moe_part { MOE_EXPERTS, MOE_FFN, MOE_ATTENTION, MOE_EMBEDDING, MOE_HEAD, MOE_PART_COUNT };

struct moe_quantize_options {
    enum kn_format format[MOE_PART_COUNT];
    const struct moe_importance *importance; /* NULL: all columns count the same */
    bool requantize; /* true: quantised weights are decoded and quantised again; false: they are an error */
    const struct kn_ops *ops;
    struct kn_team *team;
    struct off_progress *progress; /* may be NULL */
    const atomic_bool *stop;       /* true cancels and removes the file; may be NULL */
};

struct moe_quantized { /* result for one tensor */
    enum kn_format from, to;
    uint64_t n_value, bytes; /* weights (0 for a list of token ids); bytes written */
    double square, error;    /* sums of squares: of the values, of their rounding errors */
};

/* Writes f's model to path: all metadata, the matrices of each part in opt->format, vectors, biases and routers in F32,
 * and matrices of no known part in their own format (F32 if GGUF lacks it).  A matrix with rows that are no whole
 * number of blocks gets a fallback format, with a warning.  Lists of token ids are copied.  Fills
 * done[moe_file_tensor_count(f)], in the file's order.  The bytes do not depend on the number of threads.
 * An importance matrix with an entry of another shape, or with no entry for any matrix, is refused; matrices without an
 * entry are named in a warning. */
int moe_quantize(const char *path, const struct moe_file *f, const struct moe_quantize_options *opt,
                 struct moe_quantized *done);

/* ---- models ------------------------------------------------------------------------------------ */

struct moe_model;

struct moe_model_options {
    enum kn_isa isa;                /* upper limit; KN_ISA_COUNT - 1: the best of this CPU */
    const struct moe_model *target; /* of an EAGLE head, loaded before the head and closed after it; else NULL */
    bool ahead;                     /* the expert store includes the MTP layer's experts */
    const struct kn_device *device; /* has the dense weights, runs the passes; NULL: the host; heads: the target's */
};

struct moe_load_options {
    struct kn_team *team; /* interleaves weights; used during the load only */
    size_t expert_bytes;  /* memory of the expert cache: moe_shape.expert_least or more; 0: for all experts */
    size_t later_bytes;   /* capacity that off_store_grow() may add later */
    bool again; /* moe_model_unload() may be called: the lists of tensors and experts are kept for another load */
    enum off_io_kind io;
    const char *heat_path;         /* usage statistics of experts, read at open, written at close; NULL: none */
    const char *pack_path;         /* pack file, read if made from this model; or NULL */
    const char *mirror;            /* folder with a second copy of the files; or NULL */
    struct off_progress *progress; /* of reading the dense weights; may be NULL */
};

struct moe_shape { /* sizes and costs of a model */
    char arch[32];
    int n_layer, d_model, n_head, n_kv, d_head, n_vocab, n_ctx_train;
    int n_ctx_short;    /* LongRoPE: larger contexts rotate by other angles; 0: all rotate alike */
    size_t state_bytes; /* recurrent state of one sequence; 0: no recurrent layers */
    int n_expert, n_used, d_ff, d_expert;
    int n_moe_layer, n_expert_total;   /* layers with experts; experts of all of them together */
    int n_ahead, n_expert_ahead;       /* MTP layers; experts of the first in the store: 0 if opened without `ahead` */
    size_t ahead_bytes;                /* file bytes of MTP layers; 0: the file has none */
    size_t dense_bytes;                /* memory of all weights but experts */
    size_t expert_bytes, expert_least; /* memory for all experts; smallest cache that works */
    size_t device_expert_bytes;        /* memory of a device for all experts; 0: it cannot compute them */
    size_t expert_file_bytes;          /* file bytes of all experts, without MTP layers */
    size_t pass_bytes;                 /* dense weights read by every pass */
    size_t pass_format_bytes[KN_FORMAT_COUNT]; /* their matrices, and those of expert_file_bytes, by format */
    size_t expert_format_bytes[KN_FORMAT_COUNT];
    size_t vector_bytes;  /* part of dense_bytes that the host keeps if a device has the weights */
    size_t widened_bytes; /* part of dense_bytes: weights held as F32 although quantised in the file */
    double row_macs;      /* multiply-adds of one row with logits, without attention */
    double position_macs; /* multiply-adds of a row's attention for each position that it attends to */
};

/* moe_model_open() binds a file to its description.  The file must outlive the model.  The open reads no weights and
 * takes little memory; after it the shape and the size of contexts are known.  moe_model_load() reads the dense weights and
 * opens the expert store.  moe_model_unload() frees both, when no context of the model is open; then it may be loaded again.
 * After a failed load the model can only be unloaded or closed. */
int moe_model_open(struct moe_model **out, const struct moe_file *f, const struct moe_model_options *opt);

/* Opens the first MTP layer of target's file as a draft head.  target must be opened with `ahead`, loaded before the
 * head and closed after it. */
int moe_model_open_ahead(struct moe_model **out, const struct moe_model *target);
int moe_model_load(struct moe_model *m, const struct moe_load_options *opt);
void moe_model_unload(struct moe_model *m); /* loaded with opt->again */
void moe_model_close(struct moe_model *m);  /* NULL is fine */

/* moe_model_pack() writes the experts of a model that is open but not loaded to the pack file `path` (off_pack()).
 * path must not be one of the model's own files. */
struct moe_pack_options {
    struct kn_team *team;
    enum off_io_kind io;
    struct off_progress *progress; /* may be NULL */
    const atomic_bool *stop;       /* true stops; a later call continues; may be NULL */
};
int moe_model_pack(const struct moe_model *m, const char *path, const struct moe_pack_options *opt,
                   struct off_packed *out);
const struct moe_shape *moe_model_shape(const struct moe_model *m);
const struct kn_ops *moe_model_ops(const struct moe_model *m);
struct off_store *moe_model_store(const struct moe_model *m);        /* NULL without experts */
const struct kn_device *moe_model_device(const struct moe_model *m); /* runs its passes */

/* ---- contexts ---------------------------------------------------------------------------------- */

struct moe_context;

/* Features: hidden states that every row of a pass stores at its KV slot, in the KV format, for a draft head to read; but see
 * moe_batch.features_of_wanted.
 * last: the residual stream after the final norm, the output matrix's input.  inner: the residual stream as it enters
 * these layers; n_layer: as it leaves the last one. */
#define MOE_INNER 3
struct moe_features {
    bool last;
    int n_inner, inner[MOE_INNER];
};

struct moe_context_options {
    int max_row;  /* rows of a batch */
    int max_want; /* rows of a batch that want logits */
    int n_slot;   /* KV slots, over all sequences */
    int max_pos;  /* positions are below this */
    enum kn_kv kv;
    int n_state;                      /* recurrent states, one for each sequence; 0: one */
    int n_draft;                      /* draft rows of a batch, at most; ignored without recurrent layers */
    struct moe_features features;     /* stored by each row at its slot */
    int n_recall;                     /* entries of the token-to-experts table; 0: no table */
    const struct moe_context *target; /* of a head: the target's context, opened with the features it reads */
    struct kn_team *team;             /* not owned; one context at a time uses it */
    const struct kn_device *device;   /* runs the passes; NULL: the model's; another must read the model's memory */
    size_t resident_bytes; /* memory of a device of its own for experts that it keeps (residents.c); 0: none */
    int n_host_layer;      /* of so many first layers the device keeps no experts */
    /* Or NULL. Each pass writes the time here when it makes progress: a layer ended, or experts have arrived. Any thread
     * may read it. */
    atomic_uint_fast64_t *advanced_ns;
    int max_path; /* sequences of a batch, at most: each has one table `base`; 0: max_row.  For devices with memory of
                   * their own */
};

/* Slots for experts on a device with memory of its own, in opt->resident_bytes.  A slot is for experts of one size; as far as
 * whole slots allow, those of each size have the same share. */
struct moe_device_slots {
    int n_expert;        /* experts that the device may keep */
    size_t expert_bytes; /* memory for all of them, and for copies of others */
    size_t least;        /* a slot of each size: with less there are none */
    int n_slot;          /* slots, also those for experts that are copied for one layer */
    int n_stay;          /* slots of experts that stay, while few are copied for one layer */
    size_t bytes;        /* their memory: with so much for resident_bytes they are the same */
};
void moe_device_slots(const struct moe_model *m, const struct moe_context_options *opt, struct moe_device_slots *out);

/* The features that a draft head reads: its target's context must be opened with them. */
struct moe_features moe_model_reads(const struct moe_model *head);
/* Whether some of m's features are of the last layer's output. */
bool moe_features_of_end(const struct moe_features *f, const struct moe_model *m);

struct kn_bytes moe_context_bytes(const struct moe_model *m, const struct moe_context_options *opt);
size_t moe_kv_slot_bytes(const struct moe_model *m, enum kn_kv kv);
size_t moe_feature_bytes(const struct moe_model *m, enum kn_kv kv, const struct moe_features *f); /* per KV slot */
int moe_context_open(struct moe_context **out, const struct moe_model *m, const struct moe_context_options *opt);
void moe_context_close(struct moe_context *c); /* NULL is fine */

/* Later passes use this team.  It must not have more threads or nodes than the team of the open. */
void moe_context_set_team(struct moe_context *c, struct kn_team *team);

/* Copies keys, values and features of slots from .. from + n - 1 to slots to .. to + n - 1; the ranges may overlap. */
void moe_context_copy_slots(struct moe_context *c, int32_t from, int32_t to, int n);

/* Converts the `last` features stored at these slots to float32, and may use the context's queue: a device with memory of
 * its own copies several in one go.  A feature is valid as long as the slot's key and value. */
void moe_context_features(struct moe_context *c, const int32_t *slot, int n, float *out /* [n][d_model] */);
void moe_context_feature(struct moe_context *c, int32_t slot, float *out /* [d_model] */);

/* The feature of wanted row i of the last result: its hidden state after the final norm; of most EAGLE-3 heads before it. */
void moe_context_last_feature(struct moe_context *c, int i, float *out /* [d_model] */);

/* States.  A context of a model with recurrent layers (moe_shape.state_bytes over 0) has one state for each sequence:
 * the result of all the sequence's tokens up to one position.  Rows of a batch that are no drafts extend the state, in
 * order; a row at position 0 resets it first.  Draft rows leave it unchanged.  The caller assigns the state numbers. */

/* Extends the state by n accepted draft rows.  row: their numbers in the last batch, at ascending positions, the first
 * directly behind the state's last token.  They are computed before the state is next read. */
void moe_context_keep(struct moe_context *c, int state, const int32_t *row, int n);

void moe_context_copy_state(struct moe_context *c, int from, int to);

/* Number of tokens in the state; -1: a row failed, and the state is invalid until a row at position 0 resets it. */
int moe_context_state(const struct moe_context *c, int state);

/* Passes the known or drafted tokens of the next pass.  Of the experts that these tokens last used, the likely ones
 * (prefetch_token.c) are prefetched while the disk is idle, until the pass itself requests experts of their layer.
 * Each call replaces the previous list: reads for the previous list that have not begun are cancelled, unless the new
 * list needs them too.  Without a table it does nothing. */
void moe_context_expect(struct moe_context *c, const int32_t *token, int n);

/* Lists the experts, by store number, that the token last used and that are neither in memory of the host or the device
 * nor being read; a queued read does not count.  Returns their number; -1: the token is not in the table. */
int moe_context_missing(struct moe_context *c, int32_t token, int32_t *expert /* [n_layer * n_used] */);

/* Accuracy of expert prediction, for one layer and one predictor, summed over passes: experts predicted, experts used,
 * and experts both predicted and used.  The predictors: FARn, the layer's router, run on the residual stream n layers
 * earlier; TOKEN, the experts that the rows' tokens last used. */
#define MOE_FAR 3
enum moe_sight_of { MOE_SIGHT_FAR1, MOE_SIGHT_FAR2, MOE_SIGHT_FAR3, MOE_SIGHT_TOKEN, MOE_SIGHTS };
struct moe_sight {
    uint64_t guessed, used, right;
};

/* From the next pass on, adds the accuracy of each pass to the caller's counters; NULL ends the counting.  Counting
 * runs MOE_FAR more routers in each layer, and causes no reads. */
void moe_context_watch(struct moe_context *c, struct moe_sight *sight /* [n_layer][MOE_SIGHTS] */);

struct moe_row {
    int32_t token, position;
    bool want_logits;
    /* The row's path: the KV slot of position p is base[p] if p < n_base, else tail[p - n_base], for positions 0 to the
     * row's own.  base is the sequence's slot table; tail has the slots of the row's branch of a draft tree. */
    const int32_t *base, *tail;
    int n_base;
    int first; /* attention reads positions from it on */
    /* Of a model with recurrent layers: */
    int32_t state; /* the sequence's state */
    bool draft;
    int32_t after;   /* of a draft: number in the batch of its parent, the sequence's last row or an earlier draft */
    int32_t copy_to; /* state that becomes a copy of this state after this row; 0: none; 0 for drafts */
    /* Of a draft head: the feature that the row starts from: the target's of slot feature_at, or if from_result that of
     * the head's last result, of wanted row feature_at. */
    bool from_result;
    int32_t feature_at;
};

struct moe_batch {
    const struct moe_row *row;
    int n_row;
    /* Features of the last layer's output are needed of rows with logits alone: it may then compute no more than key and value
     * of the others (moe_result.may_end_early). */
    bool features_of_wanted;
};

struct moe_result {      /* arrays are valid until the next call */
    const float *logits; /* [n_want][n_vocab], of rows with want_logits, in row order */
    const int *status;   /* [n_row] 0, or the row's error: its results are invalid */
    int n_want;
    double experts_per_layer; /* distinct experts used, mean over the layers with experts */
    bool may_end_early;       /* the last layer's output of rows without logits is needed for their features alone */
};

/* The first error among rows first .. first + n - 1, or 0. */
static inline int moe_rows_status(const struct moe_result *r, int first, int n)
{
    for (int i = first; i < first + n; i++)
        if (r->status[i])
            return r->status[i];
    return 0;
}

/* Experts on a device with memory of its own.  Over all passes, for each layer and expert that its rows chose: where it was
 * computed. */
struct moe_device_stats {
    int n_slot, n_kept;              /* slots of experts that the device keeps; those in use */
    size_t slot_bytes, kept_bytes;   /* their memory */
    uint64_t n_used;                 /* on the device, which had it */
    uint64_t n_passed;               /* on the device, after a copy */
    uint64_t n_host;                 /* on the host */
    uint64_t n_copied, copied_bytes; /* copies of experts to the device */
    uint64_t n_back;                 /* copies back, of experts that the host no longer had */
    uint64_t n_layer;                /* layers with experts, over all passes, */
    uint64_t n_alone;                /* and those that the device went through without the host */
};
struct moe_device_stats moe_context_device_stats(const struct moe_context *c);

/* The error of the device that runs the passes, or 0: with one, all rows of this pass and of later ones fail. */
int moe_context_error(const struct moe_context *c);

/* Computes a batch and returns 0.  Failed reads are reported per row in out->status; an invalid batch fails an
 * assertion.  Allocates no memory. */
int moe_forward(struct moe_context *c, const struct moe_batch *batch, struct moe_result *out);

/* The same, but each row chooses among the experts that are on the device or in memory when the pass begins; those that a
 * layer lacks to n_used, or that have left memory meanwhile, add nothing.  No expert is read or copied, and none changes its place.
 * The logits are a guess.  Keys, values and features of the rows are no better, so their slots must be computed again, by
 * moe_forward(), before another row reads them.  Not for recurrent layers, nor draft heads. */
int moe_forward_present(struct moe_context *c, const struct moe_batch *batch, struct moe_result *out);

/* Whether all experts are on the device or in memory: moe_forward_present() would take as long as moe_forward(). */
bool moe_context_is_whole(struct moe_context *c);

#endif
