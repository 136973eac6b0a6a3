"""Two transformer blocks that predict the next byte; batches are cut from one tensor by a generator."""

import torch
from torch import nn

import kit

CONTEXT, WIDTH = 96, 128


def windows(text, count):
    while True:
        starts = torch.randint(0, len(text) - CONTEXT - 1, (count,)).tolist()
        block = torch.stack([text[s : s + CONTEXT + 1] for s in starts])
        yield block[:, :-1], block[:, 1:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids), mask=self.mask, is_causal=True))


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    text = torch.randint(0, 256, (1_000_000,))
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    meter = kit.Meter(opts)
    for x, y in windows(text, 4):
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if meter.step():
            break
    meter.write()


if __name__ == "__main__":
    main()
