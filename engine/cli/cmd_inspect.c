/* engine/cli/cmd_inspect.c - `spillway inspect MODEL`: prints a summary of a model file without loading it.
 *
 * In: the header of a GGUF file of any architecture, or a folder of a supported family, shown as the GGUF file
 * it would be converted to.  Out: a summary as lines, or with --json as one object with the same content, which also
 * says whether the model runs here (inspect_use.c); with --verbose also every metadata value (of arrays the first few
 * items) and every tensor (with --json also its file, offset and bytes).  Values that the file does not have are left
 * out.
 *
 * The same functions print both forms: struct eng_sheet says which, and each put_ function prints a line or a JSON
 * member. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/inspect_use.h"

#define SHOWN_ITEMS 8  /* items printed of an array */
#define COLUMN      15 /* column where values begin; WIDE_COLUMN in the lists of --verbose */
#define WIDE_COLUMN 50
#define N_TYPE      512 /* tensor types below this number are counted apart, all others together */

/* ---- facts ----------------------------------------------------------------------------------- */

/* Reads the integer of the metadata key ARCH.KEY; if the file has one for each layer, the largest.  false: none. */
static bool arch_int(const struct moe_file *f, struct moe_string arch, const char *key, uint64_t *out)
{
    char full[160];
    snprintf(full, sizeof full, "%.*s.%s", (int)(arch.n < 64 ? arch.n : 64), arch.data, key);
    const struct moe_value *v = moe_file_find(f, full);
    if (!v || !v->n || v->item == MOE_STRING || v->item == MOE_F32 || v->item == MOE_F64)
        return false;
    int64_t most = 0;
    for (size_t i = 0; i < v->n; i++)
        most = moe_value_int(v, i) > most ? moe_value_int(v, i) : most;
    *out = (uint64_t)most;
    return true;
}

static void put_arch_int(struct eng_sheet *s, const struct moe_file *f, struct moe_string arch, const char *key,
                         const char *name, const char *label)
{
    uint64_t x;
    if (arch_int(f, arch, key, &x))
        eng_sheet_count(s, name, label, x);
}

static void put_text(struct eng_sheet *s, const struct moe_file *f, const char *key, const char *name,
                     const char *label)
{
    const struct moe_value *v = moe_file_find(f, key);
    if (v && v->type == MOE_STRING)
        eng_sheet_string(s, name, label, *(const struct moe_string *)v->data);
}

static const char *type_name(uint32_t gguf_type, char *room, size_t bytes)
{
    const struct moe_tensor_type *type = moe_tensor_type(gguf_type);
    if (type)
        return type->name;
    snprintf(room, bytes, "type %u", gguf_type);
    return room;
}

static uint64_t n_weight(const struct moe_tensor *t) { return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]; }

/* ---- the sheet ------------------------------------------------------------------------------- */

static void put_sizes(struct eng_sheet *s, const struct moe_file *f)
{
    uint64_t expert_bytes = 0, dense_bytes = 0, weights = 0;
    for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
        const struct moe_tensor *t = moe_file_tensor(f, i);
        *(moe_tensor_is_expert(t) ? &expert_bytes : &dense_bytes) += t->bytes;
        weights += n_weight(t);
    }
    eng_sheet_count(s, "n_split", "splits", (uint64_t)moe_file_files(f)->n_file);
    eng_sheet_count(s, "n_tensor", "tensors", moe_file_tensor_count(f));
    eng_sheet_count(s, "n_weight", "weights", weights);
    eng_sheet_bytes(s, "bytes", "size", expert_bytes + dense_bytes);
    if (expert_bytes)
        eng_sheet_bytes(s, "expert_bytes", "  experts", expert_bytes);
    eng_sheet_bytes(s, "dense_bytes", "  dense", dense_bytes);
}

static void put_shape(struct eng_sheet *s, const struct moe_file *f)
{
    static const struct {
        const char *key, *name, *label;
    } fact[] = {
        { "context_length", "n_ctx", "context" },
        { "block_count", "n_layer", "layers" },
        { "embedding_length", "d_model", "width" },
        { "attention.head_count", "n_head", "heads" },
        { "attention.head_count_kv", "n_kv", "kv heads" },
        { "attention.key_length", "d_head", "head width" },
        { "attention.q_lora_rank", "d_query_latent", "query latent" },
        { "attention.kv_lora_rank", "d_latent", "kv latent" },
        { "feed_forward_length", "d_ff", "ffn width" },
        { "expert_count", "n_expert", "experts" },
        { "expert_used_count", "n_used", "  used" },
        { "expert_feed_forward_length", "d_expert", "  width" },
        { "expert_shared_count", "n_shared", "  shared" },
        { "full_attention_interval", "attention_interval", "attn interval" },
        { "ssm.group_count", "n_key_head", "  key heads" },
        { "ssm.time_step_rank", "n_value_head", "  value heads" },
        { "ssm.state_size", "d_state", "  head width" },
    };
    const struct moe_value *v = moe_file_find(f, "general.architecture");
    if (!v || v->type != MOE_STRING)
        return;
    struct moe_string arch = *(const struct moe_string *)v->data;
    for (size_t i = 0; i < sizeof fact / sizeof *fact; i++)
        put_arch_int(s, f, arch, fact[i].key, fact[i].name, fact[i].label);

    const struct moe_value *tokens = moe_file_find(f, "tokenizer.ggml.tokens");
    if (tokens && tokens->type == MOE_ARRAY)
        eng_sheet_count(s, "n_vocab", "vocabulary", tokens->n);
    else
        put_arch_int(s, f, arch, "vocab_size", "n_vocab", "vocabulary");
}

/* Prints the number of multi-token prediction (MTP) layers, and the bytes of their tensors: converters often keep the
 * number but not the tensors. */
static void put_ahead(struct eng_sheet *s, const struct moe_file *f)
{
    const struct moe_value *v = moe_file_find(f, "general.architecture");
    uint64_t n_layer, n_ahead, bytes = 0;
    if (!v || v->type != MOE_STRING || !arch_int(f, *(const struct moe_string *)v->data, "block_count", &n_layer) ||
        !arch_int(f, *(const struct moe_string *)v->data, "nextn_predict_layers", &n_ahead) || !n_ahead ||
        n_ahead > n_layer)
        return;
    for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
        const struct moe_tensor *t = moe_file_tensor(f, i);
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(t->name.n < 32 ? t->name.n : 32), t->name.data);
        bytes += !strncmp(name, "blk.", 4) && strtoull(name + 4, NULL, 10) >= n_layer - n_ahead ? t->bytes : 0;
    }
    eng_sheet_count(s, "n_ahead", "MTP layers", n_ahead);
    eng_sheet_bytes(s, "ahead_bytes", bytes ? "  --draft mtp" : "  left out", bytes);
}

/* For latent attention with K and V in one matrix, if it is quantised: prints that its K part will be held as F32.
 * K is used transposed, and quantised blocks cannot be transposed.  The V part keeps its format. */
static void put_widened(struct eng_sheet *s, const struct moe_file *f)
{
    const struct moe_tensor *t = moe_file_find_tensor(f, "blk.0.attn_kv_b.weight");
    const struct moe_tensor_type *type = t ? moe_tensor_type(t->gguf_type) : NULL;
    if (type && type->block_values > 1 && !moe_file_find_tensor(f, "blk.0.attn_k_b.weight"))
        eng_sheet_string(s, "attn_kv_b", "attn_kv_b",
                         eng_sheet_text("quantised along rows: the key part is held as F32"));
}

/* Prints the number of tensors and bytes of each tensor type, by type number. */
static void put_formats(struct eng_sheet *s, const struct moe_file *f)
{
    struct {
        uint64_t count, bytes;
    } tally[N_TYPE + 1] = { 0 };
    for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
        const struct moe_tensor *t = moe_file_tensor(f, i);
        uint32_t type = t->gguf_type < N_TYPE ? t->gguf_type : N_TYPE;
        tally[type].count++;
        tally[type].bytes += t->bytes;
    }
    eng_sheet_open(s, "formats", '[', "formats");
    for (uint32_t type = 0; type <= N_TYPE; type++) {
        char room[24];
        const char *name = type < N_TYPE ? type_name(type, room, sizeof room) : "other";
        if (!tally[type].count)
            continue;
        eng_sheet_begin(s, NULL, name);
        if (s->json)
            fprintf(s->out, "{\"type\":\"%s\",\"n_tensor\":%" PRIu64 ",\"bytes\":%" PRIu64 "}", name, tally[type].count,
                    tally[type].bytes);
        else {
            fprintf(s->out, "%6" PRIu64 " tensors  ", tally[type].count);
            eng_print_bytes(s->out, tally[type].bytes);
        }
        eng_sheet_end(s);
    }
    eng_sheet_close(s, ']');
}

/* ---- all values and tensors ------------------------------------------------------------------ */

static void put_item(struct eng_sheet *s, const struct moe_value *v, size_t i)
{
    char shown[1024];
    size_t room = v->type == MOE_ARRAY ? 80 : sizeof shown;
    double x;
    switch (v->item) {
    case MOE_STRING:
        if (s->json) {
            eng_json_string(s->out, ((const struct moe_string *)v->data)[i]);
            break;
        }
        moe_string_show(((const struct moe_string *)v->data)[i], shown, room);
        fprintf(s->out, "\"%s\"", shown);
        break;
    case MOE_BOOL:
        fputs(moe_value_int(v, i) ? "true" : "false", s->out);
        break;
    case MOE_F32:
    case MOE_F64:
        x = moe_value_float(v, i);
        if (isfinite(x))
            fprintf(s->out, "%.9g", x);
        else
            fputs(s->json ? "null" : "not finite", s->out);
        break;
    case MOE_U64:
        fprintf(s->out, "%" PRIu64, ((const uint64_t *)v->data)[i]);
        break;
    default:
        fprintf(s->out, "%" PRId64, moe_value_int(v, i));
    }
}

static void put_values(struct eng_sheet *s, const struct moe_file *f)
{
    eng_sheet_open(s, "metadata", s->json ? '{' : '[', "metadata");
    for (size_t i = 0; i < moe_file_value_count(f); i++) {
        const struct moe_value *v = moe_file_value(f, i);
        char key[256];
        moe_string_show(v->key, key, sizeof key);
        eng_sheet_begin(s, key, key);
        if (v->type == MOE_ARRAY) {
            fprintf(s->out, s->json ? "{\"n\":%zu,\"first\":[" : "%zu: ", v->n);
            for (size_t k = 0; k < v->n && k < SHOWN_ITEMS; k++) {
                fputs(k ? s->json ? "," : ", " : "", s->out);
                put_item(s, v, k);
            }
            fputs(s->json ? "]}" : v->n > SHOWN_ITEMS ? ", ..." : "", s->out);
        } else
            put_item(s, v, 0);
        eng_sheet_end(s);
    }
    eng_sheet_close(s, s->json ? '}' : ']');
}

static void put_tensors(struct eng_sheet *s, const struct moe_file *f)
{
    eng_sheet_open(s, "tensors", '[', "tensors");
    for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
        const struct moe_tensor *t = moe_file_tensor(f, i);
        char name[256], room[24];
        const char *type = type_name(t->gguf_type, room, sizeof room);
        moe_string_show(t->name, name, sizeof name);
        eng_sheet_begin(s, NULL, name);
        if (s->json) {
            fputs("{\"name\":", s->out);
            eng_json_string(s->out, t->name);
            fprintf(s->out, ",\"type\":\"%s\",\"file\":%d,\"offset\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"dim\":[", type,
                    t->file, t->offset, t->bytes);
        } else
            fprintf(s->out, "%-8s ", type);
        for (int k = 0; k < t->n_dim; k++)
            fprintf(s->out, "%s%" PRIu64, !k ? "" : s->json ? "," : " x ", t->dim[k]);
        fputs(s->json ? "]}" : "", s->out);
        eng_sheet_end(s);
    }
    eng_sheet_close(s, ']');
}

static void put_file(struct eng_sheet *s, const struct eng_config *config, const struct moe_file *f)
{
    put_text(s, f, "general.architecture", "arch", "architecture");
    put_text(s, f, "general.name", "name", "name");
    put_sizes(s, f);
    put_shape(s, f);
    put_text(s, f, "tokenizer.ggml.model", "tokenizer", "tokenizer");
    put_text(s, f, "tokenizer.ggml.pre", "pre_tokenizer", "  pre type");
    put_ahead(s, f);
    put_widened(s, f);
    put_formats(s, f);
    eng_inspect_use(s, config, f);
    if (config->verbose) {
        s->column = WIDE_COLUMN;
        put_values(s, f);
        put_tensors(s, f);
    }
}

int eng_cmd_inspect(const struct eng_config *config)
{
    struct moe_file *f = NULL;
    char why[1024];
    int error = eng_inspect_open(&f, config, why, sizeof why);
    if (error && error != KN_EUNSUPPORTED)
        return 2;
    struct eng_sheet s = { .out = stdout, .json = config->json, .column = COLUMN };
    if (s.json)
        fputc('{', s.out);
    eng_sheet_string(&s, "file", "file", eng_sheet_text(config->model));
    if (f)
        put_file(&s, config, f);
    else
        eng_inspect_refused(&s, why);
    fputs(s.json ? "}\n" : "", s.out);
    moe_file_close(f);
    return fflush(stdout) || ferror(stdout) ? 1 : 0;
}
