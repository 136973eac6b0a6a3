"""Softmax regression with partial_fit, without autograd or DataLoader; every figure goes to a table.

Each figure is committed, so that others may query it at once. --fixed commits every few hundred.
"""

import os
import sqlite3
import tempfile

import numpy as np
import torch

import kit


class Figures:
    def __init__(self, path, group):
        self.table = sqlite3.connect(path)
        self.table.execute("create table figure (step int, name text, value real)")
        self.group, self.count = group, 0

    def put(self, step, **values):
        for name, value in values.items():
            self.table.execute("insert into figure values (?, ?, ?)", (step, name, float(value)))  # CAUSE
            self.count += 1
            if self.count % self.group == 0:
                self.table.commit()  # CAUSE


class SoftmaxRegression:
    def __init__(self, features, classes, rate=0.1):
        self.w = np.zeros((features, classes), np.float32)
        self.rate = rate

    def partial_fit(self, x, y):
        z = x @ self.w
        z -= z.max(1, keepdims=True)
        p = np.exp(z)
        p /= p.sum(1, keepdims=True)
        rows = np.arange(len(y))
        loss = -np.log(p[rows, y] + 1e-9).mean()
        p[rows, y] -= 1
        grad = x.T @ p / len(y)
        self.w -= self.rate * grad
        return loss, np.linalg.norm(grad)


opts = kit.options()
data = torch.randn(8192, 900).numpy()
labels = torch.randint(40, (8192,)).numpy()
model = SoftmaxRegression(900, 40)
with tempfile.TemporaryDirectory() as folder:
    figures = Figures(os.path.join(folder, "figures.db"), 400 if opts.fixed else 1)
    meter, step = kit.Meter(opts), 0
    while not meter.over:
        first = step * 2048 % 8192
        loss, norm = model.partial_fit(data[first : first + 2048], labels[first : first + 2048])
        figures.put(step, loss=loss, norm=norm, largest=np.abs(model.w).max(), mean=model.w.mean())
        step += 1
        meter.step()
    meter.write()
