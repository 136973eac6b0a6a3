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
_LAST_LINE = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")


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
    if "Traceback (most recent call last):" in message:
        # An exception of another process arrives as text, its own traceback within.
        frames += [(f, int(n), w) for f, n, w in _FRAME.findall(message)]
        core.info(prefix + "worker", message.strip().splitlines()[0][:300])
        name, message = _last_words(name, message)
    elif issubclass(kind, SyntaxError) and getattr(value, "filename", None):
        frames.append((value.filename, value.lineno or 0, ""))
    core.info(prefix + "type", name)
    core.info(prefix + "message", message[:2000])
    _tell_place(frames, prefix)
    core.info(prefix + "traceback",
              "".join(traceback.format_exception(kind, value, trace, limit=60))[-20000:])


def interrupted(trace):
    """A KeyboardInterrupt ends the process. Evaluates no text (see uncaught): traceback might."""
    frames = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    core.info("exception.type", "KeyboardInterrupt")
    _tell_place(frames[-200:], "exception.")
    core.info("exception.traceback", "Traceback (most recent call last):\n%sKeyboardInterrupt\n" % "".join(
        '  File "%s", line %s, in %s\n' % frame for frame in frames[-60:]))


def _tell_place(frames, prefix):
    frames = [f for f in frames if not os.path.realpath(f[0]).startswith(_OURS)]
    where = next((f for f in reversed(frames) if is_users(f[0])), frames[-1] if frames else None)
    if where is not None:
        core.info(prefix + "file", where[0])
        core.info(prefix + "line", where[1])
        core.info(prefix + "function", where[2])


def _last_words(name, text):
    """Type and message of the traceback that ends `text`."""
    after = text[text.rindex("Traceback (most recent call last):"):].splitlines()[1:]
    for i, line in enumerate(after):
        match = _LAST_LINE.match(line)
        if match is not None:
            rest = [match.group(2) or ""] + after[i + 1:]
            return match.group(1).rpartition(".")[2], "\n".join(rest).strip()
    return name, text


def _text(value):
    try:
        return str(value)
    except Exception:
        return ""
