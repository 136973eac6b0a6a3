"""On-policy learning: an actor in a process of its own plays with the newest weights, a learner updates on what it did.

The learner looks for the rollout every 50 ms; it is ready much earlier. --fixed waits for it.
"""

import math
import multiprocessing
import time

import numpy as np
import torch
from torch import nn

import kit


def network():
    return nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def swing(policy, count, random):
    angle, speed, seen, done = random.uniform(-1, 1), 0.0, [], []
    first, b1, second, b2, third, b3 = [p.detach().numpy() for p in policy.parameters()]
    for _ in range(count):
        state = np.array([math.cos(angle), math.sin(angle), speed], np.float32)
        hidden = np.tanh(second @ np.tanh(first @ state + b1) + b2)
        push = float((third @ hidden + b3)[0] + 0.5 * random.standard_normal())
        speed = min(max(speed + 0.05 * (15 * math.sin(angle) + 3 * push), -8), 8)
        angle += 0.05 * speed
        seen.append(state)
        done.append(push)
    return np.stack(seen), np.array(done, np.float32)


def act(pipe, ready):
    torch.set_num_threads(1)
    policy, random = network(), np.random.default_rng(0)
    while (weights := pipe.recv()) is not None:
        policy.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
        played = swing(policy, 600, random)
        ready.set()
        pipe.send(played)


def learn(policy, optimizer, seen, done, meter):
    seen, done = torch.from_numpy(seen), torch.from_numpy(done)
    with torch.no_grad():
        before = -(policy(seen)[:, 0] - done) ** 2
    for _ in range(4):
        ratio = (-(policy(seen)[:, 0] - done) ** 2 - before).exp()
        loss = -ratio.clamp(0.8, 1.2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.step()


def main():
    opts = kit.options()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    here, there = multiprocessing.Pipe()
    ready = multiprocessing.Event()
    actor = multiprocessing.Process(target=act, args=(there, ready), daemon=True)
    actor.start()
    policy = network()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    meter = kit.Meter(opts)
    while not meter.over:
        ready.clear()
        here.send({name: value.numpy().copy() for name, value in policy.state_dict().items()})
        if opts.fixed:
            ready.wait()
        while not ready.is_set():
            time.sleep(0.05)  # CAUSE
        learn(policy, optimizer, *here.recv(), meter)
    here.send(None)
    actor.join()
    meter.write()


if __name__ == "__main__":
    main()
