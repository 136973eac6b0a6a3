"""Samples come over a socket from a slow object store; one worker asks for one after the other.

The store (a process of its own, started by this job) answers each request after 4 ms; cores, disk
and store are idle meanwhile. --fixed asks with eight workers.
"""

import multiprocessing
import socket
import socketserver
import struct
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import kit

ITEM = 3 * 48 * 48


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        payload = np.random.default_rng(1).integers(0, 255, ITEM, dtype=np.uint8).tobytes()
        while True:
            request = self.request.recv(8)
            if not request:
                return
            time.sleep(0.004)
            self.request.sendall(payload)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


def serve(pipe):
    with Server(("127.0.0.1", 0), Handler) as server:
        pipe.send(server.server_address)
        server.serve_forever()


class Remote(Dataset):
    def __init__(self, address):
        self.address = address
        self.connection = None

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if self.connection is None:
            self.connection = socket.create_connection(self.address)
        self.connection.sendall(struct.pack("<q", index))
        data = bytearray()
        while len(data) < ITEM:
            data += self.connection.recv(ITEM - len(data))  # CAUSE
        return torch.frombuffer(data, dtype=torch.uint8).view(3, 48, 48).float() / 255


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    here, there = multiprocessing.Pipe()
    store = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    store.start()
    loader = DataLoader(Remote(here.recv()), batch_size=8, num_workers=8 if opts.fixed else 1)  # CAUSE
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(ITEM, 128), torch.nn.ReLU(),
                                torch.nn.Linear(128, ITEM))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    meter = kit.Meter(opts)
    for x in loader:
        loss = (model(x) - x.flatten(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.step():
            break
    meter.write()
    store.terminate()


if __name__ == "__main__":
    main()
