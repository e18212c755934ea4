#!/bin/bash
# RabbitMQ (Debian's rabbitmq-server; before 4.0 with its AMQP 1.0 plug-in) on loopback, with the queues of an ECP endpoint and of an EDX
# toolbox:
#
#   scripts/start-rabbitmq.sh DIRECTORY [PORT [EPMD-PORT [DISTRIBUTION-PORT]]]
#                                                 starts it, and waits until it speaks AMQP 1.0; the process and its start are
#                                                 in DIRECTORY/pid. The two other ports are those after PORT
#   scripts/start-rabbitmq.sh --stop DIRECTORY    ends it, and waits until it has ended
#   scripts/start-rabbitmq.sh --kill DIRECTORY    the same without asking: SIGKILL
#
# Users endpoint/password and toolbox/password, durable queues. A node of its own, with its own epmd, cookie, database,
# configuration and ports, all on 127.0.0.1: a RabbitMQ that the system has is neither asked nor touched.
# RABBITMQ_PROGRAMS names the directory of the package's programs (/usr/lib/rabbitmq/bin). RABBITMQ_ROOT names the tar file of a
# Debian root whose RabbitMQ is run, as root: packaging/tests/debian-root.sh rabbitmq trixie makes that of Debian 13, which is 4.0.
set -euo pipefail

# Not /usr/sbin/rabbitmq-server, which changes to the user and the directory of the system's own node.
programs=${RABBITMQ_PROGRAMS:-/usr/lib/rabbitmq/bin}

fail() { echo "start-rabbitmq: $*" >&2; exit 2; }

# Start of a process in clock ticks since boot, field 22 of proc(5). Prints nothing if the process has ended. The second
# field may contain spaces.
started() { sed -n 's/.*) \([^ZX] .*\)/\1/p' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }

# Prints the process of an instance, if it runs. Another process may have got its number since.
running() { # DIRECTORY
	local pid start
	[ -f "$1/pid" ] && read -r pid start <"$1/pid" && [ -n "$start" ] && [ "$(started "$pid")" = "$start" ] && echo "$pid"
}

# The process and its epmd are a group of their own.
end() { # DIRECTORY SIGNAL
	local pid
	pid=$(running "$1") || { rm -f "$1/pid"; return 0; }
	local whom=$pid; [ "$2" != KILL ] || whom=-$pid
	kill "-$2" -- "$whom" 2>/dev/null || true
	for _ in $(seq 300); do
		running "$1" >/dev/null || break
		sleep 0.1
	done
	kill -KILL -- "-$pid" 2>/dev/null || true
	rm -f "$1/pid"
}

case "${1:-}" in
--stop) end "${2:?the directory}" TERM; exit 0 ;;
--kill) end "${2:?the directory}" KILL; exit 0 ;;
esac
directory=${1:?"a directory for the node"}
port=${2:-5672}
epmd_port=${3:-$((port + 1))}
distribution_port=${4:-$((port + 2))}
running "$directory" >/dev/null && exit 0
# Another broker would be taken for this one.
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
	fail "something else listens on 127.0.0.1:$port already: stop it, or choose another port"
fi
root_tar=${RABBITMQ_ROOT:-}
if [ -n "$root_tar" ]; then
	[ -s "$root_tar" ] || fail "there is no $root_tar: packaging/tests/debian-root.sh makes it"
	[ "$(id -u)" = 0 ] || fail "only root can run the RabbitMQ of another Debian"
	mkdir -p "$directory"
	directory=$(cd "$directory" && pwd)
	root=$directory/root
	[ -d "$root" ] || { mkdir "$root.new" && tar -xf "$root_tar" -C "$root.new" && mv "$root.new" "$root"; }
	mkdir -p "$root$directory"
	epmd=/usr/bin/epmd
	# The directory of the node has the same path inside. The mounts end with the node.
	# shellcheck disable=SC2016 # the inner shell's words
	within=(unshare --mount sh -c 'mount --bind /proc "$1/proc" && mount --bind /dev "$1/dev" && mount --bind "$2" "$1$2" &&
		root=$1 && shift 2 && exec chroot "$root" "$@"' - "$root" "$directory")
else
	within=()
	[ -x "$programs/rabbitmq-server" ] || fail "there is no $programs/rabbitmq-server: install Debian's package rabbitmq-server"
	epmd=$(command -v epmd) || fail "there is no epmd: install Debian's package erlang-base"
fi
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)

cat >"$directory/rabbitmq.conf" <<-END
	listeners.tcp.1 = 127.0.0.1:$port
	load_definitions = $directory/definitions.json
	log.file.level = info
	disk_free_limit.absolute = 50MB
END
echo '[rabbitmq_amqp1_0].' >"$directory/enabled_plugins"
# What the node has from its first start on; at the next it is there already.
python3 - >"$directory/definitions.json" <<-'PYTHON'
	import json
	users = ["endpoint", "toolbox"]
	queues = ["ecp.endpoint.outbox", "ecp.endpoint.outbox.reply", "ecp.endpoint.inbox", "ecp.endpoint.send.event",
	          "edx.endpoint.outbox", "edx.endpoint.reply", "edx.endpoint.inbox"]
	print(json.dumps({
	    "vhosts": [{"name": "/"}],
	    "users": [{"name": user, "password": "password", "tags": ""} for user in users],
	    "permissions": [{"user": user, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"} for user in users],
	    "queues": [{"name": queue, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}} for queue in queues],
	}))
PYTHON

# Nothing of the caller's environment: it may speak of another node.
# shellcheck disable=SC2016 # the inner shell's words
setsid env -i PATH="$PATH" HOME="$directory" LANG=C.UTF-8 EPMD="$epmd" PROGRAMS="$programs" \
	ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT="$epmd_port" \
	RABBITMQ_NODENAME="mailrun-$port@localhost" RABBITMQ_DIST_PORT="$distribution_port" \
	RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}' \
	RABBITMQ_CONF_ENV_FILE="$directory/none.conf" RABBITMQ_CONFIG_FILE="$directory/rabbitmq.conf" \
	RABBITMQ_ADVANCED_CONFIG_FILE="$directory/none.config" RABBITMQ_GENERATED_CONFIG_DIR="$directory/generated" \
	RABBITMQ_SCHEMA_DIR="$directory/schema" RABBITMQ_ENABLED_PLUGINS_FILE="$directory/enabled_plugins" \
	RABBITMQ_PLUGINS_EXPAND_DIR="$directory/plugins" RABBITMQ_MNESIA_BASE="$directory/mnesia" \
	RABBITMQ_LOG_BASE="$directory/log" RABBITMQ_PID_FILE="$directory/node-pid" \
	"${within[@]}" sh -c '"$EPMD" & exec "$PROGRAMS/rabbitmq-server"' >"$directory/stdout" 2>"$directory/stderr" </dev/null &
pid=$!
echo "$pid $(started "$pid")" >"$directory/pid"

# Whether it answers the header of SASL for AMQP 1.0 (part 5 §5.3.2) with the same, and not with that of another protocol.
speaks() {
	exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
	printf 'AMQP\003\001\000\000' >&3
	timeout 5 head -c 8 <&3 | cmp -s - <(printf 'AMQP\003\001\000\000')
}
for _ in $(seq 600); do
	if (speaks) 2>/dev/null; then exit 0; fi
	if ! kill -0 "$pid" 2>/dev/null; then
		# Its epmd.
		kill -KILL -- "-$pid" 2>/dev/null || true
		tail -5 "$directory/stdout" >&2
		fail "the broker ended at once, see $directory/stdout"
	fi
	sleep 0.1
done
end "$directory" KILL
fail "the broker does not speak AMQP 1.0 on 127.0.0.1:$port after 60 s, see $directory/stdout and $directory/log"
