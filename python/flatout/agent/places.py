"""Whose code it is, and where: the user's own frames and files."""
import os
import sys
import sysconfig
from types import CodeType

from . import core, failures

_known = {}  # file as code objects name it -> its absolute path, or None where it is not the user's
_LIBRARIES = tuple(p + os.sep for p in {sysconfig.get_paths().get(k) for k in ("stdlib", "platstdlib")} if p)
_installed = []  # folders that are nobody's own, wherever they lie


def not_users(module):
    """What lies in this module's folder is not the user's, even where it was built in place."""
    file = getattr(module, "__file__", None)
    if file:
        _installed.append(os.path.dirname(os.path.abspath(file)) + os.sep)
        _known.clear()


def users_file(file):
    """The absolute path of a file of the user's, else None."""
    found = _known.get(file, 0)
    if found == 0:
        if len(_known) > 4096:
            _known.clear()
        found = _known[file] = None if _is_installed(file) else os.path.abspath(file)
    return found


def _is_installed(file):
    # Most are told without asking the file system.
    if "site-packages" in file or file.startswith(_LIBRARIES):
        return True
    return not failures.is_users(file) or os.path.abspath(file).startswith(tuple(_installed))


def hide_from_dynamo():
    """Frames of ours that a hook leads to are not to be compiled where they interrupt a compiled function."""
    codes = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "_flatout_agent":
            for one in list(vars(module).values()):
                if getattr(one, "__module__", None) == name:
                    members = vars(one).values() if isinstance(one, type) else (one,)
                    codes.extend(_code_of(member) for member in members)
    while codes:
        code = codes.pop()
        if code is not None:
            _hide(code)
            codes.extend(const for const in code.co_consts if type(const) is CodeType)


def _hide(code):
    core._codes.append(code)
    if core._skip_code is not None:
        core._skip_code(code)


def _code_of(one):
    one = getattr(one, "__wrapped__", one)  # by core.guarded
    return getattr(getattr(one, "__func__", one), "__code__", None)


def caller_is_in(folder, frame):
    """The innermost frame that is not the agent's lies below the module `folder`."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("_flatout_agent"):
        frame = frame.f_back
    name = frame.f_globals.get("__name__") if frame is not None else None
    return type(name) is str and (name == folder or name.startswith(folder + "."))


def users_place(frame):
    """FILE:LINE in FUNCTION of the innermost frame of the user's, from `frame` on; None is none."""
    for _ in range(200):
        if frame is None:
            return None
        path = users_file(frame.f_code.co_filename)
        if path is not None:
            return "%s:%d in %s" % (path, frame.f_lineno or 0, frame.f_code.co_name)
        frame = frame.f_back
    return None
