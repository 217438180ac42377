"""Checks grammars against an independent validator.  Needs the jsonschema package (pip install jsonschema[format]).

    python3 evals/grammar.py check PROGRAM [SCHEMAS [SEED]]   random schemas: each text that PROGRAM (evals/grammar)
                                                       generates must be valid; PROGRAM must accept each valid
                                                       instance made here and reject each invalid one
    python3 evals/grammar.py golden > tests/engine/data/schemas.jsonl        writes the instances of the tests
    python3 evals/grammar.py schemas N SEED            prints schemas only, one per line

Members of instances are in the order of the schema, as the grammar requires.
"""
import json, random, subprocess, sys, tempfile
import jsonschema

PATTERNS = [("^[a-z]{2,5}$", lambda r: "".join(r.choice("abcxyz") for _ in range(r.randint(2, 5)))),
            ("^(a+)+b$", lambda r: "a" * r.randint(1, 9) + "b"),
            ("b.d", lambda r: "x" * r.randint(0, 3) + "b" + r.choice("aé€\U0001f600 ") + "d" + "é" * r.randint(0, 2)),
            ("^\\d{3}-\\d{4}$", lambda r: "%03d-%04d" % (r.randint(0, 999), r.randint(0, 9999))),
            ("^(foo|bar)?(-[0-9a-f]{1,3})*$", lambda r: r.choice(["", "foo", "bar"]) + "-%x" % r.randint(0, 4095)),
            ("^[^\"\\\\]*\\s$", lambda r: "né" * r.randint(0, 3) + r.choice(" \t\n")),
            ("[A-Z]$|^[0-9]", lambda r: r.choice(["xyZ", "7up", "A", "0"])),
            ("^\\$[\\w.]+\\/\\x41?$", lambda r: "$" + r.choice(["a.b", "_9"]) + "/" + r.choice(["", "A"]))]
FORMATS = {"date": ["2024-02-29", "1999-12-31"], "time": ["23:59:59Z", "00:00:00.5+01:30"],
           "date-time": ["2000-02-29T12:00:00Z", "2023-11-30T01:02:03.25-08:00"],
           "uuid": ["123e4567-e89b-12d3-a456-426614174000"], "email": ["a.b@example.com"],
           "ipv4": ["127.0.0.1", "255.250.9.10"], "ipv6": ["2001:db8:0:0:1:0:0:1"], "hostname": ["a-b.example.com"]}
WORDS = ["", "a", "name", "naïve", "tab\t", "q\"q", "b\\s", "\u2028", "\U0001f600", "longer text than others", "\x01"]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.defs = {}

    def number(self):
        r = self.r
        return r.choice([r.randint(-20, 20), r.randint(-10**6, 10**6), round(r.uniform(-5, 5), r.randint(0, 6)), 0])

    def schema(self, depth=0):
        r = self.r
        kinds = ["string", "integer", "number", "enum", "boolean", "null", "const", "pattern", "format", "types"]
        if depth < 3:
            kinds += ["object"] * 6 + ["array"] * 3 + ["anyOf", "allOf", "oneOf", "ref", "tuple", "any"]
        return getattr(self, "make_" + r.choice(kinds))(depth)

    def make_any(self, depth):
        return self.r.choice([{}, True, {"type": "object"}, {"type": "array"}])

    def make_null(self, depth):
        return {"type": "null"}

    def make_boolean(self, depth):
        return {"type": "boolean"}

    def make_types(self, depth):
        return {"type": self.r.sample(["null", "boolean", "string", "integer", "number"], 2)}

    def make_string(self, depth):
        r, s = self.r, {"type": "string"}
        if r.random() < 0.4:
            s["minLength"] = r.randint(0, 4)
        if r.random() < 0.4:
            s["maxLength"] = r.randint(s.get("minLength", 0), 12)
        return s

    def make_pattern(self, depth):
        return {"type": "string", "pattern": self.r.choice(PATTERNS)[0]}

    def make_format(self, depth):
        return {"type": "string", "format": self.r.choice(list(FORMATS))}

    def make_integer(self, depth, type="integer"):
        r, s = self.r, {"type": type}
        a, b = sorted([self.number(), self.number()])
        if type == "integer":
            a, b = int(a), int(b) + 2
        if r.random() < 0.5:
            s[r.choice(["minimum", "exclusiveMinimum"])] = a
        if r.random() < 0.5 and a < b:
            s[r.choice(["maximum", "exclusiveMaximum"])] = b
        return s

    def make_number(self, depth):
        return self.make_integer(depth, "number")

    def value(self, depth=0):
        r = self.r
        k = r.randint(0, 7 if depth < 2 else 5)
        return [None, r.choice([True, False]), r.randint(-99, 99), r.choice([0.5, -1.25, 1e-3, 12.75]), r.choice(WORDS),
                r.choice(WORDS), [self.value(depth + 1) for _ in range(r.randint(0, 3))] if k == 6 else 0,
                {r.choice(WORDS): self.value(depth + 1) for _ in range(r.randint(0, 3))} if k == 7 else 0][k]

    def make_enum(self, depth):
        return {"enum": [self.value() for _ in range(self.r.randint(1, 5))]}

    def make_const(self, depth):
        return {"const": self.value()}

    def make_object(self, depth):
        r, s = self.r, {"type": "object"}
        names = r.sample(["a", "b", "ab", "abc", "name", "naïve", "q\"", "\t", "x y", "id"], r.randint(0, 5))
        s["properties"] = {n: self.schema(depth + 1) for n in names}
        s["required"] = [n for n in names if r.random() < 0.5]
        k = r.random()
        if k < 0.5:
            s["additionalProperties"] = False
        elif k < 0.65:
            s["additionalProperties"] = True
        elif k < 0.8:
            s["additionalProperties"] = self.schema(depth + 2)
        if r.random() < 0.1:
            s["required"].append("extra")
        return s

    def make_array(self, depth):
        r, s = self.r, {"type": "array", "items": self.schema(depth + 1)}
        if r.random() < 0.5:
            s["minItems"] = r.randint(0, 3)
        if r.random() < 0.5:
            s["maxItems"] = r.randint(s.get("minItems", 0), 5)
        return s

    def make_tuple(self, depth):
        r = self.r
        s = {"type": "array", "prefixItems": [self.schema(depth + 1) for _ in range(r.randint(1, 3))]}
        s["items"] = r.choice([False, True, self.schema(depth + 1)])
        if r.random() < 0.5:
            s["minItems"] = r.randint(0, 3 if s["items"] is False else 5)
        if s.get("minItems", 0) > len(s["prefixItems"]) and s["items"] is False:
            del s["minItems"]
        return s

    def make_anyOf(self, depth):
        return {"anyOf": [self.schema(depth + 1) for _ in range(self.r.randint(1, 4))]}

    def make_oneOf(self, depth):
        """Half of them can be told apart; most of the others are refused."""
        r = self.r
        if r.random() < 0.5:
            return {"oneOf": [self.schema(depth + 1) for _ in range(r.randint(1, 3))]}
        if r.random() < 0.3:
            return {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "number", "exclusiveMinimum": 3, "maximum": 9},
                              {"type": "string"}, {"type": "array", "maxItems": 2, "items": {"type": "null"}}]}
        parts = [self.make_object(depth + 1) for _ in range(r.randint(2, 3))]
        for i, p in enumerate(parts):
            kind = r.choice(["kind", "name"]) if r.random() < 0.2 else "kind"
            p["properties"][kind] = r.choice([{"const": i}, {"enum": ["k%d" % i, i + 0.5]}])
            if kind not in p["required"]:
                p["required"].append(kind)
        return {"oneOf": parts}

    def make_allOf(self, depth):
        parts = [self.make_object(depth + 1) for _ in range(2)]
        for p in parts:
            p.pop("additionalProperties", None)
            p["required"] = [n for n in p["required"] if n != "extra"]
        s = {"allOf": parts}
        if self.r.random() < 0.3:
            s["anyOf"] = [{"required": [n]} for n in parts[0]["properties"]] or [{}]
        return s

    def make_ref(self, depth):
        r = self.r
        if not self.defs or r.random() < 0.5:
            name = "d%d/~%%" % len(self.defs)
            self.defs[name] = {"type": "null"}
            inner = self.schema(depth + 1)
            self.defs[name] = r.choice([inner, {"type": "object", "additionalProperties": False, "properties": {
                "v": inner, "next": {"anyOf": [self.point(name), {"type": "null"}]}}, "required": ["v"]}])
        return self.point(r.choice(list(self.defs)))

    def point(self, name):
        return {"$ref": "#/$defs/" + name.replace("~", "~0").replace("/", "~1").replace("%", "%25")}

    def top(self):
        s = self.schema()
        s = dict(s) if isinstance(s, dict) else {}
        if self.defs:
            s["$defs"] = self.defs
        return s


class Instance:
    """Makes a value from a schema. The value can be invalid; the validator decides."""
    def __init__(self, root, r):
        self.root, self.r = root, r

    def of(self, s, depth=0):
        r = self.r
        if s is True or s == {}:
            return Maker(r.random()).value()
        if s is False or depth > 12:
            return None
        if "$ref" in s:
            name = s["$ref"].split("/", 2)[2].replace("%25", "%").replace("~1", "/").replace("~0", "~")
            return self.of(self.root["$defs"][name], depth + 1)
        if "anyOf" in s and "allOf" not in s or "oneOf" in s:
            return self.of(r.choice(s.get("anyOf") or s["oneOf"]), depth + 1)
        if "allOf" in s:
            out = {}
            need = r.choice(s["anyOf"]).get("required", []) if "anyOf" in s else []
            names = {n: None for p in s["allOf"] for n in p["properties"]}
            for n in names:
                having = [p for p in s["allOf"] if n in p["properties"]]
                if any(n in p["required"] for p in having) or n in need or r.random() < 0.5:
                    out[n] = self.of(having[0]["properties"][n], depth + 1)
            return out
        if "enum" in s:
            return r.choice(s["enum"])
        if "const" in s:
            return s["const"]
        t = s.get("type")
        return getattr(self, r.choice(t) if isinstance(t, list) else t)(s, depth)

    def null(self, s, depth):
        return None

    def boolean(self, s, depth):
        return self.r.random() < 0.5

    def string(self, s, depth):
        r = self.r
        if "pattern" in s:
            return dict(PATTERNS)[s["pattern"]](r)
        if "format" in s:
            return r.choice(FORMATS[s["format"]])
        n = r.randint(s.get("minLength", 0), s.get("maxLength", 15))
        return "".join(r.choice("abc \"\\/é€\U0001f600\n\x1f~") for _ in range(n))

    def bounds(self, s):
        lo, hi = s.get("minimum", s.get("exclusiveMinimum")), s.get("maximum", s.get("exclusiveMaximum"))
        lo = lo if lo is not None else (hi if hi is not None else 0) - 1000
        return lo, hi if hi is not None else lo + 2000

    def integer(self, s, depth):
        lo, hi = self.bounds(s)
        return self.r.choice([self.r.randint(int(lo), int(hi)), int(lo), int(hi), int(lo) + 1])

    def number(self, s, depth):
        lo, hi = self.bounds(s)
        x = self.r.choice([self.r.uniform(lo, hi), round(self.r.uniform(lo, hi), 2), lo, hi])
        return 0 if "e" in repr(x) else int(x) if x == int(x) else x     # the grammar writes 3, not 3.0

    def array(self, s, depth):
        r, first = self.r, s.get("prefixItems", [])
        n = r.randint(s.get("minItems", 0), max(s.get("minItems", 0), min(s.get("maxItems", 4), 4)))
        rest = s.get("items", {})
        if rest is False:
            n = min(n, len(first))
        if depth > 6:
            n = s.get("minItems", 0)
        return [self.of(first[i] if i < len(first) else rest, depth + 1) for i in range(n)]

    def object(self, s, depth):
        r, out = self.r, {}
        need = s.get("required", [])
        for n, p in s.get("properties", {}).items():
            if n in need or (r.random() < 0.5 and depth < 8):
                out[n] = self.of(p, depth + 1)
        others = s.get("additionalProperties", "properties" not in s)
        for n in [n for n in need if n not in s.get("properties", {})]:
            out[n] = self.of({} if isinstance(others, bool) else others, depth + 1)
        if others is not False and depth < 8:
            for n in r.sample(["ax", "zz", "nam", "abcd", "\u00fc", "I d"], r.randint(0, 2)):
                if n not in out and n not in s.get("properties", {}):
                    out[n] = self.of(others, depth + 1)
        return out


def spoilt(v, r):
    """Returns the value with one random change."""
    if isinstance(v, dict) and v and r.random() < 0.8:
        v = dict(v)
        k = r.choice(list(v))
        w = r.random()
        if w < 0.4:
            del v[k]
        elif w < 0.5:
            v["surplus"] = 1
        else:
            v[k] = spoilt(v[k], r)
        return v
    if isinstance(v, list) and v and r.random() < 0.8:
        v = list(v)
        i = r.randrange(len(v))
        return v[:i] + v[i + 1:] if r.random() < 0.3 else v + [v[i]] if r.random() < 0.4 else v[:i] + [spoilt(v[i], r)] + v[i + 1:]
    if isinstance(v, str) and r.random() < 0.6:
        return r.choice([v[1:], v + "x", v.upper(), v * 2])
    if isinstance(v, (int, float)) and r.random() < 0.7:
        return r.choice([v + 1, -v, v * 10, v + 0.5, v - 1])
    return r.choice([None, True, "other", -7, 3.5, [], {}, [None], {"a": 1}])


def validator(s):
    return jsonschema.Draft202012Validator(s, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def text(v):
    return json.dumps(v, ensure_ascii=False, separators=(",", ":"))


def case(seed, n):
    """Makes a case: a schema, valid texts and invalid texts."""
    m = Maker(seed)
    s = m.top()
    check, i = validator(s), Instance(s, m.r)
    good, bad = [], []
    try:
        for _ in range(n):
            v = i.of(s)
            (good if check.is_valid(v) else bad).append(text(v))
            w = spoilt(v, m.r)
            if not check.is_valid(w):
                bad.append(text(w))
    except RecursionError:                          # a schema that refers to itself without end
        return case(seed + 1000, n)
    return {"schema": s, "valid": sorted(set(good)), "invalid": sorted(set(bad))}


def golden():
    seed, size = 0, 0
    while size < 45000:
        c = case(seed, 3)
        line = json.dumps(c, ensure_ascii=False, separators=(",", ":"))
        seed += 1
        if 40 < len(line) < 1500:
            print(line)
            size += len(line.encode())


def check(program, n, seed):
    cases = [case(seed * 1000003 + i, 6) for i in range(n)]
    with tempfile.NamedTemporaryFile("w") as f, tempfile.NamedTemporaryFile("w") as g:
        for c in cases:
            f.write(json.dumps(c["schema"]) + "\n")
            g.write(json.dumps(c, ensure_ascii=False) + "\n")
        f.flush(), g.flush()
        walks = subprocess.run([program, "-", f.name, "8", str(seed)], capture_output=True, check=True).stdout
        told = subprocess.run([program, "=", g.name], capture_output=True, check=True).stdout.decode()
    told = told.split("\n")[:-1]
    at, n_text, n_bad, refused, check_with = -1, 0, 0, {}, None
    for line in walks.decode().split("\n")[:-1]:
        if line.startswith("# "):
            at, why = int(line.split(" ", 2)[1]), line.split(" ", 2)[2]
            if why:
                refused[why] = refused.get(why, 0) + 1
            check_with = validator(cases[at]["schema"])
            continue
        n_text += 1
        try:
            v = json.loads(line)
            error = next(check_with.iter_errors(v), None)
        except ValueError as e:
            error = e
        if error:
            n_bad += 1
            print("INVALID:", json.dumps(cases[at]["schema"])[:600], line[:300], str(error).split("\n")[0], sep="\n  ")
    for line in told:
        print(line[:900])
    print(f"{n} schemas, {n_text} texts, {n_bad} invalid; {sum(len(c['valid']) for c in cases)} valid and "
          f"{sum(len(c['invalid']) for c in cases)} invalid instances, {len(told)} told wrong; refused: {refused}")
    return 1 if n_bad or told else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        sys.exit(check(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 500, int(sys.argv[4]) if len(sys.argv) > 4 else 1))
    if sys.argv[1:2] == ["golden"]:
        sys.exit(golden())
    if sys.argv[1:2] == ["schemas"]:
        for i in range(int(sys.argv[2])):
            print(json.dumps(Maker(int(sys.argv[3]) * 1000003 + i).top()))
        sys.exit(0)
    sys.exit(__doc__)
