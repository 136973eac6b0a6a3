"""torch.utils.data: the training loop's wait for a batch, and what workers do to make one."""
import sys

from . import core, keeps
from .core import HANDOVER, INPUT_WAIT, LOADER_START, WORKER, emit, mark, note, now, state

_facts = {}  # id(iterator) -> facts of its loader, for the few latest


def install(module):
    from torch.utils.data import dataloader
    from torch.utils.data._utils import worker

    from . import training

    if module.__name__ != "torch":  # torchdata: its loader and worker loop are its own
        core.replace(module.StatefulDataLoader, "__iter__", lambda f: _iter(f, sys.modules["torch"]))
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, dataloader._BaseDataLoaderIter):
                if cls.__module__ == module.__name__ and "__next__" in vars(cls):
                    core.replace(cls, "__next__", lambda f: core.calls.next(INPUT_WAIT, f))
        return
    core.replace(dataloader.DataLoader, "__iter__", lambda f: _iter(f, module))
    core.replace(dataloader._BaseDataLoaderIter, "__next__", lambda f: core.calls.next(INPUT_WAIT, f))
    core.replace(worker, "_worker_loop", _worker_loop)
    create = getattr(dataloader._DatasetKind, "create_fetcher", None)
    if create is not None:
        dataloader._DatasetKind.create_fetcher = staticmethod(_create_fetcher(create))
    training.each_while(_send_facts)


def _iter(iter_, torch):
    def __iter__(self):
        kept = getattr(self, "_iterator", None)
        begin = now()
        iterator = iter_(self)
        end = now()
        _started(torch, self, iterator, kept is None, begin, end)
        return iterator

    return __iter__


@core.guarded
def _started(torch, loader, iterator, is_new, begin, end):
    emit(LOADER_START, 0, begin, end, loader.num_workers if is_new else 0, 0)
    if len(_facts) > 16:
        _facts.clear()
    _facts[id(iterator)] = _describe(torch, loader)


def _describe(torch, loader):
    """The loader's settings, as strings."""
    facts = {}
    for name in ("num_workers", "batch_size", "prefetch_factor", "persistent_workers", "pin_memory",
                 "in_order", "drop_last"):
        facts[name] = getattr(loader, name, None)
    if facts["batch_size"] is None:
        facts["batch_size"] = getattr(loader.batch_sampler, "batch_size", None)
    if hasattr(type(loader.dataset), "__len__"):
        try:
            facts["dataset_size"] = len(loader.dataset)
        except Exception:
            pass
    context = loader.multiprocessing_context or torch.multiprocessing
    facts["multiprocessing_context"] = context.get_start_method(allow_none=True)
    facts["sharing_strategy"] = torch.multiprocessing.get_sharing_strategy()
    facts["dataset_class"] = type(loader.dataset).__name__
    facts["dataset_items"] = getattr(getattr(type(_whole(loader.dataset)), "__getitem__", None), "__module__", None)
    return facts


def _whole(dataset):
    """The data set that Subsets are parts of."""
    while type(dataset).__module__ == "torch.utils.data.dataset" and hasattr(dataset, "indices"):
        dataset = dataset.dataset
    return dataset


def _send_facts(torch):
    """Facts of the loader that feeds the steps: a validation loader never gets here."""
    for name, value in _facts.pop(state.iterator, {}).items():
        core.info("loader." + name, value)


# ---- in workers, and in the loop itself without workers ----


def _create_fetcher(create):
    def create_fetcher(*args, **kwargs):
        fetcher = create(*args, **kwargs)
        _hook_fetcher(fetcher)
        return fetcher

    return create_fetcher


@core.guarded
def _hook_fetcher(fetcher):
    """Puts our clocks into one fetcher, as attributes of this very object."""
    fetcher._flatout_dataset, fetcher._flatout_iterator = fetcher.dataset, None
    fetcher._flatout_collate = fetcher.collate_fn
    if hasattr(fetcher, "dataset_iter"):
        fetcher._flatout_iterator = fetcher.dataset_iter
        samples = fetcher.dataset_iter = core.calls.sample_iterator(fetcher.dataset_iter)
    else:
        samples = fetcher.dataset = core.calls.samples(fetcher.dataset)
    fetcher.collate_fn = core.calls.collate(fetcher.collate_fn)
    fetcher.fetch = _fetch(samples, fetcher.fetch)
    keeps.fetcher_made(fetcher)


def _fetch(samples, fetch):
    call = core.calls.fetch((samples, fetch))
    if not state.is_worker:
        return call

    def fetch_in_worker(index):
        try:
            batch = call(index)
        except Exception as error:
            if not isinstance(error, StopIteration):
                _report(error)
            raise
        keeps.fetched()
        return batch

    return fetch_in_worker


class _worker:
    """What this process is as a worker."""

    pickling = 0  # when the feeder thread began with the message that it sends next
    sending = -1  # index of the batch in that message


def _worker_loop(loop):
    def worker_loop(dataset_kind, dataset, index_queue, data_queue, *args, **kwargs):
        _in_worker(index_queue, data_queue, args)
        return loop(dataset_kind, dataset, index_queue, data_queue, *args, **kwargs)

    return worker_loop


@core.guarded
def _in_worker(index_queue, data_queue, args):
    state.is_worker = 1
    begin = now()
    number = args[6] if len(args) > 6 and type(args[6]) is int else -1
    mark(WORKER, 0, begin, begin, number, 0)
    get = index_queue.get

    def timed_get(*positional, **named):
        request = get(*positional, **named)
        if type(request) is tuple and request and type(request[0]) is int:
            state.batch = request[0]
        return request

    index_queue.get = timed_get
    _hook_handover(data_queue)


def _hook_handover(data_queue):
    """Times what the queue's feeder thread does to a batch: pickling, shared memory, the pipe."""
    from multiprocessing import queues

    pickler = queues._ForkingPickler

    class TimedPickler(pickler):
        @classmethod
        def dumps(cls, obj, *args, **kwargs):
            _worker.sending = obj[0] if type(obj) is tuple and type(obj[0]) is int else -1
            _worker.pickling = now()
            return pickler.dumps(obj, *args, **kwargs)

    send = data_queue._send_bytes

    def timed_send(message, *args, **kwargs):
        result = send(message, *args, **kwargs)
        note(HANDOVER, _worker.pickling, now(), len(message), _worker.sending)
        return result

    queues._ForkingPickler = TimedPickler
    data_queue._send_bytes = timed_send


@core.guarded
def _report(error):
    from . import failures

    failures.report(type(error), error, error.__traceback__, "exception.")
