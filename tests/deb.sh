#!/bin/sh
# Installs, upgrades, removes and purges the Debian packages in a bare Debian 12 of its own, and starts the service there
# under a booted systemd where systemd-nspawn works: deb.sh PROGRAM FOLDER [MIRROR].  Run by `make check-deb`, as root.
#
# FOLDER has the packages, and the system in FOLDER/root; it is made again each time, because the tour changes it.
set -eu
cd "$(dirname "$0")/.."
program=$1 folder=$(realpath "$2") mirror=${3:-}
root=$folder/root
fail() { echo "deb: $1" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "this needs root: it makes a system and changes into it with chroot"
command -v mmdebstrap >/dev/null || fail "install mmdebstrap"

if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error "$folder"/spillway_*.changes || fail "lintian finds errors"
else
    echo "deb: lintian is missing: the packages are not checked by it"
fi

rm -rf "$root" "$folder/next"
mmdebstrap --quiet --variant=apt --mode=root --include=init,systemd,dbus,curl bookworm "$root" $mirror
DEB_VERSION=$(dpkg-deb -f "$folder"/spillway_*.deb Version)+next configs/debian/build.sh "$program" "$folder/next" >/dev/null 2>&1
mkdir -p "$root/packages/next"
cp "$folder"/*.deb "$root/packages"
cp "$folder"/next/*.deb "$root/packages/next"
cp evals/train/models/demo-draft-q8_0.gguf "$root/packages/model.gguf"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"

cat >"$root/packages/tour.sh" <<'TOUR'
set -eu
fail() { echo "deb: $1" >&2; exit 1; }
state() { dpkg-query -W -f='${db:Status-Status} ${Version}' spillway 2>/dev/null || true; }
env=/etc/spillway/spillway.env home=/var/lib/spillway
apt-get update -qq

apt-get install -y -qq --no-install-recommends /packages/spillway_*.deb >/dev/null
spillway --version
getent passwd spillway | grep -q ":$home:" || fail "no user spillway"
[ "$(stat -c %U $home/models)" = spillway ] || fail "$home/models does not belong to spillway"
grep -q SPILLWAY_MODEL $env || fail "no $env"
[ ! -e /etc/systemd/system/multi-user.target.wants/spillway.service ] || fail "the service is enabled without a model"
told=$(systemd-analyze verify --man=no spillway.service 2>&1 | grep spillway || true)
[ -z "$told" ] || fail "the unit: $told"
apt-get install -y -qq /packages/spillway-dbgsym_*.deb >/dev/null
[ -n "$(find /usr/lib/debug/.build-id -name '*.debug')" ] || fail "no debug symbols"

cp /packages/model.gguf $home/models/
touch $home/models/model.gguf.heat
sed -i "s#^SPILLWAY_MODEL=.*#SPILLWAY_MODEL=$home/models/model.gguf#" $env
apt-get install -y -qq /packages/next/*.deb >/dev/null
case $(state) in "installed "*+next) ;; *) fail "not upgraded: $(state)" ;; esac
grep -q model.gguf $env || fail "the upgrade loses the changed $env"
[ "$(stat -c %U $home/models)" = spillway ] || fail "the upgrade changes the owner of $home/models"

apt-get remove -y -qq spillway >/dev/null
[ ! -e /usr/bin/spillway ] || fail "a removed package leaves its program"
grep -q model.gguf $env || fail "a removed package loses $env"
[ -e $home/models/model.gguf.heat ] || fail "a removed package loses the statistics"

apt-get purge -y -qq spillway >/dev/null 2>&1
[ ! -e /etc/spillway ] || fail "a purged package leaves /etc/spillway"
[ -e $home/models/model.gguf ] || fail "a purge deletes a model"
[ ! -e $home/models/model.gguf.heat ] || fail "a purge leaves the statistics"

apt-get install -y -qq --no-install-recommends /packages/spillway_*.deb >/dev/null
rm $home/models/model.gguf
apt-get purge -y -qq spillway >/dev/null 2>&1
[ ! -e $home ] || fail "a purge leaves the empty $home"
! getent passwd spillway >/dev/null || fail "a purge leaves the user"
[ -z "$(state)" ] || fail "after the purge: $(state)"
echo "deb: installed, upgraded, removed, purged"
apt-get install -y -qq --no-install-recommends /packages/spillway_*.deb >/dev/null
cp /packages/model.gguf $home/models/
sed -i "s#^SPILLWAY_MODEL=.*#SPILLWAY_MODEL=$home/models/model.gguf#; s/^#SPILLWAY_HOST_MEM=.*/SPILLWAY_HOST_MEM=200M/" $env
TOUR

# The mounts are in a mount namespace of their own, so none is left when the script ends, however it ends.
unshare --mount --pid --fork --kill-child sh -eu -c '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    mount -t tmpfs tmpfs "$1/tmp"
    exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        DEBCONF_NOWARNINGS=yes sh /packages/tour.sh' sh "$root"

# A booted system: the unit of the root starts, asks the server, and powers off.
cat >"$root/packages/serve.sh" <<'SERVE'
set -u
systemctl enable --now spillway && curl -sf http://127.0.0.1:8080/health && systemctl reload spillway &&
    curl -sf http://127.0.0.1:8080/v1/models && before=$(systemctl show -P MainPID spillway) &&
    [ "$(stat -c %U "/proc/$before")" = spillway ] && apt-get install -y -qq /packages/next/spillway_*.deb &&
    systemctl is-active spillway && [ "$(systemctl show -P MainPID spillway)" != "$before" ] &&
    curl -sf http://127.0.0.1:8080/health && apt-get remove -y -qq spillway && ! pidof spillway && touch /packages/served
journalctl -u spillway --no-pager >/packages/journal
systemctl poweroff
SERVE
cat >"$root/etc/systemd/system/tour.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh /packages/serve.sh
StandardOutput=file:/packages/serve.log
StandardError=inherit
[Install]
WantedBy=multi-user.target
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf ../tour.service "$root/etc/systemd/system/multi-user.target.wants/tour.service"
rm -f "$root/packages/served"
if ! command -v systemd-nspawn >/dev/null; then
    echo "deb: systemd-nspawn is missing: the service is not started"
elif timeout 300 systemd-nspawn --quiet --boot --private-network --register=no --keep-unit --directory="$root" >"$folder/boot.log" 2>&1 &&
    [ -e "$root/packages/served" ]; then
    echo "deb: the service started, was reloaded, was restarted by an upgrade and stopped by a removal under systemd"
elif [ -e "$root/packages/journal" ]; then
    cat "$root/packages/serve.log" "$root/packages/journal" >&2
    fail "the service does not run under systemd"
else
    echo "deb: systemd-nspawn does not boot here, so the service is not started: $(tail -n 1 "$folder/boot.log")"
fi
