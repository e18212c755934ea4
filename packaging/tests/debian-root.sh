#!/usr/bin/env bash
# Makes a clean Debian root by debootstrap, kept as a tar file in target/roots; prints the name of that file, or nothing
# where it cannot be made.
#
#   packaging/tests/debian-root.sh base      the packages that every Debian has
#   packaging/tests/debian-root.sh shells    and man, bash-completion, zsh, fish
#   packaging/tests/debian-root.sh SERVER    and a mail server, which cannot be installed beside Postfix: exim, opensmtpd,
#                                            chasquid
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH=$PATH:/usr/sbin:/sbin
kind=$1
suite=bookworm
mirror=
# The host's own mirror, where it is a Debian.
if [ "$(. /etc/os-release && echo "$ID")" = debian ]; then
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  # shellcheck disable=SC2016 # apt's own words
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' "Created-By: Packages" |
    awk -v suite="$suite" '$2 == suite && $3 == "main" { print $1; exit }')
fi
tar=target/roots/$kind-$suite.tar
if [ ! -s "$tar" ]; then
  root=target/roots/$kind
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
      tar -xf "$(packaging/tests/debian-root.sh base)" -C "$root"
      cp /etc/resolv.conf "$root/etc/resolv.conf"
      # Nothing that is installed there may start a service.
      printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
      chmod +x "$root/usr/sbin/policy-rc.d"
      case $kind in
      shells) packages="man-db bash-completion zsh fish" ;;
      exim) packages=exim4-daemon-light ;;
      opensmtpd) packages=opensmtpd ;;
      # chasquid wants a certificate; msmtp hands its mail on.
      chasquid) packages="chasquid msmtp ssl-cert" ;;
      esac
      chroot "$root" env DEBIAN_FRONTEND=noninteractive sh -c "
        apt-get update && apt-get install -y --no-install-recommends $packages"
    fi
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -cf "$tar.part" -C "$root" --numeric-owner .
    mv "$tar.part" "$tar"
  ) >"target/roots/$kind.log" 2>&1
  status=$?
  set -e
  [ "$status" = 0 ] || exit 0
  rm -rf "$root"
fi
echo "$tar"
