"""Saving and logging beside the training instead of within its steps.

A save copies what it is given, and a thread writes the copy. Whoever could see the file before it is whole is
held up until it is: an audit hook knows of every open, rename, copy and started program. One save is under
way at a time. What failed is raised by the next save, or told when the job ends. os.fsync() of a log returns
at once; a thread does it, and once for all calls that wait.
"""
import atexit
import functools
import io
import os
import queue
import shutil
import stat
import sys
import tempfile
import threading


class _Task:
    """The one save under way."""

    def __init__(self):
        self.thread = None
        self.error = None

    def run(self, function):
        self.wait()
        error, self.error = self.error, None
        if error is not None:
            raise error
        thread = threading.Thread(target=self._do, args=(function,), name="flatout-save")
        thread.start()  # before others see it: one that has not begun cannot be waited for
        self.thread = thread

    def _do(self, function):
        try:
            function()
        except BaseException as error:
            self.error = error

    def wait(self):
        thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            if self.thread is thread:  # another thread may have waited as well, and gone on
                self.thread = None

    def end(self):
        self.wait()
        if self.error is not None:
            sys.stderr.write("flatout: warning: a checkpoint could not be written: %s\n" % self.error)

    def forget(self):
        self.thread = None  # after fork: the parent's


class _Copies:
    """Copies of what is saved, made into the memory of the copy before: fresh memory costs as much again in page faults."""

    def __init__(self, torch):
        self._new = torch.UntypedStorage
        self._spare = {}  # bytes -> storages that are free
        self._local = threading.local()
        clone = torch.UntypedStorage.clone

        @functools.wraps(clone)
        def into_spare(storage):
            taken = getattr(self._local, "taken", None)
            if taken is None or storage.device.type != "cpu":
                return clone(storage)
            taken.append(self._take(storage.nbytes()))
            return taken[-1].copy_(storage)

        torch.UntypedStorage.clone = into_spare  # which is what deepcopy() calls

    def of(self, obj):
        """copy.deepcopy(obj), and the storages that it took."""
        import copy

        self._local.taken = taken = []
        try:
            return copy.deepcopy(obj), taken
        finally:
            self._local.taken = None

    def _take(self, size):
        spare = self._spare.get(size)
        return spare.pop() if spare else self._new(size)

    def give_back(self, taken):
        """For the next copy, in place of what was spare so far."""
        spare = {}
        for storage in taken:
            spare.setdefault(storage.nbytes(), []).append(storage)
        self._spare = spare


_LOOKS = ("open", "os.rename", "os.link", "os.symlink", "os.remove", "os.listdir", "os.scandir", "os.truncate",
          "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")


def _imports():
    """Whether the audited call is of the import system: it looks at no checkpoint, and holds a lock that a save which imports waits for."""
    return sys._getframe(2).f_code.co_filename.startswith("<frozen importlib")


def save(watch, applied):
    """torch.save() to a path, or to a file that open(path, "wb") made, goes on in a thread; to others it stays as it is."""
    task = _Task()
    _sync(applied, "background_save")
    _before_sync.append(task.wait)
    _open_for_saves()

    def look(event, args):
        if task.thread is not None and (event in _LOOKS or event.startswith("shutil.")) and not _imports():
            task.wait()

    def hook(torch):
        original = torch.save
        copies = _Copies(torch)

        def save(obj, f, *args, **kwargs):
            if not (isinstance(f, (str, os.PathLike)) or (isinstance(f, _SavedFile) and f.is_fresh())):
                return original(obj, f, *args, **kwargs)
            try:
                held, taken = copies.of(obj)
            except Exception:  # a tensor inside autograd's graph, a handle: then as before
                return original(obj, f, *args, **kwargs)
            task.wait()

            def write(path):
                original(held, path, *args, **kwargs)
                copies.give_back(taken)

            if isinstance(f, _SavedFile):
                applied("background_save")  # which opens a file: before the save is under way
                f.later(task, write)
                return None
            path = os.path.abspath(f)
            open(path, "wb").close()  # what is wrong with the path is told here and now
            applied("background_save")
            task.run(lambda: write(path))

        torch.save = save

    sys.addaudithook(look)
    os.register_at_fork(before=task.wait, after_in_child=task.forget)
    atexit.register(task.end)
    watch.tell("torch", hook)


class _SavedFile(io.BufferedWriter):
    """A file for writing into which a thread may write. Whatever asks for its place or writes more waits for that; flush(),
    fileno() and close() do not: the thread has a descriptor of its own, which shares this one's place."""

    _task = None

    def is_fresh(self):
        """Whether it is a regular file in which nothing stands yet."""
        info = os.fstat(self.fileno())
        return stat.S_ISREG(info.st_mode) and info.st_size == 0 and self.tell() == 0

    def later(self, task, function):
        """Has function(path) write the file. PyTorch's own writer for a path asks for the interpreter lock for each tensor, that for a
        file object for each piece. It names the archive within by the path's last part, and by this word for file objects."""
        fd = os.dup(self.fileno())

        def work():
            folder = None
            try:
                folder = tempfile.mkdtemp(prefix="flatout-save-")
                path = os.path.join(folder, "archive")
                os.symlink("/proc/self/fd/%d" % fd, path)
                function(path)
                os.lseek(fd, 0, os.SEEK_END)  # where whoever writes more goes on
            finally:
                os.close(fd)
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)

        self._task = task
        task.run(work)

    def _settle(self):
        if self._task is not None:
            self._task.wait()
            self._task = None

    def flush(self):
        if self._task is None:  # else there is nothing in the buffer
            super().flush()


def _settled(name):
    method = getattr(io.BufferedWriter, name)

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        self._settle()
        return method(self, *args, **kwargs)

    return call


for _name in ("write", "writelines", "seek", "tell", "truncate", "detach"):
    setattr(_SavedFile, _name, _settled(_name))


def _open_for_saves():
    """open(path, "wb") gives a _SavedFile; everything else is as it was."""
    import builtins

    original = builtins.open

    @functools.wraps(original)
    def opened(file, mode="r", *args, **kwargs):
        if mode == "wb" and not args and not kwargs and isinstance(file, (str, bytes, os.PathLike)):
            plain = original(file, mode)
            if type(plain) is io.BufferedWriter:
                return _SavedFile(plain.detach())
            return plain
        return original(file, mode, *args, **kwargs)

    builtins.open = io.open = opened


_before_sync = []  # what has to be over first
_syncing = []


def _sync(applied, name):
    """os.fsync() in a thread; calls for a file that waits already are one."""
    if _syncing:
        return
    waiting = {}  # (device, inode) -> duplicate of the descriptor
    arrived = threading.Condition()
    fsync = os.fsync
    state = {"thread": None, "busy": False}

    def work():
        while True:
            with arrived:
                while not waiting:
                    state["busy"] = False
                    arrived.notify_all()
                    arrived.wait()
                key = next(iter(waiting))
                fd = waiting.pop(key)
                state["busy"] = True
            try:
                for wait in _before_sync:
                    wait()
                fsync(fd)
            except OSError:
                pass  # a pipe, or a file that is gone: nobody is told by then
            finally:
                os.close(fd)

    def later(fd):
        number = fd if isinstance(fd, int) else fd.fileno()
        info = os.fstat(number)
        applied(name)
        with arrived:
            if state["thread"] is None:
                state["thread"] = threading.Thread(target=work, name="flatout-sync", daemon=True)
                state["thread"].start()
            key = (info.st_dev, info.st_ino)
            if key not in waiting:
                waiting[key] = os.dup(number)
                arrived.notify_all()

    def finish():
        with arrived:
            while state["thread"] is not None and state["thread"].is_alive() and (waiting or state["busy"]):
                arrived.wait(1.0)

    def forget():
        waiting.clear()
        state["thread"] = None

    _syncing.append(later)
    os.fsync = later
    os.register_at_fork(after_in_child=forget)
    atexit.register(finish)


_MOST_WAITING = 256  # writes; more hold the job up, as a slow reader did before


class _Stream:
    """Standard output or error, written by a thread, in order. Everything but write() waits for it first."""

    def __init__(self, stream):
        self._stream = stream
        self._queue = queue.Queue(_MOST_WAITING)
        self._thread = None

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="flatout-log", daemon=True)
            self._thread.start()
        self._queue.put(text)
        return len(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def flush(self):
        pass  # the thread does

    def drain(self):
        if self._thread is not None:
            self._queue.join()
        try:
            self._stream.flush()
        except (OSError, ValueError):
            pass

    def _work(self):
        while True:
            text = self._queue.get()
            try:
                self._stream.write(text)
                if self._queue.empty():
                    self._stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads any more
            finally:
                self._queue.task_done()

    def _forget(self):
        self._queue, self._thread = queue.Queue(_MOST_WAITING), None

    def isatty(self):
        return self._stream.isatty()

    def __iter__(self):
        return iter(self._stream)

    def __getattr__(self, name):
        if name in ("buffer", "detach", "close", "reconfigure"):
            self.drain()
        return getattr(self._stream, name)


def log(applied):
    """print() and logging return at once; os.fsync() of what they wrote, too."""
    _sync(applied, "background_log")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            continue
        mine = _Stream(stream)
        setattr(sys, name, mine)
        setattr(sys, "__%s__" % name, mine)
        os.register_at_fork(before=mine.drain, after_in_child=mine._forget)
        atexit.register(mine.drain)

    def look(event, _):
        if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
            for stream in (sys.stdout, sys.stderr):
                getattr(stream, "drain", bool)()

    sys.addaudithook(look)
    applied("background_log")
