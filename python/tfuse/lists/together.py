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


def _sgd(o):
    if o.momentum == 0:
        return "sgd", [], {}
    return "nesterov" if o.nesterov else "momentum", [o.momentums], {"beta_1": o.momentum}


RULES = {keras.optimizers.Adam: _adam, keras.optimizers.AdamW: _adam, keras.optimizers.SGD: _sgd,
         keras.optimizers.Lion: lambda o: ("lion", [o._momentums], {"beta_1": o.beta_1, "beta_2": o.beta_2})}
if hasattr(keras.optimizers, "Lamb"):  # from Keras 3.5 on
    RULES[keras.optimizers.Lamb] = lambda o: (
        "lamb", [o._momentums, o._velocities], {"beta_1": o.beta_1, "beta_2": o.beta_2, "epsilon": o.epsilon})

# ---- the step ----

_thread = threading.local()  # .taken: the optimizer whose apply() this thread runs, if its step is a _Step


@contextlib.contextmanager
def _taking(optimizer):
    """For apply(), which calls the methods of an optimizer that clip, decay and update: inside of the block, and in this thread,
    the first two leave it all to the third, which is a _Step. Outside, where others may call them, they do what Keras does.
    None: as outside."""
    before, _thread.taken = getattr(_thread, "taken", None), optimizer
    try:
        yield
    finally:
        _thread.taken = before


def _is_taken(optimizer):
    return getattr(_thread, "taken", None) is optimizer


def why_not(optimizer):
    """Why apply() of an optimizer cannot be taken, or ""."""
    own = sorted({"assign", "assign_add", "assign_sub", "update_step"} & vars(optimizer).keys())
    if own:
        return "it has an %s of its own" % own[0]
    accumulates = _BEFORE_3_5 and getattr(optimizer, "gradient_accumulation_steps", None)
    return "before Keras 3.5, gradients are clipped before they are accumulated" if accumulates else ""


def _to_accumulate(optimizer, grads):
    """An optimizer's gradients, dense where it accumulates them: Keras adds sparse ones to dense variables, in any order."""
    if not getattr(optimizer, "gradient_accumulation_steps", None):
        return grads
    known = lambda g: isinstance(g, tf.IndexedSlices) and g.shape.rank is not None and g.shape[0] is not None
    return [slices.summed(g, g.shape[0]) if known(g) else g for g in map(slices.as_tensors, grads)]


class _Step:
    """step(gradients, variables, rate) is all of it. Keras's own optimizer clips and decays before it updates; here both wait for
    the step. Where `_scale` of the optimizer is a tensor, gradients are still to be divided by it."""

    def __init__(self, optimizer):
        self._optimizer, self._scale = optimizer, getattr(optimizer, "_scale", None)
        self._stock = getattr(optimizer, "_made_of", type(optimizer))  # the class whose methods are Keras's own
        self._rule, self._slots, self._own = RULES[self._stock](optimizer)

    def __call__(self, grads, trainable_variables, learning_rate):
        with _taking(None):
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
            self._stock._apply_weight_decay(self._optimizer, some)
            self._stock._backend_update_step(self._optimizer, [grads[i] for i in apart], some, learning_rate)
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
        return self._stock._clip_gradients(self._optimizer, grads)

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


def is_made_here(optimizer):
    """Whether it is one of tfuse.optimizers, or of a subclass: _made_of is the class of Keras."""
    return hasattr(optimizer, "_made_of")


def methods(why_not):
    """What takes the place of an optimizer's methods, by name; each is called with the method it replaces. Keras clips, decays
    and updates in this order, by three methods: called by apply(), the first two do nothing, and the third does all, where
    why_not(optimizer) is "". Otherwise, and for whoever else calls them, they are Keras's own."""
    def apply(own, optimizer, grads, *arguments, **options):
        why = why_not(optimizer)
        if not why or is_made_here(optimizer):
            grads = _to_accumulate(optimizer, grads)
        with _taking(None if why else optimizer):
            return own(optimizer, grads, *arguments, **options)

    def update(own, optimizer, grads, *arguments):
        if _is_taken(optimizer):
            return _Step(optimizer)(grads, *arguments)
        why = why_not(optimizer)
        if why:
            _explain.note(type(optimizer).__name__, "Keras's own step", why, list(grads)[:1])
        return own(optimizer, grads, *arguments)

    return {"apply": apply, "_backend_update_step": update,
            "_clip_gradients": lambda own, optimizer, grads: grads if _is_taken(optimizer) else own(optimizer, grads),
            "_apply_weight_decay": lambda own, optimizer, variables: (
                None if _is_taken(optimizer) else own(optimizer, variables))}


# ---- around it, a loss scale ----


def scale_methods(is_ours):
    """The same of LossScaleOptimizer, for inner optimizers whose step is ours, as is_ours(inner) tells."""
    def hands_on(inner):
        """Whether it can be handed gradients that are still scaled."""
        accumulates = getattr(inner, "gradient_accumulation_steps", None)
        return is_ours(inner) and not accumulates and inner._distribution_strategy.num_replicas_in_sync == 1

    def check_finite(own, wrapper, grads):
        """In one op. Where an inner optimizer that takes gradients as they are clips them by a norm, that must be finite too:
        the squares of scaled gradients overflow long before these do."""
        tensors, inner = [g for g in grads if g is not None], wrapper.inner_optimizer
        if any(g.dtype not in FLOATS for g in tensors):
            return own(wrapper, grads)
        if hands_on(inner) and (inner.clipnorm or inner.global_clipnorm):
            return tf.math.is_finite(global_norm(tensors))
        return all_finite(tensors)

    def finite_step(own, wrapper, grads, trainable_variables):
        """With gradients that are finite: the inner optimizer divides them on its way."""
        inner = wrapper.inner_optimizer
        if not hands_on(inner):
            return own(wrapper, grads, trainable_variables)
        inner._scale = tf.convert_to_tensor(wrapper.dynamic_scale)
        try:
            inner.apply(grads, trainable_variables)
        finally:
            inner._scale = None
        own(wrapper, [], trainable_variables)  # no gradients, no step: the scale's growth is left

    return {"check_finite": check_finite, "_stateful_handle_finite_grads": finite_step}
