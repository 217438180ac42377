/* engine/serve/tokenize_routes.c - text to tokens and back, and a conversation to its prompt text.
 *
 * These routes are for clients that count tokens and for debugging of prompts.  They accept the member names of vLLM
 * and of llama-server.  /detokenize answers with the text under both names. */
#include <string.h>

#include "kernels/json.h"
#include "engine/api/fields.h"
#include "engine/serve/internal.h"

#define MAX_TOKENS 10000000

static void no_memory(struct srv_call *c)
{
    eng_refuse(&c->why, 503, NULL, NULL, "no memory for this request now");
    c->refused = true;
}

json_t *srv_body_object(struct srv_call *c)
{
    json_error_t e;
    json_t *root = NULL;
    if (eng_api_request_depth(c->body, c->n_body) > ENG_API_MAX_DEPTH)
        eng_refuse(&c->why, 400, NULL, NULL, "the body's JSON is nested deeper than %d levels", ENG_API_MAX_DEPTH);
    else if (!(root = kn_json_load(c->body, c->n_body, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e)) &&
             kn_json_lacks_memory(&e))
        no_memory(c);
    else if (!root)
        eng_refuse(&c->why, 400, NULL, NULL, "the body is not JSON: line %d, column %d: %s", e.line, e.column, e.text);
    else if (!json_is_object(root))
        eng_refuse(&c->why, 400, NULL, NULL, "the body must be an object, {...}");
    c->refused = eng_refused(&c->why);
    if (c->refused) {
        json_decref(root);
        root = NULL;
    }
    return root;
}

static void write_piece(struct eng_bytes *out, const struct eng_vocab *v, int32_t id)
{
    struct moe_string t = eng_vocab_text(v, id);
    eng_bytes_quote(out, t.data, t.n);
}

/* Whether an answer with n bytes so far is too long; refuses it then, before it takes more memory. */
static bool is_too_long(struct srv_call *c, size_t n)
{
    if (n <= c->server->limits.answer)
        return false;
    eng_refuse(&c->why, 400, NULL, NULL, "the answer is longer than %zu bytes: send a shorter text in one request",
               c->server->limits.answer);
    c->refused = true;
    return true;
}

struct wanted {
    bool special, pieces, strings;
};

static void write_tokens(struct srv_call *c, const struct eng_ids *ids, struct wanted want)
{
    const struct eng_api_setup *setup = &c->server->setup;
    eng_bytes_format(&c->text, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":[", ids->n, setup->n_ctx);
    for (size_t i = 0; i < ids->n && !is_too_long(c, c->text.n); i++) {
        eng_bytes_format(&c->text, want.pieces ? "%s{\"id\":%d,\"piece\":" : "%s%d", i ? "," : "", ids->id[i]);
        if (want.pieces) {
            write_piece(&c->text, setup->vocab, ids->id[i]);
            eng_bytes_text(&c->text, "}");
        }
    }
    eng_bytes_text(&c->text, "],\"token_strs\":");
    for (size_t i = 0; i < ids->n && want.strings && !is_too_long(c, c->text.n); i++) {
        eng_bytes_text(&c->text, i ? "," : "[");
        write_piece(&c->text, setup->vocab, ids->id[i]);
    }
    eng_bytes_text(&c->text, want.strings && ids->n ? "]}" : want.strings ? "[]}" : "null}");
}

static void tokenize_messages(struct srv_call *c)
{
    struct eng_arrival arrival = {
        .id = c->names.id, .created_s = c->created_s, .count = true, .checkpoint = &c->checkpoint
    };
    if (eng_api_request_parse(&c->ask, ENG_API_CHAT, c->body, c->n_body, &c->server->setup, &arrival, &c->why))
        c->refused = true;
    else
        write_tokens(c, &c->ask->prompt[0], (struct wanted){ 0 });
}

static void tokenize_text(struct srv_call *c, const json_t *text, unsigned flags, struct wanted want)
{
    struct eng_ids ids = { .checkpoint = &c->checkpoint };
    int error = eng_tokenize(c->server->setup.vocab, json_string_value(text), json_string_length(text), flags, &ids);
    if (error == KN_ENOMEM) {
        no_memory(c);
    } else if (error) {
        eng_refuse(&c->why, 400, NULL, "prompt", "the text cannot be tokenized with the model's vocabulary");
        c->refused = true;
    } else {
        write_tokens(c, &ids, want);
    }
    eng_ids_free(&ids);
}

void srv_work_tokenize(struct srv_call *c)
{
    json_t *root = srv_body_object(c);
    struct eng_fields f = { .object = root, .why = &c->why };
    struct wanted want = { .special = true };
    bool parse = true;
    if (!root)
        return;
    json_t *text = eng_field_string(&f, "prompt");
    if (!text && (text = eng_field_string(&f, "content")))
        want.special = false; /* llama-server's default for "content": no BOS */
    eng_field_bool(&f, "add_special_tokens", &want.special);
    eng_field_bool(&f, "add_special", &want.special);
    eng_field_bool(&f, "parse_special", &parse);
    eng_field_bool(&f, "with_pieces", &want.pieces);
    eng_field_bool(&f, "return_token_strs", &want.strings);
    bool messages = !text && eng_field(&f, "messages");
    if (!text && !messages && !eng_refused(&c->why))
        eng_field_refuse(&f, "prompt", "is missing: send a text as 'prompt' or 'content', or 'messages'");
    c->refused = eng_refused(&c->why);
    unsigned flags = (want.special ? ENG_TEXT_ADD_BOS : 0) | (parse ? ENG_TEXT_PARSE_SPECIAL : 0);
    if (!c->refused && messages)
        tokenize_messages(c);
    else if (!c->refused)
        tokenize_text(c, text, flags, want);
    json_decref(root);
}

static void decode(struct srv_call *c, const json_t *tokens, char *piece)
{
    struct eng_bytes text = { 0 };
    struct eng_decoder d;
    const struct eng_vocab *v = c->server->setup.vocab;
    size_t i;
    json_t *item;
    eng_decoder_init(&d, v, 0);
    json_array_foreach(tokens, i, item)
    {
        json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id >= eng_vocab_size(v)) {
            eng_refuse(&c->why, 400, NULL, "tokens", "tokens[%zu] must be an integer from 0 to %d", i,
                       eng_vocab_size(v) - 1);
            c->refused = true;
            break;
        }
        if (is_too_long(c, 2 * text.n)) /* the answer has the text twice */
            break;
        eng_bytes_add(&text, piece, eng_decoder_feed(&d, (int32_t)id, piece));
    }
    eng_bytes_add(&text, piece, eng_decoder_finish(&d, piece));
    if (c->refused)
        text.n = 0;
    eng_bytes_text(&c->text, "{\"prompt\":");
    eng_bytes_quote(&c->text, text.data, text.n);
    eng_bytes_text(&c->text, ",\"content\":");
    eng_bytes_quote(&c->text, text.data, text.n);
    eng_bytes_text(&c->text, "}");
    if (text.failed && !c->refused)
        no_memory(c);
    eng_bytes_free(&text);
}

void srv_work_detokenize(struct srv_call *c)
{
    json_t *root = srv_body_object(c);
    struct eng_fields f = { .object = root, .why = &c->why };
    if (!root)
        return;
    json_t *tokens = eng_field_array(&f, "tokens", MAX_TOKENS);
    if (!tokens && !eng_refused(&c->why))
        eng_field_refuse(&f, "tokens", "must be a list of token ids");
    c->refused = eng_refused(&c->why);
    char *piece = c->refused ? NULL : kn_alloc(eng_decoder_room(c->server->setup.vocab));
    if (piece)
        decode(c, tokens, piece);
    else if (!c->refused)
        no_memory(c);
    kn_free(piece);
    json_decref(root);
}

void srv_work_apply_template(struct srv_call *c)
{
    char *text = NULL;
    size_t n;
    if (eng_api_request_render(ENG_API_CHAT, c->body, c->n_body, &c->server->setup, &text, &n, &c->why)) {
        c->refused = true;
        return;
    }
    eng_bytes_text(&c->text, "{\"prompt\":");
    eng_bytes_quote(&c->text, text, n);
    eng_bytes_text(&c->text, "}");
    kn_free(text);
}
