"""The agent inside a Python job: times what the training loop does, from hooks in its framework.

Loaded by inject/sitecustomize.py under the name `_flatout_agent`, when the job imports a framework.
Pure Python 3.8+, standard library and ctypes only. It measures time and counts; it holds no tensor,
draws no random number, changes no value. Whatever fails in it turns it off and says so once.
"""
import atexit
import os
import sys

from . import core

_watch = None
_done = {"torch", "tensorflow", "jax"}
_HOOKS = {  # module that was imported -> our module that hooks it
    "torch": "torch_hooks",
    "tensorflow": "tensorflow_hooks",
    "jax": "jax_hooks",
    "keras.src.optimizers.base_optimizer": "tensorflow_hooks",
    "keras.src.optimizers.optimizer": "tensorflow_hooks",
    "keras.src.optimizers.legacy.optimizer_v2": "tensorflow_hooks",
    "keras.optimizers.optimizer_v2.optimizer_v2": "tensorflow_hooks",
    "tensorflow.python.keras.optimizer_v2.optimizer_v2": "tensorflow_hooks",
    "keras.src.backend.tensorflow.trainer": "keras_calls",
    "keras.src.backend.jax.trainer": "keras_calls",
    "keras.src.backend.torch.trainer": "keras_calls",
    "keras.src.engine.training": "keras_calls",
    "keras.engine.training": "keras_calls",
    "torch._dynamo.eval_frame": "forward",
    "torch.distributed.fsdp": "forward",
    "multiprocessing.pool": "waits",
    "asyncio": "awaits",
    "safetensors.torch": "saving",
    "torchdata.stateful_dataloader.stateful_dataloader": "loader",
}


def start(watch):
    """Connects, and asks to be told of imports. Nothing is hooked where nobody listens."""
    global _watch
    _watch = watch
    if core.connect():
        atexit.register(at_exit)
        core.info("python.version", sys.version.split()[0] + sys.abiflags)  # "3.14.7t": free-threaded
        core.info("python.executable", sys.executable or "")
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            if name in os.environ:
                core.info("env." + name, os.environ[name])
        for name, hooks in _HOOKS.items():
            if name not in sys.modules:
                watch.wanted.add(name)


def imported(name, module):
    """Called right after `name` was imported."""
    if not core.connected or core.is_off or name not in _HOOKS:
        return
    _done.add(name)
    try:
        hooks = "%s.%s" % (__name__, _HOOKS[name])
        __import__(hooks)
        sys.modules[hooks].install(module)
        if name in ("torch", "tensorflow", "jax"):  # what was imported before we came
            for other in _HOOKS:
                if other in sys.modules and other not in _watch.wanted and other not in _done:
                    _done.add(other)
                    imported(other, sys.modules[other])
    except Exception as error:
        core.off("hooks of %s" % name, error)


def uncaught(kind, value, trace):
    """An exception is about to end the process."""
    _watch.reported = True
    if core.connected and not core.is_off:
        if issubclass(kind, KeyboardInterrupt):
            # CPython dies of SIGINT after it, unless anything evaluates text meanwhile, as imports may
            # (namedtuple). So with what is here already.
            failures = sys.modules.get(__name__ + ".failures")
            if failures is not None:
                failures.interrupted(trace)
            return
        from . import failures

        failures.report(kind, value, trace, "exception.")


def failed(kind, value, trace, prefix):
    """An exception has ended a thread, or a process that multiprocessing started."""
    if core.connected and not core.is_off and not _watch.reported:  # else it followed from that
        from . import failures

        failures.report(kind, value, trace, prefix)


def at_exit():
    """Sends what is left. An exception that a hook of the job's own kept from us is known by now."""
    if core.connected and not core.is_off:
        value = getattr(sys, "last_value", None)
        if value is not None and not _watch.reported:
            uncaught(type(value), value, value.__traceback__)
        if value is not None:
            return
        half = sys.modules.get(__name__ + ".half")
        if half is not None:
            half.at_exit()
