"""Tries out what the agent's hooks are made of, in any Python and without a framework.

`agent_calls.py builtin|plain`: the builtins of libflatout_agent.so, or what stands for them elsewhere.
Fails where one does not do as the function that it stands for.
"""
import gc
import importlib.util
import os
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
assert (type(calls.timed) is type(len)) == (sys.argv[1] == "builtin")


def raises(kind, function, *args):
    try:
        function(*args)
    except kind as error:
        return error
    raise AssertionError("no %s" % kind)


def add(a, b=2):
    return a + b


# ---- arguments, results and exceptions are passed on ----

done = []
calls.set_callbacks(lambda: done.append("step"), lambda *a, **k: done.append(a), lambda: True, core.idle_hook())
name = core.intern("a name")
assert calls.timed(core.SYNC | name << 32, add, (1,), {"b": 5}) == 6
assert "missing" in str(raises(TypeError, calls.timed, core.SYNC, add, (), {}))
error = ValueError("theirs")


def fail(*args):
    raise error


for call in (calls.timed, calls.backward, calls.step, calls.scaled, calls.wait):
    assert raises(ValueError, call, core.PHASE, fail, (1,), {}) is error
assert state.step_thread == state.loader_thread == 0

# ---- a step: the slices, and who is told ----


class Model:
    training = True

    def __call__(self, x):
        return calls.forward(self, self.inner, (x,), {})

    def inner(self, x):
        return calls.forward(self, add, (x,), {})


class Optimizer:
    def step(self, closure=None):
        return calls.step(core.OPTIMIZER, Optimizer.really, (self, closure), {})

    def really(self, closure):
        if closure is not None:
            for _ in range(3):
                closure()
        return Optimizer.step(self) if closure is not None else "done"


model, first, second = Model(), Optimizer(), Optimizer()
state.rare_step, state.graph_step, state.look_due = 3, 2, core.NEVER
for optimizer in (first, second, first):
    assert model(1) == 3
    assert calls.backward(core.BACKWARD, add, (1,), {}) == 3
    assert optimizer.step() == "done"
assert state.steps == 3 and state.backwards == 3 and state.forwards == 3
assert state.waiting and state.train_thread == threading.get_ident()
assert done == [(1,), "step"], done
state.rare_step = state.graph_step = core.NEVER
assert first.step(lambda: calls.backward(core.BACKWARD, add, (1,), {})) == "done"
assert raises(ValueError, calls.forward, model, fail, (), {}) is error
assert calls.scaled(first, add, (first.step(), " it"), {}) == "done it"  # a step that is left out
model.training = False
model(1)  # validation, until a backward follows
calls.backward(core.BACKWARD, add, (1,), {})
model(1)

# ---- waits ----

first.step()
assert calls.wait(core.INPUT_WAIT | name << 32, lambda: time.sleep(0.001) or 7, (), {}) == 7
assert calls.wait(core.INPUT_WAIT | name << 32, add, (1,), {}) == 3  # too short to be told

# ---- loaders ----


class Batches:
    left = 2

    def __next__(self):
        return calls.next(self, Batches.really)

    def really(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    __iter__ = lambda self: self  # noqa: E731


batches = Batches()
assert list(batches) == [1, 0] and state.iterator == id(batches) and state.epochs == 1


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
    value, args, kwargs = object(), (first, None), {}
    counted = [value, args, kwargs, add, model, first, type(calls.samples(Data()))]

    def every():
        calls.timed(core.LOGGING, lambda: value, (), kwargs)
        calls.backward(0, lambda *a: value, args, kwargs)
        calls.step(0, lambda *a: value, args, kwargs)
        calls.forward(model, lambda *a: value, args, kwargs)
        calls.next(value, lambda it: it)
        calls.fetch((calls.samples(Data()), lambda it: value))([1])
        calls.collate(lambda it: it)((value,))
        calls.note(core.LOGGING, 1, 2)

    every()
    before = [sys.getrefcount(one) for one in counted]
    for _ in range(1000):
        every()
    after = [sys.getrefcount(one) for one in counted]
    assert all(abs(a - b) < 10 for a, b in zip(after, before)), (before, after)

# ---- a hook never fails into the job ----

calls.note(core.PHASE, 5, 9, 3, 4)
if sys.argv[1] == "builtin":
    raises(TypeError, calls.fetch, (held, len))
    raises(TypeError, calls.fetch, ())
    raises(TypeError, calls.step, 1)
    assert calls.note(core.PHASE, "no", None, 1.5, 1 << 80) is None
gc.callbacks.append(calls.collected)
gc.collect()
gc.callbacks.remove(calls.collected)


# ---- a signal's exception on the way out of a hook of ours is the job's ----


def interrupted():
    raise KeyboardInterrupt


calls.set_callbacks(interrupted, None, lambda: True, core.idle_hook())
state.rare_step = 0
raises(KeyboardInterrupt, first.step)
state.rare_step = core.NEVER

# ---- threads and forks ----

failed = []


def work():
    try:
        for i in range(2000):
            assert calls.timed(core.PHASE, add, (i,), {}) == i + 2
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
print("ok")
