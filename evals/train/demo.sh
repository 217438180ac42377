#!/bin/sh
# Trains the demo's draft model and EAGLE head from text to GGUF, with the steps that made those in models/. One core.
#
#   demo.sh (text|draft|eagle) WORK [GSM8K_TRAIN ROOT...]
#
#   piece     needs                        writes to WORK
#   text      GSM8K_TRAIN and ROOT...      the files of corpus.py; maths/ and code/: lessons of teach
#   draft     the files of text            one.* and two.*, demo-draft-q8_0.gguf
#   eagle     the files of text            heard/, lessons with features; head.*, demo-eagle-f16.gguf
#
# Training starts from the models of an earlier commit, before.gguf and before-head.gguf, which come from git if WORK
# lacks them. The shipped models used as ROOT the standard library of CPython 3.11 and the packages sympy 1.14,
# networkx 3.6 and numpy 2.4. A stopped run continues with the same command. On one machine, two runs give the same
# bits. The environment can set the numbers of steps and prompts: with MATHS=60 CODE=40 ONE=6 UNTIL=3 THEN=4 TWO=4
# HEAD=4 all pieces take a minute, as a test.
# PYTHON names the interpreter, BIN the folder of `make evals`.
set -eu
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
[ $# -ge 2 ] || usage
here=$(cd "$(dirname "$0")" && pwd)
piece=$1 work=$2 python=${PYTHON:-python3} bin=${BIN:-$here/../../build/release/evals}
shift 2
target=$here/models/demo-target-q8_0.gguf
run() { script=$1; shift; "$python" "$here/$script.py" "$@"; }
lessons() {                              # FOLDER PREFIX SOURCE NUMBER...: links the files of SOURCE that exist
    folder=$1 prefix=$2 source=$3
    shift 3
    mkdir -p "$folder"
    for i; do
        [ ! -e "$source/000$i.npy" ] || ln -sf "../$source/000$i.npy" "$folder/${prefix}000$i.npy"
    done
}

earlier() {                              # MODEL FILE
    [ -e "$2" ] || git -C "$here" show "bf86ed2:./models/$1" > "$2.new"
    [ -e "$2" ] || mv "$2.new" "$2"
}

text() {
    mkdir -p "$work"
    if [ ! -e "$work/prompts.jsonl" ]; then
        [ $# -ge 2 ] || usage
        gsm=$1
        shift
        run corpus "$gsm" "$work" "$@"
    fi
    grep '"maths"' "$work/prompts.jsonl" > "$work/maths.jsonl"
    grep '"code"' "$work/prompts.jsonl" > "$work/functions.jsonl"
    yes | shuf --random-source=/dev/stdin "$work/functions.jsonl" > "$work/code.jsonl"
    "$bin/train/teach" "$target" "$work/maths.jsonl" "$work/maths" "${MATHS:-5000}"
    "$bin/train/teach" "$target" "$work/code.jsonl" "$work/code" "${CODE:-500}"
}

# The first stage follows the learning rate of a run of ONE steps up to step UNTIL, then that of a run of THEN steps.
draft() {
    cd "$work"
    earlier demo-draft-q8_0.gguf before.gguf
    lessons first "" maths 0 1 2 3 4 5 6
    lessons second maths- maths 5 6 7 8 9
    lessons second code- code 0
    one="first --start before.gguf --out one --peak 1.5e-3 --threads 1"
    run distil $one --steps "${ONE:-600}" --until "${UNTIL:-231}"
    run distil $one --steps "${THEN:-360}"
    run distil second --start one.pt --out two --steps "${TWO:-300}" --peak 1e-3 --threads 1
    run export two.pt "$target" demo-draft-q8_0.gguf q8_0 --name spillway-demo-draft
}

eagle() {
    cd "$work"
    earlier demo-eagle-f16.gguf before-head.gguf
    lessons heard-from maths- maths 4 5 6
    lessons heard-from code- code 0
    run lessons "$target" heard heard-from --docs 2600
    run eagle "$target" heard --start before-head.gguf --out head --unroll 2 --words 1 --peak 1e-3 --threads 1 \
        --steps "${HEAD:-400}"
    run export head.pt "$target" demo-eagle-f16.gguf f16 --name spillway-demo-eagle
}

case $piece in
text) text "$@" ;;
draft) draft ;;
eagle) eagle ;;
*) usage ;;
esac
