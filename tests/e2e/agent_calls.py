"""Tries out what the agent's hooks are made of, in any Python and without a framework.

`agent_calls.py builtin|plain`: the builtins of libflatout_agent.so, or what stands for them elsewhere.
Fails where one does not do as the function that it stands for.
"""
import copy
import gc
import importlib.util
import inspect
import os
import pickle
import sys
import threading
import time
import weakref

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "python", "flatout", "agent")
spec = importlib.util.spec_from_file_location("_flatout_agent", os.path.join(FOLDER, "__init__.py"),
                                              submodule_search_locations=[FOLDER])
package = importlib.util.module_from_spec(spec)
sys.modules["_flatout_agent"] = package
spec.loader.exec_module(package)
core = package.core
if sys.argv[1] == "plain":
    core._OBJECT_SIZE = 0
assert core.connect()
calls, state = core.calls, core.state
assert (type(calls.samples) is type(len)) == (sys.argv[1] == "builtin")


def raises(kind, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        return error
    raise AssertionError("no %s" % kind)


def add(a, b=2):
    """Adds."""
    return a + b


# ---- arguments, results and exceptions are passed on ----

done = []
gradients = True
calls.set_callbacks(lambda: done.append("step"), lambda *a, **k: done.append(a), lambda: gradients,
                    lambda batch: done.append(batch))
name = core.intern("a name")
timed_add = calls.timed(core.SYNC | name << 32, add)
assert timed_add(1, b=5) == 6
assert "missing" in str(raises(TypeError, timed_add))
error = ValueError("theirs")


def fail(*args):
    raise error


for make in (calls.timed, calls.backward, calls.step, calls.scaled, calls.wait_for_input):
    assert raises(ValueError, make(core.PHASE, fail), 1) is error
assert state.step_thread == state.loader_thread == 0

# ---- a hook looks and binds like the function that it stands for ----


class Owner:
    def method(self, x, y=1):
        """What it does."""
        return (self, x, y)


plain = Owner.method
plain.mark = "theirs"
assert core.replace(Owner, "method", lambda f: calls.timed(core.PHASE, f))
assert not core.replace(Owner, "method", lambda f: calls.timed(core.PHASE, f))
hook, owner = Owner.method, Owner()
assert hook is Owner.__dict__["method"] and type(hook) is calls.Hook
assert owner.method(3, y=4) == (owner, 3, 4) == hook(owner, 3, 4) == owner.method.__func__(owner, 3, 4)
assert owner.method.__self__ is owner and hook.__get__(owner, Owner)(1) == (owner, 1, 1)
assert inspect.signature(hook) == inspect.signature(plain) and hook.__wrapped__ is plain
assert inspect.signature(owner.method) == inspect.signature(plain.__get__(owner))
assert (hook.__name__, hook.__qualname__, hook.__module__, hook.__doc__) == (
    "method", "Owner.method", __name__, "What it does.")
assert hook.mark == "theirs" and hook.__code__ is plain.__code__ or sys.argv[1] == "plain"
hook.more = 1
assert hook.more == 1 and hook.__dict__["more"] == 1 and not hasattr(plain, "more")
del hook.more
raises(AttributeError, getattr, hook, "more")
raises(AttributeError, delattr, hook, "more")
assert "Owner.method" in repr(hook) and callable(hook)
assert pickle.loads(pickle.dumps(hook)) is hook and copy.deepcopy(hook) is hook
assert pickle.loads(pickle.dumps(Owner.method)) is hook
if sys.version_info >= (3, 9):
    assert weakref.ref(hook)() is hook
    assert weakref.WeakMethod(owner.method)()(1) == (owner, 1, 1)


class Derived(Owner):
    def method(self, x):
        return super().method(x, y=7)


assert Derived().method(1)[1:] == (1, 7)

# ---- a step: the slices, and who is told ----


class Base:
    def __call__(self, x):
        return self.inner(x)


class Model(Base):
    training = True

    def inner(self, x):
        return x + 2


class Inner(Model):
    pass


class Optimizer:
    def step(self, closure=None):
        if closure is None:
            return "done"
        for _ in range(3):
            closure()
        return Optimizer.step(self)


Model.__call__ = calls.forward(core.FORWARD, Base, "__call__")
if sys.argv[1] == "builtin":
    function, args = Model.__call__.__reduce__()
    assert function(*args) is Base.__call__
Inner.inner = lambda self, x: Model.__call__(Model(), x)  # one inside another
core.replace(Optimizer, "step", lambda f: calls.step(core.OPTIMIZER, f))
backward = calls.backward(core.BACKWARD, add)
model, first, second = Model(), Optimizer(), Optimizer()
state.rare_step, state.graph_step, state.look_due = 3, 2, core.NEVER
for optimizer in (first, second, first):
    assert Inner()(1) == 3
    assert backward(1) == 3
    assert optimizer.step() == "done"
assert state.steps == 3 and state.backwards == 3 and state.forwards == 3
assert state.waiting and state.train_thread == threading.get_ident()
assert done == [(1,), "step"], done
state.rare_step = state.graph_step = core.NEVER
assert first.step(lambda: backward(1)) == "done"
assert raises(ValueError, calls.forward(core.FORWARD, fail), model) is error
assert calls.scaled(core.OPTIMIZER, lambda scaler, optimizer: "done it")(None, first) == "done it"  # left out
Base.__call__, was = lambda self, x: "replaced", Base.__call__
assert model(1) == "replaced"
Base.__call__ = was
gradients = False
model(1)  # in training mode: a rollout, a line search
teacher = Model()
teacher.training = False
teacher(1)
gradients = True
model.training = False
model(1)  # validation, until a backward follows
backward(1)
model(1)

# ---- waits ----

first.step()
wait = core.INPUT_WAIT | name << 32
assert calls.wait_for_input(wait, lambda: time.sleep(0.001) or 7)() == 7
assert calls.wait_for_input(wait, add)(1) == 3  # too short to be told
assert raises(ValueError, calls.wait_for_input(wait, lambda: time.sleep(0.001) or fail())) is error

# ---- loaders ----


class Batches:
    left = 2

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    __iter__ = lambda self: self  # noqa: E731


core.replace(Batches, "__next__", lambda f: calls.next(core.INPUT_WAIT, f))
batches = Batches()
assert list(batches) == [1, 0] and state.iterator == id(batches) and state.epochs == 1
shown = calls.next(core.PHASE, lambda batch: batch)
del done[:]
assert shown("unseen") == "unseen" and done == []
state.batch_step = state.steps
assert shown("seen") == "seen" and done == ["seen"]
state.batch_step = core.NEVER


class Data:
    field = 7

    def __getitem__(self, index):
        if index == 9:
            raise error
        time.sleep(0.1 * (index == 2))
        return index * 2


samples = calls.samples(Data())
assert samples[4] == 8 and samples.field == 7 and not hasattr(samples, "__getitems__")
assert calls.fetch((samples, lambda indices: [samples[i] for i in indices]))([1, 2, 3]) == [2, 4, 6]
assert raises(ValueError, calls.fetch((samples, lambda indices: [samples[i] for i in indices])), [9]) is error
raises(AttributeError, getattr, samples, "no_such")
assert list(calls.sample_iterator(iter([1, 2]))) == [1, 2]


def generate():
    yield 1
    raise error


iterator = calls.sample_iterator(generate())
assert next(iterator) == 1 and raises(ValueError, next, iterator) is error


class Array:
    nbytes = 40


for batch, size in (([Array(), Array(), 3], 80), ((Array(),), 40), ({"x": Array(), "y": "z"}, 40), (Array(), 40),
                    (None, 0)):
    assert calls.collate(lambda given: given)(batch) is batch

# ---- nothing is kept ----


class Held:
    def __getitem__(self, index):
        return index


held = Held()
seen = weakref.ref(held)
samples = calls.samples(held)
del held
assert seen() is not None and samples[1] == 1
del samples
assert seen() is None
held = Held()
seen = weakref.ref(held)
held.me = calls.samples(held)
held.fetch = calls.fetch((held.me, held.__getitem__))
held.collate = calls.collate(held.__getitem__)
del held
gc.collect()
assert seen() is None
held = Held()
if hasattr(sys, "getrefcount"):
    value = object()

    class Kept(Base):
        inner = lambda self, *a, **k: value  # noqa: E731
        step = calls.step(core.OPTIMIZER, inner)
        __call__ = calls.forward(core.FORWARD, Base, "__call__")
        __next__ = calls.next(core.INPUT_WAIT, inner)

    kept = Kept()
    timed, backwards = calls.timed(core.LOGGING, lambda *a, **k: value), calls.backward(core.BACKWARD, lambda *a: value)
    counted = [value, kept, Kept, add, Base, Base.__call__, Kept.step, timed, type(calls.samples(Data()))]

    def every():
        timed(value, key=value)
        backwards(value)
        kept.step(value, key=value)
        bound = kept.step
        bound(value)
        kept(value)
        next(kept)
        raises(AttributeError, getattr, kept.step, "nothing")
        timed.value = value
        calls.timed(core.LOGGING, add).value = value
        calls.fetch((calls.samples(Data()), lambda it: value))([1])
        calls.collate(lambda it: it)((value,))
        calls.note(core.LOGGING, 1, 2)

    def in_a_thread(times):
        # Free-threaded, a thread counts an object's references to its type by itself until it ends.
        thread = threading.Thread(target=lambda: [every() for _ in range(times)])
        thread.start()
        thread.join()

    def references():
        return [sys.getrefcount(one) % (2**60 - 1) for one in counted]  # it adds that many where it counts by thread

    every()
    in_a_thread(1)
    before = references()
    in_a_thread(1000)
    after = references()
    assert all(abs(a - b) < 10 for a, b in zip(after, before)), (before, after)

# ---- a hook never fails into the job ----

calls.note(core.PHASE, 5, 9, 3, 4)
if sys.argv[1] == "builtin":
    raises(TypeError, calls.fetch, (held, len))
    raises(TypeError, calls.fetch, ())
    raises(TypeError, calls.step, 1)
    raises(TypeError, calls.step, "no", add)
    assert calls.note(core.PHASE, "no", None, 1.5, 1 << 80) is None
gc.callbacks.append(calls.collected)
gc.collect()
gc.callbacks.remove(calls.collected)


# ---- a signal's exception on the way out of a hook of ours is the job's ----


def interrupted(*_):
    raise KeyboardInterrupt


calls.set_callbacks(interrupted, None, lambda: True, interrupted)
state.rare_step = 0
raises(KeyboardInterrupt, first.step)
state.rare_step = core.NEVER
state.batch_step = 0
raises(KeyboardInterrupt, shown, "a batch")
state.batch_step = core.NEVER

# ---- threads and forks ----

failed = []


timed_phase = calls.timed(core.PHASE, add)


def work():
    try:
        for i in range(2000):
            assert timed_phase(i) == i + 2
            assert Model()(i) == i + 2
    except BaseException as problem:
        failed.append(problem)


threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
child = os.fork()
if child == 0:
    while core._library.flatout_agent_active() == 1 and core._library.flatout_agent_start(2):
        pass  # connected anew, until the ring has come
    work()
    os._exit(1 if failed or state.train_thread else 0)
assert os.waitpid(child, 0)[1] == 0
print("ok", os.getpid())
