"""Keras's optimizers, with one op, or a few, for all variables: tfuse.optimizers.Adam, AdamW, Lion, Lamb, SGD, and
LossScaleOptimizer around them.

Arguments, state, names and results are Keras's: a checkpoint moves both ways. What belongs to a step (the loss scale,
clipping, weight decay, the rule) is one walk over gradients, weights and slots; where gradients are clipped by a norm, or
asked whether they are finite, one more over the gradients for each. Moving averages, accumulated gradients and constraints
are Keras's own code around it. What cannot be taken together (sparse gradients, variables of unusual dtypes or listed more
than once, some distribution strategies) takes Keras's own step, one variable at a time, and tfuse.explain() says why.
"""

import collections
import numbers

import keras
import numpy as np
import tensorflow as tf

from tfuse._core import _explain
from tfuse._core._op import FLOATS
from tfuse.lists import tensors_update
from tfuse.lists.tensors_norm import all_finite, clip_by_global_norm, global_norm

_STRATEGIES = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy, tf.distribute.MultiWorkerMirroredStrategy)
if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 5):  # gradients are not summed over replicas where we come in
    _STRATEGIES = ()
_maybe_merge_call = tf.__internal__.distribute.interim.maybe_merge_call


class _Together:
    """Puts the step over all variables into a Keras optimizer. A subclass says its rule: _rule() -> a tensors_update rule,
    its lists of slots, and its numbers by name.

    Keras clips, decays and updates in this order, by three methods; the first two do nothing here, the third does all.
    """

    _scale = None  # a tensor while LossScaleOptimizer hands on gradients that are still to be divided by it

    def _clip_gradients(self, grads):
        return grads

    def _apply_weight_decay(self, variables):
        pass

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        variables = [_native(v) for v in trainable_variables]
        times = collections.Counter(map(id, variables))
        reasons = ["it is listed more than once" if times[id(v)] > 1 else tensors_update.served(g, v)
                   for g, v in zip(grads, variables)]
        whole = self._why_not()
        apart = [i for i, reason in enumerate(reasons) if whole or reason]
        together = [i for i, reason in enumerate(reasons) if not (whole or reason)]
        # A replica's own gradient is clipped before the sum over replicas, and a global norm is that of all variables.
        replicas = self._distribution_strategy.num_replicas_in_sync
        clips, scale = not apart and replicas == 1, self._scale
        # A gradient that is cast to a smaller dtype must be small enough for it.
        if scale is not None and not (clips and all(map(tensors_update.fits, grads, variables))):
            grads, scale = [keras.ops.divide(g, scale) for g in grads], None
        if not clips:
            grads = self._clipped(grads, every=bool(apart))
        if apart:
            self._explain_apart([(whole or reasons[i], grads[i], trainable_variables[i]) for i in apart], len(variables))
            some = [trainable_variables[i] for i in apart]
            super()._apply_weight_decay(some)
            super()._backend_update_step([grads[i] for i in apart], some, learning_rate)
        if together:
            self._update_together([grads[i] for i in together], [variables[i] for i in together], learning_rate, clips, scale)

    def _explain_apart(self, apart, count):
        by_reason = collections.defaultdict(list)
        for reason, gradient, variable in apart:
            by_reason[reason].append((gradient, getattr(variable, "path", variable.name)))
        for reason, members in by_reason.items():
            gradient, name = members[0]
            _explain.note(type(self).__name__, "Keras's own step", "%d of %d variables (%s%s): %s" % (
                len(members), count, name, ", …" * (len(members) > 1), reason), [gradient])

    def _why_not(self):
        if tf.distribute.has_strategy() and not isinstance(self._distribution_strategy, _STRATEGIES):
            return "it runs under %s" % type(self._distribution_strategy).__name__
        strange = [name for name, value in self._numbers().items() if not isinstance(value, numbers.Number)]
        return "%s is not a number" % strange[0] if strange else ""

    def _clipped(self, grads, every):
        dense = not any(isinstance(g, tf.IndexedSlices) for g in grads)
        if self.global_clipnorm and self.global_clipnorm > 0 and dense and not every:
            return clip_by_global_norm(grads, self.global_clipnorm)[0]
        return super()._clip_gradients(grads)

    def _update_together(self, grads, variables, rate, clips, scale):
        rule, slots, _ = self._rule()
        indices = [self._get_variable_index(v) for v in variables]
        slots = [[_native(kind[i]) for i in indices] for kind in slots]
        decays = [self.weight_decay is not None and self._use_weight_decay(v) for v in variables]
        settings = self._settings(rule, clips)

        def apply(grads, rate, scale):
            tensors_update.update(self, settings, grads, variables, slots, decays, tf.convert_to_tensor(rate),
                                  tf.cast(tf.convert_to_tensor(self.iterations), tf.int64), scale)

        if not tf.distribute.has_strategy():
            return apply(grads, rate, scale)
        pairs = self._all_reduce_sum_gradients(list(zip(grads, variables)))
        # All variables live where the first does, one copy of each per replica.
        return _maybe_merge_call(
            lambda distribution, *arguments: distribution.extended.update(
                variables[0], lambda _, *arguments: apply(*arguments), args=arguments, group=False),
            self._distribution_strategy, [g for g, _ in pairs], rate, scale)

    def _numbers(self):
        """Everything that a step takes as a constant, by name."""
        return {**self._rule()[2], "weight_decay": self.weight_decay or 0.0, "clipnorm": self.clipnorm or 0.0,
                "clipvalue": self.clipvalue or 0.0, "global_clipnorm": self.global_clipnorm or 0.0}

    def _settings(self, rule, clips):
        own = self._numbers()
        kinds = [("norm", own["clipnorm"]), ("global_norm", own["global_clipnorm"]), ("value", own["clipvalue"])]
        clip, bound = next((pair for pair in kinds if clips and pair[1] > 0), (None, 0.0))
        beta_1, beta_2 = own.get("beta_1", 0.0), own.get("beta_2", 0.0)
        # Keras makes tensors of these, of float32, before it casts them to a variable's dtype; not so in 1 - beta, but for
        # lion.
        decay, near_1, near_2 = (float(np.float32(value)) for value in (own["weight_decay"], beta_1, beta_2))
        rests = (1 - near_1, 1 - near_2) if rule == "lion" else (1 - beta_1, 1 - beta_2)
        return tensors_update.Settings(rule, decay, clip, bound, near_1, near_2, *rests, own.get("epsilon", 0.0))


def _native(variable):
    """TensorFlow's own variable in Keras's. Before Keras 3.7 keras.Variable is not the class that layers' variables have."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _documented(cls):
    """Keras's own text, and a serialized name of ours."""
    cls.__doc__ = "%s of Keras, all variables in one op or a few.\n\n%s" % (cls.__name__, cls.__bases__[-1].__doc__ or "")
    return keras.saving.register_keras_serializable(package="tfuse")(cls)


@_documented
class Adam(_Together, keras.optimizers.Adam):
    def _rule(self):
        slots = [self._momentums, self._velocities] + ([self._velocity_hats] if self.amsgrad else [])
        return "amsgrad" if self.amsgrad else "adam", slots, {
            "beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}


@_documented
class AdamW(_Together, keras.optimizers.AdamW):
    _rule = Adam._rule


if hasattr(keras.optimizers, "Lamb"):  # from Keras 3.5 on
    @_documented
    class Lamb(_Together, keras.optimizers.Lamb):
        def _rule(self):
            return "lamb", [self._momentums, self._velocities], {
                "beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}

    LAMB = Lamb


@_documented
class Lion(_Together, keras.optimizers.Lion):
    def _rule(self):
        return "lion", [self._momentums], {"beta_1": self.beta_1, "beta_2": self.beta_2}


@_documented
class SGD(_Together, keras.optimizers.SGD):
    def _rule(self):
        if self.momentum == 0:
            return "sgd", [], {}
        return "nesterov" if self.nesterov else "momentum", [self.momentums], {"beta_1": self.momentum}


@_documented
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    def check_finite(self, grads):
        """Keras's, in one op. Where gradients are clipped by a norm, it must be finite too: the squares of scaled gradients
        overflow long before these do."""
        tensors, inner = [g for g in grads if g is not None], self.inner_optimizer
        if any(isinstance(g, tf.IndexedSlices) or g.dtype not in FLOATS for g in tensors):
            return super().check_finite(grads)
        if self._hands_on() and (inner.clipnorm or inner.global_clipnorm):
            return tf.math.is_finite(global_norm(tensors))
        return all_finite(tensors)

    def _stateful_handle_finite_grads(self, grads, trainable_variables):
        if not self._hands_on():
            return super()._stateful_handle_finite_grads(grads, trainable_variables)
        self.inner_optimizer._scale = tf.convert_to_tensor(self.dynamic_scale)
        try:
            self.inner_optimizer.apply(grads, trainable_variables)
        finally:
            self.inner_optimizer._scale = None
        super()._stateful_handle_finite_grads([], trainable_variables)  # no gradients, no step: the scale's growth is left

    def _hands_on(self):
        """Whether the inner optimizer takes gradients that are still scaled. A subclass of one may look at them."""
        inner = self.inner_optimizer
        return (_Together in type(inner).__bases__ and not getattr(inner, "gradient_accumulation_steps", None)
                and inner._distribution_strategy.num_replicas_in_sync == 1)
