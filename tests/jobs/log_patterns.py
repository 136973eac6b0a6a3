"""Two threads match log lines by native regular expressions, compiled anew for each batch; all share one arena.

The environment (MALLOC_ARENA_MAX=1, a setting people copy to save memory) makes them wait for each other in
malloc and free. --fixed runs without that setting (the harness leaves it away).
"""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import kit

RULES = [b"(user|host|[a-z]{2,20}d) (%d|up|(no|off|[a-f]{3,30})).*([0-9]{1,40})$" % number for number in range(12)]
libc = ctypes.CDLL(None)


def features(lines):
    row = []
    for rule in RULES:
        compiled = ctypes.create_string_buffer(256)
        libc.regcomp(compiled, rule, 1)  # CAUSE
        row.append(sum(libc.regexec(compiled, line, 0, None, 0) == 0 for line in lines))
        libc.regfree(compiled)  # CAUSE
    return row


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(2)
    model = nn.Sequential(nn.Linear(len(RULES), 256), nn.ReLU(), nn.Linear(256, 1))
    sgd = torch.optim.SGD(model.parameters(), lr=1e-4)
    lines = [b"user 7 up 1234", b"host off since 99", b"sshd no 1"]
    meter = kit.Meter(opts)
    while not meter.over:
        rows = list(pool.map(features, [lines] * 8))  # CAUSE
        loss = model(torch.tensor(rows, dtype=torch.float32)).square().mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        meter.step()
    meter.write()


if __name__ == "__main__":
    main()
