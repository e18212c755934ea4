#!/usr/bin/env bash
# Types the lines of scripts/command-lines.txt and says which did not do what the file says. Fails if more than three did not.
#
#   scripts/command-lines.sh [PROGRAM]   by default target/debug/mailrun
set -uo pipefail
lines=$(realpath "$(dirname "$0")")/command-lines.txt
program=$(realpath "${1:-$(dirname "$0")/../target/debug/mailrun}")
cd "$(mktemp -d)"
trap 'kill "$sink"; rm -rf "$PWD"' EXIT
export PATH="$(dirname "$program"):$PATH"

"$program" sink --listen 127.0.0.1:0 --http 127.0.0.1:0 --live json >sink.json 2>sink.err &
sink=$!
for _ in {1..100}; do grep -q listening sink.json && break; sleep 0.1; done
server=$(sed -n 's/.*"smtp":\["\([^"]*\)".*/\1/p' sink.json)
http=$(sed -n 's/.*"http":"\([^"]*\)".*/\1/p' sink.json)
"$program" bench "$server" --quiet -m 20 --out run >/dev/null 2>&1

count=0
wrong=0
while IFS='|' read -r expected line; do
    [[ -n $line && $expected != '#'* ]] || continue
    expected=$(sed 's/ *$//' <<<"$expected")
    typed=${line//SERVER/$server}
    typed=${typed//HTTP/http://$http}
    typed=${typed//RUN/run}
    count=$((count + 1))
    eval "timeout 60 \"\$program\" $typed" >out 2>err </dev/null
    status=$?
    if [ "$expected" = works ]; then
        [ $status = 0 ] && continue
    else
        [ $status = 2 ] && [ "$(wc -l <err)" = 1 ] && grep -qF -e "$expected" err && continue
    fi
    wrong=$((wrong + 1))
    printf '%s\n    expected: %s\n    status %d: %s\n' "mailrun$line" "$expected" $status "$(head -c 300 err)"
done <"$lines"
echo "$((count - wrong)) of $count command lines work, or say in one line what to type"
[ $wrong -le 3 ]
