/* Hooks of the Python agent in C; see python_calls.h.
 *
 * All run with the interpreter's lock held, or (free-threaded) on state that only hints. What the
 * job raises is passed on untouched, and what cannot be asked of its objects is left out. */
#include "agent/python_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "agent/python_api.h"
#include "wire/messages.h"

#define NEVER ((uint64_t)1 << 62)
#define SHORTEST_WAIT 20000u /* ns; less is no wait */
#define SHORTEST_GC 50000u   /* ns: young collections are many and short */
#define MEASURE_EVERY 32u    /* steps */
#define MOST_PARTS 16        /* of a batch, that are asked for their size */

FLATOUT_HOT_DATA __attribute__((aligned(64))) struct flatout_agent_loop flatout_agent_loop = {
    .batch = -1, .look_due = NEVER, .graph_step = NEVER, .graph_due = NEVER};
#define loop flatout_agent_loop

/* Functions of the Python agent, called now and then; NULL: none. */
FLATOUT_HOT_DATA static py_object *after_step = NULL, *before_backward = NULL, *grad_enabled = NULL,
                                  *idle_hook = NULL;
FLATOUT_HOT_DATA static py_object *name_training = NULL, *name_nbytes = NULL;
static py_object *samples_type, *iterator_type;
FLATOUT_HOT_DATA static size_t samples_offset = 0;
FLATOUT_HOT_DATA static _Bool (*grad_mode)(void) =
    NULL; /* c10::GradMode::is_enabled(): Python's own way to it is long */

static __thread int inside_model;
static __thread uint64_t gc_began;

FLATOUT_HOT static uint64_t now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

FLATOUT_HOT static uint64_t this_thread(void) { return (uint64_t)pthread_self(); }

static py_object* none(void) {
  py.Py_IncRef(py.none);
  return py.none;
}

static py_object* wrong(void) {
  py.PyErr_SetString(*py.type_error, "wrong number of arguments");
  return NULL;
}

/* What a hook costs besides what it counts itself is its way into the builtin and back. Now and
 * then that is measured where it is spent, with the caches as the job's code has just left them: by
 * the call of a hook that nothing else calls. What counts is the median, followed in small steps.
 */
static int measure_hook(void) {
  if (idle_hook == NULL) return 1;
  py_object* result = py.PyObject_CallObject(idle_hook, NULL);
  if (result == NULL) return 0; /* as in call_ours */
  const uint64_t took = py.PyLong_AsUnsignedLongLong(result);
  py.Py_DecRef(result);
  const uint64_t before = flatout_agent_overhead(0);
  flatout_agent_overhead(took > before ? before + before / 16 : before - before / 16);
  return 1;
}

/* Calls one of ours. Only a signal handler of the job's can have raised in it: then false. */
static int call_ours(py_object* function) {
  if (function == NULL) return 1;
  py_object* result = py.PyObject_CallObject(function, NULL);
  if (result == NULL) return 0;
  py.Py_DecRef(result);
  return 1;
}

/* Of a builtin that the job's code calls itself, with no function of Python's between: no more than
 * half of what the idle hook costs. */
static uint64_t bare_overhead(void) { return flatout_agent_overhead(0) / 2; }

/* Of an object of any type; 0 where it has none. A KeyboardInterrupt is left for the caller. */
static int64_t number_of(py_object* object, py_object* attribute) {
  py_object* value = py.PyObject_GetAttr(object, attribute);
  const int64_t number = value != NULL ? py.PyLong_AsLongLong(value) : -1;
  if (number == -1 && py.PyErr_ExceptionMatches(*py.exception) != 0) py.PyErr_Clear();
  if (value != NULL) py.Py_DecRef(value);
  return number > 0 ? number : 0;
}

/* ---- optimizers ---- */

#define OPTIMIZERS 16u
FLATOUT_HOT_DATA static struct optimizer {
  uint64_t address;
  int64_t number, steps;
} optimizers[OPTIMIZERS] = {{0}};
FLATOUT_HOT_DATA static uint32_t optimizer_count = 0;

/* Its entry; a new one if there is none. Most jobs have one, few more than two. */
FLATOUT_HOT static struct optimizer* optimizer_of(const py_object* object) {
  const uint64_t address = (uint64_t)(uintptr_t)object;
  const uint32_t count = optimizer_count;
  for (uint32_t i = 0; i < OPTIMIZERS && i < count; ++i) {
    if (optimizers[i].address == address) return &optimizers[i];
  }
  struct optimizer* entry = &optimizers[count % OPTIMIZERS]; /* the oldest makes room */
  optimizer_count = count + 1;
  *entry = (struct optimizer){.address = address, .number = (int64_t)count, .steps = 0};
  return entry;
}

/* ---- around the job's functions: kind | name id << 32, original, arguments, named arguments ----
 */

FLATOUT_HOT static py_object* timed(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 4) return wrong();
  const uint64_t kind = py.PyLong_AsUnsignedLongLong(a[0]);
  const uint64_t begin = now_ns();
  if (kind == 0) return none(); /* the idle hook: what else there is counts itself */
  py_object* result = py.PyObject_Call(a[1], a[2], a[3]);
  if (result == NULL) return NULL;
  const uint64_t end = now_ns();
  flatout_agent_hook((uint32_t)kind, (uint32_t)(kind >> 32), begin, end, 0, 0);
  return result;
}

FLATOUT_HOT static py_object* backward(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 4) return wrong();
  loop.waiting = 0;
  if (loop.eval_call != 0) loop.trains_in_eval_mode = 1;
  uint64_t begin = now_ns();
  if (loop.steps >= loop.graph_step || begin >= loop.graph_due) {
    /* It looks at the loss, which only we can hand it: call_ours has no arguments. */
    py_object* seen =
        before_backward != NULL ? py.PyObject_Call(before_backward, a[2], a[3]) : none();
    if (seen == NULL) return NULL;
    py.Py_DecRef(seen);
    begin = now_ns();
  }
  py_object* result = py.PyObject_Call(a[1], a[2], a[3]);
  if (result == NULL) return NULL;
  const uint64_t end = now_ns();
  loop.last_backward = end;
  ++loop.backwards;
  flatout_agent_hook(FLATOUT_SLICE_BACKWARD, 0, begin, end, 0, 0);
  return result;
}

FLATOUT_HOT static py_object* step(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 4) return wrong();
  const uint64_t me = this_thread();
  if (loop.step_thread == me) return py.PyObject_Call(a[1], a[2], a[3]); /* one inside another */
  loop.step_thread = me;
  const uint64_t backwards = loop.backwards;
  uint64_t begin = now_ns();
  py_object* result = py.PyObject_Call(a[1], a[2], a[3]);
  const uint64_t end = now_ns();
  loop.step_thread = 0;
  if (result == NULL) return NULL;
  /* What Lightning hands over as a closure is the forward and backward before the optimizer's own
   * work. LBFGS calls it again and again, with work of its own in between. */
  if (loop.backwards - backwards == 1) begin = loop.last_backward;
  struct optimizer* entry =
      optimizer_of(py.PyTuple_Size(a[2]) > 0 ? py.PyTuple_GetItem(a[2], 0) : NULL);
  ++entry->steps;
  loop.waiting = 1;
  loop.train_thread = me;
  ++loop.steps;
  /* Before all else that is ours; its time is a part of what is counted from `end` on. */
  const int measured = loop.steps % MEASURE_EVERY != MEASURE_EVERY / 2 || measure_hook();
  flatout_agent_hook(FLATOUT_SLICE_OPTIMIZER, 0, begin, end, entry->number, entry->steps);
  const int due = loop.steps >= loop.rare_step || end > loop.look_due;
  if (measured && (!due || call_ours(after_step))) return result;
  py.Py_DecRef(result);
  return NULL;
}

/* GradScaler.step: the optimizer, original, arguments, named arguments. */
static py_object* scaled(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 4) return wrong();
  const uint64_t before = loop.steps;
  const uint64_t begin = now_ns();
  py_object* result = py.PyObject_Call(a[1], a[2], a[3]);
  if (result == NULL || loop.steps != before) return result;
  const uint64_t end = now_ns(); /* the scaler left this step out: it is one all the same */
  const struct optimizer* entry = optimizer_of(a[0]);
  loop.waiting = 1;
  flatout_agent_hook(FLATOUT_SLICE_OPTIMIZER, 0, begin, end, entry->number, entry->steps);
  return result;
}

FLATOUT_HOT static int has_gradients(void) {
  if (grad_mode != NULL) return grad_mode();
  if (grad_enabled == NULL) return 1;
  py_object* answer = py.PyObject_CallObject(grad_enabled, NULL);
  const int yes = answer == NULL || py.PyObject_IsTrue(answer) != 0;
  if (answer != NULL) py.Py_DecRef(answer);
  py.PyErr_Clear();
  return yes;
}

/* Past Module.__getattr__: `training` is a plain attribute of the module. */
FLATOUT_HOT static int in_training(py_object* module) {
  py_object* training = py.PyObject_GenericGetAttr(module, name_training);
  const int yes = training == NULL || py.PyObject_IsTrue(training) != 0;
  if (training != NULL) py.Py_DecRef(training);
  if (training == NULL) py.PyErr_Clear();
  return yes;
}

/* Module.__call__: the module, what is called, arguments, named arguments. */
FLATOUT_HOT static py_object* forward(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 4) return wrong();
  if (inside_model != 0) return py.PyObject_Call(a[1], a[2], a[3]);
  inside_model = 1;
  loop.waiting = 0;
  const uint64_t begin = now_ns();
  py_object* result = py.PyObject_Call(a[1], a[2], a[3]);
  inside_model = 0;
  if (result == NULL) return NULL;
  const uint64_t end = now_ns();
  uint32_t kind = FLATOUT_SLICE_FORWARD;
  if (!has_gradients()) {
    kind = FLATOUT_SLICE_VALIDATION;
  } else if (!in_training(a[0])) {
    /* Fine-tuning with frozen statistics also does this: then a backward follows. */
    loop.eval_call = 1;
    if (loop.trains_in_eval_mode == 0) kind = FLATOUT_SLICE_VALIDATION;
  }
  ++loop.forwards;
  flatout_agent_hook(kind, 0, begin, end, 0, 0);
  return result;
}

/* A wait between the end of a step and the next forward is for input. */
FLATOUT_HOT static py_object* wait_(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 4) return wrong();
  const uint64_t me = this_thread();
  if (loop.waiting == 0 || loop.train_thread != me || loop.loader_thread == me)
    return py.PyObject_Call(a[1], a[2], a[3]);
  const uint64_t kind = py.PyLong_AsUnsignedLongLong(a[0]);
  loop.loader_thread = me; /* what this one is made of is the same wait */
  const uint64_t begin = now_ns();
  py_object* result = py.PyObject_Call(a[1], a[2], a[3]);
  const uint64_t end = now_ns();
  loop.loader_thread = 0;
  if (result == NULL) return NULL;
  if (end - begin >= SHORTEST_WAIT) {
    flatout_agent_hook((uint32_t)kind, (uint32_t)(kind >> 32), begin, end, 0, 0);
  } else {
    const uint64_t spent = now_ns() - end;
    flatout_agent_cost(1, spent, spent, 0);
  }
  return result;
}

/* ---- loaders ---- */

/* An iterator's __next__: the iterator, original. */
FLATOUT_HOT static py_object* next(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 2) return wrong();
  const uint64_t me = this_thread(), address = (uint64_t)(uintptr_t)a[0];
  if (loop.iterator != address) {
    loop.iterator = address;
    loop.rare_step = 0; /* its loader's facts are sent at the end of the step that it feeds */
  }
  loop.loader_thread = me;
  const uint64_t begin = now_ns();
  py_object* batch = py.PyObject_CallFunctionObjArgs(a[1], a[0], NULL);
  const uint64_t end = now_ns();
  loop.loader_thread = 0;
  if (batch != NULL || py.PyErr_ExceptionMatches(*py.stop_iteration) != 0)
    flatout_agent_hook(FLATOUT_SLICE_INPUT_WAIT, 0, begin, end, 0, 0);
  if (batch == NULL && py.PyErr_ExceptionMatches(*py.stop_iteration) != 0)
    flatout_agent_slice(FLATOUT_SLICE_EPOCH, 0, end, end, (int64_t)++loop.epochs, 0);
  return batch;
}

/* Stands for the data set, or its iterator, inside a fetcher only: nobody else ever sees it. */
struct samples {
  py_object* inner;
  uint64_t count, sum, most, begin;
  int64_t index; /* of the slowest; -1 where it is no int */
  uint64_t batches;
};

FLATOUT_HOT static struct samples* samples_in(py_object* object) {
  return (struct samples*)(void*)((char*)object + samples_offset);
}

static int is_int(py_object* object) {
  py_object* type = py.PyObject_Type(object);
  py.Py_DecRef(type);
  return type == py.long_type;
}

FLATOUT_HOT static void count_sample(struct samples* s, uint64_t begin, py_object* index) {
  const uint64_t took = now_ns() - begin;
  ++s->count;
  s->sum += took;
  if (took <= s->most) return;
  s->most = took;
  s->begin = begin;
  s->index = -1;
  if (index == NULL || !is_int(index)) return;
  s->index = py.PyLong_AsLongLong(index);
  if (s->index == -1) py.PyErr_Clear(); /* larger than 64 bits */
}

FLATOUT_HOT static py_object* samples_get(py_object* object, py_object* index) {
  struct samples* s = samples_in(object);
  const uint64_t begin = now_ns();
  py_object* sample = py.PyObject_GetItem(s->inner, index);
  if (sample != NULL) count_sample(s, begin, index);
  return sample;
}

static py_object* samples_next(py_object* object) {
  struct samples* s = samples_in(object);
  const uint64_t begin = now_ns();
  py_object* sample = py.PyIter_Next(s->inner);
  if (sample != NULL) count_sample(s, begin, NULL);
  return sample;
}

static py_object* samples_attribute(py_object* object, py_object* name) {
  py_object* value = py.PyObject_GenericGetAttr(object, name);
  struct samples* s = samples_in(object);
  if (value != NULL || s->inner == NULL || py.PyErr_ExceptionMatches(*py.attribute_error) == 0)
    return value;
  py.PyErr_Clear();
  return py.PyObject_GetAttr(s->inner,
                             name); /* __getitems__ and whatever else a fetcher asks for */
}

static py_object* samples_iter(py_object* object) {
  py.Py_IncRef(object);
  return object;
}

static int samples_traverse(py_object* object, int (*visit)(py_object*, void*), void* argument) {
  const struct samples* s = samples_in(object);
  return s->inner != NULL ? visit(s->inner, argument) : 0;
}

static int samples_clear(py_object* object) {
  struct samples* s = samples_in(object);
  py_object* inner = s->inner;
  s->inner = NULL;
  if (inner != NULL) py.Py_DecRef(inner);
  return 0;
}

static void samples_free(py_object* object) {
  py.PyObject_GC_UnTrack(object);
  samples_clear(object);
  py_object* type = py.PyObject_Type(object);
  py.PyObject_GC_Del(object);
  py.Py_DecRef(type); /* what PyObject_Type gave */
  py.Py_DecRef(type); /* what the object held */
}

static py_object* make_samples(py_object* type, py_object* const* a, ssize_t count) {
  if (count != 1) return wrong();
  py_object* object = py.PyType_GenericAlloc(type, 0);
  if (object == NULL) return NULL;
  py.Py_IncRef(a[0]);
  samples_in(object)->inner = a[0];
  return object;
}

static py_object* samples_of(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  return make_samples(samples_type, a, count);
}

static py_object* iterator_of(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  return make_samples(iterator_type, a, count);
}

/* A fetcher's fetch, of a tuple: (its samples, original). */
FLATOUT_HOT static py_object* fetch(py_object* self, py_object* indices) {
  struct samples* s = samples_in(py.PyTuple_GetItem(self, 0));
  s->count = s->sum = s->most = s->begin = 0;
  s->index = -1;
  const uint64_t begin = now_ns();
  py_object* batch = py.PyObject_CallFunctionObjArgs(py.PyTuple_GetItem(self, 1), indices, NULL);
  if (batch == NULL) return NULL;
  const uint64_t end = now_ns();
  int64_t number = (int64_t)s->batches++;
  if (loop.is_worker != 0) number = loop.batch;
  int64_t samples = (int64_t)s->count;
  if (samples == 0) samples = py.PyObject_Size(indices);
  if (samples <= 0) {
    py.PyErr_Clear();
    samples = 1;
  }
  /* The slowest one's end is no moment of ours: only the clocks round all of them are our cost. */
  if (s->most != 0)
    flatout_agent_slice(FLATOUT_SLICE_SAMPLE, 0, s->begin, s->begin + s->most, s->index,
                        (int64_t)s->sum);
  const uint64_t clocks = s->count * loop.sample_cost;
  flatout_agent_cost(0, clocks, 0, 0);
  agent_hook(FLATOUT_SLICE_FETCH, 0, begin, end, samples, number, bare_overhead());
  return batch;
}

/* Bytes of the tensors and arrays right inside a batch, where that is cheap to say. */
static int64_t bytes_of(py_object* batch) {
  py_object* type = py.PyObject_Type(batch);
  const unsigned long flags = py.PyType_GetFlags(type);
  py.Py_DecRef(type);
  int64_t total = 0;
  if ((flags & PY_IS_DICT) != 0) {
    ssize_t place = 0;
    py_object *key = NULL, *value = NULL;
    for (int i = 0; i < MOST_PARTS && py.PyDict_Next(batch, &place, &key, &value) != 0; ++i)
      total += number_of(value, name_nbytes);
    return total;
  }
  if ((flags & (PY_IS_LIST | PY_IS_TUPLE)) == 0) return number_of(batch, name_nbytes);
  const ssize_t size = py.PyObject_Size(batch);
  for (ssize_t i = 0; i < size && i < MOST_PARTS; ++i) {
    py_object* part = py.PySequence_GetItem(batch, i);
    if (part == NULL) {
      py.PyErr_Clear();
      break;
    }
    total += number_of(part, name_nbytes);
    py.Py_DecRef(part);
  }
  return total;
}

/* A fetcher's collate_fn, of the original. Few batches are asked for their size: that takes longer
 * than all the rest. */
FLATOUT_HOT static py_object* collate(py_object* self, py_object* samples) {
  const uint64_t begin = now_ns();
  py_object* batch = py.PyObject_CallFunctionObjArgs(self, samples, NULL);
  if (batch == NULL) return NULL;
  const uint64_t end = now_ns();
  const uint64_t number = loop.collates++;
  const int64_t bytes = number < 8 || number % 16 == 0 ? bytes_of(batch) : 0;
  agent_hook(FLATOUT_SLICE_COLLATE, 0, begin, end, bytes, 0, bare_overhead());
  if (py.PyErr_Occurred() == NULL) return batch;
  py.Py_DecRef(batch);
  return NULL;
}

static struct py_method collate_method = {"collate", (py_function)(void*)collate, PY_ONE_ARGUMENT,
                                          NULL};
static struct py_method fetch_method = {"fetch", (py_function)(void*)fetch, PY_ONE_ARGUMENT, NULL};

/* Builtins for the attributes of a fetcher, where no function of Python's is needed round them. */
static py_object* make_collate(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  return count == 1 ? py.PyCFunction_NewEx(&collate_method, a[0], NULL) : wrong();
}

static py_object* make_fetch(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 1) return wrong();
  py_object* type =
      py.PyTuple_Size(a[0]) == 2 ? py.PyObject_Type(py.PyTuple_GetItem(a[0], 0)) : NULL;
  if (type != NULL) py.Py_DecRef(type);
  if (type == NULL || (type != samples_type && type != iterator_type)) return wrong();
  return py.PyCFunction_NewEx(&fetch_method, a[0], NULL);
}

/* ---- the rest ---- */

/* kind | name id << 32, begin, end (taken right after the job's code returned), value, value2 */
FLATOUT_HOT static py_object* note(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count < 3 || count > 5) return wrong();
  const uint64_t kind = py.PyLong_AsUnsignedLongLong(a[0]);
  const uint64_t begin = py.PyLong_AsUnsignedLongLong(a[1]);
  const uint64_t end = py.PyLong_AsUnsignedLongLong(a[2]);
  const int64_t value = count > 3 ? py.PyLong_AsLongLong(a[3]) : 0;
  const int64_t value2 = count > 4 ? py.PyLong_AsLongLong(a[4]) : 0;
  if (kind + 1 == 0 || begin + 1 == 0 || end + 1 == 0 || value == -1 || value2 == -1)
    py.PyErr_Clear(); /* a hook must not fail into the job */
  flatout_agent_hook((uint32_t)kind, (uint32_t)(kind >> 32), begin, end, value, value2);
  return none();
}

/* In gc.callbacks: phase, facts. */
static py_object* collected(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 2) return wrong();
  const uint64_t now = now_ns();
  if (py.PyUnicode_CompareWithASCIIString(a[0], "start") == 0) {
    gc_began = now;
  } else if (gc_began != 0 && now - gc_began >= SHORTEST_GC) {
    py_object* generation = py.PyDict_GetItemString(a[1], "generation");
    py_object* objects = py.PyDict_GetItemString(a[1], "collected");
    const int64_t value = generation != NULL ? py.PyLong_AsLongLong(generation) : -1;
    const int64_t value2 = objects != NULL ? py.PyLong_AsLongLong(objects) : 0;
    py.PyErr_Clear();
    agent_hook(FLATOUT_SLICE_GC, 0, gc_began, now, value, value2, bare_overhead());
  } else {
    const uint64_t spent = now_ns() - now + 2 * loop.sample_cost;
    flatout_agent_cost(1, spent, spent, 0);
  }
  return none();
}

/* after_step, before_backward, grad_enabled, idle_hook; None: none. */
static py_object* set_callbacks(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 4) return wrong();
  py_object** const places[] = {&after_step, &before_backward, &grad_enabled, &idle_hook};
  for (int i = 0; i < 4; ++i) {
    py.Py_IncRef(a[i]); /* for good */
    *places[i] = a[i] != py.none ? a[i] : NULL;
  }
  void* torch = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD);
  if (torch != NULL) *(void**)(&grad_mode) = dlsym(torch, "_ZN3c108GradMode10is_enabledEv");
  return none();
}

static struct py_method methods[] = {
    {"timed", timed, PY_FASTCALL, NULL},
    {"backward", backward, PY_FASTCALL, NULL},
    {"step", step, PY_FASTCALL, NULL},
    {"scaled", scaled, PY_FASTCALL, NULL},
    {"forward", forward, PY_FASTCALL, NULL},
    {"wait", wait_, PY_FASTCALL, NULL},
    {"next", next, PY_FASTCALL, NULL},
    {"samples", samples_of, PY_FASTCALL, NULL},
    {"sample_iterator", iterator_of, PY_FASTCALL, NULL},
    {"fetch", make_fetch, PY_FASTCALL, NULL},
    {"collate", make_collate, PY_FASTCALL, NULL},
    {"note", note, PY_FASTCALL, NULL},
    {"collected", collected, PY_FASTCALL, NULL},
    {"set_callbacks", set_callbacks, PY_FASTCALL, NULL},
};

static int find_python(void) {
#define PY_FIND(name, result, arguments)            \
  *(void**)(&py.name) = dlsym(RTLD_DEFAULT, #name); \
  if (*(void**)(&py.name) == NULL) return 0;
  PY_FUNCTIONS(PY_FIND)
#undef PY_FIND
  py.none = dlsym(RTLD_DEFAULT, "_Py_NoneStruct");
  py.long_type = dlsym(RTLD_DEFAULT, "PyLong_Type");
  py.type_error = dlsym(RTLD_DEFAULT, "PyExc_TypeError");
  py.attribute_error = dlsym(RTLD_DEFAULT, "PyExc_AttributeError");
  py.stop_iteration = dlsym(RTLD_DEFAULT, "PyExc_StopIteration");
  py.exception = dlsym(RTLD_DEFAULT, "PyExc_Exception");
  return py.none != NULL && py.long_type != NULL && py.type_error != NULL &&
         py.attribute_error != NULL && py.stop_iteration != NULL && py.exception != NULL;
}

static py_object* make_type(const char* name, int slot, void* function) {
  struct py_slot slots[] = {{slot, function},
                            {PY_TP_GETATTRO, (void*)samples_attribute},
                            {PY_TP_DEALLOC, (void*)samples_free},
                            {PY_TP_TRAVERSE, (void*)samples_traverse},
                            {PY_TP_CLEAR, (void*)samples_clear},
                            {slot == PY_TP_ITERNEXT ? PY_TP_ITER : 0, (void*)samples_iter},
                            {0, NULL}};
  struct py_spec spec = {.name = name,
                         .size = (int)(samples_offset + sizeof(struct samples)),
                         .item_size = 0,
                         .flags = PY_DEFAULT_FLAGS | PY_HAVE_GC,
                         .slots = slots};
  return py.PyType_FromSpec(&spec);
}

void* flatout_agent_python(uint64_t object_size) {
  if (object_size < 16 || object_size > 256 || object_size % 8 != 0 || !find_python()) return NULL;
  samples_offset = object_size;
  py_object* calls = py.PyDict_New();
  name_training = py.PyUnicode_InternFromString("training");
  name_nbytes = py.PyUnicode_InternFromString("nbytes");
  samples_type = make_type("_flatout_agent.Samples", PY_MP_SUBSCRIPT, (void*)samples_get);
  iterator_type = make_type("_flatout_agent.SampleIterator", PY_TP_ITERNEXT, (void*)samples_next);
  int made = calls != NULL && name_training != NULL && name_nbytes != NULL &&
             samples_type != NULL && iterator_type != NULL;
  for (size_t i = 0; made && i < sizeof methods / sizeof *methods; ++i) {
    py_object* function = py.PyCFunction_NewEx(&methods[i], NULL, NULL);
    made = function != NULL && py.PyDict_SetItemString(calls, methods[i].name, function) == 0;
    if (function != NULL) py.Py_DecRef(function);
  }
  if (made) return calls;
  py.PyErr_Clear();
  return NULL;
}

void python_calls_after_fork(void) {
  loop.waiting = loop.loader_thread = loop.step_thread = loop.train_thread = 0;
  loop.is_worker = 0;
}
