"""Policy gradients on a toy game played step by step: tiny tensors, a call for each move.

--fixed plays all games of a batch at once.
"""

import torch
from torch import nn

import kit

GAMES, MOVES, STATE = 6, 16, 8


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(STATE, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, state):
        return torch.distributions.Categorical(logits=self.net(state))  # CAUSE


def move(state, action):
    push = 0.1 * (2.0 * action - 1)
    state = state.roll(1, -1) * 0.95
    return state + push.unsqueeze(-1) / STATE, -state.abs().sum(-1)


def play(policy, state):
    """Plays one game, or a batch of them; the sum of log-probabilities times rewards."""
    total, terms = 0.0, []
    for _ in range(MOVES):
        chance = policy(state)  # CAUSE
        action = chance.sample()  # CAUSE
        state, reward = move(state, action)  # CAUSE
        total = total + reward
        terms.append(chance.log_prob(action))  # CAUSE
    return -(torch.stack(terms).sum(0) * total.detach())


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    meter = kit.Meter(opts)
    while True:
        if opts.fixed:
            loss = play(policy, torch.randn(GAMES, STATE)).mean()
        else:
            loss = torch.stack([play(policy, torch.randn(STATE)) for _ in range(GAMES)]).mean()  # CAUSE
        optimizer.zero_grad()
        loss.backward()  # CAUSE
        optimizer.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()
