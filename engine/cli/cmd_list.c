/* engine/cli/cmd_list.c - spillway list: the models on this machine, of all stores, and whether they run here.
 *
 * A model runs if its header can be read and its family and tensors are known; the weights are not read, and the memory
 * is not looked at: `spillway plan` does that. */
#include <string.h>

#include "engine/cli/cli.h"

#define COLUMN_GAP 2

struct entry {
    const struct eng_hub_model *model;
    char arch[32];
    const char *reason; /* the first error, of a model that does not run */
    bool runs;
};

static void read_header(struct entry *e, const struct eng_config *c)
{
    struct moe_file *file = NULL;
    struct moe_model *model = NULL;
    eng_messages_hold();
    if (!moe_file_open(&file, e->model->path)) {
        const struct moe_value *v = moe_file_find(file, "general.architecture");
        if (v && v->type == MOE_STRING)
            moe_string_show(*(const struct moe_string *)v->data, e->arch, sizeof e->arch);
        e->runs = !moe_model_open(&model, file, &(struct moe_model_options){ .isa = c->isa });
    }
    moe_model_close(model);
    moe_file_close(file);
    e->reason = eng_messages_show(c);
}

static void put_member(const char *name, const char *text)
{
    printf(",\"%s\":", name);
    eng_json_string(stdout, (struct moe_string){ text, strlen(text) });
}

static void put_json(const struct entry *e)
{
    const struct eng_hub_model *m = e->model;
    printf("{\"name\":");
    eng_json_string(stdout, (struct moe_string){ m->name, strlen(m->name) });
    printf(",\"bytes\":%llu,\"n_file\":%d,\"runs\":%s", (unsigned long long)m->bytes, m->n_file,
           e->runs ? "true" : "false");
    put_member("format", m->label);
    put_member("architecture", e->arch);
    put_member("store", eng_hub_store_name(m->store));
    put_member("path", m->path);
    if (!e->runs)
        put_member("reason", e->reason);
    printf("}\n");
}

static void put_row(const struct entry *e, int width)
{
    const struct eng_hub_model *m = e->model;
    char bytes[32];
    eng_size_text(bytes, sizeof bytes, (double)m->bytes);
    printf("%-*s%-9s%-13s%-14s%-10s%s\n", width, m->name, bytes, m->label[0] ? m->label : "-",
           e->arch[0] ? e->arch : "-", eng_hub_store_name(m->store), e->runs ? "yes" : "no");
}

int eng_cmd_list(const struct eng_config *c)
{
    struct eng_hub_model *model;
    int n, width = (int)sizeof "name" + COLUMN_GAP;
    if (eng_hub_list(&model, &n, &c->hub))
        return 2;
    for (int i = 0; i < n; i++)
        width = kn_max(width, (int)strlen(model[i].name) + COLUMN_GAP);
    if (n == 0)
        kn_say(KN_LOG_INFO,
               "no models in %s, in Ollama's store or in LM Studio's folder; spillway pull ORG/NAME "
               "downloads one",
               c->hub.cache ? c->hub.cache : "a cache");
    else if (!c->json)
        printf("%-*s%-9s%-13s%-14s%-10s%s\n", width, "name", "size", "format", "family", "store", "runs");
    for (int i = 0; i < n; i++) {
        struct entry e = { .model = &model[i] };
        read_header(&e, c);
        if (c->json)
            put_json(&e);
        else
            put_row(&e, width);
        if (!e.runs && c->verbose)
            kn_say(KN_LOG_INFO, "%s: %s", model[i].name, e.reason);
    }
    kn_free(model);
    return fflush(stdout) || ferror(stdout) ? 1 : 0;
}
