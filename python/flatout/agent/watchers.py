"""What the interpreter calls at each line or call of the training thread, and was left on: a debugger or coverage
(`python.tracer`), a profiler (`python.profiler`)."""
import sys
from types import FunctionType, MethodType

from . import core, places, training

_sent = {}
_PROFILER = 2  # the tool that cProfile is from Python 3.12 on; debuggers and coverage may be quick there


def install(torch):
    training.each_while(_look)


def _look(torch):
    found = {"python.tracer": _name(sys.gettrace()), "python.profiler": _name(sys.getprofile())}
    monitoring = getattr(sys, "monitoring", None)
    tool = monitoring and monitoring.get_tool(_PROFILER)
    if tool is not None and not found["python.profiler"] and monitoring.get_events(_PROFILER):
        found["python.profiler"] = str(tool)
    for key, name in found.items():
        if _sent.get(key, "") != name:
            _sent[key] = name
            core.info(key, name)


def _name(watcher):
    """FILE:LINE in FUNCTION of Python's; the type of what is not."""
    if type(watcher) is MethodType:
        watcher = watcher.__func__
    if type(watcher) is FunctionType:
        code = watcher.__code__
        file = places.users_file(code.co_filename) or code.co_filename
        return "%s:%d in %s" % (file, code.co_firstlineno, code.co_name)
    return "" if watcher is None else "%s.%s" % (type(watcher).__module__, type(watcher).__qualname__)
