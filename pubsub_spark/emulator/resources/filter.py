"""The filter language of a subscription: text in, predicate over a message's attributes out.

    filter     := term (AND term)* | term (OR term)*          one kind of operator on a level, parentheses to mix
    term       := [NOT | -] ( '(' filter ')' | comparison | hasPrefix(attributes.KEY, "text") )
    comparison := attributes:KEY | attributes.KEY = "text" | attributes.KEY != "text"
    KEY        := [A-Za-z0-9_-]+ | "text"

Operators are upper case, keys and values are case-sensitive, and a text is in double quotes. `!=` also matches a
message that lacks the key. An empty filter matches everything.

Source of the rules: https://cloud.google.com/pubsub/docs/subscription-message-filter
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Attributes = Mapping[str, str]
Predicate = Callable[[Attributes], bool]

MAX_BYTES = 256

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[A-Za-z0-9_\-]+")
_JOINT = re.compile(r"(AND|OR)(?![A-Za-z0-9_\-])")
_NOT = re.compile(r"NOT(?![A-Za-z0-9_\-])|-")
_COMPARATOR = re.compile(r"!=|=")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(r'\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|([0-3][0-7]{2})|(["\\n]))')
_SIMPLE_ESCAPES = {'"': '"', "\\": "\\", "n": "\n"}


def compile(text: str) -> Predicate:  # noqa: A001 - read as `filter.compile`, like `re.compile`
    """A ValueError describes the mistake and its place."""
    size = len(text.encode())
    if size > MAX_BYTES:
        raise ValueError(f"The filter is {size} bytes long, but the maximum is {MAX_BYTES} bytes.")
    return _Parser(text).parse()


def _matches_all(_: Attributes) -> bool:
    return True


def _has(key: str) -> Predicate:
    return lambda attributes: key in attributes


def _equals(key: str, value: str) -> Predicate:
    return lambda attributes: attributes.get(key) == value


def _differs(key: str, value: str) -> Predicate:
    return lambda attributes: attributes.get(key) != value


def _starts(key: str, prefix: str) -> Predicate:
    return lambda attributes: key in attributes and attributes[key].startswith(prefix)


def _negated(term: Predicate) -> Predicate:
    return lambda attributes: not term(attributes)


def _every(terms: list[Predicate]) -> Predicate:
    return lambda attributes: all(term(attributes) for term in terms)


def _any(terms: list[Predicate]) -> Predicate:
    return lambda attributes: any(term(attributes) for term in terms)


_COMPARISONS: dict[str, Callable[[str, str], Predicate]] = {"=": _equals, "!=": _differs}
_JOINTS: dict[str, Callable[[list[Predicate]], Predicate]] = {"AND": _every, "OR": _any}


class _Parser:
    """Recursive descent. `at` is the offset of the next read. Every error names it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def parse(self) -> Predicate:
        self._skip_space()
        if self.at == len(self.text):
            return _matches_all
        predicate = self._filter()
        if self.at < len(self.text):
            raise self._expected("`AND`, `OR` or the end of the filter")
        return predicate

    def _filter(self) -> Predicate:
        terms = [self._term()]
        joint = None
        while match := _JOINT.match(self.text, self.at):
            if joint is not None and joint != match[1]:
                raise self._wrong("`AND` and `OR` on one level need parentheses")
            joint = match[1]
            self._move(match.end())
            terms.append(self._term())
        return terms[0] if joint is None else _JOINTS[joint](terms)

    def _term(self) -> Predicate:
        if match := _NOT.match(self.text, self.at):
            self._move(match.end())
            return _negated(self._simple())
        return self._simple()

    def _simple(self) -> Predicate:
        if self._take("("):
            inner = self._filter()
            self._require(")")
            return inner
        word = _WORD.match(self.text, self.at)
        if word is not None and word[0] == "attributes":
            return self._comparison()
        if word is not None and word[0] == "hasPrefix":
            return self._has_prefix()
        raise self._expected("`attributes`, `hasPrefix(`, `NOT`, `-` or `(`")

    def _comparison(self) -> Predicate:
        self._move(self.at + len("attributes"))
        if self._take(":"):
            return _has(self._key())
        key = self._dotted_key()
        comparator = _COMPARATOR.match(self.text, self.at)
        if comparator is None:
            raise self._expected("`=` or `!=`")
        self._move(comparator.end())
        return _COMPARISONS[comparator[0]](key, self._string())

    def _has_prefix(self) -> Predicate:
        self._move(self.at + len("hasPrefix"))
        self._require("(")
        word = _WORD.match(self.text, self.at)
        if word is None or word[0] != "attributes":
            raise self._expected("`attributes`")
        self._move(word.end())
        key = self._dotted_key()
        self._require(",")
        prefix = self._string()
        self._require(")")
        return _starts(key, prefix)

    def _dotted_key(self) -> str:
        self._require(".")
        return self._key()

    def _key(self) -> str:
        if word := _WORD.match(self.text, self.at):
            self._move(word.end())
            return word[0]
        if self.text.startswith('"', self.at):
            return self._string()
        raise self._expected("an attribute key (in double quotes unless it is of letters, digits, `-` and `_`)")

    def _string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise self._expected("a text in double quotes")
        value = self._unescape(match.start(1), match[1])
        self._move(match.end())
        return value

    def _unescape(self, start: int, body: str) -> str:
        parts = []
        done = 0
        while (at := body.find("\\", done)) >= 0:
            escape = _ESCAPE.match(body, at)
            if escape is None:
                self.at = start + at
                raise self._wrong(r"an escape is one of `\"`, `\\`, `\n`, `\uXXXX`, `\xHH` and `\OOO`")
            parts += [body[done:at], _character(escape)]
            done = escape.end()
        parts.append(body[done:])
        # Two \u of a surrogate pair are one character. Half of a pair is not a character.
        try:
            return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self.at = start
            raise self._wrong("half a surrogate pair is not a character") from None

    def _take(self, symbol: str) -> bool:
        is_next = self.text.startswith(symbol, self.at)
        if is_next:
            self._move(self.at + len(symbol))
        return is_next

    def _require(self, symbol: str) -> None:
        if not self._take(symbol):
            raise self._expected(f"`{symbol}`")

    def _move(self, at: int) -> None:
        self.at = at
        self._skip_space()

    def _skip_space(self) -> None:
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at

    def _expected(self, expected: str) -> ValueError:
        word = _WORD.match(self.text, self.at)
        actual = f"`{word[0] if word else self.text[self.at]}`" if self.at < len(self.text) else "the end"
        return self._wrong(f"expected {expected}, found {actual}")

    def _wrong(self, reason: str) -> ValueError:
        return ValueError(f"The filter `{self.text}` is not valid at position {self.at}: {reason}.")


def _character(escape: re.Match[str]) -> str:
    unicode, hexadecimal, octal, simple = escape.groups()
    if simple:
        return _SIMPLE_ESCAPES[simple]
    return chr(int(octal, 8)) if octal else chr(int(unicode or hexadecimal, 16))
