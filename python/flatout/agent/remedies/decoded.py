"""Pictures that Pillow decoded, kept in memory: each JPEG file is decoded once.

The job's processes share one memory file, also those that are forked or started later: slots of keys, and the pixels behind
them. A file is known by its identity where it was changed a while ago, anything else by its content. Nothing is ever taken
out; what does not fit into free memory, or into what the limits of the job's control groups leave, is decoded as ever. The
pixels are those that Pillow gave, to the last bit.
"""
import fcntl
import functools
import hashlib
import io
import mmap
import os
import stat
import struct
import threading
import time
import zlib

from .warm import room

_KEY = "FLATOUT_DECODED"  # the memory file, for processes that are started by the job
_NAME = "flatout-decoded"
_SLOTS = 1 << 17
_PROBES = 32
_SLOT = struct.Struct("<16sQQL")  # key, where the pixels begin, bytes, checksum of both
_SLOT_BYTES = 64
_TAIL = struct.Struct("<Q")  # at 0: where the next pixels go
_DATA = mmap.PAGESIZE + _SLOTS * _SLOT_BYTES
_LOOK_AGAIN = 64 << 20  # bytes after which the room is asked for again
_SETTLED_S = 2  # a file that was changed later may change again without another time


class Store:
    """Pixels by key, in a memory file that several processes have mapped. get() takes no lock."""

    def __init__(self, fd, room):
        """`fd`: a memory file of make(), kept. `room`: gives the bytes that are free."""
        self._fd, self._room = fd, room
        info = os.fstat(fd)
        self._file = (info.st_dev, info.st_ino)
        self._map = mmap.mmap(fd, info.st_size)
        self._since = _LOOK_AGAIN
        self._full = False
        self.forked()

    @staticmethod
    def make(capacity):
        """A memory file with room for `capacity` bytes of pixels; takes none before they are there."""
        fd = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        os.ftruncate(fd, _DATA + capacity)
        os.pwrite(fd, _TAIL.pack(_DATA), 0)
        return fd

    def forked(self):
        self._lock = threading.Lock()

    def get(self, key):
        """The pixels as a memoryview, or None."""
        for at in self._slots(key):
            known, begin, size, check = _SLOT.unpack_from(self._map, at)
            if known == key:
                return memoryview(self._map)[begin : begin + size] if check == _check(begin, size) else None
            if not any(known):
                return None
        return None

    def put(self, key, pixels):
        """Keeps `pixels`, if there is room."""
        if self._full or not self._is_open():
            return
        with self._lock, _FileLock(self._fd):
            slot = self._free_slot(key)
            begin = _TAIL.unpack_from(self._map, 0)[0]
            if slot is None or not self._fits(begin, len(pixels)):
                return
            _TAIL.pack_into(self._map, 0, begin + len(pixels))
            _SLOT.pack_into(self._map, slot, key, begin, len(pixels), ~_check(begin, len(pixels)) & 0xFFFFFFFF)
        self._map[begin : begin + len(pixels)] = pixels
        with self._lock, _FileLock(self._fd):  # a system call: who sees the slot sees the pixels
            _SLOT.pack_into(self._map, slot, key, begin, len(pixels), _check(begin, len(pixels)))

    def _slots(self, key):
        first = int.from_bytes(key[:8], "little")
        return (mmap.PAGESIZE + (first + i) % _SLOTS * _SLOT_BYTES for i in range(_PROBES))

    def _free_slot(self, key):
        """None where another process was first, or too many have their place there."""
        for at in self._slots(key):
            known = self._map[at : at + len(key)]
            if known == key:
                return None
            if not any(known):
                return at
        return None

    def _fits(self, begin, size):
        self._since += size
        if self._since >= _LOOK_AGAIN:
            self._since = 0
            self._full = self._room() < _LOOK_AGAIN
        self._full = self._full or begin + size > len(self._map)
        return not self._full

    def _is_open(self):
        """The job may have closed our descriptor, and its number may be another file's by now."""
        try:
            info = os.fstat(self._fd)
        except OSError:
            return False
        return (info.st_dev, info.st_ino) == self._file


class _FileLock:
    """Between processes; within one, it excludes nobody."""

    def __init__(self, fd):
        self._fd = fd

    def __enter__(self):
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_):
        fcntl.lockf(self._fd, fcntl.LOCK_UN)


def _check(begin, size):
    return zlib.crc32(_SLOT.pack(b"", begin, size, 0))


def share(room):
    """The job's store: this process's first one, or that of the process which started it. None where there is no room."""
    path = os.environ.get(_KEY)
    if path:
        try:
            if os.readlink(path).startswith("/memfd:" + _NAME):
                return Store(os.open(path, os.O_RDWR | os.O_CLOEXEC), room)
        except OSError:
            pass  # that process is gone
    free = room()
    if free < _LOOK_AGAIN:
        return None
    fd = Store.make(free)
    os.environ[_KEY] = "/proc/%d/fd/%d" % (os.getpid(), fd)
    return Store(fd, room)


def key_of(stream, shape):
    """What the picture in `stream` decoded as `shape` is known by; None where it cannot be read twice."""
    digest = hashlib.blake2b(repr(shape).encode(), digest_size=16)
    identity = _identity(stream)
    if identity is not None:
        digest.update(identity)
        return digest.digest()
    try:
        at = stream.tell()
        stream.seek(0)
        digest.update(stream.read())
        stream.seek(at)
    except (OSError, ValueError, AttributeError):
        return None
    return digest.digest()


def _identity(stream):
    """Of an ordinary file whose content has settled."""
    if type(stream) is not io.BufferedReader or type(stream.raw) is not io.FileIO:
        return None
    info = os.fstat(stream.fileno())
    changed = max(info.st_ctime_ns, info.st_mtime_ns)
    if not stat.S_ISREG(info.st_mode) or time.time_ns() - changed < _SETTLED_S * 10**9:
        return None
    return struct.pack("<5Q", info.st_dev, info.st_ino, info.st_size, changed, info.st_mtime_ns & (2**64 - 1))


def install(watch, applied):
    """For this process and those it forks."""
    try:
        store = share(room)
    except (OSError, ValueError, AttributeError):
        return  # no memory files here, or no address space
    if store is None:
        return
    os.register_at_fork(after_in_child=store.forked)
    watch.tell("PIL.JpegImagePlugin", lambda plugin: _hook(plugin.JpegImageFile, store, applied))


def _hook(file_class, store, applied):
    from PIL import Image

    original = file_class.load

    def load(self):
        if not self.tile or type(self) is not file_class:
            return original(self)
        key = key_of(self.fp, (self.mode, self.size, self.tile, self.decoderconfig))
        pixels = store.get(key) if key is not None else None
        if pixels is None:
            result = original(self)
            if key is not None:
                store.put(key, self.tobytes())
            return result
        applied("keep_decoded")
        # What ImageFile.load() leaves behind.
        self.im = Image.frombytes(self.mode, self.size, pixels).im
        self.tile = []
        self.readonly = 0
        self.load_end()
        if getattr(self, "_exclusive_fp", False) and getattr(self, "_close_exclusive_fp_after_loading", True):
            self.fp.close()
        self.fp = None
        return Image.Image.load(self)

    file_class.load = functools.wraps(original)(load)
