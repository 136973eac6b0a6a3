"""On-policy learning: a game is played for a while with the policy in evaluation mode, then come many small updates.

The game is a pile of sand on a grid, in Python cell by cell; --fixed keeps it in arrays.
"""

import numpy as np
import torch
from torch import nn

import kit

SIDE, MOVES, BATCH, EPOCHS = 64, 48, 16, 4


class Piles:
    """A grain falls on a cell; cells of four topple over their neighbours."""

    def __init__(self, arrays):
        self.arrays = arrays
        self.grid = np.zeros((SIDE + 2, SIDE + 2), np.int32)

    def topple(self):
        cells = self.grid.tolist()
        out = [row[:] for row in cells]
        for y in range(1, SIDE + 1):
            for x in range(1, SIDE + 1):
                fall = cells[y][x] >> 2  # CAUSE
                if fall:
                    out[y][x] -= 4 * fall
                    for at in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                        out[at[0]][at[1]] += fall
        self.grid[:] = out  # CAUSE

    def topple_all(self):
        fall = self.grid[1:-1, 1:-1] >> 2
        self.grid[1:-1, 1:-1] &= 3
        self.grid[:-2, 1:-1] += fall
        self.grid[2:, 1:-1] += fall
        self.grid[1:-1, :-2] += fall
        self.grid[1:-1, 2:] += fall

    def play(self, action):
        self.grid[1 + action // SIDE, 1 + action % SIDE] += 3
        for _ in range(4):
            self.topple_all() if self.arrays else self.topple()  # CAUSE
        self.grid[0] = self.grid[-1] = 0
        self.grid[:, 0] = self.grid[:, -1] = 0
        seen = self.grid[1:-1, 1:-1]
        return torch.from_numpy(seen.astype(np.float32).ravel()), -float((seen >= 4).sum())


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(SIDE * SIDE, 32), nn.Tanh(), nn.Linear(32, SIDE * SIDE))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    game, state = Piles(opts.fixed), torch.zeros(SIDE * SIDE)
    meter = kit.Meter(opts)
    while not meter.over:
        policy.eval()
        states, actions, rewards = [], [], []
        with torch.no_grad():
            for _ in range(MOVES):
                action = torch.distributions.Categorical(logits=policy(state)).sample()
                states.append(state)
                actions.append(action)
                state, reward = game.play(int(action))  # CAUSE
                rewards.append(reward)
        policy.train()
        states, actions = torch.stack(states), torch.stack(actions)
        rewards = torch.tensor(rewards)
        rewards = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for _ in range(EPOCHS):
            for part in torch.randperm(MOVES).split(BATCH):
                chances = torch.distributions.Categorical(logits=policy(states[part]))
                loss = -(chances.log_prob(actions[part]) * rewards[part]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if meter.step():
                    break
    meter.write()


if __name__ == "__main__":
    main()
