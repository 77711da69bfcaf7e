"""Joined connections: every byte arrives, a slow reader holds up nobody else, and ends are passed on."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from pubsub_spark.emulator.splice import Splicer


@pytest.fixture
def splicer():
    splicer = Splicer()
    yield splicer
    splicer.close()


@pytest.fixture
def pair(splicer):
    """Two ends that talk to each other through the splicer."""
    opened: list[socket.socket] = []

    def join():
        near, inner = socket.socketpair()
        other, far = socket.socketpair()
        splicer.join(inner, other)
        for each in (near, far):
            each.settimeout(10)
        opened.extend((near, far))
        return near, far

    yield join
    for each in opened:
        each.close()


def read(connection, size):
    data = bytearray()
    while len(data) < size and (piece := connection.recv(size - len(data))):
        data += piece
    return bytes(data)


def test_bytes_go_both_ways(pair):
    """What is sent on one end arrives on the other."""
    near, far = pair()

    near.sendall(b"question")
    assert b"question" == read(far, 8)
    far.sendall(b"answer")
    assert b"answer" == read(near, 6)


def test_slow_reader_holds_up_nobody_else(pair):
    """Megabytes wait for a reader who does not read, nothing of them is lost, and another pair goes on meanwhile."""
    near, far = pair()
    data = os.urandom(20_000_000)
    sending = threading.Thread(target=near.sendall, args=(data,), daemon=True)
    sending.start()
    quick, answering = pair()

    for _ in range(100):
        quick.sendall(b"ping")
        assert b"ping" == read(answering, 4)

    assert sending.is_alive()
    assert data == read(far, len(data))
    sending.join(10)


def test_end_of_one_direction_is_passed_on(pair):
    """Who has said everything can still listen."""
    near, far = pair()

    near.sendall(b"all")
    near.shutdown(socket.SHUT_WR)

    assert b"all" == read(far, 100)
    far.sendall(b"answer")
    far.close()
    assert b"answer" == read(near, 100)


def test_break_ends_both(pair):
    """When one end is gone, the other is told."""
    near, far = pair()
    near.sendall(b"a")
    assert b"a" == read(far, 1)

    near.close()

    assert b"" == far.recv(1)


def test_close_ends_everything(splicer, pair):
    """Closed, the splicer ends its connections and takes no more."""
    near, far = pair()

    splicer.close()

    assert b"" == near.recv(1)
    assert b"" == far.recv(1)
    late, _ = pair()
    assert b"" == late.recv(1)
