"""tf.data: which of the job's lines put a pipeline together, what TensorFlow itself knows of its stages,
and what a compiled step waits for inside. Of tf.data.experimental.get_model_proto (some 10 us a look; a
TensorFlow that lacks it, or a job that switched autotuning off, leaves all this out).
"""
import re
import sys
from time import thread_time_ns
from weakref import ref

from . import core, places
from .core import EPOCH, FORWARD, INPUT_WAIT, cost, mark, now

_METHODS = ("apply", "batch", "bucket_by_sequence_length", "cache", "filter", "flat_map", "group_by_window",
            "interleave", "map", "padded_batch", "ragged_batch", "rebatch", "repeat", "scan", "shard", "shuffle",
            "snapshot", "take_while", "unbatch", "unique", "window", "with_options", "zip")
_READERS = ("TFRecordDatasetV2", "TextLineDatasetV2", "FixedLengthRecordDatasetV2", "ParallelInterleaveDataset")
_LOOK = 1_000_000_000  # from one look to the next, in ns
_FIRST = 8  # calls of a new iterator before it is looked at
_ENOUGH = 6  # gaps that tell what a step takes besides its input
_MUCH, _STALL = 0.15, 0.5  # of what calls take besides: what they usually wait, and one of them, from which it counts
_DEEPEST = 200


class _Model:
    """What is known of the iterator that the training asks."""

    read = None  # get_model_proto
    kind = None  # OwnedIterator
    iterator = lambda: None  # a weak reference
    calls = 0  # of it
    look_due = 0
    ended = 0  # the call before
    batches = 0  # that the pipeline had made at the last look
    outside = []  # ns between calls, since then
    lengths = []  # ns of calls, the same
    own = 0  # ns of a call without its input; 0 is not known
    waits = False  # whether calls wait for much of their time
    most = 0  # elements of the pipeline that was told


def install(tensorflow):
    from tensorflow.python.data.ops import dataset_ops, iterator_ops, readers

    for name in _METHODS:
        if callable(vars(dataset_ops.DatasetV2).get(name)):  # no static ones
            core.replace(dataset_ops.DatasetV2, name, _made)
    for name in _READERS:
        cls = getattr(readers, name, None)
        if cls is not None:
            core.replace(cls, "__init__", _read)
    _Model.kind = iterator_ops.OwnedIterator
    _Model.read = getattr(tensorflow.data.experimental, "get_model_proto", None)


def _made(method):
    def hook(self, *args, **kwargs):
        made = method(self, *args, **kwargs)
        if made is not self:
            _place(made)
        return made

    return hook


def _read(init):
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        _place(self)

    return __init__


@core.guarded
def _place(dataset):
    if "_flatout_at" not in vars(dataset):
        dataset._flatout_at = places.users_place(sys._getframe(2))


def called(args, begin, end):
    """A compiled step was called: says what of it was waiting for its input, and what it computed."""
    wait = 0
    for arg in args:
        if type(arg) is _Model.kind:
            wait = _wait_of(arg, begin, end) or 0
            break
    if wait:
        mark(INPUT_WAIT, 0, begin, begin + wait, 0, 0)  # note() takes the time since for its own
    mark(FORWARD, 0, begin + wait, end, 0, 0)


@core.guarded
def _wait_of(iterator, begin, end):
    model = _Model
    if model.iterator() is not iterator:
        if model.calls:
            mark(EPOCH, 0, begin, begin, 0, 0)
        model.iterator = ref(iterator)
        model.calls = model.ended = model.batches = 0
        model.outside, model.lengths = [], []
    model.calls += 1
    if model.ended:
        model.outside.append(begin - model.ended)
        model.lengths.append(end - begin)
    model.ended = end
    if model.read is not None and (model.calls == _FIRST or (end > model.look_due and model.calls > _FIRST)):
        model.look_due = end + _LOOK
        proto = look(iterator)
        if proto is not None:
            _learn(proto)
        model.outside, model.lengths = [], []
    wait = end - begin - model.own
    if not model.own or wait <= 0 or (not model.waits and wait < _STALL * model.own):
        return 0
    return wait


def _learn(proto):
    """What a call takes besides its input: from one batch to the question for the next, less what lies
    between calls."""
    gaps = sorted(proto.gap_times)[-1000:]
    outside, lengths = sorted(_Model.outside), sorted(_Model.lengths)
    if len(gaps) < _ENOUGH or len(outside) < _ENOUGH:
        return
    made = proto.nodes[proto.output].num_elements
    each = round((made - _Model.batches) / (len(outside) + (_Model.batches == 0)))  # steps_per_execution
    _Model.batches = made
    own = max(each, 1) * gaps[len(gaps) // 2] * 1000 - outside[len(outside) // 2]
    _Model.own = max(own, 1000)
    _Model.waits = lengths[len(lengths) // 2] - _Model.own > _MUCH * _Model.own


def asked(iterator, end):
    """The loop itself has taken a batch from an iterator."""
    if end > _Model.look_due and _Model.read is not None and type(iterator) is _Model.kind:
        _Model.look_due = end + _LOOK
        look(iterator)


@core.guarded
def look(iterator):
    """The model of a pipeline; tells its stages where it is the one that was asked most."""
    ran = thread_time_ns()
    proto = None
    try:
        proto = _Model.read(iterator)
        _tell(proto, getattr(iterator, "_dataset", None))
    except Exception as error:  # NotFoundError: its autotuning is off
        if type(error).__name__ not in ("NotFoundError", "UnimplementedError", "FailedPreconditionError"):
            raise
        _Model.read = None
    spent = thread_time_ns() - ran
    cost(1, spent, spent, 0)
    return proto


def _tell(proto, dataset):
    nodes = _in_order(proto.output, lambda i: proto.nodes[i].inputs)
    root = proto.nodes[proto.output].num_elements
    times = _times(proto, nodes)
    if root < _FIRST or root < _Model.most // 2 or (times is None and _Model.most):
        return
    _Model.most = max(root, _Model.most)
    times = times or dict.fromkeys(nodes, 1)
    made = {}  # kind -> places, from the last stage to the first
    for one in _in_order(dataset, _inputs) if dataset is not None else ():
        made.setdefault(_kind(type(one).__name__), []).append(getattr(one, "_flatout_at", None))
    kinds = [_kind(proto.nodes[i].name) for i in nodes]
    lines = []
    for i, kind in zip(nodes, kinds):
        node = proto.nodes[i]
        at = made.get(kind, ())
        which = kinds[:len(lines)].count(kind)
        # What TensorFlow put together or left out makes them differ.
        place = at[which] if len(at) == kinds.count(kind) else at[0] if len(set(at)) == 1 else None
        threads = [int(p.value) for p in node.parameters if p.name == "parallelism"]
        lines.append("%s\t%d\t%d\t%d\t%d\t%s" % (
            node.name, node.processing_time * times[i], node.num_elements, node.node_class,
            threads[0] if threads else 0, place or ""))
    core.info("tf.data.stages", "%d\n%s" % (root, "\n".join(lines)))


def _times(proto, nodes):
    """How many times as much as its node tells a stage took: behind a repeat() each round is counted anew.
    None where one has just begun."""
    times = {proto.output: 1}
    for i in nodes:
        node = proto.nodes[i]
        for below in node.inputs:
            times[below] = times.get(i, 1)
            if "Repeat" in node.name:
                made = proto.nodes[below].num_elements
                if made < _FIRST:
                    return None
                times[below] *= max(1, node.num_elements / made)
    return times


def _inputs(dataset):
    inputs = getattr(dataset, "_inputs", None)
    return inputs() if callable(inputs) else ()


def _in_order(first, inputs_of):
    """The stages from the last to the first."""
    out, left = [], [first]
    while left and len(out) < _DEEPEST:
        one = left.pop()
        out.append(one)
        left.extend(reversed(list(inputs_of(one))))
    return out


def _kind(name):
    """"map" of ParallelMapV2 and _ParallelMapDataset."""
    name = re.sub(r"^_*(Legacy)?(Parallel)?|(Dataset)?(V\d+)?$", "", name).lower()
    return "map" if name == "mapandbatch" else name
