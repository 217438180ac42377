/* Flags, environment and config file: accepted values, precedence, and the message for each mistake.
 *
 * One thread: not under MODE=tsan. */
#include "engine/api/model_sampling.h"
#include "engine/cli/cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <unistd.h>

static char said[1024];

static void listen(enum kn_level level, const char *line)
{
    (void)level;
    snprintf(said, sizeof said, "%s", line);
}

static int set_up(void **state)
{
    (void)state;
    kn_log_set(listen, KN_LOG_INFO);
    said[0] = 0;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    const char *const variables[] = { "TEMP", "TOP_K", "CONFIG", "STOP", "MODEL",      "KV_MEM",
                                      "TMEP", "BATCH", "PROMPT", "JSON", "TEMPERATURE" };
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        char name[64];
        snprintf(name, sizeof name, "SPILLWAY_%s", variables[i]);
        unsetenv(name);
    }
    kn_log_set(NULL, KN_LOG_INFO);
    return 0;
}

static struct eng_config config;

/* Up to 31 words, separated by spaces. */
static int parse(enum eng_command_id command, const char *words)
{
    static char copy[1024]; /* the config keeps pointers into it, as into argv */
    static char *argv[32];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    return eng_config_parse(&config, command, argc, argv);
}

static void accepts(enum eng_command_id command, const char *words)
{
    said[0] = 0;
    if (parse(command, words) != 0)
        fail_msg("refused '%s': %s", words, said);
}

/* Refused with a message that contains `text`. */
static void refuses(enum eng_command_id command, const char *words, const char *text)
{
    said[0] = 0;
    assert_int_equal(parse(command, words), KN_EINVAL);
    if (!strstr(said, text))
        fail_msg("'%s' is told: %s", words, said);
}

static char path[] = "/tmp/spillway-config-XXXXXX";

static void write_file(const char *text, size_t n)
{
    strcpy(strrchr(path, '-') + 1, "XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, n), (ssize_t)n);
    close(fd);
    setenv("SPILLWAY_CONFIG", path, 1);
}

static void file_accepts(enum eng_command_id command, const char *words, const char *text)
{
    write_file(text, strlen(text));
    accepts(command, words);
    unlink(path);
}

static void file_refuses(enum eng_command_id command, const char *file, const char *text)
{
    write_file(file, strlen(file));
    refuses(command, "-m m", text);
    unlink(path);
}

/* ---- flags ------------------------------------------------------------------------------------- */

static void defaults(void **state)
{
    (void)state;
    accepts(ENG_run, "-m x.gguf");
    assert_string_equal(config.model, "x.gguf");
    assert_int_equal(config.n_predict, -1);
    assert_null(config.prompt);
    assert_int_equal(config.isa, KN_ISA_COUNT - 1);
    assert_int_equal(config.kv, KN_KV_F16);
    assert_true(config.sampling.temperature == 0.8f);
    assert_int_equal(config.sampling.top_k, 40);
    assert_false(config.seed_given);
    assert_int_equal(spec_params_check(&config.sampling, 1), 0);
    uint64_t seed = config.sampling.seed;
    accepts(ENG_run, "-m x.gguf");
    assert_true(seed != config.sampling.seed); /* equal once in 2^32 */

    accepts(ENG_bench, "-m x.gguf");
    assert_true(config.sampling.temperature == 1);
    assert_int_equal(config.sampling.seed, 0);
    assert_int_equal(config.n_prompt, 512);
    assert_string_equal(config.batches, "1,4,8,16");
}

static void steps_of_sampling(void **state)
{
    (void)state;
    accepts(ENG_serve, "-m m --typical 0.5 --top-n-sigma 1.5 --xtc-probability 0.25 --xtc-threshold 0.125 "
                       "--dry-multiplier 0.75 --dry-base 2 --dry-allowed-length 3 --dry-penalty-last-n 99 "
                       "--samplers top_k;typ_p;temperature --repeat-last-n 7");
    struct spec_params *p = &config.sampling;
    assert_true(p->typical_p == 0.5f && p->top_n_sigma == 1.5f && p->xtc_probability == 0.25f);
    assert_true(p->xtc_threshold == 0.125f && p->dry_multiplier == 0.75f && p->dry_base == 2);
    assert_true(p->dry_allowed == 3 && p->dry_last == 99 && p->repeat_last == 7);
    assert_true(p->has_order && p->n_order == 3 && p->order[1] == SPEC_STEP_TYPICAL_P);
    assert_int_equal(config.n_breaker, -1);
    assert_int_equal(spec_params_check(p, 1), 0);

    accepts(ENG_run, "-m m --sampling-seq kmt --dry-sequence-breaker ab --dry-sequence-breaker c");
    assert_true(p->n_order == 3 && p->order[0] == SPEC_STEP_TOP_K && p->order[2] == SPEC_STEP_TEMPERATURE);
    assert_int_equal(config.n_breaker, 2);
    assert_true(moe_string_is(config.breaker[0], "ab") && moe_string_is(config.breaker[1], "c"));
    accepts(ENG_batch, "-m m in -o out --dry-sequence-breaker none");
    assert_int_equal(config.n_breaker, 0);
    refuses(ENG_run, "-m m --samplers top_k;top_k", "--samplers");
    refuses(ENG_run, "-m m --samplers infill", "--samplers takes names of sampling steps with ; between them");
    refuses(ENG_run, "-m m --samplers infill", "min_p, xtc, temperature, not 'infill'");
    accepts(ENG_run, "-m m --temp 0 --samplers top_k;min_p");
    assert_non_null(strstr(said, "--temp 0 has no effect: the order of samplers has no temperature"));
    accepts(ENG_run, "-m m --samplers top_k;min_p");
    assert_string_equal(said, "");
    refuses(ENG_run, "-m m --sampling-seq kki", "--sampling-seq");
    refuses(ENG_run, "-m m --mirostat 2", "--typical");

    /* parameters that the user sets are not taken from the model */
    accepts(ENG_run, "-m m --temp 1 --top-k 40 --sampling-seq t");
    assert_int_equal(config.sampling_given, eng_model_sampling_bit(offsetof(struct spec_params, temperature)) |
                                                eng_model_sampling_bit(offsetof(struct spec_params, top_k)) |
                                                eng_model_sampling_bit(offsetof(struct spec_params, order)));
    accepts(ENG_run, "-m m");
    assert_int_equal(config.sampling_given, 0);
    accepts(ENG_serve, "-m m --sampling-defaults none");
    assert_true(config.sampling_given == ENG_MODEL_SAMPLING_NONE);
    refuses(ENG_serve, "-m m --generation-config vllm", "--sampling-defaults");
}

static void flags_and_aliases(void **state)
{
    (void)state;
    accepts(ENG_run, "--model m -c 4096 -t 3 -n 17 --temp 0.25 --top-k 5 --top-p 0.5 --min-p 0.125 "
                     "-s 18446744073709551615 --repeat-penalty 1.5 --presence-penalty -0.5");
    assert_int_equal(config.n_ctx, 4096);
    assert_int_equal(config.n_thread, 3);
    assert_int_equal(config.n_predict, 17);
    assert_true(config.sampling.temperature == 0.25f);
    assert_int_equal(config.sampling.top_k, 5);
    assert_true(config.sampling.top_p == 0.5f);
    assert_true(config.sampling.min_p == 0.125f);
    assert_true(config.sampling.seed == UINT64_MAX);
    assert_true(config.seed_given);
    assert_true(config.sampling.repetition == 1.5f);
    assert_true(config.sampling.presence == -0.5f);

    accepts(ENG_run, "-m m --frequency-penalty=1e-1 --repeat-last-n -1 --ignore-eos --isa avx2 --kv f32 "
                     "-ub 64 --stop a --stop=b= --logit-bias 7=-inf -l 9=1.5 --n-predict -1 -p --help");
    assert_true(config.sampling.frequency == 0.1f);
    assert_int_equal(config.sampling.repeat_last, -1);
    assert_true(config.ignore_eos);
    assert_int_equal(config.isa, KN_ISA_AVX2);
    assert_int_equal(config.kv, KN_KV_F32);
    assert_int_equal(config.n_chunk, 64);
    assert_int_equal(config.n_stop, 2);
    assert_string_equal(config.stop[1], "b=");
    assert_int_equal(config.sampling.n_bias, 2);
    assert_ptr_equal(config.sampling.bias, config.bias);
    assert_true(config.bias[0].token == 7 && config.bias[0].add == -INFINITY);
    assert_true(config.bias[1].token == 9 && config.bias[1].add == 1.5f);
    assert_string_equal(config.prompt, "--help"); /* a value here, not the flag */

    accepts(ENG_run, "-m m --temp 1 --temp 2 --ignore-eos --ignore-eos=false -s 4 -s -1");
    assert_true(config.sampling.temperature == 2);
    assert_false(config.ignore_eos);
    assert_false(config.seed_given);

    accepts(ENG_bench, "-m m --prompt 64 --gen 8 --batch 1,2 --warmup 3 --json --host-mem 24G");
    assert_int_equal(config.n_prompt, 64);
    assert_int_equal(config.n_gen, 8);
    assert_int_equal(config.n_warmup, 3);
    assert_true(config.json);
    accepts(ENG_inspect, "file.gguf --json");
    assert_string_equal(config.model, "file.gguf");
    accepts(ENG_doctor, "");
    accepts(ENG_pack, "file.gguf -o there --io pread --json");
    assert_true(!strcmp(config.model, "file.gguf") && !strcmp(config.output, "there") && config.json);
    accepts(ENG_serve, "-m m --mirror /mnt/b");
    assert_string_equal(config.mirror, "/mnt/b");
    accepts(ENG_run, "-m m --no-pack");
    assert_true(config.no_pack);
    accepts(ENG_tokenize, "-m m --decode --special");
    assert_true(config.decode && config.special);

    accepts(ENG_eval, "-m m");
    assert_int_equal(config.io, OFF_IO_AUTO);
    accepts(ENG_eval, "-m m --io pread");
    assert_int_equal(config.io, OFF_IO_PREAD);
    accepts(ENG_bench, "-m m --io=uring");
    assert_int_equal(config.io, OFF_IO_URING);
    accepts(ENG_bench, "-m m --draft model:d --dsi auto --temp 0.5 --file text");
    assert_true(config.n_dsi == ENG_GAMMA_AUTO && eng_config_options(&config, false).dsi == ENG_DSI_AUTO);
    accepts(ENG_serve, "-m m --draft model:d --dsi 1 --dsi-lookahead 4 --gamma 3");
    struct eng_options o = eng_config_options(&config, true);
    assert_true(o.dsi == ENG_DSI_ON && o.lookahead == 4 && o.predictions && o.n_draft == 1);
    accepts(ENG_serve, "-m m --draft none");
    o = eng_config_options(&config, true);
    assert_true(!o.predictions && o.n_draft == 0);
    accepts(ENG_run, "-m m --draft model:d --dsi 3");
    assert_true(config.n_dsi == 3 && eng_config_options(&config, false).dsi == ENG_DSI_OFF &&
                !eng_config_options(&config, false).predictions);
    accepts(ENG_plan, "-m m");
    assert_true(config.n_parallel == 1 && config.disk_rate == 0 && config.dram_rate == 0);
    accepts(ENG_plan, "-m m -np 16 --host-mem 24G --disk-rate 3G --dram-rate 200G --json");
    assert_true(config.n_parallel == 16 && config.json);
    assert_true(config.disk_rate == (size_t)3 << 30 && config.dram_rate == (size_t)200 << 30);
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
    } good[] = {
        { "0", 0 },
        { "1234567", 1234567 },
        { "4K", 4096 },
        { "4k", 4096 },
        { "3M", 3 << 20 },
        { "24G", (size_t)24 << 30 },
        { "1.5G", (size_t)3 << 29 },
        { "0.5K", 512 },
        { "1T", (size_t)1 << 40 },
        { "4GB", (size_t)4 << 30 },
        { "4GiB", (size_t)4 << 30 },
        { "4gib", (size_t)4 << 30 },
        { "3mb", 3 << 20 },
        { "2TiB", (size_t)2 << 40 },
        { "512B", 512 },
    };
    static const char *const bad[] = { "",
                                       "G",
                                       "-1",
                                       "1GX",
                                       "1Gi",
                                       "1GBB",
                                       "1 G",
                                       "400",
                                       "4194304T",
                                       "1.2.3G",
                                       "0x10",
                                       " 1",
                                       "1 ",
                                       "inf",
                                       "4294967296G",
                                       "1e3",
                                       "99999999999999999999999999999999999999999" };
    char words[128];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(words, sizeof words, "-m m --kv-mem %s", good[i].text);
        accepts(ENG_run, words);
        assert_int_equal(config.kv_mem, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *argv[] = { (char[]){ "-m" }, (char[]){ "m" }, (char[]){ "--kv-mem" }, words };
        snprintf(words, sizeof words, "%s", bad[i]);
        assert_int_equal(eng_config_parse(&config, ENG_run, 4, argv), KN_EINVAL);
        assert_non_null(strstr(said, "--kv-mem takes a size such as"));
    }
}

/* More threads than CPUs are accepted, with a warning: tests of the arithmetic need them. */
static void threads_beyond_the_cpus(void **state)
{
    (void)state;
    struct kn_machine machine;
    char words[64];
    kn_machine_get(&machine);
    snprintf(words, sizeof words, "-m m --threads %d", machine.n_cpu);
    accepts(ENG_run, words);
    assert_string_equal(said, "");
    snprintf(words, sizeof words, "-m m --threads %d", machine.n_cpu + 1);
    accepts(ENG_run, words);
    assert_non_null(strstr(said, "make it much slower"));
}

/* Words without dashes: the model, and for run a prompt; a flag that is given is not set by a word. */
static void words_without_dashes(void **state)
{
    (void)state;
    static const enum eng_command_id model_first[] = { ENG_run,    ENG_serve,   ENG_eval,  ENG_tokenize,
                                                       ENG_render, ENG_inspect, ENG_pack,  ENG_bench,
                                                       ENG_fit,    ENG_plan,    ENG_doctor };
    for (size_t i = 0; i < sizeof model_first / sizeof *model_first; i++) {
        accepts(model_first[i], "file");
        assert_string_equal(config.model, "file");
    }
    accepts(ENG_run, "--seed 1 file --temp 0 question");
    assert_string_equal(config.model, "file");
    assert_string_equal(config.prompt, "question");
    accepts(ENG_run, "question -m file");
    assert_string_equal(config.model, "file");
    assert_string_equal(config.prompt, "question");
    accepts(ENG_batch, "-m file in -o out");
    assert_string_equal(config.input, "in");
    accepts(ENG_serve, "file --template t");
    assert_string_equal(config.template, "t");
}

static void mistakes_are_told(void **state)
{
    (void)state;
    static const struct {
        enum eng_command_id command;
        const char *words, *told;
    } bad[] = {
        { ENG_run, "", "run needs MODEL" },
        { ENG_synth, "--shape x", "synth needs -o FILE" },
        { ENG_quantize, "-o y", "quantize needs MODEL" },
        { ENG_quantize, "m", "quantize needs -o FILE" },
        { ENG_pack, "-o y", "pack needs MODEL" },
        { ENG_quantize, "m n -o y", "'n' is one word too many; see spillway quantize --help" },
        { ENG_quantize, "m -o y --expert q4_k", "did you mean --experts?" },
        { ENG_quantize, "m -o y --shape x", "--shape is not a flag of quantize, but of synth" },
        { ENG_run, "-m m --tmep 1", "did you mean --temp?" },
        { ENG_run, "-m m --top_k 1", "did you mean --top-k?" },
        { ENG_run, "-m m --xyzzy", "--xyzzy is unknown; see spillway run --help" },
        { ENG_run, "-m m -z", "-z is unknown; see" },
        { ENG_run, "-m m -nx", "-nx is unknown; see" }, /* no suggestion for so short a name */
        { ENG_run, "-m m -ot exps=CPU", "run: -ot is not needed: --host-mem decides" },
        { ENG_serve, "-m m --flash-attn", "serve: --flash-attn is not needed: leave it out" },
        { ENG_serve, "-m m --api-key k", "--api-key is not known: write keys into a file" },
        { ENG_run, "-m= -p x", "run needs MODEL" },
        { ENG_serve, "-m m --cors chat.example.com", "--cors takes * or an origin such as" },
        { ENG_serve, "-m m --cors https://chat.example.com/", "without a path or a trailing /" },
        { ENG_run, "-m m -u 1", "-u is unknown" },
        { ENG_run, "-m m --modelmodelmodelmodelmodelmodelmodelmodelmodelmodel 1", "is unknown" },
        { ENG_tokenize, "-m m --temp 1", "--temp is not a flag of tokenize, but of run" },
        { ENG_run, "-m m --gen 1", "--gen is not a flag of run, but of bench" },
        { ENG_serve, "-m m --dsi 2",
          "--dsi 2: only run verifies with several workers, for its one sequence; "
          "serve takes 0, 1 and auto" },
        { ENG_bench, "-m m --dsi auto --gamma 3",
          "--dsi auto chooses the draft length itself: leave --gamma at "
          "auto, or use --dsi 1" },
        { ENG_bench, "-m m --dsi some", "auto, or a whole number from 0 to 64" },
        { ENG_run, "-m m --json",
          "--json is not a flag of run, but of list, eval, inspect, quantize, imatrix, pack, batch, "
          "bench, fit, plan, doctor" },
        { ENG_run, "-m m --parallel 2", "--parallel is not a flag of run, but of serve, batch, plan" },
        { ENG_plan, "", "plan needs MODEL" },
        { ENG_fit, "-o out", "fit needs MODEL" },
        { ENG_batch, "-m m -o out", "batch needs IN.jsonl" },
        { ENG_batch, "-m m in", "batch needs -o OUT.jsonl" },
        { ENG_batch, "-m m in -o out other", "'other' is one word too many" },
        { ENG_plan, "-m m -np 0", "-np takes a whole number from 1 to 4096" },
        { ENG_run, "-m m --temp", "--temp needs a value, X" },
        { ENG_run, "-m m --temp hot", "--temp takes a number from 0 to 100, not 'hot'" },
        { ENG_run, "-m m --temp nan", "--temp takes" },
        { ENG_run, "-m m --temp 0x1", "--temp takes" },
        { ENG_run, "-m m --temp -0.1", "--temp takes" },
        { ENG_run, "-m m --temp 1.0.0", "--temp takes" },
        { ENG_run, "-m m --temp=", "--temp= takes" },
        { ENG_run, "-m m --top-k 1.5", "--top-k takes a whole number" },
        { ENG_run, "-m m --top-k 2147483648", "--top-k takes a whole number from 0 to 2147483647" },
        { ENG_run, "-m m --top-k 99999999999999999999", "--top-k takes a whole number" },
        { ENG_run, "-m m --top-k 5k", "--top-k takes a whole number" },
        { ENG_run, "-m m -t -1", "-t takes a whole number from 0 to 1024" },
        { ENG_run, "-m m -s 18446744073709551616", "-s takes" },
        { ENG_run, "-m m -s -2", "-s takes" },
        { ENG_run, "-m m --isa sse", "scalar, avx2, avx512 or avx512vbmi" },
        { ENG_run, "-m m --kv int4", "f16, f32 or int8" },
        { ENG_run, "-m m --io mmap", "auto, uring or pread" },
        { ENG_run, "-m m --ignore-eos=maybe", "true or false" },
        { ENG_run, "-m m --logit-bias 5", "ID=NUMBER" },
        { ENG_run, "-m m --logit-bias -5=1", "ID=NUMBER" },
        { ENG_run, "-m m --logit-bias 5=inf", "ID=NUMBER" },
        { ENG_run, "-m m --logit-bias =5", "ID=NUMBER" },
        { ENG_run, "-m m --stop=", "none empty" },
        { ENG_run, "m hello world", "'world' is not a flag; put" },
        { ENG_run, "-m m -p hello world", "'world' is not a flag; put" },
        { ENG_serve, "m hello", "'hello' is one word too many" },
        { ENG_run, "m --raw --system x", "--raw uses no chat template: leave out --system" },
        { ENG_run, "m --raw --chat-template x", "--raw uses no chat template: leave out --chat-template" },
        { ENG_run, "m --special", "--special works with --raw only" },
        { ENG_inspect, "a.gguf b", "'b' is one word too many" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuses(bad[i].command, bad[i].words, bad[i].told);

    char words[512] = "-m m";
    for (int i = 0; i <= ENG_MAX_STOP; i++)
        strcat(words, " --stop=x");
    refuses(ENG_run, words, "up to 16 texts");
}

static void nearest(void **state)
{
    (void)state;
    static const char *const names[] = { "run", "eval", "tokenize", "inspect", "doctor" };
    assert_string_equal(eng_nearest("tokenise", names, 5), "tokenize");
    assert_string_equal(eng_nearest("rnu", names, 5), "run");
    assert_string_equal(eng_nearest("doctr", names, 5), "doctor");
    assert_null(eng_nearest("ru", (const char *const[]){ "cut" }, 1)); /* as many mistakes as letters */
    assert_null(eng_nearest("", names, 5));
    assert_null(eng_nearest("serve", names, 5));
    assert_null(eng_nearest("keep", (const char *const[]){ "temp" }, 1)); /* half of the letters */
    assert_string_equal(eng_nearest("prot", (const char *const[]){ "part", "port" }, 2), "port"); /* a swap is one */
    assert_null(eng_nearest("a very long word that is like no other", names, 5));
}

static void help(void **state)
{
    (void)state;
    static const struct {
        enum eng_command_id command;
        const char *words, *there, *absent;
    } asked[] = {
        { ENG_run, "--help", "usage: spillway run MODEL [flags]", "--gen" },
        { ENG_run, "-m m -h",
          "  --temp X              sampling temperature; 0: always the likeliest token\n"
          "                        [0.8]\n",
          "--top-k" },
        { ENG_run, "--help-all",
          "  --temperature, --temp X\n                        sampling temperature; 0: always the likeliest "
          "token\n                        [0.8]\n",
          "--batch" },
        { ENG_bench, "--help", "--batch LIST", "--min-p" },
        { ENG_inspect, "-h", "usage: spillway inspect MODEL [flags]", "--threads" },
    };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        char text[1 << 15] = "";
        FILE *f = tmpfile();
        int kept = dup(STDOUT_FILENO);
        fflush(stdout);
        dup2(fileno(f), STDOUT_FILENO);
        int e = parse(asked[i].command, asked[i].words);
        fflush(stdout);
        dup2(kept, STDOUT_FILENO);
        close(kept);
        rewind(f);
        size_t n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
        assert_int_equal(e, 1);
        assert_true(n > 0);
        assert_non_null(strstr(text, asked[i].there));
        assert_null(strstr(text, asked[i].absent));
    }
}

/* ---- environment and file ---------------------------------------------------------------------- */

static void environment(void **state)
{
    (void)state;
    setenv("SPILLWAY_TEMP", "0.5", 1);
    setenv("SPILLWAY_MODEL", "from-env", 1);
    setenv("SPILLWAY_TOP_K", "", 1); /* empty: as if unset */
    setenv("SPILLWAY_KV_MEM", "3M", 1);
    setenv("SPILLWAY_BATCH", "nonsense for run", 1);
    accepts(ENG_run, "");
    assert_true(config.sampling.temperature == 0.5f);
    assert_string_equal(config.model, "from-env");
    assert_int_equal(config.sampling.top_k, 40);
    assert_int_equal(config.kv_mem, 3 << 20);
    accepts(ENG_run, "--temp 0.75 -m flag");
    assert_true(config.sampling.temperature == 0.75f);
    assert_string_equal(config.model, "flag");

    setenv("SPILLWAY_TEMP", "warm", 1);
    refuses(ENG_run, "-m m", "SPILLWAY_TEMP takes a number from 0 to 100, not 'warm'");
    unsetenv("SPILLWAY_TEMP");
    setenv("SPILLWAY_TEMPERATURE", "0.5", 1); /* aliases too */
    setenv("SPILLWAY_TMEP", "1", 1);
    accepts(ENG_run, "");
    assert_true(config.sampling.temperature == 0.5f);
    assert_non_null(strstr(said, "SPILLWAY_TMEP in the environment is not an option"));
}

static void file(void **state)
{
    (void)state;
    static const char text[] = "; comment\n"
                               "model = from file.gguf\n"
                               "temp = 0.5\r\n"
                               "batch = 1,2\n"
                               "kv-mem=1G\n"
                               "stop = one\nstop = two\n"
                               "[run]\n"
                               "top-k = 7 ; inline\n"
                               "ignore-eos = yes\n"
                               "stop = three\n"
                               "[bench]\n"
                               "gen = 9\n";
    file_accepts(ENG_run, "", text);
    assert_string_equal(config.model, "from file.gguf");
    assert_true(config.sampling.temperature == 0.5f);
    assert_int_equal(config.kv_mem, 1 << 30);
    assert_int_equal(config.sampling.top_k, 7);
    assert_true(config.ignore_eos);
    assert_int_equal(config.n_stop, 1);
    assert_string_equal(config.stop[0], "three");

    file_accepts(ENG_run, "-m m", "stop = one\nstop = two\n");
    assert_int_equal(config.n_stop, 2);
    assert_string_equal(config.stop[1], "two");

    setenv("SPILLWAY_TEMP", "0.75", 1); /* flag > environment > file > default */
    file_accepts(ENG_run, "--top-k 3 --stop x --stop y", text);
    assert_true(config.sampling.temperature == 0.75f);
    assert_int_equal(config.sampling.top_k, 3);
    assert_int_equal(config.n_stop, 2);
    assert_string_equal(config.stop[0], "x");
    unsetenv("SPILLWAY_TEMP");

    file_accepts(ENG_bench, "", text);
    assert_int_equal(config.n_gen, 9);
    assert_string_equal(config.batches, "1,2");

    char words[128];
    write_file("temp = 0.125", 12); /* --config beats SPILLWAY_CONFIG */
    snprintf(words, sizeof words, "-m m --config %s", path);
    setenv("SPILLWAY_CONFIG", "/nonexistent", 1);
    accepts(ENG_run, words);
    assert_true(config.sampling.temperature == 0.125f);
    unlink(path);
}

static void file_mistakes(void **state)
{
    (void)state;
    file_refuses(ENG_run, "temp = 1\ntmep = 1\n", ":2: --tmep is unknown; did you mean --temp?");
    file_refuses(ENG_run, "temp = hot\n", ":1: temp takes a number from 0 to 100, not 'hot'");
    file_refuses(ENG_run, "[chat]\ntemp = 1\n", ":2: [chat] is not a command");
    file_refuses(ENG_run, "[tokenize]\ntemp = 1\n", ":2: --temp is not a flag of tokenize, but of run");
    file_refuses(ENG_run, "temp = 1\n\njust words\n", ":3: neither [command] nor name = value");

    char text[4096];
    memset(text, 'x', sizeof text);
    memcpy(text, "stop = ", 7);
    text[sizeof text - 1] = 0;
    file_refuses(ENG_run, text, ":1: the line is not text, or longer than");
    write_file("temp = 1\nstop = a\0b\n", 20);
    refuses(ENG_run, "-m m", ":2: the line is not text");
    unlink(path);

    setenv("SPILLWAY_CONFIG", "/nonexistent/file", 1);
    assert_int_equal(parse(ENG_run, "-m m"), KN_ENOENT);
    assert_non_null(strstr(said, "/nonexistent/file"));
    setenv("SPILLWAY_CONFIG", "/", 1);
    assert_true(parse(ENG_run, "-m m") < 0);
}

static void hub_is(const char *cache, const char *token_file)
{
    accepts(ENG_list, "");
    if (!config.hub.cache || strcmp(config.hub.cache, cache) != 0)
        fail_msg("the cache is %s, not %s", config.hub.cache ? config.hub.cache : "none", cache);
    assert_string_equal(config.hub.token_file, token_file);
}

/* The variables of the hub's own client, the strongest last; "~" is the home. */
static void places_of_models(void **state)
{
    static const char *const variables[] = {
        "HF_HOME",        "HF_HUB_CACHE",           "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME",
        "HF_TOKEN",       "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH",         "HF_ENDPOINT",
        "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",   "OLLAMA_MODELS"
    };
    char home[512] = "";
    (void)state;
    if (getenv("HOME"))
        snprintf(home, sizeof home, "%s", getenv("HOME"));
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    setenv("HOME", "/h", 1);
    hub_is("/h/.cache/huggingface/hub", "/h/.cache/huggingface/token");
    assert_string_equal(config.hub.endpoint, "https://huggingface.co");
    assert_string_equal(config.hub.ollama[0], "/h/.ollama/models");
    assert_string_equal(config.hub.lm_studio[0], "/h/.lmstudio/models");
    assert_null(config.hub.token);
    assert_false(config.hub.offline);
    setenv("XDG_CACHE_HOME", "/x", 1);
    hub_is("/x/huggingface/hub", "/x/huggingface/token");
    setenv("HF_HOME", "~/hf", 1);
    hub_is("/h/hf/hub", "/h/hf/token");
    setenv("HUGGINGFACE_HUB_CACHE", "/old", 1);
    hub_is("/old", "/h/hf/token");
    setenv("HF_HUB_CACHE", "~", 1);
    setenv("HF_TOKEN_PATH", "/t", 1);
    hub_is("/h", "/t");
    setenv("HF_TOKEN", "secret", 1);
    setenv("HF_ENDPOINT", "http://mirror", 1);
    setenv("OLLAMA_MODELS", "/o", 1);
    setenv("HF_HUB_OFFLINE", "True", 1);
    accepts(ENG_pull, "o/n");
    assert_string_equal(config.name, "o/n");
    assert_string_equal(config.hub.token, "secret");
    assert_string_equal(config.hub.endpoint, "http://mirror");
    assert_string_equal(config.hub.ollama[0], "/o");
    assert_null(config.hub.ollama[1]);
    assert_true(config.hub.offline);
    setenv("HF_HUB_OFFLINE", "0", 1);
    accepts(ENG_run, "o/n");
    assert_false(config.hub.offline);
    accepts(ENG_run, "o/n --offline");
    assert_true(config.hub.offline);
    unsetenv("HF_HUB_CACHE");
    unsetenv("HUGGINGFACE_HUB_CACHE");
    unsetenv("HF_HOME");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    accepts(ENG_list, "");
    assert_null(config.hub.cache);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    if (home[0])
        setenv("HOME", home, 1);
}

/* Every command accepts the sample config file. */
static void sample_file(void **state)
{
    (void)state;
    setenv("SPILLWAY_CONFIG", "configs/spillway.ini", 1);
    for (int c = 0; c < ENG_COMMAND_COUNT; c++)
        accepts((enum eng_command_id)c, c == ENG_synth      ? "--shape x -o y"
                                        : c == ENG_quantize ? "-m m -o y"
                                        : c == ENG_imatrix  ? "-m m --text x -o y"
                                        : c == ENG_simulate ? "dsi"
                                        : c == ENG_pull     ? "o/n"
                                        : c == ENG_list     ? ""
                                        : c == ENG_rm       ? "o/n"
                                        : c == ENG_batch    ? "-m m in -o out"
                                                            : "-m m");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(defaults, set_up, tear_down),
        cmocka_unit_test_setup_teardown(flags_and_aliases, set_up, tear_down),
        cmocka_unit_test_setup_teardown(steps_of_sampling, set_up, tear_down),
        cmocka_unit_test_setup_teardown(sizes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(threads_beyond_the_cpus, set_up, tear_down),
        cmocka_unit_test_setup_teardown(words_without_dashes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(mistakes_are_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nearest, set_up, tear_down),
        cmocka_unit_test_setup_teardown(help, set_up, tear_down),
        cmocka_unit_test_setup_teardown(environment, set_up, tear_down),
        cmocka_unit_test_setup_teardown(file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(file_mistakes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(places_of_models, set_up, tear_down),
        cmocka_unit_test_setup_teardown(sample_file, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
