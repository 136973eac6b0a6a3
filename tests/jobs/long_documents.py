"""A recurrent language model that reads documents in chunks and learns once a document.

--fixed detaches the state between chunks. --detached does, too, and keeps each chunk's graph.
"""

import torch
from torch import nn

import kit

CHUNK, CHUNKS, DOCUMENTS = 12, 8, 8


class Reader(nn.Module):
    def __init__(self, letters=80, width=128):
        super().__init__()
        self.letters = nn.Embedding(letters, 48)
        self.memory = nn.GRU(48, width, batch_first=True)
        self.following = nn.Linear(width, letters)

    def forward(self, text, state):
        read, state = self.memory(self.letters(text), state)
        return self.following(read), state


if __name__ == "__main__":
    opts = kit.options(lambda p: p.add_argument("--detached", action="store_true"))
    torch.set_num_threads(1)
    reader = Reader()
    adam = torch.optim.Adam(reader.parameters(), lr=0.002)
    meter = kit.Meter(opts)
    while True:
        documents = torch.randint(0, 80, (DOCUMENTS, CHUNK * CHUNKS + 1))
        state = None
        adam.zero_grad()
        for begin in range(0, CHUNK * CHUNKS, CHUNK):
            scores, state = reader(documents[:, begin : begin + CHUNK], state)
            if opts.fixed or opts.detached:
                state = state.detach()
            truth = documents[:, begin + 1 : begin + CHUNK + 1]
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), truth.flatten())
            loss.backward(retain_graph=not opts.fixed)  # CAUSE
        adam.step()
        if meter.step():
            break
    meter.write()
