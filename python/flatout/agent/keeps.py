"""Which container of the job keeps growing, or which tensor's graph, where its memory does: a look every
few seconds, at the end of a step, at what the user's own names lead to.

Of a container only its id, kind and length are kept: no look keeps anything of the job alive. Nothing
of the user's own code is run: lengths and contents are asked of the builtin types themselves. Where it
was found and which line makes it grow is told by naming.py and mutations.py, once.
"""
import gc
import os
import sys
import threading
import weakref
from collections import deque
from functools import _lru_cache_wrapper
from itertools import islice
from time import thread_time_ns
from types import FunctionType, ModuleType, SimpleNamespace

from . import core, descriptors, graph, places
from .core import cost, now, state
from .mutations import DEQUE, DICT, GRAPH, LIST, SET

TUPLE, INSTANCE, CLASS, FUNCTION, CACHE = range(6, 11)
_TIMES = (0.1, 0.2, 0.3, 0.6, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 36, 54)  # s after the first step; then
_EVERY = 30  # s
_GROWTH = 256 << 10  # bytes more than at any of the last few of these times, and
_LAST = 4  # of them: what is freed and taken again is no growth
_OFTEN = 3  # times more than it did not: it keeps growing
_FAST_GROWTH = 16 << 20  # bytes that count twice, and after which it is looked at again:
_VERY_SOON, _SOON = 20000000, 1000000000  # ns, at the least and at the most: what fills a limit in a second is found before
_MOST_SOON = 8  # looks that come so soon
_BUDGET = 300000  # ns of one look; of CPU time for what the roots of a part lead to: what others take cuts no look short
_OBJECTS = 2000  # of one look
_LEVELS = 3
_MOST_MODULES = 40
_MOST_INSIDE = {LIST: 32, DICT: 256, TUPLE: 32}  # longer ones are looked at, but not into
_SUSPECT_LOOKS = 4  # that saw it grow, one after the other
_SUSPECT_ITEMS = 16
_FORGET = 3  # looks that saw it no longer, or no longer growing
_MOST_SENT = 3
_AGAIN = 10000000000  # ns between two times that all is sent
_GRAPH = 1 << 20  # bytes that a graph of autograd counts as
_OLD = 16  # steps from which the graph of a tensor goes back further than any step needs
_MOST_GRAPHS = 8  # of a part of a look
_NEVER = 1 << 62
_PAGE = os.sysconf("SC_PAGE_SIZE")

_flags = type.__dict__["__flags__"].__get__
_mro = type.__dict__["__mro__"].__get__
_module = type.__dict__["__module__"].__get__
_class_dict = type.__dict__["__dict__"].__get__
_maxlen = deque.__dict__["maxlen"].__get__
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_LENGTH = {LIST: list.__len__, DICT: dict.__len__, SET: set.__len__, DEQUE: deque.__len__}


class _Record:
    __slots__ = ("kind", "length", "first", "streak", "idle", "steps", "upto", "seen", "name", "place",
                 "bytes", "graph")

    def __init__(self, kind, length, steps, look):
        self.kind, self.seen = kind, look
        self.start(length, steps)

    def start(self, length, steps):
        self.length = self.first = length
        self.steps = self.upto = steps  # at the first length, and at this one
        self.streak = self.idle = 0
        # Of the item that came last, once it grew often enough.
        self.bytes, self.graph = (0, True) if self.kind == GRAPH else (None, None)
        self.name = self.place = None  # place: None as long as it is searched for

    def suspect(self):
        return self.streak >= _SUSPECT_LOOKS and (
            self.kind == GRAPH or self.length - self.first >= _SUSPECT_ITEMS)

    def weight(self):
        if self.kind == GRAPH:
            return self.length * _GRAPH
        return (self.length - self.first) * (max(self.bytes or 0, 8) + (_GRAPH if self.graph else 0))


class _State:
    began = 0  # the first step
    looks = 0
    part = None  # of the look that is under way: the next
    next = 0  # when the one after it is due
    steps = 0  # batches, in a loader's worker
    resident = []  # bytes, at the last few of _TIMES
    asked_at = 0  # for the last of these
    growing = 0  # how many of them saw it grow, less those that did not
    sent_at = 0
    modules = 0  # how many of sys.modules, in order, are known or in _new_modules
    numbered = None  # (number of a node of a graph, steps) when the first was seen


_records = {}  # id of a container, or name of a tensor -> _Record
_sent = {}  # number -> text
_searches = []  # [(record, generator)]: lines that are still searched for
_new_modules = []  # names that are not looked at yet
_not_users = {__name__.partition(".")[0]}  # packages: ours, to begin with
_kinds = {}  # id of a class -> (weak reference, kind)
_TENSORS = []  # classes that live as long as we do
dull = set()  # ids of classes that hold nothing, and never go
_users = {}  # names of the user's modules that are loaded -> file
_fetchers = []  # weak references to those of this process, latest last
_busy = threading.Lock()  # only ever tried


def install(torch):
    global naming
    from . import naming  # it needs this module, too

    places.not_users(torch)
    places.hide_from_dynamo()
    find_modules()
    if "torch" in sys.modules:
        _TENSORS[:] = [sys.modules["torch"].Tensor, sys.modules["torch"].nn.Parameter]
    for cls in (int, float, str, bool, bytes, type(None), ModuleType, type(len), type(str.join), *_TENSORS):
        kind_of(cls)
    warm = naming.Roots()
    warm.add_frame(sys._getframe())
    visit(warm.objects + [[0], {0: 0}, naming], thread_time_ns() + _BUDGET)  # the first time takes longest
    state.look_due = 0
    os.register_at_fork(after_in_child=_forget)


def _forget():
    global _busy
    _busy = threading.Lock()
    _State.part = None
    _State.began = _State.looks = _State.steps = _State.sent_at = 0
    _State.numbered = None
    descriptors.forget()
    for kept in (_records, _sent, _searches, _fetchers):
        kept.clear()
    if state.look_due != _NEVER:
        state.look_due = 0


def fetcher_made(fetcher):
    """Its dataset is looked at, too: where the loop runs over a loader that has no name."""
    _fetchers[:] = [ref for ref in _fetchers[-3:] if ref() is not None]
    _fetchers.append(weakref.ref(fetcher))


def fetched():
    """After a fetch in a worker."""
    _State.steps += 1
    if now() > state.look_due:
        look(False)


def look(in_loop=True):
    """At the end of a step, or after a fetch: when state.look_due has passed."""
    if not _busy.acquire(False):
        return
    begin, ran = now(), thread_time_ns()
    try:
        if core.is_off:
            state.look_due = _NEVER
        elif not _State.began:
            _State.began = begin
            state.look_due = _next(begin, 0)
            _State.part = 0
            _find_roots(naming.Roots(), in_loop)  # the first time takes longest
            _State.part = None
            _State.resident = [_resident_bytes()]
            _State.asked_at = begin
        elif _searches:
            _search(begin + _BUDGET)
        elif _State.part is not None:
            _look(in_loop, begin)
        else:
            grown = _growth()
            _State.next = state.look_due = _next(begin, grown)
            _State.asked_at = begin
            descriptors.look()
            if grown:  # the look itself begins at the next step: both at once stall one for longer
                _State.looks += 1
                _State.part = state.look_due = 0
    except RuntimeError:  # another thread changed what we looked at: see next time
        _State.part = None
    except Exception as error:  # the other hooks are well without this one
        state.look_due = _NEVER
        core.info("agent.keeps_off", "%s: %s" % (type(error).__name__, error))
    finally:
        _busy.release()
        spent = thread_time_ns() - ran
        cost(1, spent, spent, 0)


def _growth():
    """Bytes beyond the last few times, where the process keeps growing; else 0: there is nothing to find
    then, and a look costs as much as a hundred hooks."""
    resident = _resident_bytes()
    grown = resident - max(_State.resident)
    _State.resident = _State.resident[1 - _LAST:] + [resident]
    if grown < _GROWTH:
        _State.growing = max(0, _State.growing - 1)
        return 0
    _State.growing = min(_OFTEN, _State.growing + (2 if grown >= _FAST_GROWTH else 1))
    return grown if _State.growing == _OFTEN else 0


def _resident_bytes():
    try:
        statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)  # a file object takes longer
    except OSError:
        return 0
    try:
        return int(os.read(statm, 64).split()[1]) * _PAGE
    finally:
        os.close(statm)


def _next(begin, grown):
    """When the next look is due."""
    after = (begin - _State.began) / 1e9
    time = next((t for t in _TIMES if t > after), None)
    due = _State.began + int(time * 1e9) if time else begin + _EVERY * 1000000000
    if grown and _State.looks < _MOST_SOON:
        again = (begin - _State.asked_at) * _FAST_GROWTH // grown
        due = min(due, begin + min(max(again, _VERY_SOON), _SOON))
    return due


def _look(in_loop, begin):
    """One look, or as many of its parts as there is time for: the rest is for the steps that follow."""
    steps = state.steps if in_loop else _State.steps
    while True:
        more = _look_at(in_loop, steps)
        _State.part += 1
        if not more or now() > begin + _BUDGET // 2:
            break
    if not more:
        _State.part = None
    state.look_due = 0 if more or _searches else _State.next
    if not more and not _searches:
        _send([record for record, _ in suspects(_records)], begin)


def _look_at(in_loop, steps):
    """One part; whether there are more."""
    roots = naming.Roots()
    more = _find_roots(roots, in_loop)
    objects, parents, found, tensors = visit(roots.objects, thread_time_ns() + _BUDGET)
    old = {naming.short(objects, parents, at, roots): (at, back) for at, back in _old_graphs(objects, tensors, steps)}
    found += [(key, GRAPH, back) for key, (_, back) in old.items()]
    compare(_records, found, steps, _State.looks)
    if not any(r.suspect() and r.place is None for r in _records.values()):
        return more
    for one in objects:
        record = _records.get(id(one))
        if record is not None and record.bytes is None and record.suspect():
            record.bytes, record.graph = naming.weigh(one, record.kind)
    for record, key in suspects(_records):
        if record.name:
            continue
        if record.kind == GRAPH:
            at = old[key][0] if key in old else -1
        else:
            at = next((i for i, one in enumerate(objects) if id(one) == key), -1)
        if at >= 0:
            text, hints, record.place = naming.name(objects, parents, at, roots, record.kind)
            record.name = text.replace(" at ", " ").replace(": ", ":")  # a key: these two part the fact
            if record.place is None:
                _searches.append((record, naming.search(hints, list(_users.values()))))
    return more


def _old_graphs(objects, tensors, steps):
    """[(index, steps)] of the tensors whose graph goes back over many steps, and how many at least."""
    if not tensors or not _TENSORS:
        return []
    old = []
    with sys.modules["torch"]._C.DisableTorchFunction():  # the job may count calls
        roots = [(at, objects[at].grad_fn) for at in tensors[:64]]
    for at, root in [(at, root) for at, root in roots if hasattr(root, "_sequence_nr")][:_MOST_GRAPHS]:
        newest, oldest = graph.reach(root)
        if _State.numbered is None:
            _State.numbered = newest, steps
        first, since = _State.numbered
        if newest > first and steps > since:
            back = (newest - oldest) * (steps - since) // (newest - first)
            if back >= _OLD:
                old.append((at, back))
    return old


def _find_roots(roots, in_loop):
    """Where this part starts: the frames of the loop, the loaders, then one module after the other."""
    if _State.part == 0:
        frame = sys._getframe(3) if in_loop else None
        while frame is not None:
            if places.users_file(frame.f_code.co_filename) is not None:
                roots.add_frame(frame)
            frame = frame.f_back
        return True
    if _State.part == 1:
        for ref in _fetchers:
            fetcher = ref()
            if fetcher is not None:
                roots.add_fetcher(fetcher)
        _find_modules(sys.modules, now() + _BUDGET // 4)
        return bool(_users)
    name, file = list(_users.items())[_State.part - 2]
    module = sys.modules.get(name)
    if type(module) is ModuleType:
        roots.add_globals(module.__dict__, file)
    return _State.part - 1 < min(len(_users), _MOST_MODULES)


def _find_modules(modules, until):
    """The user's among those loaded: as many as there is time for, the rest another time."""
    count = len(modules)
    if not _new_modules and count != _State.modules:
        # Only the names of the new ones: those of thousands lie in as many places.
        _new_modules.extend(islice(reversed(modules), count - _State.modules if _State.modules < count else count))
        _State.modules = count
    while _new_modules and now() < until:
        name = _new_modules.pop()
        package = name.partition(".")[0]
        if package in _not_users:
            continue
        module = modules.get(name)
        file = module.__dict__.get("__file__") if type(module) is ModuleType else None
        path = places.users_file(file) if type(file) is str else None
        if path is not None:
            _users[name] = path
        elif name == package and type(file) is str:  # else it may be a folder without __init__.py
            _not_users.add(name)


@core.guarded
def find_modules():
    """All that are loaded by now: while a job is set up there is time for it."""
    try:
        _find_modules(sys.modules, _NEVER)
    except RuntimeError:  # another thread imports
        pass


def kind_of(cls):
    """What a look does with objects of a class: 0 is nothing."""
    known = _kinds.get(id(cls))
    if known is not None and (known[0] is None or known[0]() is cls):
        return known[1]
    if len(_kinds) > 4096:
        _kinds.clear()
    kind = GRAPH if _TENSORS and cls is _TENSORS[0] else _kind_of(cls)
    if not kind and (not _flags(cls) & _HEAP or any(cls is t for t in _TENSORS)):
        dull.add(id(cls))
    # Those that are not made by a class statement never go, so that no other gets their id.
    _kinds[id(cls)] = (weakref.ref(cls) if _flags(cls) & _HEAP else None, kind)
    return kind


def _kind_of(cls):
    flags = _flags(cls)
    if flags & 1 << 25:
        return LIST
    if flags & 1 << 26:
        return TUPLE
    if flags & 1 << 29:
        return DICT
    if flags & 1 << 31:
        return CLASS
    if cls is FunctionType:
        return FUNCTION
    if cls is _lru_cache_wrapper:
        return CACHE
    if cls is SimpleNamespace:
        return INSTANCE
    if not flags & _HEAP and cls is not set and cls is not deque:
        return 0
    plain = True
    for base in _mro(cls):
        if base is set:
            return SET
        if base is deque:
            return DEQUE
        plain = plain and (base is object or bool(_flags(base) & _HEAP))
    module = _module(cls)
    if not plain or type(module) is not str:
        return 0
    if module.startswith("torch.") and not module.startswith("torch.utils.data"):
        return 0  # layers and optimizers by the hundred
    return INSTANCE


def visit(roots, until):
    """Breadth first from `roots`, until this thread's CPU time: (objects, index of the parent of each, [(id, kind, length)], indices
    of tensors).

    The lists hold references: they are to be gone when the look ends.
    """
    objects = list(roots)
    parents = [-1] * len(objects)
    levels = [0] * len(objects)
    kinds, seen, found, tensors = {}, set(), [], []
    for position, one in enumerate(objects):  # grows meanwhile
        if not position & 7 and thread_time_ns() > until:
            break
        if id(one) in seen:
            continue
        seen.add(id(one))
        cls = type(one)
        kind = kinds.get(id(cls))
        if kind is None:
            kind = kinds[id(cls)] = kind_of(cls)
        if not kind:
            continue
        level = levels[position] + 1
        if kind <= DEQUE:
            length = _LENGTH[kind](one)
            if kind != DEQUE or _maxlen(one) is None:
                found.append((id(one), kind, length))
            if length > _MOST_INSIDE.get(kind, 0):
                continue
        elif kind == GRAPH:
            tensors.append(position)
            continue
        elif kind == CACHE:
            info = one.cache_info()
            if info.maxsize is None:
                found.append((id(one), kind, info.currsize))
            continue
        if level > _LEVELS or len(objects) > _OBJECTS:
            continue
        inside = _inside(one, kind)
        if inside:
            inside = [value for value in inside if id(type(value)) not in dull]
            parent = parents[position]
            if kind == DICT and parent >= 0 and kinds[id(type(objects[parent]))] == INSTANCE:
                level -= 1  # most likely its __dict__
            objects.extend(inside)
            parents += [position] * len(inside)
            levels += [level] * len(inside)
    return objects, parents, found, tensors


def _inside(one, kind):
    if kind == DICT:
        return list(dict.values(one))
    if kind == CLASS:
        module = _module(one)
        if type(module) is str and module in _users:
            return [v for v in islice(_class_dict(one).values(), 256) if type(v) is not FunctionType]
        return None
    if kind == FUNCTION:  # a default that is changed, what a decorator remembers
        inside = list(one.__defaults__ or ())
        for cell in one.__closure__ or ():
            inside.extend(gc.get_referents(cell))
        return inside
    if kind == TUPLE and tuple.__len__(one) > _MOST_INSIDE[TUPLE]:
        return None
    return gc.get_referents(one)


def compare(records, found, steps, look):
    """What has become of each container since the look before."""
    for key, kind, length in found:
        record = records.get(key)
        if record is None or record.kind != kind:
            records[key] = _Record(kind, length, steps, look)
            continue
        if record.seen == look and length >= record.length:
            continue  # found by another name, perhaps a step later
        record.seen = look
        record.upto = steps
        if length < record.length and kind != GRAPH:  # emptied, or the id is another's by now
            record.start(length, steps)
        elif length > record.length or kind == GRAPH:  # one that goes back so far is not let go
            record.streak += 1
            record.idle = 0
            record.length = max(record.length, length)
        else:
            record.idle += 1
            if record.streak < _SUSPECT_LOOKS or record.idle >= _FORGET:
                record.start(length, steps)
    for key in [k for k, r in records.items() if look - r.seen >= _FORGET]:
        del records[key]


def suspects(records, weighed=True):
    """[(record, id)] of those that grow, the worst first: at most three that were weighed."""
    found = [(r, key) for key, r in records.items() if r.suspect() and weighed == (r.bytes is not None)]
    found.sort(key=lambda one: one[0].weight(), reverse=True)
    return found[:_MOST_SENT]


def _search(until):
    """Goes on searching for lines until then, and once all are found sends them."""
    while _searches and now() < until:
        record, search = _searches[0]
        try:
            next(search)
        except StopIteration as end:
            record.place = end.value or ""
            _searches.pop(0)
    if not _searches:
        _State.sent_at = 0  # the look goes on, and is sent at its end


def tell(record):
    """NAME at FILE:LINE in FUNCTION: 340 items, 1.00 a step, 4096 bytes each, with its graph"""
    if record.kind == GRAPH:
        return "%s%s: a graph of %d steps or more" % (
            record.name, " at " + record.place if record.place else "", record.length)
    return "%s%s: %d items, %.2f a step%s%s" % (
        record.name, " at " + record.place if record.place else "", record.length,
        (record.length - record.first) / max(1, record.upto - record.steps),
        ", %d bytes each" % record.bytes if record.bytes else "", ", with its graph" if record.graph else "")


def _send(records, at):
    """All that grow, or "" for what no longer does."""
    records = [r for r in records if r.name is not None]
    names = [r.name for r in records]
    if names == [text[0] for text in _sent.values() if text[0]] and at - _State.sent_at < _AGAIN:
        return
    _State.sent_at = at
    for number in range(max(len(records), len(_sent))):
        name, text = (names[number], tell(records[number])) if number < len(records) else ("", "")
        if _sent.get(number) != (name, text):
            _sent[number] = (name, text)
            core.info("growth.%d" % number, text)
