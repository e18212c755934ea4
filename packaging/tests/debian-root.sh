#!/usr/bin/env bash
# Makes a clean Debian root by debootstrap, kept as target/roots/KIND-SUITE.tar; prints the name of that file, or nothing
# if it cannot be made (target/roots/KIND-SUITE.log says why).
#
#   packaging/tests/debian-root.sh base [SUITE]      the packages that every Debian has
#   packaging/tests/debian-root.sh shells [SUITE]    and man, bash-completion, zsh, fish
#   packaging/tests/debian-root.sh SERVER [SUITE]    and a mail server; Debian installs one of a kind at a time: chasquid,
#                                                    courier, cyrus, dovecot, exim, nullmailer, opensmtpd, postfix, sendmail
#   packaging/tests/debian-root.sh rabbitmq [SUITE]  and RabbitMQ, for scripts/start-rabbitmq.sh
#   packaging/tests/debian-root.sh registry [SUITE]  and a registry of images, with skopeo, which pushes to it
#
# SUITE is a release of Debian, such as bookworm or trixie [default: the host's, or bookworm if the host is no Debian].
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH=$PATH:/usr/sbin:/sbin
kind=$1
own=bookworm
mirror=
if [ "$(. /etc/os-release && echo "$ID")" = debian ]; then
  own=$(. /etc/os-release && echo "$VERSION_CODENAME")
  # The host's own mirror has the other suites, too.
  # shellcheck disable=SC2016 # apt's own words
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' "Created-By: Packages" |
    awk -v suite="$own" '$2 == suite && $3 == "main" { print $1; exit }')
fi
suite=${2:-$own}
case $kind in
base | shells) packages="man-db bash-completion zsh fish" ;;
# chasquid wants a certificate; msmtp hands its mail on.
chasquid) packages="chasquid msmtp ssl-cert" ;;
courier) packages=courier-mta ;;
# It has no users but those of SASL.
cyrus) packages="cyrus-imapd sasl2-bin libsasl2-modules" ;;
dovecot) packages="dovecot-imapd dovecot-lmtpd" ;;
exim) packages=exim4-daemon-light ;;
# It serves SMTP on its standard input only, and tcpserver gives it a port.
nullmailer) packages="nullmailer ucspi-tcp" ;;
# Its dispatcher ends at once if there are no authorities.
opensmtpd) packages="opensmtpd ca-certificates" ;;
postfix) packages=postfix ;;
rabbitmq) packages=rabbitmq-server ;;
registry) packages="docker-registry skopeo" ;;
# Its configuration is written in m4.
sendmail) packages="sendmail-bin m4" ;;
*)
  echo "unknown kind $kind: it is base, shells, chasquid, courier, cyrus, dovecot, exim, nullmailer, opensmtpd, postfix, rabbitmq, registry or sendmail" >&2
  exit 2
  ;;
esac
tar=target/roots/$kind-$suite.tar
if [ ! -s "$tar" ]; then
  root=target/roots/$kind-$suite
  rm -rf "$root"
  mkdir -p "$root"
  # The steps must not be a condition (`|| exit 0`): in one, bash ignores `set -e`, and an incomplete root would be kept.
  set +e
  (
    set -e
    if [ "$kind" = base ]; then
      # shellcheck disable=SC2086 # no word where there is no mirror
      timeout 600 debootstrap --variant=minbase "$suite" "$root" $mirror
    else
      tar -xf "$(packaging/tests/debian-root.sh base "$suite")" -C "$root"
      cp /etc/resolv.conf "$root/etc/resolv.conf"
      # Nothing that is installed there may start a service.
      printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
      chmod +x "$root/usr/sbin/policy-rc.d"
      # Sendmail stops services while it is installed, by /proc. The namespace keeps processes of this host out of it.
      unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" chroot "$root" env DEBIAN_FRONTEND=noninteractive sh -c "
        apt-get update && apt-get install -y --no-install-recommends $packages"
    fi
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -cf "$tar.part" -C "$root" --numeric-owner .
    mv "$tar.part" "$tar"
  ) >"target/roots/$kind-$suite.log" 2>&1
  status=$?
  set -e
  [ "$status" = 0 ] || exit 0
  rm -rf "$root"
fi
echo "$tar"
