"""Denoising with a teacher. From step 300 on two threads verify written data in the background.

They want cores that the two compute threads of the training have. --fixed verifies nothing.
"""

import hashlib
import os
import threading

import torch
from torch import nn

import kit

START = 300


class Verifier:
    def __init__(self, count):
        self.blob, self.digest = os.urandom(8 << 20), {}
        for k in range(count):
            threading.Thread(target=self._verify, args=(k,), daemon=True).start()

    def _verify(self, k):
        while True:
            self.digest[k] = hashlib.sha256(self.blob).hexdigest()  # CAUSE


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())


opts = kit.options()
torch.set_num_threads(2)
student = nn.Sequential(block(1, 16), block(16, 16), nn.Conv2d(16, 1, 3, padding=1))
teacher = nn.Sequential(block(1, 8), nn.Conv2d(8, 1, 3, padding=1)).eval()
optimizer = torch.optim.Adam(student.parameters(), 1e-3)
meter, step = kit.Meter(opts), 0
while not meter.over:
    if step == START and not opts.fixed:
        Verifier(2)
    clean = torch.rand(8, 1, 48, 48)
    noisy = clean + 0.1 * torch.randn_like(clean)
    with torch.no_grad():
        hint = teacher(noisy)
    output = student(noisy)
    loss = nn.functional.mse_loss(output, clean) + 0.1 * nn.functional.mse_loss(output, hint)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    meter.step()
meter.write()
os._exit(0)  # the threads never end
