#!/bin/sh
# Two NUMA nodes in a virtual machine: checks that pages and threads are on the right nodes, and that logits equal
# those of this machine. For each layout of nodes it boots the program with a model in an initramfs,
# compares logits with this machine's, and counts the pages of a running `eval` from /proc/PID/numa_maps.
# Usage: tests/numa.sh SPILLWAY MODEL.gguf       KERNEL: a vmlinuz   BUSYBOX: a static busybox
# Needs qemu-system-x86_64; slow without KVM. Exit status 77: a needed program is missing.
spillway=$1 model=$2
kernel=${KERNEL:-$(ls /boot/vmlinuz-* 2>/dev/null | tail -n 1)}
busybox=${BUSYBOX:-$(command -v busybox)}
skip() { echo "SKIPPED: $1" >&2; exit 77; }
command -v qemu-system-x86_64 >/dev/null || skip "no qemu-system-x86_64 (apt-get install qemu-system-x86)"
command -v cpio >/dev/null || skip "no cpio (apt-get install cpio)"
[ -r "$kernel" ] || skip "no kernel to boot: KERNEL=vmlinuz (apt-get download linux-image-cloud-amd64; dpkg -x)"
[ -x "$busybox" ] || skip "no busybox: BUSYBOX=... (apt-get install busybox-static)"
# without an initramfs the kernel panics and qemu ends: if this happens within seconds, KVM works
cpu="-accel kvm -cpu host"
plain="-display none -no-reboot -nodefaults -serial stdio -machine q35"
[ -w /dev/kvm ] && timeout 15 qemu-system-x86_64 $cpu $plain -kernel "$kernel" -m 512M \
    -append "console=ttyS0 panic=-1" </dev/null >/dev/null 2>&1 || cpu="-accel tcg -cpu max"
echo "qemu $cpu"

dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
ids=$(seq -s , 1 40)
"$spillway" eval -m "$model" --ids "$ids" --logits "$dir/logits" --quiet || exit 2
want=$(md5sum <"$dir/logits" | cut -d ' ' -f 1)

# ---- /init of the virtual machine: prints `FACT name value...` lines for the checks below -----------------
root=$dir/root
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp"
cp "$busybox" "$root/bin/busybox"
cp "$spillway" "$root/spillway"
cp "$model" "$root/model.gguf"
for lib in $(ldd "$spillway" | grep -o '/[^ ]*'); do
    mkdir -p "$root$(dirname "$lib")"
    cp -L "$lib" "$root$lib"
done
cat >"$root/init" <<'EOF'
#!/bin/busybox sh
/bin/busybox --install -s /bin 2>/dev/null
export PATH=/bin
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
ids=$(sed 's/.*ids=\([0-9,]*\).*/\1/' /proc/cmdline) only=$(sed -n 's/.*only=\([0-9a-f]*\).*/\1/p' /proc/cmdline)
[ -z "$only" ] || taskset -p "$only" $$ >/dev/null
logits() {
    /spillway eval -m /model.gguf --ids $ids --logits /tmp/l --quiet $2 && echo "FACT bytes $1 $(md5sum </tmp/l)"
}
/spillway doctor --quiet | sed -n 's/^/FACT doctor /p' | grep -E ' (numa|dram) |dram node'
logits default; logits three-threads "--threads 3"; logits seven-threads "--threads 7"; logits one-thread "--threads 1"
least=$(/spillway eval -m /model.gguf --ids $ids --logits /tmp/l --host-mem 1M 2>&1 | sed -n 's/.*raise --host-mem to \([0-9]*\)M.*/\1/p')
logits little-memory "--host-mem ${least}M"
i=0
while [ $i -lt 3000 ]; do echo "$i bottles hang on the wall, one falls, how many are left?"; i=$((i + 1)); done >/tmp/text
/spillway eval -m /model.gguf --quiet --text /tmp/text >/dev/null 2>&1 &
pid=$! before=none now=
model=$(($(stat -c %s /model.gguf) / 1024))
while [ -d /proc/$pid ]; do                     # until all weights are loaded, and the page count is stable
    sleep 1
    now=$(awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^kernelpagesize_kB=/) size = substr($i, 19)
                 for (i = 1; i <= NF; i++) if ($i ~ /^N[0-9]+=/) { sub(/.*=/, "", $i); n += $i * size } }
               END { print n + 0 }' /proc/$pid/numa_maps)
    [ "$now" = "$before" ] && [ "$now" -gt "$model" ] && break
    before=$now
done
awk '{ near = ""; for (i = 1; i <= NF; i++) {
           if ($i ~ /^prefer/) near = substr($i, length($i));
           if ($i ~ /^kernelpagesize_kB=/) size = substr($i, 19) }
       for (i = 1; i <= NF; i++) if ($i ~ /^N[0-9]+=/) {
           split(substr($i, 2), n, "="); if (near == "") other += n[2] * size
           else if (n[1] == near) good[near] += n[2] * size; else bad[near] += n[2] * size } }
     END { for (k in good) print "FACT pages", k, good[k] + 0, bad[k] + 0; print "FACT unbound", other }' /proc/$pid/numa_maps
for t in /proc/$pid/task/*; do
    echo "FACT thread $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' $t/status)"
done | sort | uniq -c | sed 's/ *\([0-9]*\) FACT thread \(.*\)/FACT threads \1 on \2/'
kill $pid
echo FACT end
poweroff -f
EOF
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$dir/initramfs"

# ---- layouts ---------------------------------------------------------------------------------------------
failed=0
mib=$(( ($(stat -c %s "$dir/initramfs") + $(stat -c %s "$model") * 2) / 1048576 + 700 ))
memory() { for i in "$@"; do printf -- '-object memory-backend-ram,size=%dM,id=m%d ' "$mib" "$i"; done; }

# boot NAME NODES-EXPECTED KERNEL-WORDS QEMU-ARGUMENTS...
boot() {
    name=$1 nodes=$2 words=$3
    shift 3
    timeout 600 qemu-system-x86_64 $cpu $plain \
        -kernel "$kernel" -initrd "$dir/initramfs" -append "console=ttyS0 quiet panic=-1 rdinit=/init ids=$ids $words" \
        "$@" </dev/null >"$dir/out" 2>"$dir/err"
    tr -d '\r' <"$dir/out" | sed -n 's/.*FACT //p' >"$dir/facts"
    sed "s/^/$name: /" "$dir/facts"
    if ! awk -v want="$want" -v nodes="$nodes" '
        $1 == "bytes" { n_bytes++; if ($3 != want) { print "wrong bytes: " $2; bad = 1 } }
        $1 == "pages" { n_pages++; if ($4 > 0.01 * $3) { print "pages are not on node " $2; bad = 1 } }
        $1 == "end" { end = 1 }
        END { if (n_bytes != 5 || !end) { print "the run is incomplete"; bad = 1 }
              if (n_pages + 0 != (nodes > 1 ? nodes : 0) && nodes > 0) { print "pages on " n_pages + 0 " nodes"; bad = 1 }
              exit bad }' "$dir/facts"; then
        echo "$name: FAILED"
        tail -n 5 "$dir/out" "$dir/err"
        failed=1
    fi
}

boot one-node 1 "" -smp 2 -m ${mib}M
boot two-nodes 2 "" -smp 2 -m $((2 * mib))M $(memory 0 1) \
    -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1
boot two-by-two 2 "" -smp 4 -m $((2 * mib))M $(memory 0 1) \
    -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1
boot memory-only-node 2 "" -smp 2 -m $((3 * mib))M $(memory 0 1 2) -numa node,nodeid=0,cpus=0,memdev=m0 \
    -numa node,nodeid=1,cpus=1,memdev=m1 -numa node,nodeid=2,memdev=m2
boot node-without-memory 2 "" -smp 3 -m $((2 * mib))M $(memory 0 1) -numa node,nodeid=0,cpus=0,memdev=m0 \
    -numa node,nodeid=1,cpus=1,memdev=m1 -numa node,nodeid=2,cpus=2 -numa dist,src=0,dst=1,val=20 \
    -numa dist,src=0,dst=2,val=30 -numa dist,src=1,dst=2,val=15
boot processors-of-one-node 0 "only=2" -smp 2 -m $((2 * mib))M $(memory 0 1) \
    -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1
[ "$failed" = 0 ] && echo "numa: all layouts are right"
exit "$failed"
