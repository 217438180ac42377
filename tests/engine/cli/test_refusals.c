/* Bad input to the program as a user runs it: exit status 2, one line on standard error, no standard output, and every
 * file unchanged.
 *
 * One thread: not under MODE=tsan. */
#include "tests/engine/cli/program.h"

static const char help[] = "see spillway";

/* ---- checks ---------------------------------------------------------------------------------------- */

static const char text[] = "a text of several words, which no model is\n";

static int make_files(void **state)
{
    static uint8_t part[100000];
    if (make_place(state))
        return -1;
    does("synth --shape tiny -o m.gguf", NULL);
    does("synth --shape tiny --seed 2 -o b.gguf", NULL);
    size_t n;
    char *model = read_bytes("m.gguf", &n);
    memcpy(part, model, sizeof part);
    free(model);
    write_bytes("cut.gguf", part, sizeof part);
    write_bytes("head.gguf", part, 20);
    write_text("empty", "");
    write_text("broken", "{% if");
    write_text("text", text);
    write_text("in.jsonl", "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                           "\"body\":{\"prompt\":\"x\"}}\n");
    write_text("wrong.ini", "nonsense = 1\n");
    assert_int_equal(mkfifo(in_place("pipe"), 0600), 0);
    assert_int_equal(mkdir(in_place("folder"), 0755), 0);
    write_text("long", "");
    assert_int_equal(truncate(in_place("long"), 100 << 20), 0);
    assert_int_equal(mkdir(in_place("sealed"), 0555), 0);
    assert_int_equal(symlink("text", in_place("link")), 0);
    char *eagle = realpath("evals/train/models/demo-eagle-f16.gguf", NULL);
    assert_non_null(eagle);
    assert_int_equal(symlink(eagle, in_place("eagle.gguf")), 0);
    free(eagle);
    return 0;
}

/* One line: "spillway: error: ..."; of serve, once its flags are read, "TIME error ..." as in its log. */
static bool is_one_error_line(bool serve)
{
    const char *end = strchr(said, '\n');
    bool logged = serve && said[0] == '2' && strlen(said) > 31 && !strncmp(said + 23, "Z error ", 8);
    return (logged || !strncmp(said, "spillway: error: ", 17)) && end && !end[1];
}

/* The command is refused with a line that contains `part`. */
static void refuses(const char *words, const void *input, size_t n, const char *part)
{
    static char before[4096], after[4096];
    list_place(before, sizeof before);
    int status = given_bytes(words, input, n);
    list_place(after, sizeof after);
    if (status != 2)
        fail_msg("spillway %s: status %d and not 2: %s", words, status, said);
    if (!is_one_error_line(!strncmp(words, "serve", 5)))
        fail_msg("spillway %s: says no one line: %s", words, said);
    if (!strstr(said, part))
        fail_msg("spillway %s: '%s' is not in: %s", words, part, said);
    if (n_printed)
        fail_msg("spillway %s: writes %zu bytes of results", words, n_printed);
    if (strcmp(before, after))
        fail_msg("spillway %s: there was\n%sand is\n%s", words, before, after);
}

struct refusal {
    const char *words, *part;
};

static void refuses_all(const struct refusal *r, size_t n)
{
    for (size_t i = 0; i < n; i++)
        refuses(r[i].words, "", 0, r[i].part);
}
#define REFUSES(table) refuses_all(table, sizeof(table) / sizeof *(table))

/* ---- words ----------------------------------------------------------------------------------------- */

static void words_that_no_command_takes(void **state)
{
    (void)state;
    static const char *const command[] = { "run",     "serve",    "eval", "tokenize", "render",
                                           "inspect", "quantize", "pack", "synth",    "batch",
                                           "bench",   "fit",      "plan", "simulate", "doctor" };
    static const struct refusal table[] = {
        { "nonsense", "'nonsense' is not a command" },
        { "runn", "did you mean run" },
        { "run -m m.gguf -p a b", "'b' is not a flag" },
        { "run -m m.gguf -p a --json", "--json is not a flag of run" },
        { "run -m m.gguf -p a --quiet=maybe", "true or false" },
        { "run -m m.gguf -p a --config ./nofile", "No such file" },
        { "inspect m.gguf other", "'other' is one word too many" },
        { "eval -m m.gguf --config folder", "not a configuration file" },
        { "plan -m m.gguf --config pipe", "not a configuration file" },
        { "plan -m m.gguf --config /dev/zero", "not a configuration file" },
        { "plan -m m.gguf --config wrong.ini", "wrong.ini:1" },
        { "plan -m m.gguf --config m.gguf", "m.gguf" },
        { "m.gguf", "spillway run m.gguf" },
        { "batch in.jsonl m.gguf -o o", "'m.gguf' is not a flag; did you mean -m m.gguf?" },
        { "run -m m.gguf -p a b.gguf", "two models, 'm.gguf' and 'b.gguf'" },
        { "inspect m.gguf b.gguf", "two models, 'm.gguf' and 'b.gguf'" },
        /* names that are nearly right: of flags, of their aliases, and their beginnings */
        { "run -m m.gguf --temprature 1", "did you mean --temperature?" },
        { "run -m m.gguf --tmep 1", "did you mean --temp?" },
        { "run -m m.gguf -temp 1", "did you mean --temp?" },
        { "run -m m.gguf --top_k 1", "did you mean --top-k?" },
        { "run -m m.gguf --systemprompt a", "did you mean --system-prompt?" },
        { "serve -m m.gguf --ctx 4096", "did you mean --ctx-size?" },
        { "serve -m m.gguf --host-memm 4G", "did you mean --host-mem?" },
        { "serve -m m.gguf --xyz 1", "--xyz is unknown; see spillway serve --help-all" },
        /* flags of other programs */
        { "serve -m m.gguf --tensor-parallel-size 2", "one process computes the whole model" },
        { "serve -m m.gguf --tensor_parallel_size 2", "one process computes the whole model" },
        { "serve -m m.gguf -ot exps=CPU", "--host-mem decides" },
        { "serve -m m.gguf --max-model-len 4096", "use --ctx-size N" },
        { "serve -m m.gguf --dtype bfloat16", "spillway quantize" },
        { "serve -m m.gguf --seed 1", "send \"seed\"" },
        { "serve -m m.gguf --system-prompt a", "role system" },
        { "run -m m.gguf --json-schema {}", "offered by serve and batch" },
        { "serve -m m.gguf --json-schema {}", "response_format" },
        { "serve -m m.gguf --log-level debug", "--quiet or --verbose" },
        { "serve -m m.gguf --ssl-keyfile k", "reverse proxy" },
        { "run -m m.gguf --lora l", "is not offered" },
        { "run -m m.gguf -b 4", "use --chunk N" },
    };
    char words[64];
    for (size_t i = 0; i < sizeof command / sizeof *command; i++) {
        snprintf(words, sizeof words, "%s --nonsense", command[i]);
        refuses(words, "", 0, "--nonsense is unknown");
        snprintf(words, sizeof words, "%s --config", command[i]);
        refuses(words, "", 0, "needs a value");
    }
    REFUSES(table);
}

static void commands_without_what_they_need(void **state)
{
    (void)state;
    static const struct refusal table[] = {
        { "run", help },
        { "run -m ''", help },
        { "eval", help },
        { "tokenize", help },
        { "render", help },
        { "inspect", help },
        { "quantize", help },
        { "quantize b.gguf", help },
        { "imatrix m.gguf --text text", help },
        { "imatrix m.gguf -o x", help },
        { "pack", help },
        { "synth", help },
        { "synth --shape tiny", help },
        { "batch", help },
        { "batch -m m.gguf in.jsonl", help },
        { "bench", help },
        { "plan", help },
        { "simulate", help },
        { "serve", help },
        { "synth --shape tiny -o ''", help },
        { "pack m.gguf -o ''", "-o is empty" },
        { "eval -m m.gguf", "--ids LIST --logits FILE, or --text FILE" },
        { "eval -m m.gguf --ids 1,2", "--ids LIST --logits FILE, or --text FILE" },
        { "eval -m m.gguf --ids 1,2 --logits ''", "--ids LIST --logits FILE, or --text FILE" },
        { "eval -m m.gguf --ids 1,2 --text text", "--ids LIST --logits FILE, or --text FILE" },
        { "eval -m m.gguf --ids 1,2 --logits l --text text", "--ids LIST --logits FILE, or --text FILE" },
        { "run -m m.gguf -p a -f text", "two prompts" },
        { "run -m m.gguf -p a --dsi auto --gamma 3", "--gamma at auto" },
        { "run -m m.gguf -p a --draft oracle:0.5", "only in bench" },
    };
    REFUSES(table);
}

/* ---- numbers --------------------------------------------------------------------------------------- */

static void numbers_that_are_none_or_too_large(void **state)
{
    (void)state;
    static const struct refusal table[] = {
        { "run -m m.gguf -p a -n", "needs a value, N" },
        { "run -m m.gguf -p a -n -2", "from -1 to 2147483647, not '-2'" },
        { "run -m m.gguf -p a -n 1.5", "not '1.5'" },
        { "run -m m.gguf -p a -n 99999999999999999999", "from -1" },
        { "run -m m.gguf -p a -n ''", "not ''" },
        { "run -m m.gguf -p a --temp nan", "a number from 0 to 100" },
        { "run -m m.gguf -p a --temp 1e99", "a number from 0 to 100" },
        { "run -m m.gguf -p a --top-p 1.5", "from 0 to 1" },
        { "run -m m.gguf -p a --seed 18446744073709551616", "below 2^64" },
        { "run -m m.gguf -p a --threads -1", "from 0 to 1024" },
        { "run -m m.gguf -p a --chunk 4097", "from 0 to 4096" },
        { "run -m m.gguf -p a --ctx-size -1", "from 0" },
        { "run -m m.gguf --raw -p abcdefghijklmnopqrst --ctx-size 3", "raise --ctx-size" },
        { "run -m m.gguf -p a --host-mem -1", "a size such as" },
        { "run -m m.gguf -p a --host-mem 1X", "a size such as" },
        { "run -m m.gguf -p a --host-mem 400", "a size such as 512M or 24G (a number and its unit), not '400'" },
        { "run -m m.gguf -p a --host-mem 4Gi", "a number and its unit" },
        { "run -m m.gguf -p a --host-mem 4BB", "a number and its unit" },
        { "run -m m.gguf -p a --host-mem 1MB", "raise --host-mem to" },
        { "run -m m.gguf -p a --host-mem 1M", "raise --host-mem to" },
        { "run -m m.gguf -p a --kv-mem 1K", "MiB of KV cache: raise --kv-mem to" },
        { "run -m m.gguf -p a --kv f8", "f16, f32 or int8" },
        { "run -m m.gguf -p a --isa sse", "scalar, avx2, avx512 or avx512vbmi" },
        { "run -m m.gguf -p a --io magic", "auto, uring or pread" },
        { "run -m m.gguf -p a --gamma 65", "from 0 to 64" },
        { "run -m m.gguf -p a --logit-bias 1", "ID=NUMBER" },
        { "run -m m.gguf --raw -p a --logit-bias 99999=1", "99999" },
        { "run -m m.gguf -p a --stop ''", "none empty" },
        { "run -m m.gguf -p a --stop-id -1", "ids of tokens" },
        { "run -m m.gguf -p a --stop-id x", "ids of tokens" },
        { "run -m m.gguf -p a --stop-id 2048", "the vocabulary has 0 to 2047" },
        { "eval -m m.gguf --ids '' --logits l", "--ids is empty" },
        { "eval -m m.gguf --ids 1,,2 --logits l", "not a list of token ids" },
        { "eval -m m.gguf --ids 1,-2 --logits l", "not a list of token ids" },
        { "eval -m m.gguf --ids 99999999999 --logits l", "not a list of token ids" },
        { "eval -m m.gguf --ids 1,2048 --logits l", "the vocabulary has 0 to 2047" },
        { "synth --shape tiny -o x --layers -1", "from 0 to 1000" },
        { "synth --shape tiny -o x --layers 1001", "from 0 to 1000" },
        { "synth --shape tiny -o x --vocab 5", "are allowed" },
        { "synth --shape tiny -o x --down q9", "--down q9 is unknown; the formats are" },
        { "synth --shape tiny -o x --used 13", "13 experts used of the 12" },
        { "bench -m m.gguf --batch 0", "from 1 to 4096" },
        { "bench -m m.gguf --batch 1,,2", "as in 1,4,16" },
        { "bench -m m.gguf --batch ''", "--batch is empty" },
        { "bench -m m.gguf --prompt 0", "--prompt takes at least 1" },
        { "bench -m m.gguf --against x", "as in 1,2,4" },
        { "bench -m m.gguf --draft oracle:2", "a probability" },
        { "plan -m m.gguf --parallel 0", "from 1 to 4096" },
        { "plan -m m.gguf --disk-rate x", "a size such as" },
        { "simulate dsi --acceptance 2", "from 0 to 1" },
        { "run -m m.gguf -p a --draft lookahead,window=16,ngram=8", "adds 111 rows" },
        { "simulate dsi --draft-prefill-ms -1", "draft-prefill-ms" },
        { "simulate dsi --lookahead 5-2", "--lookahead" },
        { "serve -m m.gguf --port 65536", "from 0 to 65535" },
        { "serve -m m.gguf --max-body -1", "a size such as" },
        { "batch -m m.gguf in.jsonl -o o --parallel -1", "from 0 to 4096" },
    };
    REFUSES(table);
}

static void names_that_are_on_no_list(void **state)
{
    (void)state;
    static const struct refusal table[] = {
        { "synth --shape nonsense -o x", "there are qwen3-30b-a3b, " },
        { "synth --shape Tiny -o x", ", tiny, tiny-dense, " },
        { "synth --shape tiny -o x --format q9", "the formats are F32 F16 BF16 Q8_0" },
        { "quantize b.gguf -o x --format q9", "the formats are F32 F16 BF16 Q8_0" },
        { "quantize b.gguf -o x --experts q9", "--experts q9 is unknown" },
        { "quantize m.gguf -o x --format q8_0", "--requantize" },
        { "quantize b.gguf -o x --format q8_0 --imatrix text", "text: no importance matrix" },
        { "imatrix m.gguf --text text -o text", "is not a model" },
        { "imatrix m.gguf --text text -o x --device cuda", "imatrix computes on the host" },
        { "simulate nothing", "dsi" },
        { "simulate dsi --preset nothing", "table" },
        { "simulate dsi --method nothing", "event" },
        { "run -m m.gguf -p a --draft magic", "not a kind of drafter" },
        { "run -m m.gguf -p a --draft model:", "takes a file" },
        { "run -m m.gguf -p a --draft medusa:", "takes a folder, as in medusa:FOLDER" },
        { "serve -m m.gguf --cors nonsense", "--cors takes" },
        { "serve -m m.gguf --log-format xml", "text or json" },
        { "serve -m m.gguf --allowed-host http://a", "--allowed-host takes" },
    };
    REFUSES(table);
}

/* ---- files ----------------------------------------------------------------------------------------- */

/* Each command with a file in the place of MODEL that is not a model. */
static void models_that_are_none(void **state)
{
    (void)state;
    static const char *const command[] = {
        "run -p a -m MODEL",
        "eval --ids 1 --logits l -m MODEL",
        "eval --text text -m MODEL",
        "tokenize -m MODEL",
        "inspect MODEL",
        "quantize MODEL -o x",
        "pack MODEL",
        "plan -m MODEL",
        "bench -m MODEL",
        "fit -m MODEL",
        "batch in.jsonl -o o -m MODEL",
        "run -p a -m m.gguf --draft model:MODEL",
    };
    static const struct refusal bad[] = {
        { "nofile.gguf", "No such file" },
        { "folder", "config.json" },
        { "pipe", "a pipe or a device" },
        { "empty", "incomplete copy" },
        { "head.gguf", "incomplete copy" },
        { "cut.gguf", "incomplete copy" },
        { "text", "GGUF" },
    };
    char words[128];
    for (size_t i = 0; i < sizeof command / sizeof *command; i++)
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            const char *at = strstr(command[i], "MODEL");
            snprintf(words, sizeof words, "%.*s%s%s", (int)(at - command[i]), command[i], bad[k].words, at + 5);
            refuses(words, "", 0, bad[k].part);
        }
    refuses("doctor -m pipe", "", 0, "a pipe or a device");
    refuses("doctor -m nofile.gguf", "", 0, "No such file");
    refuses("render -m text", "{}", 2, "GGUF");
    refuses("run -p a -m eagle.gguf", "", 0, "use --draft eagle:eagle.gguf");
    refuses("serve -m eagle.gguf", "", 0, "use --draft eagle:eagle.gguf");
    refuses("batch in.jsonl -o o -m eagle.gguf", "", 0, "use --draft eagle:eagle.gguf");
}

static void texts_that_cannot_be_read(void **state)
{
    (void)state;
    static const struct refusal table[] = {
        { "run nofile.gguf", "nofile.gguf: No such file or directory; spillway list shows" }, /* before the prompt */
        { "run -m m.gguf", "the prompt is empty" },                                           /* empty standard input */
        { "run -m m.gguf -p ''", "the prompt is empty" },
        { "run -m m.gguf -f empty", "the prompt is empty" },
        { "run -m m.gguf -f nofile", "No such file" },
        { "run -m m.gguf -f folder", "folder" },
        { "eval -m m.gguf --text empty", "too short" },
        { "eval -m m.gguf --text folder", "not a plain file" },
        { "eval -m m.gguf --text pipe", "not a plain file" },
        { "eval -m m.gguf --text nofile", "No such file" },
        { "render --template nofile", "stdin" },
        { "bench -m m.gguf -f empty", "empty" },
        { "bench -m m.gguf -f folder", "folder" },
        { "run -m m.gguf -p a --draft suffix:nofile", "No such file" },
        { "run -m m.gguf -p a --draft suffix:long --host-mem 256M", "name a shorter text" },
        { "run -m m.gguf -p a --draft ngram --fit text", "not written by fit" },
        { "run -m m.gguf -p a --draft ngram --fit nofile", "No such file" },
        { "serve -m m.gguf --api-key-file nofile", "No such file" },
        { "serve m.gguf --chat-template nofile", "No such file" },
        { "batch -m m.gguf in.jsonl -o o --chat-template nofile", "No such file" },
        { "run m.gguf a --chat-template nofile", "No such file" },
        { "run m.gguf a --chat-template broken", "broken: line 1: " },
        { "batch -m m.gguf nofile -o o", "No such file" },
        { "batch -m m.gguf folder -o o", "folder" },
        { "batch -m m.gguf pipe -o o", "a batch must be a regular file" },
    };
    static const struct {
        const char *words, *input;
        size_t n;
        const char *part;
    } told[] = {
        { "tokenize -m m.gguf --decode", "1,x", 3, "byte 2 is not part of a token id" },
        { "tokenize -m m.gguf --decode", "1,2048", 6, "not among the 2048" },
        { "tokenize -m m.gguf --decode", "1,-2", 4, "byte 2" },
        { "render -m m.gguf", "", 0, "stdin:1" },
        { "render -m m.gguf", "[1, 2]", 6, "not a JSON object" },
        { "render -m m.gguf", "{\"messages\": \"\xff\xfe\"}", 17, "stdin:1" },
        { "render -m m.gguf", "{\"messages\": [{\"role\": \"user\"", 29, "stdin:1" },
        { "render --template text", "nothing", 7, "stdin:1" },
        { "render --template folder", "{}", 2, "folder" },
    };
    REFUSES(table);
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        refuses(told[i].words, told[i].input, told[i].n, told[i].part);
}

/* Each command that writes, with a FILE that cannot be written. */
static void places_that_cannot_be_written(void **state)
{
    (void)state;
    static const char *const command[] = {
        "synth --shape tiny -o FILE",
        "quantize b.gguf --requantize -o FILE",
        "pack m.gguf -o FILE",
        "eval -m m.gguf --ids 1,2 --logits FILE",
        "batch -m m.gguf in.jsonl -o FILE",
    };
    static const struct refusal bad[] = {
        { "folder", "folder" }, { "nofolder/x", "No such file" }, { "sealed/x", "Permission denied" },
        { "pipe", "pipe" },     { "/dev/full", "/dev/full" },     { "link", "link" },
        { "text", "text" },
    };
    char words[128];
    for (size_t i = 0; i < sizeof command / sizeof *command; i++)
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            const char *at = strstr(command[i], "FILE");
            bool any = !strncmp(command[i], "eval", 4) || !strncmp(command[i], "batch", 5);
            if (any && (!strcmp(bad[k].words, "text") || !strcmp(bad[k].words, "link")))
                continue; /* eval overwrites any file; batch appends to its own */
            snprintf(words, sizeof words, "%.*s%s%s", (int)(at - command[i]), command[i], bad[k].words, at + 4);
            refuses(words, "", 0, bad[k].part);
        }
    refuses("quantize b.gguf -o b.gguf", "", 0, "would overwrite the input");
    refuses("pack m.gguf -o m.gguf", "", 0, "would overwrite the input");
    refuses("eval -m m.gguf --ids 1 --logits m.gguf", "", 0, "would overwrite the input");
    refuses("fit -m m.gguf -o text", "", 0, "not written by fit");
    refuses("fit -m m.gguf -o sealed/x", "", 0, "Permission denied");
    refuses("batch -m m.gguf in.jsonl -o in.jsonl", "", 0, "in.jsonl");
    refuses("batch -m m.gguf in.jsonl -o o --errors o", "", 0, "o");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_that_no_command_takes),
        cmocka_unit_test(commands_without_what_they_need),
        cmocka_unit_test(numbers_that_are_none_or_too_large),
        cmocka_unit_test(names_that_are_on_no_list),
        cmocka_unit_test(models_that_are_none),
        cmocka_unit_test(texts_that_cannot_be_read),
        cmocka_unit_test(places_that_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, make_files, remove_place);
}
