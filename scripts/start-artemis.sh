#!/bin/bash
# ActiveMQ Artemis 2.40.0 on loopback, as an ECP endpoint's internal broker has it (reference: the ECCoSP helm chart):
#
#   scripts/start-artemis.sh --fetch              has Maven fetch the distribution from Maven Central, checks its SHA-256,
#                                                 unpacks it to target/peers, with a link to its program
#   scripts/start-artemis.sh DIRECTORY [PORT]     fetches it if it is missing, creates the instance, starts it, waits until
#                                                 it answers; the process and its start are in DIRECTORY/pid
#   scripts/start-artemis.sh --stop DIRECTORY     ends it, and waits until it has ended
#   scripts/start-artemis.sh --kill DIRECTORY     the same without asking: SIGKILL
#
# Users endpoint/password and toolbox/password, the queues of an ECP endpoint and an EDX toolbox, journal with datasync and
# a buffer timeout of 20 us, pages above 100 MB. Needs Java 17 and, the first time, Maven.
# ARTEMIS_HEAP sets the heap (512M); ARTEMIS_HOME names a distribution that is unpacked already.
set -euo pipefail

version=2.40.0
sha256=09f0445a4c3cd5eaec1d3bfbe2acb20459d21fe6edac6e3c425916a6a4da9189
heap=${ARTEMIS_HEAP:-512M}

fail() { echo "start-artemis: $*" >&2; exit 2; }

# The distribution, once for all instances. It is there when it is whole: it is unpacked beside its place and moved.
home=${ARTEMIS_HOME:-$(cd "$(dirname "$0")/.." && pwd)/target/peers/apache-artemis-$version}
fetch() {
	[ -x "$home/bin/artemis" ] || unpack
	# mailrun looks for programs in target/peers, too. artemis finds its home only through a link with the whole path.
	[ -n "${ARTEMIS_HOME:-}" ] || ln -sfn "$home/bin/artemis" "$(dirname "$home")/artemis"
}
unpack() {
	local zip=$HOME/.m2/repository/org/apache/activemq/apache-artemis/$version/apache-artemis-$version-bin.zip
	if [ ! -f "$zip" ]; then
		command -v mvn >/dev/null || fail "there is no mvn to fetch Artemis with: install Maven, or set ARTEMIS_HOME"
		timeout 300 mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:get \
			-Dartifact=org.apache.activemq:apache-artemis:$version:zip:bin -Dtransitive=false >&2 ||
			fail "Maven does not get org.apache.activemq:apache-artemis:$version:zip:bin"
	fi
	echo "$sha256  $zip" | sha256sum --check --status || fail "$zip is not what it should be: remove it and try again"
	local place; place=$(dirname "$home"); mkdir -p "$place"
	local fresh; fresh=$(mktemp -d "$place/artemis.XXXXXX")
	python3 -m zipfile -e "$zip" "$fresh"
	chmod +x "$fresh/apache-artemis-$version/bin/artemis"
	# Somebody else may have been faster.
	mv -T "$fresh/apache-artemis-$version" "$home" 2>/dev/null || [ -x "$home/bin/artemis" ]
	rm -rf "$fresh"
}

# Start of a process in clock ticks since boot, field 22 of proc(5). Prints nothing if the process has ended. The second
# field may contain spaces.
started() { sed -n 's/.*) \([^ZX] .*\)/\1/p' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }

# Prints the process of an instance, if it runs. Another process may have got its number since.
running() { # DIRECTORY
	local pid start
	[ -f "$1/pid" ] && read -r pid start <"$1/pid" && [ -n "$start" ] && [ "$(started "$pid")" = "$start" ] && echo "$pid"
}

end() { # DIRECTORY SIGNAL
	local pid
	pid=$(running "$1") || { rm -f "$1/pid"; return 0; }
	kill "-$2" "$pid" 2>/dev/null || true
	for _ in $(seq 100); do
		running "$1" >/dev/null || break
		sleep 0.1
	done
	if running "$1" >/dev/null; then kill -KILL "$pid" 2>/dev/null || true; fi
	rm -f "$1/pid"
}

case "${1:-}" in
--fetch) fetch; exit 0 ;;
--stop) end "${2:?the directory}" TERM; exit 0 ;;
--kill) end "${2:?the directory}" KILL; exit 0 ;;
esac
directory=${1:?"a directory for the instance"}
port=${2:-5672}
running "$directory" >/dev/null && exit 0
# Another broker would be taken for this one.
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
	fail "something else listens on 127.0.0.1:$port already: stop it, or choose another port"
fi
command -v java >/dev/null || fail "there is no java: install a Java 17 runtime"
fetch

# The instance.
if [ ! -d "$directory/etc" ]; then
	"$home/bin/artemis" create "$directory" --user endpoint --password password --role amq --require-login \
		--host 127.0.0.1 --silent --force --no-autotune --no-web --no-hornetq-acceptor --no-mqtt-acceptor \
		--no-stomp-acceptor --no-amqp-acceptor --default-port "$port" >/dev/null
	sed -i -E "s/-Xms[0-9]+[MG]/-Xms128M/; s/-Xmx[0-9]+[MG]/-Xmx$heap/" "$directory/etc/artemis.profile"
	# Artemis leaves its last line without an end.
	printf '\ntoolbox = password\n' >>"$directory/etc/artemis-users.properties"
	sed -i 's/^amq *=.*/amq = endpoint,toolbox/' "$directory/etc/artemis-roles.properties"
	python3 - "$directory/etc/broker.xml" "$port" <<-'PYTHON'
		import re, sys
		path, port = sys.argv[1], sys.argv[2]
		text = open(path).read()
		def put(name, value):
		    global text
		    element = f"<{name}>{value}</{name}>"
		    text, count = re.subn(rf"<{name}>[^<]*</{name}>", element, text)
		    if not count:
		        text = text.replace("<persistence-enabled>", f"{element}\n      <persistence-enabled>", 1)
		put("journal-datasync", "true")
		put("journal-buffer-timeout", "20000")
		put("journal-file-size", "10M")
		put("journal-max-io", "4096")
		put("global-max-size", "800M")
		# Artemis stops all senders when its disk is fuller than that, however much is left.
		text = re.sub(r"<max-disk-usage>[^<]*</max-disk-usage>", "", text)
		put("min-disk-free", "100M")
		text = re.sub(r"<acceptors>.*?</acceptors>", f"""<acceptors>
		         <acceptor name="amqp">tcp://127.0.0.1:{port}?protocols=AMQP;amqpCredits=1000;amqpLowCredits=300</acceptor>
		      </acceptors>""", text, flags=re.S)
		queues = ["ecp.endpoint.outbox", "ecp.endpoint.outbox.reply", "ecp.endpoint.inbox", "ecp.endpoint.send.event",
		          "edx.endpoint.outbox", "edx.endpoint.reply", "edx.endpoint.inbox"]
		addresses = "".join(f'<address name="{q}"><anycast><queue name="{q}"/></anycast></address>\n' for q in queues)
		text = text.replace("</addresses>", f"{addresses}</addresses>", 1)
		# Queues that nobody created are missing, so that a wrong prefix is told and not made true.
		closed = "".join(f"""<address-setting match="{prefix}.#"><auto-create-queues>false</auto-create-queues>
		         <auto-create-addresses>false</auto-create-addresses></address-setting>\n""" for prefix in ["missing"])
		text = text.replace("</address-settings>", f"{closed}</address-settings>", 1)
		text = re.sub(r"(<address-setting match=\"#\">.*?)<max-size-bytes>[^<]*</max-size-bytes>",
		              r"\1<max-size-bytes>100M</max-size-bytes>", text, flags=re.S)
		open(path, "w").write(text)
	PYTHON
fi

# The process.
rm -f "$directory/data/"*.lock "$directory/lock/"* 2>/dev/null || true
setsid "$directory/bin/artemis" run >"$directory/stdout" 2>"$directory/stderr" </dev/null &
pid=$!
echo "$pid $(started "$pid")" >"$directory/pid"
for _ in $(seq 600); do
	if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then exit 0; fi
	kill -0 "$pid" 2>/dev/null || { tail -5 "$directory/stdout" >&2; fail "the broker ended at once, see $directory/stdout"; }
	sleep 0.1
done
end "$directory" KILL
fail "the broker does not listen on 127.0.0.1:$port after 60 s, see $directory/stdout"
