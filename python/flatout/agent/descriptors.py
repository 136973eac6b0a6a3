"""File descriptors that are opened and never closed: the line that opens them.

A look every few seconds costs two system calls. Only where the numbers in use keep growing are files
that are opened noted for a while, and then those that are still open tell the line.
"""
import os
import sys
from collections import Counter, OrderedDict

from . import core, places

_LOOKS = 3  # in a row that saw more in use
_FEWEST = 16  # more, over these looks
_MOST_NOTED = 512
_MOST_ASKED = 64

_seen = []  # the lowest free number at each look, as long as it grows
_opened = OrderedDict()  # name of a file -> where it was opened last
_noted = [0]
_hook = [False, False]  # it is there, it notes


def look():
    """At the end of a step, now and then."""
    if _hook[1]:
        if _noted[0] >= _FEWEST:
            _tell()
        return
    number = os.open("/", os.O_PATH | os.O_CLOEXEC)
    os.close(number)
    if _seen and number <= _seen[-1]:
        _seen.clear()
    _seen.append(number)
    if len(_seen) > _LOOKS and number - _seen[-1 - _LOOKS] >= _FEWEST:
        _listen()


def _listen():
    _seen.clear()
    if not _hook[0]:
        sys.addaudithook(_audit)  # for good: there is no way to take one away
    _hook[:] = True, True
    _noted[0] = 0


def _audit(event, args):
    if event == "open" and _hook[1]:
        _note(args[0])


@core.guarded
def _note(path):
    if type(path) is int:
        return
    place = places.users_place(sys._getframe(3))
    if place is None:
        return
    _noted[0] += 1
    _opened[os.path.basename(os.fsdecode(path))] = place
    if len(_opened) > _MOST_NOTED:
        _opened.popitem(last=False)


def _tell():
    """Which of the noted files are still open: the newest have the highest numbers."""
    _hook[1] = False
    found = Counter()
    for number in sorted(map(int, os.listdir("/proc/self/fd")), reverse=True)[:_MOST_ASKED]:
        try:
            place = _opened.get(os.path.basename(os.readlink("/proc/self/fd/%d" % number)))
        except OSError:
            continue
        if place is not None:
            found[place] += 1
    _opened.clear()
    if found:
        core.info("descriptors.opened_at", found.most_common(1)[0][0])


def forget():
    """In a forked child."""
    _seen.clear()
    _opened.clear()
    _hook[1] = False
