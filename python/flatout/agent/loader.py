"""torch.utils.data: the training loop's wait for a batch, and what workers do to make one."""
import sys

from . import core, keeps
from .core import (COLLATE, EPOCH, FETCH, HANDOVER, INPUT_WAIT, LATE, LOADER_START, SAMPLE, WORKER,
                   emit, flush, get_ident, mark, note, now, state)

_facts = {}  # id(iterator) -> facts of its loader, for the few latest
_epochs = [0]


def install(module):
    from torch.utils.data import dataloader
    from torch.utils.data._utils import worker

    from . import training

    if module.__name__ != "torch":  # torchdata: its loader and worker loop are its own
        core.replace(module.StatefulDataLoader, "__iter__", lambda f: _iter(f, sys.modules["torch"]))
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, dataloader._BaseDataLoaderIter):
                if cls.__module__ == module.__name__ and "__next__" in vars(cls):
                    core.replace(cls, "__next__", _next)
        return
    core.replace(dataloader.DataLoader, "__iter__", lambda f: _iter(f, module))
    core.replace(dataloader._BaseDataLoaderIter, "__next__", _next)
    core.replace(worker, "_worker_loop", _worker_loop)
    create = getattr(dataloader._DatasetKind, "create_fetcher", None)
    if create is not None:
        dataloader._DatasetKind.create_fetcher = staticmethod(_create_fetcher(create))
    training.each_while(_send_facts)


def _next(next_):
    def __next__(self):
        state.iterator = id(self)
        state.loader_thread = get_ident()
        begin = now()
        try:
            batch = next_(self)
        except StopIteration:
            end = now()
            _epochs[0] += 1
            note((INPUT_WAIT, get_ident(), begin, end, 0, 0, now()))
            note((EPOCH, get_ident(), end, end, _epochs[0], 0, end))
            flush()
            raise
        finally:
            state.loader_thread = 0
        end = now()
        note((INPUT_WAIT, get_ident(), begin, end, 0, 0, now()))
        if end - state.flushed > LATE:
            flush()
        return batch

    return __next__


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
    return facts


def _send_facts(torch):
    """Facts of the loader that feeds the steps: a validation loader never gets here."""
    for name, value in _facts.pop(state.iterator, {}).items():
        core.info("loader." + name, value)


# ---- in workers, and in the loop itself without workers ----


class _TimedDataset:
    """Stands for the dataset inside a fetcher only: nobody else ever sees it."""

    def __init__(self, dataset):
        self._dataset = dataset
        self._clear()

    def _clear(self):
        self._count = self._sum = self._most = self._begin = 0
        self._index = -1

    def __getitem__(self, index):
        begin = now()
        sample = self._dataset[index]
        took = now() - begin
        self._count += 1
        self._sum += took
        if took > self._most:
            self._most, self._begin, self._index = took, begin, index
        return sample

    def __getattr__(self, name):  # __getitems__ and whatever else a fetcher may ask for
        return getattr(self.__dict__["_dataset"], name)


class _TimedIterator(_TimedDataset):
    """The same for an IterableDataset's iterator."""

    def __iter__(self):
        return self

    def __next__(self):
        begin = now()
        sample = next(self._dataset)
        took = now() - begin
        self._count += 1
        self._sum += took
        if took > self._most:
            self._most, self._begin = took, begin
        return sample


def _create_fetcher(create):
    def create_fetcher(*args, **kwargs):
        fetcher = create(*args, **kwargs)
        _hook_fetcher(fetcher)
        return fetcher

    return create_fetcher


@core.guarded
def _hook_fetcher(fetcher):
    """Puts our clocks into one fetcher, as attributes of this very object."""
    if hasattr(fetcher, "dataset_iter"):
        samples = fetcher.dataset_iter = _TimedIterator(fetcher.dataset_iter)
    else:
        samples = fetcher.dataset = _TimedDataset(fetcher.dataset)
    fetcher.collate_fn = _collate(fetcher.collate_fn)
    fetch = fetcher.fetch
    batches = [0]

    def timed_fetch(index):
        samples._clear()
        begin = now()
        try:
            batch = fetch(index)
        except Exception as error:
            if state.is_worker and not isinstance(error, StopIteration):
                _report(error)
            raise
        end = now()
        number = _worker.batch if state.is_worker else batches[0]
        batches[0] += 1
        slowest = samples._index
        try:
            count = samples._count or len(index)
        except TypeError:
            count = 1
        if samples._most:
            note((SAMPLE, get_ident(), samples._begin, samples._begin + samples._most,
                  slowest if type(slowest) is int else -1, samples._sum,
                  samples._begin + samples._most))
        note((FETCH, get_ident(), begin, end, count, number, now()))
        if state.is_worker:
            keeps.fetched()
        return batch

    fetcher.fetch = timed_fetch
    keeps.fetcher_made(fetcher)


def _collate(collate):
    def timed_collate(samples):
        begin = now()
        batch = collate(samples)
        end = now()
        note((COLLATE, get_ident(), begin, end, _bytes_of(batch), 0, now()))
        return batch

    return timed_collate


def _bytes_of(batch):
    """Bytes of the tensors and arrays right inside a batch, where that is cheap to say."""
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    elif not isinstance(batch, (list, tuple)):
        batch = (batch,)
    total = 0
    for part in batch[:16]:
        size = getattr(part, "nbytes", 0)
        total += size if type(size) is int else 0
    return total


class _worker:
    """What this process is as a worker."""

    batch = -1  # index of the batch that was asked for last
    pickling = 0  # when the feeder thread began with the message that it sends next
    sending = -1  # index of the batch in that message


def _worker_loop(loop):
    def worker_loop(dataset_kind, dataset, index_queue, data_queue, *args, **kwargs):
        _in_worker(index_queue, data_queue, args)
        return loop(dataset_kind, dataset, index_queue, data_queue, *args, **kwargs)

    return worker_loop


@core.guarded
def _in_worker(index_queue, data_queue, args):
    state.is_worker = True
    begin = now()
    number = args[6] if len(args) > 6 and type(args[6]) is int else -1
    mark(WORKER, 0, begin, begin, number, 0)
    get = index_queue.get

    def timed_get(*positional, **named):
        request = get(*positional, **named)
        if type(request) is tuple and request and type(request[0]) is int:
            _worker.batch = request[0]
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
        note((HANDOVER, get_ident(), _worker.pickling, now(), len(message), _worker.sending, now()))
        flush()
        return result

    queues._ForkingPickler = TimedPickler
    data_queue._send_bytes = timed_send


@core.guarded
def _report(error):
    from . import failures

    failures.report(type(error), error, error.__traceback__, "exception.")
