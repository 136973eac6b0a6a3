"""What an exception that ends the job (or a worker) says: type, message, the user's own line."""
import os
import re
import sysconfig
import traceback

from . import core

_LIBRARIES = tuple(
    os.path.realpath(p) + os.sep
    for p in {sysconfig.get_paths().get(k) for k in ("stdlib", "platstdlib")} if p)
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.M)
_CAUGHT = re.compile(r"^Caught (\S+) (?:in DataLoader worker|in replica|.*process)")


def is_users(file):
    """Not of Python itself, not installed, not ours."""
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return False
    real = os.path.realpath(file)
    return not real.startswith(_LIBRARIES) and not real.startswith(_OURS)


def report(kind, value, trace, prefix):
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(trace, 200)]
    name = kind.__name__
    message = _text(value)
    # An exception of a worker arrives as text, its own traceback within.
    caught = _CAUGHT.match(message)
    if caught is not None:
        name = caught.group(1)
        inner = [(f, int(n), w) for f, n, w in _FRAME.findall(message)]
        frames += inner
        lines = [line for line in message.strip().splitlines() if line.strip()]
        core.info(prefix + "worker", message.splitlines()[0][:300])
        message = lines[-1].split(": ", 1)[-1] if lines else message
    elif issubclass(kind, SyntaxError) and getattr(value, "filename", None):
        frames.append((value.filename, value.lineno or 0, ""))
    frames = [f for f in frames if not os.path.realpath(f[0]).startswith(_OURS)]
    where = next((f for f in reversed(frames) if is_users(f[0])), frames[-1] if frames else None)
    core.info(prefix + "type", name)
    core.info(prefix + "message", message[:2000])
    if where is not None:
        core.info(prefix + "file", where[0])
        core.info(prefix + "line", where[1])
        core.info(prefix + "function", where[2])
    core.info(prefix + "traceback",
              "".join(traceback.format_exception(kind, value, trace, limit=60))[-20000:])


def _text(value):
    try:
        return str(value)
    except Exception:
        return ""
