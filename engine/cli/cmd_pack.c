/* engine/cli/cmd_pack.c - `spillway pack MODEL [-o FILE]`: writes a model's experts to a file of their own in
 * their memory layout, so that an expert is one read and needs no interleaving.
 *
 * In: a model file or the first of its splits.  Out: the pack file, by default beside the model, where all commands
 * that load the model find it; on stdout one line, or with --json one object, with experts and bytes.  After Ctrl-C or
 * a crash a .part file remains, and the same command resumes from it. */
#include "engine/base/base.h"
#include "engine/cli/cli.h"
#include "engine/engine.h"

#include <string.h>

static void print(const struct eng_config *c, const char *path, const struct off_packed *p, double seconds)
{
    if (!c->json) {
        printf("%s: %d experts, %.2f GB", path, p->n_expert, (double)p->file_bytes / 1e9);
        if (p->n_before)
            printf(" (%d experts from an earlier run)", p->n_before);
        printf("\n");
        return;
    }
    printf("{\"file\":");
    eng_json_string(stdout, (struct moe_string){ path, strlen(path) });
    printf(",\"n_expert\":%d,\"n_before\":%d,\"bytes\":%llu,\"seconds\":%.3f}\n", p->n_expert, p->n_before,
           (unsigned long long)p->file_bytes, seconds);
}

static int pack(const struct eng_config *c, const struct moe_model *m, struct kn_team *team, const char *path)
{
    struct eng_progress *bar;
    struct off_packed packed;
    uint64_t start = kn_now_ns();
    int error = eng_progress_open(&bar, "packing", c->quiet);
    if (error)
        return error;
    error = moe_model_pack(
        m, path,
        &(struct moe_pack_options){
            .team = team, .io = c->io, .progress = eng_progress_counter(bar), .stop = eng_interrupt() },
        &packed);
    eng_progress_close(bar);
    if (!error)
        print(c, path, &packed, (double)(kn_now_ns() - start) * 1e-9);
    return error;
}

int eng_cmd_pack(const struct eng_config *c)
{
    struct moe_file *file = NULL;
    struct moe_model *model = NULL;
    struct kn_team *team = NULL;
    char path[ENG_PATH_BYTES];
    int error = c->output ? 0 : eng_pack_path(path, c->model);
    if (!error && !(error = moe_file_open(&file, c->model)) &&
        !(error = moe_model_open(&model, file, &(struct moe_model_options){ .isa = c->isa })) &&
        !(error = kn_team_open(&team, c->n_thread)))
        error = pack(c, model, team, c->output ? c->output : path);
    kn_team_close(team);
    moe_model_close(model);
    moe_file_close(file);
    return error ? 2 : 0;
}
