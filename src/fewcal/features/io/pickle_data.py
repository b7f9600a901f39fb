"""A reader of pickles that knows data alone: numbers, texts, lists, tuples, dictionaries and arrays of numbers.

A pickle is a program for a stack machine, and Python's own machine can be made to call functions, to hash for ever, to
recurse until the process dies or to fill the memory with nine bytes. This one has no instruction that calls anything:
names stand for a handful of rules (`pickle_values`), dictionaries are lists of pairs so that nothing is hashed, no rule
looks deeper than it must, and whatever is copied is paid for from a budget in proportion to the file.

>>> import pickle
>>> read_pickle(pickle.dumps({"a": [1, 2.5]})).pairs
[('a', [1, 2.5])]
"""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Callable

import numpy as np

from fewcal._utils.text import one_line
from fewcal.features.io.pickle_values import NAMES, Name, Pairs, Refused, Value, build, kind_of

_FLOATS = re.compile(rb"(?:G.{8})+", re.DOTALL)
_FLOAT_RUN = np.dtype([("opcode", "u1"), ("value", ">f8")])


class Damaged(Exception):
    """The bytes are no pickle, or not all of it."""


def read_pickle(data: bytes) -> Value:
    """What a pickle holds; `Refused` where that is no plain data, `Damaged` where it ends early or makes no sense."""
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, struct.error, KeyError):
        raise Damaged("it ends early or refers to nothing") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise Damaged(one_line(error)) from None


# ---- the machine ----------------------------------------------------------------------------------------------------


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self.stack: list[Value] = []
        self.marks: list[int] = []
        self.memo: dict[int, Value] = {}
        self.budget = 4 * len(data) + 4096

    def run(self) -> Value:
        data, table = self.data, _OPCODES
        while True:
            opcode = data[self.place]
            self.place += 1
            if opcode == _STOP:
                return self.stack.pop()
            rule = table.get(opcode)
            if rule is None:
                raise _unknown(opcode)
            rule(self)

    # ---- reading ----

    def take(self, size: int) -> bytes:
        begin, end = self.place, self.place + size
        if end > len(self.data):
            raise IndexError
        self.place = end
        return self.data[begin:end]

    def number(self, layout: str) -> int:
        [value] = struct.unpack_from(layout, self.data, self.place)
        self.place += struct.calcsize(layout)
        return int(value)

    def line(self) -> bytes:
        end = self.data.index(b"\n", self.place)
        begin, self.place = self.place, end + 1
        return self.data[begin:end]

    # ---- the stack ----

    def cut(self) -> list[Value]:
        """What stands above the last mark."""
        mark = self.marks.pop()
        above = self.stack[mark:]
        del self.stack[mark:]
        return above

    def pop_tuple(self, size: int) -> None:
        if len(self.stack) < size:
            raise IndexError
        self.stack[len(self.stack) - size :] = [tuple(self.stack[len(self.stack) - size :])]

    def append(self, values: list[Value]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise Refused(f"appends to a {kind_of(target)}")
        target.extend(values)

    def set_items(self, values: list[Value]) -> None:
        target = self.stack[-1]
        if not isinstance(target, Pairs) or len(values) % 2:
            raise Refused(f"sets items of a {kind_of(target)}")
        target.pairs.extend(zip(values[::2], values[1::2], strict=True))

    def spend(self, size: int) -> None:
        """Pay for a copy; a file whose content is many times as large as itself is refused."""
        self.budget -= size
        if self.budget < 0:
            raise Refused("repeats its content many times over")

    # ---- names ----

    def name(self, module: str, name: str) -> None:
        # Protocols 0 to 2 use the module's name in Python 2.
        text = f"{'builtins' if module == '__builtin__' else module}.{name}"
        rule = NAMES.get(text)
        if rule is None:
            raise Refused(f"mentions {text[:80]}")
        self.stack.append(Name(text, rule))

    def stack_name(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise Refused("mentions something without a name")
        self.name(module, name)

    def call(self) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        if not isinstance(name, Name) or not isinstance(arguments, tuple):
            raise Refused(f"calls a {kind_of(name)}")
        self.stack.append(name.rule(self.spend, arguments))

    def build(self) -> None:
        state = self.stack.pop()
        build(self.stack[-1], state)

    # ---- numbers and texts ----

    def floats(self) -> None:
        """One float, or a whole run of them at once."""
        match = _FLOATS.match(self.data, self.place - 1)
        if match is None:
            raise IndexError
        self.place = match.end()
        self.stack.extend(np.frombuffer(match[0], _FLOAT_RUN)["value"].tolist())

    def text_integer(self) -> None:
        line = self.line()
        self.stack.append({b"00": False, b"01": True}[line] if line in (b"00", b"01") else int(line.rstrip(b"L")))

    def quoted(self) -> None:
        line = self.line().strip()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise ValueError("a text without quotes")
        raw, _ = codecs.escape_decode(line[1:-1])
        self.stack.append(raw.decode("latin1"))

    def long(self, layout: str) -> None:
        self.stack.append(int.from_bytes(self.take(self.number(layout)), "little", signed=True))


# ---- instructions ---------------------------------------------------------------------------------------------------

Rule = Callable[[_Machine], object]
_STOP = ord(".")


def _sized(layout: str, decode: Callable[[bytes], Value]) -> Rule:
    def rule(machine: _Machine) -> None:
        machine.stack.append(decode(machine.take(machine.number(layout))))

    return rule


def _constant(value: Value) -> Rule:
    return lambda machine: machine.stack.append(value)


def _integer(layout: str) -> Rule:
    return lambda machine: machine.stack.append(machine.number(layout))


def _put(index: Callable[[_Machine], int]) -> Rule:
    def rule(machine: _Machine) -> None:
        machine.memo[index(machine)] = machine.stack[-1]

    return rule


def _get(index: Callable[[_Machine], int]) -> Rule:
    return lambda machine: machine.stack.append(machine.memo[index(machine)])


def _tuple(size: int) -> Rule:
    return lambda machine: machine.pop_tuple(size)


def _latin(raw: bytes) -> str:
    return raw.decode("latin1")


def _utf8(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _byte(machine: _Machine) -> int:
    return machine.take(1)[0]


def _line_number(machine: _Machine) -> int:
    return int(machine.line()[:20])


def _made_dict(machine: _Machine) -> None:
    above = machine.cut()
    machine.stack.append(Pairs())
    machine.set_items(above)


def _pop(machine: _Machine) -> None:
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.stack.pop()


_RULES: dict[bytes, Rule] = {
    b"\x80": _byte,  # PROTO
    b"\x95": lambda m: m.number("<Q"),  # FRAME
    b"(": lambda m: m.marks.append(len(m.stack)),
    b"0": _pop,
    b"1": lambda m: m.cut(),
    b"2": lambda m: m.stack.append(m.stack[-1]),
    b"N": _constant(None),
    b"\x88": _constant(True),
    b"\x89": _constant(False),
    b"I": lambda m: m.text_integer(),
    b"L": lambda m: m.text_integer(),
    b"J": _integer("<i"),
    b"K": lambda m: m.stack.append(_byte(m)),
    b"M": _integer("<H"),
    b"\x8a": lambda m: m.long("<B"),
    b"\x8b": lambda m: m.long("<i"),
    b"F": lambda m: m.stack.append(float(m.line())),
    b"G": lambda m: m.floats(),
    b"S": lambda m: m.quoted(),
    b"T": _sized("<I", _latin),
    b"U": _sized("<B", _latin),
    b"V": lambda m: m.stack.append(m.line().decode("raw-unicode-escape")),
    b"X": _sized("<I", _utf8),
    b"\x8c": _sized("<B", _utf8),
    b"\x8d": _sized("<Q", _utf8),
    b"B": _sized("<I", bytes),
    b"C": _sized("<B", bytes),
    b"\x8e": _sized("<Q", bytes),
    b"\x96": _sized("<Q", bytes),  # BYTEARRAY8: nothing here changes one
    b")": _constant(()),
    b"t": lambda m: m.stack.append(tuple(m.cut())),
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"]": lambda m: m.stack.append([]),
    b"l": lambda m: m.stack.append(m.cut()),
    b"a": lambda m: m.append([m.stack.pop()]),
    b"e": lambda m: m.append(m.cut()),
    b"}": lambda m: m.stack.append(Pairs()),
    b"d": _made_dict,
    b"s": lambda m: m.set_items([m.stack.pop(), m.stack.pop()][::-1]),
    b"u": lambda m: m.set_items(m.cut()),
    b"p": _put(_line_number),
    b"q": _put(_byte),
    b"r": _put(lambda m: m.number("<I")),
    b"\x94": _put(lambda m: len(m.memo)),
    b"g": _get(_line_number),
    b"h": _get(_byte),
    b"j": _get(lambda m: m.number("<I")),
    b"c": lambda m: m.name(_utf8(m.line()), _utf8(m.line())),
    b"i": lambda m: m.name(_utf8(m.line()), _utf8(m.line())),  # INST: named, and then never called
    b"\x93": lambda m: m.stack_name(),
    b"R": lambda m: m.call(),
    b"b": lambda m: m.build(),
}
# Sets, objects, references to elsewhere: instructions of pickle that no feature file needs.
_NOT_DATA = frozenset(b"oPQ\x81\x82\x83\x84\x8f\x90\x91\x92\x97\x98")


def _unknown(opcode: int) -> Exception:
    if opcode in _NOT_DATA:
        return Refused(f"uses the pickle instruction {bytes([opcode])!r}")
    return Damaged(f"the byte {bytes([opcode])!r} is no instruction")


_OPCODES = {opcode[0]: rule for opcode, rule in _RULES.items()}
