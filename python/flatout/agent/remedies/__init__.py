"""Remedies that are applied inside the job, as FLATOUT_REMEDIES asks for: "num_workers=2,gc".

Loaded by inject/sitecustomize.py at the start of each Python process of the job, under the name
`_flatout_remedies`, before the job's first line. The names are those of src/remedy/catalogue.cpp.
None changes what the job computes beyond what the catalogue says of it; whatever fails leaves the job
as it is. Standard library only, Python 3.8+; knows nothing of the rest of the agent.
"""
import functools
import os
import sys

_applied = set()


def start(watch, wanted):
    """`wanted`: the value of FLATOUT_REMEDIES. watch.tell(name, function): once `name` is imported."""
    values = {}
    for item in wanted.split(","):
        name, _, value = item.partition("=")
        values[name.strip()] = value.strip()
    loader = {k: values[k] for k in ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "in_order",
                                     "multiprocessing_context", "batch_size") if k in values}
    if loader:
        watch.tell("torch.utils.data.dataloader", lambda module: _loader(module, loader))
    if "feed" in values:
        watch.tell("torch.utils.data.dataloader", _pictures)
    for name in ("channels_last", "fused_norm", "fused_optimizer", "cudnn_benchmark", "tf32", "non_blocking"):
        if name in values:
            watch.tell("torch", functools.partial(_model, name))
    if "threads" in values:
        watch.tell("torch", lambda torch: _threads(torch, int(values["threads"])))
    if "affinity" in values:
        _affinity()
    if "gc" in values:
        _collector()
    if "keep_cache" in values:
        _keep_cache()
    if "warm_cache" in values:
        from . import warm

        warm.install(applied)
    if "devmem" in values and not os.environ.get("FLATOUT_DEVMEM"):  # run --devmem says otherwise
        watch.tell("torch", lambda torch: _device_memory(values["devmem"]))
    if "keep_decoded" in values or "scaled_decode" in values:
        _decoding(watch, "scaled_decode" in values, "keep_decoded" in values)
    if "background_save" in values:
        from . import background

        background.save(watch, applied)
    if "background_log" in values:
        from . import background

        background.log(applied)


def applied(name):
    """A remedy took effect: a trial has to know whether it tried anything."""
    if name in _applied:
        return
    _applied.add(name)
    folder = os.environ.get("FLATOUT_TRIAL")
    if folder:
        try:
            with open(os.path.join(folder, "applied"), "a") as file:
                file.write(name + "\n")
        except OSError:
            pass


def package(name):
    """flatout.NAME of this Flatout, under a name of our own: the job may have another."""
    import importlib
    import importlib.util

    if "_flatout" not in sys.modules:
        folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        spec = importlib.util.spec_from_file_location("_flatout", os.path.join(folder, "__init__.py"),
                                                      submodule_search_locations=[folder])
        sys.modules["_flatout"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["_flatout"])
    return importlib.import_module("_flatout." + name)


def _replace(owner, name, make):
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, functools.wraps(original)(make(original)))


# ---- torch.utils.data ----


def _loader(module, wanted):
    """Other settings for loaders of map-style data sets: an IterableDataset has to be made for its workers."""
    import inspect

    signature = inspect.signature(module.DataLoader.__init__)
    wanted = {name: value for name, value in wanted.items() if name in signature.parameters}

    def make(init):
        def __init__(*args, **kwargs):
            try:
                given = signature.bind(*args, **kwargs).arguments
                if not isinstance(given.get("dataset"), module.IterableDataset):
                    for name in _loader_changes(given, wanted):
                        applied(name)
                    args, kwargs = (given.pop("self"), given.pop("dataset")), given
            except TypeError:
                pass  # the job's own mistake: PyTorch says it better
            return init(*args, **kwargs)

        return __init__

    _replace(module.DataLoader, "__init__", make)


def _loader_changes(given, wanted):
    """Changes the arguments `given`; returns the names of those that are different now."""
    changed = []
    workers = given.get("num_workers", 0)
    if "num_workers" in wanted and workers < int(wanted["num_workers"]):
        given["num_workers"] = workers = int(wanted["num_workers"])
        changed.append("num_workers")
    if "prefetch_factor" in wanted and workers and (given.get("prefetch_factor") or 2) < int(wanted["prefetch_factor"]):
        given["prefetch_factor"] = int(wanted["prefetch_factor"])
        changed.append("prefetch_factor")
    if "persistent_workers" in wanted and workers and not given.get("persistent_workers"):
        given["persistent_workers"] = True
        changed.append("persistent_workers")
    if "in_order" in wanted and workers and given.get("in_order", True):
        given["in_order"] = False
        changed.append("in_order")
    if "pin_memory" in wanted and not given.get("pin_memory"):
        given["pin_memory"] = True
        changed.append("pin_memory")
    method = wanted.get("multiprocessing_context")
    if method and workers and _start_method(given) not in (None, method):
        given["multiprocessing_context"] = method
        changed.append("multiprocessing_context")
    if "batch_size" in wanted and (given.get("batch_size", 1) or 0) > 0 and given.get("batch_sampler") is None:
        given["batch_size"] = given.get("batch_size", 1) * int(wanted["batch_size"])
        changed.append("batch_size")
    return changed


def _start_method(given):
    """How the loader's workers would be started; None where that is not told."""
    import multiprocessing

    context = given.get("multiprocessing_context")
    if context is None:
        return multiprocessing.get_start_method()
    return context if isinstance(context, str) else getattr(context, "_name", None)


def _model(name, torch):
    from . import model

    getattr(model, name)(torch, applied)


def _pictures(dataloader):
    from . import pictures

    pictures.install(dataloader, applied)


# ---- threads and cores ----


def _threads(torch, most):
    """No more intra-op threads than `most`; one in a loader's worker, as PyTorch itself sets there."""

    def make(set_num_threads):
        def limited(count):
            data = sys.modules.get("torch.utils.data")
            limit = 1 if data is not None and data.get_worker_info() is not None else most
            if count > limit:
                applied("threads")
            set_num_threads(min(count, limit))

        return limited

    if torch.get_num_threads() > most:
        torch.set_num_threads(most)
        applied("threads")
    _replace(torch, "set_num_threads", make)


def _affinity():
    """All cores that are online, whatever mask was inherited or is set for the process itself."""
    everything = range(os.cpu_count() or 1)
    set_affinity = os.sched_setaffinity

    def wide(pid, mask):
        if pid in (0, os.getpid()):
            applied("affinity")
            return None
        return set_affinity(pid, mask)

    before = os.sched_getaffinity(0)
    set_affinity(0, everything)
    if os.sched_getaffinity(0) != before:
        applied("affinity")
    os.sched_setaffinity = functools.wraps(set_affinity)(wide)


# ---- the garbage collector ----

_LEAST_THRESHOLDS = (20000, 50, 50)
_COLLECT_PERIOD_S = 30


def _collector():
    """Thresholds of at least _LEAST_THRESHOLDS, what was there at the first full collection frozen, and the
    job's own calls of gc.collect() carried out at most every _COLLECT_PERIOD_S."""
    import gc
    from time import monotonic

    last = [monotonic()]
    set_threshold, collect = gc.set_threshold, gc.collect

    def higher(*thresholds):
        applied("gc")
        if thresholds and thresholds[0] == 0:
            return set_threshold(*thresholds)  # off
        return set_threshold(*map(max, thresholds, _LEAST_THRESHOLDS))

    def seldom(generation=2):
        if monotonic() - last[0] < _COLLECT_PERIOD_S:
            applied("gc")
            return 0
        last[0] = monotonic()
        return collect(generation)

    def freeze_once(phase, info):
        if phase == "stop" and info.get("generation") == 2 and "torch" in sys.modules:
            gc.callbacks.remove(freeze_once)
            gc.freeze()
            applied("gc")

    if gc.get_threshold()[0] != 0:
        higher(*gc.get_threshold())
    gc.set_threshold = functools.wraps(set_threshold)(higher)
    gc.collect = functools.wraps(collect)(seldom)
    gc.callbacks.append(freeze_once)


# ---- files ----


def _keep_cache():
    """posix_fadvise(DONTNEED) is left out: the next epoch reads the same files."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is None:
        return

    def keep(fd, offset, length, advice):
        if advice == os.POSIX_FADV_DONTNEED:
            applied("keep_cache")
            return None
        return advise(fd, offset, length, advice)

    os.posix_fadvise = functools.wraps(advise)(keep)


def _device_memory(policy):
    """Flatout's pools as PyTorch's allocator for a GPU's memory; where that cannot be, PyTorch's own stays."""
    try:
        package("devmem").install(policy)
    except (ImportError, OSError, RuntimeError, ValueError):
        return
    applied("devmem")


def _decoding(watch, scaled, keep):
    from . import decoded, jpeg

    store = decoded.install(watch, applied) if keep else None
    if scaled or store is not None:
        watch.tell("PIL.JpegImagePlugin", lambda plugin: jpeg.install(plugin, applied, scaled, store))
