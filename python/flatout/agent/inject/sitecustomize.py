"""Runs at the start of every Python process of a job that `flatout run` started (by PYTHONPATH).

Does next to nothing: it takes its own folder off sys.path, runs the sitecustomize that would have
run without us, and waits for `import torch`, `import tensorflow` or `import jax`. Only then is the agent loaded.
"""
import sys


def _complain(what, error):
    try:
        sys.stderr.write("flatout: warning: %s: %s: %s\n" % (what, type(error).__name__, error))
    except Exception:
        pass


class _Watch:
    """A finder that finds nothing itself: it lets us know when certain modules were imported."""

    wanted = set()
    watched = False  # somebody listens to the agent
    listeners = {}  # name of a module -> functions of remedies and trials, for when it was imported
    agent = None
    broken = False
    reported = False  # the exception that ends the process

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in cls.wanted or cls.broken:
            return None
        cls.wanted.discard(name)  # should another finder ask for it meanwhile
        try:
            for finder in sys.meta_path:
                find = None if finder is cls else getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None else None
                if spec is not None:
                    cls.follow(name, spec.loader)
                    return spec
            return None
        finally:
            cls.wanted.add(name)  # many only look whether it could be imported

    @classmethod
    def follow(cls, name, loader):
        """Makes `loader` tell us once it has executed the module `name`; leaves no trace on it."""
        execute = getattr(loader, "exec_module", None)
        if execute is None or "exec_module" in getattr(loader, "__dict__", ()):
            return

        def exec_module(module):
            mine = module.__name__ == name
            if mine:
                loader.__dict__.pop("exec_module", None)
            execute(module)
            if mine and name in cls.wanted:
                cls.wanted.discard(name)
                cls.imported(name, module)

        try:
            loader.exec_module = exec_module
        except Exception:
            pass  # a loader without attributes: these hooks are not for it

    @classmethod
    def load(cls):
        """The agent's package, under a name of its own: the job may have another `flatout`."""
        if cls.agent is None and not cls.broken:
            try:
                cls.agent = _package("_flatout_agent", "")
                cls.agent.start(cls)
            except Exception as error:
                cls.fail(error)
        return None if cls.broken else cls.agent

    @classmethod
    def fail(cls, error):
        """Off for good, and said once."""
        if not cls.broken:
            cls.broken = True
            _complain("the agent in pid %d is off" % __import__("os").getpid(), error)

    @classmethod
    def tell(cls, name, function):
        """Calls function(module) once `name` was imported."""
        if name in sys.modules:
            function(sys.modules[name])
        else:
            cls.listeners.setdefault(name, []).append(function)
            cls.wanted.add(name)

    @classmethod
    def imported(cls, name, module):
        for function in cls.listeners.pop(name, ()):
            try:
                function(module)
            except Exception as error:
                _complain("what flatout changes in %s is left out" % name, error)
        if cls.watched:
            agent = cls.load() if cls.agent is not None or name in ("torch", "tensorflow", "jax") else None
            if agent is not None:
                agent.imported(name, module)


def _package(name, folder):
    """A package of ours, below the folder above this file, under a name that the job has no other for."""
    import importlib.util
    import os

    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), folder)
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _on_uncaught(previous):
    def excepthook(kind, value, trace):
        try:
            # To load it would make CPython forget that a KeyboardInterrupt is to end it as SIGINT would.
            agent = _Watch.agent if issubclass(kind, KeyboardInterrupt) else _Watch.load()
            if agent is not None:
                agent.uncaught(kind, value, trace)
        except Exception:
            pass
        previous(kind, value, trace)

    return excepthook


def _report(kind, value, trace, prefix):
    try:
        agent = _Watch.load()
        if agent is not None:
            agent.failed(kind, value, trace, prefix)
    except Exception:
        pass


def _watch_threads(threading):
    """What ends a thread is printed by the thread: sys.excepthook does not see it."""
    previous = threading.excepthook

    def excepthook(args):
        if args.exc_type is not SystemExit:
            _report(args.exc_type, args.exc_value, args.exc_traceback, "thread_exception.")
        previous(args)

    threading.excepthook = excepthook


def _watch_processes(process):
    """multiprocessing prints what ends its processes."""
    bootstrap = process.BaseProcess._bootstrap

    def hook(self, *args, **named):
        run = self.run

        def watched():
            try:
                run()
            except Exception as error:
                _report(type(error), error, error.__traceback__, "exception.")
                raise

        self.run = watched
        return bootstrap(self, *args, **named)

    process.BaseProcess._bootstrap = hook


def _keep_last_stack():
    """Where a fatal signal strikes is written for the recorder, unless the job does that itself."""
    import os

    path = os.environ.get("FLATOUT_FAULTS")
    if not path:
        return
    try:
        import faulthandler

        if not faulthandler.is_enabled():
            # Open for as long as the process lives.
            faulthandler.enable(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), all_threads=False)
    except Exception:
        pass  # the recorder runs elsewhere, or no descriptor is free: then the last line seen has to do


def _leave_path():
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]
    sys.path_importer_cache.pop(here, None)
    return bool(os.environ.get("FLATOUT_SOCKET") and os.environ.get("FLATOUT_AGENT"))


def _change():
    """Remedies that the job runs with, and what a trial needs (flatout fix)."""
    import os

    for variable, name, folder in (("FLATOUT_REMEDIES", "_flatout_remedies", "remedies"),
                                   ("FLATOUT_TRIAL", "_flatout_trial", "trial"),
                                   ("FLATOUT_DEVMEM", "_flatout_devmem", os.path.join("..", "devmem"))):
        if os.environ.get(variable):
            if _Watch not in sys.meta_path:
                sys.meta_path.insert(0, _Watch)
            try:
                _package(name, folder).start(_Watch, os.environ[variable])
            except Exception as error:
                _complain("%s is not in force" % variable, error)


def _chain():
    """Runs the next sitecustomize on sys.path as if ours had never been there."""
    import _frozen_importlib

    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find("sitecustomize", None) if find is not None and finder is not _Watch else None
        if spec is not None and spec.loader is not None:
            module = _frozen_importlib.module_from_spec(spec)
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            return


if _leave_path():
    _Watch.watched = True
    _Watch.wanted |= {"torch", "tensorflow", "jax"}
    sys.meta_path.insert(0, _Watch)
    sys.excepthook = _on_uncaught(sys.excepthook)
    _Watch.tell("threading", _watch_threads)
    _Watch.tell("multiprocessing.process", _watch_processes)
    _keep_last_stack()
    for _name in sorted(_Watch.wanted & set(sys.modules)):
        _Watch.imported(_name, sys.modules[_name])
_change()
_chain()
