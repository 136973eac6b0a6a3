"""What the job calls a container: the names that a look starts from, and the way from there to it."""
import gc
import sys
from collections import deque
from itertools import islice
from types import FunctionType, MemberDescriptorType

from . import keeps, mutations, places
from .mutations import DEQUE, DICT, LIST, SET, Hint

_FUNCTION_FRAME = 1  # CO_OPTIMIZED
_PROXY = sys.version_info >= (3, 13)  # frame.f_locals is no snapshot (PEP 667)
# Before that the frame keeps what f_locals gives, and shares it with the job's own locals().
_HANDS_OFF = frozenset((
    "locals", "vars", "dir", "eval", "exec", "f_locals", "_getframe", "currentframe", "getargvalues",
    "stack", "breakpoint", "set_trace", "query", "save_hyperparameters"))
_MOST_ALIASES = 8
_name = type.__dict__["__name__"].__get__
_PLAIN = frozenset(map(id, (int, float, complex, bool, str, bytes, bytearray, type(None))))


class Roots:
    """Where a look starts. It holds references, and is gone when the look ends."""

    def __init__(self):
        self.objects = []
        self.labels = []  # of each: (name, file, "def NAME" or "", its line, name is a variable's)
        self._globals = set()

    def _add(self, named, file, inside, line, variables=True):
        dull = keeps.dull
        for name, value in named:
            if id(type(value)) not in dull and type(name) is str and name[:2] != "__":
                self.objects.append(value)
                self.labels.append((name, file, inside, line, variables))

    def add_frame(self, frame):
        code = frame.f_code
        file = places.users_file(code.co_filename)
        inside = "def " + code.co_name if code.co_name.isidentifier() else ""
        self._add(locals_of(frame), file, inside, code.co_firstlineno)
        module = sys.modules.get(frame.f_globals.get("__name__"))
        if getattr(module, "__dict__", None) is not frame.f_globals:
            self.add_globals(frame.f_globals, file)

    def add_globals(self, names, file):
        if id(names) not in self._globals:
            self._globals.add(id(names))
            self._add(list(names.items()), file, "", 0)

    def add_fetcher(self, fetcher):
        """A loader's dataset is known by its class; so is what makes a batch of its samples."""
        dataset = fetcher.__dict__.get("_flatout_dataset")
        for one in (dataset, fetcher.__dict__.get("_flatout_collate")):
            if one is not None:
                self._add([(_name(type(one)), one)], None, "", 0, False)
        iterator = fetcher.__dict__.get("_flatout_iterator")
        if type(iterator) is _GENERATOR and iterator.gi_frame is not None:
            if places.users_file(iterator.gi_frame.f_code.co_filename) is not None:
                self.add_frame(iterator.gi_frame)


_GENERATOR = type(_ for _ in ())


def locals_of(frame):
    """[(name, value)]; what the frame itself keeps for it is emptied again."""
    code = frame.f_code
    if not code.co_flags & _FUNCTION_FRAME:
        return []
    if _PROXY:
        return list(frame.f_locals.items())
    if not _HANDS_OFF.isdisjoint(code.co_names) or sys.gettrace() is not None:
        return []
    snapshot = frame.f_locals
    try:
        return list(snapshot.items())
    finally:
        if sys.getrefcount(snapshot) <= 3:  # the frame's, ours, the argument: nobody else has it
            snapshot.clear()


class _Way:
    """A name as it is put together from its root on."""

    def __init__(self, label):
        self.text, self.file, self.inside, self.line, variable = label
        self.last = self.text if variable else ""
        self.attribute = self.subscript = False
        self.owner = None  # the class that the attribute is of

    def attribute_of(self, text, name, owner):
        self.text = "%s.%s" % (text, name)
        self.last, self.owner = name, owner
        self.attribute, self.subscript = True, False

    def item(self, key):
        self.text = "%s[%s]" % (self.text, key)
        self.subscript = True


def name(objects, parents, at, roots, kind):
    """(name, hints for mutations.find, the place where that is known already) of objects[at]."""
    target = objects[at]
    ways = []
    for position, one in enumerate(objects):
        if one is target and len(ways) < _MOST_ALIASES:
            ways.append(_way(objects, parents, position, roots))
    text = _clean(ways[0].text)
    if kind == keeps.CACHE:
        function = getattr(target, "__wrapped__", None)
        code = function.__code__ if type(function) is FunctionType else None
        file = places.users_file(code.co_filename) if code is not None else None
        return text, [], "%s:%d in %s" % (file, code.co_firstlineno, code.co_name) if file else ""
    hints = []
    for way in ways:
        hints.extend(_hints(way, kind))
    return text, hints, None


def short(objects, parents, at, roots):
    """What objects[at] is called by the way on which it was found."""
    return _clean(_way(objects, parents, at, roots).text)


def search(hints, files):
    return mutations.find(hints, list(dict.fromkeys(files)))


def _clean(text):
    return "".join(c if c.isprintable() else "?" for c in text)[:120]


def _way(objects, parents, position, roots):
    steps = [position]
    while parents[steps[-1]] >= 0:
        steps.append(parents[steps[-1]])
    steps.reverse()
    way = _Way(roots.labels[steps[0]])
    if way.last == "self":
        way.text = _name(type(objects[steps[0]]))
    before = None  # the instance that the parent may be the __dict__ of
    for up, down in zip(steps, steps[1:]):
        parent, child = objects[up], objects[down]
        kind = keeps.kind_of(type(parent))
        if kind == DICT:
            key = next((k for k, v in dict.items(parent) if v is child), "...")
            if before is not None and _dict_of(before) is parent:
                way.attribute_of(way.text, key, type(before))
            else:
                way.item(repr(key)[:40] if type(key) in (str, int) else "...")
        elif kind == keeps.INSTANCE:
            own = _dict_of(parent)
            if own is not child:
                way.attribute_of(way.text, _attribute(parent, own, child), type(parent))
            before = parent
            continue
        elif kind == keeps.CLASS:
            key = next((k for k, v in keeps._class_dict(parent).items() if v is child), "...")
            way.attribute_of(_name(parent), key, parent)
        elif kind == keeps.FUNCTION:
            _of_function(way, parent, child)
        else:
            way.item("...")
        before = None
    return way


def _dict_of(one):
    try:
        return object.__getattribute__(one, "__dict__")
    except AttributeError:
        return None


def _attribute(one, own, child):
    if type(own) is dict:
        for key, value in own.items():
            if value is child:
                return key
    for base in type(one).__mro__:
        for key, value in vars(base).items():
            if type(value) is MemberDescriptorType:
                try:
                    if value.__get__(one) is child:
                        return key
                except AttributeError:
                    pass
    return _name(child) if isinstance(child, type) else "..."


def _of_function(way, function, child):
    code = function.__code__
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults):code.co_argcount]
    names += tuple(code.co_freevars)
    cells = [gc.get_referents(cell) for cell in function.__closure__ or ()]
    values = list(defaults) + [cell[0] if cell else None for cell in cells]
    way.last = next((n for n, v in zip(names, values) if v is child), "...")
    way.text = "%s.%s" % (code.co_name, way.last)
    way.file = places.users_file(code.co_filename)
    way.inside, way.line = "def " + code.co_name, code.co_firstlineno


def _hints(way, kind):
    if not way.last.isidentifier() or way.last == "self" and not way.attribute:
        return
    if not way.attribute:
        yield Hint(way.file, way.last, kind, way.inside, way.line, False, way.subscript)
        if not way.inside:  # a global, as others call it
            yield Hint(None, way.last, kind, "", 0, True, way.subscript)
        return
    classes = []
    for base in way.owner.__mro__:
        module = sys.modules.get(base.__module__)
        file = getattr(module, "__file__", None)
        file = places.users_file(file) if type(file) is str else None
        if file is not None:
            classes.append((file, "class " + _name(base)))
    for file, inside in classes:
        yield Hint(file, way.last, kind, inside, 0, True, way.subscript)
    yield Hint(way.file, way.last, kind, "", 0, True, way.subscript)
    for file, inside in classes:  # by a local name that is the same
        yield Hint(file, way.last, kind, inside, 0, False, way.subscript)


def weigh(one, kind):
    """About how many bytes the item keeps that came last, and whether it keeps a graph of autograd."""
    if kind in (LIST, DEQUE):
        at = (list if kind == LIST else deque).__getitem__
        items = [at(one, -i) for i in (2, 1) if i <= keeps._LENGTH[kind](one)]
    elif kind == DICT:
        items = list(islice(reversed(dict.values(one)), 2))[::-1]
    elif kind == SET:
        items = list(islice(set.__iter__(one), 2))
    else:
        items = []
    scale = _Scale()
    torch = sys.modules.get("torch")
    if torch is None or not items:
        return scale.last(items)
    scale.tensors = (torch.Tensor, torch.nn.Parameter)
    with torch._C.DisableTorchFunction():  # the job may count calls
        return scale.last(items)


class _Scale:
    """A view counts as all the memory that it keeps, unless the item before keeps that, too."""

    tensors = ()

    def __init__(self):
        self.numpy = getattr(sys.modules.get("numpy"), "ndarray", None)
        self.kept = set()  # where memory lies that items before keep

    def last(self, items):
        result = 0, False
        for item in items:
            seen = set()
            result = self._bytes(item, 3, seen)
            self.kept |= seen
        return result

    def _bytes(self, item, depth, seen):
        cls = type(item)
        if id(cls) in _PLAIN:
            return sys.getsizeof(item), False
        if any(cls is t for t in self.tensors):
            own, whole, at = item.element_size() * item.nelement(), *_storage(item)
            seen.add(at)
            return own if at in self.kept else max(own, whole), not item.is_leaf
        if cls is self.numpy:
            base = item
            while type(base.base) is cls:
                base = base.base
            seen.add(id(base))
            return item.nbytes if id(base) in self.kept else max(item.nbytes, base.nbytes), False
        kind = keeps.kind_of(cls)
        if not depth or kind not in (LIST, DICT, keeps.TUPLE, keeps.INSTANCE):
            return 0, False
        if kind != keeps.INSTANCE and (tuple if kind == keeps.TUPLE else dict if kind == DICT
                                       else list).__len__(item) > 1000:
            return 0, False
        total, graph = 0, False
        for child in gc.get_referents(item)[:32]:
            size, kept = self._bytes(child, depth - 1, seen)
            total, graph = total + size, graph or kept
        return total, graph


def _storage(tensor):
    """(bytes, address) of the memory that a tensor keeps; no bytes where it has none of its own kind."""
    try:
        storage = tensor.untyped_storage()
        return storage.nbytes(), storage.data_ptr()
    except (AttributeError, RuntimeError, NotImplementedError):  # an older torch, a sparse or a fake tensor
        return 0, 0
