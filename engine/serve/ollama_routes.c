/* engine/serve/ollama_routes.c - the questions of Ollama's clients before they chat: its version, the models, and the
 * abilities of a model.  The server has one model, which is always loaded. */
#include <math.h>
#include <string.h>

#include "engine/api/fields.h"
#include "engine/serve/internal.h"

/* These routes speak the API of this version of Ollama; editors refuse a server with a lower version. */
#define OLLAMA_VERSION "0.13.0"

/* ---- the model ------------------------------------------------------------------------------- */

struct facts {
    uint64_t n_weight, bytes;
    const char *type; /* the tensor type of the most bytes */
};

static struct facts find_facts(const struct moe_file *f)
{
    enum { N_TYPE = 64 };
    uint64_t of_type[N_TYPE] = { 0 }, most = 0;
    struct facts facts = { .type = "unknown" };
    for (size_t i = 0; i < moe_file_tensor_count(f); i++) {
        const struct moe_tensor *t = moe_file_tensor(f, i);
        facts.n_weight += t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
        facts.bytes += t->bytes;
        if (t->gguf_type < N_TYPE)
            of_type[t->gguf_type] += t->bytes;
    }
    for (uint32_t i = 0; i < N_TYPE; i++)
        if (of_type[i] > most && moe_tensor_type(i)) {
            most = of_type[i];
            facts.type = moe_tensor_type(i)->name;
        }
    return facts;
}

static void write_size(struct eng_bytes *out, uint64_t n)
{
    double x = (double)n;
    if (x < 1e9)
        eng_bytes_format(out, "%.2fM", x * 1e-6);
    else
        eng_bytes_format(out, "%.1fB", x * 1e-9);
}

/* Writes the member "details". */
static void write_details(struct eng_server *s, const struct facts *facts, struct eng_bytes *out)
{
    const char *arch = moe_model_shape(eng_model(eng_thread_engine(s->thread)))->arch;
    eng_bytes_text(out, "\"details\":{\"parent_model\":\"\",\"format\":\"gguf\",\"family\":");
    eng_bytes_quote(out, arch, strlen(arch));
    eng_bytes_text(out, ",\"families\":[");
    eng_bytes_quote(out, arch, strlen(arch));
    eng_bytes_text(out, "],\"parameter_size\":\"");
    write_size(out, facts->n_weight);
    eng_bytes_text(out, "\",\"quantization_level\":");
    eng_bytes_quote(out, facts->type, strlen(facts->type));
    eng_bytes_text(out, "}");
}

/* Writes 64 hexadecimal digits that change with the model: Ollama's clients compare them, and show the first twelve. */
static void write_digest(struct eng_server *s, struct eng_bytes *out)
{
    const char *print = s->setup.fingerprint ? s->setup.fingerprint : s->alias[0];
    uint64_t h = eng_hash(0, print, strlen(print));
    eng_bytes_text(out, "\"digest\":\"");
    for (uint64_t i = 0; i < 4; i++)
        eng_bytes_format(out, "%016llx", (unsigned long long)kn_mix(h + i));
    eng_bytes_text(out, "\"");
}

/* Writes {"models": [..]}, an object for each name.  runs: with the members of /api/ps. */
static void write_models(struct eng_server *s, bool runs, struct eng_bytes *out)
{
    const struct facts facts = find_facts(eng_file(eng_thread_engine(s->thread)));
    eng_bytes_text(out, "{\"models\":[");
    for (int i = 0; i < s->setup.n_model; i++) {
        eng_bytes_text(out, i ? ",{\"name\":" : "{\"name\":");
        eng_bytes_quote(out, s->alias[i], strlen(s->alias[i]));
        eng_bytes_text(out, ",\"model\":");
        eng_bytes_quote(out, s->alias[i], strlen(s->alias[i]));
        eng_bytes_format(out, ",\"size\":%llu,", (unsigned long long)facts.bytes);
        write_digest(s, out);
        eng_bytes_text(out, ",");
        write_details(s, &facts, out);
        if (runs)
            eng_bytes_format(out, ",\"size_vram\":0,\"context_length\":%d,\"expires_at\":\"9999-12-31T23:59:59Z\"}",
                             s->setup.n_ctx);
        else {
            eng_bytes_text(out, ",\"modified_at\":");
            eng_bytes_date(out, s->started_s);
            eng_bytes_text(out, "}");
        }
    }
    eng_bytes_text(out, "]}");
}

static void answer_models(struct eng_server *s, struct eng_exchange *x, bool runs)
{
    struct eng_bytes out = { 0 };
    if (!srv_has_model(s, x, ENG_API_OLLAMA_CHAT))
        return;
    write_models(s, runs, &out);
    srv_answer_json(s, x, &out);
}

void srv_ollama_tags(struct eng_server *s, struct eng_exchange *x) { answer_models(s, x, false); }
void srv_ollama_ps(struct eng_server *s, struct eng_exchange *x) { answer_models(s, x, true); }

void srv_ollama_version(struct eng_server *s, struct eng_exchange *x)
{
    static const char text[] = "{\"version\":\"" OLLAMA_VERSION "\"}";
    srv_answer_plain(s, x, 200, "application/json", text, sizeof text - 1);
}

/* ---- /api/show ------------------------------------------------------------------------------- */

static void write_text(const struct moe_file *f, const char *key, struct eng_bytes *out)
{
    struct moe_string text = { 0 };
    moe_file_string(f, key, &text);
    eng_bytes_quote(out, text.data, text.n);
}

static void write_value(const struct moe_value *v, struct eng_bytes *out)
{
    const struct moe_string *text = v->data;
    if (v->type == MOE_ARRAY)
        eng_bytes_text(out, "null"); /* as Ollama, which writes arrays only if asked to be verbose */
    else if (v->type == MOE_STRING)
        eng_bytes_quote(out, text->data, text->n);
    else if (v->type == MOE_BOOL)
        eng_bytes_text(out, moe_value_int(v, 0) ? "true" : "false");
    else if (v->type == MOE_F32 || v->type == MOE_F64)
        eng_bytes_format(out, "%.9g", isfinite(moe_value_float(v, 0)) ? moe_value_float(v, 0) : 0);
    else
        eng_bytes_int(out, moe_value_int(v, 0));
}

static void write_info(const struct moe_file *f, const struct facts *facts, struct eng_bytes *out)
{
    eng_bytes_format(out, "\"model_info\":{\"general.parameter_count\":%llu", (unsigned long long)facts->n_weight);
    for (size_t i = 0; i < moe_file_value_count(f); i++) {
        const struct moe_value *v = moe_file_value(f, i);
        if (moe_string_is(v->key, "general.parameter_count") || moe_string_is(v->key, "tokenizer.chat_template"))
            continue;
        eng_bytes_text(out, ",");
        eng_bytes_quote(out, v->key.data, v->key.n);
        eng_bytes_text(out, ":");
        write_value(v, out);
    }
    eng_bytes_text(out, "}");
}

static void write_show(struct eng_server *s, struct eng_bytes *out)
{
    const struct moe_file *f = eng_file(eng_thread_engine(s->thread));
    const struct facts facts = find_facts(f);
    struct moe_string template = s->setup.chat ? eng_chat_text(s->setup.chat) : (struct moe_string){ 0 };
    eng_bytes_text(out, "{\"license\":");
    write_text(f, "general.license", out);
    eng_bytes_text(out, ",\"modelfile\":\"\",\"parameters\":\"\",\"template\":");
    eng_bytes_quote(out, template.data, template.n);
    eng_bytes_text(out, ",");
    write_details(s, &facts, out);
    eng_bytes_text(out, ",");
    write_info(f, &facts, out);
    eng_bytes_format(out, ",\"capabilities\":[\"completion\"%s%s],\"modified_at\":",
                     s->setup.chat && s->setup.gr_tokens ? ",\"tools\"" : "",
                     s->setup.tool_format && s->setup.tool_format->thinks ? ",\"thinking\"" : "");
    eng_bytes_date(out, s->started_s);
    eng_bytes_text(out, "}");
}

void srv_work_ollama_show(struct srv_call *c)
{
    struct eng_server *s = c->server;
    json_t *root = srv_body_object(c);
    struct eng_fields f = { .object = root, .why = &c->why };
    if (!root)
        return;
    json_t *name = eng_field_string(&f, "model");
    const char *model = json_string_value(name ? name : eng_field_string(&f, "name")); /* `name`: the older member */
    bool known = s->setup.any_model || eng_api_model_find(&s->setup, model, true) != NULL;
    if (!model && !eng_refused(&c->why))
        eng_field_refuse(&f, "model", "is missing");
    else if (!known && !eng_refused(&c->why))
        eng_refuse(&c->why, 404, NULL, "model", "model '%.200s' not found; this server has '%.200s'", model,
                   s->alias[0]);
    c->refused = eng_refused(&c->why);
    if (!c->refused)
        write_show(s, &c->text);
    json_decref(root);
}
