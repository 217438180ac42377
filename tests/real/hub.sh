#!/bin/bash
# Downloads from the tests' hub on the loopback, with this program and with the package huggingface_hub: each finds the
# other's files without a request, by the server's log.  Run by hand, not by `make test`.
# Usage: hub.sh PROGRAM PYTHON      PYTHON has the package huggingface_hub
program=$1 python=$2 port=${3:-18461} failed=0
[ $# -ge 2 ] || { sed -n 's/^# \{0,1\}//p' "$0"; exit 2; }
at=$(mktemp -d) || exit 1
${CC:-cc} -std=c11 -D_GNU_SOURCE -I. -O1 tests/real/hub_server.c -o "$at/server" -lcrypto -lpthread || exit 1
mkfifo "$at/in"
trap 'exec 7>&-; rm -rf "$at"' EXIT
ok() { echo "hub: ok    $1"; }
bad() { failed=1; printf 'hub: FAIL  %s\n%s\n' "$1" "$2"; }
is() { [ "$2" = "$3" ] && ok "$1" || bad "$1: '$2', not" "$3"; }
requests() { tr -d '\0' <"$at/log" | grep -c . ; }                    # since the log was emptied
ask() { env HF_HUB_OFFLINE="$1" "$python" -c "from huggingface_hub import hf_hub_download, snapshot_download; print($2)" 2>"$at/err" | tail -n 1; }

"$program" synth --shape tiny -o "$at/Tiny-Q4_K_M.gguf" -q && "$program" synth --shape tiny --format q8_0 -o "$at/Tiny-Q8_0.gguf" -q || exit 1
HUB_SERVER_PRINTS=1 "$at/server" "$port" "$at/Tiny-Q4_K_M.gguf" "$at/Tiny-Q8_0.gguf" <"$at/in" >"$at/out" 2>>"$at/log" &
exec 7>"$at/in"
until grep -q ready "$at/out"; do sleep 0.1; kill -0 $! 2>/dev/null || exit 1; done
export HF_ENDPOINT=http://127.0.0.1:$port HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_XET=1 HF_HUB_DISABLE_PROGRESS_BARS=1
echo "hub: huggingface_hub $("$python" -c 'import huggingface_hub; print(huggingface_hub.__version__)')"
snapshots=hub/models--Org--Tiny/snapshots/0123456789abcdef0123456789abcdef01234567 blobs=hub/models--Org--Tiny/blobs

export HF_HOME=$at/ours
got=$("$program" pull -q Org/Tiny)
is "pull prints the path" "$got" "$HF_HOME/$snapshots/Tiny-Q4_K_M.gguf"
: >"$at/log"
is "huggingface_hub finds the file" "$(ask 1 "hf_hub_download('Org/Tiny', 'Tiny-Q4_K_M.gguf')")" "$HF_HOME/$snapshots/Tiny-Q4_K_M.gguf"
is "huggingface_hub finds the snapshot" "$(ask 1 "snapshot_download('Org/Tiny', allow_patterns=['*Q4_K_M*'])")" "$HF_HOME/$snapshots"
is "by commit, while it may send requests" \
    "$(ask 0 "hf_hub_download('Org/Tiny', 'Tiny-Q4_K_M.gguf', revision='0123456789abcdef0123456789abcdef01234567')")" \
    "$HF_HOME/$snapshots/Tiny-Q4_K_M.gguf"
is "it sent no request" "$(requests)" 0

export HF_HOME=$at/theirs
ask 0 "hf_hub_download('Org/Tiny', 'Tiny-Q8_0.gguf')" >/dev/null
: >"$at/log"
is "list finds the file of huggingface_hub" "$("$program" list --json | sed 's/.*"name":"\([^"]*\)".*/\1/')" "Org/Tiny:Q8_0"
is "run takes it by name" "$("$program" run Org/Tiny --raw hello -n 4 --seed 1 -q)" "$("$program" run "$at/Tiny-Q8_0.gguf" --raw hello -n 4 --seed 1 -q)"
is "they sent no request" "$(requests)" 0
"$program" pull -q Org/Tiny:Q8_0 >/dev/null
is "pull downloads no file again" "$(grep -c resolve "$at/log")" 0

export HF_HOME=$at/parts
id=$(sha256sum "$at/Tiny-Q4_K_M.gguf" | cut -d' ' -f1)
mkdir -p "$HF_HOME/$blobs"
head -c 2000000 "$at/Tiny-Q4_K_M.gguf" >"$HF_HOME/$blobs/$id.incomplete"
"$program" pull -q Org/Tiny:Q4_K_M >/dev/null
is "pull continues a part of huggingface_hub" "$(grep -c 'cdn: .* from 2000000' "$at/log")" 1
rm -rf "$HF_HOME"
ask 0 "hf_hub_download('Org/Tiny', 'Tiny-Q8_0.gguf')" >/dev/null &
other=$!
"$program" pull -q Org/Tiny:Q8_0 >/dev/null
wait $other
cmp -s "$HF_HOME/$snapshots/Tiny-Q8_0.gguf" "$at/Tiny-Q8_0.gguf" && ok "both at once give the file" || bad "both at once" "another file"
"$program" rm -q --yes Org/Tiny
is "rm leaves no file" "$(find "$HF_HOME/$blobs" -type f 2>/dev/null)" ""
exit $failed
