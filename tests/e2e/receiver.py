"""A recorder in 150 lines for tests of the agent: takes Hello, hands out rings, decodes packets.

Knows nothing of Flatout but src/wire/messages.h; the ring itself is read by the ring's own C code
rewritten here in Python, so that the two check each other.
"""
import fcntl
import mmap
import os
import select
import socket
import struct
import subprocess
import threading
import time

MAGIC, VERSION = 0x4C465744, 1
HELLO = struct.Struct("<III ii iii Q".replace(" ", ""))
CONFIG = struct.Struct("<IIIIQ")
HEADER = struct.Struct("<IHHIIQ")
SLICE = struct.Struct("<QQIIqq")
COST = struct.Struct("<QQQQ")
STRING, SLICE_T, COUNTER, INFO, COST_T = 1, 2, 3, 4, 5
KINDS = {
    1: "step", 2: "input_wait", 3: "forward", 4: "backward", 5: "optimizer", 6: "h2d", 7: "sync",
    8: "communication", 9: "checkpoint", 10: "gc", 11: "validation", 12: "loader_start", 13: "fetch",
    14: "sample", 15: "collate", 16: "handover", 17: "worker", 18: "logging", 19: "zero_grad",
    20: "phase", 21: "epoch", 22: "feed",
}
RING_BYTES = 1 << 22
HEAD, TAIL, DATA = 64, 128, 192  # places in the ring's header


class Slice:
    def __init__(self, pid, tid, begin, end, kind, name, value, value2):
        self.pid, self.tid, self.begin, self.end = pid, tid, begin, end
        self.kind, self.name, self.value, self.value2 = KINDS[kind], name, value, value2

    def __repr__(self):
        return "%s[%d ns %r %d %d pid %d]" % (
            self.kind, self.end - self.begin, self.name, self.value, self.value2, self.pid)


class Peer:
    """One process that said Hello, and its ring."""

    def __init__(self, sock, library, ring_bytes):
        hello = HELLO.unpack(sock.recv(4096)[:HELLO.size])
        assert hello[:2] == (MAGIC, VERSION), hello
        self.kind, self.pid, self.tid, self.rank, self.local_rank, self.world = hello[2:8]
        self.start_time = hello[8]
        self.sock = sock
        fd = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, ring_bytes)
        self.memory = mmap.mmap(fd, ring_bytes)
        self.data_size = 4096
        while self.data_size <= (ring_bytes - DATA) // 2:
            self.data_size *= 2
        self.memory[:16] = struct.pack("<IIQ", 0x474E5246, 1, self.data_size)
        fcntl.fcntl(fd, 1033, 0x2 | 0x4)  # F_ADD_SEALS: F_SEAL_SHRINK | F_SEAL_GROW
        socket.send_fds(sock, [CONFIG.pack(MAGIC, VERSION, 1, 0xFFFFFFFF, ring_bytes)], [fd])
        os.close(fd)
        self.tail = 0
        self.strings = {}

    def word(self, at):
        return struct.unpack_from("<Q", self.memory, at)[0]

    def packets(self):
        while True:
            head = self.word(HEAD)
            if head == self.tail:
                return
            at = DATA + (self.tail & (self.data_size - 1))
            size, kind = struct.unpack_from("<IH", self.memory, at)
            if size == 0 or size & 1:
                return
            assert size % 8 == 0 and size <= head - self.tail, (size, head, self.tail)
            data = self.memory[at : at + size]
            self.memory[at : at + size] = bytes(size)
            self.tail += size
            struct.pack_into("<Q", self.memory, TAIL, self.tail)
            if kind != 0:
                yield data


class Receiver:
    """Listens until closed; `slices`, `facts[pid]`, `costs[pid]`, `counters` are what came in."""

    def __init__(self, ring_bytes=RING_BYTES):
        self.name = "flatout-test-%d-%d" % (os.getpid(), time.monotonic_ns())
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind("\0" + self.name)
        self.listener.listen(64)
        self.ring_bytes = ring_bytes
        self.peers, self.slices, self.facts, self.costs, self.counters = [], [], {}, {}, []
        self.stop = False
        self.thread = threading.Thread(target=self.loop, daemon=True)
        self.thread.start()

    def loop(self):
        while not self.stop:
            if select.select([self.listener], [], [], 0.005)[0]:
                sock, _ = self.listener.accept()
                self.peers.append(Peer(sock, None, self.ring_bytes))
            self.drain()
        self.drain()

    def drain(self):
        for peer in self.peers:
            for data in peer.packets():
                self.packet(peer, data)

    def packet(self, peer, data):
        _, kind, _, pid, tid, _ = HEADER.unpack_from(data)
        assert pid == peer.pid, (pid, peer.pid)
        body = data[HEADER.size :]
        if kind == STRING:
            number, size = struct.unpack_from("<II", body)
            peer.strings[number] = body[8 : 8 + size].decode()
        elif kind == SLICE_T:
            begin, end, what, name, value, value2 = SLICE.unpack_from(body)
            self.slices.append(
                Slice(pid, tid, begin, end, what, peer.strings[name] if name else "", value, value2))
        elif kind == COUNTER:
            name, _, value = struct.unpack_from("<IId", body)
            self.counters.append((pid, peer.strings[name], value))
        elif kind == INFO:
            key, value = body.split(b"\0", 1)
            value = value.rstrip(b"\0").decode()
            self.facts.setdefault(pid, {})[key.decode()] = value
        elif kind == COST_T:
            self.costs.setdefault(pid, []).append(COST.unpack_from(body))

    def close(self):
        self.stop = True
        self.thread.join()
        for peer in self.peers:
            peer.sock.close()
        self.listener.close()

    def of(self, kind, pid=None):
        found = [s for s in self.slices if s.kind == kind and pid in (None, s.pid)]
        return sorted(found, key=lambda s: s.end)

    def dropped(self):
        return sum(peer.word(16) for peer in self.peers)


def environment(agent_library, receiver, **more):
    """What `flatout run` sets, and no more."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    env = dict(os.environ, **more)
    env["FLATOUT_AGENT"] = agent_library
    env["FLATOUT_SOCKET"] = receiver.name if receiver else "nobody-listens-here"
    inject = os.path.join(root, "python", "flatout", "agent", "inject")
    env["PYTHONPATH"] = os.pathsep.join(p for p in (inject, env.get("PYTHONPATH")) if p)
    return env


def run(command, agent_library, receiver_bytes=RING_BYTES, timeout=120, cwd=None, **more):
    """Runs `command` under the agent. Returns (receiver with all that it sent, CompletedProcess)."""
    receiver = Receiver(receiver_bytes)
    try:
        done = subprocess.run(command, env=environment(agent_library, receiver, **more), cwd=cwd,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout)
    finally:
        receiver.close()
    return receiver, done
