#!/bin/sh
# Installs what the tests play against and this machine lacks: Postfix (for smtp-source and smtp-sink too), Dovecot, swaks,
# curl, msmtp, Python, aiosmtpd; and strace, by which disks fail in tests. As root on Debian and its kin through apt-get;
# elsewhere it says what is missing, and the tests note it. promtool comes out of Debian's package of Prometheus, of which
# nothing is installed, and two Python modules for the exported formats from PyPI, all into target/peers. go-smtp-source,
# go-mades-bench and quiver are used if they are on the PATH.
#
#   scripts/install-test-peers.sh             all of these
#   scripts/install-test-peers.sh amqp        Qpid Proton's client for Python, and Azure's for Go, which is built into
#                                             target/peers; and what a quiver that is on the PATH needs besides
#   scripts/install-test-peers.sh browser     Chromium, and from npm what tests/browser/package-lock.json names
#   scripts/install-test-peers.sh cost        valgrind and strace
#   scripts/install-test-peers.sh dashboard   tmux
#   scripts/install-test-peers.sh exim        debootstrap, which makes a Debian for Exim
#   scripts/install-test-peers.sh grafana     Prometheus, of which nothing is installed either, into target/peers
#   scripts/install-test-peers.sh haraka      Haraka from npm, into target/peers
#   scripts/install-test-peers.sh packages    debootstrap, crun, bubblewrap, QEMU's user mode
#   scripts/install-test-peers.sh rabbitmq    RabbitMQ alone; no RabbitMQ is started by that, now or with the host
set -eu
PATH="$PATH:/usr/sbin:/sbin"

# Only the program, promtool or prometheus: the package would start a server.
install_of_prometheus() {
    if command -v "$1" >/dev/null 2>&1 || [ -x "target/peers/$1" ]; then return; fi
    if ! command -v apt-get >/dev/null 2>&1; then return; fi
    mkdir -p target/peers/download
    (
        cd target/peers/download && timeout 120 apt-get -qq download prometheus >/dev/null 2>&1 &&
            dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xf - "./usr/bin/$1" && mv "usr/bin/$1" ..
    ) && echo "installed: $1" || echo "could not install $1. Tests that need it are skipped."
    rm -rf target/peers/download
}
install_python_modules() {
    command -v python3 >/dev/null 2>&1 || return 0
    PYTHONPATH=target/peers/python python3 -c 'import hdrh, junitparser' >/dev/null 2>&1 && return 0
    timeout 120 python3 -m pip install -q --target target/peers/python hdrhistogram==0.10.8 junitparser==5.0.3 >/dev/null 2>&1 &&
        echo "installed: hdrhistogram junitparser" ||
        echo "could not install hdrhistogram and junitparser for Python. Tests that need them are skipped."
}
build_go_amqp_client() {
    if [ -x target/peers/go-amqp-client ] || ! command -v go >/dev/null 2>&1; then return 0; fi
    mkdir -p target/peers
    peers="$PWD/target/peers"
    why=$(cd tests/peers/go-amqp && timeout 300 go build -o "$peers/go-amqp-client" . 2>&1) && echo "installed: go-amqp-client" ||
        echo "could not build go-amqp-client: $(echo "$why" | tail -1). The test that needs it is skipped."
}
install_haraka() {
    if [ -x target/peers/haraka ] || ! command -v npm >/dev/null 2>&1; then return 0; fi
    mkdir -p target/peers
    timeout 300 npm install --silent --prefix target/peers/npm Haraka@3.3.4 >/dev/null 2>&1 &&
        ln -s npm/node_modules/Haraka/bin/haraka target/peers/haraka && echo "installed: haraka" ||
        echo "could not install Haraka from npm. The test that needs it is skipped."
}
case "${1:-}" in
"")
    pairs="postfix:postfix smtp-source:postfix smtp-sink:postfix swaks:swaks perl-net-ssleay:libnet-ssleay-perl curl:curl msmtp:msmtp python3:python3
        aiosmtpd:python3-aiosmtpd dovecot:dovecot-core dovecot-imap:dovecot-imapd dovecot-lmtp:dovecot-lmtpd dovecot-pop3:dovecot-pop3d strace:strace zsh:zsh fish:fish man:man-db"
    install_of_prometheus promtool
    install_python_modules
    ;;
amqp)
    pairs="qpid-proton:python3-qpid-proton"
    if command -v quiver >/dev/null 2>&1; then pairs="$pairs numpy:python3-numpy zstd:zstd"; fi
    build_go_amqp_client
    ;;
browser) pairs="chromium:chromium node:nodejs npm:npm" ;;
dashboard) pairs="tmux:tmux" ;;
exim) pairs="debootstrap:debootstrap" ;;
file-systems) pairs="mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs" ;;
grafana)
    pairs=""
    install_of_prometheus prometheus
    ;;
haraka)
    pairs=""
    install_haraka
    ;;
packages) pairs="debootstrap:debootstrap crun:crun bwrap:bubblewrap qemu-aarch64-static:qemu-user-static objdump:binutils shellcheck:shellcheck" ;;
cost) pairs="valgrind:valgrind strace:strace ip:iproute2 unshare:util-linux" ;;
rabbitmq) pairs="rabbitmq-server:rabbitmq-server" ;;
*)
    echo "usage: $0 [amqp|browser|cost|dashboard|exim|file-systems|grafana|haraka|packages|rabbitmq]" >&2
    exit 2
    ;;
esac

missing=""
for pair in $pairs; do
    program=${pair%%:*}
    package=${pair##*:}
    command -v "$program" >/dev/null 2>&1 && continue
    # Modules of Perl and Python are no programs, and those of Dovecot are not in the PATH.
    case $program in dovecot-*) [ -x "/usr/lib/dovecot/${program#dovecot-}" ] && continue ;; esac
    [ "$program" = qpid-proton ] && /usr/bin/python3 -c 'import proton' >/dev/null 2>&1 && continue
    [ "$program" = numpy ] && /usr/bin/python3 -c 'import numpy' >/dev/null 2>&1 && continue
    [ "$program" = perl-net-ssleay ] && perl -MNet::SSLeay -e 1 >/dev/null 2>&1 && continue
    case " $missing " in
    *" $package "*) ;;
    *) missing="${missing:+$missing }$package" ;;
    esac
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "missing: $missing. Tests that need them are skipped; to have them all: sudo apt-get install $missing"
    exit 0
fi

export DEBIAN_FRONTEND=noninteractive
# Postfix is to stay as it is unpacked: the tests bring their own configuration.
if [ "$missing" != rabbitmq-server ] && command -v debconf-set-selections >/dev/null 2>&1; then
    echo "postfix postfix/main_mailer_type select No configuration" | debconf-set-selections
fi
install() {
    # shellcheck disable=SC2086 # words of a list
    apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1
}
# Debian starts a service that it installs, and again with the host: the tests bring their own.
policy=/usr/sbin/policy-rc.d
services=
case " $missing " in
*" dovecot-core "*) services="dovecot.service dovecot.socket" ;;
*" rabbitmq-server "*)
    services=rabbitmq-server
    command -v epmd >/dev/null 2>&1 || services="$services epmd.service epmd.socket"
    ;;
esac
if [ -n "$services" ] && [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
# Lists that are there may do; a fresh machine has none.
install || { apt-get update -qq >/dev/null 2>&1 && install; } || {
    echo "could not install: $missing. Tests that need them are skipped."
    exit 0
}
if [ -n "$services" ] && command -v systemctl >/dev/null 2>&1; then
    # shellcheck disable=SC2086 # words of a list
    systemctl disable $services >/dev/null 2>&1 || true
fi
echo "installed: $missing"
