"""Two feeder threads tokenize text in pure Python beside the training loop, in one process.

Each small operation of the step gives the interpreter lock away and has to wait for it.
--fixed has two processes tokenize instead.
"""

import multiprocessing
import queue
import random
import threading

import torch
from torch import nn

import kit

LENGTH, BATCH = 60, 32
WORDS = ["".join(random.Random(i).choices("abcdefgh", k=3 + i % 7)) for i in range(500)]


def tokenize(line):
    tokens = []
    for word in line.split():
        state = 5381
        for letter in word:
            state = (state * 33 + ord(letter)) & 0xFFFFFFFF  # CAUSE
        tokens.append(state % 4096)  # CAUSE
    return tokens


def produce(box, stop, seed):
    rng = random.Random(seed)
    while not stop.is_set():
        lines = [" ".join(rng.choices(WORDS, k=LENGTH)) for _ in range(BATCH)]  # CAUSE
        batch = [tokenize(line) for line in lines]  # CAUSE
        for _ in range(6):  # a few passes to mask tokens
            batch = [[t if rng.random() > 0.1 else 0 for t in row] for row in batch]  # CAUSE
        while not stop.is_set():
            try:
                box.put(batch, timeout=0.2)
                break
            except queue.Full:
                continue


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    if opts.fixed:
        context = multiprocessing.get_context("fork")
        box, stop, start = context.Queue(8), context.Event(), context.Process
    else:
        box, stop, start = queue.Queue(8), threading.Event(), threading.Thread
    feeders = [start(target=produce, args=(box, stop, k), daemon=True) for k in range(2)]
    for feeder in feeders:
        feeder.start()
    embedding, cell = nn.Embedding(4096, 64), nn.GRUCell(64, 64)
    head = nn.Linear(64, 4096)
    modules = nn.ModuleList([embedding, cell, head])
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.05)
    meter = kit.Meter(opts)
    while True:
        ids = torch.tensor(box.get())
        hidden = torch.zeros(BATCH, 64)
        x = embedding(ids)
        for t in range(0, LENGTH, 6):
            hidden = cell(x[:, t], hidden)
        loss = nn.functional.cross_entropy(head(hidden), ids[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.step():
            break
    stop.set()
    meter.write()
    if opts.fixed:
        for feeder in feeders:
            feeder.terminate()


if __name__ == "__main__":
    main()
