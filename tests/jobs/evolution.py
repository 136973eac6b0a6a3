"""Evolution strategies: a population of perturbed networks is scored, without gradients. Nothing is wrong."""

import torch

import kit

DIM, POPULATION, HIDDEN = 128, 24, 160


def score(p, x, y):
    return -torch.nn.functional.cross_entropy(torch.tanh(x @ p["in"]) @ p["out"], y)


@torch.no_grad()
def generation(theta, x, y, sigma=0.02, rate=0.1):
    noises, scores = [], []
    for _ in range(POPULATION):
        noise = {k: torch.randn_like(v) for k, v in theta.items()}
        up = score({k: v + sigma * noise[k] for k, v in theta.items()}, x, y)
        down = score({k: v - sigma * noise[k] for k, v in theta.items()}, x, y)
        noises.append(noise)
        scores.append(up - down)
    weight = torch.stack(scores)
    weight = (weight - weight.mean()) / (weight.std() + 1e-6)
    for k in theta:
        theta[k] += rate * sum(w * n[k] for w, n in zip(weight, noises)) / POPULATION


opts = kit.options()
torch.set_num_threads(1)
theta = {"in": torch.randn(DIM, HIDDEN) * 0.1, "out": torch.randn(HIDDEN, 16) * 0.1}
x, y = torch.randn(512, DIM), torch.randint(16, (512,))
meter = kit.Meter(opts)
while not meter.over:
    generation(theta, x, y)
    meter.step()
meter.write()
