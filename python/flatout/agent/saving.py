"""Checkpoints: torch.save and safetensors."""
import os

from . import core
from .core import CHECKPOINT, emit, now


def install(module):
    if module.__name__ == "torch":
        core.replace(module, "save", lambda f: _save(f, 1, "f", core.intern("torch.save")))
    else:
        name = core.intern("safetensors.save_file")
        core.replace(module, "save_file", lambda f: _save(f, 1, "filename", name))


def _save(save, position, keyword, name):
    def hook(*args, **kwargs):
        if kwargs.get("_use_new_zipfile_serialization") is False:  # how a storage pickles itself
            return save(*args, **kwargs)
        begin = now()
        result = save(*args, **kwargs)
        end = now()
        target = args[position] if len(args) > position else kwargs.get(keyword)
        emit(CHECKPOINT, name, begin, end, _size(target), 0)
        return result

    return hook


def _size(target):
    """Bytes that were written, 0 where that is not known."""
    try:
        if isinstance(target, (str, os.PathLike)):
            return os.path.getsize(target)
        if hasattr(target, "getbuffer"):  # io.BytesIO
            return target.tell()
        # A file's place may be known only once a thread has written it (remedies/background.py).
        return os.fstat(target.fileno()).st_size
    except Exception:
        return 0
