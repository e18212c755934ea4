#!/bin/sh
# Installs what the tests play against and this machine lacks: Postfix (for smtp-source and smtp-sink too), swaks, curl,
# msmtp, Python, aiosmtpd. As root on Debian and its kin through apt-get; elsewhere it says what is missing, and the
# tests note it.
set -eu
PATH="$PATH:/usr/sbin:/sbin"

missing=""
for pair in postfix:postfix smtp-source:postfix smtp-sink:postfix swaks:swaks curl:curl msmtp:msmtp python3:python3 \
    aiosmtpd:python3-aiosmtpd; do
    program=${pair%%:*}
    package=${pair##*:}
    command -v "$program" >/dev/null 2>&1 && continue
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
if command -v debconf-set-selections >/dev/null 2>&1; then
    echo "postfix postfix/main_mailer_type select No configuration" | debconf-set-selections
fi
install() {
    # shellcheck disable=SC2086 # words of a list
    apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1
}
# Lists that are there may do; a fresh machine has none.
install || { apt-get update -qq >/dev/null 2>&1 && install; } || {
    echo "could not install: $missing. Tests that need them are skipped."
    exit 0
}
echo "installed: $missing"
