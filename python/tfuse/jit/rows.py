"""tfuse.jit.rows: a kernel from formulas of a row: what is mapped, how it is reduced, what is made of the results."""

from typing import NamedTuple

import tensorflow as tf

from tfuse.jit import _cuda, _derive, _parse, _plain, _program, _tree
from tfuse.jit._call import Operation, assigned, fresh, needed
from tfuse.jit._kernel import Kernel, listed

_A_B = {"a": _tree.name("a"), "b": _tree.name("b")}
_SUM, _MAX = _tree.call("add", *_A_B.values()), _tree.call("max", *_A_B.values())


class Pass(NamedTuple):
    """name = reduce of map over the row, beginning with identity. map is a node in inputs, n and earlier results."""
    name: str
    map: _tree.Node
    reduce: _tree.Node = _SUM
    identity: _tree.Node = _tree.ZERO


def rows(inputs, outputs, map, reduce, identity=None, post=None, final=None, keepdims=False, grad=None, name="rows"):
    """Makes a function that reduces the rows of a tensor, its last axis, and may write each element from the result.

    All results of a row are r0, r1 …, or have the name that `map` gives them; the last is also `result`.

    Args:
      inputs, outputs: as in tfuse.jit.elementwise. The first input has the rows; others broadcast to its shape.
      map: the value of an element: "abs(x)", or "top = abs(x)" to name the result. A list of such for several passes,
        each of which may use the results of those before, and n, the number of elements.
      reduce: how two values a and b become one: "max(a, b)"; a list for several passes, or one for all. It must not
        matter which values are joined first, nor which of two is a.
      identity: what reduce begins with. If not given, "0" for a + b, "1" for a * b, "-inf" for max(a, b) and "inf" for
        min(a, b).
      post: each element of the outputs, which are like the first input: "y = x / result".
      final: the output of a row, "sqrt(result / n)", without post. The last result if not given. Inputs that it uses
        must be the same along the row: numbers, or tensors whose last axis is 1.
      keepdims: whether the output of a row keeps the last axis, as 1.
      grad: True derives it, where every reduce is a + b, max(a, b) or min(a, b); text gives it for each element, in
        inputs, results, outputs, and dy; or a function(*inputs, *outputs, *gradients of outputs); None: there is none.
      name: what messages and tfuse.explain() call the kernel.

    Returns:
      A function(*inputs) that returns a tensor, or a list of them where there are several outputs.

    Example:
      softmax = tfuse.jit.rows("T x", "T y", map=["x", "exp(x - stop(r0))"], reduce=["max(a, b)", "a + b"],
                               post="y = exp(x - stop(r0)) / r1", grad=True)
      y = softmax(tf.random.normal([4, 8]))
    """
    recipe = dict(kind="rows", inputs=inputs, outputs=outputs, map=map, reduce=reduce, identity=identity, post=post,
                  final=final, keepdims=keepdims, grad=grad, name=name)
    inputs, outputs = _parse.declarations(name, inputs, "inputs"), _parse.declarations(name, outputs, "outputs")
    known = {n: _tree.name(n) for n in [*(n for _, n in inputs), "n"]}
    passes = _passes(name, known, map, reduce, identity)
    if post is not None and final is not None:
        raise ValueError("%s: give post, for each element, or final, for each row, not both" % name)
    last = _tree.name(passes[-1].name)
    known.update({p.name: _tree.name(p.name) for p in passes}, result=last)
    text, what = (post, "post") if post is not None else (final, "final")
    found = {None: last} if text is None else _parse.parse(name, text, known, what)
    roots = assigned(name, found, [n for _, n in outputs], what)
    return Rows(name, inputs, outputs, passes, roots, post is not None, keepdims, grad, recipe)


def _passes(owner, known, map, reduce, identity):
    maps, known, passes = listed(map), dict(known), []
    reduces, identities = ([*listed(v)] * (len(maps) if len(listed(v)) == 1 else 1) for v in (reduce, identity))
    if not len(maps) == len(reduces) == len(identities):
        raise ValueError("%s: map has %d passes, reduce %d and identity %d; give one for each pass, or one for all" % (
            owner, len(maps), len(reduces), len(identities)))
    for i, texts in enumerate(zip(maps, reduces, identities)):
        place = " of pass %d" % i if len(maps) > 1 else ""
        value, result = _parse.expression(owner, texts[0], known, "map" + place)
        join, _ = _parse.expression(owner, texts[1], _A_B, "reduce" + place)
        kind = _plain.known_reduction(join)
        if texts[2] is not None:
            first, _ = _parse.expression(owner, str(texts[2]), {}, "identity" + place)
        elif kind:
            first = _tree.number(_plain.REDUCTIONS[kind][1])
        else:
            raise ValueError("%s: reduce%s %r needs an identity: what it begins with" % (owner, place, texts[1]))
        result = result or "r%d" % i
        if result in known or result == "result":
            raise ValueError("%s: the result%s is called %s, which is an input or has a meaning here; name it as in "
                             "map=\"total = …\"" % (owner, place, result))
        known[result] = _tree.name(result)
        passes.append(Pass(result, value, join, first))
    return passes


class Rows(Operation):
    """roots: a node for each output, in results and n, and where `post`, for each element, in inputs as well."""

    def __init__(self, name, inputs, outputs, passes, roots, post, keepdims, grad, recipe=None):
        reserved = [n for _, n in [*inputs, *outputs] if n in ("n", "result")]
        if reserved:
            raise ValueError("%s: %s has a meaning in rows; give the tensor another name" % (name, reserved[0]))
        if not post and len(outputs) > 1:
            raise ValueError("%s: rows without post have one output, got %s" % (name, ", ".join(n for _, n in outputs)))
        names = [n for _, n in inputs]
        # Of those that final uses: a row has one value of each.
        self.same = [] if post else [i for i, n in enumerate(names) if n in _tree.names(roots)]
        if 0 in self.same:
            raise ValueError("%s: final is computed once for each row, and %s has a value for each element; write "
                             "post=\"%s = …\" for an output of each element, or reduce %s in a pass of its own and use its "
                             "result, as in map=[…, \"top = %s\"]" % (name, names[0], outputs[0][1], names[0], names[0]))
        passes, roots = _seen_by_final(passes, roots, [names[i] for i in self.same], names) if not post else (passes, roots)
        self.passes = passes or [Pass("nothing", _tree.ZERO)]  # the walk over rows has one at least
        self.run_passes = needed(passes, roots) or self.passes[:1]
        self.roots, self.post, self.keepdims = roots, post, keepdims
        if grad is True:
            for p in self.run_passes:
                if _plain.known_reduction(p.reduce) not in ("add", "max", "min"):
                    raise ValueError("%s: grad=True takes a reduce of a + b, max(a, b) or min(a, b), and that of %s is "
                                     "another; give grad as text or as a function" % (name, p.name))
        super().__init__(name, inputs, outputs, grad, recipe)
        # Lanes of a warp, and warps, are joined in 11 steps.
        joins = [[root] for p in self.run_passes for root in [*[p.reduce] * 11, p.identity]]
        self.cost = _cuda.cost(roots, *([p.map] for p in self.run_passes), *joins)
        self.kernel = Kernel(
            name=name, kind="rows", source=self._source(), program=self._program(), inputs=tuple(self.names),
            outputs=tuple(self.output_names), types=self.types, launch="", plain=self._plain,
            shapes="; ".join(["like 0"] * len(outputs)) if post else " ".join(
                ["row", *["keep"] * bool(keepdims), *["same"] * bool(self.same), *map(str, self.same)]))

    # ---- the kernel ----

    def _symbols(self):
        """What C and programs call inputs, results and n."""
        return {**{n: "x%d" % i for i, n in enumerate(self.names)}, "n": "n", "a": "a", "b": "b",
                **{p.name: "r%d" % i for i, p in enumerate(self.run_passes)}}

    def _source(self):
        symbols, inputs = self._symbols(), ["x%d" % i for i in range(len(self.names))]
        results, functions = ["r%d" % i for i in range(len(self.run_passes))], []
        for i, p in enumerate(self.run_passes):
            functions += [_cuda.function("%s_map%d" % (self.name, i), [*results[:i], *inputs, "n"], [p.map], symbols),
                          _cuda.function("%s_reduce%d" % (self.name, i), "ab", [p.reduce], symbols),
                          _cuda.function("%s_identity%d" % (self.name, i), "", [p.identity], symbols)]
        functions.append(_cuda.function(
            self.name + ("_post" if self.post else "_final"), [*results, *(inputs if self.post else []), "n"],
            self.roots, symbols, ["y%d" % i for i in range(len(self.roots))] if self.post else ()))
        return _cuda.source(self.name, {"INPUTS": len(inputs), "OUTPUTS": len(self.roots), "PASSES": len(results),
                                        "POST": int(self.post)}, functions,
                            self.cost > _cuda.LARGE_COST["rows"] * max(1, sum(kind != "R" for kind, _ in self.inputs)))

    def _program(self):
        symbols, text = self._symbols(), ""
        for i, p in enumerate(self.run_passes):
            for part in ("map", "reduce", "identity"):
                text += _program.section("%s%d" % (part, i), [getattr(p, part)], symbols, False)
        return text + _program.section("post" if self.post else "final", self.roots, symbols, self.post)

    def _plain(self, tensors):
        tensors = list(tensors)
        for i in self.same:  # a size may not have been known before
            known = tensors[i].shape
            tensors[i] = tf.ensure_shape(tensors[i], [*known[:-1], 1]) if known.rank else tensors[i]
        x, dtype = tensors[0], _plain.arithmetic(tensors)
        values = {n: tf.cast(t, dtype) for n, t in zip(self.names, tensors)}
        values["n"] = tf.cast(tf.shape(x)[-1], dtype)
        for p in self.run_passes:
            mapped, = _plain.evaluate([p.map], values, dtype)
            values[p.name] = _plain.reduced(_plain.to_shape(mapped, [x]), p.reduce, p.identity, dtype)
        found = _plain.evaluate(self.roots, values, dtype)
        if self.post:
            found = [_plain.to_shape(y, [x]) for y in found]
        else:
            found = [_plain.to_shape(y, [values[self.run_passes[0].name]]) for y in found]
            found = found if self.keepdims else [tf.squeeze(y, -1) for y in found]
        return [tf.cast(y, tensors[like].dtype) for y, like in zip(found, self.types)]

    def _check(self, tensors):
        super()._check(tensors)
        x = tensors[0].shape
        if x.rank == 0:
            raise ValueError("%s: %s must have at least one axis, whose elements are reduced, got a scalar" % (
                self.name, self.names[0]))
        for n, t in zip(self.names[1:], tensors[1:]):
            if not tf.broadcast_static_shape(x, t.shape).is_compatible_with(x):
                raise ValueError("%s: %s %s must broadcast to %s %s, which has the rows" % (
                    self.name, n, t.shape, self.names[0], x))
        for i in self.same:
            if tensors[i].shape.rank and tensors[i].shape[-1] not in (1, None):
                raise ValueError("%s: final is computed once for each row, so %s must be the same along it, a number or a "
                                 "tensor whose last axis is 1; got %s. Write post=\"%s = …\" for an output of each element, or "
                                 "reduce %s in a pass of its own" % (
                                     self.name, self.names[i], tensors[i].shape, self.output_names[0], self.names[i]))

    # ---- gradients ----

    def _spread(self, output):
        return output if self.post or self.keepdims else output[..., None]

    def _results(self):
        last = _tree.name(self.passes[-1].name)
        return {"n": _tree.name("n"), **{p.name: _tree.name(p.name) for p in self.passes}, "result": last}

    def _gradient_kind(self, name, inputs, outputs, passes, roots):
        return Rows(name, inputs, outputs, passes, roots, True, False, True)

    def _derived(self, dy, names):
        """Passes and a node for each name, of the gradient kernel.

        With e[i] an element's values, r the results and g[k] the gradient of result k, the gradient of e[i] is
          d post(e[i], r) * dy[i] + sum over k of g[k] * share(k, i) * d map_k(e[i], r),
        where share is 1 in a sum; in a maximum it is 1 / count for the `count` elements that are equal to it, and 0 for
        others. g[k] is the sum over i of the same, as a derivative by r[k], with the passes after k; final is one term
        and no sum.
        """
        passes, sums = list(self.run_passes), list(zip(self.roots, dy))
        seeds, once = (sums, []) if self.post else ([], sums)
        free = lambda name: fresh(name, [*self._gradient_names(), *(p.name for p in passes)])
        for p in reversed(self.run_passes):
            per_element, per_row = (_derive.derive(s, [p.name])[0] for s in (seeds, once))
            if per_element is not _tree.ZERO:
                result = free("g_" + p.name)
                passes.append(Pass(result, per_element))
                per_element = _tree.name(result)
            gradient = _tree.simplified("add", per_element, per_row)
            if gradient is _tree.ZERO:
                continue
            if _plain.known_reduction(p.reduce) != "add":
                equal = _tree.call("eq", p.map, _tree.name(p.name))
                count = free("count_" + p.name)
                passes.append(Pass(count, equal))
                gradient = _tree.call("select", equal, _tree.simplified("div", gradient, _tree.name(count)), _tree.ZERO)
            seeds = [*seeds, (p.map, gradient)]
        return passes, _derive.derive(seeds, names)


def _seen_by_final(passes, roots, inputs, names):
    """final sees results and n alone; an input, which is the same along the row, becomes a result: its own maximum."""
    taken = {*names, *(p.name for p in passes)}
    more = [Pass(fresh("of_" + n, taken), _tree.name(n), _MAX, _tree.number(-float("inf"))) for n in inputs]
    values = {n: _tree.name(p.name) for n, p in zip(inputs, more)}
    return [*more, *passes], _tree.substitute(roots, values, make=_tree.call)
