#!/bin/bash
# ActiveMQ Artemis 2.40.0 on loopback, as an ECP endpoint's internal broker has it (reference: the ECCoSP helm chart):
#
#   scripts/start-artemis.sh DIRECTORY [PORT]     fetches what is missing, creates the instance, starts it, waits until it
#                                                 answers; the process id is in DIRECTORY/pid
#   scripts/start-artemis.sh --stop DIRECTORY     ends it
#
# Users endpoint/password and toolbox/password, the queues of an ECP endpoint and an EDX toolbox, journal with datasync and
# a buffer timeout of 20 us, pages above 100 MB. Needs Java 17 and, the first time, Maven.
# ARTEMIS_HEAP sets the heap (512M); ARTEMIS_HOME names a distribution that is unpacked already.
set -euo pipefail

version=2.40.0
heap=${ARTEMIS_HEAP:-512M}

fail() { echo "start-artemis: $*" >&2; exit 2; }

stop() {
	[ -f "$1/pid" ] || exit 0
	local pid; pid=$(cat "$1/pid")
	kill "$pid" 2>/dev/null || true
	for _ in $(seq 100); do
		kill -0 "$pid" 2>/dev/null || { rm -f "$1/pid"; exit 0; }
		sleep 0.1
	done
	kill -9 "$pid" 2>/dev/null || true
	rm -f "$1/pid"
	exit 0
}

if [ "${1:-}" = --stop ]; then stop "${2:?the directory}"; fi
directory=${1:?"a directory for the instance"}
port=${2:-5672}
command -v java >/dev/null || fail "there is no java: install a Java 17 runtime"

# The distribution, once for all instances.
home=${ARTEMIS_HOME:-$directory/../apache-artemis-$version}
if [ ! -x "$home/bin/artemis" ]; then
	zip=$HOME/.m2/repository/org/apache/activemq/apache-artemis/$version/apache-artemis-$version-bin.zip
	if [ ! -f "$zip" ]; then
		command -v mvn >/dev/null || fail "there is no mvn to fetch Artemis with: install Maven, or set ARTEMIS_HOME"
		mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:get \
			-Dartifact=org.apache.activemq:apache-artemis:$version:zip:bin -Dtransitive=false >&2
	fi
	mkdir -p "$(dirname "$home")"
	(cd "$(dirname "$home")" && python3 -m zipfile -e "$zip" . && chmod +x "apache-artemis-$version/bin/artemis")
fi

# The instance.
if [ ! -d "$directory/etc" ]; then
	"$home/bin/artemis" create "$directory" --user endpoint --password password --role amq --require-login \
		--host 127.0.0.1 --silent --force --no-autotune --no-web --no-hornetq-acceptor --no-mqtt-acceptor \
		--no-stomp-acceptor --no-amqp-acceptor --default-port "$port" >/dev/null
	sed -i -E "s/-Xms[0-9]+[MG]/-Xms128M/; s/-Xmx[0-9]+[MG]/-Xmx$heap/" "$directory/etc/artemis.profile"
	echo "toolbox = password" >>"$directory/etc/artemis-users.properties"
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
		put("max-disk-usage", "99")
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
[ -f "$directory/pid" ] && kill -0 "$(cat "$directory/pid")" 2>/dev/null && exit 0
rm -f "$directory/data/"*.lock "$directory/lock/"* 2>/dev/null || true
setsid "$directory/bin/artemis" run >"$directory/stdout" 2>"$directory/stderr" </dev/null &
pid=$!
echo "$pid" >"$directory/pid"
for _ in $(seq 600); do
	if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then exit 0; fi
	kill -0 "$pid" 2>/dev/null || { tail -5 "$directory/stdout" >&2; fail "the broker ended at once, see $directory/stdout"; }
	sleep 0.1
done
fail "the broker does not listen on 127.0.0.1:$port after 60 s, see $directory/stdout"
