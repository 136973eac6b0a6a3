"""PyTorch's own profiler over some steps, where the user asked for it (flatout run --torch-profile
20-25). It records what the host's operators did and, where CUPTI is free for it, what the device did."""
import os

from . import core, training
from .core import PROFILER, mark, now, state

_profile = None
_begin = 0


def install(torch):
    wanted = os.environ.get("FLATOUT_TORCH_PROFILE")
    if wanted:
        first, _, last = wanted.partition("-")
        _watch(torch, int(first), int(last))


def _watch(torch, first, last):
    def step():
        if state.steps < first:
            return
        try:
            if _profile is None:
                _start(torch, first)
            elif state.steps <= last:
                _profile.step()
                _seen()
            else:
                training.no_longer_after_each(step)
                _stop()
        except Exception as error:  # the job, and all other hooks, go on without it
            training.no_longer_after_each(step)
            core.info("torch_profile.failed", "%s: %s" % (type(error).__name__, error))

    training.after_each(step)


def _start(torch, first):
    global _profile, _begin
    if torch.autograd._profiler_enabled():  # starting another one would end it
        raise RuntimeError("a profiler of the job's own is on")
    _begin = now()
    profiler = torch.profiler
    _profile = profiler.profile(schedule=lambda _: profiler.ProfilerAction.RECORD, record_shapes=True,
                                with_stack=True)
    _profile.step_num = first  # the name of its steps
    _profile.start()


def _stop():
    _profile.stop()
    path = _free_name(os.environ["FLATOUT_RUN_DIR"])
    _profile.export_chrome_trace(path)
    _seen()
    core.info("torch_profile.file", path)


def _free_name(folder):
    """Several processes of one job may train."""
    for name in ("torch_trace.json.gz", "torch_trace-%d.json.gz" % os.getpid()):
        path = os.path.join(folder, name)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return path
        except FileExistsError:
            pass
    raise FileExistsError(path)


def _seen():
    """What was recorded since the last time took longer than it does without: no step to judge by."""
    global _begin
    end = now()
    mark(PROFILER, 0, _begin, end, 0, 0)
    _begin = end
