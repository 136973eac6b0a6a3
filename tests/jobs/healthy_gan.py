"""A GAN: two networks, two optimizers, two backward passes a step. Nothing is wrong with it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kit


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


class Gan:
    def __init__(self):
        self.generator, self.critic = mlp(64, 320, 320, 784), mlp(784, 320, 256, 1)
        self.g_opt = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.c_opt = torch.optim.Adam(self.critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.loss = nn.BCEWithLogitsLoss()

    def step(self, real):
        fake = self.generator(torch.randn(len(real), 64))
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        self.c_opt.zero_grad()
        critic_loss = self.loss(self.critic(real), ones) + self.loss(self.critic(fake.detach()), zeros)
        critic_loss.backward()
        self.c_opt.step()
        self.g_opt.zero_grad()
        generator_loss = self.loss(self.critic(fake), ones)
        generator_loss.backward()
        self.g_opt.step()


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    gan = Gan()
    loader = DataLoader(TensorDataset(torch.rand(6400, 784)), batch_size=48, shuffle=True, num_workers=1,
                        persistent_workers=True)
    meter = kit.Meter(opts)
    while not meter.over:
        for (real,) in loader:
            gan.step(real)
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()
