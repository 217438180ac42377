/* engine/cli/options.c - the table of all flags: commands, field, range and help text of each.
 *
 * The table drives the parsing of flags, SPILLWAY_* variables and INI keys, the range checks and --help, so a
 * new option is one entry. */
#include "engine/api/model_sampling.h"
#include "engine/cli/options.h"

#include <stddef.h>
#include <string.h>

#define MAX_MISTAKE 2   /* edit distance, for "did you mean" */
#define MAX_NAMES   160 /* flags of one command, with their long aliases */

/* ---- the table --------------------------------------------------------------------------------- */

#define RUN       (1u << ENG_run)
#define SERVE     (1u << ENG_serve)
#define EVAL      (1u << ENG_eval)
#define TOKENIZE  (1u << ENG_tokenize)
#define RENDER    (1u << ENG_render)
#define INSPECT   (1u << ENG_inspect)
#define QUANTIZE  (1u << ENG_quantize)
#define IMATRIX   (1u << ENG_imatrix)
#define PACK      (1u << ENG_pack)
#define SYNTH     (1u << ENG_synth)
#define BATCH     (1u << ENG_batch)
#define BENCH     (1u << ENG_bench)
#define FIT       (1u << ENG_fit)
#define PLAN      (1u << ENG_plan)
#define SIMULATE  (1u << ENG_simulate)
#define DOCTOR    (1u << ENG_doctor)
#define PULL      (1u << ENG_pull)
#define LIST      (1u << ENG_list)
#define RM        (1u << ENG_rm)
#define LOAD      (RUN | SERVE | BATCH | EVAL | IMATRIX | BENCH | FIT) /* commands that load a model */
#define MODEL     (LOAD | PLAN)                                        /* commands that split memory for a model */
#define READ      (MODEL | TOKENIZE | RENDER | INSPECT | QUANTIZE | PACK | DOCTOR) /* commands that take a model */
#define DRAFT     (RUN | SERVE | BATCH | BENCH | PLAN)                             /* commands with drafters */
#define COMMON    ENG_TOPIC_COMMON
#define TEXT      ENG_TOPIC_TEXT
#define SERVER    ENG_TOPIC_SERVER
#define MEMORY    ENG_TOPIC_MEMORY
#define SAMPLING  ENG_TOPIC_SAMPLING
#define DRAFTING  ENG_TOPIC_DRAFTING
#define MEASURE   ENG_TOPIC_MEASURE
#define SETTINGS  ENG_TOPIC_SETTINGS
#define AT(f)     offsetof(struct eng_config, f)
#define SAMPLE(f) offsetof(struct eng_config, sampling.f)

/* clang-format off */
static const struct eng_option options[] = {
    { "model", "-m -hf --hf-repo", COMMON, READ, ENG_TEXT, AT(model), 0, 0,
      "MODEL", "GGUF file (if split, the first), folder of .safetensors, or name as in pull" },
    { "name", "", COMMON, PULL, ENG_TEXT, AT(name), 0, 0,
      "NAME", "ORG/NAME, ORG/NAME:QUANT (such as Q4_K_M) or ORG/NAME@REVISION; --name is optional" },
    { "name", "", COMMON, RM, ENG_TEXT, AT(name), 0, 0,
      "NAME", "name as in pull; without :QUANT all of the revision; --name is optional" },
    { "yes", "-y", COMMON, RM, ENG_FLAG, AT(yes), 0, 0,
      NULL, "remove without asking" },
    { "offline", "", TEXT, READ, ENG_FLAG, AT(hub.offline), 0, 0,
      NULL, "send no request: use only models on this machine" },
    { "prompt", "-p", COMMON, RUN, ENG_TEXT, AT(prompt), 0, 0,
      "TEXT", "answer this prompt and exit; -p is optional" },
    { "file", "-f", COMMON, RUN, ENG_TEXT, AT(input), 0, 0,
      "FILE", "read the prompt from a file" },
    { "system", "-sys --system-prompt", COMMON, RUN, ENG_TEXT, AT(system), 0, 0,
      "TEXT", "system message of the conversation" },
    { "raw", "", COMMON, RUN, ENG_FLAG, AT(raw), 0, 0,
      NULL, "complete the prompt as it is, without the chat template" },
    { "no-history", "", TEXT, RUN, ENG_FLAG, AT(no_history), 0, 0,
      NULL, "do not keep typed messages for the next chat" },
    { "predict", "-n --n-predict --max-tokens", COMMON, RUN | SERVE | BATCH, ENG_INTEGER, AT(n_predict), -1, INT32_MAX,
      "N", "maximum tokens to generate; -1: until the model stops" },
    { "host", "", COMMON, SERVE, ENG_TEXT, AT(host), 0, 0,
      "NAME", "bind address; non-loopback needs --api-key-file" },
    { "allowed-host", "--allowed-hosts", SERVER, SERVE, ENG_TEXT, AT(allowed_host), 0, 0,
      "NAMES", "other host names of this server, comma-separated, or *" },
    { "port", "", COMMON, SERVE, ENG_INTEGER, AT(port), 0, 65535,
      "N", "TCP port; 0: any free port" },
    { "api-key-file", "", COMMON, SERVE, ENG_TEXT, AT(api_key_file), 0, 0,
      "FILE", "file of accepted API keys, one per line, with labels and limits" },
    { "alias", "-a --served-model-name", COMMON, SERVE, ENG_TEXT, AT(alias), 0, 0,
      "NAMES", "model names in the API, comma-separated; default: file name" },
    { "any-model", "", SERVER, SERVE, ENG_FLAG, AT(any_model), 0, 0,
      NULL, "answer requests for other model names, too, with this model" },
    { "files", "", SERVER, SERVE, ENG_TEXT, AT(files), 0, 0,
      "DIR", "folder for uploaded files: offers /v1/files and /v1/batches" },
    { "files-max", "", SERVER, SERVE, ENG_SIZE, AT(files_most), 1 << 20, 0,
      "SIZE", "limit of all uploaded files and answers of batches [10G]" },
    { "queue", "", SERVER, SERVE, ENG_INTEGER, AT(n_queue), 0, 4096,
      "N", "waiting requests, beyond those of --parallel; more get HTTP 429" },
    { "cors", "", SERVER, SERVE, ENG_TEXT, AT(cors), 0, 0,
      "ORIGIN", "allowed CORS origin, such as https://chat.example.com, or *" },
    { "max-body", "", SERVER, SERVE, ENG_SIZE, AT(max_body), 0, 0,
      "SIZE", "maximum size of one request [8M, less if --host-mem is below 768M]" },
    { "max-connections", "", SERVER, SERVE, ENG_INTEGER, AT(n_connection), 1, 1 << 20,
      "N", "maximum open connections; more wait to be accepted" },
    { "timeout", "", SERVER, SERVE, ENG_INTEGER, AT(patience_s), 1, 86400,
      "SECONDS", "time for a client to send a request, or to read on" },
    { "idle-timeout", "", SERVER, SERVE, ENG_INTEGER, AT(idle_s), 1, 86400,
      "SECONDS", "time until a connection without a request is closed" },
    { "ping", "--sse-ping-interval", SERVER, SERVE, ENG_INTEGER, AT(ping_s), 1, 86400,
      "SECONDS", "time between keep-alive events in a stream without output" },
    { "drain", "--shutdown-timeout", SERVER, SERVE, ENG_INTEGER, AT(drain_s), 0, 86400,
      "SECONDS", "time for running requests at shutdown; second signal: end now" },
    { "stall", "", SERVER, SERVE, ENG_INTEGER, AT(stall_s), 1, 86400,
      "SECONDS", "time without progress of a pass, while work waits, until /ready is 503" },
    { "log-format", "", SERVER, SERVE, ENG_LOG_FORMAT, AT(log_format), 0, 0,
      "NAME", "form of log lines: text or json, with time and level" },
    { "ids", "", COMMON, EVAL, ENG_TEXT, AT(ids), 0, 0,
      "LIST", "token ids, such as 1,2,3" },
    { "logits", "", COMMON, EVAL, ENG_TEXT, AT(logits), 0, 0,
      "FILE", "write the logits of --ids: float32 [n_ids][n_vocab]" },
    { "text", "", COMMON, EVAL, ENG_TEXT, AT(text), 0, 0,
      "FILE", "measure the perplexity of this text" },
    { "text", "", COMMON, IMATRIX, ENG_TEXT, AT(text), 0, 0,
      "FILE", "text for the model to read: like that of its use, 100,000 tokens or more" },
    { "imatrix", "", COMMON, QUANTIZE, ENG_TEXT, AT(imatrix), 0, 0,
      "FILE", "importance matrix, of imatrix or of llama.cpp, to weight errors by" },
    { "chat-template", "--template --chat-template-file", TEXT, RUN | SERVE | BATCH | RENDER, ENG_TEXT, AT(template), 0,
      0,
      "FILE", "chat template to use instead of the model's" },
    { "decode", "", COMMON, TOKENIZE, ENG_FLAG, AT(decode), 0, 0,
      NULL, "convert token ids to text" },
    { "special", "", TEXT, RUN | EVAL | IMATRIX | TOKENIZE, ENG_FLAG, AT(special), 0, 0,
      NULL, "parse special tokens; run: with --raw; tokenize adds BOS, too" },
    { "shape", "", COMMON, SYNTH, ENG_TEXT, AT(shape), 0, 0,
      "NAME", "model shape: qwen3-30b-a3b, qwen3-235b-a22b, mixtral-8x7b ..." },
    { "layers", "", COMMON, SYNTH, ENG_INTEGER, AT(n_layer), 0, 1000,
      "N", "number of layers; 0: as in the shape" },
    { "ahead", "", COMMON, SYNTH, ENG_FLAG, AT(ahead), 0, 0,
      NULL, "add a multi-token prediction layer, for --draft mtp" },
    { "used", "", COMMON, SYNTH, ENG_INTEGER, AT(n_used), 0, 1 << 16,
      "N", "experts used per token; 0: as in the shape" },
    { "vocab", "", COMMON, SYNTH, ENG_INTEGER, AT(n_vocab), 0, 1 << 24,
      "N", "vocabulary size in tokens; 0: as in the shape" },
    { "format", "", COMMON, SYNTH, ENG_TEXT, AT(format), 0, 0,
      "NAME", "format of experts and FFN: q4_k, q8_0, mxfp4 ... bf16" },
    { "down", "", COMMON, SYNTH, ENG_TEXT, AT(down), 0, 0,
      "NAME", "format of the experts' down matrices in every second layer" },
    { "format", "", COMMON, QUANTIZE, ENG_TEXT, AT(format), 0, 0,
      "NAME", "format of all matrices: q4_k, q8_0, q2_k ... bf16" },
    { "experts", "", COMMON, QUANTIZE, ENG_TEXT, AT(part_format[MOE_EXPERTS]), 0, 0,
      "NAME", "format of routed experts, instead of --format" },
    { "ffn", "", COMMON, QUANTIZE, ENG_TEXT, AT(part_format[MOE_FFN]), 0, 0,
      "NAME", "format of shared experts and dense FFNs" },
    { "attention", "", COMMON, QUANTIZE, ENG_TEXT, AT(part_format[MOE_ATTENTION]), 0, 0,
      "NAME", "format of attention matrices" },
    { "embedding", "", COMMON, QUANTIZE, ENG_TEXT, AT(part_format[MOE_EMBEDDING]), 0, 0,
      "NAME", "format of the token embedding" },
    { "head", "", COMMON, QUANTIZE, ENG_TEXT, AT(part_format[MOE_HEAD]), 0, 0,
      "NAME", "format of the output matrix" },
    { "requantize", "", COMMON, QUANTIZE, ENG_FLAG, AT(requantize), 0, 0,
      NULL, "also convert weights that are already quantised" },
    { "output", "-o", COMMON, SYNTH | QUANTIZE | IMATRIX | FIT, ENG_TEXT, AT(output), 0, 0,
      "FILE", "file to write" },
    { "output", "-o", COMMON, PACK, ENG_TEXT, AT(output), 0, 0,
      "FILE", "file to write; default: MODEL with .experts instead of .gguf" },
    { "input", "-i", COMMON, BATCH, ENG_TEXT, AT(input), 0, 0,
      "FILE", "request file, one JSON object per line; -i is optional" },
    { "output", "-o", COMMON, BATCH, ENG_TEXT, AT(output), 0, 0,
      "FILE", "answers are appended; requests it already answers are skipped" },
    { "errors", "", COMMON, BATCH, ENG_TEXT, AT(errors), 0, 0,
      "FILE", "failed requests are appended; default: output name + .errors" },
    { "retry-failed", "", COMMON, BATCH, ENG_FLAG, AT(retry_failed), 0, 0,
      NULL, "empty the errors file first and retry its requests" },
    { "metrics-port", "", SERVER, BATCH, ENG_INTEGER, AT(metrics_port), 0, 65535,
      "N", "port on 127.0.0.1 for GET /metrics, as in serve; 0: off" },
    { "batch", "", COMMON, BENCH, ENG_TEXT, AT(batches), 0, 0,
      "LIST", "batch sizes to measure, such as 1,4,16" },
    { "prompt", "", COMMON, BENCH, ENG_INTEGER, AT(n_prompt), 0, 1 << 20,
      "N", "tokens per prompt" },
    { "file", "-f", COMMON, BENCH, ENG_TEXT, AT(input), 0, 0,
      "FILE", "text to cut prompts from; default: random tokens, undraftable" },
    { "gen", "", COMMON, BENCH, ENG_INTEGER, AT(n_gen), 0, 1 << 20,
      "N", "tokens to generate and time per sequence" },
    { "rounds", "", MEASURE, BENCH, ENG_INTEGER, AT(n_round), 0, 64,
      "N", "rounds of blocks without and with drafts; 0: until the ratio is known to 5 %" },
    { "against", "", MEASURE, BENCH, ENG_TEXT, AT(against), 0, 0,
      "LIST", "draft lengths to compare with --gamma's, such as 1,2,4" },
    { "warmup", "", MEASURE, BENCH, ENG_INTEGER, AT(n_warmup), -1, 1 << 20,
      "N", "untimed passes first; -1: until the hit rate is stable" },

    { "what", "", COMMON, SIMULATE, ENG_TEXT, AT(what), 0, 0,
      "WHAT", "dsi: compare plain, SI, DSI decoding; moesd: fit a cost model" },
    { "preset", "", COMMON, SIMULATE, ENG_TEXT, AT(preset), 0, 0,
      "NAME", "dsi: the paper's table or grid of cases; moesd: table, curve" },
    { "method", "", COMMON, SIMULATE, ENG_TEXT, AT(method), 0, 0,
      "NAME", "grid: event (simulated) or offline (paper's formulas)" },
    { "target-ms", "", COMMON, SIMULATE, ENG_NUMBER, AT(target_ms), 0.001, 1e6,
      "X", "milliseconds per target pass" },
    { "draft-ms", "", COMMON, SIMULATE, ENG_NUMBER, AT(draft_ms), 0.001, 1e6,
      "X", "milliseconds per drafted token" },
    { "target-prefill-ms", "", COMMON, SIMULATE, ENG_NUMBER, AT(target_prefill_ms), 0, 1e6,
      "X", "dsi: milliseconds in which each target reads the prompt" },
    { "draft-prefill-ms", "", COMMON, SIMULATE, ENG_NUMBER, AT(draft_prefill_ms), 0, 1e6,
      "X", "dsi: milliseconds in which the drafter reads the prompt" },
    { "acceptance", "", COMMON, SIMULATE, ENG_NUMBER, AT(acceptance), 0, 1,
      "X", "acceptance rate of drafted tokens" },
    { "lookahead", "", COMMON, SIMULATE, ENG_TEXT, AT(lookahead), 0, 0,
      "LIST", "drafted tokens per verification, such as 1,5,10 or 1-200" },
    { "sp", "", COMMON, SIMULATE, ENG_INTEGER, AT(n_target), 1, 1000,
      "N", "targets that verify in parallel" },
    { "contention", "", COMMON, SIMULATE, ENG_NUMBER, AT(contention), 0, 1,
      "X", "N targets take 1 + X(N-1) times as long; 1: shared memory" },
    { "noise", "", COMMON, SIMULATE, ENG_NUMBER, AT(noise), 0, 1,
      "X", "moesd: relative standard deviation of a measurement" },
    { "tokens", "", COMMON, SIMULATE, ENG_INTEGER, AT(n_tok), 0, 1 << 20,
      "N", "tokens per output; 0: 50, for the grid 1000" },
    { "repeats", "", COMMON, SIMULATE, ENG_INTEGER, AT(n_repeat), 0, 1 << 20,
      "N", "outputs to average; 0: 3000, for the grid and moesd 5" },
    { "authors", "", COMMON, SIMULATE, ENG_FLAG, AT(authors), 0, 0,
      NULL, "limit SI to the lookaheads that DSI may use, as in the paper" },

    { "ctx-size", "-c", COMMON, MODEL, ENG_INTEGER, AT(n_ctx), 0, 1 << 24,
      "N", "context per request; 0: the model's, if memory allows" },
    { "chunk", "-ub --ubatch-size", MEMORY, MODEL, ENG_INTEGER, AT(n_chunk), 0, 4096,
      "N", "maximum prompt tokens per pass; 0: 512, more with a GPU" },
    { "threads", "-t", COMMON, MODEL | QUANTIZE | PACK | SYNTH | SIMULATE | DOCTOR, ENG_INTEGER, AT(n_thread), 0, 1024,
      "N", "worker threads; 0: one per CPU" },
    { "parallel", "-np --max-num-seqs", COMMON, SERVE | PLAN, ENG_INTEGER, AT(n_parallel), 1, 4096,
      "N", "requests running at once" },
    { "parallel", "-np", COMMON, BATCH, ENG_INTEGER, AT(n_parallel), 0, 4096,
      "N", "requests running at once; 0: expected fastest number" },
    { "host-mem", "", COMMON, MODEL, ENG_SIZE, AT(host_mem), 1 << 20, 0,
      "SIZE", "memory limit of the whole process; 0: the free memory" },
    { "kv-mem", "", MEMORY, MODEL, ENG_SIZE, AT(kv_mem), 1 << 20, 0,
      "SIZE", "memory for the KV cache; 0: full contexts, at most 30 %" },
    { "device", "-dev", MEMORY, MODEL, ENG_TEXT, AT(device), 0, 0,
      "NAME", "host, or a GPU: cuda, cuda:1; dense weights and KV cache move there" },
    { "device-mem", "", MEMORY, MODEL, ENG_SIZE, AT(device_mem), 1 << 20, 0,
      "SIZE", "memory limit on the GPU; 0: its free memory, less a margin" },
    { "n-gpu-layers", "-ngl --gpu-layers --ngl", MEMORY, MODEL, ENG_TEXT, AT(gpu_layers), 0, 0,
      "N", "as of llama.cpp, a wish: 0: use no GPU; else: use one if there is one" },
    { "cpu-moe", "-cmoe", MEMORY, MODEL, ENG_FLAG, AT(cpu_moe), 0, 0,
      NULL, "as of llama.cpp: keep no experts on the GPU" },
    { "n-cpu-moe", "-ncmoe --ncmoe", MEMORY, MODEL, ENG_INTEGER, AT(n_cpu_moe), 0, 100000,
      "N", "as of llama.cpp: keep no experts of the first N layers on the GPU" },
    { "no-pack", "", MEMORY, LOAD, ENG_FLAG, AT(no_pack), 0, 0,
      NULL, "do not use the pack file (.experts) beside the model" },
    { "mirror", "", MEMORY, MODEL | DOCTOR, ENG_TEXT, AT(mirror), 0, 0,
      "DIR", "folder on another drive with a copy of the model, also read" },
    { "io", "", MEMORY, LOAD | PACK, ENG_IO, AT(io), 0, 0,
      "NAME", "how to read files: auto, uring, pread" },
    { "disk-rate", "", MEASURE, PLAN, ENG_SIZE, AT(disk_rate), 1 << 20, 0,
      "SIZE", "disk read rate in bytes/s; 0: measure it" },
    { "dram-rate", "", MEASURE, PLAN, ENG_SIZE, AT(dram_rate), 1 << 20, 0,
      "SIZE", "memory read rate in bytes/s; 0: measure it" },
    { "draft", "", COMMON, FIT, ENG_DRAFTS, 0, 0, 0,
      "KIND", "also measure this draft network and the acceptance rate from which it pays: model:FILE, "
      "eagle:FILE[,tree=dynamic|static|chain], medusa:FOLDER, mtp[,tree=..], resident" },
    { "draft", "", COMMON, DRAFT, ENG_DRAFTS, 0, 0, 0,
      "KIND", "drafter: none, ngram, suffix[:FILE][,shared], lookahead[,window=N][,ngram=N] (n-grams that the model makes in "
      "further rows), model:FILE, eagle:FILE (both also a folder), medusa:FOLDER, mtp (the model's own MTP layer), "
      "resident (the model by its experts in memory, on a device too) or prediction (the request's; default of serve and batch); "
      "model, eagle and mtp take ,tree=chain|static|dynamic, medusa chain|dynamic; model and eagle ,lengths=FILE; bench: "
      "oracle:P; repeatable" },
    { "gamma", "--draft-max", DRAFTING, DRAFT, ENG_OR_AUTO, AT(gamma), 0, 64,
      "N", "tokens drafted per sequence; auto: as many as gain speed" },
    { "verify", "", DRAFTING, DRAFT, ENG_VERIFY, AT(verify), 0, 0,
      "RULE", "coupled: same tokens as undrafted; others: same distribution" },
    { "dsi", "", DRAFTING, DRAFT & ~PLAN, ENG_OR_AUTO, AT(n_dsi), 0, 64,
      "N", "draft during verification (DSI): 0, 1 or auto; run: N workers" },
    { "dsi-lookahead", "", DRAFTING, DRAFT & ~PLAN, ENG_INTEGER, AT(n_ahead), 0, 63,
      "N", "tokens drafted during one verification; 0: as time allows" },
    { "fit", "", DRAFTING, DRAFT, ENG_TEXT, AT(fit), 0, 0,
      "FILE", "costs from fit -o; auto: kept beside the model; none: estimated" },
    { "explain", "", DRAFTING, DRAFT, ENG_FLAG, AT(explain), 0, 0,
      NULL, "print drafter, draft length and reason when they change" },
    { "kv", "", MEMORY, MODEL, ENG_KV, AT(kv), 0, 0,
      "f16|f32|int8", "number format of the KV cache" },
    { "isa", "", MEMORY, MODEL | QUANTIZE | PACK, ENG_ISA, AT(isa), 0, 0,
      "NAME", "highest instruction set: scalar, avx2, avx512, avx512vbmi; same output" },

    { "seed", "-s", COMMON, RUN | SYNTH | BENCH | SIMULATE, ENG_SEED, SAMPLE(seed), 0, 0,
      "N", "random seed; the same seed gives the same answer (-1: pick one and print it)" },
    { "temp", "--temperature", COMMON, RUN | SERVE | BATCH | BENCH, ENG_NUMBER, SAMPLE(temperature), 0, 100,
      "X", "sampling temperature; 0: always the likeliest token" },
    { "top-k", "", SAMPLING, RUN | SERVE | BATCH, ENG_INTEGER, SAMPLE(top_k), 0, INT32_MAX,
      "N", "sample from the N likeliest tokens; 0: from all" },
    { "top-p", "", SAMPLING, RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(top_p), 0, 1,
      "X", "sample from the top tokens that sum to X; 1: from all" },
    { "min-p", "", SAMPLING, RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(min_p), 0, 1,
      "X", "drop tokens below X times the top probability; 0: none" },
    { "repeat-penalty", "", SAMPLING, RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(repetition), 0.01, 100,
      "X", "divide logits of seen tokens by X; 1: off" },
    { "presence-penalty", "", SAMPLING, RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(presence), -100, 100,
      "X", "subtract X from logits of seen tokens; 0: off" },
    { "frequency-penalty", "", SAMPLING, RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(frequency), -100, 100,
      "X", "subtract X from a logit per occurrence; 0: off" },
    { "repeat-last-n", "", SAMPLING, RUN | SERVE | BATCH, ENG_INTEGER, SAMPLE(repeat_last), -1, INT32_MAX,
      "N", "number of last tokens that penalties count; -1: all" },
    { "typical", "--typical-p", SAMPLING, RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(typical_p), 0, 1,
      "X", "sample from the most typical tokens that sum to X; 1: off" },
    { "top-n-sigma", "", SAMPLING, RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(top_n_sigma), 0, 1000,
      "X", "drop tokens X deviations below the top logit; 0: off" },
    { "xtc-probability", "", SAMPLING, RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(xtc_probability), 0, 1,
      "X", "chance that XTC drops the top tokens but one; 0: off" },
    { "xtc-threshold", "", SAMPLING, RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(xtc_threshold), 0, 1,
      "X", "XTC counts tokens of at least this probability as top" },
    { "dry-multiplier", "", SAMPLING, RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(dry_multiplier), 0, 100,
      "X", "DRY: penalty of a token that extends a repetition; 0: off" },
    { "dry-base", "", SAMPLING, RUN | SERVE | BATCH, ENG_NUMBER, SAMPLE(dry_base), 1, 100,
      "X", "DRY: the penalty's growth per repeated token" },
    { "dry-allowed-length", "", SAMPLING, RUN | SERVE | BATCH, ENG_INTEGER, SAMPLE(dry_allowed), 0, SPEC_DRY_LONGEST,
      "N", "DRY: repeated tokens from which the penalty begins" },
    { "dry-penalty-last-n", "", SAMPLING, RUN | SERVE | BATCH, ENG_INTEGER, SAMPLE(dry_last), -1, INT32_MAX,
      "N", "DRY: number of last tokens to look at; -1: all" },
    { "dry-sequence-breaker", "", SAMPLING, RUN | SERVE | BATCH, ENG_BREAKERS, 0, 0, 0,
      "TEXT", "DRY: text that ends a repetition, none: no text; repeatable" },
    { "samplers", "", SAMPLING, RUN | SERVE | BATCH, ENG_STEP_NAMES, SAMPLE(order), 0, 0,
      "LIST", "order of sampling steps, such as top_k;min_p;temperature" },
    { "sampling-seq", "", SAMPLING, RUN | SERVE | BATCH, ENG_STEP_LETTERS, SAMPLE(order), 0, 0,
      "LETTERS", "the same by llama-server's letters, such as kmt" },
    { "sampling-defaults", "", SAMPLING, RUN | SERVE | BATCH, ENG_SAMPLING_DEFAULTS, AT(model_sampling), 0, 0,
      "SOURCE", "model: the model's own defaults of these flags; none: not" },
    { "logit-bias", "-l", SAMPLING, RUN, ENG_BIASES, 0, 0, 0,
      "ID=X", "add X to a token's logit, -inf: never; repeatable" },
    { "stop", "-r --reverse-prompt", TEXT, RUN, ENG_STOPS, 0, 0, 0,
      "TEXT", "stop before this text; repeatable" },
    { "stop-id", "", TEXT, RUN, ENG_STOP_IDS, 0, 0, INT32_MAX,
      "ID", "stop at this token, which is not printed; repeatable" },
    { "ignore-eos", "", TEXT, RUN, ENG_FLAG, AT(ignore_eos), 0, 0,
      NULL, "ignore the model's end tokens and keep generating" },

    { "json", "", COMMON, EVAL | IMATRIX | BATCH | LIST | INSPECT | QUANTIZE | PACK | BENCH | FIT | PLAN | DOCTOR, ENG_FLAG, AT(json), 0,
      0,
      NULL, "print results as JSON" },
    { "quiet", "-q", COMMON, ENG_ALL_COMMANDS, ENG_FLAG, AT(quiet), 0, 0,
      NULL, "print only results, warnings and errors" },
    { "verbose", "-v", SETTINGS, ENG_ALL_COMMANDS, ENG_FLAG, AT(verbose), 0, 0,
      NULL, "print more detail" },
    { "config", "", SETTINGS, ENG_ALL_COMMANDS, ENG_TEXT, AT(config), 0, 0,
      "FILE", "INI file: keys are long flag names, sections [command]" },
};
/* clang-format on */

#define N_OPTION ((int)(sizeof options / sizeof *options))
_Static_assert(sizeof options / sizeof *options <= ENG_MAX_OPTION, "config.c has a flag for each option it has seen");

/* Required flags of each command. */
static const struct {
    enum eng_command_id command;
    size_t at;
    const char *flag;
} needed[] = {
    { ENG_run, AT(model), "MODEL" },           { ENG_serve, AT(model), "MODEL" },
    { ENG_eval, AT(model), "MODEL" },          { ENG_tokenize, AT(model), "MODEL" },
    { ENG_inspect, AT(model), "MODEL" },       { ENG_bench, AT(model), "MODEL" },
    { ENG_fit, AT(model), "MODEL" },           { ENG_plan, AT(model), "MODEL" },
    { ENG_synth, AT(shape), "--shape NAME" },  { ENG_synth, AT(output), "-o FILE" },
    { ENG_quantize, AT(model), "MODEL" },      { ENG_quantize, AT(output), "-o FILE" },
    { ENG_pack, AT(model), "MODEL" },          { ENG_simulate, AT(what), "dsi or moesd" },
    { ENG_batch, AT(model), "-m MODEL" },      { ENG_batch, AT(input), "IN.jsonl" },
    { ENG_batch, AT(output), "-o OUT.jsonl" }, { ENG_pull, AT(name), "ORG/NAME" },
    { ENG_rm, AT(name), "ORG/NAME" },          { ENG_imatrix, AT(model), "MODEL" },
    { ENG_imatrix, AT(text), "--text FILE" },  { ENG_imatrix, AT(output), "-o FILE" },
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
    c->n_breaker = -1;
    c->n_predict = -1;
    c->n_parallel = command == ENG_batch ? 0 : 1;
    c->n_prompt = 512;
    c->n_gen = 128;
    c->n_warmup = -1;
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
        c->files_most = (size_t)10 << 30;
        c->n_connection = 4096;
        c->patience_s = 30;
        c->idle_s = 300;
        c->ping_s = 10;
        c->drain_s = 30;
        c->stall_s = 60;
    }
}

/* ---- names ------------------------------------------------------------------------------------- */

/* Edit distance: letters to insert, remove or change, and neighbours to swap. */
static int distance(const char *a, const char *b)
{
    int rows[3][ENG_MAX_NAME + 1], n = (int)strlen(b);
    int *before = rows[0], *above = rows[1], *row = rows[2];
    kn_assert(n <= ENG_MAX_NAME);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int *free_row = before;
        before = above;
        above = row;
        row = free_row;
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int change = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = kn_min(change, kn_min(row[j - 1], above[j]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = kn_min(row[j], before[j - 2] + 1);
        }
    }
    return row[n];
}

/* The mistakes that a word may have: one in three letters, so that short words do not resemble everything. */
static int most_mistakes(const char *word)
{
    int n = (int)strlen(word);
    return n < 3 ? 0 : n < 6 ? 1 : MAX_MISTAKE;
}

const char *eng_nearest(const char *word, const char *const *names, int n)
{
    const char *best = NULL;
    int least = most_mistakes(word) + 1;
    for (int i = 0; i < n; i++) {
        int d = distance(word, names[i]);
        if (d < least && d < (int)strlen(names[i])) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

/* The only name that begins with the word, or NULL. */
static const char *only_longer(const char *word, const char *const *names, int n)
{
    const char *found = NULL;
    for (int i = 0; i < n; i++)
        if (strlen(word) > 2 && !strncmp(names[i], word, strlen(word))) {
            if (found)
                return NULL;
            found = names[i];
        }
    return found;
}

bool eng_option_has_name(const char *names, const char *flag)
{
    size_t n = strlen(flag);
    for (const char *a = names; (a = strstr(a, flag)); a += n)
        if ((a == names || a[-1] == ' ') && (a[n] == ' ' || !a[n]))
            return n > 0;
    return false;
}

const struct eng_option *eng_option_find(const char *flag, unsigned commands)
{
    for (int i = 0; i < N_OPTION; i++) {
        const struct eng_option *o = &options[i];
        if (!(o->commands & commands))
            continue;
        if ((flag[0] == '-' && flag[1] == '-' && !strcmp(flag + 2, o->name)) || eng_option_has_name(o->alias, flag))
            return o;
    }
    return NULL;
}

/* A flag of the command that a mistyped one may mean, without dashes, or NULL: one of the same word, one that begins
 * with it, or one with few other letters; long aliases count. */
static const char *suggest(const char *flag, enum eng_command_id command)
{
    static char room[MAX_NAMES][ENG_MAX_NAME + 1]; /* one message at a time, by the main thread */
    const char *names[MAX_NAMES], *word = flag + strspn(flag, "-");
    int n = 0;
    for (int i = 0; i < N_OPTION; i++) {
        if (!(options[i].commands & 1u << command))
            continue;
        kn_assert(n < MAX_NAMES);
        names[n++] = options[i].name;
        for (const char *a = options[i].alias; (a = strstr(a, "--")); a += 2) {
            kn_assert(n < MAX_NAMES);
            snprintf(room[n], sizeof room[n], "%.*s", (int)strcspn(a + 2, " "), a + 2);
            names[n] = room[n];
            n++;
        }
    }
    const char *longer = only_longer(word, names, n), *near = eng_nearest(word, names, n);
    return near && !strcmp(near, word) ? near : longer ? longer : near;
}

int eng_option_unknown(const char *by, const char *flag, enum eng_command_id command)
{
    const char *advice = eng_foreign_advice(flag, command);
    if (advice)
        return kn_fail(KN_EINVAL, "%s: %s %s", by, flag, advice);
    const struct eng_option *other = eng_option_find(flag, ENG_ALL_COMMANDS);
    if (other) {
        char takers[128] = "";
        for (int i = 0; i < ENG_COMMAND_COUNT; i++)
            if (eng_option_find(flag, 1u << i))
                snprintf(takers + strlen(takers), sizeof takers - strlen(takers), "%s%s", takers[0] ? ", " : "",
                         eng_command_name[i]);
        return kn_fail(KN_EINVAL, "%s: %s is not a flag of %s, but of %s", by, flag, eng_command_name[command], takers);
    }
    const char *near = suggest(flag, command);
    if (near)
        return kn_fail(KN_EINVAL, "%s: %s is unknown; did you mean --%s?", by, flag, near);
    return kn_fail(KN_EINVAL, "%s: %s is unknown; see spillway %s --help-all", by, flag, eng_command_name[command]);
}

int eng_option_index(const struct eng_option *o) { return (int)(o - options); }

/* ---- access for help, man page and completion ------------------------------------------------------- */

const struct eng_option *eng_option_at(int i) { return i < N_OPTION ? &options[i] : NULL; }

const char *eng_option_needed(enum eng_command_id command, int nth)
{
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (needed[i].command == command && nth-- == 0)
            return needed[i].flag;
    return NULL;
}

/* An order of samplers without the temperature samples from unscaled logits, also with --temp 0. */
static void warn_unused_temperature(const struct eng_config *c)
{
    bool used = !c->sampling.has_order;
    for (int i = 0; i < c->sampling.n_order; i++)
        used = used || c->sampling.order[i] == SPEC_STEP_TEMPERATURE;
    if (!used && c->sampling_given & eng_model_sampling_bit(offsetof(struct spec_params, temperature)))
        kn_say(KN_LOG_WARN, "--temp %g has no effect: the order of samplers has no temperature",
               c->sampling.temperature);
}

/* Threads beyond the CPUs wait for each other at every step: 64 on 2 CPUs take 100 times as long. */
static void warn_many_threads(const struct eng_config *c)
{
    struct kn_machine machine;
    kn_machine_get(&machine);
    if (c->n_thread > machine.n_cpu)
        kn_say(KN_LOG_WARN, "--threads %d: this process may use %d CPU%s; more threads than CPUs make it much slower",
               c->n_thread, machine.n_cpu, machine.n_cpu == 1 ? "" : "s");
}

int eng_option_check(const struct eng_config *c, enum eng_command_id command)
{
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        const char *given = *(const char *const *)((const char *)c + needed[i].at);
        if (needed[i].command == command && (!given || !given[0])) /* an unset "$MODEL" in a script */
            return kn_fail(KN_EINVAL, "%s needs %s; see spillway %s --help", eng_command_name[command], needed[i].flag,
                           eng_command_name[command]);
    }
    const char *host = c->cors ? strstr(c->cors, "://") : NULL;
    if (c->cors && strcmp(c->cors, "*") != 0 && strcmp(c->cors, "null") != 0 && (!host || strchr(host + 3, '/')))
        return kn_fail(KN_EINVAL,
                       "--cors takes * or an origin such as https://chat.example.com, without a path or "
                       "a trailing /, not '%s'",
                       c->cors);
    for (int i = 0; i < c->n_draft; i++)
        if (c->draft[i].kind == ENG_DRAFT_ORACLE && command != ENG_bench)
            return kn_fail(KN_EINVAL, "--draft oracle works only in bench: it runs sequences twice");
    if (c->n_dsi > 1 && command != ENG_run)
        return kn_fail(KN_EINVAL,
                       "--dsi %d: only run verifies with several workers, for its one sequence; %s takes "
                       "0, 1 and auto",
                       c->n_dsi, eng_command_name[command]);
    if (command == ENG_run && c->prompt && c->input)
        return kn_fail(KN_EINVAL, "run: -p TEXT and -f FILE are two prompts: give only one");
    if (command == ENG_run && c->raw && (c->system || c->template))
        return kn_fail(KN_EINVAL, "run: --raw uses no chat template: leave out %s",
                       c->system ? "--system" : "--chat-template");
    if (command == ENG_run && c->special && !c->raw)
        return kn_fail(KN_EINVAL, "run: --special works with --raw only: the chat template writes the special tokens");
    warn_unused_temperature(c);
    if (c->output && !c->output[0]) /* a missing -o is refused above */
        return kn_fail(KN_EINVAL, "%s: -o is empty: give a file name", eng_command_name[command]);
    if (c->n_dsi == ENG_GAMMA_AUTO && c->gamma != ENG_GAMMA_AUTO)
        return kn_fail(KN_EINVAL, "--dsi auto chooses the draft length itself: leave --gamma at auto, or use --dsi 1");
    warn_many_threads(c);
    if (c->isa != KN_ISA_COUNT - 1 && c->isa > kn_isa_best())
        kn_say(KN_LOG_WARN, "this processor has no %s; using %s", kn_isa_name(c->isa), kn_isa_name(kn_isa_best()));
    return 0;
}
