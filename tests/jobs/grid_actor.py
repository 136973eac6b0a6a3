"""Q-learning on a grid world; an actor thread plays and hands over transitions, and nobody is told that they are there.

--fixed tells.
"""
import collections
import copy
import itertools
import queue
import threading

import numpy as np
import torch
from torch import nn

import kit

SIZE = 16
ACTIONS = 4


class Actor(threading.Thread):
    def __init__(self, tell, count=256):
        super().__init__(daemon=True, name="actor")
        self.tell = tell
        self.count = count
        self.orders = queue.SimpleQueue()
        self.ready = threading.Condition()
        self.shelf = collections.deque()
        self.rng = np.random.default_rng(2)
        self.pos = self.rng.integers(0, SIZE, (self.count, 2))

    def play(self, eps):
        s = np.zeros((self.count, SIZE * SIZE), np.float32)
        s[np.arange(self.count), self.pos[:, 0] * SIZE + self.pos[:, 1]] = 1
        a = self.rng.integers(0, ACTIONS, self.count)
        move = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])[a]
        self.pos = np.clip(self.pos + move, 0, SIZE - 1)
        r = (self.pos.sum(axis=1) == 2 * (SIZE - 1)).astype(np.float32) - eps * 0.01
        n = np.zeros_like(s)
        n[np.arange(self.count), self.pos[:, 0] * SIZE + self.pos[:, 1]] = 1
        return s, a, r, n

    def run(self):
        while True:
            eps = self.orders.get()
            batch = self.play(eps)
            with self.ready:
                self.shelf.append(batch)
                if self.tell:
                    self.ready.notify()

    def take(self, eps):
        self.orders.put(eps)
        with self.ready:
            while not self.shelf:
                self.ready.wait(0.025)  # CAUSE
            return self.shelf.popleft()


class Learner:
    def __init__(self):
        self.q = nn.Sequential(nn.Linear(SIZE * SIZE, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(),
                               nn.Linear(384, ACTIONS))
        self.target = copy.deepcopy(self.q)
        self.opt = torch.optim.RMSprop(self.q.parameters(), lr=2e-4)

    def learn(self, s, a, r, n):
        with torch.no_grad():
            goal = r + 0.98 * self.target(n).amax(dim=1)
        q = self.q(s).gather(1, a[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q, goal)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def main():
    opts = kit.options()
    torch.manual_seed(6)
    actor, learner = Actor(tell=opts.fixed), Learner()
    actor.start()
    meter = kit.Meter(opts)
    for step in itertools.count(1):
        batch = actor.take(max(0.05, 1 - step / 500))  # CAUSE
        learner.learn(*(torch.from_numpy(v) for v in batch))
        if step % 200 == 0:
            learner.target.load_state_dict(learner.q.state_dict())
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()
