#!/bin/sh
# Fails if library code prints, exits or reads the environment; if libm functions other than fma and sqrt are used; if a
# header does not compile alone; if a file names a result that does not exist. (edges.sh checks the graph of rooms.)
# Usage: check.sh BUILD_DIR FOLDER...
out=$1; shift; bad=0
complain() { echo "check: $1"; bad=1; }
all="kernels offload moe speculative engine"

for folder in "$@"; do
    nm -u "$out/lib$folder.a" | awk '$1 == "U" {print $2}' | sort -u | grep -xE \
        '(a?(sin|cos|tan)h?|atan2|sincos|exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|cbrt|hypot|erfc?|[lt]gamma|fmod|remainder|ldexp|scalbn)[fl]?' \
        && complain "$folder uses library mathematics (only fma and sqrt are allowed)"
done
grep -nE '\b(exit|abort|printf) *\(' -r kernels offload moe speculative --include='*.c' --include='*.cu' &&
    complain "library code prints or exits"
grep -nE '\b(exit|_exit|abort) *\(' -r engine --include='*.c' | grep -v '^engine/cli/main\.c:' &&
    complain "only main.c exits"
grep -nE '\bgetenv *\(' -r $all --include='*.c' --include='*.cu' | grep -v '^engine/cli/config\.c:' &&
    complain "only engine/cli/config.c reads the environment"
grep -nE 'kn_parallel_|ops->[a-z_]+\(|kn_ops\(|kn_(expf|exp|log|sincos)\(' -r moe/pass &&
    complain "moe/pass computes: it may only add operations (kernels/pass.h) to its queue"
for h in $(find $all -name '*.h'); do
    case $h in kernels/cpu/simd*.h|kernels/cuda/*) continue;; esac
    echo "#include \"$h\"" | ${CC:-cc} -std=c11 -D_GNU_SOURCE -I. -fsyntax-only -x c - || complain "$h does not compile alone"
done
for f in $(git ls-files "*.c" "*.h" "*.cu" 2>/dev/null); do
    [ "$(wc -l < "$f")" -le 1000 ] || complain "$f has more than 1000 lines"
done
# The sources are as clang-format writes them, where the version that formatted them is installed.
if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
    git ls-files '*.c' '*.h' | xargs -P "$(nproc)" -n 40 clang-format --dry-run -Werror 2>&1 | grep -E 'error:' | head -5 | grep . &&
        complain "sources are not formatted: clang-format -i FILE"
else
    echo "check: the format was not checked: clang-format 14 is not installed"
fi
# A path under evals/results in a tracked file exists, or is the start of a path that exists (DATE and $ stand for a
# date); a bare result name in a .md file is a file there; and the index has a line for each file.
for hit in $(git grep -IoE '(evals|\.\.)/results/[A-Za-z0-9_./-]*' 2>/dev/null); do
    path=${hit#*:}; path=evals/results/${path#*results/}; path=${path%.}
    case $path in *DATE*|*-) ls "${path%%DATE*}"* >/dev/null 2>&1;; *) [ -e "$path" ];; esac ||
        complain "${hit%%:*} names $path, which does not exist"
done
for hit in $(git grep -IoE '[a-z0-9-]+-20[0-9]{2}-[0-9]{2}-[0-9]{2}[a-z0-9-]*\.(md|csv|png|txt)' -- '*.md' 2>/dev/null); do
    ls evals/results/*/"${hit#*:}" >/dev/null 2>&1 || complain "${hit%%:*} names ${hit#*:}, which is not in evals/results"
done
# A function or file that the architecture, glossary and contributing pages name in backquotes exists.
for page in architecture glossary contributing; do
    for name in $(grep -oE '`(kn|off|moe|spec|eng|srv|gr|jin)_[a-z0-9_]+`' docs/$page.md 2>/dev/null | tr -d '`' | sort -u); do
        git grep -qwF "$name" -- '*.c' '*.h' || complain "docs/$page.md names $name, which is not in the sources"
    done
    for name in $(grep -oE '`[a-z0-9_]+(/[a-z0-9_]+)+\.[ch]`' docs/$page.md 2>/dev/null | tr -d '`' | sort -u); do
        [ -e "$name" ] || complain "docs/$page.md names $name, which does not exist"
    done
done
for f in $(git ls-files 'evals/results/*/*' 2>/dev/null); do
    grep -qF "(${f#evals/results/})" evals/results/README.md || complain "evals/results/README.md has no line for $f"
done
# A tagged version is the program's, and has a heading in the changelog; without -dev, so has any version.
version=$(sed -n 's/^#define ENG_VERSION "\(.*\)"/\1/p' engine/engine.h)
tag=$(git describe --exact-match --tags --match 'v*' 2>/dev/null)
[ -z "$tag" ] || [ "$tag" = "v$version" ] || complain "ENG_VERSION is $version, and the tag of this commit is $tag"
case $version in
    *-dev) grep -qx '## Unreleased' CHANGELOG.md ;;
    *) grep -q "^## $version, 20" CHANGELOG.md ;;
esac || complain "CHANGELOG.md has no heading for version $version"
[ $bad = 0 ] && echo "check: ok" || echo "check: failed"
exit $bad
