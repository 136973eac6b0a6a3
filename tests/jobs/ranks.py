"""Ranks train one model together on the CPU; rank 1 alone has the cause, but for `messages`, which all have.

Over gloo with DistributedDataParallel, or with --engine mpi by mpi4py's collectives, started by mpirun.
Over gloo, without RANK in the environment it starts --ranks processes of itself, as a launcher would, and ends
with the first exit code that is not 0. --end-after S: so long after the first rank has stopped it is
ended from outside, as an impatient user would.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket
import subprocess
import sys
import time

CAUSES = ("none", "decode", "neighbour", "faults", "sleep", "stop", "kill", "fewer", "messages")
BAD_RANK = 1
BREAKS_AT = 40  # step


def launch(opts: argparse.Namespace) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [subprocess.Popen([sys.executable, *sys.argv],
                              env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(opts.ranks),
                                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
             for r in range(opts.ranks)]
    begun, stopped_at = time.monotonic(), None
    while any(p.poll() is None for p in ranks):
        time.sleep(0.05)
        if stopped_at is None and any(state(p.pid) == "T" for p in ranks):
            stopped_at = time.monotonic()
        if stopped_at is not None and time.monotonic() - stopped_at > many_steps(opts, stopped_at - begun):
            for p in ranks:
                p.kill()
    return next((p.returncode for p in ranks if p.returncode), 0) & 0xFF


def many_steps(opts: argparse.Namespace, elapsed: float) -> float:
    """Seconds that are many steps on a slow machine, too: half of what some forty took."""
    return max(opts.end_after, 0.5 * elapsed)


def state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def train(opts: argparse.Namespace) -> None:
    import mmap

    import numpy as np
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    if opts.engine == "mpi":
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        rank = world.Get_rank()
    else:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    cause = opts.cause if rank == BAD_RANK else "none"
    if opts.cause == "neighbour":
        # Each rank on a core of its own; on the bad one's another program runs.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 20

        def __getitem__(self, index):
            x = np.full(256, index % 7, dtype=np.float32)
            if cause == "decode":
                # Not the default sort: SIMD makes that a tenth of the work on some processors.
                np.sort(np.random.default_rng(index).random(12000 * opts.times), kind="stable")  # CAUSE decode
            return torch.from_numpy(x)

    loader = torch.utils.data.DataLoader(Samples(), 16)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), *[nn.Linear(256, 256) for _ in range(2)])
    if opts.engine == "gloo":
        model = nn.parallel.DistributedDataParallel(model)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-6)
    steps = opts.steps - 20 if cause == "fewer" else opts.steps
    zeros = bytes(8 << 20)
    statistics = torch.zeros(2 << 20)
    begun = time.monotonic()
    for step, x in enumerate(loader):
        if step == steps:
            break
        if step == BREAKS_AT and cause == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if step == BREAKS_AT and cause == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if cause == "faults":
            for _ in range(4 * opts.times):
                with mmap.mmap(-1, 8 << 20) as scratch:
                    scratch.write(zeros)  # CAUSE faults
        if cause == "sleep":
            time.sleep(0.02 * opts.times)  # CAUSE sleep
        x = x.repeat(opts.width, 1)
        loss = (model(x) - x).square().mean()
        sgd.zero_grad()
        loss.backward()
        if opts.cause == "messages":
            dist.all_reduce(statistics)  # CAUSE messages
        if opts.engine == "mpi":
            for p in model.parameters():
                world.Allreduce(MPI.IN_PLACE, p.grad.numpy())  # MEETS
        sgd.step()
    if cause == "fewer":
        time.sleep(many_steps(opts, time.monotonic() - begun))
        os._exit(0)
    if opts.engine == "gloo":
        dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--engine", choices=("gloo", "mpi"), default="gloo")
    parser.add_argument("--cause", choices=CAUSES, default="none")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--width", type=int, default=32, help="how much each step computes")
    parser.add_argument("--times", type=int, default=1, help="how often the cause stands in a step")
    parser.add_argument("--end-after", type=float, default=3.0)
    opts = parser.parse_args()
    if opts.engine == "gloo" and "RANK" not in os.environ:
        return launch(opts)
    train(opts)
    # What still holds gradients must go while there is an interpreter: a thread of gloo that lets go of
    # the last one during the interpreter's end aborts the process.
    gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
