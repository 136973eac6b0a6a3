/* All run with the interpreter's lock held, or (free-threaded) on state that only hints. What the
 * job raises is passed on untouched, and what cannot be asked of its objects is left out. */
#include "agent/python_hooks.h"

#include <dlfcn.h>

#include "agent/clock.h"
#include "agent/interruption.h"
#include "agent/python_calls.h"
#include "wire/messages.h"

#define SHORTEST_WAIT 20000u /* ns; less is no wait */
#define MEASURE_EVERY 32u    /* steps */

#define loop flatout_agent_loop

/* What the job called a hook with, as it came: a vector (PEP 590), or a tuple and a dict. */
struct call {
  py_object* const* vector;
  size_t flags; /* | number of those without a name */
  py_object* names;
  py_object *args, *named;
};

struct hook;
typedef py_object* (*around_function)(const struct hook* h, const struct call* c);

/* Behind the object's header. */
struct hook {
  py_object* (*vectorcall)(py_object*, py_object* const*, size_t, py_object*);
  around_function around;
  uint64_t kind;       /* | name id << 32 */
  py_object* original; /* or the class that has it */
  py_object* name;     /* by this name; else NULL */
  py_object* attributes;
  py_object* weak_references;
};

FLATOUT_HOT_DATA struct python_callbacks python_callbacks = {0};
FLATOUT_HOT_DATA static py_object *name_training = NULL, *idle_hook = NULL;
FLATOUT_HOT_DATA static _Bool (*grad_mode)(void) = NULL; /* c10::GradMode::is_enabled() */
static py_object* hook_type;

/* Whether a thread is inside of a model that is called: of the training thread, and of any other.
 */
FLATOUT_HOT_DATA static int training_inside_model = 0;
static __thread int inside_model;

FLATOUT_HOT static py_object* call_with(py_object* function, const struct call* c) {
  if (c->args == NULL) return py.vectorcall(function, c->vector, c->flags, c->names);
  return py.PyObject_Call(function, c->args, c->named);
}

FLATOUT_HOT static py_object* call_original(const struct hook* h, const struct call* c) {
  py_object* result = NULL;
  if (h->name == NULL) {
    result = call_with(h->original, c);
  } else {
    py_object* original = py.PyObject_GetAttr(h->original, h->name);
    if (original == NULL) return NULL;
    result = call_with(original, c);
    py.Py_DecRef(original);
  }
  flatout_fetch_hot_code();
  flatout_fetch_hot_data();
  interruption_watch();
  return result;
}

/* A borrowed reference; NULL where there are not so many without a name. */
FLATOUT_HOT static py_object* argument(const struct call* c, size_t position) {
  if (c->args == NULL)
    return position < (c->flags & ~PY_ARGUMENTS_OFFSET) ? c->vector[position] : NULL;
  return (ssize_t)position < py.PyTuple_Size(c->args)
             ? py.PyTuple_GetItem(c->args, (ssize_t)position)
             : NULL;
}

FLATOUT_HOT static void send(const struct hook* h, uint64_t begin, uint64_t end, int64_t value) {
  agent_watched_hook((uint32_t)h->kind, (uint32_t)(h->kind >> 32), begin, end, value, 0);
}

/* Calls one of ours. Only a signal handler of the job's can have raised in it: then false. */
static int call_ours(py_object* function) {
  if (function == NULL) return 1;
  py_object* result = py.PyObject_CallObject(function, NULL);
  if (result == NULL) return 0;
  py.Py_DecRef(result);
  return 1;
}

/* ---- what hooks do ---- */

static py_object* idle(const struct hook* h, const struct call* c) {
  (void)h, (void)c;
  return py_none();
}

/* What a hook costs besides what it counts itself is the way to it and back: that of a hook which
 * nothing else calls, called where the job's code has just come to this one. What counts is the
 * median, followed in small steps. */
FLATOUT_NOT_HOT static void measure_way(uint32_t kind) {
  py_object* const vector[] = {py.none};
  const uint64_t begin = now_ns();
  py_object* result = py.vectorcall != NULL ? py.vectorcall(idle_hook, vector, 1, NULL)
                                            : py.PyObject_CallObject(idle_hook, NULL);
  const uint64_t took = now_ns() - begin;
  if (result != NULL) py.Py_DecRef(result);
  const uint64_t before = flatout_agent_overhead(kind, 0);
  const uint64_t by = before / 8 + 1;
  flatout_agent_overhead(kind, before == 0 ? took : took > before ? before + by : before - by);
}

/* When the job's own code begins. Each kind of hook has a step of its own to measure the way in. */
FLATOUT_HOT static uint64_t begin_of(const struct hook* h) {
  const uint32_t kind = (uint32_t)h->kind;
  if (loop.steps % MEASURE_EVERY == kind) measure_way(kind);
  return now_ns();
}

/* Models of many modules that the loop calls one by one: beyond the first few calls of a step they
 * are one slice, from the first of them to the last, as long as nothing that matters lies between.
 * Of the training thread only. */
#define FEW_FORWARDS 3u
#define LONGEST_MERGED_NS 50000000u
#define LONGEST_BETWEEN_NS 500000u
FLATOUT_HOT_DATA static struct {
  uint64_t forwards; /* how many there had been when the step or its batch came */
  uint64_t begin, end;
  uint32_t kind; /* 0: nothing is merged */
  int64_t value;
} merged = {0};

FLATOUT_HOT static void send_merged(void) {
  const uint64_t begin = now_ns();
  agent_later_slice(merged.kind, merged.begin, merged.end, merged.value);
  merged.kind = 0;
  const uint64_t spent = now_ns() - begin;
  flatout_agent_cost(0, spent, spent, 0);
}

/* When the job goes on to something else. */
FLATOUT_HOT static void forwards_end(void) {
  if (merged.kind != 0 && loop.train_thread == flatout_thread_self()) send_merged();
}

FLATOUT_HOT static void send_forward(uint32_t kind, int64_t value, int in_training_thread,
                                     uint64_t begin, uint64_t end) {
  if (!in_training_thread) { /* what is merged is the training thread's to send */
    agent_watched_hook(kind, 0, begin, end, value, 0);
    return;
  }
  const int many = loop.forwards - merged.forwards > FEW_FORWARDS;
  if (merged.kind != 0 &&
      (!many || merged.kind != kind || merged.value != value ||
       end - merged.begin > LONGEST_MERGED_NS || begin - merged.end > LONGEST_BETWEEN_NS))
    send_merged();
  if (!many) {
    agent_watched_hook(kind, 0, begin, end, value, 0);
    return;
  }
  if (merged.kind == 0) merged.begin = begin;
  merged.kind = kind;
  merged.value = value;
  merged.end = end;
  agent_watched_cost(now_ns() - end + flatout_agent_overhead(kind, 0));
}

FLATOUT_HOT static py_object* timed(const struct hook* h, const struct call* c) {
  forwards_end();
  const uint64_t begin = begin_of(h);
  py_object* result = call_original(h, c);
  if (result != NULL) send(h, begin, now_ns(), 0);
  return result;
}

FLATOUT_HOT static py_object* backward(const struct hook* h, const struct call* c) {
  loop.waiting = 0;
  forwards_end();
  if (loop.eval_call != 0) loop.trains_in_eval_mode = 1;
  uint64_t begin = begin_of(h);
  if (python_callbacks.before_backward != NULL &&
      (loop.steps >= loop.graph_step || begin >= loop.graph_due)) {
    py_object* seen = call_with(python_callbacks.before_backward, c);
    if (seen == NULL) return NULL;
    py.Py_DecRef(seen);
    begin = now_ns();
  }
  py_object* result = call_original(h, c);
  if (result == NULL) return NULL;
  const uint64_t end = now_ns();
  loop.last_backward = end;
  ++loop.backwards;
  send(h, begin, end, 0);
  return result;
}

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

/* Of an optimizer. */
FLATOUT_HOT static py_object* step(const struct hook* h, const struct call* c) {
  const uint64_t me = flatout_thread_self();
  if (loop.step_thread == me) return call_original(h, c); /* one inside another */
  loop.step_thread = me;
  forwards_end();
  merged.forwards = loop.forwards;
  const uint64_t backwards = loop.backwards;
  uint64_t begin = begin_of(h);
  py_object* result = call_original(h, c);
  const uint64_t end = now_ns();
  loop.step_thread = 0;
  if (result == NULL) return NULL;
  /* What Lightning hands over as a closure is the forward and backward before the optimizer's own
   * work. LBFGS calls it again and again, with work of its own in between. */
  if (loop.backwards - backwards == 1) begin = loop.last_backward;
  struct optimizer* entry = optimizer_of(argument(c, 0));
  ++entry->steps;
  loop.waiting = 1;
  loop.train_thread = me;
  ++loop.steps;
  agent_watched_hook((uint32_t)h->kind, 0, begin, end, entry->number, entry->steps);
  if (loop.steps < loop.rare_step && end <= loop.look_due) return result;
  if (call_ours(python_callbacks.after_step)) return result;
  py.Py_DecRef(result);
  return NULL;
}

/* GradScaler.step(scaler, optimizer, ...) */
static py_object* scaled(const struct hook* h, const struct call* c) {
  const uint64_t before = loop.steps;
  const uint64_t begin = now_ns();
  py_object* result = call_original(h, c);
  if (result == NULL || loop.steps != before) return result;
  const uint64_t end = now_ns(); /* the scaler left this step out: it is one all the same */
  const struct optimizer* entry = optimizer_of(argument(c, 1));
  loop.waiting = 1;
  agent_watched_hook((uint32_t)h->kind, 0, begin, end, entry->number, entry->steps);
  return result;
}

FLATOUT_NOT_HOT static int ask_gradients(void) {
  if (python_callbacks.grad_enabled == NULL) return 1;
  py_object* answer = py.PyObject_CallObject(python_callbacks.grad_enabled, NULL);
  const int yes = answer == NULL || py.PyObject_IsTrue(answer) != 0;
  if (answer != NULL) py.Py_DecRef(answer);
  py.PyErr_Clear();
  return yes;
}

FLATOUT_HOT static int has_gradients(void) {
  return grad_mode != NULL ? grad_mode() : ask_gradients();
}

/* Models that were in training mode when they were asked, and what was so then. */
#define TRAINED 8u
FLATOUT_HOT_DATA static struct {
  uint64_t models[TRAINED];
  uint64_t iterator, backwards;
  uint32_t oldest;          /* of `models` */
  uint32_t forwards, usual; /* since the last backward, and how many led to it */
} trained = {0};

FLATOUT_HOT static uint64_t* find_trained(uint64_t model) {
  for (uint32_t i = 0; i < TRAINED; ++i) {
    if (trained.models[i] == model) return &trained.models[i];
  }
  return NULL;
}

/* Whether the loop is as it was when this model was asked: batches come from where they did, and no
 * more forwards went by than those that led to a backward before. */
FLATOUT_HOT static int trains_as_before(const uint64_t* known) {
  if (trained.backwards != loop.backwards) {
    trained.backwards = loop.backwards;
    trained.usual = trained.forwards;
    trained.forwards = 0;
  }
  if (trained.iterator != loop.iterator) {
    trained.iterator = loop.iterator;
    trained.usual = 0;
  }
  return ++trained.forwards <= trained.usual && known != NULL;
}

/* Past Module.__getattr__: `training` is a plain attribute of the module. To ask it takes longer
 * than all else that a hook does. */
FLATOUT_NOT_HOT static int is_training(py_object* module) {
  py_object* training = py.PyObject_GenericGetAttr(module, name_training);
  const int yes = training == NULL || py.PyObject_IsTrue(training) != 0;
  if (training != NULL) py.Py_DecRef(training);
  py.PyErr_Clear();
  return yes;
}

FLATOUT_NOT_HOT static int ask_training(py_object* module, uint64_t* known) {
  const int yes = is_training(module);
  if (known != NULL && !yes) *known = 0;
  if (known == NULL && yes)
    trained.models[trained.oldest++ % TRAINED] = (uint64_t)(uintptr_t)module;
  return yes;
}

FLATOUT_HOT static int in_training(py_object* module) {
  uint64_t* const known = find_trained((uint64_t)(uintptr_t)module);
  return trains_as_before(known) || module == NULL || ask_training(module, known);
}

/* Of the last pass without gradients. */
FLATOUT_HOT_DATA static struct {
  uint64_t module, backwards;
  int in_training;
} evaluated = {0};

/* Whether such a pass is in evaluation mode, in a job that trains in training mode. Until the next
 * backward pass the same model is asked once. */
FLATOUT_HOT static int evaluates(py_object* module) {
  if (loop.trains_in_eval_mode != 0 || module == NULL) return 0;
  const uint64_t address = (uint64_t)(uintptr_t)module;
  if (evaluated.module != address || evaluated.backwards != loop.backwards) {
    evaluated.module = address;
    evaluated.backwards = loop.backwards;
    evaluated.in_training = is_training(module);
  }
  return !evaluated.in_training;
}

/* Module.__call__ */
FLATOUT_HOT static py_object* forward(const struct hook* h, const struct call* c) {
  /* Thread-local storage is two more pages. */
  int* const inside =
      loop.train_thread == flatout_thread_self() ? &training_inside_model : &inside_model;
  if (*inside != 0) return call_original(h, c);
  *inside = 1;
  loop.waiting = 0;
  const uint64_t asked = now_ns();
  const int gradients = has_gradients(); /* now, when the job itself will need them next */
  const uint64_t begin = begin_of(h);
  py_object* result = call_original(h, c);
  *inside = 0;
  if (result == NULL) return NULL;
  const uint64_t end = now_ns();
  flatout_agent_cost(0, begin - asked, begin - asked, 0);
  py_object* const module = argument(c, 0);
  uint32_t kind = FLATOUT_SLICE_FORWARD;
  int64_t in_evaluation = 0;
  if (!gradients) {
    kind = FLATOUT_SLICE_VALIDATION;
    in_evaluation = evaluates(module);
  } else if (!in_training(module)) {
    /* Fine-tuning with frozen statistics also does this: then a backward follows. */
    loop.eval_call = 1;
    if (loop.trains_in_eval_mode == 0) kind = FLATOUT_SLICE_VALIDATION;
    in_evaluation = kind == FLATOUT_SLICE_VALIDATION;
  }
  ++loop.forwards;
  send_forward(kind, in_evaluation, inside == &training_inside_model, begin, end);
  return result;
}

/* A wait between the end of a step and the next forward is for input. */
FLATOUT_HOT static py_object* wait_for_input(const struct hook* h, const struct call* c) {
  const uint64_t me = flatout_thread_self();
  if (loop.waiting == 0 || loop.train_thread != me || loop.loader_thread == me)
    return call_original(h, c);
  loop.loader_thread = me; /* what this one is made of is the same wait */
  forwards_end();
  const uint64_t begin = begin_of(h);
  py_object* result = call_original(h, c);
  const uint64_t end = now_ns();
  loop.loader_thread = 0;
  if (end - begin >= SHORTEST_WAIT) {
    send(h, begin, end, result == NULL);
  } else {
    agent_watched_cost(now_ns() - end + flatout_agent_overhead((uint32_t)h->kind, 0));
  }
  return result;
}

/* Returns the batch, or NULL where a signal handler of the job's has raised. */
FLATOUT_NOT_HOT static py_object* shown(py_object* batch) {
  py_object* seen = py.PyObject_CallFunctionObjArgs(python_callbacks.after_batch, batch, NULL);
  py.Py_DecRef(seen != NULL ? seen : batch);
  return seen != NULL ? batch : NULL;
}

/* An iterator's __next__ */
FLATOUT_HOT static py_object* next(const struct hook* h, const struct call* c) {
  const uint64_t me = flatout_thread_self();
  const uint64_t iterator = (uint64_t)(uintptr_t)argument(c, 0);
  if (loop.iterator != iterator) {
    loop.iterator = iterator;
    loop.rare_step = 0; /* its loader's facts are sent at the end of the step that it feeds */
  }
  loop.loader_thread = me;
  forwards_end();
  merged.forwards = loop.forwards;
  const uint64_t begin = begin_of(h);
  py_object* batch = call_original(h, c);
  const uint64_t end = now_ns();
  loop.loader_thread = 0;
  const int ended = batch == NULL && py.PyErr_ExceptionMatches(*py.stop_iteration) != 0;
  if (batch != NULL || ended) send(h, begin, end, 0);
  if (ended) flatout_agent_slice(FLATOUT_SLICE_EPOCH, 0, end, end, (int64_t)++loop.epochs, 0);
  const int due = loop.steps >= loop.batch_step && python_callbacks.after_batch != NULL;
  return batch != NULL && due ? shown(batch) : batch;
}

void python_hooks_after_fork(void) {
  training_inside_model = inside_model = 0;
  merged.kind = 0;
}

/* ---- the type: a callable that binds as a function does ---- */

FLATOUT_HOT static py_object* hook_vectorcall(py_object* object, py_object* const* vector,
                                              size_t flags, py_object* names) {
  flatout_fetch_hot_data();
  const struct hook* h = py_inside(object);
  const struct call c = {.vector = vector, .flags = flags, .names = names};
  return h->around(h, &c);
}

static py_object* hook_call(py_object* object, py_object* args, py_object* named) {
  flatout_fetch_hot_data();
  const struct hook* h = py_inside(object);
  const struct call c = {.args = args, .named = named};
  return h->around(h, &c);
}

static py_object* hook_bind(py_object* object, py_object* instance, py_object* type) {
  (void)type;
  if (instance != NULL && instance != py.none) return py.PyMethod_New(object, instance);
  py.Py_IncRef(object);
  return object;
}

/* Its own attributes, then the type's, then the original's. */
static py_object* hook_attribute(py_object* object, py_object* name) {
  const struct hook* h = py_inside(object);
  py_object* value = h->attributes != NULL ? py.PyDict_GetItemWithError(h->attributes, name) : NULL;
  if (value != NULL) py.Py_IncRef(value);
  if (value != NULL || py.PyErr_Occurred() != NULL) return value;
  value = py.PyObject_GenericGetAttr(object, name);
  if (value != NULL || h->original == NULL || h->name != NULL ||
      py.PyErr_ExceptionMatches(*py.attribute_error) == 0)
    return value;
  py.PyErr_Clear();
  return py.PyObject_GetAttr(h->original, name);
}

static int hook_set_attribute(py_object* object, py_object* name, py_object* value) {
  const struct hook* h = py_inside(object);
  if (value != NULL) return py.PyDict_SetItem(h->attributes, name, value);
  if (py.PyDict_GetItemWithError(h->attributes, name) != NULL)
    return py.PyDict_DelItem(h->attributes, name);
  if (py.PyErr_Occurred() == NULL) py.PyErr_SetObject(*py.attribute_error, name);
  return -1;
}

static py_object* hook_dict(py_object* object, void* closure) {
  (void)closure;
  const struct hook* h = py_inside(object);
  py.Py_IncRef(h->attributes);
  return h->attributes;
}

static py_object* hook_repr(py_object* object) {
  py_object* wrapped = py.PyObject_GetAttrString(object, "__wrapped__");
  if (wrapped == NULL) return NULL;
  py_object* text = py.PyObject_Repr(wrapped);
  py.Py_DecRef(wrapped);
  return text;
}

/* Pickled as a function is, by its name. One that was put into a class of the job's, which may be
 * unpickled where there is no Flatout, as what it stands for. */
static py_object* hook_reduce(py_object* object, py_object* unused) {
  (void)unused;
  const struct hook* h = py_inside(object);
  if (h->name == NULL) return py.PyObject_GetAttrString(object, "__qualname__");
  py_object* builtins = py.PyImport_ImportModule("builtins");
  py_object* get = builtins != NULL ? py.PyObject_GetAttrString(builtins, "getattr") : NULL;
  py_object* args = get != NULL ? py.PyTuple_Pack(2, h->original, h->name) : NULL;
  py_object* both = args != NULL ? py.PyTuple_Pack(2, get, args) : NULL;
  if (args != NULL) py.Py_DecRef(args);
  if (get != NULL) py.Py_DecRef(get);
  if (builtins != NULL) py.Py_DecRef(builtins);
  return both;
}

static int hook_traverse(py_object* object, int (*visit)(py_object*, void*), void* argument) {
  const struct hook* h = py_inside(object);
  int stop = h->original != NULL ? visit(h->original, argument) : 0;
  if (stop == 0 && h->attributes != NULL) stop = visit(h->attributes, argument);
  return stop;
}

/* No tp_clear: what it leads to is what breaks a cycle, and a hook is never without its original.
 */
static void hook_free(py_object* object) {
  struct hook* h = py_inside(object);
  py.PyObject_GC_UnTrack(object);
  if (h->weak_references != NULL) py.PyObject_ClearWeakRefs(object);
  py_object* const held[] = {h->original, h->name, h->attributes};
  for (size_t i = 0; i < sizeof held / sizeof *held; ++i) {
    if (held[i] != NULL) py.Py_DecRef(held[i]);
  }
  py_free(object);
}

static struct py_method hook_methods[] = {
    {"__reduce__", (py_function)(void*)hook_reduce, PY_NO_ARGUMENTS, NULL}, {NULL, NULL, 0, NULL}};
static struct py_getset hook_getset[] = {{"__dict__", hook_dict, NULL, NULL, NULL},
                                         {NULL, NULL, NULL, NULL, NULL}};

static py_object* make_hook_type(void) {
  /* Python 3.8 knows neither: no weak references there. */
  struct py_member offsets[] = {
      {"__weaklistoffset__", PY_MEMBER_SSIZE,
       (ssize_t)(py.object_size + offsetof(struct hook, weak_references)), PY_READ_ONLY, NULL},
      {"__vectorcalloffset__", PY_MEMBER_SSIZE,
       (ssize_t)(py.object_size + offsetof(struct hook, vectorcall)), PY_READ_ONLY, NULL},
      {NULL, 0, 0, 0, NULL}};
  struct py_slot slots[] = {{PY_TP_CALL, (void*)hook_call},
                            {PY_TP_DESCR_GET, (void*)hook_bind},
                            {PY_TP_GETATTRO, (void*)hook_attribute},
                            {PY_TP_SETATTRO, (void*)hook_set_attribute},
                            {PY_TP_REPR, (void*)hook_repr},
                            {PY_TP_DEALLOC, (void*)hook_free},
                            {PY_TP_TRAVERSE, (void*)hook_traverse},
                            {PY_TP_METHODS, hook_methods},
                            {PY_TP_GETSET, hook_getset},
                            {PY_TP_MEMBERS, offsets},
                            {0, NULL}};
  struct py_spec spec = {.name = "_flatout_agent.Hook",
                         .size = (int)(py.object_size + sizeof(struct hook)),
                         .item_size = 0,
                         .flags = PY_DEFAULT_FLAGS | PY_HAVE_GC | PY_METHOD_DESCRIPTOR |
                                  (py.vectorcall != NULL ? PY_HAVE_VECTORCALL : 0),
                         .slots = slots};
  return py.PyType_FromSpec(&spec);
}

static py_object* make_hook(around_function around, uint64_t kind, py_object* original,
                            py_object* name) {
  py_object* attributes = py.PyDict_New();
  py_object* object = attributes != NULL ? py.PyType_GenericAlloc(hook_type, 0) : NULL;
  if (object == NULL) {
    if (attributes != NULL) py.Py_DecRef(attributes);
    return NULL;
  }
  if (original != NULL) py.Py_IncRef(original);
  if (name != NULL) py.Py_IncRef(name);
  *(struct hook*)py_inside(object) = (struct hook){.vectorcall = hook_vectorcall,
                                                   .around = around,
                                                   .kind = kind,
                                                   .original = original,
                                                   .name = name,
                                                   .attributes = attributes,
                                                   .weak_references = NULL};
  return object;
}

static py_object* make_of(around_function around, py_object* const* a, ssize_t count) {
  if (count != 2 && count != 3) return py_wrong_arguments();
  const uint64_t kind = py.PyLong_AsUnsignedLongLong(a[0]);
  if (kind + 1 == 0) return NULL;
  return make_hook(around, kind, a[1], count == 3 ? a[2] : NULL);
}

#define HOOKS(X) X(timed) X(backward) X(step) X(scaled) X(forward) X(wait_for_input) X(next)
#define MAKER(name)                                                                    \
  static py_object* make_##name(py_object* self, py_object* const* a, ssize_t count) { \
    (void)self;                                                                        \
    return make_of(name, a, count);                                                    \
  }
HOOKS(MAKER)
#define METHOD(name) {#name, make_##name, PY_FASTCALL, NULL},
static struct py_method makers[] = {HOOKS(METHOD)};

int python_hooks_add(py_object* calls) {
  name_training = py.PyUnicode_InternFromString("training");
  hook_type = make_hook_type();
  if (name_training == NULL || hook_type == NULL) return 0;
  idle_hook = make_hook(idle, 0, NULL, NULL);
  int made = idle_hook != NULL && py.PyDict_SetItemString(calls, "Hook", hook_type) == 0;
  for (size_t i = 0; made && i < sizeof makers / sizeof *makers; ++i)
    made = py_add_function(calls, &makers[i]);
  return made;
}

void python_hooks_find_torch(void) {
  void* torch = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD);
  if (torch != NULL) *(void**)(&grad_mode) = dlsym(torch, "_ZN3c108GradMode10is_enabledEv");
}
