"""PyTorch's side: CUDAPluggableAllocator, MemPool, and the statistics that PyTorch itself has no more."""

import contextlib
import ctypes
import os
import sys

from . import _library

_installed = None  # the allocator as torch holds it
_streams = {}  # (device, index) -> the stream of a logical device
_for_pools = None


def start(watch, policy):
    """`policy`: the value of FLATOUT_DEVMEM. Called by the agent's sitecustomize at the start of a job's process."""
    watch.tell("torch", lambda torch: install(policy, limits=os.environ.get("FLATOUT_DEVMEM_LIMIT")))


def install(policy="arena", limits=None, record=None, debug=None):
    """Makes Flatout's pools PyTorch's allocator for device memory, for as long as the process lives.

    `policy`: "arena"; or "torch", "torch_expandable", which decide as PyTorch's own. `limits`: how much the tensors may take of
    each device, "8GiB", "50%" or 0.5, or a number of bytes; by device {0: "8GiB", 1: "4GiB"}; a list, as {0: ["4GiB", "4GiB"]}, makes
    that many logical devices (see logical_device). `record`: a file for all requests, which `flatout devmem replay` reads; each
    device's pool and each process has its own, the later ones with their process's number behind the name. `debug`: True names
    double frees, foreign pointers, wrong sizes and streams on standard error, with the lines; "abort" then ends the process.

    Called again with the same settings it does nothing. Raises RuntimeError where that cannot be: torch is built without CUDA or
    for ROCm, is older than 2.0, there is no driver, or tensors are on a card already; ValueError for bad settings.
    """
    global _installed
    torch = _torch_with_cuda()
    wanted = (policy, _limits_text(limits))
    if _installed is not None:
        if wanted != _installed[1]:
            raise RuntimeError("Flatout's pools are installed already, with other settings: %s %s" % _installed[1])
        return
    if torch.cuda.is_initialized():
        raise RuntimeError("PyTorch has begun to use the card with its own allocator, and two cannot mix: call "
                           "flatout.devmem.install() before the first tensor on a card")
    lib = _library.library()
    if record is not None:
        os.environ["FLATOUT_DEVMEM_RECORD"] = os.fspath(record)
    if debug is not None:
        os.environ["FLATOUT_DEVMEM_DEBUG"] = debug if isinstance(debug, str) else "1" if debug else "0"
    if lib.flatout_devmem_configure(wanted[0].encode(), wanted[1].encode()) != 0:
        raise ValueError(_library.error())
    allocator = torch.cuda.memory.CUDAPluggableAllocator(_library.path(), "flatout_devmem_alloc_or_throw", "flatout_devmem_free")
    inside = allocator.allocator()
    inside.set_record_stream_fn(_library.address("flatout_devmem_use_on"))
    inside.set_reset_fn(_library.address("flatout_devmem_empty_cache"))
    inside.set_memory_fraction_fn(_library.address("flatout_devmem_set_fraction"))
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise RuntimeError("PyTorch does not let its allocator be replaced: %s" % error) from None
    _installed = (allocator, wanted)
    _give_statistics(torch)


def installed():
    """Whether tensors come from Flatout's pools."""
    return _installed is not None


def stats(device=None, index=0):
    """What a device's pool holds, in bytes: live and peak_live (as requested), reserved and peak_reserved (taken from the driver),
    limit, largest_free, waiting (freed, but another stream is not known to be done with it), allocated_total, freed_total,
    device_free, device_total; and counts: blocks, allocations, frees, refused, driver_calls. All 0 before the device's first tensor.

    `device`: as torch has them; None: the current one. `index`: of a logical device.
    """
    out = _library.Stats()
    pool = _library.library().flatout_devmem_pool_of(_number(device), index)
    if pool:
        _library.library().flatout_devmem_get_stats(pool, ctypes.byref(out), ctypes.sizeof(out))
    return {name: getattr(out, name) for name in _library.FIELDS}


def snapshot(path, device=None, index=0):
    """Writes the device's latest requests (65536, or $FLATOUT_DEVMEM_HISTORY) and what is live as JSON lines, which
    `flatout devmem replay` reads. Raises RuntimeError where there is nothing to write, OSError where it cannot be written."""
    pool = _library.library().flatout_devmem_pool_of(_number(device), index)
    if not pool:
        raise RuntimeError("no tensor has been on device %d%s yet" % (_number(device), ", logical device %d" % index if index else ""))
    if _library.library().flatout_devmem_snapshot(pool, os.fsencode(path)) != 0:
        raise OSError(_library.error())


def trim():
    """Waits for the work under way and gives back to the driver what is wholly free; so does torch.cuda.empty_cache()."""
    _library.library().flatout_devmem_empty_cache()


@contextlib.contextmanager
def logical_device(index, device=None):
    """Within it tensors come from logical device `index` of `device`, and work runs on a stream of its own, which waits for the
    work before it and is waited for by the work behind it. Backward passes follow their forward passes. Raises ValueError where
    there is no such logical device: install(limits={0: ["4GiB", "4GiB"]}) makes two on device 0."""
    import torch

    if _installed is None:
        raise RuntimeError("call flatout.devmem.install(limits=...) first")
    number = _number(device)
    stream = _streams.get((number, index))
    if stream is None:
        stream = torch.cuda.Stream(number)
        if _library.library().flatout_devmem_bind(number, stream.cuda_stream, index) != 0:
            raise ValueError(_library.error())
        _streams[number, index] = stream
    outside = torch.cuda.current_stream(number)
    stream.wait_stream(outside)
    try:
        with torch.cuda.stream(stream):
            yield stream
    finally:  # out of memory is caught by the job, too, and its next work may read what was begun here
        outside.wait_stream(stream)


def mem_pool():
    """A torch.cuda.MemPool that takes its memory from Flatout's pools, beside PyTorch's own allocator:

        >>> with torch.cuda.use_mem_pool(flatout.devmem.mem_pool()):
        ...     cache = torch.empty(...)

    PyTorch cuts what it takes into blocks as it always does. Limits and policy: $FLATOUT_DEVMEM_LIMIT, $FLATOUT_DEVMEM.
    Raises RuntimeError as install() does, and where torch is older than 2.5."""
    global _for_pools
    torch = _torch_with_cuda()
    if not hasattr(torch.cuda, "MemPool"):
        raise RuntimeError("torch %s has no MemPool: 2.5 has" % torch.__version__)
    if _installed is not None:
        raise RuntimeError("every tensor comes from Flatout's pools already")
    if _for_pools is None:
        limits = _limits_text(os.environ.get("FLATOUT_DEVMEM_LIMIT"))
        policy = os.environ.get("FLATOUT_DEVMEM") or "arena"
        if _library.library().flatout_devmem_configure(policy.encode(), limits.encode()) != 0:
            raise ValueError(_library.error())
        # It asks again where it gets none, and then raises its own error.
        _for_pools = torch.cuda.memory.CUDAPluggableAllocator(_library.path(), "flatout_devmem_alloc", "flatout_devmem_free")
    return torch.cuda.MemPool(_for_pools.allocator())


def _torch_with_cuda():
    import torch

    version = torch.__version__
    if getattr(torch.version, "hip", None):
        raise RuntimeError("torch %s is built for ROCm; Flatout's pools are for CUDA" % version)
    if torch.version.cuda is None:
        raise RuntimeError("torch %s is built without CUDA: there is no device memory to manage" % version)
    if not hasattr(torch.cuda.memory, "CUDAPluggableAllocator") or not hasattr(torch.cuda.memory, "change_current_allocator"):
        raise RuntimeError("torch %s cannot change its allocator: 2.0 can" % version)
    try:
        ctypes.CDLL("libcuda.so.1")  # CUDA itself is not begun here: processes may still be forked
    except OSError:
        raise RuntimeError("there is no NVIDIA driver: libcuda.so.1 cannot be loaded") from None
    return torch


def _limits_text(limits):
    """As flatout_devmem_configure() reads them."""
    if limits is None:
        return ""
    if isinstance(limits, dict):
        wrong = [device for device in limits if isinstance(device, bool) or not isinstance(device, int)]
        if wrong:
            raise ValueError("limits: %r is no number of a device" % (wrong[0],))
        return ",".join("%d=%s" % (device, _limits_text(value)) for device, value in limits.items())
    if isinstance(limits, (list, tuple)):
        if not limits:
            raise ValueError("limits: an empty list makes no logical device")
        return "+".join(_limits_text(value) for value in limits)
    if isinstance(limits, bool) or not isinstance(limits, (str, int, float)):
        raise ValueError("limits: %r is neither a size nor a fraction" % (limits,))
    return str(limits)


def _number(device):
    """Of a device as torch names it: None, 1, "cuda:1", torch.device("cuda", 1)."""
    if isinstance(device, int):
        return device
    torch = sys.modules.get("torch")
    if torch is None or (device is None and not torch.cuda.is_initialized()):
        return 0
    return torch.cuda._utils._get_device_index(device, optional=True)


def _give_statistics(torch):
    """torch.cuda.memory_allocated() and the like, which the pluggable allocator refuses to answer, tell of our pools."""

    def one(current, peak, total, freed):
        none = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
        return {"all": {"current": current, "peak": peak, "allocated": total, "freed": freed}, "small_pool": none, "large_pool": none}

    def memory_stats(device):
        pools = [stats(device, i) for i in range(_library.library().flatout_devmem_pools(device))]

        def total(name):
            return sum(pool[name] for pool in pools)

        blocks = one(total("blocks"), total("blocks"), total("allocations"), total("frees"))
        live = one(total("live"), total("peak_live"), total("allocated_total"), total("freed_total"))
        held = one(total("reserved"), total("peak_reserved"), total("reserved"), 0)
        nothing = one(0, 0, 0, 0)
        return {"allocation": blocks, "segment": nothing, "active": blocks, "inactive_split": nothing, "allocated_bytes": live,
                "reserved_bytes": held, "active_bytes": live, "requested_bytes": live, "inactive_split_bytes": nothing,
                "oversize_allocations": nothing["all"], "oversize_segments": nothing["all"], "num_ooms": total("refused"),
                "num_alloc_retries": 0, "num_sync_all_streams": 0, "num_device_alloc": 0, "num_device_free": 0, "max_split_size": -1}

    def reset_peaks(device):
        for i in range(_library.library().flatout_devmem_pools(device)):
            _library.library().flatout_devmem_reset_peaks(_library.library().flatout_devmem_pool_of(device, i))

    def memory_snapshot(*_):
        raise RuntimeError("memory comes from Flatout's pools: flatout.devmem.snapshot(path) has their history")

    for name, function in (("_cuda_memoryStats", memory_stats), ("_cuda_resetPeakMemoryStats", reset_peaks),
                           ("_cuda_resetAccumulatedMemoryStats", lambda device: None), ("_cuda_memorySnapshot", memory_snapshot)):
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)
