"""How many nodes the graph has that a backward pass goes through: `torch.graph_nodes`, now and then;
whether autograd's anomaly detection watches it: `torch.anomaly`; how much of what it trains is in
double precision: `model.float64`; whether the graph is kept for another backward pass:
`torch.retain_graph`; and how far back the graph of a tensor goes that the job keeps.

A count that grows with the steps is a graph that is never let go. Nothing of the graph is held
after a look; leaves (AccumulateGrad) are not counted. A graph too large to be counted is as large as
what was numbered from one step to the next, for nodes are numbered as operations make them.
"""
import sys
from time import thread_time_ns

from . import core, half, places
from .core import NEVER, cost, get_ident, now, state

_STEPS = (3, 10, 50)  # the steps in whose backward it looks; then
_EVERY = 5000000000  # ns
_MOST = 4096  # nodes
_BUDGET = 300000  # ns of this thread's CPU time: what others take of the core cuts no look short
_HOPS = 96  # from node to node, each time to the oldest that follows
_Tensor = _anomaly_enabled = _float64 = None
_PARAMETERS = 64  # of a graph, whose type is looked at
_anomaly = [False]  # as it was last told
_doubles = [None]  # the same
_retains = [False]  # the same
_looked_for_half = [False]
_counted = [0, False]
_seen = [NEVER, 0]  # the step whose graph was too large, and its root's number


def install(torch):
    global _Tensor, _anomaly_enabled, _float64
    _Tensor, _anomaly_enabled, _float64 = torch.Tensor, torch.is_anomaly_enabled, torch.float64
    state.graph_step = _STEPS[0] - 1  # steps done before it


def look(*args, **kwargs):
    """Called before a backward that is due, with its arguments."""
    ran = thread_time_ns()
    _look(args[0] if args else kwargs.get("tensors"), now())
    _look_whether_kept(args[2] if len(args) > 2 else kwargs.get("retain_graph"), sys._getframe(1))
    spent = thread_time_ns() - ran
    cost(0, spent, spent, 0)


@core.guarded
def _look(tensors, begin):
    due = next((n - 1 for n in _STEPS if n - 1 > state.steps), NEVER)
    state.graph_step = due
    state.graph_due = begin + _EVERY if due == NEVER else NEVER
    if core.is_off or core.compiling() or state.train_thread != get_ident():
        return
    if not isinstance(tensors, _Tensor):
        tensors = tensors[0] if type(tensors) in (list, tuple) and tensors else None
    root = getattr(tensors, "grad_fn", None)
    if root is None:
        return
    if _anomaly_enabled() != _anomaly[0]:
        _anomaly[0] = not _anomaly[0]
        core.info("torch.anomaly", _anomaly[0])
    doubles = "%d/%d" % count_doubles(root) if tensors.dtype is _float64 else None
    if doubles != _doubles[0]:
        _doubles[0] = doubles
        core.info("model.float64", doubles or "")
    if not _looked_for_half[0]:
        _looked_for_half[0] = True
        half.look(root)
    if _seen[0] == state.steps - 1:
        counted = [root._sequence_nr() - _seen[1], True]
        _seen[0] = NEVER
    else:
        counted = list(count_nodes(root, thread_time_ns() + _BUDGET))
        if not counted[1]:
            _seen[:] = state.steps, root._sequence_nr()
            state.graph_step = state.steps + 1
    if counted == _counted or (not counted[1] and counted[0] < _counted[0]):
        return  # one that was cut short says nothing of a graph that has been seen to be larger
    _counted[:] = counted
    core.info("torch.graph_nodes", "%d%s" % (counted[0], "" if counted[1] else "+"))


@core.guarded
def _look_whether_kept(retains, frame):
    if core.is_off or core.compiling() or state.train_thread != get_ident():
        return
    if bool(retains) != _retains[0]:
        _retains[0] = bool(retains)
        core.info("torch.retain_graph", _retains[0])
        core.info("torch.retain_graph.set_at", retains and places.users_place(frame) or "")


def count_nodes(root, until):
    """(nodes from `root` on, breadth first; whether these are all)."""
    nodes, seen = [root], {root}
    for node in nodes:  # grows as it goes
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                if type(following).__name__ != "AccumulateGrad":
                    nodes.append(following)
        if len(nodes) >= _MOST or not len(seen) & 7 and thread_time_ns() > until:
            return len(nodes), False
    return len(nodes), True


def count_doubles(root):
    """(elements in float64, elements) of the parameters that the graph first comes to."""
    doubles = elements = parameters = 0
    nodes, seen = [root], {root}
    for node in nodes:  # grows as it goes
        parameter = getattr(node, "variable", None)
        if parameter is not None:
            parameters += 1
            elements += parameter.numel()
            doubles += parameter.numel() * (parameter.dtype is _float64)
        if parameters == _PARAMETERS or len(nodes) >= _MOST:
            break
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return doubles, elements


def reach(root):
    """(number of `root`, the lowest number it leads to): nodes are numbered as operations make them."""
    newest = oldest = root._sequence_nr()
    node = root
    for _ in range(_HOPS):
        older = None
        for following, _ in node.next_functions:
            number = oldest if following is None else following._sequence_nr()
            if number < oldest:
                older, oldest = following, number
        if older is None:
            break
        node = older
    return newest, oldest
