"""One step of a Keras optimizer over all its variables: one op, or a few, for tfuse.optimizers and, behind
tfuse.enable(), for Keras's own.

What belongs to a step (the loss scale, clipping, weight decay, the rule) is one walk over gradients, weights and slots;
where gradients are clipped by a norm, or asked whether they are finite, one more over the gradients for each. Sparse ones
are added up first (lists/slices.py). What cannot be taken together (variables of unusual dtypes or listed more than once, some
distribution strategies) takes Keras's own step, one variable at a time, and tfuse.explain() says why.
"""

import collections
import contextlib
import numbers
import threading

import keras
import numpy as np
import tensorflow as tf

from tfuse._core import _explain
from tfuse._core._op import FLOATS
from tfuse.lists import slices, tensors_update
from tfuse.lists.tensors_norm import all_finite, clip_by_global_norm, global_norm

_STRATEGIES = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy, tf.distribute.MultiWorkerMirroredStrategy)
_BEFORE_3_5 = tuple(map(int, keras.__version__.split(".")[:2])) < (3, 5)
if _BEFORE_3_5:  # gradients are not summed over replicas where we come in
    _STRATEGIES = ()
_maybe_merge_call = tf.__internal__.distribute.interim.maybe_merge_call

# ---- the rules: an optimizer's rule of tensors_update, its lists of slots, and its numbers by name ----


def _adam(o):
    slots = [o._momentums, o._velocities] + ([o._velocity_hats] if o.amsgrad else [])
    return "amsgrad" if o.amsgrad else "adam", slots, {"beta_1": o.beta_1, "beta_2": o.beta_2, "epsilon": o.epsilon}


def _lamb(o):
    return "lamb", [o._momentums, o._velocities], {"beta_1": o.beta_1, "beta_2": o.beta_2, "epsilon": o.epsilon}


def _lion(o):
    return "lion", [o._momentums], {"beta_1": o.beta_1, "beta_2": o.beta_2}


def _sgd(o):
    if o.momentum == 0:
        return "sgd", [], {}
    return "nesterov" if o.nesterov else "momentum", [o.momentums], {"beta_1": o.momentum}


RULES = {keras.optimizers.Adam: _adam, keras.optimizers.AdamW: _adam, keras.optimizers.Lion: _lion,
         keras.optimizers.SGD: _sgd}
if hasattr(keras.optimizers, "Lamb"):  # from Keras 3.5 on
    RULES[keras.optimizers.Lamb] = _lamb

# ---- the step ----

_thread = threading.local()  # .taken: the optimizer whose apply() this thread runs, if its step is a Step


@contextlib.contextmanager
def taking(optimizer):
    """For apply(), which calls the methods of an optimizer that clip, decay and update: inside of the block, and in this thread,
    the first two leave it all to the third, which is a Step. Outside, where others may call them, they do what Keras does.
    None: as outside."""
    before, _thread.taken = getattr(_thread, "taken", None), optimizer
    try:
        yield
    finally:
        _thread.taken = before


def is_taken(optimizer):
    return getattr(_thread, "taken", None) is optimizer


def why_not(optimizer):
    """Why apply() of an optimizer cannot be taken, or ""."""
    own = sorted({"assign", "assign_add", "assign_sub", "update_step"} & vars(optimizer).keys())
    if own:
        return "it has an %s of its own" % own[0]
    accumulates = _BEFORE_3_5 and getattr(optimizer, "gradient_accumulation_steps", None)
    return "before Keras 3.5, gradients are clipped before they are accumulated" if accumulates else ""


def to_accumulate(optimizer, grads):
    """An optimizer's gradients, dense where it accumulates them: Keras adds sparse ones to dense variables, in any order."""
    if not getattr(optimizer, "gradient_accumulation_steps", None):
        return grads
    known = lambda g: isinstance(g, tf.IndexedSlices) and g.shape.rank is not None and g.shape[0] is not None
    return [slices.summed(g, g.shape[0]) if known(g) else g for g in map(slices.as_tensors, grads)]


def explain_own(optimizer, why, grads):
    """Says in tfuse.explain() that a step is Keras's own, where there is a reason."""
    if why:
        _explain.note(type(optimizer).__name__, "Keras's own step", why, list(grads)[:1])


# What Keras itself does in the three parts of a step, as functions of the arguments that follow the optimizer.
Stock = collections.namedtuple("Stock", "clip decay update")


class Step:
    """step(gradients, variables, rate) is all of it. rule: a value of RULES. scale: a tensor where gradients are still to be
    divided by it. Keras's own optimizer clips and decays before it updates; here both wait for the step."""

    def __init__(self, optimizer, rule, stock, scale=None):
        self._optimizer, self._stock, self._scale = optimizer, stock, scale
        self._rule, self._slots, self._own = rule(optimizer)

    def __call__(self, grads, trainable_variables, learning_rate):
        with taking(None):
            self._run(grads, trainable_variables, learning_rate)

    def _run(self, grads, trainable_variables, learning_rate):
        variables = [native(v) for v in trainable_variables]
        times = collections.Counter(map(id, variables))
        reasons = ["it is listed more than once" if times[id(v)] > 1 else tensors_update.served(g, v)
                   for g, v in zip(grads, variables)]
        whole = self._why_not()
        apart = [i for i, reason in enumerate(reasons) if whole or reason]
        together = [i for i, reason in enumerate(reasons) if not (whole or reason)]
        # A replica's own gradient is clipped before the sum over replicas, and a global norm is that of all variables.
        replicas = self._optimizer._distribution_strategy.num_replicas_in_sync
        clips, scale = not apart and replicas == 1, self._scale
        # A gradient that is cast to a smaller dtype must be small enough for it.
        if scale is not None and not (clips and all(map(tensors_update.fits, grads, variables))):
            grads, scale = [keras.ops.divide(g, scale) for g in grads], None
        if not clips:
            grads = self._clipped(grads, every=bool(apart))
        if apart:
            self._explain_apart([(whole or reasons[i], grads[i], trainable_variables[i]) for i in apart], len(variables))
            some = [trainable_variables[i] for i in apart]
            self._stock.decay(some)
            self._stock.update([grads[i] for i in apart], some, learning_rate)
        if together:
            grads, variables = [grads[i] for i in together], [variables[i] for i in together]
            self._update_together(grads, variables, learning_rate, clips, scale)

    def _explain_apart(self, apart, count):
        by_reason = collections.defaultdict(list)
        for reason, gradient, variable in apart:
            by_reason[reason].append((gradient, getattr(variable, "path", variable.name)))
        for reason, members in by_reason.items():
            gradient, name = members[0]
            _explain.note(type(self._optimizer).__name__, "Keras's own step", "%d of %d variables (%s%s): %s" % (
                len(members), count, name, ", …" * (len(members) > 1), reason), [gradient])

    def _why_not(self):
        strategy = self._optimizer._distribution_strategy
        if tf.distribute.has_strategy() and not isinstance(strategy, _STRATEGIES):
            return "it runs under %s" % type(strategy).__name__
        strange = [name for name, value in self._numbers().items() if not isinstance(value, numbers.Number)]
        return "%s is not a number" % strange[0] if strange else ""

    def _clipped(self, grads, every):
        dense, bound = not any(isinstance(g, tf.IndexedSlices) for g in grads), self._optimizer.global_clipnorm
        if bound and bound > 0 and dense and not every:
            return clip_by_global_norm(grads, bound)[0]
        return self._stock.clip(grads)

    def _update_together(self, grads, variables, rate, clips, scale):
        optimizer = self._optimizer
        indices = [optimizer._get_variable_index(v) for v in variables]
        slots = [[native(kind[i]) for i in indices] for kind in self._slots]
        decays = [optimizer.weight_decay is not None and optimizer._use_weight_decay(v) for v in variables]
        settings = self._settings(clips)

        def apply(grads, rate, scale):
            tensors_update.update(optimizer, settings, grads, variables, slots, decays, tf.convert_to_tensor(rate),
                                  tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int64), scale)

        if not tf.distribute.has_strategy():
            return apply(grads, rate, scale)
        pairs = optimizer._all_reduce_sum_gradients(list(zip(grads, variables)))
        # All variables live where the first does, one copy of each per replica.
        return _maybe_merge_call(
            lambda distribution, *arguments: distribution.extended.update(
                variables[0], lambda _, *arguments: apply(*arguments), args=arguments, group=False),
            optimizer._distribution_strategy, [g for g, _ in pairs], rate, scale)

    def _numbers(self):
        """Everything that a step takes as a constant, by name."""
        o = self._optimizer
        return {**self._own, "weight_decay": o.weight_decay or 0.0, "clipnorm": o.clipnorm or 0.0,
                "clipvalue": o.clipvalue or 0.0, "global_clipnorm": o.global_clipnorm or 0.0}

    def _settings(self, clips):
        own = self._numbers()
        kinds = [("norm", own["clipnorm"]), ("global_norm", own["global_clipnorm"]), ("value", own["clipvalue"])]
        clip, bound = next((pair for pair in kinds if clips and pair[1] > 0), (None, 0.0))
        beta_1, beta_2 = own.get("beta_1", 0.0), own.get("beta_2", 0.0)
        # Keras makes tensors of these, of float32, before it casts them to a variable's dtype; not so in 1 - beta, but for
        # lion.
        decay, near_1, near_2 = (float(np.float32(value)) for value in (own["weight_decay"], beta_1, beta_2))
        rests = (1 - near_1, 1 - near_2) if self._rule == "lion" else (1 - beta_1, 1 - beta_2)
        return tensors_update.Settings(self._rule, decay, clip, bound, near_1, near_2, *rests, own.get("epsilon", 0.0))


def native(variable):
    """TensorFlow's own variable in Keras's. Before Keras 3.7 keras.Variable is not the class that layers' variables have."""
    return variable if isinstance(variable, tf.Variable) else variable.value


# ---- around it, a loss scale ----


def check_finite(grads, inner, stock):
    """LossScaleOptimizer's question, in one op. Where an inner optimizer (or None) that takes gradients as they are clips
    them by a norm, that must be finite too: the squares of scaled gradients overflow long before these do."""
    tensors = [g for g in grads if g is not None]
    if any(g.dtype not in FLOATS for g in tensors):
        return stock(grads)
    if inner is not None and (inner.clipnorm or inner.global_clipnorm):
        return tf.math.is_finite(global_norm(tensors))
    return all_finite(tensors)


def takes_scaled(inner):
    """Whether an optimizer whose step is ours can be handed gradients that are still scaled."""
    return not getattr(inner, "gradient_accumulation_steps", None) and inner._distribution_strategy.num_replicas_in_sync == 1


def hand_on(wrapper, grads, trainable_variables, stock):
    """LossScaleOptimizer's step with gradients that are finite: the inner optimizer divides them on its way."""
    wrapper.inner_optimizer._scale = tf.convert_to_tensor(wrapper.dynamic_scale)
    try:
        wrapper.inner_optimizer.apply(grads, trainable_variables)
    finally:
        wrapper.inner_optimizer._scale = None
    stock([], trainable_variables)  # no gradients, no step: the scale's growth is left


class Together:
    """Puts the step over all variables into a Keras optimizer.

    Keras clips, decays and updates in this order, by three methods; called by apply(), the first two do nothing here, and the
    third does all.
    """

    _scale = None  # a tensor while LossScaleOptimizer hands on gradients that are still to be divided by it

    def apply(self, grads, trainable_variables=None):
        with taking(None if why_not(self) else self):
            return super().apply(to_accumulate(self, grads), trainable_variables)

    def _clip_gradients(self, grads):
        return grads if is_taken(self) else super()._clip_gradients(grads)

    def _apply_weight_decay(self, variables):
        return None if is_taken(self) else super()._apply_weight_decay(variables)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if not is_taken(self):
            explain_own(self, why_not(self), grads)
            return super()._backend_update_step(grads, trainable_variables, learning_rate)
        stock = Stock(super()._clip_gradients, super()._apply_weight_decay, super()._backend_update_step)
        Step(self, self._rule, stock, self._scale)(grads, trainable_variables, learning_rate)
