#!/bin/sh
# Installs into an empty folder, checks the installed files, and uninstalls.  Usage: install.sh PROGRAM
# Run by `make check`; a check without its tool on this machine is skipped with a message.
program=$1; bad=0
complain() { echo "install: $1"; bad=1; }
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
put() { ${MAKE:-make} --no-print-directory -s "$1" DESTDIR="$root" PREFIX=/usr >/dev/null || complain "make $1 fails"; }

put install
for f in bin/spillway bin/.debug/spillway.debug share/man/man1/spillway.1 share/bash-completion/completions/spillway \
    lib/systemd/system/spillway.service share/doc/spillway/spillway.ini share/doc/spillway/spillway.env share/doc/spillway/grafana.json share/doc/spillway/alerts.yml \
    share/doc/spillway/notices.txt; do
    [ -s "$root/usr/$f" ] || complain "$f is missing"
done
[ "$("$program" --version)" = "$("$root/usr/bin/spillway" --version)" ] || complain "the installed program differs"

# the installed program has no symbols, and debuggers find them
has() { readelf -SW "$1" 2>/dev/null | grep -q " $2 "; }
has "$root/usr/bin/spillway" '\.symtab' && complain "the installed program is not stripped"
has "$root/usr/bin/.debug/spillway.debug" '\.debug_info' || complain "the debug symbols are missing"
if command -v gdb >/dev/null; then
    gdb -batch -ex 'info line main' "$root/usr/bin/spillway" 2>&1 | grep -q 'engine/cli/main\.c' ||
        complain "gdb does not find the debug symbols"
else
    echo "install: gdb is missing: the debug symbols are not tried"
fi

# a folder that cannot be written is said in one line
told=$(${MAKE:-make} --no-print-directory -n B=/proc/nowhere 2>&1)
case $told in *"cannot be written: build in another folder, with make B=FOLDER"*) ;; *) complain "make says of a read-only folder: $told" ;; esac

# the version names the commit: that of the git tree, and that of an archive of it
commit=$(git -c safe.directory='*' rev-parse --short=9 HEAD 2>/dev/null)
if [ -n "$commit" ]; then
    "$program" --version | grep -q "($commit\(-dirty\)\?)$" || complain "--version does not name $commit: $("$program" --version)"
    mkdir "$root/archive"
    git archive HEAD Makefile engine/commit .gitattributes | tar -x -C "$root/archive"
    ${MAKE:-make} --no-print-directory -s -C "$root/archive" B=built built/release/commit
    [ "$(cat "$root/archive/built/release/commit")" = "$commit" ] || complain "an archive does not know its commit"
    rm -rf "$root/archive"
else
    echo "install: no git tree: the commit of the version is not checked"
fi

page=$root/usr/share/man/man1/spillway.1
if command -v man >/dev/null; then
    warnings=$(LC_ALL=C.UTF-8 MANWIDTH=100 man --warnings -l "$page" 2>&1 >/dev/null)
    [ -z "$warnings" ] || complain "the manual page: $warnings"
else
    echo "install: man is missing: the manual page is not checked"
fi

# completion in a new bash: flags of a command, values of a flag, no values for a number
completion=$root/usr/share/bash-completion/completions/spillway
complete() {
    bash -c '. "$0" || exit 1; COMP_WORDS=(spillway "$@"); COMP_CWORD=$#; compopt() { :; }; _spillway; echo "${COMPREPLY[*]}"' \
        "$completion" "$@"
}
if command -v bash >/dev/null; then
    [ "$(complete run --top-)" = "--top-k --top-p --top-n-sigma" ] || complain "completion of run --top-: $(complete run --top-)"
    [ "$(complete run --kv f)" = "f16 f32" ] || complain "completion of --kv: $(complete run --kv f)"
    [ "$(complete insp)" = "inspect" ] || complain "completion of insp: $(complete insp)"
    [ -z "$(complete run -n '')" ] || complain "completion of a number: $(complete run -n '')"
else
    echo "install: bash is missing: completion is not checked"
fi

unit=$root/usr/lib/systemd/system/spillway.service
if command -v systemd-analyze >/dev/null; then
    # the root holds only the installed files and a shell: other units of a system are not checked
    install -D -m 755 /bin/sh "$root/bin/sh"
    told=$(systemd-analyze verify --man=no --recursive-errors=no --root="$root" "$unit" 2>&1 | grep spillway)
    [ -z "$told" ] || complain "the unit: $told"
    rm "$root/bin/sh"
else
    echo "install: systemd-analyze is missing: the unit is not checked"
fi

# the image installs the packages of all linked libraries; package names are those of Debian 12
if [ "$(. /etc/os-release 2>/dev/null; echo "$ID $VERSION_ID")" = "debian 12" ] && command -v readelf >/dev/null; then
    for lib in $(readelf -d "$program" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p'); do
        package=$(dpkg-query -S "*/$lib" 2>/dev/null | sed -n '1s/:.*//p')
        case $package in libc6*|libgcc-s1|libstdc++6) continue ;; esac
        grep -qw -e "${package:-of $lib}" configs/Containerfile || complain "the image lacks ${package:-$lib}"
    done
else
    echo "install: not Debian 12: the image's packages are not checked"
fi

put uninstall
left=$(find "$root" -type f)
[ -z "$left" ] || complain "uninstall leaves $left"
[ $bad = 0 ] && echo "install: ok"
exit $bad
