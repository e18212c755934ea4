#!/usr/bin/env python3
"""Qpid Proton's client against a listener of AMQP 1.0: every message comes back as it was sent.

    proton_client.py HOST:PORT [USER PASSWORD]

Sends messages of one frame and of many, takes them back, and settles them in each way; drains a link with and without messages.
With a user, it logs in by PLAIN, and tries a wrong password. Prints one line, and exits with 1 at the first difference.
"""
import sys

from proton import ConnectionException, Message, Timeout
from proton.utils import BlockingConnection

QUEUE = "proton"
FRAME_BYTES = 16_384
TIMEOUT_S = 10
SIZES = [0, 1, 255, 256, 70_000, 300_000]


def connect(address, user=None, password=None):
    if user is None:
        login = {"allowed_mechs": "ANONYMOUS"}
    else:
        login = {"allowed_mechs": "PLAIN", "user": user, "password": password}
    return BlockingConnection(
        f"amqp://{address}", timeout=TIMEOUT_S, sasl_enabled=True, allow_insecure_mechs=True,
        max_frame_size=FRAME_BYTES, **login
    )


def message(number, size):
    return Message(
        id=f"{number}", correlation_id=number, subject="a subject", durable=True, priority=7, creation_time=1.5,
        properties={"baMessageID": f"{number}-id", "isTracingMessage": number % 2 == 0, "count": number},
        body=bytes(number % 256 for number in range(size)),
    )


def check(condition, what):
    if not condition:
        print(f"proton: {what}")
        sys.exit(1)


def compare(sent, came):
    for field in ("id", "correlation_id", "subject", "durable", "priority", "creation_time", "properties", "body"):
        there = getattr(came, field)
        there = bytes(there) if field == "body" else there
        check(there == getattr(sent, field), f"{field} is {there!r}, not {getattr(sent, field)!r}")


def send_and_take(connection):
    sender = connection.create_sender(QUEUE)
    receiver = connection.create_receiver(QUEUE, credit=3)
    sent = [message(number, size) for number, size in enumerate(SIZES * 20)]
    for one in sent:
        delivery = sender.send(one)
        check(delivery.settled or delivery.remote_state is not None, "a message is not settled")
        compare(one, receiver.receive(timeout=TIMEOUT_S))
        receiver.accept()
    settle_otherwise(sender, receiver)
    sender.close()
    receiver.close()
    return len(sent)


def settle_otherwise(sender, receiver):
    sender.send(message(1, 10))
    compare(message(1, 10), receiver.receive(timeout=TIMEOUT_S))
    receiver.release(delivered=False)
    compare(message(1, 10), receiver.receive(timeout=TIMEOUT_S))
    receiver.reject()
    try:
        receiver.receive(timeout=0.5)
        check(False, "a rejected message came again")
    except Timeout:
        pass


def drain(connection):
    sender = connection.create_sender(QUEUE)
    receiver = connection.create_receiver(QUEUE, credit=0)
    for messages in (0, 3):
        for number in range(messages):
            sender.send(message(number, 10))
        receiver.link.drain(10)
        connection.wait(lambda: not receiver.link.draining(), timeout=TIMEOUT_S, msg="a drained link is not answered")
        for number in range(messages):
            compare(message(number, 10), receiver.receive(timeout=TIMEOUT_S))
            receiver.accept()
        check(receiver.link.credit == 0, f"{receiver.link.credit} credit is left")
        receiver.link.drain_mode = False
    sender.close()
    receiver.close()


def main():
    address, *login = sys.argv[1:]
    connection = connect(address, *login)
    count = send_and_take(connection)
    drain(connection)
    connection.close()
    if login:
        try:
            connect(address, login[0], "wrong")
            check(False, "a wrong password is let in")
        except ConnectionException:
            pass
    print(f"proton: {count} messages came back")


main()
