"""Random templates over random values, by a grammar: the interpreter against jinja2.

    random_templates.py SEED COUNT PROGRAM      compare with `PROGRAM render`, print what differs, and counts
    random_templates.py SEED COUNT > language.jsonl     lines [template, variables, text] that the tests compare with

Expressions are drawn by type, so that most of them mean something; one in fifty is of any type.
"""
import json
import random
import subprocess
import sys
import tempfile
import warnings

from reference import render

warnings.simplefilter("ignore")

TEXTS = ["", "a", "abc", "Hello World", " pad \\n", "x,y,z", "ß É", "<b>&", "你好😀", "a\\nb\\n\\nc", "123", "-4.5", "1e3",
         "a.b", "  ", "tab\\tx", "\\u00e9", "Σας ΟΔΟΣ", "ǆ ŉ", "don't", "%", "{x}"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float",
         "boolean", "true", "false", "eq 1", "ne(2)", "equalto 'a'", "in l"]


class Grammar:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.loops = 0

    def any_of(self, *options):
        return self.r.choice(options)

    def literal(self):
        text = self.any_of(*TEXTS)
        return f'"{text}"' if "'" in text else f"'{text}'"

    def text(self, d):
        if d <= 0:
            return self.any_of(self.literal(), "s", "c", "msgs[0].role", "d.k")
        if self.r.random() < 0.02:
            return self.any(d - 1)
        t, i = lambda: self.text(d - 1), lambda: self.number(d - 1)
        return self.any_of(
            self.literal, lambda: "s", lambda: f"({t()} + {t()})", lambda: f"({t()} ~ {self.any(d - 1)})",
            lambda: f"{t()}.{self.any_of('upper', 'lower', 'title', 'capitalize', 'swapcase', 'strip', 'lstrip', 'rstrip')}()",
            lambda: f"({t()} | {self.any_of('upper', 'lower', 'title', 'capitalize', 'trim', 'string', 'safe', 'e', 'reverse')})",
            lambda: f"{t()}.strip({self.literal()})", lambda: f"{t()}.replace({self.literal()}, {t()})",
            lambda: f"({t()} | replace({self.literal()}, {t()}))", lambda: f"{t()}.replace('a', {t()}, 1)",
            lambda: f"({t()} | indent({self.any_of('2', '1, true', 'first=true', 'blank=true', self.literal())}))",
            lambda: f"({t()} | truncate({self.any_of('5', '8, true', '6, false, ' + chr(39) + '!' + chr(39), '5, leeway=0')}))",
            lambda: f"({self.any(d - 1)} | tojson{self.any_of('', '(indent=2)', '(ensure_ascii=true)')})",
            lambda: f"({self.any(d - 1)} | string)", lambda: f"{t()}[{self.bounds()}]", lambda: f"({t()} * 2)",
            lambda: f"{self.literal()}.join({self.any_of('l|map(' + chr(39) + 'string' + chr(39) + ')', t())})",
            lambda: f"({self.list(d - 1)} | join({self.literal()}))", lambda: f"{t()}.center(9, '*')", lambda: f"{t()}.zfill(5)",
            lambda: f"{t()}.removeprefix({self.literal()})", lambda: f"({t()} if {self.truth(d - 1)} else {t()})",
            lambda: f"('%s|%5s|%-4s|%r' % ({t()}, {i()}, {t()}, {self.any(d - 1)}))", lambda: f"'%05d|%x|%.2f|%e' % (n, 255, {i()}, f)",
            lambda: f"'{{}} {{:>6}} {{:.3f}} {{x}}'.format({self.any(d - 1)}, {t()}, f, x={i()})",
            lambda: f"({t()} | default({t()}, true))", lambda: f"d.get('k', {t()})", lambda: f"(msgs | map(attribute='role') | join(','))",
            lambda: f"({t()} | urlencode)", lambda: f"({t()} | first)", lambda: f"({t()} | last)", lambda: f"{t()}.expandtabs(4)")()

    def number(self, d):
        if d <= 0:
            return self.any_of("0", "1", "2", "7", "-3", "2.5", "0.1", "1e16", "n", "f", "100")
        if self.r.random() < 0.02:
            return self.any(d - 1)
        i = lambda: self.number(d - 1)
        return self.any_of(
            lambda: f"({i()} {self.any_of('+', '-', '*', '/', '//', '%')} {i()})", lambda: f"(-{i()})", lambda: f"({i()} | abs)",
            lambda: f"({self.any(d - 1)} | int)", lambda: f"({self.text(d - 1)} | float)", lambda: f"({self.list(d - 1)} | length)",
            lambda: f"({self.text(d - 1)} | length)", lambda: f"{self.text(d - 1)}.find({self.literal()})",
            lambda: f"{self.text(d - 1)}.count('a')", lambda: f"({i()} | round({self.any_of('', '1', '2', '0, ' + repr('floor'), '1, ' + repr('ceil'))}))",
            lambda: f"(range({self.r.randint(0, 6)}) | sum)", lambda: "(msgs | sum('z'))", lambda: f"(n ** {self.r.randint(0, 3)})",
            lambda: f"({i()} if {self.truth(d - 1)} else {i()})", lambda: "l.count(1)", lambda: f"(d | length)")()

    def truth(self, d):
        if d <= 0:
            return self.any_of("true", "false", "t", "not t", "s", "l", "n")
        a, b = lambda: self.any(d - 1), lambda: self.truth(d - 1)
        return self.any_of(
            lambda: f"({a()} == {a()})", lambda: f"({a()} != {a()})", lambda: f"({self.number(d - 1)} {self.any_of('<', '>=', '>')} {self.number(d - 1)})",
            lambda: f"({self.text(d - 1)} {self.any_of('<', '<=', 'in', 'not in')} {self.text(d - 1)})", lambda: f"({a()} in {self.list(d - 1)})",
            lambda: f"({a()} is {self.any_of('', 'not ')}{self.any_of(*TESTS)})", lambda: f"({b()} {self.any_of('and', 'or')} {b()})",
            lambda: f"(not {b()})", lambda: f"({self.number(d - 1)} < {self.number(d - 1)} <= {self.number(d - 1)})",
            lambda: f"{self.text(d - 1)}.startswith({self.literal()})", lambda: f"{self.text(d - 1)}.endswith(('a', {self.literal()}))",
            lambda: f"({self.literal()} in d)", lambda: f"{self.text(d - 1)}.isupper()", lambda: f"{self.text(d - 1)}.isspace()",
            lambda: f"({self.text(d - 1)} is {self.any_of('lower', 'upper', 'escaped')})", lambda: "(n is odd)", lambda: "(n is divisibleby 3)")()

    def list(self, d):
        if d <= 0:
            return self.any_of("l", "msgs", "[]", "[1, 2, 3]", "['b', 'A', 'c']", "range(4)")
        if self.r.random() < 0.02:
            return self.any(d - 1)
        o = lambda: self.list(d - 1)
        return self.any_of(
            lambda: f"[{self.any(d - 1)}, {self.any(d - 1)}]", lambda: f"({o()} | list)", lambda: f"({o()} | list)[{self.bounds()}]",
            lambda: f"{self.text(d - 1)}.{self.any_of('split()', 'rsplit(None, 1)', 'splitlines()', 'split(' + repr(',') + ')', 'split(' + repr(' ') + ', 1)', 'partition(' + repr('a') + ')')}",
            lambda: f"({o()} | reverse | list)", lambda: "('abca' | unique | list)",
            lambda: f"({o()} | map({self.any_of(repr('string'), repr('tojson'), repr('default') + ', 3', repr('int'))}) | list)",
            lambda: f"({o()} | {self.any_of('select', 'reject')}({self.any_of(repr('string'), repr('none'), repr('defined'), repr('mapping'), '')}) | list)",
            lambda: f"(msgs | {self.any_of('selectattr', 'rejectattr')}({self.any_of(repr('x'), repr('x') + ', ' + repr('none'), repr('role') + ', ' + repr('equalto') + ', ' + repr('user'), repr('q') + ', ' + repr('defined'))}) | list)",
            lambda: f"(msgs | map(attribute={self.any_of(repr('role'), repr('content.0.text'), repr('q') + ', default=9')}) | list)",
            lambda: f"(d | {self.any_of('dictsort', 'items', 'dictsort(reverse=true)', 'list')} | list)", lambda: f"d.{self.any_of('keys', 'values', 'items')}() | list",
            lambda: f"({o()} | {self.any_of('batch(2)', 'batch(3, 0)', 'slice(2)', 'slice(3, 9)')} | list)", lambda: f"(msgs | groupby('role') | list)",
            lambda: f"(msgs | sort(attribute={self.any_of(repr('role'), repr('z,role'), repr('z') + ', reverse=true')}))", lambda: f"(l | map('string') | sort{self.any_of('', '(reverse=true)', '(case_sensitive=true)')})",
            lambda: "(l + [1])", lambda: "([0] * 3)", lambda: f"({self.any(d - 1)}, {self.any(d - 1)})")()

    def bounds(self):
        n = lambda: self.any_of("", "0", "1", "2", "-1", "-2", "5")
        return self.any_of(f"{n()}:{n()}", f"{n()}:{n()}:{self.any_of('2', '-1', '1', '-2')}")

    def any(self, d):
        if d <= 0:
            return self.any_of(self.text(0), self.number(0), self.list(0), "true", "none", "und", "a", "b", "x", "d", "e", "{}", "ns.x")
        return self.any_of(
            lambda: self.text(d), lambda: self.number(d), lambda: self.truth(d), lambda: self.list(d), lambda: self.any(d - 1),
            lambda: f"({self.list(d - 1)} | {self.any_of('first', 'last', 'list')})", lambda: f"x.{self.any_of('role', 'k', 'items', 'x')}",
            lambda: f"{{'k': {self.any(d - 1)}, {self.literal()}: {self.any(d - 1)}}}", lambda: f"dict(d, y={self.any(d - 1)})", lambda: "msgs[0]", lambda: "(l | first)",
            lambda: f"({self.any(d - 1)} or {self.any(d - 1)})", lambda: f"({self.any(d - 1)} if {self.truth(d - 1)})", lambda: f"d[{self.text(d - 1)}]")()

    # ---- statements

    def data(self):
        return self.any_of("", "", " ", "\n", "\n\n", "text", "  \n  ", "a b\n", "\t", "\r\n", "{# c #}", "{#- c -#}\n", "  {# c #}\n", "é\n",
                           "{% raw %}{{ x }}{% endraw %}", "  {%- raw -%} {% x {%- endraw -%}\n", "}}", "%}", "\n   ")

    def tag(self, inside):
        return "{%" + self.any_of("", "", "-", "+") + " " + inside + " " + self.any_of("", "", "-", "+") + "%}"

    def out(self, inside):
        return "{{" + self.any_of("", "-") + " " + inside + " " + self.any_of("", "-") + "}}"

    def body(self, d):
        return "".join(self.statement(d - 1) for _ in range(self.r.randint(1, 3)))

    def loop(self, d):
        target, over = self.any_of(("i", "l"), ("m", "msgs"), ("a", "[1, 2, 3]"), ("k, v", "d.items()"), ("i", "s"), ("x", self.list(1)), ("i", "und"))
        test = f" if {self.truth(1)}" if self.r.random() < 0.2 else ""
        self.loops += 1
        body = self.body(d)
        if self.r.random() < 0.6:
            what = "loop." + self.any_of("index", "first", "last", "length", "revindex", "previtem", "nextitem", "cycle('o', 'e')",
                                         f"changed({self.any(0)})", "depth", "index0", "revindex0")
            body += self.out(what) + self.out(target.split(",")[0])
        if self.r.random() < 0.2:
            body += self.tag(f"if {self.truth(1)}") + self.tag(self.any_of("break", "continue")) + self.tag("endif") + self.data()
        self.loops -= 1
        other = self.tag("else") + self.body(d) if self.r.random() < 0.25 else ""
        return self.tag(f"for {target} in {over}{test}") + body + other + self.tag("endfor")

    def statement(self, d):
        before = self.data()
        if d <= 0:
            return before + self.out(self.any(self.r.randint(0, 3)))
        return before + self.any_of(
            lambda: self.out(self.any(3)), lambda: self.out(self.text(3)), lambda: self.out(self.list(2)), lambda: self.loop(d), lambda: self.loop(d),
            lambda: self.tag(f"if {self.truth(2)}") + self.body(d) + (self.tag(f"elif {self.truth(1)}") + self.body(d) if self.r.random() < 0.4 else "")
                    + (self.tag("else") + self.body(d) if self.r.random() < 0.5 else "") + self.tag("endif"),
            lambda: self.tag(f"set {self.any_of('a', 'b', 'x', 'ns.x', 'ns.y')} = {self.any(2)}"), lambda: self.tag(f"set a, b = {self.any(1)}, {self.any(1)}"),
            lambda: self.tag(f"set {self.any_of('a', 'b | upper', 'ns.x')}") + self.body(d) + self.tag("endset"),
            lambda: self.macro(d), lambda: self.out(f"g({self.any_of('', '1', 's, 2', 'q=2', 'p=1, q=3', '*[1, 2]', '**{' + repr('p') + ': 5}')})"),
            lambda: self.tag(f"call{self.any_of('', '(z)', '(z=2)')} h({self.any_of('', '1')})") + self.body(d) + self.out("z") + self.tag("endcall"),
            lambda: self.tag("filter " + self.any_of("upper", "trim", "replace('a', 'b')", "indent(2)", "title|trim")) + self.body(d) + self.tag("endfilter"),
            lambda: self.tag(f"with a = {self.any(1)}, b = a") + self.body(d) + self.tag("endwith"),
            lambda: self.tag("generation") + self.body(d) + self.tag("endgeneration"),
            lambda: self.tag("for i in [[1, [2, [3]]], 4] recursive") + self.out("loop.depth") + self.out("i if i is number else loop(i)") + self.tag("endfor"))()

    def macro(self, d):
        loops, self.loops = self.loops, 0
        name, after = self.any_of(("g(p, q=1)", "{{ p }}{{ q }}"), ("g(p=a, q=p)", "{{ q }}{{ varargs }}"), ("g(p=1)", "{{ kwargs }}"), ("h(x=1)", "[{{ caller(x) }}]"))
        text = self.tag("macro " + name) + self.body(d) + after + self.tag("endmacro")
        self.loops = loops
        return text

    def template(self):
        prelude = ("{% set ns = namespace(x=0, y='') %}{% macro g(p='P', q='Q') %}{{ p }}-{{ q }}{% endmacro %}"
                   "{% macro h(x=1) %}<{{ caller(x) }}>{% endmacro %}")
        return prelude + "".join(self.statement(self.r.randint(0, 3)) for _ in range(self.r.randint(1, 3)))

    def variables(self):
        message = lambda: {"role": self.any_of("user", "assistant", "tool"), "content": self.any_of("hi", " Hello\n", None, [{"type": "text", "text": "T"}]),
                           "x": self.any_of(1, 0, "a", None), "z": self.any_of(1, 2.5, 3)}
        return {"msgs": [message() for _ in range(self.r.randint(1, 4))], "s": self.any_of("abc", "Hello World", "  x ", "a,b,c", "É ü ß", "", "line\nline2\r\nx"),
                "n": self.any_of(0, 1, 7, -3, 2**40), "f": self.any_of(0.5, -2.25, 3.0, 1e20, 1e-7), "c": "constant", "t": True, "e": [],
                "l": self.any_of([1, 2, 3], ["b", "a", "C"], [], [1, "a", None], [3, 1, 2.0, True], [[1, 2], [0]]),
                "d": self.any_of({"x": 1, "k": "q"}, {}, {"b": 1, "A": [2], "c": {"x": None}}, {"k": "y", "items": [1]}),
                "x": self.any_of(1, "x", [1, 2], {"k": 1}, None, True)}


def compare(program, template, variables):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", newline="") as f:
        f.write(template)
        f.flush()
        p = subprocess.run([program, "render", "-q", "--template", f.name], capture_output=True,
                           input=json.dumps(variables, ensure_ascii=False).encode())
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def main():
    grammar, count = Grammar(int(sys.argv[1])), int(sys.argv[2])
    same = refused_both = refused = differ = 0
    while count > 0:
        template, variables = grammar.template(), grammar.variables()
        kind, text = render(template, variables)
        if len(sys.argv) < 4:
            if kind == "text" and " at 0x" not in text and len(template) < 700 and len(text) < 400:
                print(json.dumps([template, variables, text], ensure_ascii=False, separators=(",", ":")))
                count -= 1
            continue
        count -= 1
        status, out, error = compare(sys.argv[3], template, variables)
        if status not in (0, 2):
            differ += 1
            print(f"status {status}: {json.dumps(template)} {json.dumps(variables)} {error}")
        elif status == 2:
            refused_both += kind != "text"
            refused += kind == "text"
            if kind == "text" and " at 0x" not in text:
                print(f"refused: {error.strip()}")
        elif kind == "text" and text == out:
            same += 1
        elif kind != "text" or " at 0x" not in text:
            differ += 1
            print(f"differs: {json.dumps(template)} {json.dumps(variables)}\n  {text!r}\n  {out!r}")
    if len(sys.argv) > 3:
        print(f"{same} the same, {refused_both} refused by both, {refused} by us alone, {differ} differ")


if __name__ == "__main__":
    main()
