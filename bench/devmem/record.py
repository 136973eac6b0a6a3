#!/usr/bin/env python3
"""Records what small models in PyTorch ask of memory while they train, by torch.profiler's memory events on the CPU."""

import argparse
import gzip
import json
import pathlib
import sys
import tempfile

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(1)


class Residual(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels),
        )
        self.skip = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def conv_net():
    widths = [3, 32, 64, 128, 256]
    return nn.Sequential(*[Residual(a, b, 2) for a, b in zip(widths, widths[1:])], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))


def resnet(step: int):
    model, optimizer = state("resnet", conv_net, torch.optim.SGD, lr=0.1, momentum=0.9)
    train(model, optimizer, lambda m: m(torch.randn(24, 3, 96, 96)).square().mean())


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.1), 4)


def transformer_lengths(step: int):
    model, optimizer = state("lengths", encoder, torch.optim.AdamW)
    length = [96, 33, 140, 61, 118, 77, 152, 48][step % 8]
    train(model, optimizer, lambda m: m(torch.randn(12, length, 256)).square().mean())


def checkpointed(step: int):
    model, optimizer = state("checkpointed", encoder, torch.optim.AdamW)

    def loss(m):
        x = torch.randn(16, 128, 256, requires_grad=True)
        for layer in m.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.square().mean()

    train(model, optimizer, loss)


def lstm(step: int):
    model, optimizer = state("lstm", lambda: nn.LSTM(192, 384, 2), torch.optim.Adam)
    train(model, optimizer, lambda m: m(torch.randn(20 + 7 * (step % 4), 32, 192))[0].square().mean())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(a, b, 3, 2, 1) for a, b in [(3, 32), (32, 64), (64, 128)]])
        self.up = nn.ModuleList([nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in [(128, 64), (128, 32), (64, 16)]])

    def forward(self, x):
        skips = []
        for layer in self.down:
            x = torch.relu(layer(x))
            skips.append(x)
        x = self.up[0](skips[2])
        x = self.up[1](torch.cat([x, skips[1]], 1))
        return self.up[2](torch.cat([x, skips[0]], 1))


def unet(step: int):
    model, optimizer = state("unet", UNet, torch.optim.Adam)
    train(model, optimizer, lambda m: m(torch.randn(8, 3, 160, 160)).square().mean())


def decoding(step: int):
    """A cache of keys and values that grows by a token at a time, by concatenation, as in a plain generate()."""
    with torch.no_grad():
        weights = state("decoding", lambda: nn.Linear(1024, 3072), torch.optim.SGD, lr=0)[0]
        cache = [(torch.zeros(16, 0, 1024), torch.zeros(16, 0, 1024)) for _ in range(6)]
        for _ in range(32):
            x = torch.randn(16, 1, 1024)
            for layer, (keys, values) in enumerate(cache):
                q, k, v = weights(x).chunk(3, -1)
                keys, values = torch.cat([keys, k], 1), torch.cat([values, v], 1)
                cache[layer] = (keys, values)
                x = torch.softmax(q @ keys.transpose(1, 2), -1) @ values


STATES: dict = {}


def state(name, build, optimizer, **options):
    if name not in STATES:
        model = build()
        STATES[name] = (model, optimizer(model.parameters(), **({"lr": 1e-3} | options)))
    return STATES[name]


def train(model, optimizer, loss):
    optimizer.zero_grad(set_to_none=True)
    loss(model).backward()
    optimizer.step()


def record(name: str, step, count: int, out: pathlib.Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        for number in range(count):
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                step(number)
    STATES.clear()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.load(open(file.name))["traceEvents"]
    events.sort(key=lambda e: e.get("ts", 0))
    ids, lines = {}, [{"op": "meta", "name": name, "torch": torch.__version__}]
    fresh = 0
    for event in events:
        if event.get("name", "").startswith("ProfilerStep#") and event.get("cat") == "user_annotation":
            lines.append({"op": "mark"})
        if event.get("name") != "[memory]":
            continue
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        if size > 0:
            fresh += 1
            ids[address] = fresh
            lines.append({"op": "a", "id": fresh, "size": size})
        elif address in ids:
            lines.append({"op": "f", "id": ids.pop(address)})
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    with open(out / f"{name}.jsonl.gz", "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as packed:
        packed.write(text.encode())
    print(f"{name}: {fresh} requests in {count} steps")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path, help="a folder for NAME.jsonl.gz, Flatout's compact trace")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for step, count in [(resnet, 4), (transformer_lengths, 8), (checkpointed, 4), (lstm, 6), (unet, 4), (decoding, 2)]:
        record(step.__name__, step, count, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
