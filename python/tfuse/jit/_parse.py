"""Text to nodes. A text is statements `name = expression`, separated by ";" or new lines, with C's operators and the
functions of _functions.py; the last may be an expression alone. Comments are /* … */: // would be taken for Python's
division. Every error shows the line and the place."""

import difflib
import re
from typing import NamedTuple

from tfuse.jit import _tree
from tfuse.jit._functions import CONSTANTS, FUNCTIONS, INFIX, NAMES, SHORTHANDS

_TOKENS = re.compile(r"""(?P<space>[ \t\r]+|/\*(?:[^*]|\*(?!/))*\*/)
  |(?P<wrong>//|/\*|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)
  |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?(?![\w.]))
  |(?P<name>[A-Za-z_]\w*)
  |(?P<symbol>&&|\|\||[<>=!]=|[-+*/<>!?:(),=])
  |(?P<end>[;\n])""", re.VERBOSE)
_HINTS = {"^": "; powers are pow(a, b)", "%": "; a remainder is a - b * floor(a / b)", "&": "; 'and' is &&",
          "|": "; 'or' is ||", "[": "; an element sees no others: tfuse.jit.raw can", "{": "; conditions are c ? a : b",
          "#": "; comments are /* … */", "**": "; powers are pow(a, b)", "=": "; write y = y + 1 for y += 1",
          **dict.fromkeys(["auto", "const", "double", "float", "int", "return"], "; write name = value, without this")}
_PREFIX = {"-": "neg", "!": "not", "+": None}


class _Waiting(NamedTuple):
    """What waits for values: an operator, by how strongly it binds; or with power 0, "?", "(" or the name of a function, which
    end with a symbol of their own."""
    power: int
    token: str
    operands: int  # how many; of a bracket, how many values stand before it
    place: int = 0


class TextError(ValueError):
    """What is wrong in a text of the user's, with the line and the place."""

    def __init__(self, owner, what, text, at):
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        line = text[start:end if end >= 0 else None]
        super().__init__("%s: %s\n  %s\n  %s^" % (owner, what, line, re.sub(r"[^\t]", " ", line[:at - start])))


def declarations(owner, text, what):
    """[(placeholder, name), …] of "T x, R beta"."""
    found, at = [], 0
    for part in text.split(","):
        start = at + len(part) - len(part.lstrip())
        words = part.split()
        if not words:
            raise TextError(owner, "a declaration of %s is missing here; write \"T x, R beta\"" % what, text, at)
        if len(words) != 2 or not all(re.fullmatch(r"[A-Za-z_]\w*", w) for w in words):
            raise TextError(owner, "%r does not declare one of the %s: it takes a placeholder for the dtype and a "
                            "name, as in \"T x\"" % (part.strip(), what), text, start)
        if not re.fullmatch("[A-Z]", words[0]):
            raise TextError(owner, "%r is no placeholder: T, or any other capital letter, stands for the dtype of what "
                            "a call is given, and R for that of arithmetic" % words[0], text, start)
        if words[1] in (name for _, name in found):
            raise TextError(owner, "%r is declared twice" % words[1], text, start + part.lstrip().rfind(words[1]))
        found.append(tuple(words))
        at += len(part) + 1
    return found


def parse(owner, text, known, what):
    """{name: node} of all assignments of a text, in their order; an expression alone at the end has the name None.

    Args:
      owner: whose text it is, for messages.
      known: {name: node} that expressions may use, and not assign to.
      what: what the text is, for messages.
    """
    if not isinstance(text, str):
        raise ValueError("%s: %s must be text, got %r" % (owner, what, text))
    return _Parser(owner, text, known, what).statements()


def expression(owner, text, known, what):
    """The node of a text's last statement, whose name does not matter, and this name or None."""
    return list(parse(owner, text, known, what).items())[-1][::-1]


class _Parser:
    def __init__(self, owner, text, known, what):
        self.owner, self.text, self.known, self.what = owner, text, known, what
        self.assigned, self.at, self.tokens = {}, 0, list(self._tokens())

    def _tokens(self):
        """(kind, text, place). A new line ends a statement unless it is in parentheses or beside an operator."""
        found, place, depth = [], 0, 0
        while place < len(self.text):
            match = _TOKENS.match(self.text, place)
            if not match:
                wrong = self.text[place]
                if wrong.isdigit() or wrong == ".":
                    raise self._error("this is no number", place)
                raise self._error("%r has no meaning here%s" % (wrong, _HINTS.get(wrong, "")), place)
            if match.lastgroup == "wrong":
                raise self._error(self._why_wrong(match[0]), place)
            depth += {"(": 1, ")": -1}.get(match[0], 0)
            if match.lastgroup != "space" and not (match[0] == "\n" and depth > 0):
                found.append((match.lastgroup, match[0], place))
            place = match.end()
        found.append(("end", "", len(self.text.rstrip())))
        goes_on = (*INFIX, "?", ":")
        for i, token in enumerate(found):
            if token[1] == "\n":
                after = next(t for t in found[i + 1:] if t[1] != "\n")
                if after[1] in goes_on or i and found[i - 1][1] in (*goes_on, "=", "!", ",", "\n"):
                    continue
            yield token

    def _why_wrong(self, text):
        if text == "//":
            return "'//' is neither an operator nor a comment here: write floor(a / b) for a // b, and comments as /* … */"
        if text == "/*":
            return "this comment has no end: */"
        last = text.rpartition(".")[2]
        return "%r has a dot, and names here have none: %s" % (
            text, "write %s(…)" % last if last in NAMES or last in SHORTHANDS else "functions are " + _every_function())

    def _error(self, problem, place):
        return TextError("%s, in %s" % (self.owner, self.what), problem, self.text, place)

    def _next(self):
        self.at += 1
        return self.tokens[self.at - 1]

    def _take(self, symbol):
        """Whether the next token is `symbol`, which is then taken."""
        self.at += self.tokens[self.at][1] == symbol
        return self.tokens[self.at - 1][1] == symbol

    def _expect(self, symbol, why):
        kind, text, place = self._next()
        if text != symbol:
            raise self._error("expected %r %s, got %s" % (symbol, why, self._shown(kind, text)), place)

    def _shown(self, kind, text):
        return repr(text) if text.strip() else "the end" if not text else "a new line"

    def statements(self):
        while True:
            while self.tokens[self.at][0] == "end":
                if not self._next()[1]:
                    if not self.assigned:
                        raise self._error("nothing is computed", 0)
                    return self.assigned
            kind, text, place = self.tokens[self.at]
            if kind == "name" and self.tokens[self.at + 1][1] == "=":
                if text in self.known:
                    raise self._error("%r is given and cannot be assigned to; use another name" % text, place)
                self.at += 2
                self.assigned[text] = self._expression()
            else:
                self.assigned[None] = self._expression()
            kind, text, end = self._next()
            if kind != "end":
                raise self._error("expected an operator or the end of the statement, got %r" % text, end)
            self.at -= not text
            if None in self.assigned and any(t[0] != "end" for t in self.tokens[self.at:]):
                raise self._error("this value is not used: only the last statement may do without \"name =\"", place)

    def _expression(self):
        """The node of the expression that begins at the next token. What waits for a value after it is kept in a list and not
        in calls of Python, so that texts may nest as deep as they like."""
        values, waiting, step = [], [], self._operand
        while step:
            step = step(values, waiting)
        return values.pop()

    def _operand(self, values, waiting):
        """Takes what begins a value, or is one; returns the step after it."""
        kind, text, place = self._next()
        if text in _PREFIX:
            waiting.append(_Waiting(8, _PREFIX[text], 1))
            return self._operand
        if text == "(":
            waiting.append(_Waiting(0, "(", len(values), place))
            return self._operand
        if kind == "name" and self._take("("):
            waiting.append(_Waiting(0, text, len(values), place))
            return self._behind if self.tokens[self.at][1] == ")" else self._operand
        values.append(self._number(text, place) if kind == "number" else self._named(kind, text, place))
        return self._behind

    def _behind(self, values, waiting):
        """Takes what stands behind a value; returns the step that follows, None where the expression has ended."""
        symbol = self.tokens[self.at][1]
        if symbol in INFIX or symbol == "?":
            power, token = INFIX.get(symbol, (2, symbol))
            self._compute(power, values, waiting)
            waiting.append(_Waiting(0, "?", 0) if symbol == "?" else _Waiting(power, token, 2))
            self.at += 1
            return self._operand
        self._compute(1, values, waiting)
        if not waiting:
            return None
        _, token, before, place = opened = waiting.pop()
        if token == "?":
            self._expect(":", "of \"condition ? a : b\"")
            waiting.append(_Waiting(1, "select", 3))
            return self._operand
        if token == "(":
            self._expect(")", "for the '(' at character %d" % (place + 1))
            return self._behind
        if len(values) > before and self._take(","):
            waiting.append(opened)
            return self._operand
        self._expect(")", "after the arguments of %s" % token)
        values[before:] = [self._call(token, place, values[before:])]
        return self._behind

    def _compute(self, least, values, waiting):
        """Operators that bind as strongly as `least`, or more so, have all their values."""
        while waiting and waiting[-1].power >= least:
            _, token, operands, _ = waiting.pop()
            if token:
                values[-operands:] = [_tree.call(token, *values[-operands:])]

    def _number(self, text, place):
        value = float(text.rstrip("fF"))
        if value == float("inf"):
            raise self._error("%s is larger than any number of double; write inf if you mean it" % text, place)
        return _tree.number(value)

    def _named(self, kind, text, place):
        if kind != "name":
            hint = _HINTS.get("**" if text == self.tokens[self.at - 2][1] == "*" else "=" if text == "=" else "", "")
            raise self._error("expected a value, got %s%s" % (self._shown(kind, text), hint), place)
        found = self.assigned.get(text, self.known.get(text))
        if found is None and text in CONSTANTS:
            found = _tree.number(CONSTANTS[text])
        if found is None:
            names = [*self.known, *(n for n in self.assigned if n)]
            if text in NAMES or text in SHORTHANDS:
                raise self._error("%r is a function: write %s(…)" % (text, text), place)
            raise self._error("unknown name %r%s; known are %s%s" % (
                text, self._guess(text, names), ", ".join(names) or "none", _HINTS.get(text, "")), place)
        return found

    def _call(self, name, place, arguments):
        row, short = NAMES.get(name), SHORTHANDS.get(name)
        if not row and not short:
            raise self._error("unknown function %r%s; there are %s" % (
                name, self._guess(name, [*NAMES, *SHORTHANDS]), _every_function()), place)
        wanted = len(row.gradients) if row else short[0]
        if len(arguments) != wanted:
            raise self._error("%s takes %d argument%s, got %d" % (
                name, wanted, "s" * (wanted > 1), len(arguments)), place)
        if row:
            return _tree.call(row.token, *arguments)
        return _tree.substitute([template(short[1])], dict(zip("abc", arguments)), make=_tree.call)[0]

    def _guess(self, name, names):
        close = difflib.get_close_matches(name, names, 1)
        return " (is it %s?)" % close[0] if close else ""


_templates = {}


def template(text):
    """The node of a text in a, b, c, y and d: of a shorthand, or a gradient in the table of functions."""
    if text not in _templates:
        known = {n: _tree.name(n) for n in "abcyd"}
        _templates[text] = expression("tfuse.jit", text, known, "the table of functions")[0]
    return _templates[text]


def _every_function():
    return ", ".join(sorted({*FUNCTIONS, *SHORTHANDS} - {token for _, token in INFIX.values()} - {"neg", "not"}))
