/* tests/engine/medusa_heads.h - writes folders of Medusa heads with random weights of BF16, in both published layouts.
 * medusa_seed is the state of their random numbers. */
#ifndef TESTS_ENGINE_MEDUSA_HEADS_H
#define TESTS_ENGINE_MEDUSA_HEADS_H

#include "tests/moe/hf_folder.h"

#define MEDUSA_FILE "medusa_lm_head.safetensors"

static uint64_t medusa_seed = 4;

struct medusa_made {
    int n_head, d, n_token;
    bool vllm;         /* vLLM's layout, without biases; else the authors' with one block */
    const char *wrong; /* the tensor with this name gets another; or NULL */
};

static inline void medusa_tensor(struct hf_file *f, const struct medusa_made *m, const char *name, int n_in, int n_out)
{
    uint64_t dim[] = { (uint64_t)n_in, (uint64_t)n_out };
    int n = n_in * kn_max(n_out, 1);
    char other[64];
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < n; i++)
        x[i] = (float)((int)(kn_mix(medusa_seed += KN_GOLDEN) % 2001) - 1000) / 4000;
    snprintf(other, sizeof other, "%s%s", m->wrong && !strcmp(m->wrong, name) ? "x" : "", name);
    hf_add(f, other, x, dim, n_out ? 2 : 1, true);
    free(x);
}

static inline void write_medusa(const char *folder, const struct medusa_made *m)
{
    struct hf_file f = { 0 };
    char name[64], config[128];
    mkdir(folder, 0700);
    for (int h = 0; h < m->n_head; h++) {
        snprintf(name, sizeof name, m->vllm ? "blocks.%d.layers.0.weight" : "%d.0.linear.weight", h);
        medusa_tensor(&f, m, name, m->d, m->d);
        snprintf(name, sizeof name, "%d.0.linear.bias", h);
        if (!m->vllm)
            medusa_tensor(&f, m, name, m->d, 0);
        snprintf(name, sizeof name, m->vllm ? "lm_heads.%d.weight" : "%d.1.weight", h);
        medusa_tensor(&f, m, name, m->d, m->n_token);
    }
    int n = snprintf(config, sizeof config,
                     m->vllm ? "{\"model_type\": \"medusa\", \"num_heads\": %d, \"num_hidden_layers\": 1}"
                             : "{\"medusa_num_heads\": %d, \"medusa_num_layers\": 1}",
                     m->n_head);
    hf_save(folder, "config.json", config, (size_t)n);
    hf_close(&f, folder, m->vllm ? "model.safetensors" : MEDUSA_FILE);
}

static inline void remove_medusa(const char *folder)
{
    static const char *const name[] = { "config.json", MEDUSA_FILE, "model.safetensors" };
    char file[192];
    for (int i = 0; i < 3; i++) {
        snprintf(file, sizeof file, "%s/%s", folder, name[i]);
        unlink(file);
    }
    rmdir(folder);
}

#endif
