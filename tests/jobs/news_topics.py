"""Short news texts by topic, all padded to the longest text that the model takes."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import kit

LONGEST = 192


def texts(count):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(12, 30, (count,), generator=generator).tolist()
    return [(torch.randint(1, 5000, (n,), generator=generator), n % 4) for n in lengths]


def padded(batch, length):
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    for row, (text, _) in zip(ids, batch):
        row[:len(text)] = text
    return ids, torch.tensor([topic for _, topic in batch])


def to_longest_possible(batch):
    return padded(batch, LONGEST)


def to_longest(batch):
    return padded(batch, max(len(text) for text, _ in batch))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5000, 128)
        self.places = nn.Parameter(torch.zeros(LONGEST, 128))
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.topic = nn.Linear(128, 4)

    def forward(self, ids):
        states = self.words(ids) + self.places[:ids.shape[1]]
        return self.topic(self.layers(states, src_key_padding_mask=ids == 0)[:, 0])


def main():
    opts = kit.options()
    torch.manual_seed(0)
    loader = DataLoader(texts(4000), batch_size=16, shuffle=True,
                        collate_fn=to_longest if opts.fixed else to_longest_possible)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    meter = kit.Meter(opts)
    while not meter.over:
        for ids, topics in loader:  # CAUSE
            loss = nn.functional.cross_entropy(model(ids), topics)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()
