#!/usr/bin/env python3
"""Records what whole models ask of memory while they train or decode, as record.py does for small ones.

Needs torch, torchvision and transformers; takes half an hour of one core for all.
"""

import argparse
import copy
import pathlib
import random
import sys

import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional as F

from record import record, state, train

torch.manual_seed(1)


def image_model(key, build, batch, side, optimizer=torch.optim.SGD, **options):
    model, optimizer = state(key, build, optimizer, **options)
    train(model, optimizer, lambda m: F.cross_entropy(logits_of(m(torch.randn(batch, 3, side, side))), torch.randint(0, 10, (batch,))))


def logits_of(out):
    return out.logits if hasattr(out, "logits") else out


def resnet50(step):
    image_model("m", lambda: torchvision.models.resnet50(num_classes=10), 8, 224, lr=0.1, momentum=0.9)


def resnet50_sizes(step):
    image_model("m", lambda: torchvision.models.resnet50(num_classes=10), 8, [128, 192, 160, 224][step % 4], lr=0.1, momentum=0.9)


def vit(step):
    image_model("m", lambda: torchvision.models.VisionTransformer(128, 16, 8, 8, 512, 2048, num_classes=10), 16, 128, torch.optim.AdamW)


def mobilenet(step):
    image_model("m", lambda: torchvision.models.mobilenet_v3_large(num_classes=10), 16, 160, torch.optim.RMSprop, momentum=0.9)


def convnext(step):
    image_model("m", lambda: torchvision.models.convnext_tiny(num_classes=10), 6, 160, torch.optim.AdamW)


def swin(step):
    image_model("m", lambda: torchvision.models.swin_t(num_classes=10), 6, 160, torch.optim.AdamW)


def densenet(step):
    image_model("m", lambda: torchvision.models.densenet121(num_classes=10), 8, 160, lr=0.1, momentum=0.9)


def vgg(step):
    image_model("m", lambda: torchvision.models.vgg11_bn(num_classes=10), 4, 224, lr=0.01, momentum=0.9)


def efficientnet_accumulating(step):
    model, optimizer = state("m", lambda: torchvision.models.efficientnet_b0(num_classes=10), torch.optim.SGD, lr=0.1, momentum=0.9)
    optimizer.zero_grad(set_to_none=True)
    for _ in range(2):
        F.cross_entropy(model(torch.randn(8, 3, 160, 160)), torch.randint(0, 10, (8,))).backward()
    optimizer.step()
    with torch.no_grad():
        model.eval()
        model(torch.randn(24, 3, 160, 160))
        model.train()


def gpt_config(**more):
    return transformers.GPT2Config(**({"vocab_size": 8192, "n_positions": 512, "n_embd": 512, "n_layer": 6, "n_head": 8} | more))


def language(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def gpt_lengths(step):
    model, optimizer = state("m", lambda: transformers.GPT2LMHeadModel(gpt_config(n_layer=4)), torch.optim.AdamW)
    train(model, optimizer, lambda m: language(m, torch.randint(0, 8192, (4, [128, 60, 200, 97, 256, 33][step % 6]))))


def gpt(step):
    model, optimizer = state("m", lambda: transformers.GPT2LMHeadModel(gpt_config(n_layer=8)), torch.optim.AdamW)
    train(model, optimizer, lambda m: language(m, torch.randint(0, 8192, (6, 192))))


def gpt_checkpointed(step):
    def build():
        model = transformers.GPT2LMHeadModel(gpt_config(n_layer=8, use_cache=False))
        model.gradient_checkpointing_enable()
        return model

    model, optimizer = state("m", build, torch.optim.AdamW)
    train(model, optimizer, lambda m: language(m, torch.randint(0, 8192, (8, 192))))


def gpt_decoding(step):
    model, _ = state("m", lambda: transformers.GPT2LMHeadModel(gpt_config(n_layer=8)), torch.optim.SGD)
    model.eval()
    with torch.no_grad():
        model.generate(torch.randint(0, 8192, (16, 64)), max_new_tokens=40, do_sample=True, pad_token_id=0)


def llama_decoding(step):
    config = transformers.LlamaConfig(vocab_size=8192, hidden_size=512, intermediate_size=1408, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4)
    model, _ = state("m", lambda: transformers.LlamaForCausalLM(config), torch.optim.SGD)
    model.eval()
    with torch.no_grad():
        model.generate(torch.randint(0, 8192, ([8, 24, 12][step % 3], 96)), max_new_tokens=32, do_sample=True, pad_token_id=0)


def bert(step):
    config = transformers.BertConfig(vocab_size=8192, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536)
    model, optimizer = state("m", lambda: transformers.BertForMaskedLM(config), torch.optim.AdamW)
    train(model, optimizer, lambda m: language(m, torch.randint(0, 8192, (8, 128))))


def mixture(step):
    config = transformers.MixtralConfig(vocab_size=4096, hidden_size=256, intermediate_size=640, num_hidden_layers=4, num_attention_heads=8,
                                        num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2)
    model, optimizer = state("m", lambda: transformers.MixtralForCausalLM(config), torch.optim.AdamW)
    train(model, optimizer, lambda m: language(m, torch.randint(0, 4096, (4, 128))))


class WordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10000, 400)
        self.body = nn.LSTM(400, 650, 2, dropout=0.2)
        self.head = nn.Linear(650, 10000)

    def forward(self, x, carried):
        y, carried = self.body(self.words(x), carried)
        return self.head(y), carried


def lstm_words(step):
    model, optimizer = state("m", WordModel, torch.optim.SGD, lr=1.0)
    x = torch.randint(0, 10000, (35, 20))

    def loss(m):
        y, carried = m(x, CARRIED.get("h"))
        CARRIED["h"] = tuple(c.detach() for c in carried)
        return F.cross_entropy(y.flatten(0, 1), x.flatten())

    train(model, optimizer, loss)


CARRIED: dict = {}


class Block(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.one, self.two = nn.Conv2d(a, b, 3, 1, 1), nn.Conv2d(b, b, 3, 1, 1)
        self.norm, self.skip = nn.GroupNorm(8, b), nn.Conv2d(a, b, 1)

    def forward(self, x):
        return F.silu(self.two(F.silu(self.norm(self.one(x))))) + self.skip(x)


class Denoiser(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        w = [width, 2 * width, 4 * width]
        self.first = nn.Conv2d(4, width, 3, 1, 1)
        self.down = nn.ModuleList([Block(width, w[0]), Block(w[0], w[1]), Block(w[1], w[2])])
        self.middle = nn.MultiheadAttention(w[2], 4, batch_first=True)
        self.up = nn.ModuleList([Block(2 * w[2], w[1]), Block(2 * w[1], w[0]), Block(2 * w[0], width)])
        self.last = nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, x):
        x, skips = self.first(x), []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        t = x.flatten(2).transpose(1, 2)
        x = x + self.middle(t, t, t)[0].transpose(1, 2).view_as(x)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1))
        return self.last(x)


def diffusion(step):
    model, optimizer = state("m", Denoiser, torch.optim.AdamW)
    averaged, _ = state("ema", lambda: copy.deepcopy(model).requires_grad_(False), torch.optim.SGD)
    noise = torch.randn(6, 4, 64, 64)
    train(model, optimizer, lambda m: F.mse_loss(m(torch.randn(6, 4, 64, 64) * 0.7 + noise * 0.7), noise))
    with torch.no_grad():
        for a, b in zip(averaged.parameters(), model.parameters()):
            a.lerp_(b, 0.01)
        if step % 3 == 2:
            x = torch.randn(2, 4, 64, 64)
            for _ in range(3):
                x = x - 0.1 * averaged(x)


def generator():
    layers, width = [], 512
    for side, channels in [(4, 512), (8, 256), (16, 128), (32, 64)]:
        layers += [nn.ConvTranspose2d(64 if side == 4 else width, channels, 4, 1 if side == 4 else 2, 0 if side == 4 else 1), nn.BatchNorm2d(channels), nn.ReLU()]
        width = channels
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())


def critic():
    layers, width = [], 3
    for channels in [64, 128, 256, 512]:
        layers += [nn.Conv2d(width, channels, 4, 2, 1), nn.LeakyReLU(0.2)]
        width = channels
    return nn.Sequential(*layers, nn.Conv2d(512, 1, 4))


def gan(step):
    g, g_optimizer = state("g", generator, torch.optim.Adam)
    d, d_optimizer = state("d", critic, torch.optim.Adam)
    fake = g(torch.randn(64, 64, 1, 1))
    train(d, d_optimizer, lambda m: F.softplus(m(fake.detach())).mean() + F.softplus(-m(torch.randn(64, 3, 64, 64))).mean())
    g_optimizer.zero_grad(set_to_none=True)
    F.softplus(-d(fake)).mean().backward()
    g_optimizer.step()


class Ratings(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(n, 64, mode="sum") for n in [100000, 40000, 5000, 800, 60000, 900]])
        self.head = nn.Sequential(nn.Linear(7 * 64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))
        self.dense = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, dense, ids):
        return self.head(torch.cat([self.dense(dense)] + [t(i) for t, i in zip(self.tables, ids)], 1))


def recommender(step):
    model, optimizer = state("m", Ratings, torch.optim.Adagrad)
    sizes = [t.num_embeddings for t in model.tables]
    train(model, optimizer, lambda m: m(torch.randn(4096, 13), [torch.randint(0, n, (4096, 8)) for n in sizes]).square().mean())


def inference_sizes(step):
    model, _ = state("m", lambda: torchvision.models.resnet50(num_classes=10), torch.optim.SGD)
    model.eval()
    with torch.no_grad():
        for batch, side in [(8, 224), (3, 320), (16, 160), (1, 448)]:
            model(torch.randn(batch, 3, side, side))


def vae(step):
    def build():
        return nn.ModuleDict({"in": nn.Sequential(nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128 * 32 * 32, 256)),
                              "out": nn.Sequential(nn.Linear(128, 128 * 32 * 32), nn.Unflatten(1, (128, 32, 32)), nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1))})

    model, optimizer = state("m", build, torch.optim.Adam)
    x = torch.randn(32, 3, 128, 128)

    def loss(m):
        mean, log = m["in"](x).chunk(2, 1)
        return F.mse_loss(m["out"](mean + torch.randn_like(mean) * log.exp()), x) + (mean.square() + log.exp() - log).mean()

    train(model, optimizer, loss)


def t5_lengths(step):
    config = transformers.T5Config(vocab_size=8192, d_model=256, d_ff=1024, d_kv=32, num_layers=4, num_heads=8, decoder_start_token_id=0)
    model, optimizer = state("m", lambda: transformers.T5ForConditionalGeneration(config), torch.optim.AdamW)
    a, b = [(60, 20), (200, 30), (33, 64), (128, 50), (170, 12)][step % 5]
    train(model, optimizer, lambda m: m(input_ids=torch.randint(0, 8192, (6, a)), labels=torch.randint(0, 8192, (6, b))).loss)


def bert_lengths(step):
    config = transformers.BertConfig(vocab_size=8192, hidden_size=320, num_hidden_layers=5, num_attention_heads=5, intermediate_size=1280)
    model, optimizer = state("m", lambda: transformers.BertForMaskedLM(config), torch.optim.AdamW)
    train(model, optimizer, lambda m: language(m, torch.randint(0, 8192, (8, [40, 128, 71, 190, 25, 160][step % 6]))))


def denoiser_sizes(step):
    model, optimizer = state("m", lambda: Denoiser(40), torch.optim.Adam)
    height, width = [(64, 48), (80, 80), (48, 96), (96, 96), (64, 64)][step % 5]
    train(model, optimizer, lambda m: m(torch.randn(4, 4, height, width)).square().mean())


def resnext_validating(step):
    model, optimizer = state("m", lambda: torchvision.models.resnext50_32x4d(num_classes=10), torch.optim.SGD, lr=0.1, momentum=0.9)
    train(model, optimizer, lambda m: F.cross_entropy(m(torch.randn(4, 3, 160, 160)), torch.randint(0, 10, (4,))))
    if step % 2:
        with torch.no_grad():
            model.eval()
            model(torch.randn(16, 3, 160, 160))
            model.train()


def efficientnet_amp(step):
    model, optimizer = state("m", lambda: torchvision.models.efficientnet_v2_s(num_classes=10), torch.optim.AdamW)

    def loss(m):
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(m(torch.randn(4, 3, 128, 128)).float(), torch.randint(0, 10, (4,)))

    train(model, optimizer, loss)


def vit_foreach(step):
    model, optimizer = state("m", lambda: torchvision.models.VisionTransformer(96, 8, 6, 6, 384, 1536, num_classes=10), torch.optim.Adam, foreach=True)
    train(model, optimizer, lambda m: F.cross_entropy(m(torch.randn(8, 3, 96, 96)), torch.randint(0, 10, (8,))))


def gpt_amp(step):
    model, optimizer = state("m", lambda: transformers.GPT2LMHeadModel(gpt_config(n_layer=6, n_embd=384, n_head=6)), torch.optim.AdamW, foreach=True)

    def loss(m):
        with torch.autocast("cpu", torch.bfloat16):
            return language(m, torch.randint(0, 8192, (4, 160)))

    train(model, optimizer, loss)


def gru_lengths(step):
    model, optimizer = state("m", lambda: nn.GRU(256, 512, 3), torch.optim.RMSprop, momentum=0.9)
    train(model, optimizer, lambda m: m(torch.randn([24, 50, 31, 64, 17][step % 5], 24, 256))[0].square().mean())


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in [(128, 256), (256, 256), (256, 40)]])

    def forward(self, x, sources, targets):
        for layer in self.layers:
            x = F.relu(layer(torch.zeros_like(x).index_add(0, targets, x[sources])))
        return x


def graph_sizes(step):
    nodes = random.Random(step).randrange(4000, 9000)
    model, optimizer = state("m", Graph, torch.optim.Adam)
    edges = lambda: torch.randint(0, nodes, (4 * nodes,))
    train(model, optimizer, lambda m: m(torch.randn(nodes, 128), edges(), edges()).square().mean())


def wgan(step):
    g, g_optimizer = state("g", generator, torch.optim.Adam)
    d, d_optimizer = state("d", critic, torch.optim.RMSprop)
    for _ in range(2):
        with torch.no_grad():
            fake = g(torch.randn(32, 64, 1, 1))
        real = torch.randn(32, 3, 64, 64).requires_grad_()

        def loss(m):
            y = m(real)
            (gradient,) = torch.autograd.grad(y.sum(), real, create_graph=True)
            return m(fake).mean() - y.mean() + 10 * (gradient.flatten(1).norm(dim=1) - 1).square().mean()

        train(d, d_optimizer, loss)
    train(g, g_optimizer, lambda m: -d(m(torch.randn(32, 64, 1, 1))).mean())


def opt_decoding(step):
    config = transformers.OPTConfig(vocab_size=8192, hidden_size=384, ffn_dim=1536, num_hidden_layers=6, num_attention_heads=6, word_embed_proj_dim=384)
    model, _ = state("m", lambda: transformers.OPTForCausalLM(config), torch.optim.SGD)
    model.eval()
    with torch.no_grad():
        model.generate(torch.randint(4, 8192, ([12, 30][step % 2], 48)), max_new_tokens=48, min_new_tokens=48, do_sample=True, pad_token_id=0)


def llama_checkpointed(step):
    def build():
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=8192, hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6,
                                                                       num_key_value_heads=2, use_cache=False))
        model.gradient_checkpointing_enable()
        return model

    model, optimizer = state("m", build, torch.optim.AdamW)
    train(model, optimizer, lambda m: language(m, torch.randint(0, 8192, (6, 160))))


def lraspp_sizes(step):
    build = lambda: torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    model, optimizer = state("m", build, torch.optim.SGD, lr=0.01, momentum=0.9)
    height, width = [(160, 224), (224, 224), (128, 256), (192, 160)][step % 4]
    train(model, optimizer, lambda m: F.cross_entropy(m(torch.randn(6, 3, height, width))["out"], torch.randint(0, 5, (6, height, width))))


def densenet_wide(step):
    model, optimizer = state("m", lambda: torchvision.models.DenseNet(16, (4, 8, 12, 8), 32, num_classes=10), torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)
    train(model, optimizer, lambda m: F.cross_entropy(m(torch.randn(12, 3, 112, 112)), torch.randint(0, 10, (12,))))


DEVELOPMENT = [(vit, 4), (mobilenet, 4), (gpt_lengths, 7), (gpt, 4), (gpt_decoding, 2), (llama_decoding, 3), (bert, 4), (mixture, 4),
               (lstm_words, 5), (diffusion, 4), (gan, 4), (recommender, 4)]
VALIDATION = [(resnet50, 4), (resnet50_sizes, 5), (gpt_checkpointed, 4), (inference_sizes, 2), (convnext, 4), (swin, 4), (densenet, 3), (vgg, 4),
              (efficientnet_accumulating, 3), (vae, 4)]
# Recorded when needed; not kept in traces/.
FURTHER = [(t5_lengths, 5), (bert_lengths, 6), (denoiser_sizes, 5), (graph_sizes, 6), (gru_lengths, 5), (vit_foreach, 4), (gpt_amp, 4), (opt_decoding, 2),
           (llama_checkpointed, 4), (wgan, 4), (lraspp_sizes, 4), (densenet_wide, 3), (resnext_validating, 4), (efficientnet_amp, 3)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="a folder for NAME.jsonl.gz")
    parser.add_argument("names", nargs="*", help="of models; all but those of FURTHER")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for step, count in DEVELOPMENT + VALIDATION + FURTHER:
        if step.__name__ in (options.names or [kept.__name__ for kept, _ in DEVELOPMENT + VALIDATION]):
            CARRIED.clear()
            record(step.__name__, step, count, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
