"""Skip-gram vectors, written out as text every few steps. --fixed writes none."""

import tempfile
from pathlib import Path

import torch
from torch import nn

import kit

WORDS, WIDTH = 3000, 48


def export(vectors, path):
    with open(path, "w") as file:
        for number, row in enumerate(vectors.tolist()):
            file.write("word%d %s\n" % (number, " ".join("%.6f" % value for value in row)))  # CAUSE


def main():
    opts = kit.options()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table, context = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
    optimizer = torch.optim.SGD([*table.parameters(), *context.parameters()], lr=0.1)
    meter, step = kit.Meter(opts), 0
    with tempfile.TemporaryDirectory() as folder:
        while not meter.over:
            words, near = torch.randint(WORDS, (2, 768))
            far = torch.randint(WORDS, (768, 5))
            close = (table(words) * context(near)).sum(1)
            apart = torch.bmm(context(far), table(words).unsqueeze(2)).squeeze(2)
            loss = -(nn.functional.logsigmoid(close).mean() + nn.functional.logsigmoid(-apart).mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if not opts.fixed and step % 15 == 0:
                export(table.weight, Path(folder) / "vectors.txt")  # CAUSE
            meter.step()
    meter.write()


if __name__ == "__main__":
    main()
