#!/usr/bin/env python3
"""Records what whole models of a card's size ask of memory, without a card: the storages of meta tensors, as operators make them and drop them.

Convolutions ask for a workspace besides. Needs torch, torchvision and transformers; a minute or two for all, and little memory.
"""

import argparse
import gzip
import json
import pathlib
import random
import sys
import weakref

import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

MiB = 1 << 20


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.lines, self.seen, self.fresh, self.stream = [], {}, 0, 0
        self.random = random.Random(1)

    def allocate(self, size):
        self.fresh += 1
        self.lines.append({"op": "a", "id": self.fresh, "size": size} | ({"stream": self.stream} if self.stream else {}))
        return self.fresh

    def free(self, number, key=None):
        self.lines.append({"op": "f", "id": number})
        self.seen.pop(key, None)

    def note(self, tensor):
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "meta":
            return
        storage = tensor.untyped_storage()
        if storage.nbytes() > 0 and storage._cdata not in self.seen:
            number = self.seen[storage._cdata] = self.allocate(storage.nbytes())
            weakref.finalize(storage, self.free, number, storage._cdata)

    def mark(self):
        self.lines.append({"op": "mark"})

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "_local_scalar_dense" in func.__name__:  # a mask's all(): it has no values
            return 1
        workspace = None
        if "convolution" in func.__name__ and self.random.random() < 0.7:
            workspace = self.allocate(min(max(args[0].numel() * args[0].element_size() // 2, MiB), 256 * MiB))
        out = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(out)[0]:
            self.note(tensor)
        if workspace:
            self.free(workspace)
        return out


class Autocast(TorchFunctionMode):
    """Matrix operators in half precision, weights cast once a forward pass; PyTorch's own does not know meta tensors."""

    HALF = {F.linear, F.conv2d, F.conv_transpose2d, F.scaled_dot_product_attention, torch.matmul, torch.bmm, torch.addmm, torch.conv2d, torch.Tensor.matmul, torch.Tensor.__matmul__}
    FULL = {F.cross_entropy, F.layer_norm, F.softmax, F.mse_loss}

    def __init__(self):
        super().__init__()
        self.weights = {}

    def half(self, value):
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
            return value
        if not isinstance(value, nn.Parameter):
            return value.half()
        if id(value) not in self.weights:
            self.weights[id(value)] = value.half()
        return self.weights[id(value)]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in self.HALF:
            args, kwargs = tuple(map(self.half, args)), {k: self.half(v) for k, v in kwargs.items()}
        elif func in self.FULL:
            args = tuple(a.float() if isinstance(a, torch.Tensor) and a.dtype == torch.float16 else a for a in args)
        return func(*args, **kwargs)


def empty(*shape):
    return torch.empty(*shape)


def labels(*shape):
    return torch.empty(*shape, dtype=torch.long)


def noted(recorder, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        recorder.note(tensor.data)
    return model


def optimizer_of(model, kind):
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    return {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[kind](model.parameters(), lr=1e-3, foreach=kind == "adamw")


def train(model, optimizer, loss, amp=False):
    optimizer.zero_grad(set_to_none=True)
    if amp:
        with Autocast():
            value = loss(model)
    else:
        value = loss(model)
    value.backward()
    del value
    optimizer.step()


def images(build, batches, kind="sgd", amp=False, validate=None):
    def run(recorder, steps):
        model = noted(recorder, build())
        optimizer = optimizer_of(model, kind)
        for step in range(steps):
            recorder.mark()
            batch, side = batches[step % len(batches)]
            train(model, optimizer, lambda m: F.cross_entropy(m(empty(batch, 3, side, side)), labels(batch)), amp)
            if validate and step % 2:
                with torch.no_grad():
                    model.eval()
                    for _ in range(2):
                        model(empty(validate[0], 3, validate[1], validate[1]))
                    model.train()

    return run


def words(build, shapes, amp=False):
    def run(recorder, steps):
        model = noted(recorder, build())
        optimizer = optimizer_of(model, "adamw")
        for step in range(steps):
            recorder.mark()
            batch, length = shapes[step % len(shapes)]
            more = {"attention_mask": torch.ones(batch, length)} if isinstance(model, transformers.BertForMaskedLM) else {"use_cache": False}
            train(model, optimizer, lambda m: F.cross_entropy(m(input_ids=labels(batch, length), **more).logits.flatten(0, 1).float(), labels(batch * length)), amp)

    return run


def decoding(build, batches, prompt, new):
    def run(recorder, steps):
        model = noted(recorder, build()).eval()
        for step in range(steps):
            recorder.mark()
            with torch.no_grad():
                past, x = transformers.DynamicCache(), labels(batches[step % len(batches)], prompt)
                for _ in range(new):
                    y = model(input_ids=x, past_key_values=past, use_cache=True)
                    x, past = y.logits[:, -1:].argmax(-1), y.past_key_values
                    del y
                del past, x

    return run


def gpt(**more):
    return lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_implementation="eager", **more))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(attn_implementation="eager", vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=16,
                                                                  num_attention_heads=32, num_key_value_heads=8))


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(attn_implementation="eager", hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096))


class Unet(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        widths = [width * 2**i for i in range(depth + 1)]
        conv = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
        self.down = nn.ModuleList([conv(a, b) for a, b in zip([3] + widths[:-1], widths)])
        self.ups = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths[-2::-1], widths[:0:-1])])
        self.after = nn.ModuleList([conv(2 * a, a) for a in widths[-2::-1]])
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        skips = []
        for i, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        skips.pop()
        for up, after in zip(self.ups, self.after):
            x = after(torch.cat([up(x), skips.pop()], 1))
        return self.last(x)


def unet_sizes(amp):
    def run(recorder, steps):
        model, draw = noted(recorder, Unet()), random.Random(5)
        optimizer = optimizer_of(model, "adam")
        for _ in range(steps):
            recorder.mark()
            height, width = draw.choice([128, 192, 256, 320]), draw.choice([128, 192, 256, 320])
            train(model, optimizer, lambda m: F.cross_entropy(m(empty(4, 3, height, width)), labels(4, height, width)), amp)

    return run


def t5_lengths(recorder, steps):
    config = transformers.T5Config(d_model=768, d_ff=2048, num_layers=12, num_heads=12, vocab_size=32128, feed_forward_proj="gated-gelu", decoder_start_token_id=0)
    model, draw = noted(recorder, transformers.T5ForConditionalGeneration(config)), random.Random(2)
    optimizer = optimizer_of(model, "adamw")
    for _ in range(steps):
        recorder.mark()
        a, b = draw.randrange(64, 400), draw.randrange(16, 120)
        train(model, optimizer, lambda m: F.cross_entropy(m(input_ids=labels(8, a), decoder_input_ids=labels(8, b), use_cache=False).logits.flatten(0, 1), labels(8 * b)))


class Sage(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2 * a, b) for a, b in [(100, width), (width, width), (width, 47)]])

    def forward(self, x, sizes):
        for i, layer in enumerate(self.layers):
            nodes, edges = sizes[i + 1], sizes[i] * 3
            messages = x.index_select(0, labels(edges))
            gathered = torch.zeros(nodes, x.shape[1]).index_add(0, labels(edges), messages)
            x = layer(torch.cat([x[:nodes], gathered], 1))
            if i < 2:
                x = F.dropout(F.relu(x), 0.5)
        return x


def graph_samples(recorder, steps):
    model, draw = noted(recorder, Sage()), random.Random(3)
    optimizer = optimizer_of(model, "adam")
    for _ in range(steps):
        recorder.mark()
        n = draw.randrange(800, 1024)
        sizes = [int(n * draw.uniform(150, 220)), int(n * draw.uniform(30, 50)), n * 8, n]
        train(model, optimizer, lambda m: F.cross_entropy(m(empty(sizes[0], 100), sizes), labels(n)))


def gan(recorder, steps, w=64):
    up = [[nn.Upsample(scale_factor=2), nn.Conv2d(a * w, b * w, 3, 1, 1), nn.BatchNorm2d(b * w), nn.ReLU()] for a, b in [(16, 8), (8, 4), (4, 2), (2, 1)]]
    down = [[nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2)] for a, b in [(3, w), (w, 2 * w), (2 * w, 4 * w), (4 * w, 8 * w)]]
    g = noted(recorder, nn.Sequential(nn.Linear(128, 16 * 16 * w), nn.Unflatten(1, (16 * w, 4, 4)), *sum(up, []), nn.Conv2d(w, 3, 3, 1, 1), nn.Tanh()))
    d = noted(recorder, nn.Sequential(*sum(down, []), nn.Flatten(), nn.Linear(8 * w * 16, 1)))
    g_optimizer, d_optimizer = optimizer_of(g, "adam"), optimizer_of(d, "adamw")
    averaged = [p.detach().clone() for p in g.parameters()]
    for _ in range(steps):
        recorder.mark()
        for _ in range(2):
            with torch.no_grad():
                fake = g(empty(64, 128))
            train(d, d_optimizer, lambda m: F.softplus(m(fake)).mean() + F.softplus(-m(empty(64, 3, 64, 64))).mean())
        train(g, g_optimizer, lambda m: F.softplus(-d(m(empty(64, 128)))).mean())
        with torch.no_grad():
            torch._foreach_lerp_(averaged, [p.detach() for p in g.parameters()], 0.01)


def deeplab_sizes(recorder, steps):
    model = noted(recorder, torchvision.models.segmentation.deeplabv3_resnet50(num_classes=21, weights_backbone=None, aux_loss=True))
    optimizer, draw = optimizer_of(model, "sgd"), random.Random(8)
    for _ in range(steps):
        recorder.mark()
        height, width = 32 * draw.randrange(8, 17), 32 * draw.randrange(8, 17)

        def loss(m):
            y = m(empty(4, 3, height, width))
            return F.cross_entropy(y["out"], labels(4, height, width)) + 0.4 * F.cross_entropy(y["aux"], labels(4, height, width))

        train(model, optimizer, loss)


def lstm_cells(recorder, steps):
    model = noted(recorder, nn.ModuleList([nn.Embedding(20000, 512), nn.LSTMCell(512, 1024), nn.Linear(1024, 20000)]))
    optimizer, draw = optimizer_of(model, "adam"), random.Random(4)
    words_of, cell, head = model
    for _ in range(steps):
        recorder.mark()
        length = draw.randrange(20, 60)

        def loss(_):
            h = c = torch.zeros(32, 1024)
            outs = []
            for _ in range(length):
                h, c = cell(words_of(labels(32)), (h, c))
                outs.append(h)
            return F.cross_entropy(head(torch.cat(outs)), labels(32 * length))

        train(model, optimizer, loss)


def convnext_accumulating(recorder, steps):
    model = noted(recorder, torchvision.models.convnext_small())
    optimizer = optimizer_of(model, "adamw")
    for _ in range(steps):
        recorder.mark()
        optimizer.zero_grad(set_to_none=True)
        for _ in range(3):
            F.cross_entropy(model(empty(16, 3, 224, 224)), labels(16)).backward()
        optimizer.step()


def two_streams(recorder, steps):
    """The next batch is copied and prepared on another stream."""
    model = noted(recorder, torchvision.models.resnet18(num_classes=100))
    optimizer, ahead = optimizer_of(model, "sgd"), None
    for _ in range(steps):
        recorder.mark()
        recorder.stream = 7
        x, ahead = ahead if ahead is not None else empty(64, 3, 160, 160), None
        ahead = empty(64, 3, 160, 160).float()
        scaled = ahead * 2
        del scaled
        recorder.stream = 0
        train(model, optimizer, lambda m: F.cross_entropy(m(x * 1.0), labels(64)))
        del x


def sharded(recorder, steps, layers=24, width=1536):
    """Each layer's weights are gathered on another stream before they are used; gradients are scattered there."""
    on_stream = lambda stream, size, dtype=torch.half: (setattr(recorder, "stream", stream), torch.empty(size, dtype=dtype), setattr(recorder, "stream", 0))[1]
    weights = 12 * width * width
    shards = [empty(weights // 8) for _ in range(layers)]
    moments = None
    for _ in range(steps):
        recorder.mark()
        kept, x = [], empty(4 * 1024, width).half()
        for _ in range(layers):
            full = on_stream(5, weights)
            h, a, q = empty(4 * 1024, 4 * width).half(), empty(4, 16, 1024, 1024).half(), empty(4 * 1024, 3 * width).half()
            y, t = x * 1, F.gelu(h)
            kept.append((x, q, a, h, t))
            x = y
            del y, h, a, q, t, full
        gradient, gradients = x * 1, []
        for _ in range(layers):
            full = on_stream(5, weights)
            saved = kept.pop()
            work = [saved[3] * 1, saved[1] * 1, saved[2] * 1, torch.empty(weights, dtype=torch.half)]
            gradient = saved[0] * 1
            gradients.append(on_stream(5, weights // 8, torch.float))
            del saved, work, full
        if moments is None:
            moments = [(torch.zeros_like(shard), torch.zeros_like(shard)) for shard in shards]
        for each in gradients:
            scaled = each * 2
            change = scaled + 1
            del scaled, change
        del gradients, gradient, each, x


vision = torchvision.models
MODELS = {
    "resnet152_amp": (images(vision.resnet152, [(32, 224)], amp=True), 4),
    "resnet50_64": (images(vision.resnet50, [(64, 224)]), 4),
    "efficientnet_validating": (images(vision.efficientnet_v2_s, [(24, 224)], "adamw", validate=(64, 288)), 4),
    "densenet201": (images(vision.densenet201, [(16, 224)]), 3),
    "mobilenet_sizes": (images(vision.mobilenet_v3_large, [(32, 224), (32, 160), (48, 192)], "adam"), 6),
    "vit_b_amp": (images(vision.vit_b_16, [(32, 224)], "adamw", amp=True), 4),
    "swin_b": (images(vision.swin_b, [(16, 224)], "adamw"), 3),
    "gpt_medium_amp": (words(gpt(n_embd=1024, n_layer=24, n_head=16), [(4, 1024)], amp=True), 4),
    "gpt_small_lengths": (words(gpt(), [(8, 512), (8, 200), (8, 800), (8, 333), (8, 1000), (8, 64)]), 7),
    "llama_1b": (words(llama, [(2, 1024)]), 3),
    "bert_large_lengths_amp": (words(bert, [(16, 128), (16, 77), (16, 200), (16, 31), (16, 256)], amp=True), 6),
    "llama_1b_decoding": (decoding(llama, [16, 32, 8], 128, 64), 3),
    "gpt_small_decoding": (decoding(gpt(), [64], 32, 120), 2),
    "unet_sizes": (unet_sizes(False), 8),
    "unet_sizes_amp": (unet_sizes(True), 8),
    "t5_base_lengths": (t5_lengths, 5),
    "graph_samples": (graph_samples, 10),
    "gan_averaged": (gan, 4),
    "deeplab_sizes": (deeplab_sizes, 6),
    "lstm_cells": (lstm_cells, 4),
    "convnext_accumulating": (convnext_accumulating, 3),
    "two_streams": (two_streams, 5),
    "sharded": (sharded, 3),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="a folder for NAME.jsonl.gz")
    parser.add_argument("names", nargs="*", help="of models; all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, (run, steps) in MODELS.items():
        if options.names and name not in options.names:
            continue
        recorder = Recorder()
        with recorder, torch.device("meta"):
            run(recorder, steps)
        lines = [{"op": "meta", "name": name, "torch": torch.__version__}, *recorder.lines]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        with open(options.out / f"{name}.jsonl.gz", "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as packed:
            packed.write(text.encode())
        print(f"{name}: {recorder.fresh} requests in {steps} steps", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
