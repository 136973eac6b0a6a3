"""Training loops that Lightning and Hugging Face's Trainer drive: KIND STEPS WORK, with the sample's cost in milliseconds.

Prints the number of optimizer steps that were taken. Knows nothing of Flatout.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LABELS = 4


class Waves(Dataset):
    def __init__(self, work_ms):
        self.work_s = work_ms / 1e3

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        until = time.thread_time() + self.work_s
        value = 0.0
        while time.thread_time() < until:  # CAUSE
            value += 1.0  # CAUSE
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(32, generator=generator), "labels": torch.tensor(index % LABELS)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, LABELS))

    def forward(self, x, labels=None):
        logits = self.body(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def lightning(steps, data):
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Lit(), DataLoader(data, batch_size=8, num_workers=2))
    return trainer.global_step


def huggingface(steps, data):
    import transformers

    arguments = transformers.TrainingArguments("out", max_steps=steps, per_device_train_batch_size=8, dataloader_num_workers=2,
                                               use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
                                               disable_tqdm=True, remove_unused_columns=False)
    trainer = transformers.Trainer(model=Net(), args=arguments, train_dataset=data)
    trainer.train()
    return trainer.state.global_step


def main():
    kind, steps, work_ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    print("steps", {"lightning": lightning, "huggingface": huggingface}[kind](steps, Waves(work_ms)))


if __name__ == "__main__":
    main()
