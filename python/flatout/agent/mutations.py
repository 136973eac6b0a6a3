"""Finds the line of the user's that makes a container grow, by its name, in the source.

It holds nothing of the job but strings, and is done in small pieces: after each `yield` the rest may
wait for the end of another step.
"""
import re

LIST, DICT, SET, DEQUE, GRAPH = range(1, 6)  # GRAPH: a tensor, by the operations that made it
_MOST_BYTES = 400000  # of a source file
_MOST_FILES = 64

_SUBSCRIPT = rb"(?:\s*\[(?:[^\[\]\n]|\[(?:[^\[\]\n]|\[[^\[\]\n]*\])*\])*\])"
_ASSIGN = rb"\s*(?:[-+*/|&^%@]|//|\*\*|<<|>>)?=(?!=)"
_CALL = rb"\s*\.\s*(?:%s)\s*\("
_GROWS = {
    LIST: _CALL % rb"append|extend|insert" + rb"|\s*\+=",
    DEQUE: _CALL % rb"append|appendleft|extend|extendleft|insert" + rb"|\s*\+=",
    SET: _CALL % rb"add|update" + rb"|\s*\|=",
    DICT: _CALL % rb"update|setdefault|__setitem__" + rb"|\s*\|=|" + _SUBSCRIPT + rb"+(?:" + _ASSIGN
          + rb"|" + _CALL % rb"append|appendleft|extend|add|insert|update|setdefault" + rb")",
    GRAPH: rb"\s*(?:[-+*/@]|//)?=(?!=)|" + _CALL % rb"\w+_",
}
_GROWS = {  # compiled now: that takes longer than a step may be held up
    (kind, deep): re.compile((_SUBSCRIPT + rb"+" if deep else rb"") + rb"(?:" + grows + rb")")
    for kind, grows in _GROWS.items() for deep in (False, True)}
_PUSHES = re.compile(rb"\b(?:heappush|insort|insort_left|insort_right)\s*\(\s*(?:\w+\s*\.\s*)*$")
_PUSHED = re.compile(rb"\s*[,)]")
_NUMBER = re.compile(rb"\s*(?:(?:float|int|len|round)\s*\(|[^\n,#]*\.\s*item\s*\(\s*\)\s*\))")
_LINE = re.compile(rb"^([ \t]*)(?=[\w@])", re.M)
_WORDS = frozenset(bytes((c,)) for c in range(256) if re.match(rb"[\w\x80-\xff]", bytes((c,))))
_HEADER = re.compile(
    rb"^([ \t]*)(?:async[ \t]+)?(def|class|if|elif|else|for|while|with|try|except|finally|match|case)\b"
    rb"[ \t]*(\w*)", re.M)
_TAB = 8


class Hint:
    """Where to look for a name, and what it is the name of."""

    __slots__ = ("file", "name", "kind", "inside", "line", "attribute", "subscript")

    def __init__(self, file, name, kind, inside, line, attribute, subscript):
        self.file = file  # the first to look into, or None
        self.name = name
        self.kind = kind
        self.inside = inside  # "def NAME" or "class NAME" to look into first, or ""
        self.line = line  # where that begins, at the earliest
        self.attribute = attribute  # follows a dot
        self.subscript = subscript  # the container is an item of what has that name


def find(hints, files):
    """A generator: yields None until it returns "FILE:LINE in FUNCTION", or None where there is none."""
    for hint in hints:
        if hint.file is not None:
            source = _read(hint.file)
            yield
            for inside in ((hint.inside, "") if hint.inside else ("",)):
                found = yield from _search(source, hint, inside)
                if found is not None:
                    return _place(hint.file, source, found)
    for hint in hints:
        for file in files[:_MOST_FILES]:
            if file != hint.file and (hint.attribute or not hint.inside.startswith("def ")):
                source = _read(file)
                yield
                found = yield from _search(source, hint, "")
                if found is not None:
                    return _place(file, source, found)
    return None


def _read(file):
    try:
        with open(file, "rb") as source:
            return source.read(_MOST_BYTES)
    except OSError:
        return b""


def _search(source, hint, inside):
    """The offset of the first line in `source` that makes it grow, or None.

    One that puts in a mere number is told only where there is no other.
    """
    numbers = None
    name = hint.name.encode("utf-8", "replace")
    begin, end = _body(source, inside, hint.line) if inside else (0, len(source))
    grows = _GROWS[hint.kind, hint.subscript]
    start = source.find(name, begin, end)
    while start >= 0:
        after = start + len(name)
        line = source[source.rfind(b"\n", 0, start) + 1:start]
        whole = source[after:after + 1] not in _WORDS and line[-1:] not in _WORDS
        if whole and b"#" not in line and (line.rstrip()[-1:] == b".") == hint.attribute:
            how = grows.match(source, after, end)
            if how is not None and (hint.kind != GRAPH or _adds(source, name, how)):
                if hint.kind == GRAPH or _NUMBER.match(source, how.end(), end) is None:
                    return start
                numbers = start if numbers is None else numbers
            if hint.kind == LIST and _PUSHES.search(line) and _PUSHED.match(source, after):
                return start
        yield
        start = source.find(name, after, end)
    return numbers


def _adds(source, name, how):
    """Whether an assignment keeps what `name` was before: `x += y`, `x = x + y`, `x.add_(y)`."""
    if how.group().lstrip() != b"=":
        return True
    line = source[how.end():how.end() + 400].partition(b"\n")[0]
    return re.search(rb"\b" + re.escape(name) + rb"\b", line) is not None


def _body(source, header, line):
    """Where the body of that def or class begins and ends."""
    word, _, name = header.encode("utf-8", "replace").partition(b" ")
    begin = 0
    for _ in range(line - 1):
        begin = source.find(b"\n", begin) + 1
    for found in _HEADER.finditer(source, begin):
        if found.group(2) == word and found.group(3) == name:
            indent = _indent(found.group(1))
            for after in _LINE.finditer(source, found.end()):
                if _indent(after.group(1)) <= indent:
                    return found.end(), after.start()
            return found.end(), len(source)
    return 0, 0


def _place(file, source, start):
    return "%s:%d in %s" % (file, source.count(b"\n", 0, start) + 1, _function(source, start))


def _indent(blank):
    return len(blank.expandtabs(_TAB))


def _function(source, start):
    """The name that the code object of this line has: the innermost def or class around it."""
    begin = source.rfind(b"\n", 0, start) + 1
    line = source[begin:start]
    least = _indent(line[:len(line) - len(line.lstrip())])
    own = _HEADER.match(source, begin, start)
    if own is not None and own.group(2) == b"def":  # all on one line
        return own.group(3).decode("utf-8", "replace")
    for header in reversed(list(_HEADER.finditer(source, 0, begin))):
        indent = _indent(header.group(1))
        if indent < least:
            least = indent
            if header.group(2) in (b"def", b"class"):
                return header.group(3).decode("utf-8", "replace")
    return "<module>"
