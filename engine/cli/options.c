/* engine/cli/options.c - every flag there is: who takes it, where it goes, what it may be, what help says.
 *
 * One table drives the parsing of flags, SPILLWAY_* and INI keys, the ranges and --help: a new option is
 * one line. */
#include "engine/cli/options.h"

#include <stddef.h>
#include <string.h>

#define MAX_MISTAKE 2                           /* letters, for "did you mean" */

/* ---- the table --------------------------------------------------------------------------------- */

#define RUN      (1u << ENG_run)
#define SERVE    (1u << ENG_serve)
#define EVAL     (1u << ENG_eval)
#define TOKENIZE (1u << ENG_tokenize)
#define RENDER   (1u << ENG_render)
#define INSPECT  (1u << ENG_inspect)
#define QUANTIZE (1u << ENG_quantize)
#define PACK     (1u << ENG_pack)
#define SYNTH    (1u << ENG_synth)
#define BATCH    (1u << ENG_batch)
#define BENCH    (1u << ENG_bench)
#define FIT      (1u << ENG_fit)
#define PLAN     (1u << ENG_plan)
#define SIMULATE (1u << ENG_simulate)
#define DOCTOR   (1u << ENG_doctor)
#define LOAD     (RUN | SERVE | BATCH | EVAL | BENCH | FIT) /* those that load a model */
#define MODEL    (LOAD | PLAN)          /* those that split memory for one */
#define DRAFT    (RUN | SERVE | BATCH | BENCH | PLAN) /* those that may draft */
#define AT(f)    offsetof(struct eng_config, f)
#define SAMPLE(f) offsetof(struct eng_config, sampling.f)

/* clang-format off */
static const struct eng_option options[] = {
    { "model", "-m", MODEL | TOKENIZE | RENDER | INSPECT | QUANTIZE | PACK | DOCTOR, ENG_TEXT, AT(model), 0, 0,
      "MODEL", "a .gguf, the first of its splits, or a folder with config.json and .safetensors" },
    { "prompt", "-p", RUN, ENG_TEXT, AT(prompt), 0, 0,
      "TEXT", "answer this and exit" },
    { "file", "-f", RUN, ENG_TEXT, AT(input), 0, 0,
      "FILE", "read the prompt from a file" },
    { "predict", "-n --n-predict", RUN | SERVE | BATCH, ENG_INTEGER, AT(n_predict), -1, INT32_MAX,
      "N", "tokens at most; -1: until the model stops" },
    { "host", "", SERVE, ENG_TEXT, AT(host), 0, 0,
      "NAME", "address to listen on; others than this machine's own need --api-key-file" },
    { "port", "", SERVE, ENG_INTEGER, AT(port), 0, 65535,
      "N", "0: any that is free" },
    { "api-key-file", "", SERVE, ENG_TEXT, AT(api_key_file), 0, 0,
      "FILE", "keys that may ask, one a line" },
    { "alias", "-a --served-model-name", SERVE, ENG_TEXT, AT(alias), 0, 0,
      "NAMES", "what the model is called, between commas; its file's name unless told" },
    { "queue", "", SERVE, ENG_INTEGER, AT(n_queue), 0, 4096,
      "N", "requests that wait beyond --parallel; more are told to come again" },
    { "cors", "", SERVE, ENG_TEXT, AT(cors), 0, 0,
      "ORIGIN", "pages from there may ask, https://chat.example.com, or *" },
    { "max-body", "", SERVE, ENG_SIZE, AT(max_body), 0, 0,
      "SIZE", "of one request [8M]" },
    { "max-connections", "", SERVE, ENG_INTEGER, AT(n_connection), 1, 1 << 20,
      "N", "open at once; more wait" },
    { "timeout", "", SERVE, ENG_INTEGER, AT(patience_s), 1, 86400,
      "SECONDS", "to send a whole request, or to take some of an answer" },
    { "idle-timeout", "", SERVE, ENG_INTEGER, AT(idle_s), 1, 86400,
      "SECONDS", "that a connection may stay without a request" },
    { "ping", "--sse-ping-interval", SERVE, ENG_INTEGER, AT(ping_s), 1, 86400,
      "SECONDS", "between signs of life in a stream that has nothing to say yet" },
    { "drain", "--shutdown-timeout", SERVE, ENG_INTEGER, AT(drain_s), 0, 86400,
      "SECONDS", "for requests under way when asked to end; asked again, at once" },
    { "stall", "", SERVE, ENG_INTEGER, AT(stall_s), 1, 86400,
      "SECONDS", "without a pass over waiting work, until /ready says 503" },
    { "ids", "", EVAL, ENG_TEXT, AT(ids), 0, 0,
      "LIST", "token ids, 1,2,3" },
    { "logits", "", EVAL, ENG_TEXT, AT(logits), 0, 0,
      "FILE", "write the logits of --ids: float32 [n_ids][n_vocab]" },
    { "text", "", EVAL, ENG_TEXT, AT(text), 0, 0,
      "FILE", "perplexity of this text" },
    { "template", "--chat-template-file", RENDER, ENG_TEXT, AT(template), 0, 0,
      "FILE", "a chat template, in place of the model's" },
    { "decode", "", TOKENIZE, ENG_FLAG, AT(decode), 0, 0,
      NULL, "ids to text" },
    { "special", "", RUN | EVAL | TOKENIZE, ENG_FLAG, AT(special), 0, 0,
      NULL, "special tokens in the text are tokens (tokenize: and BOS as the model asks)" },
    { "shape", "", SYNTH, ENG_TEXT, AT(shape), 0, 0,
      "NAME", "whose shape: qwen3-30b-a3b, qwen3-235b-a22b, mixtral-8x7b ..." },
    { "layers", "", SYNTH, ENG_INTEGER, AT(n_layer), 0, 1000,
      "N", "layers; 0: as many as the shape has" },
    { "ahead", "", SYNTH, ENG_FLAG, AT(ahead), 0, 0,
      NULL, "and one behind them that guesses ahead, for --draft mtp" },
    { "used", "", SYNTH, ENG_INTEGER, AT(n_used), 0, 1 << 16,
      "N", "experts that a token uses; 0: as many as the shape has" },
    { "vocab", "", SYNTH, ENG_INTEGER, AT(n_vocab), 0, 1 << 24,
      "N", "tokens; 0: as many as the shape has" },
    { "format", "", SYNTH, ENG_TEXT, AT(format), 0, 0,
      "NAME", "of experts and FFN: q4_k, q5_k, q6_k, q8_0, iq4_xs, mxfp4, q2_k ... bf16" },
    { "format", "", QUANTIZE, ENG_TEXT, AT(format), 0, 0,
      "NAME", "of all matrices: q4_k, q5_k, q6_k, q8_0, iq4_xs, q3_k, q2_k ... bf16" },
    { "experts", "", QUANTIZE, ENG_TEXT, AT(part_format[MOE_EXPERTS]), 0, 0,
      "NAME", "of routed experts, in place of --format" },
    { "ffn", "", QUANTIZE, ENG_TEXT, AT(part_format[MOE_FFN]), 0, 0,
      "NAME", "of shared experts and dense networks" },
    { "attention", "", QUANTIZE, ENG_TEXT, AT(part_format[MOE_ATTENTION]), 0, 0,
      "NAME", "of attention" },
    { "embedding", "", QUANTIZE, ENG_TEXT, AT(part_format[MOE_EMBEDDING]), 0, 0,
      "NAME", "of the token embedding" },
    { "head", "", QUANTIZE, ENG_TEXT, AT(part_format[MOE_HEAD]), 0, 0,
      "NAME", "of the output matrix" },
    { "requantize", "", QUANTIZE, ENG_FLAG, AT(requantize), 0, 0,
      NULL, "even weights that are quantised already" },
    { "output", "-o", SYNTH | QUANTIZE | FIT, ENG_TEXT, AT(output), 0, 0,
      "FILE", "file to write" },
    { "output", "-o", PACK, ENG_TEXT, AT(output), 0, 0,
      "FILE", "file to write; unless told, MODEL with .experts in place of .gguf, where it is found by itself" },
    { "input", "-i", BATCH, ENG_TEXT, AT(input), 0, 0,
      "FILE", "requests, one a line; the name alone will do" },
    { "output", "-o", BATCH, ENG_TEXT, AT(output), 0, 0,
      "FILE", "answers are added to it; what it holds already is not done again" },
    { "errors", "", BATCH, ENG_TEXT, AT(errors), 0, 0,
      "FILE", "the same for what cannot be answered; unless told, the output's name with .errors" },
    { "retry-failed", "", BATCH, ENG_FLAG, AT(retry_failed), 0, 0,
      NULL, "empty the errors file first, and try those again" },
    { "metrics-port", "", BATCH, ENG_INTEGER, AT(metrics_port), 0, 65535,
      "N", "answer GET /metrics there on 127.0.0.1, as serve does; 0: do not" },
    { "batch", "", BENCH, ENG_TEXT, AT(batches), 0, 0,
      "LIST", "sequences decoded together, 1,4,16" },
    { "prompt", "", BENCH, ENG_INTEGER, AT(n_prompt), 0, 1 << 20,
      "N", "tokens of each prompt" },
    { "file", "-f", BENCH, ENG_TEXT, AT(input), 0, 0,
      "FILE", "prompts are pieces of this text; unless told, random tokens, which no drafter knows" },
    { "gen", "", BENCH, ENG_INTEGER, AT(n_gen), 0, 1 << 20,
      "N", "tokens generated and timed" },
    { "rounds", "", BENCH, ENG_INTEGER, AT(n_round), 1, 64,
      "N", "rounds of blocks without and with drafts" },
    { "against", "", BENCH, ENG_TEXT, AT(against), 0, 0,
      "LIST", "numbers of drafted tokens, 1,2,4, whose blocks take turns with --gamma's" },
    { "warmup", "", BENCH, ENG_INTEGER, AT(n_warmup), -1, 1 << 20,
      "N", "passes that do not count; -1: until settled" },

    { "what", "", SIMULATE, ENG_TEXT, AT(what), 0, 0,
      "WHAT", "dsi: plain decoding, speculation (SI), distributed speculation; moesd: how a cost model fits" },
    { "preset", "", SIMULATE, ENG_TEXT, AT(preset), 0, 0,
      "NAME", "table or grid, as published; in place of latencies and acceptance; moesd: table or curve" },
    { "method", "", SIMULATE, ENG_TEXT, AT(method), 0, 0,
      "NAME", "of the grid: event, what happens, or offline, the published formulas" },
    { "target-ms", "", SIMULATE, ENG_NUMBER, AT(target_ms), 0.001, 1e6,
      "X", "milliseconds of a target's pass" },
    { "draft-ms", "", SIMULATE, ENG_NUMBER, AT(draft_ms), 0.001, 1e6,
      "X", "milliseconds of a drafted token" },
    { "acceptance", "", SIMULATE, ENG_NUMBER, AT(acceptance), 0, 1,
      "X", "share of drafted tokens that are right" },
    { "lookahead", "", SIMULATE, ENG_TEXT, AT(lookahead), 0, 0,
      "LIST", "drafted tokens to verify together, 1,5,10 or 1-200" },
    { "sp", "", SIMULATE, ENG_INTEGER, AT(n_target), 1, 1000,
      "N", "targets that verify at the same time" },
    { "contention", "", SIMULATE, ENG_NUMBER, AT(contention), 0, 1,
      "X", "N targets at once take 1 + X (N - 1) times as long: 0 memory of their own, 1 all in common" },
    { "noise", "", SIMULATE, ENG_NUMBER, AT(noise), 0, 1,
      "X", "moesd: deviation of a measurement, as a share of it" },
    { "tokens", "", SIMULATE, ENG_INTEGER, AT(n_tok), 0, 1 << 20,
      "N", "tokens of an output; 0: 50, and 1000 for the grid" },
    { "repeats", "", SIMULATE, ENG_INTEGER, AT(n_repeat), 0, 1 << 20,
      "N", "outputs to take the mean of; 0: 3000, 5 for the grid and moesd" },
    { "authors", "", SIMULATE, ENG_FLAG, AT(authors), 0, 0,
      NULL, "let SI too take only the lookaheads that DSI's targets allow" },

    { "ctx-size", "-c", MODEL, ENG_INTEGER, AT(n_ctx), 0, 1 << 24,
      "N", "context of a request; 0: the model's, at most 8192" },
    { "chunk", "-ub --ubatch-size", MODEL, ENG_INTEGER, AT(n_chunk), 1, 4096,
      "N", "prompt tokens in one pass" },
    { "threads", "-t", MODEL | QUANTIZE | PACK | SYNTH | SIMULATE | DOCTOR, ENG_INTEGER, AT(n_thread), 0, 1024,
      "N", "0: one per CPU" },
    { "parallel", "-np --max-num-seqs", SERVE | PLAN, ENG_INTEGER, AT(n_parallel), 1, 4096,
      "N", "requests at once" },
    { "parallel", "-np", BATCH, ENG_INTEGER, AT(n_parallel), 0, 4096,
      "N", "requests at once; 0: as many as are expected to be fastest" },
    { "host-mem", "", MODEL, ENG_SIZE, AT(host_mem), 0, 0,
      "SIZE", "all the memory that may be taken; 0: what is free" },
    { "kv-mem", "", MODEL, ENG_SIZE, AT(kv_mem), 0, 0,
      "SIZE", "of it for keys and values; 0: for every request's context, as far as is sound" },
    { "no-pack", "", LOAD, ENG_FLAG, AT(no_pack), 0, 0,
      NULL, "leave the pack file beside the model alone" },
    { "mirror", "", MODEL | DOCTOR, ENG_TEXT, AT(mirror), 0, 0,
      "DIR", "folder on another drive with a copy of the model file or of its .experts file, whole or its beginning: "
      "both are read at once" },
    { "io", "", LOAD | PACK, ENG_IO, AT(io), 0, 0,
      "NAME", "how files are read: auto, uring, pread" },
    { "disk-rate", "", PLAN, ENG_SIZE, AT(disk_rate), 0, 0,
      "SIZE", "bytes a second that the disk reads; 0: measured" },
    { "dram-rate", "", PLAN, ENG_SIZE, AT(dram_rate), 0, 0,
      "SIZE", "bytes a second that memory gives; 0: measured" },
    { "draft", "", FIT, ENG_DRAFTS, 0, 0, 0,
      "KIND", "measure this network's passes too, and from which acceptance on it pays: model:FILE, "
      "eagle:FILE[,tree=dynamic|static|chain], mtp[,tree=..]" },
    { "draft", "", DRAFT, ENG_DRAFTS, 0, 0, 0,
      "KIND", "who drafts: none, ngram, suffix[:FILE][,shared], model:FILE or eagle:FILE[,tree=chain|static|dynamic]"
      "[,lengths=FILE], mtp[,tree=..]: the layer that the model carries for it, bench: oracle:P; several times" },
    { "gamma", "--draft-max", DRAFT, ENG_OR_AUTO, AT(gamma), 0, 64,
      "N", "tokens drafted for each sequence; auto: as many as pay" },
    { "verify", "", DRAFT, ENG_VERIFY, AT(verify), 0, 0,
      "RULE", "coupled: the very text of no draft; ratio, block: its distribution" },
    { "dsi", "", DRAFT & ~PLAN, ENG_OR_AUTO, AT(n_dsi), 0, 64,
      "N", "distributed speculation: a --draft model drafts on while passes verify. 1: always, auto: where that pays; "
      "run: 2 and more workers that verify" },
    { "dsi-lookahead", "", DRAFT & ~PLAN, ENG_INTEGER, AT(n_ahead), 0, 63,
      "N", "tokens that it drafts meanwhile; 0: as there is time for" },
    { "fit", "", DRAFT, ENG_TEXT, AT(fit), 0, 0,
      "FILE", "what fit -o found of this model, and of a drafter: the first opinion of whether drafts pay" },
    { "explain", "", DRAFT, ENG_FLAG, AT(explain), 0, 0,
      NULL, "say who drafts how much, and why, whenever that changes" },
    { "kv", "", MODEL, ENG_KV, AT(kv), 0, 0,
      "f16|f32", "number format of keys and values" },
    { "isa", "", MODEL | QUANTIZE | PACK, ENG_ISA, AT(isa), 0, 0,
      "NAME", "scalar, avx2 or avx512 at most: same bytes, other speed" },

    { "seed", "-s", RUN | SYNTH | BENCH | SIMULATE, ENG_SEED, SAMPLE(seed), 0, 0,
      "N", "of the noise; run draws one, or with -1, and says it" },
    { "temp", "--temperature", RUN | SERVE | BATCH | BENCH, ENG_NUMBER, SAMPLE(temperature), 0, 100,
      "X", "0: always the likeliest token" },
    { "top-k", "", RUN | SERVE | BATCH, ENG_INTEGER, SAMPLE(top_k), 0, INT32_MAX,
      "N", "the N likeliest tokens; 0: all" },
    { "top-p", "", RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(top_p), 0, 1,
      "X", "the likeliest that make up X together; 1: all" },
    { "min-p", "", RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(min_p), 0, 1,
      "X", "those at least X times as likely as the first; 0: all" },
    { "repeat-penalty", "", RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(repetition), 0.01, 100,
      "X", "logits of tokens seen, divided by X; 1: off" },
    { "presence-penalty", "", RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(presence), -100, 100,
      "X", "off logits of tokens seen; 0: off" },
    { "frequency-penalty", "", RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(frequency), -100, 100,
      "X", "off logits for each time seen; 0: off" },
    { "repeat-last-n", "", RUN, ENG_INTEGER, SAMPLE(repeat_last), -1, INT32_MAX,
      "N", "tokens that penalties see; -1: all" },
    { "logit-bias", "-l", RUN, ENG_BIASES, 0, 0, 0,
      "ID=X", "add X to a token's logit, -inf: never; several times" },
    { "stop", "-r --reverse-prompt", RUN, ENG_STOPS, 0, 0, 0,
      "TEXT", "end before this text; several times" },
    { "stop-id", "", RUN, ENG_STOP_IDS, 0, 0, INT32_MAX,
      "ID", "end at this token, which is not shown; several times" },
    { "ignore-eos", "", RUN, ENG_FLAG, AT(ignore_eos), 0, 0,
      NULL, "go on when the model would stop" },

    { "json", "", EVAL | BATCH | INSPECT | QUANTIZE | PACK | BENCH | FIT | PLAN | DOCTOR, ENG_FLAG, AT(json), 0, 0,
      NULL, "machine-readable" },
    { "quiet", "-q", ENG_ALL_COMMANDS, ENG_FLAG, AT(quiet), 0, 0,
      NULL, "results, warnings and errors only" },
    { "verbose", "-v", ENG_ALL_COMMANDS, ENG_FLAG, AT(verbose), 0, 0,
      NULL, "say more on stderr" },
    { "config", "", ENG_ALL_COMMANDS, ENG_TEXT, AT(config), 0, 0,
      "FILE", "INI file: long flag names, [command] sections" },
};
/* clang-format on */

#define N_OPTION ((int)(sizeof options / sizeof *options))
_Static_assert(sizeof options / sizeof *options <= ENG_MAX_OPTION, "config.c marks what it has seen");

/* What a command cannot do without. */
static const struct { enum eng_command_id command; size_t at; const char *flag; } needed[] = {
    { ENG_run, AT(model), "-m MODEL" },       { ENG_serve, AT(model), "-m MODEL" },
    { ENG_eval, AT(model), "-m MODEL" },
    { ENG_tokenize, AT(model), "-m MODEL" },  { ENG_inspect, AT(model), "MODEL" },
    { ENG_bench, AT(model), "-m MODEL" },     { ENG_fit, AT(model), "-m MODEL" },
    { ENG_plan, AT(model), "-m MODEL" },
    { ENG_synth, AT(shape), "--shape NAME" }, { ENG_synth, AT(output), "-o FILE" },
    { ENG_quantize, AT(model), "MODEL" },     { ENG_quantize, AT(output), "-o FILE" },
    { ENG_pack, AT(model), "MODEL" },         { ENG_simulate, AT(what), "dsi or moesd" },
    { ENG_batch, AT(model), "-m MODEL" },     { ENG_batch, AT(input), "IN.jsonl" },
    { ENG_batch, AT(output), "-o OUT.jsonl" },
};

const char *const eng_command_name[ENG_COMMAND_COUNT] = {
#define COMMAND_NAME(name, text) #name,
    ENG_COMMANDS(COMMAND_NAME)
#undef COMMAND_NAME
};

void eng_option_defaults(struct eng_config *c, enum eng_command_id command)
{
    memset(c, 0, sizeof *c);
    spec_params_default(&c->sampling);
    if (command == ENG_run) {
        c->sampling.temperature = 0.8f;
        c->sampling.top_k = 40;
        c->sampling.top_p = 0.95f;
        c->sampling.min_p = 0.05f;
    }
    c->sampling.bias = c->bias;
    c->n_predict = -1;
    c->n_chunk = 512;
    c->n_parallel = command == ENG_batch ? 0 : 1;
    c->n_prompt = 512;
    c->n_gen = 128;
    c->n_warmup = -1;
    c->n_round = 3;
    c->batches = "1,4,8,16";
    c->format = "q4_k";
    c->gamma = ENG_GAMMA_AUTO;
    c->method = "event";
    c->target_ms = 30;
    c->draft_ms = 3;
    c->acceptance = 0.8f;
    c->noise = 0.02f;
    c->n_target = 7;
    c->isa = KN_ISA_COUNT - 1;
    c->kv = KN_KV_F16;
    if (command == ENG_serve) {
        c->n_parallel = 8;
        c->host = "127.0.0.1";
        c->port = 8080;
        c->n_queue = 128;
        c->n_connection = 4096;
        c->max_body = 8 << 20;
        c->patience_s = 30;
        c->idle_s = 300;
        c->ping_s = 10;
        c->drain_s = 30;
        c->stall_s = 60;
    }
}

/* ---- names ------------------------------------------------------------------------------------- */

/* Letters to insert, remove or change; an exchange of two neighbours is two changes. */
static int distance(const char *a, const char *b)
{
    int row[ENG_MAX_NAME + 1], n = (int)strlen(b);
    kn_assert(n <= ENG_MAX_NAME);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = row[0]++;
        for (int j = 1; j <= n; j++) {
            int change = diagonal + (a[i] != b[j - 1]);
            diagonal = row[j];
            row[j] = kn_min(change, kn_min(row[j - 1], row[j]) + 1);
        }
    }
    return row[n];
}

const char *eng_nearest(const char *word, const char *const *names, int n)
{
    const char *best = NULL;
    int least = MAX_MISTAKE + 1;
    for (int i = 0; i < n; i++) {
        int d = distance(word, names[i]);
        if (d < least && d < (int)strlen(names[i]) && d < (int)strlen(word)) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

/* Is `flag`, with its dashes, among these, which stand between spaces? */
static bool is_alias(const char *aliases, const char *flag)
{
    size_t n = strlen(flag);
    for (const char *a = aliases; (a = strstr(a, flag)); a += n)
        if ((a == aliases || a[-1] == ' ') && (a[n] == ' ' || !a[n]))
            return n > 0;
    return false;
}

const struct eng_option *eng_option_find(const char *flag, unsigned commands)
{
    for (int i = 0; i < N_OPTION; i++) {
        const struct eng_option *o = &options[i];
        if (!(o->commands & commands))
            continue;
        if ((flag[0] == '-' && flag[1] == '-' && !strcmp(flag + 2, o->name)) ||
            is_alias(o->alias, flag))
            return o;
    }
    return NULL;
}

/* What people bring along from command lines of other servers, and what stands for it here. */
static const struct { const char *flags, *instead; } foreign[] = {
    { "-ngl --gpu-layers --n-gpu-layers -ncmoe --n-cpu-moe -cmoe --cpu-moe -ot --override-tensor -ts --tensor-split "
      "--cpu-offload-gb --gpu-memory-utilization",
      "is not needed: what is kept in memory and what on disk follows from --host-mem" },
    { "--mlock --mmap --no-mmap -fa --flash-attn --jinja -cb --cont-batching --no-warmup --metrics --numa "
      "--enable-prefix-caching --enable-chunked-prefill --trust-remote-code --enable-auto-tool-choice",
      "is not needed: leave it out" },
    { "-b --batch-size --max-num-batched-tokens",
      "is not known: --chunk N says how many tokens of prompts a pass takes" },
    { "-tb --threads-batch --threads-http", "is not known: --threads N is for all of it" },
    { "-ctk --cache-type-k -ctv --cache-type-v --kv-cache-dtype", "is not known: say --kv f16 or --kv f32" },
    { "-md --model-draft --draft-model --spec-draft-model", "is not known: say --draft model:FILE" },
    { "--max-model-len", "is not known: say --ctx-size N" },
    { "-hf -hfr --hf-repo -mu --model-url", "is not known: nothing is downloaded; -m takes a file or a folder" },
    { "--api-key", "is not known: write keys into a file, one a line, and say --api-key-file FILE" },
    { "-cnv --conversation -i --interactive -no-cnv --no-conversation",
      "is not needed: run is a chat on a terminal, and without one or with -p it answers and ends" },
};

int eng_option_unknown(const char *who, const char *flag, enum eng_command_id command)
{
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (is_alias(foreign[i].flags, flag))
            return kn_fail(KN_EINVAL, "%s: %s %s", who, flag, foreign[i].instead);
    const struct eng_option *other = eng_option_find(flag, ENG_ALL_COMMANDS);
    if (other) {
        char takers[128] = "";
        for (int i = 0; i < ENG_COMMAND_COUNT; i++)
            if (eng_option_find(flag, 1u << i))
                snprintf(takers + strlen(takers), sizeof takers - strlen(takers), "%s%s",
                         takers[0] ? ", " : "", eng_command_name[i]);
        return kn_fail(KN_EINVAL, "%s: %s is not for %s, but for %s", who, flag,
                       eng_command_name[command], takers);
    }
    const char *names[N_OPTION];
    int n = 0;
    for (int i = 0; i < N_OPTION; i++)
        if (options[i].commands & 1u << command)
            names[n++] = options[i].name;
    const char *near = eng_nearest(flag + strspn(flag, "-"), names, n);
    if (near)
        return kn_fail(KN_EINVAL, "%s: %s is unknown; did you mean --%s?", who, flag, near);
    return kn_fail(KN_EINVAL, "%s: %s is unknown; see spillway %s --help", who, flag,
                   eng_command_name[command]);
}

int eng_option_index(const struct eng_option *o) { return (int)(o - options); }

/* ---- for those who tell of it ---------------------------------------------------------------------- */

const struct eng_option *eng_option_at(int i) { return i < N_OPTION ? &options[i] : NULL; }

const char *eng_option_needed(enum eng_command_id command, int nth)
{
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (needed[i].command == command && nth-- == 0)
            return needed[i].flag;
    return NULL;
}

int eng_option_check(const struct eng_config *c, enum eng_command_id command)
{
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        const char *given = *(const char *const *)((const char *)c + needed[i].at);
        if (needed[i].command == command && (!given || !given[0]))      /* "$MODEL" of a script may be empty */
            return kn_fail(KN_EINVAL, "%s needs %s; see spillway %s --help", eng_command_name[command],
                           needed[i].flag, eng_command_name[command]);
    }
    const char *host = c->cors ? strstr(c->cors, "://") : NULL;
    if (c->cors && strcmp(c->cors, "*") != 0 && strcmp(c->cors, "null") != 0 && (!host || strchr(host + 3, '/')))
        return kn_fail(KN_EINVAL, "--cors takes * or what browsers call an origin, as https://chat.example.com, "
                       "without a path or a / at its end, not '%s'", c->cors);
    for (int i = 0; i < c->n_draft; i++)
        if (c->draft[i].kind == ENG_DRAFT_ORACLE && command != ENG_bench)
            return kn_fail(KN_EINVAL, "--draft oracle knows what will come only in bench, which runs everything twice");
    if (c->n_dsi > 1 && command != ENG_run)
        return kn_fail(KN_EINVAL, "--dsi %d: several workers verify one text at a time, which is run's; %s takes 0, 1 "
                       "and auto", c->n_dsi, eng_command_name[command]);
    if (command == ENG_run && c->prompt && c->input)
        return kn_fail(KN_EINVAL, "run: -p TEXT and -f FILE are two prompts: leave one out");
    if (c->output && !c->output[0])             /* what needs one has said so */
        return kn_fail(KN_EINVAL, "%s: -o is given no name", eng_command_name[command]);
    if (c->n_dsi == ENG_GAMMA_AUTO && c->gamma != ENG_GAMMA_AUTO)
        return kn_fail(KN_EINVAL, "--dsi auto chooses how much is drafted: leave --gamma at auto, or say --dsi 1");
    if (c->isa != KN_ISA_COUNT - 1 && c->isa > kn_isa_best())
        kn_say(KN_LOG_WARN, "this processor has no %s; %s it is", kn_isa_name(c->isa),
               kn_isa_name(kn_isa_best()));
    return 0;
}
