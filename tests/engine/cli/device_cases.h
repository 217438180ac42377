/* tests/engine/cli/device_cases.h - answers with --device beside those of the host, for the tests of a device of each kind. */
#ifndef TESTS_ENGINE_CLI_DEVICE_CASES_H
#define TESTS_ENGINE_CLI_DEVICE_CASES_H

#include "tests/engine/cli/program.h"
#include "tests/engine/medusa_heads.h"

#define RUN "run --raw --seed 7 --quiet --temp 1 --top-k 0 --top-p 1 --min-p 0 -p Once -n 12 --threads 2 "

static bool there;              /* a device, real or interpreted */
static const char *device_name; /* of the option */

static void make_files(void)
{
    does("synth --shape tiny -o m.gguf", NULL);
    does("synth --shape tiny-qwen3next -o delta.gguf", NULL);
    does("synth --shape tiny-glm4moe --ahead -o mtp.gguf", NULL);
    does("synth --shape tiny-dense -o dense.gguf", NULL);
    write_medusa(in_place("heads"), &(struct medusa_made){ .n_head = 2, .d = 256, .n_token = 2048 });
}

static void needs_device(void)
{
    if (!there)
        skip();
}

/* The words' output on the host, and then on the device. */
static void says_as_the_host(const char *words)
{
    static char kept[sizeof printed];
    char with[1024];
    does(words, NULL);
    size_t n = n_printed;
    assert_true(n > 0);
    memcpy(kept, printed, n);
    snprintf(with, sizeof with, "%s --device %s", words, device_name);
    does(with, NULL);
    if (n_printed != n || memcmp(printed, kept, n))
        fail_msg("spillway %s: says\n%sand not\n%s", with, printed, kept);
}

static void answers_are_those_of_the_host(void **state)
{
    (void)state;
    needs_device();
    says_as_the_host(RUN "-m m.gguf");
    says_as_the_host(RUN "-m dense.gguf --kv int8");
    says_as_the_host(RUN "-m delta.gguf");
    says_as_the_host(RUN "-m m.gguf --draft ngram --gamma 3");
    says_as_the_host(RUN "-m m.gguf --draft model:dense.gguf --gamma 2");
    says_as_the_host(RUN "-m m.gguf --draft medusa:heads --gamma 3");
    says_as_the_host(RUN "-m mtp.gguf --draft mtp --gamma 2");
}

static void logits_are_those_of_the_host(void **state)
{
    (void)state;
    char words[256];
    needs_device();
    does("eval -m m.gguf --ids 1,2,3,4,5,6,7,8,9 --logits host", NULL);
    snprintf(words, sizeof words, "eval -m m.gguf --ids 1,2,3,4,5,6,7,8,9 --logits device --device %s --chunk 4",
             device_name);
    does(words, NULL);
    assert_true(same_files("host", "device"));
}

static void a_batch_is_that_of_the_host(void **state)
{
    (void)state;
    needs_device();
    char line[512], all[4096] = "";
    for (int i = 0; i < 4; i++) {
        snprintf(line, sizeof line,
                 "{\"custom_id\": \"%d\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": "
                 "\"Once %d\", \"max_tokens\": 6, \"seed\": %d}}\n",
                 i, i, i);
        strcat(all, line);
    }
    write_text("in.jsonl", all);
    does("batch -m m.gguf in.jsonl -o host.jsonl --parallel 3 --quiet", NULL);
    snprintf(line, sizeof line, "batch -m m.gguf in.jsonl -o device.jsonl --parallel 2 --quiet --device %s",
             device_name);
    does(line, NULL);
    size_t n, m;
    char *host = read_bytes("host.jsonl", &n), *device = read_bytes("device.jsonl", &m);
    for (int i = 0; i < 4; i++) { /* the lines' order and their ids may differ */
        char text[2][256];
        snprintf(line, sizeof line, "\"custom_id\":\"%d\"", i);
        for (int k = 0; k < 2; k++) {
            const char *at = strstr(k ? device : host, line);
            assert_non_null(at);
            const char *from = strstr(at, "\"text\":");
            assert_non_null(from);
            snprintf(text[k], sizeof text[k], "%.*s", (int)strcspn(from + 8, "\""), from + 8);
        }
        assert_string_equal(text[0], text[1]);
    }
    free(host);
    free(device);
}

#endif
