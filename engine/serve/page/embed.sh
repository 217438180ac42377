#!/bin/sh
# Collects the files of the server's page in FOLDER and writes FOLDER/files.c, the table that embeds them.
#
#     page.html, page.css, page.js      the page's own; page.js is the scripts below, joined
#     libraries.js, fonts/              markdown-it, highlight.js and KaTeX as SHARE has them: /usr/share, where
#                                       Debian's packages are installed.  A library that is not there, or that is
#                                       there without its licence, is left out, and the page does without it.
#     notices.txt                       the licences of these libraries
#
# Texts are embedded twice, as they are and compressed.  Usage: embed.sh FOLDER [SHARE]
set -eu
out=$1 share=${2-}
here=$(dirname "$0")
scripts="store markdown ask settings chat status start"
languages="bash cmake cpp cs css dart diff dockerfile elixir go haskell ini java javascript json julia kotlin lua
    makefile markdown matlab nginx objectivec ocaml perl php powershell python r ruby rust scala scss shell sql swift
    tex typescript verilog x86asm xml yaml"
LC_ALL=C
export LC_ALL
rm -rf "$out/fonts" "$out/libraries.js"
mkdir -p "$out/fonts"

# add_notice NAME PACKAGE: appends the licence of a library; fails if it is not there
add_notice() {
    [ -s "$share/doc/$2/copyright" ] || return 1
    printf '\n\n======== %s ========\n\n' "$1" >>"$out/notices.txt"
    cat "$share/doc/$2/copyright" >>"$out/notices.txt"
}

cp "$here/page.html" "$here/page.css" "$out/"
for s in $scripts; do cat "$here/$s.js"; done >"$out/page.js"
: >"$out/libraries.js"
own="Spillway is under the Apache License 2.0. Its page contains"
echo "$own these libraries, under the licences below:" >"$out/notices.txt"

markdown=$share/javascript/markdown-it/markdown-it.js
if [ -s "$markdown" ] && add_notice markdown-it libjs-markdown-it; then
    { cat "$markdown"; echo ';'; } >>"$out/libraries.js"
fi

highlight=$share/nodejs/highlight.js/lib
if [ -s "$highlight/highlight.js" ] && add_notice highlight.js node-highlight.js; then
    {
        echo '(function (module) {'
        cat "$highlight/highlight.js"
        printf '\n})({});\n'
        for l in $languages; do
            [ -s "$highlight/languages/$l.js" ] || continue
            echo "hljs.registerLanguage(\"$l\", (function (module) {"
            cat "$highlight/languages/$l.js"
            printf '\nreturn module.exports; })({}));\n'
        done
    } >>"$out/libraries.js"
fi

katex=$share/javascript/katex
if [ -s "$katex/katex.min.js" ] && [ -s "$katex/katex.min.css" ] &&
    [ -s "$katex/fonts/KaTeX_Main-Regular.woff2" ] && add_notice "KaTeX and its fonts" libjs-katex; then
    cat "$katex/katex.min.js" >>"$out/libraries.js"
    cat "$katex/katex.min.css" "$here/page.css" >"$out/page.css"
    cp "$katex"/fonts/*.woff2 "$out/fonts/"
fi
[ -s "$out/libraries.js" ] || echo "$own no libraries." >"$out/notices.txt"

# ---- the table -------------------------------------------------------------------------------------------
tag_of() { cksum <"$1" | tr ' ' '-'; }
bytes_of() { echo $(($(wc -c <"$1"))); }
{
    echo "/* Written by engine/serve/page/embed.sh: the files of the page, and a table of them. */"
    echo '#include "engine/serve/internal.h"'
} >"$out/files.c.new"
n=0 rows=
embed() { # embed FILE: as the symbol eng_page_N
    cat >>"$out/files.c.new" <<END
extern const char eng_page_$n[];
__asm__(".section .rodata\\n.global eng_page_$n\\neng_page_$n: .incbin \\"$1\\"\\n.previous\\n");
END
    n=$((n + 1))
}
for f in page.html page.css page.js libraries.js notices.txt "$out"/fonts/*; do
    case $f in
        *.html) type="text/html; charset=utf-8" ;;
        *.css) type="text/css; charset=utf-8" ;;
        *.js) type="text/javascript; charset=utf-8" ;;
        *.txt) type="text/plain; charset=utf-8" ;;
        *.woff2) type=font/woff2; f=fonts/${f##*/} ;;
    esac
    file=$out/$f path=/page/$f zipped="NULL, 0"
    [ -e "$file" ] || continue
    [ "$f" != page.html ] || path=/
    embed "$file"
    row="{ \"$path\", \"$type\", \"$(tag_of "$file")\", eng_page_$((n - 1)), $(bytes_of "$file")"
    if [ "$type" != font/woff2 ]; then
        gzip -9nc "$file" >"$file.gz"
        embed "$file.gz"
        zipped="eng_page_$((n - 1)), $(bytes_of "$file.gz")"
    fi
    rows="$rows    $row, $zipped },
"
done
{
    printf 'const struct srv_page_file srv_page_files[] = {\n%s};\n' "$rows"
    echo "const int srv_n_page_file = sizeof srv_page_files / sizeof *srv_page_files;"
} >>"$out/files.c.new"
if cmp -s "$out/files.c.new" "$out/files.c"; then rm "$out/files.c.new"; else mv "$out/files.c.new" "$out/files.c"; fi
