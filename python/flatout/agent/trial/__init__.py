"""What a trial of `flatout fix` needs inside the job: equal seeds, the losses of its first steps, no uploads.

Loaded by inject/sitecustomize.py in each Python process of a trial (FLATOUT_TRIAL names a folder for what it
notes), under the name `_flatout_trial`; never otherwise. Without an overlay (FLATOUT_TRIAL_FILES), what the job
writes through Python's open() and torch.save() goes below that folder, too.
"""
import functools
import os
import sys

LOSSES = (10, 40)  # of the first backward passes: written at these; a GPU waits twice, in the warm-up


def start(watch, folder):
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", MLFLOW_TRACKING_URI="file://" + folder + "/mlflow",
                      COMET_MODE="disabled", HF_HUB_DISABLE_TELEMETRY="1")
    import random

    random.seed(0)
    _note_reads(folder)
    watch.tell("numpy", lambda numpy: numpy.random.seed(0))
    watch.tell("torch", lambda torch: _torch(torch, folder))
    watch.tell("PIL.JpegImagePlugin", lambda plugin: _note_decoder(folder, "pillow"))
    watch.tell("cv2", lambda cv2: _note_decoder(folder, "opencv"))
    if os.environ.get("FLATOUT_TRIAL_FILES"):
        _redirect(watch, os.environ["FLATOUT_TRIAL_FILES"])


def _note_reads(folder):
    """The files that Python opens for reading, a line each, in `opened`: flatout may have to let go of them between runs."""
    notes = os.path.join(folder, "opened")
    known = set()
    code = (".py", ".pyc", ".so")

    def hook(event, args):
        if event != "open":
            return
        path, _, flags = args
        if not isinstance(path, (str, os.PathLike)) or (flags or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        try:
            path = os.fspath(path)
            if not isinstance(path, str) or path in known or path.endswith(code):
                return
            known.add(path)
            full = os.path.abspath(path)
            if "\n" not in full and not full.startswith(("/proc/", "/sys/", "/dev/")):
                # No descriptor is held: a job may close all there are.
                fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                os.write(fd, os.fsencode(full + "\n"))
                os.close(fd)
        except Exception:  # a working folder that is gone: the job's open() must not fail for our notes
            pass

    sys.addaudithook(hook)


def _note_decoder(folder, name):
    """Pillow imports its plugins when the first picture is opened."""
    with open(os.path.join(folder, "decoders"), "a") as file:
        file.write(name + "\n")


def _torch(torch, folder):
    torch.manual_seed(0)
    original = torch.Tensor.backward
    values = []
    made = _count_made(torch)

    def backward(self, *args, **kwargs):
        values.append(self.detach().clone())
        if len(values) in LOSSES:
            _write(folder, values, made)
        if len(values) == LOSSES[-1]:
            torch.Tensor.backward = original
        return original(self, *args, **kwargs)

    torch.Tensor.backward = backward


def _count_made(torch):
    """How many modules the job makes of the kinds that some remedies are for, by name."""
    made = {"Conv2d": 0, "BatchNorm2d": 0}

    def count(cls):
        init = cls.__init__

        def __init__(self, *args, **kwargs):
            made[cls.__name__] += 1
            return init(self, *args, **kwargs)

        cls.__init__ = functools.wraps(init)(__init__)

    for name in made:
        count(getattr(torch.nn, name))
    return made


def _write(folder, values, made):
    try:
        with open(os.path.join(folder, "modules"), "w") as file:
            file.writelines("%s %d\n" % item for item in made.items())
        with open(os.path.join(folder, "losses-%d" % os.getpid()), "w") as file:
            for value in values:
                file.write("%r\n" % float(value.float().mean()))
    except Exception as error:
        sys.stderr.write("flatout: warning: losses of the trial are not known: %s\n" % error)


def _redirect(watch, scratch):
    """Files opened for writing are made below `scratch`, and read from there afterwards."""
    import builtins
    import io

    keep = tuple(os.path.join(p, "") for p in ("/dev", "/proc", "/sys", os.path.abspath(scratch)))
    moved = {}
    opened = builtins.open

    def elsewhere(path, writes, keeps_content):
        """The path to use in place of `path`."""
        if not isinstance(path, (str, os.PathLike)):
            return path
        full = os.path.abspath(os.fspath(path))
        if full in moved:
            return moved[full]
        if not writes or full.startswith(keep):
            return path
        there = os.path.join(scratch, full.lstrip("/"))
        os.makedirs(os.path.dirname(there), exist_ok=True)
        if keeps_content and os.path.exists(full):
            import shutil
            shutil.copyfile(full, there)
        moved[full] = there
        return there

    def open(file, mode="r", *args, **kwargs):
        if isinstance(mode, str):
            writes = any(c in mode for c in "wax+")
            file = elsewhere(file, writes, "a" in mode or "+" in mode)
        return opened(file, mode, *args, **kwargs)

    builtins.open = io.open = open

    def hook(torch):
        save = torch.save

        def redirected(obj, f, *args, **kwargs):
            return save(obj, elsewhere(f, True, False), *args, **kwargs)

        torch.save = redirected

    watch.tell("torch", hook)
