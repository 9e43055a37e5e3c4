"""One step of an optimizer over many variables: few ops for any number of them, whose results are assigned.

An op returns new values, and assigning one to a variable hands its memory over: nothing is copied, and no memory that
somebody may still look at is written. New weights lie where their gradients were, if nobody else holds these and their dtype
is the weights', as in a function that makes them; so a gradient that is a slice of a larger tensor keeps all of that. New
slots, and other new weights, take memory beside what they replace until they are assigned, so variables are taken in groups,
and a group waits for earlier ones where too much would be under way. Groups also bound how many variables one op has:
TensorFlow reads and assigns the variables of several groups at a time, on several threads.

Inside XLA, an update takes the memory of what it replaces, if XLA may let go of that, so bytes do not count there. How many
variables there are does: XLA's time to compile a call grows faster than their number. On a CPU, with sgd, a call with 1,000
took 5.1 s, four with 250 took 1.6 s.
"""

import collections
import weakref

import tensorflow as tf
from tensorflow.python.eager import context

from tfuse._core import _op
from tfuse._core._list_op import ListOp
from tfuse._core._op import FLOATS, given, real
from tfuse.lists.tensors_norm import global_norm, norms

GROUP_BYTES = 120 << 20  # of new values, wherever they lie; fewer and larger groups leave the GPU fewer ends to wait for
FLIGHT_BYTES = 240 << 20  # of groups that may be under way at a time; a larger group goes alone
GROUP_TENSORS = 256
SLOTS = {"sgd": 0, "momentum": 1, "nesterov": 1, "adam": 2, "amsgrad": 3, "lion": 1, "lamb": 2}


def _plain(gradients, weights, slots, rate, step, hyper, norm, scale, rule):
    """What the op computes, in TensorFlow's own ops."""
    decay, clip, beta_1, beta_2, rest_1, rest_2, epsilon, clip_values = tf.unstack(hyper)
    t, count, wide = tf.cast(step + 1, rate.dtype), len(weights), lambda x: tf.cast(x, rate.dtype)
    bias_1, bias_2 = 1 - beta_1**t, 1 - beta_2**t
    new, new_slots = [], [list(slots[i:i + count]) for i in range(0, len(slots), count)]
    for i, (g, w) in enumerate(zip(map(wide, gradients), map(wide, weights))):
        if given(scale):
            g /= scale
        if given(norm):
            own = (norm if norm.shape.rank == 0 else norm[i]) / (scale if given(scale) else 1)
            g = g * (clip * tf.minimum(1 / own, 1 / clip) + (own - own)) if norm.shape.rank == 0 else (
                g * clip / tf.maximum(own, clip))
        g = tf.where(clip_values > 0, tf.clip_by_value(g, -clip, clip), g)
        w -= w * decay * rate
        s = [wide(kind[i]) for kind in new_slots]
        if rule in ("momentum", "nesterov"):
            s[0] = s[0] * beta_1 - g * rate
            w += s[0] if rule == "momentum" else s[0] * beta_1 - g * rate
        elif rule == "lion":
            w -= rate * tf.sign(s[0] * beta_1 + g * rest_1)
            s[0] = s[0] * beta_2 + g * rest_2
        elif rule == "sgd":
            w -= g * rate
        else:
            s[0] += (g - s[0]) * rest_1
            s[1] += (g * g - s[1]) * rest_2
            if rule == "amsgrad":
                s[2] = tf.maximum(s[2], s[1])
            if rule == "lamb":
                u = s[0] / bias_1 / (tf.sqrt(s[1] / bias_2) + epsilon)
                norms_ = tf.norm(w), tf.norm(u)
                w -= tf.where(tf.minimum(*norms_) > 0, norms_[0] / norms_[1], 1) * rate * u
            else:
                w -= s[0] * (rate * tf.sqrt(bias_2) / bias_1) / (tf.sqrt(s[-1]) + epsilon)
        new.append(tf.cast(w, weights[i].dtype))
        for kind, value in zip(new_slots, s):
            kind[i] = tf.cast(value, weights[i].dtype)
    return [new, [value for kind in new_slots for value in kind]]


def _after_gradients(gradients, weights, slots, *_):
    """Which inputs the outputs are like: the weights, then the slots."""
    return range(len(gradients), len(gradients) + len(weights) + len(slots))


op = ListOp("TensorsUpdate", _plain, outputs=lambda *arguments: list(_after_gradients(*arguments)),
            in_place=lambda i, *arguments: _after_gradients(*arguments)[i])

# A rule with its numbers: what stays the same from step to step. clip is None, "value", "norm" (of each variable) or
# "global_norm".
Settings = collections.namedtuple("Settings", ["rule", "decay", "clip", "bound", "beta_1", "beta_2", "rest_1", "rest_2",
                                               "epsilon"])
# What is known of a variable without reading it. `decays`: whether weight decay applies.
_Place = collections.namedtuple("_Place", ["handle", "slots", "dtype", "shape", "device", "decays"])


def update(owner, settings, gradients, variables, slots, decays, rate, step, scale=None):
    """Assigns variables and slots their next values.

    Args:
      owner: the optimizer; what is kept from one eager step for the next goes with it.
      settings: a Settings.
      gradients: dense tensors, one per variable and of its shape.
      variables, slots: resource variables, no one twice; slots is a list for each kind of slot that the rule has.
      decays: for each variable, whether weight decay applies to it.
      rate, step: scalar tensors: the learning rate, and the number of steps done.
      scale: a scalar tensor that the gradients are divided by, before all else; then each must fit its variable.
    """
    places = [_Place(v.handle, tuple(s.handle for s in own), v.dtype, v.shape, v.handle.device, bool(d))
              for v, d, *own in zip(variables, decays, *slots)]
    gradients = [g if fits(g, p) else tf.cast(g, p.dtype) for g, p in zip(gradients, places)]
    if context.executing_eagerly():
        _compiled(owner, settings, places)(gradients, rate, step, scale)
    else:
        _build(settings, places, gradients, rate, step, scale)


def served(gradient, variable):
    """"" or why a gradient and its variable cannot be taken."""
    if isinstance(gradient, tf.IndexedSlices):
        return "its gradient is sparse"
    if variable.dtype not in FLOATS:
        return "its dtype is %s" % variable.dtype.name
    if gradient.dtype not in FLOATS:
        return "its gradient's dtype is %s" % gradient.dtype.name
    if not hasattr(variable, "handle"):
        return "it is no resource variable"
    return ""


def fits(gradient, variable):
    """The kernels take gradients of the variable's dtype, and 16-bit ones beside float32; others are cast."""
    return gradient.dtype == variable.dtype or (variable.dtype == tf.float32 and gradient.dtype in (tf.float16, tf.bfloat16))


# For eager steps: by owner, then by settings and handles. A function keeps its variables alive, but not its owner.
_functions = weakref.WeakKeyDictionary()
_MOST_FUNCTIONS = 16  # of one owner


def _compiled(owner, settings, places):
    """Eagerly thousands of reads and assignments would be as many calls from Python: they become one function."""
    key = (settings, *(p.decays for p in places), *(id(h) for p in places for h in (p.handle, *p.slots)))
    functions = _functions.setdefault(owner, collections.OrderedDict())
    if key not in functions:
        functions[key] = tf.function(lambda *arguments: _build(settings, places, *arguments), autograph=False,
                                     reduce_retracing=True)
        if len(functions) > _MOST_FUNCTIONS:
            functions.popitem(last=False)
    functions.move_to_end(key)
    return functions[key]


def _build(settings, places, gradients, rate, step, scale):
    in_xla = not context.executing_eagerly() and _op._inside_xla()
    norm = global_norm(gradients) if settings.clip == "global_norm" else None
    running, queue = 0, collections.deque()  # bytes of the groups in the queue, which are not waited for yet
    for members, size in _groups(settings, places, gradients, most=None if in_xla else GROUP_BYTES):
        done = []
        while queue and running + size > FLIGHT_BYTES:
            assigned, freed = queue.popleft()
            done.append(assigned)
            running -= freed
        with tf.device(places[members[0]].device):
            assigned = _step([places[i] for i in members], [gradients[i] for i in members], settings, rate, step, norm, scale,
                             done)
        queue.append((assigned, size))
        running += size


def _groups(settings, places, gradients, most):
    """Lists of indices, of variables that one op takes together, and the bytes of new values that it makes, at most `most`
    where there is more than one."""
    alike = collections.defaultdict(list)
    for i, (p, g) in enumerate(zip(places, gradients)):
        alike[p.device, p.dtype, g.dtype, p.decays].append(i)
    for members in alike.values():
        group, total = [], 0
        for i in members:
            size = (1 + SLOTS[settings.rule]) * places[i].shape.num_elements() * places[i].dtype.size
            if group and (len(group) == GROUP_TENSORS or (most and total + size > most)):
                yield group, total
                group, total = [], 0
            group.append(i)
            total += size
        yield group, total


def _step(places, gradients, settings, rate, step, norm, scale, done):
    """Steps a group once what is in `done` is; returns what is done when all is assigned."""
    dtype = places[0].dtype
    scalar = real(dtype)
    handles = [p.handle for p in places] + [s for kind in zip(*(p.slots for p in places)) for s in kind]
    old = [_read(h, dtype, places[i % len(places)].shape) for i, h in enumerate(handles)]
    if settings.clip == "norm":
        norm = norms(gradients)[1]
    norm, scale = (tf.constant([], scalar) if number is None else tf.cast(number, scalar) for number in (norm, scale))
    arguments = (gradients, old[:len(places)], old[len(places):], tf.cast(rate, scalar), step,
                 _numbers(settings, scalar, places[0].decays), norm, scale)
    with tf.control_dependencies(done):  # not the reads: they hold what is there already
        new = op(*arguments, rule=settings.rule)
    return tf.group(*[tf.raw_ops.AssignVariableOp(resource=h, value=value) for h, value in zip(handles, new[0] + new[1])])


def _read(handle, dtype, shape):
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    value.set_shape(shape)
    return value


def _numbers(settings, dtype, decays):
    """The op's input `hyper`."""
    clip = settings.bound if settings.clip else 0.0
    return tf.constant([settings.decay if decays else 0.0, clip, settings.beta_1, settings.beta_2, settings.rest_1,
                        settings.rest_2, settings.epsilon, float(settings.clip == "value")], dtype)

