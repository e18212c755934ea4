"""A relay that keeps or breaks its word in one way.

    planted_relay.py LISTEN TO DIRECTORY WAY

It stores each message as a file, answers 250, and hands the message on to TO with retries.
"""
import ctypes, os, queue, re, signal, socket, sqlite3, sys, threading, time

listen, to, directory, way = sys.argv[1:5]
libc = ctypes.CDLL(None, use_errno=True)
spool = os.path.join(directory, "spool")
os.makedirs(spool, exist_ok=True)
waiting = queue.Queue()
in_memory = {}
lock = threading.Lock()
next_number = int(time.time() * 1e6)


def sync_directory():
    file = os.open(spool, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def write_file(name, text):
    """Writes a file under a temporary name, syncs it as `way` says, and renames it."""
    temporary, final = os.path.join(directory, name), os.path.join(spool, name)
    flags = {"O_DSYNC": os.O_DSYNC, "O_SYNC": os.O_SYNC}.get(way, 0)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    if way == "RWF_DSYNC":
        os.pwritev(file, [text], 0, os.RWF_DSYNC)
    else:
        os.write(file, text)
    if way == "sync_file_range":
        libc.sync_file_range(file, ctypes.c_int64(0), ctypes.c_int64(0), 7)
    if way == "fdatasync":
        os.fdatasync(file)
    elif way not in ("O_DSYNC", "O_SYNC", "RWF_DSYNC", "sync", "syncfs", "no sync"):
        try:
            os.fsync(file)
        except OSError:
            if way != "fsync errors ignored":
                raise
    if way == "link":
        os.link(temporary, final)
        os.unlink(temporary)
    else:
        os.rename(temporary, final)
    if way == "sync":
        os.sync()
    elif way == "syncfs":
        libc.syncfs(file)
    elif way not in ("no sync", "no directory sync"):
        sync_directory()
    os.close(file)


class Files:
    def add(self, name, text):
        write_file(name, text)

    def get(self, name):
        with open(os.path.join(spool, name), "rb") as file:
            return file.read()

    def remove(self, name):
        os.unlink(os.path.join(spool, name))

    def names(self):
        return sorted(os.listdir(spool))


def tell(count):
    """Tells the command for the queue how many messages there are, if it cannot see that itself."""
    with open(os.path.join(directory, "count"), "w") as file:
        file.write(str(count))


class Memory:
    def __init__(self):
        tell(0)

    def add(self, name, text):
        in_memory[name] = text
        tell(len(in_memory))

    def get(self, name):
        return in_memory[name]

    def remove(self, name):
        del in_memory[name]
        tell(len(in_memory))

    def names(self):
        return []


class Database:
    def __init__(self, is_exclusive):
        self.lock = threading.Lock()
        self.is_exclusive = is_exclusive
        self.base = sqlite3.connect(os.path.join(directory, "base"), check_same_thread=False, isolation_level=None)
        if is_exclusive:
            self.run("PRAGMA locking_mode=EXCLUSIVE")
        self.run("PRAGMA journal_mode=WAL")
        self.run("PRAGMA synchronous=FULL")
        self.run("CREATE TABLE IF NOT EXISTS mail (name TEXT PRIMARY KEY, text BLOB)")
        self.count()

    def count(self):
        if self.is_exclusive:
            tell(len(self.names()))

    def run(self, words, *values):
        with self.lock:
            return self.base.execute(words, values).fetchall()

    def add(self, name, text):
        self.run("INSERT INTO mail VALUES (?, ?)", name, text)
        self.count()

    def get(self, name):
        return self.run("SELECT text FROM mail WHERE name = ?", name)[0][0]

    def remove(self, name):
        self.run("DELETE FROM mail WHERE name = ?", name)
        self.count()

    def names(self):
        return [name for (name,) in self.run("SELECT name FROM mail ORDER BY name")]


if way.startswith("SQLite"):
    store = Database("exclusive" in way)
elif way == "memory":
    store = Memory()
else:
    store = Files()


def say(file, line):
    file.write(line + b"\r\n")
    file.flush()


def keep(file, text):
    """Stores a message and answers 250, or the other way round."""
    global next_number
    with lock:
        next_number += 1
        name = str(next_number)
    sequence = re.search(rb"X-Mailrun: v1 \S+ (\S+)", text)
    if way == "one in 200" and sequence and int(sequence[1][-4:], 16) % 200 == 7:
        return say(file, b"250 2.0.0 kept")
    if way == "250 first":
        say(file, b"250 2.0.0 kept")
        time.sleep(0.05)
        store.add(name, text)
    else:
        store.add(name, text)
        say(file, b"250 2.0.0 kept")
    # Mail that stays for a second is in the queue when the power is cut after a failed sync.
    threading.Timer(1.0 if way == "fsync errors ignored" else late(name), waiting.put, [name]).start()


def late(name):
    """Returns the seconds for which a relay that delivers copies first leaves one in four messages alone."""
    return 4.0 if way == "copies first" and int(name) % 4 == 0 else 0.0


def serve(client):
    file = client.makefile("rwb")
    say(file, b"220 planted.example")
    envelope = []
    for line in file:
        word = line[:4].upper()
        if word == b"DATA":
            say(file, b"354 go on")
            text = []
            while (line := file.readline()) not in (b".\r\n", b""):
                text.append(line)
            if line:
                keep(file, b"".join(envelope) + b"\n" + b"".join(text))
            envelope = []
        elif word == b"QUIT":
            say(file, b"221 bye")
            return client.close()
        else:
            if word in (b"MAIL", b"RCPT"):
                envelope.append(line.replace(b"\r\n", b"\n"))
            say(file, b"250 fine")


def hand_on(text):
    """Delivers a message. Returns whether the next hop has taken it."""
    envelope, text = text.split(b"\n\n", 1)
    host, port = to.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 20) as next_hop:
        file = next_hop.makefile("rwb")
        replies = [file.readline()]
        for line in [b"HELO planted.example", *envelope.split(b"\n"), b"DATA"]:
            say(file, line)
            replies.append(file.readline())
            if not replies[-1][:1] in (b"2", b"3"):
                return False
        file.write(text)
        say(file, b".")
        return file.readline().startswith(b"250")


def deliver():
    while True:
        name = waiting.get()
        try:
            text = store.get(name)
            if way == "delete first":
                store.remove(name)
            if way == "copies first" and not late(name):
                hand_on(text)
            is_done = hand_on(text)
        except OSError:
            is_done = False
        if is_done:
            if way != "delete first":
                store.remove(name)
        else:
            if way == "delete first":
                store.add(name, text)
            threading.Timer(0.3, waiting.put, [name]).start()


def recover():
    names = store.names()
    if way == "recovery":
        # Moves all mail to new files, and loses it if it is killed meanwhile.
        texts = {name: store.get(name) for name in names}
        for name in names:
            store.remove(name)
        sync_directory()
        time.sleep(0.2)
        for name, text in texts.items():
            store.add(name, text)
    for name in names:
        if way == "fsync errors ignored" and (not (text := store.get(name)) or 0 in text):
            store.remove(name)
        else:
            threading.Timer(late(name), waiting.put, [name]).start()


signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
recover()
for _ in range(40):
    threading.Thread(target=deliver, daemon=True).start()
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
host, port = listen.rsplit(":", 1)
server.bind((host, int(port)))
server.listen(200)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
