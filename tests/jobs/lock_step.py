"""Waits for its turn by polling: a peer thread acknowledges each step, the loop looks every 20 ms.

--fixed waits for an event, which the peer sets when it is done.
"""

import queue
import threading
import time

import torch
from torch import nn

import kit


class Peer(threading.Thread):
    """Acknowledges steps; takes a fraction of a millisecond."""

    def __init__(self):
        super().__init__(daemon=True)
        self.inbox, self.done, self.event = queue.Queue(), -1, threading.Event()

    def run(self):
        while True:
            step = self.inbox.get()
            if step is None:
                return
            self.done = step
            self.event.set()


def wait_for_turn(peer, step, by_event):
    if by_event:
        peer.event.wait()
        peer.event.clear()
        return
    while True:
        time.sleep(0.02)  # CAUSE
        if peer.done >= step:
            return


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    adamw = torch.optim.AdamW(model.parameters())
    x = torch.randn(128, 512)
    peer = Peer()
    peer.start()
    meter = kit.Meter(opts)
    step = 0
    while True:
        loss = (model(x) - x).square().mean()
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        peer.inbox.put(step)
        wait_for_turn(peer, step, opts.fixed)  # CAUSE
        step += 1
        if meter.step():
            break
    peer.inbox.put(None)
    meter.write()


if __name__ == "__main__":
    main()
