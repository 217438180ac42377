/* engine/cli/foreign_flags.c - flags of llama-server, vLLM, SGLang and Ollama that this program does not take, each
 * with the advice that replaces it.
 *
 * A flag with the same meaning under another name is no entry here but an alias in options.c. */
#include "engine/cli/options.h"

#include <string.h>

#define SERVER (1u << ENG_serve | 1u << ENG_batch)
#define EVERY  ENG_ALL_COMMANDS

/* The first entry that has the flag and the command counts. */
static const struct {
    unsigned commands;
    const char *flags, *advice;
} foreign[] = {
    /* memory and processors */
    { EVERY,
      "-ot --override-tensor -ts --tensor-split --cpu-offload-gb --gpu-memory-utilization --mem-fraction-static "
      "--swap-space --num-gpu -nkvo --no-kv-offload -nopo --no-op-offload",
      "is not needed: --host-mem decides how many experts stay in memory, --device cuda puts dense weights, KV cache "
      "and the most used experts on a GPU" },
    { EVERY,
      "-tp --tp --tp-size --tensor-parallel-size -pp --pp-size --pipeline-parallel-size -dp --dp-size "
      "--data-parallel-size -ep --ep-size --enable-expert-parallel -sm --split-mode -mg --main-gpu --rpc",
      "is not offered: one process computes the whole model on one machine's processors" },
    { EVERY,
      "--mlock --mmap --no-mmap -fa --flash-attn --jinja -cb --cont-batching --no-warmup --metrics --numa "
      "--enable-prefix-caching --enable-chunked-prefill --trust-remote-code --enable-auto-tool-choice --slots "
      "--props --cache-prompt --enforce-eager --attention-backend --disable-log-stats --prio --poll --swa-full "
      "-kvu --kv-unified --no-perf --check-tensors --disable-cuda-graph",
      "is not needed: leave it out" },
    { EVERY, "-C --cpu-mask -Cr --cpu-range --cpu-strict", "is not known: start the program with taskset" },
    { EVERY, "--dtype -q8 --quantization --load-format",
      "is not needed: the model's file has the format; spillway quantize writes others" },
    /* the model and its context */
    { EVERY, "--model-path --gguf", "is not known: use -m MODEL" },
    { EVERY, "-mu --model-url -hff --hf-file --hf-repo-draft",
      "is not known: -m takes ORG/NAME:QUANT of the hub, a file or a folder" },
    { EVERY, "-hft --hf-token", "is not known: set the variable HF_TOKEN" },
    { EVERY, "--download-dir", "is not known: set the variable HF_HOME" },
    { EVERY, "--revision", "is not known: use -m ORG/NAME@REVISION" },
    { EVERY, "--tokenizer --tokenizer-mode --tokenizer-path", "is not needed: the model has its tokenizer" },
    { EVERY, "--max-model-len --context-length --num-ctx --n-ctx", "is not known: use --ctx-size N" },
    { EVERY, "--lora --lora-scaled --enable-lora --control-vector --mmproj --hf-overrides",
      "is not offered: the model is used as its file has it" },
    { EVERY,
      "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor "
      "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast",
      "is not known: the model's file sets how positions are scaled" },
    { EVERY, "--context-shift --no-context-shift --keep -gan --grp-attn-n",
      "is not offered: an answer ends where the context is full; raise --ctx-size" },
    { EVERY, "-ctk --cache-type-k -ctv --cache-type-v --kv-cache-dtype", "is not known: use --kv f16, f32 or int8" },
    { EVERY, "-cram --cache-ram --cache-reuse --slot-save-path", "is not known: use --kv-mem SIZE" },
    /* batches and threads */
    { EVERY, "-b --batch-size --max-num-batched-tokens --chunked-prefill-size",
      "is not known: use --chunk N, the maximum prompt tokens per pass" },
    { EVERY, "--max-running-requests --n-parallel", "is not known: use --parallel N" },
    { EVERY, "-tb --threads-batch --threads-http", "is not known: use --threads N, for prompts, decoding and HTTP" },
    /* drafts */
    { EVERY, "-md --model-draft --draft-model --spec-draft-model --speculative-config --speculative-algorithm",
      "is not known: use --draft model:FILE" },
    { EVERY, "--draft-min --draft-n-min --draft-p-min -cd --ctx-size-draft -td --threads-draft -ngld",
      "is not needed: --gamma auto chooses the length of drafts" },
    /* sampling and requests */
    { EVERY, "--generation-config", "is not known: use --sampling-defaults model or none" },
    { EVERY, "--mirostat --mirostat-lr --mirostat-ent --dynatemp-range --dynatemp-exp --adaptive-target",
      "is not known: use --top-p, --min-p or --typical" },
    { SERVER, "-s --seed", "belongs to a request: send \"seed\"" },
    { SERVER, "-sys --system --system-prompt", "belongs to a request: send a message with the role system" },
    { SERVER, "-r --stop --reverse-prompt", "belongs to a request: send \"stop\"" },
    { SERVER, "-l --logit-bias", "belongs to a request: send \"logit_bias\"" },
    { SERVER, "--grammar --grammar-file -j --json-schema --json-schema-file --guided-decoding-backend",
      "belongs to a request: send \"response_format\" with a JSON schema" },
    { EVERY, "--grammar --grammar-file -j --json-schema --json-schema-file",
      "is offered by serve and batch only: send \"response_format\" in a request" },
    { EVERY, "--chat-template-kwargs --reasoning-budget",
      "belongs to a request of serve or batch: send \"chat_template_kwargs\"" },
    { EVERY, "--reasoning-format --reasoning-parser --tool-call-parser --prefill-assistant --no-prefill-assistant",
      "is not needed: the chat template's own form is recognised" },
    /* the server */
    { EVERY, "--api-key", "is not known: write keys into a file, one per line, and use --api-key-file FILE" },
    { EVERY, "--ssl-key-file --ssl-cert-file --ssl-keyfile --ssl-certfile",
      "is not offered: put a reverse proxy in front (docs/serving.md)" },
    { EVERY, "--allowed-origins", "is not known: use --cors ORIGIN" },
    { EVERY, "--path --api-prefix --root-path --no-webui --webui --embedding --embeddings --pooling --reranking",
      "is not offered: see docs/serving.md for the paths of the server" },
    { EVERY, "--log-disable", "is not known: use --quiet" },
    { EVERY, "-lv --log-level --verbosity --log-verbosity --uvicorn-log-level --disable-log-requests",
      "is not known: use --quiet or --verbose" },
    { EVERY, "--log-file --log-prefix --log-timestamps --log-colors --max-log-len",
      "is not known: the log is standard error; redirect it with 2>FILE" },
    { EVERY, "--timeout-keep-alive --keepalive --keep-alive", "is not known: use --idle-timeout SECONDS" },
    { EVERY, "-to --timeout-read", "is not known: use --timeout SECONDS" },
    { EVERY, "-cnv --conversation -i --interactive -no-cnv --no-conversation",
      "is not needed: run chats on a terminal; with a prompt or a pipe it answers once and exits" },
};

const char *eng_foreign_advice(const char *flag, enum eng_command_id command)
{
    char plain[ENG_MAX_NAME + 3];
    size_t n = strlen(flag);
    if (n >= sizeof plain)
        return NULL;
    for (size_t i = 0; i <= n; i++) /* vLLM takes --max_model_len, too */
        plain[i] = flag[i] == '_' ? '-' : flag[i];
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (foreign[i].commands & 1u << command && eng_option_has_name(foreign[i].flags, plain))
            return foreign[i].advice;
    return NULL;
}
