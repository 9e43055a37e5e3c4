"""Where the sizes of an op's results come from. XLA compiles for the sizes it meets at run time, so while a function is traced
a size may be unknown (a Keras batch is) if it is some input's; which one, the op's shape rule tells."""

import functools

import tensorflow as tf

from tfuse._core._registered import given

_MARKS = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049)  # stand for unknown sizes; a tensor of them has no 2^63 elements


class SizedByInputs:
    """What FusedOp knows of sizes; it explains axes, multiples, stretched, stretching and like."""

    def _names(self, inputs):
        """Of each input's axes: letters, or their numbers."""
        axes = self.axes(inputs) if callable(self.axes) else self.axes
        letters = [(axes.get(self._argument(i)), value.shape.rank) for i, value in enumerate(inputs)]
        return [own[-rank:] if own and rank else range(rank) for own, rank in letters]

    def _output_dims(self, inputs, attributes, specs):
        """Where each dimension of each output comes from, as _xla.custom_call takes it, and "" or why that is not known.

        The shape rule is asked with a mark for the size of every unknown axis, the same for axes of one name; or, where that
        contradicts what another input knows of the axis, with what that one knows, and that is the size.
        """
        for i, value in enumerate(inputs):
            if value.shape.rank is None:
                return None, "%s has an unknown number of dimensions inside jit_compile=True" % self._argument(i)
        sizes = {size for value in inputs for size in value.shape}
        if None not in sizes:
            return [spec.shape.as_list() for spec in specs], ""
        named = self._names(inputs)
        places = [(name, i, axis) for i, names in enumerate(named) for axis, name in enumerate(names)]
        of = lambda i, axis: inputs[i].shape[axis]
        free = (mark for mark in _MARKS if mark not in sizes)
        marks = {name: next(free, None) for name in dict.fromkeys(name for name, *at in places if of(*at) is None)}
        if None in marks.values():
            return None, "more than %d sizes are unknown inside jit_compile=True" % len(_MARKS)
        known = {}
        for name, *at in places:  # what is not given, [0], knows nothing; nor does a 1 that may be stretched
            if inputs[at[0]].shape != [0] and of(*at) is not None and (of(*at) != 1 or name not in self.stretched):
                known.setdefault(name, set()).add(of(*at))
        known = {name: all.pop() for name, all in known.items() if len(all) == 1}
        for sure in ({}, known):
            stand_in = {**marks, **sure}
            if self.multiples and marks.get(self.multiples[0]) in stand_in.values():
                large, small = self.multiples
                stand_in = {**stand_in, large: marks[large] * stand_in.get(small, known.get(small, 1))}
            unknown = {stand_in[name]: [] for name in marks if name not in sure}
            for name, *at in places:
                if of(*at) is None and name not in sure and (
                        not unknown[stand_in[name]] or name in self.stretched and not self.stretching):
                    unknown[stand_in[name]].append(tuple(at))
            marked = [tf.TensorSpec([stand_in[name] if size is None else size for name, size in zip(names, value.shape)],
                                    value.dtype) for names, value in zip(named, inputs)]
            try:
                shapes = [spec.shape.as_list() for spec in self.output_specs(marked, attributes)]
            except ValueError:  # two unknown sizes on one axis that are not the same
                continue
            own = self._own_dims(inputs)
            return [own.get(o) or [unknown.get(size, size) for size in shape] for o, shape in enumerate(shapes)], ""
        return None, "which unknown dimensions are equal cannot be told inside jit_compile=True"

    def dims_of(self, node):
        """_output_dims of a graph's node; None where they are not known."""
        specs = tuple((i.dtype, None if i.shape.rank is None else tuple(i.shape)) for i in node.inputs)
        return _dims(self, specs, tuple((name, self._attribute(node, name)) for name in self._attributes))

    def stretched_to(self, inputs, i, axis):
        """(input, axis) of what is 1, or as large as this axis of input i, wherever the op runs."""
        named = self._names(inputs)
        if named[i][axis] not in self.stretched:
            return []
        others = [j for j, x in enumerate(inputs) if self._argument(j) in self.stretching and given(x)]
        return [(j, a) for j in others for a, name in enumerate(named[j]) if name == named[i][axis]]

    def _own_dims(self, inputs):
        """By number, those outputs' dimensions that are an input's own."""
        outputs, arguments = ([a.name for a in args] for args in (self._definition.output_arg, self._definition.input_arg))
        pairs = [(outputs.index(output), arguments.index(source)) for output, source in self.like.items()]
        return {o: [(i, axis) if size is None else size for axis, size in enumerate(inputs[i].shape)]
                for o, i in pairs if given(inputs[i])}


# Kept, since layers of one shape ask the same. Of (dtype, shape) of each input and (name, value) of each attribute.
@functools.lru_cache(1024)
def _dims(op, inputs, attributes):
    return op._output_dims([tf.TensorSpec(shape, dtype) for dtype, shape in inputs], dict(attributes), [])[0] or None
