"""The files that the job reads, read into the page cache by a thread before their turn comes.

An audit hook sees each file that Python opens for reading. A large file is read on at once; of a folder, once the job has
opened a second file with one suffix there, all files with that suffix are read, by name. Only what fits: into free memory,
and into what the memory limits of the job's control groups leave. What is cached already costs next to nothing. Of several
processes (the workers of a loader) the first one to ask reads a folder. What native readers open is not seen.
"""
import errno
import os
import socket
import stat
import sys
import threading
import zlib

LARGE_FILE = 32 << 20  # bytes
_PIECE = 4 << 20
_LOOK_AGAIN = 64 << 20  # bytes after which the room is asked for again
_MOST_FILES = 200_000  # of one folder
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/usr/", "/etc/", "/lib", "/run/")
_CODE = (".py", ".pyc", ".pyi", ".so", ".toml", ".cfg")
_KEY = "FLATOUT_WARM_KEY"  # one for all processes of the job


class Warmer:
    """note() is called for each file that is opened; a thread that starts with the first work does the rest."""

    def __init__(self, applied, room):
        self._applied, self._room = applied, room
        self._own = tuple({os.path.join(p, "") for p in (sys.prefix, sys.base_prefix, sys.exec_prefix) if p != "/"})
        self.forget()

    def forget(self):
        """After a fork: the thread is the parent's, and so is what it was to do."""
        self._arrived = threading.Condition()
        self._wanted = []
        self._known = {}  # folder, suffix -> the first file that was opened there; None: taken
        self._thread = None
        self._claims = []

    def note(self, path):
        """`path`: as it was opened for reading. Cheap: mostly one look into a dictionary."""
        folder, name = os.path.split(path)
        suffix = os.path.splitext(name)[1]
        if suffix in _CODE:
            return
        key = (folder, suffix)
        first = self._known.get(key, "")
        if first is None or first == name:
            return
        if not first:
            full = os.path.abspath(path)
            if full.startswith(_SYSTEM) or full.startswith(self._own):
                self._known[key] = None
                return
            self._known[key] = name
            if _files(full, None):
                self._want(full, None)
        else:
            self._known[key] = None
            self._want(os.path.abspath(folder), suffix)

    def _want(self, path, suffix):
        if self._thread is threading.current_thread():
            return
        with self._arrived:
            self._wanted.append((path, suffix))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="flatout-warm", daemon=True)
                self._thread.start()
            self._arrived.notify()

    def _work(self):
        while True:
            with self._arrived:
                while not self._wanted:
                    self._arrived.wait()
                path, suffix = self._wanted.pop(0)
            try:
                self._warm(_files(path, suffix), path, suffix)
            except OSError:
                pass  # gone, or not to be listed: the job reads it as ever

    def _warm(self, files, place, suffix):
        """Reads `files`, (path, bytes), of a folder or a large one, if there is room for all of them."""
        total = sum(size for _, size in files)
        if not files or total > self._room() or not self._claim("%s %s" % (place, suffix)):
            return
        _tell(place)
        since = 0
        buffer = bytearray(_PIECE)
        for path, size in files:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for at in range(0, size, _PIECE):
                    if _is_cached(fd, at, min(_PIECE, size - at)):
                        continue
                    if since >= _LOOK_AGAIN:
                        since = 0
                        if self._room() < _LOOK_AGAIN:
                            return
                    # The storage is never idle: it reads the next piece while this one is waited for.
                    os.posix_fadvise(fd, at, 2 * _PIECE, os.POSIX_FADV_WILLNEED)
                    got = os.preadv(fd, [buffer], at)
                    if got == 0:
                        break
                    since += got
                    self._applied("warm_cache")
            finally:
                os.close(fd)

    def _claim(self, name):
        """True for the first process of the job that asks; a name that is let go of when the process ends."""
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind("\0flatout-warm-%s-%08x-%x" % (os.environ.get(_KEY, ""), zlib.crc32(os.fsencode(name)), len(name)))
        except OSError:
            claim.close()
            return False
        self._claims.append(claim)
        return True


def _tell(path):
    """A trial has to know which folders to name."""
    folder = os.environ.get("FLATOUT_TRIAL")
    if folder and "\n" not in path:
        with open(os.path.join(folder, "warmed"), "a") as file:
            file.write(path + "\n")


def _files(path, suffix):
    """(path, bytes) of a large file (suffix None) or of a folder's files with that suffix, by name."""
    if suffix is None:
        try:
            info = os.stat(path)
        except OSError:
            return []
        return [(path, info.st_size)] if stat.S_ISREG(info.st_mode) and info.st_size >= LARGE_FILE else []
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(suffix) and os.path.splitext(entry.name)[1] == suffix and entry.is_file():
                found.append((entry.path, entry.stat().st_size))
                if len(found) > _MOST_FILES:
                    return []
    return sorted(found)


def _is_cached(fd, at, size):
    """True where a byte of each quarter is in memory; False where that cannot be asked."""
    byte = bytearray(1)
    step = max(1, size // 4)
    try:
        for offset in range(at, at + size, step):
            os.preadv(fd, [byte], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False
        raise
    return True


# ---- how much fits ----


def room(root="/"):
    """Bytes that can be read before the kernel has to evict something: free memory less a reserve, and what the limits of this
    process's control groups leave, whichever is less. `root`: where proc and sys are."""
    memory = _fields(os.path.join(root, "proc/meminfo"))
    total, free = memory.get("MemTotal", 0), memory.get("MemFree", 0)
    return min([free - max(64 << 20, total // 50), *_left_in_groups(root)])


def _fields(path):
    """{"MemFree": bytes} of a file of /proc."""
    out = {}
    with open(path) as file:
        for line in file:
            words = line.split()
            if len(words) == 3 and words[2] == "kB":
                out[words[0].rstrip(":")] = int(words[1]) << 10
    return out


def _left_in_groups(root):
    """What each memory limit above this process leaves, in bytes."""
    with open(os.path.join(root, "proc/self/cgroup")) as file:
        lines = [line.rstrip("\n").split(":", 2) for line in file]
    for number, controllers, path in lines:
        if number == "0":
            top, used, limits = "sys/fs/cgroup", "memory.current", ("memory.max", "memory.high")
        elif "memory" in controllers.split(","):
            top, used, limits = "sys/fs/cgroup/memory", "memory.usage_in_bytes", ("memory.limit_in_bytes",)
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):  # in a container, the path is the host's and mostly not there
            folder = os.path.join(root, top, *parts[:depth])
            usage = _number(os.path.join(folder, used))
            for name in limits if usage is not None else ():
                limit = _number(os.path.join(folder, name))
                if limit is not None:
                    yield limit - usage


def _number(path):
    try:
        with open(path) as file:
            return int(file.read())  # "max": none
    except (OSError, ValueError):
        return None


def install(applied):
    """Hooks this process and those it forks."""
    os.environ.setdefault(_KEY, "%d-%s" % (os.getpid(), os.urandom(4).hex()))
    warmer = Warmer(applied, room)

    def hook(event, args):
        if event == "open":
            path, _, flags = args
            try:
                if isinstance(path, (str, os.PathLike)) and not (flags or 0) & (os.O_WRONLY | os.O_RDWR):
                    path = os.fspath(path)
                    if isinstance(path, str):
                        warmer.note(path)
            except Exception:  # no thread at the interpreter's end, a folder that is gone: the job's open() must not fail
                pass

    os.register_at_fork(after_in_child=warmer.forget)
    sys.addaudithook(hook)
