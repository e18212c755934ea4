#!/bin/sh
# Drives the dashboard in tmux; `make test-slow PART=dashboard`. Its screens with the sample run are compared with tests/dashboard, a
# run of mailrun bench is watched, paused and stopped, and the terminal is restored however the program ends. Where tmux is
# missing it says so in one line, and notes it as skipped.
#
#   scripts/test-dashboard.sh             compares
#   scripts/test-dashboard.sh --update    writes the screens of tests/dashboard anew: look at the difference
set -eu
if ! command -v tmux >/dev/null 2>&1; then
    echo "SKIPPED: the dashboard on a terminal: no tmux"
    mkdir -p target
    echo "the dashboard on a terminal" >>target/skipped-peers.txt
    exit 0
fi
${CARGO:-cargo} build --quiet --bin mailrun
${CARGO:-cargo} build --quiet -p mailrun-dashboard --example dashboard_replay
target=${CARGO_TARGET_DIR:-$PWD/target}/debug
replay=$target/examples/dashboard_replay
mailrun=$target/mailrun
screens=$PWD/tests/dashboard
update=${1:-}
place=$(mktemp -d)
failed=0

# A server of its own, without anybody's settings.
on() { tmux -u -L "mailrun-$$" -f /dev/null "$@"; }
end() {
    on kill-server 2>/dev/null || true
    rm -rf "$place"
}
trap end EXIT
trap 'exit 1' HUP INT TERM

# It lives on without a session.
on start-server \; set-option -g exit-empty off

# Starts a command on a terminal of that size. After it, the terminal's modes are compared with those before.
start() {
    columns=$1 rows=$2
    shift 2
    cat >"$place/run" <<END
cd "$place" && trap : INT TERM
unset CI NO_COLOR
export LC_ALL=C.UTF-8
before=\$(stty -g)
$*
status=\$?
[ "\$before" = "\$(stty -g)" ] && echo "terminal restored, status \$status" || echo "terminal broken, status \$status"
exec sleep 600
END
    on kill-session -t run 2>/dev/null || true
    on new-session -d -s run -x "$columns" -y "$rows" "exec sh $place/run"
}
screen() { on capture-pane -p -t run; }
press() { on send-keys -t run "$@"; }

# Waits until a line of the screen matches.
await() {
    tries=0
    until screen | grep -Eq -- "$1"; do
        tries=$((tries + 1))
        if [ "$tries" -gt 600 ]; then
            echo "FAILED: no line matches '$1' on:"
            screen
            failed=1
            return 0
        fi
        sleep 0.1
    done
}
# Compares the screen with the one that is kept; waits for it, since keys take their time.
compare() {
    if [ "$update" = --update ]; then
        mkdir -p "$screens"
        sleep 1
        screen >"$screens/$1.txt"
        return 0
    fi
    tries=0
    until screen >"$place/screen" && cmp -s "$place/screen" "$screens/$1.txt"; do
        tries=$((tries + 1))
        if [ "$tries" -gt 300 ]; then
            echo "FAILED: the screen differs from tests/dashboard/$1.txt:"
            diff "$screens/$1.txt" "$place/screen" || true
            failed=1
            return 0
        fi
        sleep 0.1
    done
}
# The program has ended: the terminal is as it was, and the normal screen is shown.
await_restored() {
    await "^terminal restored, status $1\$"
    [ "$(on display-message -p -t run '#{alternate_on}')" = 0 ] || {
        echo "FAILED: the alternate screen was not left"
        failed=1
    }
}

for size in 80x24 160x50; do
    start "${size%x*}" "${size#*x}" "$replay"
    await 'Rate and queue'
    compare "$size"
    for pane in 1 2 3 4; do
        press "$pane"
        compare "$size-pane-$pane"
    done
    press Escape
    compare "$size"
    press p
    compare "$size-paused"
    press p
    press '?'
    compare "$size-help"
    press q
    await_restored 0
    await '^a line that was told meanwhile$'
    await '^stopped, Stop$'
done

# A terminal that becomes too small has the figures as lines, and the panes again when it has grown.
start 80 24 "$replay"
await 'Rate and queue'
on resize-window -t run -x 60 -y 12
compare 60x12
on resize-window -t run -x 80 -y 24
compare 80x24
press C-c
await_restored 0

# Without colour the text is the same, and no colour is used.
start 80 24 NO_COLOR=1 "$replay"
await 'Rate and queue'
compare 80x24
if on capture-pane -e -p -t run | grep -q "$(printf '\033')\[[0-9;]*3[0-7]"; then
    echo "FAILED: a colour with NO_COLOR"
    failed=1
fi
press q
await_restored 0

for ending in panic:101 error:2; do
    start 80 24 "$replay" "${ending%:*}"
    await_restored "${ending#*:}"
done
await 'a line that was told meanwhile'

# Standard output is not the terminal: nothing but the program's own words goes there.
start 80 24 "$replay >stdout"
await 'Rate and queue'
compare 80x24
press q
await_restored 0
[ "$(cat "$place/stdout")" = "stopped, Stop" ] || {
    echo "FAILED: standard output has more than the program said"
    failed=1
}

# A signal from elsewhere.
start 80 24 "$replay"
await 'Rate and queue'
pane=$(on display-message -p -t run '#{pane_pid}')
kill -TERM "$(pgrep -P "$pane" -f dashboard_replay)"
await_restored 0

# Ctrl-Z and fg, before a shell with job control.
on kill-session -t run
on new-session -d -s run -x 80 -y 24 'LC_ALL=C.UTF-8 PS1="ready> " exec bash --norc --noprofile -i'
await '^ready>'
press "$replay" Enter
await 'Rate and queue'
press C-z
await 'Stopped'
press fg Enter
await 'Rate and queue'
compare 80x24
press q
await '^stopped, Stop$'

# A run of its own: it shows a rate, pauses, stops, and reports.
start 100 30 "$mailrun" bench --relay none --duration 120s --sessions 2 --reuse --out out
await 'delivered  *[▁▂▃▄▅▆▇█]'
await '^│ *[1-9][0-9,]*/s '
await ' / 120 s · [0-9,]* delivered · about '
await '^.*│ source .*MiB'
press p
await 'PAUSED'
press p
press q
await_restored 130
await 'interrupted'
[ -s "$place/out/run.json" ] || {
    echo "FAILED: the run was not recorded"
    failed=1
}

# The line, where it is asked for; and in a job of a CI service.
for words in "$mailrun bench --progress line" "CI=true $mailrun bench"; do
    start 100 30 "env $words --relay none --duration 3s --sessions 2 --reuse --out line"
    await '^[━─]+ [0-9] / 3 s · '
    [ "$(on display-message -p -t run '#{alternate_on}')" = 0 ] || {
        echo "FAILED: a dashboard with: $words"
        failed=1
    }
    await '^terminal restored, status'
done
[ "$failed" = 0 ] && echo "the dashboard is as it should be" || exit 1
