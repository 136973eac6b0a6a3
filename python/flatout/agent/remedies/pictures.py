"""flatout.feed in the place of a DataLoader over pictures in folders, while the job runs.

A DataLoader over a torchvision ImageFolder (or DatasetFolder of pictures, or a Subset of one) whose transforms, sampler and
collate function are all known ones gives its batches from flatout.feed's threads: the same files, labels, shapes, types and
number of batches, pixels as Pillow gives them, other random draws. A loader of which anything is not known stays as it is.
"""
import json
import os
import sys
import tempfile

_FORMATS = (".jpg", ".jpeg", ".png", ".webp")


class NotKnown(Exception):
    """Why a loader stays as it is."""


def install(dataloader, applied):
    """Hooks torch.utils.data.dataloader."""

    class FeedIter(dataloader._BaseDataLoaderIter):
        """An epoch from a flatout.feed Loader, with the face of PyTorch's own iterators."""

        def __init__(self, loader, feed):
            super().__init__(loader)
            self._feed = feed
            self._start(loader)

        def _start(self, loader):
            sampler = loader.sampler
            if hasattr(sampler, "set_epoch"):
                self._feed.set_epoch(sampler.epoch)
            self._batches = iter(self._feed)

        def _reset(self, loader, first_iter=False):
            super()._reset(loader, first_iter)
            self._start(loader)

        def _next_data(self):
            batch = list(next(self._batches))
            if self._pin_memory:
                batch = [tensor.pin_memory() for tensor in batch]
            return batch

    original = dataloader.DataLoader._get_iterator

    def _get_iterator(self):
        try:
            feed = _feed_for(self, dataloader)
        except NotKnown:
            return original(self)
        applied("feed")
        return FeedIter(self, feed)

    dataloader.DataLoader._get_iterator = _get_iterator


def _feed_for(loader, dataloader):
    """The flatout.feed Loader that does what `loader` does; the one of the last epoch where that is still so."""
    plan = _plan(loader, dataloader)
    known = getattr(loader, "_flatout_feed", None)
    if known is not None and known[0] == plan:
        return known[1]
    feed = _open(plan)
    if len(feed) != len(loader):
        feed.close()
        raise NotKnown("the number of batches")
    object.__setattr__(loader, "_flatout_feed", (plan, feed))
    return feed


def _plan(loader, dataloader):
    """What the loader does, as plain values; NotKnown names what hinders."""
    torch = sys.modules["torch"]
    data = torch.utils.data
    if loader._dataset_kind != dataloader._DatasetKind.Map or type(loader.batch_sampler) is not data.BatchSampler:
        raise NotKnown("batches that are made in another way")
    if loader.collate_fn is not data.default_collate:
        raise NotKnown("the collate function")
    rank, ranks, shuffle = _order(loader.sampler, loader.dataset, data)
    samples, transform = _samples(loader.dataset, data)
    try:
        options = _feed().options_from_transforms(transform)
    except (AttributeError, TypeError, ValueError) as error:
        raise NotKnown(str(error)) from error
    if options.get("dtype") == "u8":
        raise NotKnown("pictures that are not made tensors of floats")
    return {"samples": samples, "options": options, "batch": loader.batch_size, "drop_last": loader.drop_last,
            "shuffle": shuffle, "seed": torch.initial_seed() % 2**63, "rank": rank, "ranks": ranks}


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


def _feed():
    """flatout.feed of this Flatout, under a name of our own: the job may have another."""
    import importlib
    import importlib.util

    package = sys.modules.get("_flatout")
    if package is None:
        folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        spec = importlib.util.spec_from_file_location("_flatout", os.path.join(folder, "__init__.py"),
                                                      submodule_search_locations=[folder])
        package = importlib.util.module_from_spec(spec)
        sys.modules["_flatout"] = package
        spec.loader.exec_module(package)
    return importlib.import_module("_flatout.feed")


def _open(plan):
    feed = _feed()
    handle, path = tempfile.mkstemp(suffix=".json", prefix="flatout-samples-")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(plan["samples"], file)
        return feed.Loader(path, plan["batch"], shuffle=plan["shuffle"], seed=plan["seed"], drop_last=plan["drop_last"], rank=plan["rank"],
                           ranks=plan["ranks"], on_bad="lenient", form="torch", **plan["options"])
    except (ImportError, OSError, ValueError, feed.FeedError) as error:
        raise NotKnown(str(error)) from error
    finally:
        os.unlink(path)
