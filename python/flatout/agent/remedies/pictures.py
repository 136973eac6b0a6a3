"""flatout.feed in the place of a DataLoader over pictures in folders, while the job runs.

A DataLoader over a torchvision ImageFolder (or DatasetFolder of pictures, or a Subset of one) whose transforms, sampler and
collate function are all known ones gives its batches from flatout.feed's threads: the same files, labels, shapes, types and
number of batches, pixels as Pillow gives them, other random draws. A loader of which anything is not known stays as it is.
"""
import json
import os
import sys
import tempfile
import weakref

from . import package

_FORMATS = (".jpg", ".jpeg", ".png", ".webp")


class NotKnown(Exception):
    """Why a loader stays as it is."""


class _Opened:
    """The feed that stands for a loader: one loop at a time, in the process whose threads it has. Pickled with the loader it is nothing."""

    def __init__(self, plan, feed):
        self.plan, self.feed, self.process = plan, feed, os.getpid()
        self.user = None  # a weak reference to the iterator that is not at its end

    def is_free(self):
        return self.process == os.getpid() and (self.user is None or self.user() is None)

    def __reduce__(self):
        return dict, ()


def install(dataloader, applied):
    """Hooks torch.utils.data.dataloader."""

    class FeedIter(dataloader._BaseDataLoaderIter):
        """An epoch from a flatout.feed Loader, with the face of PyTorch's own iterators."""

        def __init__(self, loader, opened):
            super().__init__(loader)
            self._opened = opened
            self._start(loader)

        def _start(self, loader):
            self._opened.user = weakref.ref(self)
            sampler = loader.sampler
            if hasattr(sampler, "set_epoch"):
                self._opened.feed.set_epoch(sampler.epoch)
            self._batches = iter(self._opened.feed)

        def _reset(self, loader, first_iter=False):
            super()._reset(loader, first_iter)
            self._start(loader)

        def _next_data(self):
            try:
                batch = list(next(self._batches))
            except StopIteration:
                self._opened.user = None
                raise
            if self._pin_memory:
                batch = [tensor if tensor.is_pinned() else tensor.pin_memory() for tensor in batch]
            return batch

    original = dataloader.DataLoader._get_iterator

    def _get_iterator(self):
        try:
            opened = _feed_for(self, dataloader)
        except Exception:  # NotKnown, or a PyTorch or a data set of which we know less than we think
            return original(self)
        applied("feed")
        return FeedIter(self, opened)

    dataloader.DataLoader._get_iterator = _get_iterator


def _feed_for(loader, dataloader):
    """What does as `loader` does, opened; that of the last epoch where it still does."""
    plan = _plan(loader, dataloader)
    known = getattr(loader, "_flatout_feed", None)
    if isinstance(known, _Opened):
        if not known.is_free():
            raise NotKnown("it is in use")
        if known.plan == plan:
            return known
    feed = _open(plan)
    if len(feed) != len(loader):
        feed.close()
        raise NotKnown("the number of batches")
    opened = _Opened(plan, feed)
    object.__setattr__(loader, "_flatout_feed", opened)
    return opened


def _plan(loader, dataloader):
    """What the loader does, as plain values; NotKnown names what hinders."""
    torch = sys.modules["torch"]
    data = torch.utils.data
    if loader._dataset_kind != dataloader._DatasetKind.Map or type(loader.batch_sampler) is not data.BatchSampler:
        raise NotKnown("batches that are made in another way")
    if loader.batch_size is None or loader.batch_sampler.sampler is not loader.sampler:
        raise NotKnown("a batch sampler of the job's own")
    if loader.collate_fn is not data.default_collate:
        raise NotKnown("the collate function")
    rank, ranks, shuffle = _order(loader.sampler, loader.dataset, data)
    samples, transform = _samples(loader.dataset, data)
    try:
        options = package("feed").options_from_transforms(transform)
    except (AttributeError, TypeError, ValueError) as error:
        raise NotKnown(str(error)) from error
    if options.get("dtype") == "u8":
        raise NotKnown("pictures that are not made tensors of floats")
    return {"samples": samples, "options": options, "batch": loader.batch_size, "drop_last": loader.drop_last,
            "shuffle": shuffle, "seed": torch.initial_seed() % 2**63, "rank": rank, "ranks": ranks,
            "pin_memory": bool(loader.pin_memory) and torch.cuda.is_available()}


def _order(sampler, dataset, data):
    """rank, ranks, shuffled: of a sampler that gives each sample once."""
    from torch.utils.data.distributed import DistributedSampler

    kind = type(sampler)
    if kind is DistributedSampler and sampler.dataset is dataset:
        return sampler.rank, sampler.num_replicas, sampler.shuffle
    if kind not in (data.RandomSampler, data.SequentialSampler) or sampler.data_source is not dataset:
        raise NotKnown("the sampler")
    if kind is data.RandomSampler and (sampler.replacement or sampler.num_samples != len(dataset)):
        raise NotKnown("a sampler that repeats samples")
    return 0, 1, kind is data.RandomSampler


def _samples(dataset, data):
    """[(file, label)], transform: of a folder of pictures as torchvision reads it, whole or in part."""
    if type(dataset) is data.Subset:
        samples, transform = _samples(dataset.dataset, data)
        return [samples[i] for i in dataset.indices], transform
    folder = sys.modules.get("torchvision.datasets.folder")
    if folder is None or not isinstance(dataset, folder.DatasetFolder):
        raise NotKnown("the data set")
    if type(dataset).__getitem__ is not folder.DatasetFolder.__getitem__ or hasattr(dataset, "__getitems__"):
        raise NotKnown("how the data set reads its samples")
    from torchvision import get_image_backend

    reads = dataset.loader is folder.pil_loader or (dataset.loader is folder.default_loader and get_image_backend() == "PIL")
    if not reads or dataset.target_transform is not None:
        raise NotKnown("how the data set reads its samples")
    samples = [(os.path.abspath(path), label) for path, label in dataset.samples]
    if not all(type(label) is int and path.lower().endswith(_FORMATS) for path, label in samples):
        raise NotKnown("files that are no JPEG, PNG or WebP")
    return samples, dataset.transform


def _open(plan):
    feed = package("feed")
    handle, path = tempfile.mkstemp(suffix=".json", prefix="flatout-samples-")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(plan["samples"], file)
        return feed.Loader(path, plan["batch"], shuffle=plan["shuffle"], seed=plan["seed"], drop_last=plan["drop_last"], rank=plan["rank"],
                           ranks=plan["ranks"], on_bad="lenient", form="torch", pin_memory=plan["pin_memory"], **plan["options"])
    except (ImportError, OSError, ValueError, feed.FeedError) as error:
        raise NotKnown(str(error)) from error
    finally:
        os.unlink(path)
