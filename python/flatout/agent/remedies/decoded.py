"""Pictures that Pillow (jpeg.py) or OpenCV decoded, kept in memory: each is decoded once.

The job's processes share one memory file, also those that are forked or started later: slots of keys, and the pixels behind
them. A file is known by its identity where it was changed a while ago, anything else by its content. Nothing is ever taken
out; what does not fit into free memory, or into what the limits of the job's control groups leave, is decoded as ever. The
pixels are those that the decoder gave, to the last bit.
"""
import fcntl
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
        if self._tail() >= len(self._map) or not self._is_open():
            return
        with self._lock, _FileLock(self._fd):
            slot, begin = self._free_slot(key), self._tail()
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

    def _tail(self):
        return _TAIL.unpack_from(self._map, 0)[0]

    def _fits(self, begin, size):
        end = begin + size
        if (begin == _DATA or begin // _LOOK_AGAIN != end // _LOOK_AGAIN) and self._room() < _LOOK_AGAIN:
            _TAIL.pack_into(self._map, 0, len(self._map))  # for good, and for all processes
            return False
        return end <= len(self._map)

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


def key_of(what, how):
    """Of a picture that is `what`, bytes, decoded as `how` says."""
    return hashlib.blake2b(what, key=hashlib.blake2b(repr(how).encode()).digest(), digest_size=16).digest()


def key_of_stream(stream, how):
    """None where it cannot be read twice."""
    if type(stream) is io.BufferedReader and type(stream.raw) is io.FileIO:
        identity = _identity(os.fstat(stream.fileno()))
        if identity is not None:
            return key_of(identity, how)
    try:
        at = stream.tell()
        stream.seek(0)
        content = stream.read()
        stream.seek(at)
    except (OSError, ValueError, AttributeError):
        return None
    return key_of(content, how)


def _identity(info):
    """Of an ordinary file whose content has settled; else None."""
    changed = max(info.st_ctime_ns, info.st_mtime_ns)
    if not stat.S_ISREG(info.st_mode) or time.time_ns() - changed < _SETTLED_S * 10**9:
        return None
    return struct.pack("<5Q", info.st_dev, info.st_ino, info.st_size, changed, info.st_mtime_ns & (2**64 - 1))


def install(watch, applied):
    """The store, for this process and those it forks; None where there can be none."""
    try:
        store = share(room)
    except (OSError, ValueError, AttributeError):
        return None  # no memory files here, or no address space
    if store is not None:
        os.register_at_fork(after_in_child=store.forked)
        watch.tell("cv2", lambda cv2: _opencv(cv2, store, applied))
    return store


_SHAPE = struct.Struct("<B3L")  # dimensions and their sizes, before the pixels
_TYPES = ("uint8", "uint16", "float32")


def _opencv(cv2, store, applied):
    import numpy

    def kept(key, decode):
        """decode()'s array, or a copy of what it was."""
        found = store.get(key)
        if found is not None:
            applied("keep_decoded")
            kind, *shape = _SHAPE.unpack_from(found)
            pixels = numpy.frombuffer(found, _TYPES[kind], offset=_SHAPE.size)
            return pixels.reshape([size for size in shape if size]).copy()
        result = decode()
        if isinstance(result, numpy.ndarray) and result.dtype.name in _TYPES and 2 <= result.ndim <= 3 and result.size:
            shape = _SHAPE.pack(_TYPES.index(result.dtype.name), *result.shape, *[0] * (3 - result.ndim))
            store.put(key, shape + result.tobytes())
        return result

    imread, imdecode = cv2.imread, cv2.imdecode

    def read(filename, flags=cv2.IMREAD_COLOR, *more, **named):
        try:
            plain = isinstance(flags, int) and not more and not named
            identity = _identity(os.stat(filename)) if plain else None
        except (OSError, ValueError, TypeError):
            identity = None
        if identity is None:
            return imread(filename, flags, *more, **named)
        return kept(key_of(identity, ("imread", flags)), lambda: imread(filename, flags))

    def decode(buf, flags, *more, **named):
        if more or named or not isinstance(flags, int) or not isinstance(buf, numpy.ndarray) or not buf.flags.c_contiguous:
            return imdecode(buf, flags, *more, **named)
        return kept(key_of(buf, ("imdecode", flags, buf.dtype.name)), lambda: imdecode(buf, flags))

    cv2.imread, cv2.imdecode = read, decode
