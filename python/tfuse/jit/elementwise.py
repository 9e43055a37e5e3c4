"""tfuse.jit.elementwise: a kernel from a formula of elements."""

import tensorflow as tf

from tfuse.jit import _cuda, _derive, _parse, _plain, _program, _tree
from tfuse.jit._call import Operation, assigned
from tfuse.jit._kernel import Kernel


def elementwise(inputs, outputs, text, grad=None, name="elementwise"):
    """Makes a function of tensors from a formula of their elements; inputs broadcast.

    Args:
      inputs: "T x, R beta": for each input a placeholder and a name. T, or any capital letter, stands for a dtype, the
        same one wherever it occurs; R for the dtype of arithmetic: float32, or float64 where an input is float64.
      outputs: the same for outputs, with placeholders of inputs.
      text: assignments of all outputs, and of locals if there are any. docs/jit.md says what expressions may use.
      grad: True derives the gradient; "dx = …; dbeta = …" says it, in inputs, outputs and dy, the gradient of output y;
        a function(*inputs, *outputs, *gradients of outputs) returns a gradient for each input; None: there is none.
      name: what messages and tfuse.explain() call the kernel.

    Returns:
      A function(*inputs) that returns a tensor, or a list of them where there are several outputs. Inputs are tensors,
      arrays or numbers. Changing a number does not recompile.

    Example:
      swish = tfuse.jit.elementwise("T x, R beta", "T y", "y = x / (1 + exp(-beta * x))", grad=True)
      y = swish(tf.random.normal([4, 8]), 1.5)
    """
    recipe = dict(kind="elementwise", inputs=inputs, outputs=outputs, text=text, grad=grad, name=name)
    inputs, outputs = _parse.declarations(name, inputs, "inputs"), _parse.declarations(name, outputs, "outputs")
    found = _parse.parse(name, text, {n: _tree.name(n) for _, n in inputs}, "the formula")
    roots = assigned(name, found, [n for _, n in outputs], "the formula")
    return Elementwise(name, inputs, outputs, roots, grad, recipe)


class Elementwise(Operation):
    """roots: a node for each output, in inputs."""

    def __init__(self, name, inputs, outputs, roots, grad, recipe=None):
        self.roots = roots
        super().__init__(name, inputs, outputs, grad, recipe)
        symbols = {n: "x%d" % i for i, n in enumerate(self.names)}
        results = ["y%d" % i for i in range(len(outputs))]
        body = _cuda.function(name + "_body", symbols.values(), roots, symbols, results)
        self.cost = _cuda.cost(roots)
        is_large = self.cost > _cuda.LARGE_COST["elementwise"]
        self.kernel = Kernel(
            name=name, kind="elementwise", program=_program.section("body", roots, symbols),
            source=_cuda.source(name, {"INPUTS": len(inputs), "OUTPUTS": len(outputs)}, [body], is_large),
            inputs=tuple(self.names), outputs=tuple(self.output_names), types=self.types, shapes="broadcast", launch="",
            plain=self._plain)

    def _plain(self, tensors):
        dtype = _plain.arithmetic(tensors)
        found = _plain.evaluate(self.roots, {n: tf.cast(t, dtype) for n, t in zip(self.names, tensors)}, dtype)
        return [tf.cast(_plain.to_shape(y, tensors), tensors[like].dtype) for y, like in zip(found, self.types)]

    def _derived(self, dy, names):
        return (), _derive.derive(list(zip(self.roots, dy)), names)

    def _gradient_kind(self, name, inputs, outputs, passes, roots):
        return Elementwise(name, inputs, outputs, roots, True)
