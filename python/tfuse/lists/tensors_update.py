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
from tfuse._core._explain import reason
from tfuse._core._list_op import ListOp
from tfuse._core._op import FLOATS, given, real
from tfuse.lists import slices
from tfuse.lists.tensors_norm import global_norm, norms

GROUP_BYTES = 120 << 20  # of new values, wherever they lie; fewer and larger groups leave the GPU fewer ends to wait for
FLIGHT_BYTES = 240 << 20  # of groups that may be under way at a time; a larger group goes alone
GROUP_TENSORS = 256
SLOTS = {"sgd": 0, "momentum": 1, "nesterov": 1, "adam": 2, "amsgrad": 3, "lion": 1, "lamb": 2}


def _clipped(g, scale, norm, each, clip):
    """A gradient, divided by the scale and clipped by a norm, its own or that of all, before both were divided. Each is None
    or a scalar of g's dtype, but for clip, which may be a number."""
    if scale is not None:
        g /= scale
    if norm is None:
        return g
    if scale is not None:
        norm /= scale
    return g * clip / tf.maximum(norm, clip) if each else g * (clip * tf.minimum(1 / norm, 1 / clip) + (norm - norm))


def _plain(gradients, weights, slots, rate, step, hyper, norm, scale, rule, squares=False):
    """What the op computes, in TensorFlow's own ops."""
    decay, clip, beta_1, beta_2, rest_1, rest_2, epsilon, clip_values = tf.unstack(hyper)
    t, count, wide = tf.cast(step + 1, rate.dtype), len(weights), lambda x: tf.cast(x, rate.dtype)
    bias_1, bias_2 = 1 - beta_1**t, 1 - beta_2**t
    new, new_slots = [], [list(slots[i:i + count]) for i in range(0, len(slots), count)]
    each, scale = norm.shape.rank == 1, scale if given(scale) else None
    for i, (g, w) in enumerate(zip(map(wide, gradients), map(wide, weights))):
        if squares:
            g, square = tf.split(g, 2)
        g = _clipped(g, scale, (norm[i] if each else norm) if given(norm) else None, each, clip)
        g = tf.where(clip_values > 0, tf.clip_by_value(g, -clip, clip), g)
        if not squares:
            square = g * g
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
            s[1] += (square - s[1]) * rest_2
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
      gradients: one per variable: dense tensors of its shape, or tf.IndexedSlices.
      variables, slots: resource variables, no one twice; slots is a list for each kind of slot that the rule has.
      decays: for each variable, whether weight decay applies to it.
      rate, step: scalar tensors: the learning rate, and the number of steps done.
      scale: a scalar tensor that the gradients are divided by, before all else; then each must fit its variable.
    """
    places = [_Place(v.handle, tuple(s.handle for s in own), v.dtype, v.shape, v.handle.device, bool(d))
              for v, d, *own in zip(variables, decays, *slots)]
    gradients = [g if fits(g, p) else tf.cast(g, p.dtype) for g, p in zip(map(_before_cast, gradients, places), places)]
    if context.executing_eagerly():
        _compiled(owner, settings, places)([slices.as_tensors(g) for g in gradients], rate, step, scale)
    else:
        _build(settings, places, gradients, rate, step, scale)


@reason
def served(gradient, variable):
    """Why a gradient and its variable cannot be taken."""
    yield variable.dtype not in FLOATS and "its dtype is %s" % variable.dtype.name
    yield gradient.dtype not in FLOATS and "its gradient's dtype is %s" % gradient.dtype.name
    yield not hasattr(variable, "handle") and "it is no resource variable"


def fits(gradient, variable):
    """The kernels take gradients of the variable's dtype, and 16-bit ones beside float32; others are cast."""
    return gradient.dtype == variable.dtype or (variable.dtype == tf.float32 and gradient.dtype in (tf.float16, tf.bfloat16))


def _before_cast(gradient, variable):
    """In a graph, a gradient as its kernel has made it, in 16 bits, where it is then widened for a variable of float32, as
    mixed precision does for every weight: the cast would write 4 bytes a number, for the step to read in the place of 2."""
    made = None if isinstance(gradient, tf.IndexedSlices) else getattr(gradient, "op", None)  # eagerly, a tensor has none
    if made is None or made.type != "Cast" or not gradient.dtype == variable.dtype == tf.float32:
        return gradient
    return made.inputs[0] if made.inputs[0].dtype in (tf.float16, tf.bfloat16) else gradient


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
    in_xla = not context.executing_eagerly() and _op.inside_xla()
    norm = global_norm(gradients) if settings.clip == "global_norm" else None
    dense, sums = [], []  # pairs of a place and its gradient; sums are of sparse ones, which are divided and clipped already
    for p, g in zip(places, gradients):
        if not isinstance(g, tf.IndexedSlices):
            dense.append((p, g))
            continue
        with tf.device(p.device):
            ready = _clipped_slices(g, p, settings, norm, scale)
            if settings.rule == "sgd" and not (p.decays and settings.decay):
                slices.descend(p.handle, ready, rate)
            else:
                sums.append((p, slices.summed(ready, p.shape[0], _adds_squares(settings))))
    running, queue = 0, collections.deque()  # bytes of the groups in the queue, which are not waited for yet
    for pairs, own in (dense, (settings, norm, scale, False)), (
            sums, (settings._replace(clip=None), None, None, _adds_squares(settings))):
        for group, size in _groups(settings, pairs, most=None if in_xla else GROUP_BYTES):
            done = []
            while queue and running + size > FLIGHT_BYTES:
                assigned, freed = queue.popleft()
                done.append(assigned)
                running -= freed
            with tf.device(group[0][0].device):
                assigned = _step(*zip(*group), rate, step, *own, done)
            queue.append((assigned, size))
            running += size


def _adds_squares(settings):
    """Whether of sparse gradients the squares are added up by themselves, as Keras does it."""
    return settings.rule in ("adam", "amsgrad", "lamb") and settings.clip != "global_norm"


def _clipped_slices(gradient, place, settings, norm, scale):
    """Of a sparse gradient all that the op does to a dense one, as Keras does it: before equal rows are added up."""
    if settings.clip == "norm":
        norm = norms([gradient.values])[0]
    scalar = real(gradient.dtype)
    norm, scale = (None if number is None else tf.cast(number, scalar) for number in (norm, scale))
    values = _clipped(tf.cast(gradient.values, scalar), scale, norm, settings.clip == "norm", settings.bound)
    if settings.clip == "value":
        values = tf.clip_by_value(values, -settings.bound, settings.bound)
    return tf.IndexedSlices(tf.cast(values, place.dtype), gradient.indices)


def _groups(settings, pairs, most):
    """Lists of pairs of a place and its gradient that one op takes together, and the bytes of new values that it makes, at
    most `most` where there is more than one."""
    alike = collections.defaultdict(list)
    for p, g in pairs:
        alike[p.device, p.dtype, g.dtype, p.decays].append((p, g))
    for members in alike.values():
        group, total = [], 0
        for p, g in members:
            size = (1 + SLOTS[settings.rule]) * p.shape.num_elements() * p.dtype.size
            if group and (len(group) == GROUP_TENSORS or (most and total + size > most)):
                yield group, total
                group, total = [], 0
            group.append((p, g))
            total += size
        yield group, total


def _step(places, gradients, rate, step, settings, norm, scale, squares, done):
    """Steps a group once what is in `done` is; returns what is done when all is assigned."""
    dtype = places[0].dtype
    scalar = real(dtype)
    handles = [p.handle for p in places] + [s for kind in zip(*(p.slots for p in places)) for s in kind]
    old = [_read(h, dtype, places[i % len(places)].shape) for i, h in enumerate(handles)]
    if settings.clip == "norm":
        norm = norms(gradients)[1]
    norm, scale = (tf.constant([], scalar) if number is None else tf.cast(number, scalar) for number in (norm, scale))
    arguments = (list(gradients), old[:len(places)], old[len(places):], tf.cast(rate, scalar), step,
                 _numbers(settings, scalar, places[0].decays), norm, scale)
    with tf.control_dependencies(done):  # not the reads: they hold what is there already
        new = op(*arguments, rule=settings.rule, squares=squares)
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

