"""A trainer class with hooks and callbacks, in the manner of Lightning, and a short validation per epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kit


class Callback:
    def on_step_end(self, trainer, loss): ...
    def on_epoch_end(self, trainer): ...


class Progress(Callback):
    def __init__(self):
        self.smooth = None

    def on_step_end(self, trainer, loss):
        self.smooth = loss if self.smooth is None else 0.95 * self.smooth + 0.05 * loss

    def on_epoch_end(self, trainer):
        print(f"epoch {trainer.epoch} loss {float(self.smooth):.4f} val {trainer.val_loss:.4f}")


class Timer(Callback):
    def __init__(self, meter):
        self.meter = meter

    def on_step_end(self, trainer, loss):
        trainer.should_stop = self.meter.step()


class LitRegressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(128, 1024), nn.SiLU(), nn.Linear(1024, 1024), nn.SiLU(),
                                    nn.Linear(1024, 8))

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.smooth_l1_loss(self.layers(x), y)

    validation_step = training_step

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, nesterov=True, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.95)


class Trainer:
    def __init__(self, callbacks):
        self.callbacks, self.should_stop, self.epoch, self.val_loss = callbacks, False, 0, float("nan")

    def _call(self, hook, *args):
        for callback in self.callbacks:
            getattr(callback, hook)(self, *args)

    def fit(self, module, train, val):
        optimizer, scheduler = module.configure_optimizers()
        while not self.should_stop:
            module.train()
            for index, batch in enumerate(train):
                def closure():
                    optimizer.zero_grad()
                    loss = module.training_step(batch, index)
                    loss.backward()
                    return loss

                loss = optimizer.step(closure)
                self._call("on_step_end", loss.detach())
                if self.should_stop:
                    return
            module.eval()
            with torch.no_grad():
                losses = [module.validation_step(b, i) for i, b in enumerate(val)]
            self.val_loss = float(torch.stack(losses).mean())
            scheduler.step()
            self._call("on_epoch_end")
            self.epoch += 1


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    x = torch.randn(12_000, 128)
    data = TensorDataset(x, x[:, :8].cumsum(1))
    val = torch.utils.data.Subset(data, range(400))
    meter = kit.Meter(opts)
    Trainer([Progress(), Timer(meter)]).fit(
        LitRegressor(), DataLoader(data, batch_size=128, shuffle=True), DataLoader(val, batch_size=200))
    meter.write()


if __name__ == "__main__":
    main()
