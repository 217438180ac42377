/* The commands as users run them, on tiny models: output, written files, Ctrl-C, a reader that closes the pipe, and a
 * chat on a terminal. Refused arguments are in test_refusals.c.
 *
 * Threads are tested where they work: not under MODE=tsan. */
#include <jansson.h>
#include <poll.h>

#include "tests/engine/cli/program.h"
#include "tests/engine/pty.h"
#include "tests/moe/change.h"
#include "tests/moe/golden.h"

#define TOLERANCE 1e-4 /* as in tests/moe/pass/test_forward.c; reason there */
#define RUN       "run -m m.gguf --raw --seed 7 --quiet --temp 1 --top-k 0 --top-p 1 --min-p 0 "

static char kept[1 << 16]; /* the answer that other runs are compared with */
static size_t n_kept;

static int make_models(void **state)
{
    if (make_place(state))
        return -1;
    does("synth --shape tiny -o m.gguf", NULL);
    does("synth --shape tiny-odd --format bf16 -o b.gguf", NULL);
    write_text("prompt", "Once");
    does(RUN "-p Once -n 40 --threads 1", NULL);
    memcpy(kept, printed, n_kept = n_printed);
    return 0;
}

static void says_the_same(const char *words, const char *input)
{
    does(words, input);
    if (n_printed != n_kept || memcmp(printed, kept, n_printed))
        fail_msg("spillway %s: says\n%sand not\n%s", words, printed, kept);
}

/* ---- eval ------------------------------------------------------------------------------------------ */

static void logits_are_those_of_transformers(void **state)
{
    const char *name = *state;
    static char words[4096];
    struct golden g;
    double worst = 0;
    size_t n;
    assert_int_equal(golden_read(&g, name), 0);
    assert_int_equal(golden_write(&g, in_place("golden.gguf")), 0);
    size_t at = (size_t)snprintf(words, sizeof words, "eval -m golden.gguf --kv f32 --logits l --ids ");
    for (int i = 0; i < g.n_tok; i++)
        at += (size_t)snprintf(words + at, sizeof words - at, i ? ",%d" : "%d", g.token[i]);
    does(words, NULL);
    assert_int_equal(n_printed, 0);
    float *logits = (float *)(void *)read_bytes("l", &n);
    assert_int_equal(n, (size_t)g.n_tok * (size_t)g.n_vocab * sizeof *logits);
    for (int i = 0; i < g.n_tok; i++)
        worst = fmax(worst, golden_apart(&g, &g.row[i], logits + (size_t)i * (size_t)g.n_vocab));
    print_message("%s: largest difference / largest logit %.1e\n", name, worst);
    assert_true(worst < TOLERANCE);
    free(logits);
    golden_free(&g);

    assert_int_equal(rename(in_place("l"), in_place("first")), 0);
    snprintf(words + at, sizeof words - at, " --chunk 3 --threads 1 --isa scalar");
    does(words, NULL);
    assert_true(same_files("l", "first"));
    unlink(in_place("l"));
}

static void perplexity_is_a_number(void **state)
{
    (void)state;
    write_text("text", "A text of some words, and then of some more.");
    does("eval -m m.gguf --text text --json", NULL);
    json_t *v = json_loads(printed, 0, NULL);
    assert_non_null(v);
    double ppl = json_real_value(json_object_get(v, "perplexity"));
    assert_true(ppl > 1 && ppl < 1e6);
    assert_true(json_integer_value(json_object_get(v, "tokens")) > 5);
    json_decref(v);
}

/* Beyond the model's own context, eval computes on and says so; a window is at most that context unless --ctx-size says
 * otherwise. */
static void eval_goes_beyond_the_context(void **state)
{
    (void)state;
    struct moe_file *f;
    assert_int_equal(moe_file_open(&f, in_place("m.gguf")), 0);
    change_write(f, &(struct change){ .key = "qwen3moe.context_length", .type = MOE_U32, .number = 6 },
                 in_place("m6.gguf"));
    moe_file_close(f);
    does("eval -m m.gguf --ids 1,2,3,4,5,6,7,8,9 --logits l", NULL);
    assert_null(strstr(said, "trained"));
    does("eval -m m6.gguf --ids 1,2,3,4,5,6,7,8,9 --logits l6", NULL);
    assert_non_null(
        strstr(said, "m6.gguf was trained on 6 tokens: its logits for the tokens 7 to 9 of --ids are poor"));
    assert_true(same_files("l", "l6"));
    does("eval -m m6.gguf --ids 1,2,3,4,5,6 --logits l6", NULL);
    assert_null(strstr(said, "trained"));
    does("eval -m m6.gguf --text text --json", NULL);
    assert_null(strstr(said, "trained"));
    assert_non_null(strstr(printed, "\"window\":6}"));
    does("eval -m m6.gguf --text text --json --ctx-size 8", NULL);
    assert_non_null(strstr(said, "for the tokens 7 to 8 of each window are poor"));
    assert_int_equal(given("run -m m6.gguf -p abcdefghijklmnopqrst", NULL), 2);
    assert_non_null(strstr(said, "and the context 6: the model was trained on no longer ones"));
    unlink(in_place("l"));
    unlink(in_place("l6"));
    unlink(in_place("m6.gguf"));
}

/* ---- run ------------------------------------------------------------------------------------------- */

static void a_seed_is_a_text(void **state)
{
    (void)state;
    static const char *const other[] = {
        "-p Once",
        "-p Once --threads 1",
        "-p Once --threads 2",
        "-p Once --isa scalar",
        "-p Once --chunk 1",
        "-p Once --no-pack --io pread",
        "-f prompt",
        "",
        "-p Once --draft ngram --gamma 3",
        "-p Once --ctx-size 256 --host-mem 34M",
    };
    char words[256];
    assert_true(n_kept > 40 && kept[n_kept - 1] == '\n');
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        snprintf(words, sizeof words, RUN "-n 40 %s", other[i]);
        says_the_same(words, other[i][0] ? NULL : "Once");
    }
    does(RUN "-p Once -n 40 --seed 8", NULL);
    assert_true(n_printed != n_kept || memcmp(printed, kept, n_printed));
    assert_string_equal(said, "");
}

/* Without --seed a seed is chosen and printed; with it the same text is generated again. */
static void a_drawn_seed_is_said(void **state)
{
    (void)state;
    char words[128], first[4096];
    unsigned long long seed;
    does("run -m m.gguf --raw -p Once -n 12 --ignore-eos", NULL); /* any seed may draw the end of the answer */
    assert_int_equal(sscanf(said, "spillway: seed %llu\n", &seed), 1);
    assert_non_null(strstr(said, "answer 12 tokens"));
    assert_true(n_printed < sizeof first);
    memcpy(first, printed, n_printed + 1);
    snprintf(words, sizeof words, "run -m m.gguf --raw -p Once -n 12 --ignore-eos --seed %llu", seed);
    does(words, NULL);
    assert_string_equal(printed, first);
    assert_null(strstr(said, "seed"));
}

static void lengths_are_kept_to(void **state)
{
    (void)state;
    does(RUN "-p Once -n 0", NULL);
    assert_string_equal(printed, "\n");
    does("run -m m.gguf --raw -p Once --ignore-eos --seed 1 -n 17", NULL);
    assert_non_null(strstr(said, "answer 17 tokens"));
    assert_null(strstr(said, "is full"));
    does("run -m m.gguf --raw -p Once --ignore-eos --seed 1 --ctx-size 64", NULL);
    assert_non_null(strstr(said, "answer "));
    assert_non_null(strstr(said, "the context of 64 tokens is full: the answer is cut (-c N sets the context)"));
    does("run -m m.gguf --raw -p Once --ignore-eos --seed 1 --ctx-size 64 -q", NULL);
    assert_non_null(strstr(said, "the context of 64 tokens is full"));
}

/* The answer is the first n bytes of kept. */
static void ends_after(const char *words, size_t n)
{
    does(words, NULL);
    if (n_printed != n + 1 || memcmp(printed, kept, n) || printed[n] != '\n')
        fail_msg("spillway %s: says\n%sand not the first %zu bytes of\n%s", words, printed, n, kept);
}

/* Three letters in a row, in the second half; returns their first occurrence. */
static const char *some_letters(char *three /* [4] */)
{
    for (const char *at = kept + n_kept / 2; at < kept + n_kept - 3; at++)
        if (strspn(at, "abcdefghijklmnopqrstuvwxyz") >= 3) {
            snprintf(three, 4, "%.3s", at);
            return strstr(kept, three);
        }
    fail_msg("no three letters in: %s", kept);
    return NULL;
}

static void texts_that_stop(void **state)
{
    (void)state;
    char words[256], three[4];
    const char *at = some_letters(three);
    snprintf(words, sizeof words, RUN "-p Once -n 40 --stop %s --stop nowhere", three);
    ends_after(words, (size_t)(at - kept));
    at = strpbrk(kept, "abcdefghijklmnopqrstuvwxyz");
    snprintf(words, sizeof words, RUN "-p Once -n 40 --stop %s --stop %.1s", three, at);
    ends_after(words, (size_t)(at - kept)); /* the earliest occurrence counts */
}

static int ids_of(const char *text, size_t n, int *id, int most)
{
    int count = 0;
    assert_int_equal(given_bytes("tokenize -m m.gguf", text, n), 0);
    for (char *s = strtok(printed, ",\n"); s && count < most; s = strtok(NULL, ",\n"))
        id[count++] = atoi(s);
    return count;
}

/* Each token of the text as a --stop-id ends the answer before it. A bias forces a certain token. */
static void tokens_that_stop(void **state)
{
    (void)state;
    int id[64], n = ids_of(kept, n_kept - 1, id, 64), n_short = 0;
    char words[256];
    assert_true(n > 10);
    for (int i = 0; i < n; i += 5) {
        snprintf(words, sizeof words, RUN "-p Once -n 40 --stop-id 2047 --stop-id=%d", id[i]);
        does(words, NULL);
        assert_true(n_printed <= n_kept && !memcmp(printed, kept, n_printed - 1));
        n_short += n_printed < n_kept;
    }
    assert_true(n_short > 1);
    does("run -m m.gguf --raw -p Once -n 3 --seed 1 --temp 0 --logit-bias 300=1000", NULL);
    assert_true(n_printed > 3);
    does("run -m m.gguf --raw -p Once -n 3 --seed 1 --temp 0 --logit-bias 300=1000 --stop-id 300 --ignore-eos", NULL);
    assert_string_equal(printed, "\n");
    assert_non_null(strstr(said, "answer 1 token, "));
    write_text("stop.ini", "[run]\nstop-id = 5\nstop-id = 300\n");
    does("run -m m.gguf --raw -p Once -n 3 --seed 1 --temp 0 --logit-bias 300=1000 --config stop.ini", NULL);
    assert_string_equal(printed, "\n");
}

/* Reads at least this many bytes, or to the end. */
static void read_some(int fd, size_t least)
{
    char some[256];
    ssize_t n;
    for (size_t got = 0; got < least && (n = read(fd, some, sizeof some)) > 0; got += (size_t)n)
        ;
}

/* A broken pipe ends the run: by SIGPIPE, or by an error where that signal is ignored, as under some service
 * managers. */
static void a_reader_who_leaves_ends_it(void **state)
{
    (void)state;
    for (int ignored = 0; ignored < 2; ignored++) {
        int end[2];
        assert_int_equal(pipe2(end, O_CLOEXEC), 0);
        FILE *says = tmpfile();
        signal(SIGPIPE, ignored ? SIG_IGN : SIG_DFL);
        pid_t pid = start("run -m m.gguf --raw -p Once --seed 1 --ignore-eos -n 4000", -1, end[1], fileno(says));
        signal(SIGPIPE, SIG_DFL);
        close(end[1]);
        read_some(end[0], 8);
        close(end[0]);
        assert_int_equal(status_of(pid), ignored ? 1 : 128 + SIGPIPE);
        take_text(says, said, sizeof said);
        assert_string_equal(said, ignored ? "spillway: error: standard output: cannot be written: Broken pipe\n" : "");
    }
    int full = open("/dev/full", O_WRONLY);
    FILE *says = tmpfile();
    assert_int_equal(status_of(start(RUN "-p Once -n 40", -1, full, fileno(says))), 1);
    close(full);
    take_text(says, said, sizeof said);
    assert_string_equal(said, "spillway: error: standard output: cannot be written: No space left on device\n");
}

/* ---- the chat template ----------------------------------------------------------------------------- */

/* Flags that make the model write this text after the prompt and then end its answer.  Each token has a bias, which
 * falls from the first to the last one, and the penalty takes more from a token that was written than the biases
 * differ; a token of the prompt gets this back.  The characters must be distinct, and each must be a token. */
static const char *dictates(const char *text, const char *prompt)
{
    static char flags[4096];
    int seen_id[64], n_seen_id = ids_of(prompt, strlen(prompt), seen_id, 64);
    size_t at = (size_t)snprintf(flags, sizeof flags,
                                 "--temp 0 --seed 1 --frequency-penalty 100 --presence-penalty 100");
    int bias = 1000, id;
    for (size_t n; *text; text += n, bias -= 7) {
        n = (size_t)snprintf(NULL, 0, "%.1s", text);
        assert_int_equal(ids_of(text, n, &id, 1), 1);
        int back = 0;
        for (int i = 0; i < n_seen_id; i++)
            back += seen_id[i] == id ? 200 : 0;
        at += (size_t)snprintf(flags + at, sizeof flags - at, " -l %d=%d", id, bias + back);
    }
    assert_int_equal(given("tokenize -m m.gguf --special", "<|im_end|>"), 0);
    snprintf(flags + at, sizeof flags - at, " -l %d=%d", atoi(printed), bias);
    return flags;
}

static void does_with(const char *words, const char *flags, const char *input)
{
    static char all[8192];
    snprintf(all, sizeof all, "run m.gguf %s %s", words, flags);
    does(all, input);
}

/* A prompt from the command line, a file or a pipe is the user's message. */
static void prompts_pass_the_template(void **state)
{
    (void)state;
    static const char written[] = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOnce<|im_end|>\n"
                                  "<|im_start|>assistant\n";
    static const char *const other[] = { "-p Once", "-f prompt", "" };
    char first[4096];
    write_text("written", written);
    does("run m.gguf --raw --special -f written --seed 7 -n 20 --ignore-eos", NULL);
    assert_true(n_printed > 20 && n_printed < sizeof first);
    memcpy(first, printed, n_printed + 1);
    write_text("template", "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{{ messages[0].content }}"
                           "<|im_end|>\n<|im_start|>assistant\n\n"); /* Jinja drops a line end at the end */
    for (size_t i = 0; i < 3; i++) {
        does_with(other[i], "--chat-template template --seed 7 -n 20 --ignore-eos", i == 2 ? "Once\n" : NULL);
        assert_string_equal(printed, first);
    }
    does("run m.gguf Once --chat-template template --seed 7 -n 20 --ignore-eos", NULL);
    assert_string_equal(printed, first);
    does("render -m m.gguf",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"Once\"}],\"add_generation_prompt\":true}");
    write_text("written", printed);
    does("run m.gguf --raw --special -f written --seed 7 -n 20 --ignore-eos", NULL);
    memcpy(first, printed, n_printed + 1);
    does("run m.gguf Once --seed 7 -n 20 --ignore-eos", NULL); /* its own template */
    assert_string_equal(printed, first);
    assert_null(strstr(said, "the model has no chat template"));
}

static void a_model_without_a_template_completes(void **state)
{
    (void)state;
    static const char key[] = "tokenizer.chat_template";
    char first[4096];
    size_t n;
    char *bytes = read_bytes("m.gguf", &n), *at = memmem(bytes, n, key, strlen(key));
    assert_non_null(at);
    *at = 'x'; /* another key */
    write_bytes("plain.gguf", bytes, n);
    free(bytes);
    does("run plain.gguf --raw Once --seed 7 -n 20 --ignore-eos", NULL);
    memcpy(first, printed, n_printed + 1);
    does("run plain.gguf Once --seed 7 -n 20 --ignore-eos", NULL);
    assert_string_equal(printed, first);
    assert_non_null(strstr(said, "the model has no chat template"));
}

/* batch takes the template, too: a prompt of one token. */
static void batches_take_a_template(void **state)
{
    (void)state;
    write_text("plus", "+");
    write_text("in.jsonl", "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":"
                           "{\"messages\":[{\"role\":\"user\",\"content\":\"Once\"}],\"max_tokens\":2}}\n");
    does("batch -m m.gguf in.jsonl -o with --chat-template plus --quiet", NULL);
    does("batch -m m.gguf in.jsonl -o without --quiet", NULL);
    size_t n;
    char *with = read_bytes("with", &n), *without = read_bytes("without", &n);
    assert_non_null(strstr(with, "\"prompt_tokens\":1,"));
    assert_non_null(strstr(without, "\"prompt_tokens\":"));
    assert_null(strstr(without, "\"prompt_tokens\":1,"));
    free(with);
    free(without);
}

/* Reasoning is no part of the answer on a pipe; stop strings are searched in the answer only. */
static void reasoning_is_left_out(void **state)
{
    (void)state;
    write_text("thinks", "<think>");
    does_with("Once --chat-template thinks", dictates("a</think>Yes", "<think>"), NULL);
    assert_string_equal(printed, "Yes\n");
    assert_non_null(strstr(said, "tokens are reasoning"));
    does_with("Once --chat-template thinks --stop a --stop s", dictates("a</think>Yes", "<think>"), NULL);
    assert_string_equal(printed, "Ye\n");
    does_with("<think> --raw", dictates("a</think>Yes", "<think>"), NULL);
    assert_string_equal(printed, "a</think>Yes\n");
}

static void an_answer_that_ends_at_once_is_told(void **state)
{
    (void)state;
    write_text("none", "+");
    does_with("Once --chat-template none", dictates("", "+"), NULL);
    assert_string_equal(printed, "\n");
    assert_non_null(strstr(said, "the model ended its answer at once"));
    does_with("Once --chat-template none", dictates("x", "+"), NULL);
    assert_string_equal(printed, "x\n");
    assert_null(strstr(said, "at once"));
}

/* ---- texts and tokens ------------------------------------------------------------------------------ */

static void tokens_and_back(void **state)
{
    (void)state;
    static const char *const text[] = {
        "",
        "a",
        "Hello, world!\n\n  two  spaces\t",
        ("Gr\xc3\xbc\xc3\x9f"
         "e \xe2\x82\xac \xf0\x9f\x98\x80"),
        "a\xff\xfe\x80z",
        "<|im_start|>user",
    };
    char ids[4096];
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        does("tokenize -m m.gguf", text[i]);
        assert_true(n_printed > 0 && n_printed < sizeof ids && strspn(printed, "0123456789,") == n_printed - 1);
        memcpy(ids, printed, n_printed + 1);
        does("tokenize -m m.gguf --decode", ids);
        assert_string_equal(printed, text[i]);
    }
    does("tokenize -m m.gguf --special", "<|im_start|>");
    memcpy(ids, printed, n_printed + 1);
    assert_null(strchr(ids, ','));
    does("tokenize -m m.gguf --decode", ids);
    assert_string_equal(printed, "");
    does("tokenize -m m.gguf --decode --special", ids);
    assert_string_equal(printed, "<|im_start|>");
}

static void conversations_are_rendered(void **state)
{
    (void)state;
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                                  "\"add_generation_prompt\":true}";
    does("render -m m.gguf", request);
    assert_string_equal(printed, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    write_text("template", "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}");
    does("render --template template", request);
    assert_string_equal(printed, "[user: hi]");
    assert_string_equal(said, "");
    write_text("template", "{{ bos_token }}{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}");
    does("render -m m.gguf --chat-template template", request); /* with the texts of the model's tokens */
    assert_non_null(strstr(printed, "[user: hi]"));
    assert_true(n_printed > strlen("[user: hi]"));
    does("render --template template", request);
    assert_string_equal(printed, "[user: hi]");
}

/* The budget that a refusal names is enough, also where a part of it is for measuring the disk. */
static void a_budget_that_is_named_is_enough(void **state)
{
    static const char *const command[] = { "bench m.gguf --batch 1 --prompt 4 --gen 4 --rounds 1 --warmup 0",
                                           "run m.gguf --raw -p Once -n 1" };
    char words[160];
    (void)state;
    for (int i = 0; i < 2; i++) {
        snprintf(words, sizeof words, "%s --host-mem 18M", command[i]);
        FILE *says = tmpfile();
        assert_int_equal(status_of(start(words, -1, -1, fileno(says))), 2);
        take_text(says, said, sizeof said);
        const char *named = strstr(said, "raise --host-mem to ");
        assert_non_null(named);
        snprintf(words, sizeof words, "%s --host-mem %.*s", command[i], (int)strcspn(named + 20, ","), named + 20);
        does(words, NULL);
    }
}

/* ---- files ----------------------------------------------------------------------------------------- */

static long number_at(const json_t *v, const char *key)
{
    assert_true(json_is_integer(json_object_get(v, key)));
    return (long)json_integer_value(json_object_get(v, key));
}

static void files_are_inspected(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        long value;
    } want[] = { { "n_layer", 3 }, { "n_head", 8 }, { "n_expert", 12 }, { "n_vocab", 2048 } };
    does("inspect m.gguf", NULL);
    assert_non_null(strstr(printed, "architecture   qwen3moe\n"));
    does("inspect m.gguf --json", NULL);
    json_t *v = json_loads(printed, 0, NULL);
    assert_non_null(v);
    assert_string_equal(json_string_value(json_object_get(v, "arch")), "qwen3moe");
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_int_equal(number_at(v, want[i].key), want[i].value);
    json_decref(v);
}

static void refuses(const char *words, const char *because)
{
    assert_int_equal(given(words, NULL), 2);
    if (!strstr(said, because))
        fail_msg("spillway %s: says %s and not %s", words, said, because);
}

/* inspect says the smallest budget: with it the model runs, with less it does not, and the refusal names the same. */
static void the_smallest_budget_is_said(void **state)
{
    (void)state;
    char words[160];
    does("inspect m.gguf", NULL);
    assert_non_null(strstr(printed, "runs here      yes\n"));
    assert_non_null(strstr(printed, "for one request at 512 tokens, bound by"));
    const char *at = strstr(printed, "  smallest     --host-mem ");
    assert_non_null(at);
    int least = atoi(at + strlen("  smallest     --host-mem "));
    snprintf(words, sizeof words, "run m.gguf --raw hello -n 2 --seed 1 --quiet --host-mem %dM", least);
    does(words, NULL);
    snprintf(words, sizeof words, "run m.gguf --raw hello -n 2 --seed 1 --quiet --host-mem %dM", least - 8);
    refuses(words, "raise --host-mem to ");
    assert_in_range(atoi(strstr(said, "raise --host-mem to ") + strlen("raise --host-mem to ")), least - 1, least + 1);
    does("inspect m.gguf --json", NULL);
    json_t *v = json_loads(printed, 0, NULL);
    assert_non_null(v);
    assert_true(json_is_true(json_object_get(v, "runs")));
    assert_int_equal(number_at(json_object_get(v, "memory"), "least_host_mem_bytes"), (long)least << 20);
    assert_true(number_at(json_object_get(v, "memory"), "kv_bytes") > 0);
    assert_true(json_real_value(json_object_get(json_object_get(v, "forecast"), "tokens_per_s")) > 0);
    json_decref(v);
}

/* Writes a copy of m.gguf with another chat template, and inspects it. */
static json_t *inspect_template(const char *template)
{
    struct moe_file *f;
    assert_int_equal(moe_file_open(&f, in_place("m.gguf")), 0);
    change_write(f, &(struct change){ .key = "tokenizer.chat_template", .type = MOE_STRING, .text = template },
                 in_place("t.gguf"));
    moe_file_close(f);
    does("inspect t.gguf --json", NULL);
    json_t *v = json_loads(printed, 0, NULL);
    assert_non_null(v);
    assert_string_equal(json_string_value(json_object_get(v, "chat_template")), "in the file");
    return v;
}

static void forms_of_chats_are_said(void **state)
{
    (void)state;
    json_t *v = inspect_template(
        "{{ messages[0].content }}<tool_call>{\"name\": 1, \"arguments\": 2}</tool_call>[THINK]");
    assert_string_equal(json_string_value(json_object_get(v, "tool_calls")), "hermes");
    assert_string_equal(json_string_value(json_object_get(json_object_get(v, "reasoning"), "open")), "[THINK]");
    assert_string_equal(json_string_value(json_object_get(json_object_get(v, "reasoning"), "close")), "[/THINK]");
    json_decref(v);
    does("inspect t.gguf", NULL);
    assert_non_null(strstr(printed, "reasoning      between [THINK] and [/THINK]\n"));
    v = inspect_template("{{ messages[0].content }}<|channel|><|message|>");
    assert_string_equal(json_string_value(json_object_get(v, "tool_calls")), "gpt-oss");
    assert_string_equal(json_string_value(json_object_get(v, "reasoning")), "channel");
    json_decref(v);
    v = inspect_template("{{ messages[0].content }}");
    assert_string_equal(json_string_value(json_object_get(v, "tool_calls")), "generic");
    assert_true(json_is_null(json_object_get(v, "reasoning")));
    json_decref(v);
    v = inspect_template("{% if %}");
    assert_non_null(strstr(json_string_value(json_object_get(v, "chat_refusal")), "line 1"));
    assert_true(json_is_true(json_object_get(v, "runs")));
    json_decref(v);
}

/* A model that the program does not support is inspected all the same, and inspect gives the reason in the refusal's words. */
static void reasons_are_those_of_run(void **state)
{
    (void)state;
    static const char *const why = "model_type \"gemma3n\" is not supported: the program lacks ";
    assert_int_equal(mkdir(in_place("near"), 0777), 0);
    write_text("near/config.json", "{\"model_type\": \"gemma3n\"}");
    refuses("run near hello", why);
    does("inspect near --json", NULL);
    json_t *v = json_loads(printed, 0, NULL);
    assert_non_null(v);
    assert_true(json_is_false(json_object_get(v, "runs")));
    assert_non_null(strstr(json_string_value(json_object_get(v, "why")), why));
    json_decref(v);
    does("inspect near", NULL);
    assert_non_null(strstr(printed, "runs here      no\n  why          near: config.json: model_type \"gemma3n\""));
}

static void plans_are_json_by_line(void **state)
{
    (void)state;
    int n_split = 0, n_decode = 0;
    does("plan -m m.gguf --json --host-mem 64M --ctx-size 512 --disk-rate 1G --dram-rate 10G --threads 1", NULL);
    for (char *line = strtok(printed, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *v = json_loads(line, 0, NULL);
        if (!v)
            fail_msg("no JSON: %s", line);
        const char *what = json_string_value(json_object_get(v, "what"));
        if (!strcmp(what, "split")) {
            n_split++;
            assert_int_equal(number_at(v, "host_mem_bytes"), 64 << 20);
            assert_int_equal(number_at(v, "n_ctx"), 512);
        } else if (!strcmp(what, "decode")) {
            n_decode++;
            assert_true(json_real_value(json_object_get(v, "tokens_per_s")) > 0);
        }
        json_decref(v);
    }
    assert_int_equal(n_split, 1);
    assert_int_equal(n_decode, 5);
}

/* Tables fit in 80 columns; -v widens that of bench. */
static void tables_are_80_wide(void **state)
{
    (void)state;
    static const char *const command[] = {
        "plan m.gguf --host-mem 64M --ctx-size 512 --disk-rate 1G --dram-rate 10G",
        "plan m.gguf --host-mem 34M --ctx-size 512 --disk-rate 1G --dram-rate 10G",
        "plan m.gguf --host-mem 64M --ctx-size 512 --disk-rate 1G --dram-rate 10G --draft ngram",
        "bench m.gguf --batch 1,2 --prompt 8 --gen 8 --rounds 1 --warmup 0 --ctx-size 64 --threads 1",
        "bench m.gguf --batch 1 --prompt 8 --gen 8 --rounds 1 --warmup 0 --ctx-size 64 --draft ngram --gamma 2",
        "inspect m.gguf",
        "doctor",
    };
    for (size_t i = 0; i < sizeof command / sizeof *command; i++) {
        does(command[i], NULL);
        for (char *line = strtok(printed, "\n"); line; line = strtok(NULL, "\n"))
            if (strlen(line) > 80)
                fail_msg("%s: %zu columns: %s", command[i], strlen(line), line);
    }
    does("plan m.gguf --host-mem 64M --ctx-size 512 --disk-rate 1G --dram-rate 10G", NULL);
    assert_non_null(strstr(printed, "target efficiency"));
    assert_non_null(strstr(printed, "nearly all experts from"));
    assert_null(strstr(printed, "--draft resident")); /* all experts are in memory */
    does("plan m.gguf --host-mem 34M --ctx-size 512 --disk-rate 1G --dram-rate 10G", NULL);
    assert_non_null(strstr(printed, "experts are on disk: --draft resident"));
    does("plan m.gguf --host-mem 34M --ctx-size 512 --disk-rate 1G --dram-rate 10G --draft ngram", NULL);
    assert_null(strstr(printed, "--draft resident"));
    does("plan m.gguf --host-mem 64M --ctx-size 512 --disk-rate 1G --dram-rate 10G --json", NULL);
    assert_non_null(strstr(printed, "\"full_rows\":"));
    assert_non_null(strstr(printed, "\"depth_8\":"));
}

/* Without --rounds bench goes on until it knows the ratio, with three pairs at least. */
static void bench_chooses_its_rounds(void **state)
{
    (void)state;
    does("bench m.gguf --batch 1 --prompt 4 --gen 4 --warmup 0 --ctx-size 64 --draft ngram --gamma 1 --json", NULL);
    const char *at = strstr(printed, "\"pairs\":");
    assert_non_null(at);
    assert_in_range(atoi(at + 8), 3, 32);
}

static void models_are_made_and_made_again(void **state)
{
    (void)state;
    does("synth --shape tiny-odd --seed 3 -o a.gguf --threads 1", NULL);
    does("synth --shape tiny-odd --seed 3 -o c.gguf --threads 2", NULL);
    assert_true(same_files("a.gguf", "c.gguf"));
    does("synth --shape tiny-odd --seed 4 -o c.gguf", NULL); /* synth may overwrite a model */
    assert_false(same_files("a.gguf", "c.gguf"));
    unlink(in_place("c.gguf"));
}

static void models_are_quantised(void **state)
{
    (void)state;
    does("quantize b.gguf --requantize --format q8_0 -o q.gguf --json", NULL);
    json_t *v = json_loads(printed, 0, NULL);
    assert_non_null(v);
    double error = json_real_value(json_object_get(v, "relative_error"));
    assert_true(error > 0 && error < 0.01);
    assert_string_equal(json_string_value(json_object_get(v, "file")), "q.gguf");
    json_decref(v);
    does("quantize b.gguf --requantize --format q8_0 -o r.gguf --threads 1 --isa scalar", NULL);
    assert_non_null(strstr(printed, " weights: "));
    assert_true(same_files("q.gguf", "r.gguf"));
    does("quantize b.gguf --requantize --format q8_0 -o r.gguf -q", NULL);
    assert_string_equal(strchr(printed, '\n'), "\n"); /* the total alone */
    does("run -m q.gguf --raw -p Once -n 4 --seed 1", NULL);
    unlink(in_place("r.gguf"));
}

static void a_packed_model_says_the_same(void **state)
{
    (void)state;
    does("pack m.gguf --json", NULL);
    json_t *v = json_loads(printed, 0, NULL);
    assert_non_null(v);
    json_decref(v);
    assert_true(is_there("m.experts") && !is_there("m.experts.part"));
    says_the_same(RUN "-p Once -n 40", NULL);
    does("pack m.gguf -o again", NULL);
    assert_true(same_files("again", "m.experts"));
    unlink(in_place("m.experts"));
}

/* A signal that comes before the server listens to signals: here while it waits for its keys. */
static void a_server_that_is_stopped_at_once_ends_as_later(void **state)
{
    (void)state;
    const char *keys = in_place("keys");
    assert_int_equal(mkfifo(keys, 0600), 0);
    pid_t pid = start("serve m.gguf --port 0 --quiet --api-key-file keys", -1, -1, -1);
    int fd = open(keys, O_WRONLY); /* returns when the server has opened it */
    assert_true(fd >= 0);
    kill(pid, SIGTERM);
    usleep(20000);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)!write(fd, "a-key\n", 6);
    close(fd);
    assert_int_equal(status_of(pid), 0);
    unlink(in_place("keys"));
}

/* ---- Ctrl-C ---------------------------------------------------------------------------------------- */

static bool is_part(const struct dirent *e) { return strstr(e->d_name, ".part") != NULL; }

static int count_parts(void)
{
    int n = 0;
    DIR *d = opendir(place);
    for (struct dirent *e; (e = readdir(d));)
        n += is_part(e);
    closedir(d);
    return n;
}

/* Interrupts the command once it has begun to write; returns its status. */
static int interrupted(const char *words)
{
    FILE *says = tmpfile();
    pid_t pid = start(words, -1, -1, fileno(says));
    siginfo_t info = { .si_pid = 0 };
    while (!count_parts() && waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && !info.si_pid)
        usleep(200);
    kill(pid, SIGINT);
    int status = status_of(pid);
    take_text(says, said, sizeof said);
    return status;
}

/* The command may already be nearly done. Otherwise it logs one line, and leaves no file. */
static void stops(const char *words, const char *file, bool surely)
{
    int status = interrupted(words);
    if (surely)
        assert_int_equal(status, 2);
    if (status != 0) {
        assert_int_equal(status, 2);
        assert_int_equal(strncmp(said, "spillway: error: ", 17), 0);
        assert_non_null(strstr(said, "stopped"));
        assert_string_equal(strchr(said, '\n'), "\n");
    }
    assert_int_equal(is_there(file), status == 0);
    assert_int_equal(count_parts(), 0);
    unlink(in_place(file));
}

static void nothing_half_written_is_left(void **state)
{
    (void)state;
    static char words[16384];
    size_t at = (size_t)snprintf(words, sizeof words,
                                 "eval -m m.gguf --quiet --isa scalar --threads 1 --chunk 4 "
                                 "--logits l --ids 1");
    for (int i = 0; i < 3000; i++)
        at += (size_t)snprintf(words + at, sizeof words - at, ",%d", i % 2000);
    stops(words, "l", true); /* takes seconds, so the signal is in time */
    stops("synth --shape tiny -o s.gguf --layers 40 --format q2_k --threads 1 --quiet", "s.gguf", false);
    stops("quantize m.gguf -o s.gguf --requantize --format q2_k --isa scalar --threads 1 --quiet", "s.gguf", false);
}

/* A partial pack file may stay: the same command continues it. */
static void a_pack_goes_on(void **state)
{
    (void)state;
    does("synth --shape tiny -o s.gguf --layers 60 --threads 1", NULL);
    int status = interrupted("pack s.gguf --quiet --threads 1");
    assert_true(status == 0 || status == 2);
    assert_int_equal(is_there("s.experts"), status == 0);
    does("pack s.gguf", NULL);
    does("pack s.gguf -o whole", NULL);
    assert_true(same_files("s.experts", "whole"));
    assert_int_equal(count_parts(), 0);
    unlink(in_place("s.gguf"));
    unlink(in_place("s.experts"));
    unlink(in_place("whole"));
}

/* Without a terminal there are no settings to restore: the signal ends the program. */
static void an_answer_ends_at_once(void **state)
{
    (void)state;
    int end[2];
    assert_int_equal(pipe2(end, O_CLOEXEC), 0);
    pid_t pid = start("run -m m.gguf --raw -p Once --seed 1 --ignore-eos --isa scalar --threads 1 -n 4000", -1, end[1],
                      -1);
    close(end[1]);
    read_some(end[0], 4);
    kill(pid, SIGINT);
    assert_int_equal(status_of(pid), 128 + SIGINT);
    close(end[0]);
}

/* ---- a chat ---------------------------------------------------------------------------------------- */

static int terminal;
static char seen[1 << 18];
static size_t n_seen, n_read; /* bytes received; bytes searched */

static void read_more(const char *for_what)
{
    struct pollfd p = { .fd = terminal, .events = POLLIN };
    ssize_t n = poll(&p, 1, HANG_S * 1000) > 0 && n_seen < sizeof seen - 1
                    ? read(terminal, seen + n_seen, sizeof seen - 1 - n_seen)
                    : 0;
    if (n <= 0)
        fail_msg("%s does not come after: %s", for_what, seen + n_read);
    for (ssize_t i = 0; i < n; i++, n_seen++)
        if (!seen[n_seen])
            seen[n_seen] = ' ';
    seen[n_seen] = 0;
}

/* Waits for the text; later searches start after it. */
static void sees(const char *what)
{
    char *found;
    while (!(found = strstr(seen + n_read, what)))
        read_more(what);
    n_read = (size_t)(found - seen) + strlen(what);
}

static void types(const char *text) { assert_int_equal(write(terminal, text, strlen(text)), (ssize_t)strlen(text)); }

/* Waits for some of the answer, interrupts it, and waits for the next prompt. */
static void stops_answer(void)
{
    for (size_t from = n_seen; n_seen < from + 64;)
        read_more("an answer");
    types("\x03");
    sees("spillway: prompt ");
    sees("> ");
}

/* Sends Ctrl-U and Ctrl-D until the other end is closed. */
static void ends_input(void)
{
    char rest[4096];
    struct pollfd p = { .fd = terminal, .events = POLLIN };
    do
        (void)!write(terminal, "\x15\x04", 2);
    while (poll(&p, 1, 200) == 0 || read(terminal, rest, sizeof rest) > 0);
}

static pid_t start_chat(const char *words, const char *kind)
{
    fflush(NULL);
    pid_t pid = fork_on_terminal(&terminal, &(struct winsize){ .ws_row = 24, .ws_col = 30 });
    if (pid == 0) {
        setenv("TERM", kind, 1);
        become(words);
    }
    n_seen = n_read = 0;
    seen[0] = 0;
    return pid;
}

static void ends_chat(pid_t pid)
{
    ends_input();
    assert_int_equal(status_of(pid), 0);
    close(terminal);
}

/* With a line editor, and on a terminal that has no escape sequences. */
static void a_chat_on_a_terminal(void **state)
{
    static const char *const kinds[] = { "xterm", "dumb" };
    (void)state;
    for (int i = 0; i < 2; i++) {
        pid_t pid = start_chat("run m.gguf --seed 1 --ignore-eos --threads 1", kinds[i]);
        sees("/help lists the commands");
        sees("> ");
        types("/help\r");
        sees("stop the answer");
        sees("> ");
        types("Hello\r");
        sees("Hello");
        stops_answer();
        types("\"\"\"one\r");
        sees(". ");
        types("two\"\"\"\r");
        sees("two\"\"\"");
        stops_answer();
        types("/info\r");
        sees("12 experts of which 3 are used");
        sees("> ");
        types("/etc/passwd\r");
        sees("/etc/passwd is not a command and was not sent");
        sees("> ");
        ends_chat(pid);
    }
    size_t n;
    char *kept_lines = read_bytes("spillway/history", &n);
    assert_string_equal(kept_lines, "/help\nHello\n\"\"\"one\ntwo\"\"\"\n/info\n/etc/passwd\n");
    free(kept_lines);
    unlink(in_place("spillway/history"));
}

/* Reasoning is dimmed and is not part of the next prompt; the answer's line ends before the statistics. */
static void a_chat_with_reasoning(void **state)
{
    static char words[4096];
    (void)state;
    write_text("talks", "{% for m in messages %}{{ m.content }}+{% endfor %}<think>");
    snprintf(words, sizeof words, "run m.gguf --no-history --chat-template talks %s",
             dictates("a</think>Yes", "<think>"));
    pid_t pid = start_chat(words, "xterm");
    sees("> ");
    types("+\r");
    sees("\033[2ma\r\n\033[0m\r\nYes\r\nspillway: prompt ");
    sees("> ");
    types("/save talk.json\r");
    sees("saved 2 messages");
    ends_chat(pid);
    size_t n;
    char *talk = read_bytes("talk.json", &n);
    assert_non_null(strstr(talk, "\"content\": \"Yes\""));
    free(talk);
    assert_false(is_there("spillway/history"));
}

int main(void)
{
    static char moe[] = "qwen3moe_norm", latent[] = "deepseek2_lite", delta[] = "qwen3next";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(logits_are_those_of_transformers, moe),
        cmocka_unit_test_prestate(logits_are_those_of_transformers, latent),
        cmocka_unit_test_prestate(logits_are_those_of_transformers, delta),
        cmocka_unit_test(perplexity_is_a_number),
        cmocka_unit_test(eval_goes_beyond_the_context),
        cmocka_unit_test(a_seed_is_a_text),
        cmocka_unit_test(a_drawn_seed_is_said),
        cmocka_unit_test(lengths_are_kept_to),
        cmocka_unit_test(texts_that_stop),
        cmocka_unit_test(tokens_that_stop),
        cmocka_unit_test(a_reader_who_leaves_ends_it),
        cmocka_unit_test(prompts_pass_the_template),
        cmocka_unit_test(a_model_without_a_template_completes),
        cmocka_unit_test(batches_take_a_template),
        cmocka_unit_test(reasoning_is_left_out),
        cmocka_unit_test(an_answer_that_ends_at_once_is_told),
        cmocka_unit_test(tokens_and_back),
        cmocka_unit_test(conversations_are_rendered),
        cmocka_unit_test(files_are_inspected),
        cmocka_unit_test(the_smallest_budget_is_said),
        cmocka_unit_test(forms_of_chats_are_said),
        cmocka_unit_test(reasons_are_those_of_run),
        cmocka_unit_test(plans_are_json_by_line),
        cmocka_unit_test(a_budget_that_is_named_is_enough),
        cmocka_unit_test(tables_are_80_wide),
        cmocka_unit_test(bench_chooses_its_rounds),
        cmocka_unit_test(models_are_made_and_made_again),
        cmocka_unit_test(models_are_quantised),
        cmocka_unit_test(a_packed_model_says_the_same),
        cmocka_unit_test(a_server_that_is_stopped_at_once_ends_as_later),
        cmocka_unit_test(nothing_half_written_is_left),
        cmocka_unit_test(a_pack_goes_on),
        cmocka_unit_test(an_answer_ends_at_once),
        cmocka_unit_test(a_chat_on_a_terminal),
        cmocka_unit_test(a_chat_with_reasoning),
    };
    return cmocka_run_group_tests(tests, make_models, remove_place);
}
