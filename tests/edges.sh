#!/bin/sh
# Checks the graph of rooms. Lists each #include and each use of a symbol that crosses from one room into another that it
# may not use, and fails if there is one. A room is a folder with its own files only: engine/base, moe/pass, and engine for
# engine/*.c; kernels, offload and speculative are one room each. A room may include its own headers, and those of the
# rooms and folders on its line except their internal.h. Usage: edges.sh BUILD_DIR "room:may use ..." ...
out=$1; shift
printf '%s\n' "$@" >"$out/edges"
rooms='
    function dir_of(path,   d) { d = path; sub(/\/[^\/]*$/, "", d); return d }
    function top_of(path,   d) { d = path; sub(/\/.*/, "", d); return d }
    function room_of(path) { return top_of(path) ~ /^(kernels|offload|speculative)$/ ? top_of(path) : dir_of(path) }
    function allowed(a, b) {
        return a == b || index(may[a], " " b " ") || (top_of(a) != top_of(b) && index(may[a], " " top_of(b) " ")) }
    BEGIN { while ((getline line < edges) > 0) {
        room = line; sub(/:.*/, "", room); sub(/^[^:]*:/, "", line); may[room] = " " line " " } }'
includes=$(grep -rnoE '#include "(kernels|offload|moe|speculative|engine)/[^"]*"' kernels offload moe speculative engine \
    --include='*.[ch]' --include='*.cu' | awk -v edges="$out/edges" "$rooms"'
    { split($0, at, ":"); split($0, q, "\""); a = room_of(at[1]); b = room_of(q[2])
      if (a != b && q[2] ~ /internal\.h$/) print at[1] ":" at[2] " includes the insides of " b
      else if (!allowed(a, b) && q[2] != top_of(a) "/moe.h") print at[1] ":" at[2] ": " a " may not include " q[2] }')
symbols=$(find "$out/kernels" "$out/offload" "$out/moe" "$out/speculative" "$out/engine" -name '*.o' | xargs nm -A 2>/dev/null |
    awk -v out="$out/" -v edges="$out/edges" "$rooms"'
    { split($1, at, ":"); file = substr(at[1], length(out) + 1); sub(/\.o$/, "", file); kind = $(NF - 1); name = $NF
      if (kind == "U") { from[++n] = file; want[n] = name } else if (kind ~ /^[TDBRVWC]$/) home[name] = file }
    END { for (i = 1; i <= n; i++) if (want[i] in home) {
        a = room_of(from[i]); b = room_of(home[want[i]])
        if (!allowed(a, b)) print from[i] ": " a " may not use " want[i] " of " b } }')
[ -z "$includes$symbols" ] && exit 0
printf '%s\n' "$includes" "$symbols" | grep .
exit 1
