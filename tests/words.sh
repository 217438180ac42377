#!/bin/sh
# Fails if a comment or a string of the sources uses one of the words that hide the subject of a sentence: who, whom,
# whoever, nobody, somebody, anew, gone, meant, "of use", "is there", and "what" in place of a noun. Name the session, row,
# drafter, expert or thread instead. tests/words_allowed.txt exempts lines: FILE:TEXT, where the line contains TEXT.
words='who|whom|whoever|nobody|somebody|anew|gone|meant|of use|is there|[Ww]hat'
found=$(git ls-files '*.c' '*.h' '*.cu' | grep -v '^tests/engine/data/' | xargs awk '
    function put(text) { if (text ~ /[a-z]/) print FILENAME ":" FNR ":" text }
    FNR == 1 { inside = 0 }
    {
        line = $0
        while (line != "") {
            if (inside) {
                i = index(line, "*/")
                if (!i) { put(line); line = "" } else { put(substr(line, 1, i - 1)); line = substr(line, i + 2); inside = 0 }
                continue
            }
            if (!match(line, /\/\*|\/\/|"|\047/)) break
            token = substr(line, RSTART, RLENGTH); line = substr(line, RSTART + RLENGTH)
            if (token == "/*") inside = 1
            else if (token == "//") { put(line); line = "" }
            else if (token == "\"") { match(line, /^([^"\\]|\\.)*/); put(substr(line, 1, RLENGTH)); line = substr(line, RLENGTH + 2) }
            else if (match(line, /^(\\.|[^\\\047])[^\047]*\047/)) line = substr(line, RSTART + RLENGTH)
        }
    }' | grep -wE "$words" | grep -vE ':(\{\\"what\\":|(--)?what$)')       # a JSON key and the name of an option
[ -n "$found" ] || exit 0
printf '%s\n' "$found" | awk -v allowed=tests/words_allowed.txt '
    BEGIN { while ((getline line < allowed) > 0) if (line != "" && line !~ /^#/) {
        i = index(line, ":"); file[++n] = substr(line, 1, i - 1); text[n] = substr(line, i + 1) } }
    { f = $0; sub(/:.*/, "", f); ok = 0
      for (i = 1; i <= n && !ok; i++) if (file[i] == f && index($0, text[i])) { ok = 1; used[i] = 1 }
      if (!ok) { print; bad = 1 } }
    END { for (i = 1; i <= n; i++) if (!used[i]) { print "tests/words_allowed.txt: no such line: " file[i] ":" text[i]; bad = 1 }
          exit bad }'
