/* All run with the interpreter's lock held, or (free-threaded) on state that only hints. What the
 * job raises is passed on untouched, and what cannot be asked of its objects is left out. */
#include "agent/python_calls.h"

#include <string.h>

#include "agent/clock.h"
#include "agent/interruption.h"
#include "agent/python_api.h"
#include "agent/python_hooks.h"
#include "wire/messages.h"

#define NEVER ((uint64_t)1 << 62)
#define SHORTEST_GC 50000u /* ns: young collections are many and short */
#define MOST_PARTS 16      /* of a batch, that are asked for their size */

FLATOUT_HOT_DATA __attribute__((aligned(64))) struct flatout_agent_loop flatout_agent_loop = {
    .batch = -1, .look_due = NEVER, .graph_step = NEVER, .graph_due = NEVER, .batch_step = NEVER};
#define loop flatout_agent_loop

FLATOUT_HOT_DATA static py_object* name_nbytes = NULL;
static py_object *samples_type, *iterator_type;

/* 0: none is under way; there is never more than one. */
FLATOUT_HOT_DATA static uint64_t gc_began = 0;

/* Of an object of any type; 0 where it has none. A KeyboardInterrupt is left for the caller. */
static int64_t number_of(py_object* object, py_object* attribute) {
  py_object* value = py.PyObject_GetAttr(object, attribute);
  const int64_t number = value != NULL ? py.PyLong_AsLongLong(value) : -1;
  if (number == -1 && py.PyErr_ExceptionMatches(*py.exception) != 0) py.PyErr_Clear();
  if (value != NULL) py.Py_DecRef(value);
  return number > 0 ? number : 0;
}

/* ---- loaders ---- */

/* Stands for the data set, or its iterator, inside a fetcher only: nobody else ever sees it. */
struct samples {
  py_object* inner;
  uint64_t upto; /* where the one before ended, or the fetch began: the next begins there */
  uint64_t count, sum, most, begin;
  int64_t index; /* of the slowest; -1 where it is no int */
  uint64_t batches;
};

static int is_int(py_object* object) {
  py_object* type = py.PyObject_Type(object);
  py.Py_DecRef(type);
  return type == py.long_type;
}

static void count_sample(struct samples* s, py_object* index) {
  const uint64_t begin = s->upto;
  s->upto = now_ns();
  const uint64_t took = s->upto - begin;
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

static py_object* samples_get(py_object* object, py_object* index) {
  struct samples* s = py_inside(object);
  py_object* sample = py.PyObject_GetItem(s->inner, index);
  if (sample != NULL) count_sample(s, index);
  return sample;
}

static py_object* samples_next(py_object* object) {
  struct samples* s = py_inside(object);
  py_object* sample = py.PyIter_Next(s->inner);
  if (sample != NULL) count_sample(s, NULL);
  return sample;
}

static py_object* samples_attribute(py_object* object, py_object* name) {
  py_object* value = py.PyObject_GenericGetAttr(object, name);
  struct samples* s = py_inside(object);
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
  const struct samples* s = py_inside(object);
  return s->inner != NULL ? visit(s->inner, argument) : 0;
}

static int samples_clear(py_object* object) {
  struct samples* s = py_inside(object);
  py_object* inner = s->inner;
  s->inner = NULL;
  if (inner != NULL) py.Py_DecRef(inner);
  return 0;
}

static void samples_free(py_object* object) {
  py.PyObject_GC_UnTrack(object);
  samples_clear(object);
  py_free(object);
}

static py_object* make_samples(py_object* type, py_object* const* a, ssize_t count) {
  if (count != 1) return py_wrong_arguments();
  py_object* object = py.PyType_GenericAlloc(type, 0);
  if (object == NULL) return NULL;
  py.Py_IncRef(a[0]);
  ((struct samples*)py_inside(object))->inner = a[0];
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
static py_object* fetch(py_object* self, py_object* indices) {
  struct samples* s = py_inside(py.PyTuple_GetItem(self, 0));
  s->count = s->sum = s->most = s->begin = 0;
  s->index = -1;
  const uint64_t begin = s->upto = now_ns();
  py_object* batch = py.PyObject_CallFunctionObjArgs(py.PyTuple_GetItem(self, 1), indices, NULL);
  if (batch == NULL) return NULL;
  interruption_watch();
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
  agent_watched_hook(FLATOUT_SLICE_FETCH, 0, begin, end, samples, number);
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
static py_object* collate(py_object* self, py_object* samples) {
  const uint64_t begin = now_ns();
  py_object* batch = py.PyObject_CallFunctionObjArgs(self, samples, NULL);
  if (batch == NULL) return NULL;
  interruption_watch();
  const uint64_t end = now_ns();
  const uint64_t number = loop.collates++;
  const int64_t bytes = number < 8 || number % 16 == 0 ? bytes_of(batch) : 0;
  agent_watched_hook(FLATOUT_SLICE_COLLATE, 0, begin, end, bytes, 0);
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
  return count == 1 ? py.PyCFunction_NewEx(&collate_method, a[0], NULL) : py_wrong_arguments();
}

static py_object* make_fetch(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 1) return py_wrong_arguments();
  py_object* type =
      py.PyTuple_Size(a[0]) == 2 ? py.PyObject_Type(py.PyTuple_GetItem(a[0], 0)) : NULL;
  if (type != NULL) py.Py_DecRef(type);
  if (type == NULL || (type != samples_type && type != iterator_type)) return py_wrong_arguments();
  return py.PyCFunction_NewEx(&fetch_method, a[0], NULL);
}

/* ---- the rest ---- */

/* kind | name id << 32, begin, end (taken right after the job's code returned), value, value2 */
static py_object* note(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count < 3 || count > 5) return py_wrong_arguments();
  const uint64_t kind = py.PyLong_AsUnsignedLongLong(a[0]);
  const uint64_t begin = py.PyLong_AsUnsignedLongLong(a[1]);
  const uint64_t end = py.PyLong_AsUnsignedLongLong(a[2]);
  const int64_t value = count > 3 ? py.PyLong_AsLongLong(a[3]) : 0;
  const int64_t value2 = count > 4 ? py.PyLong_AsLongLong(a[4]) : 0;
  if (kind + 1 == 0 || begin + 1 == 0 || end + 1 == 0 || value == -1 || value2 == -1)
    py.PyErr_Clear(); /* a hook must not fail into the job */
  flatout_agent_hook((uint32_t)kind, (uint32_t)(kind >> 32), begin, end, value, value2);
  return py_none();
}

/* Either a long collection's end, or a start after an end that nobody told us of. */
__attribute__((noinline)) static uint64_t collected_long(py_object* const* a, uint64_t now) {
  if (py.PyUnicode_CompareWithASCIIString(a[0], "start") == 0) return now;
  py_object* generation = py.PyDict_GetItemString(a[1], "generation");
  py_object* objects = py.PyDict_GetItemString(a[1], "collected");
  const int64_t value = generation != NULL ? py.PyLong_AsLongLong(generation) : -1;
  const int64_t value2 = objects != NULL ? py.PyLong_AsLongLong(objects) : 0;
  py.PyErr_Clear();
  agent_watched_hook(FLATOUT_SLICE_GC, 0, gc_began, now, value, value2);
  return 0;
}

/* In gc.callbacks: phase, facts. Starts and ends take turns, so those of a short collection, which
 * are most, need not be asked which they are. */
FLATOUT_HOT static py_object* collected(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 2) return py_wrong_arguments();
  flatout_fetch_hot_code();
  flatout_fetch_hot_data();
  interruption_watch();
  const uint64_t now = now_ns();
  if (gc_began != 0 && now - gc_began >= SHORTEST_GC) {
    gc_began = collected_long(a, now);
    if (gc_began == 0) return py_none();
  } else {
    gc_began = gc_began == 0 ? now : 0;
  }
  agent_watched_cost(now_ns() - now + 2 * loop.sample_cost);
  return py_none();
}

/* after_step, before_backward, grad_enabled; None: none. */
static py_object* set_callbacks(py_object* self, py_object* const* a, ssize_t count) {
  (void)self;
  if (count != 4) return py_wrong_arguments();
  py_object** const places[] = {&python_callbacks.after_step, &python_callbacks.before_backward,
                                &python_callbacks.grad_enabled, &python_callbacks.after_batch};
  for (int i = 0; i < 4; ++i) {
    py.Py_IncRef(a[i]); /* for good */
    *places[i] = a[i] != py.none ? a[i] : NULL;
  }
  python_hooks_find_torch();
  return py_none();
}

static struct py_method methods[] = {
    {"samples", samples_of, PY_FASTCALL, NULL},
    {"sample_iterator", iterator_of, PY_FASTCALL, NULL},
    {"fetch", make_fetch, PY_FASTCALL, NULL},
    {"collate", make_collate, PY_FASTCALL, NULL},
    {"note", note, PY_FASTCALL, NULL},
    {"collected", collected, PY_FASTCALL, NULL},
    {"set_callbacks", set_callbacks, PY_FASTCALL, NULL},
};

static py_object* make_type(const char* name, int slot, void* function) {
  struct py_slot slots[] = {{slot, function},
                            {PY_TP_GETATTRO, (void*)samples_attribute},
                            {PY_TP_DEALLOC, (void*)samples_free},
                            {PY_TP_TRAVERSE, (void*)samples_traverse},
                            {PY_TP_CLEAR, (void*)samples_clear},
                            {slot == PY_TP_ITERNEXT ? PY_TP_ITER : 0, (void*)samples_iter},
                            {0, NULL}};
  struct py_spec spec = {.name = name,
                         .size = (int)(py.object_size + sizeof(struct samples)),
                         .item_size = 0,
                         .flags = PY_DEFAULT_FLAGS | PY_HAVE_GC,
                         .slots = slots};
  return py.PyType_FromSpec(&spec);
}

void* flatout_agent_python(uint64_t object_size) {
  if (!py_find(object_size)) return NULL;
  py_object* calls = py.PyDict_New();
  name_nbytes = py.PyUnicode_InternFromString("nbytes");
  samples_type = make_type("_flatout_agent.Samples", PY_MP_SUBSCRIPT, (void*)samples_get);
  iterator_type = make_type("_flatout_agent.SampleIterator", PY_TP_ITERNEXT, (void*)samples_next);
  int made = calls != NULL && name_nbytes != NULL && samples_type != NULL && iterator_type != NULL;
  for (size_t i = 0; made && i < sizeof methods / sizeof *methods; ++i)
    made = py_add_function(calls, &methods[i]);
  if (made && python_hooks_add(calls)) return calls;
  py.PyErr_Clear();
  return NULL;
}

void python_calls_after_fork(void) {
  loop.waiting = loop.loader_thread = loop.step_thread = loop.train_thread = 0;
  loop.is_worker = 0;
  python_hooks_after_fork();
}
