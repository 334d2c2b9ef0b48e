"""Limits of what JavaScript brings along: the engine interrupts programs, and no loop of its own functions.

A list may be long without holding anything (`new Array(4e9)`), and a search for a text takes the product of both
lengths: lists that are longer than memory could fill, and searches that could take too long, are errors.
"""

from __future__ import annotations

#: A part of the prelude: it replaces functions, which the prelude freezes afterwards.
LIMITS = r"""
  const isList = Array.isArray, listOf = Array.from, apply = Reflect.apply;
  const LONGEST_LIST = 10_000_000, COMPARED = 1_000_000_000;
  const long = (value) => {
    if (value.length > LONGEST_LIST) throw new RangeError('a list has more than ' + LONGEST_LIST + ' entries');
    return value;
  };
  const list = (value) => long(isList(value) ? value : listOf(value));
  const nested = (value, depth) => {
    if (depth >= 0) for (const each of list(value)) if (isList(each)) nested(each, depth - 1);
    return value;
  };
  const replace = (owner, name, by) => {
    const native = owner[name];
    const made = { [name](...given) { return by(this, given, native); } }[name];
    Object.defineProperty(owner, name, { value: made, writable: true, configurable: true, enumerable: false });
  };
  for (const name of ['reverse', 'slice', 'sort', 'copyWithin', 'shift', 'unshift', 'splice', 'join', 'toLocaleString'])
    replace(Array.prototype, name, (self, given, native) => apply(native, list(self), given));
  replace(Array.prototype, 'concat', (self, given, native) => {
    for (const each of given) if (each !== null && typeof each === 'object') long(each);
    return apply(native, list(self), given);
  });
  const flat = Array.prototype.flat, map = Array.prototype.map;
  replace(Array.prototype, 'flat', (self, given, native) => apply(native, nested(list(self), given[0] ?? 1), given));
  replace(Array.prototype, 'flatMap', (self, given) => apply(flat, nested(apply(map, list(self), given), 1), [1]));
  replace(String, 'raw', (self, [{ raw }, ...values], native) => apply(native, self, [{ raw: list(raw) }, ...values]));
  replace(Object.getPrototypeOf(Object.getPrototypeOf([].values())), 'drop', (self, given, native) => {
    long({ length: given[0] });
    return apply(native, self, given);
  });
  for (const name of ['indexOf', 'includes', 'lastIndexOf', 'replace', 'replaceAll', 'split'])
    replace(String.prototype, name, (self, given, native) => {
      const [wanted] = given;
      if (typeof wanted === 'string' && self.length * wanted.length > COMPARED)
        throw new RangeError('the text that is searched for is too long: ' + wanted.length + ' characters');
      return apply(native, self, given);
    });
"""
