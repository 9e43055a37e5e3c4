"""Formulas as postfix text, which the CPU runs over blocks of elements.

A section is a header line, such as "body:", and a line of words for each local and each result: inputs x0, results of
rows r0, the arguments a and b of a reduction, the number n of a row's elements, numbers, functions by token, "=t0"
to keep a local and "=y0" to give an output. Maps, reductions, what they begin with and final leave
their one value on the stack. A local's number is used again when nobody needs its value any more: locals cost memory.
"""

from tfuse.jit import _tree


def section(header, roots, symbols, stores=True):
    lines, values = _tree.write(roots, symbols, repr, lambda op, args: " ".join([*args, op] if op != "stop" else args),
                                lambda local, text: "%s =%s" % (text, local))
    lines += ["%s =y%d" % (value, i) for i, value in enumerate(values)] if stores else values
    return "\n".join([header + ":", *_few_locals(lines)]) + "\n"


def _few_locals(lines):
    """The same lines, with numbers of locals used again behind the line that reads them last."""
    words = [line.split() for line in lines]
    last = {word: i for i, line in enumerate(words) for word in line if word[0] == "t" and word[1:].isdigit()}
    number, free, used = {}, [], 0
    for i, line in enumerate(words):
        free += sorted({number[w] for w in line if last.get(w) == i}, reverse=True)
        if line[-1][:2] == "=t":
            if not free:
                free, used = ["t%d" % used], used + 1
            number[line[-1][1:]] = free.pop()
        yield " ".join("=" + number[w[1:]] if w[:2] == "=t" else number.get(w, w) for w in line)
