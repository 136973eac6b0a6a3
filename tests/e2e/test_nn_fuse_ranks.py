"""flatout.nn.fuse in ranks: DistributedDataParallel and fully_shard train a fused model as they train the model as it was."""

import gc
import itertools
import os
import pathlib
import socket
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FLATOUT_BIN", ROOT / "build/release/flatout"))
LIBRARY = BIN.parent / "libflatout_nn.so"
pytestmark = [pytest.mark.parallel, pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")]
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
os.environ["FLATOUT_NN_LIBRARY"] = str(LIBRARY)
sys.path.insert(0, str(ROOT / "python"))

from torch import distributed, multiprocessing, nn  # noqa: E402

from flatout.nn import fuse  # noqa: E402
from networks import Block  # noqa: E402


def _train(rank, port, path):
    from torch.distributed.fsdp import fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    losses = {}
    for wrapper, when in itertools.product(("ddp", "fsdp"), ("never", "before", "after")):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), Block(8, 8), Block(8, 8), nn.AdaptiveAvgPool2d(1))
        if when == "before":
            fuse(model)
        if wrapper == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        else:
            for module in (model[3], model[4], model):
                fully_shard(module)
        if when == "after":
            fuse(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for seed in range(3):
            x = torch.randn(4, 3, 10, 10, generator=torch.Generator().manual_seed(2 * seed + rank))
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
        losses[wrapper, when] = float(loss.detach())
    # What still holds the group ends it after its threads, at the interpreter's end: PyTorch then aborts now and then.
    del model, module, optimizer, loss
    gc.collect()
    distributed.barrier()
    distributed.destroy_process_group()
    if rank == 0:
        torch.save(losses, path)


@pytest.mark.e2e
def test_ddp_and_fsdp_train_a_fused_model(tmp_path):
    if not distributed.is_available():
        pytest.skip("PyTorch is built without torch.distributed")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    path = tmp_path / "losses"
    multiprocessing.spawn(_train, (port, str(path)), 2)
    losses = torch.load(path)
    for (wrapper, when), loss in losses.items():
        assert loss == pytest.approx(losses[wrapper, "never"], rel=1e-3), (wrapper, when)
