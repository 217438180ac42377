#!/usr/bin/env python3
"""Tests the server's page in a real browser.

    evals/page/check.py build/release/spillway [--pictures PREFIX] [--axe axe.min.js] [--chromium PROGRAM]

Starts the server with the small trained model and a budget that leaves most experts on disk, and drives a
headless Chromium through a pipe by the DevTools protocol.  Prints a line for each check and ends with 1 if any
failed.  Needs Python 3 and Chromium (apt install chromium), nothing else; --pictures also writes PNGs, and --axe
looks for barriers to people with disabilities, by the file axe.min.js of axe-core (npm, or PyPI's
axe-core-python)."""

import argparse, json, os, subprocess, sys, tempfile, threading, time, urllib.request

from browser import Browser, Server

VERSION = "document.querySelector('.answer:last-child .versions span')?.textContent"
META = "document.querySelector('.answer:last-child .meta').textContent"
TROUBLE = "document.querySelector('.trouble:not([hidden])')?.textContent ?? ''"
STATUS = "document.getElementById('speed').textContent !== '–'"  # the status view has figures
failed = []


def check(what, true, more=""):
    print(("ok    " if true else "FAIL  ") + what + (f"  ({more})" if more else ""), flush=True)
    if not true:
        failed.append(what)


def chat(b, s):
    b.open(s.url)
    b.settings(**{"max-tokens": "48", "seed": "7", "temperature": "0.7", "system": ""})
    b.say("Tell me about a fox.")
    first = b.answered()
    meta = b.js(META)
    check("a question is answered", len(first) > 20, repr(first[:50]))
    check(
        "with its timing and seed", "s to the first token" in meta and "tokens/s" in meta and "seed\xa07" in meta, meta
    )
    check(
        "the context used is shown",
        "of 2,048 tokens" in b.until("document.getElementById('context').title"),
        b.js("document.getElementById('context').title"),
    )
    b.press("Regenerate")
    check("Regenerate with the same seed gives the same bytes", b.answered() == first)
    check("a new answer is a new version", b.js(VERSION) == "2/2", b.js(VERSION))
    b.settings(seed="8")
    b.press("Regenerate")
    third = b.answered()
    b.press("Previous version")
    check(
        "the arrows show the versions of an answer",
        b.js(VERSION) == "2/3"
        and third != first
        and b.js("document.querySelector('.answer:last-child .body').textContent") == first,
        b.js(VERSION),
    )
    b.press("Edit", ".user")
    b.js("document.querySelector('.user textarea').select()")
    b.type("Tell me about a boat.")
    b.key("Enter", 13)
    second = b.answered()
    check(
        "an edited question replaces the old one and its answer",
        second != first and b.js("document.querySelectorAll('.message').length") == 2,
    )
    b.press("Previous version", ".user")
    check(
        "the old question comes back with its versions of the answer",
        b.js(VERSION) == "2/3" and "fox" in b.js("document.querySelector('.user .body').textContent"),
    )
    b.press("Next version", ".user")
    b.say("And then?")
    b.answered()
    b.open(s.url)
    check(
        "a conversation is there after a reload",
        b.js("document.querySelectorAll('.message').length") == 4
        and b.js("document.querySelector('.user .versions span').textContent") == "2/2",
    )
    b.js("document.getElementById('new').click()")
    check(
        "a new conversation is empty and the old one is listed",
        b.js("document.querySelectorAll('.message').length") == 0
        and b.js("document.querySelectorAll('#chats li').length") == 1,
    )


def stop(b, s):
    b.settings(**{"max-tokens": "1500", "seed": ""})
    b.js(
        "(f => { window.fetch = (u, o) => f(u, o?.body ? { ...o, body: "
        "o.body.replace('{', '{\"ignore_eos\":true,') } : o) })(window.fetch)"
    )
    b.say("Tell me a very long story.")
    b.until("document.querySelector('.answer:last-child .body').textContent.length > 30")
    b.key("Escape", 27)
    text = b.answered(5)
    check("Escape stops the answer and keeps the text received", len(text) > 30 and "stopped" in b.js(META), b.js(META))
    ends = time.time() + 5
    b.open(s.url)
    while json.load(urllib.request.urlopen(s.url + "status"))["calls"] and time.time() < ends:
        time.sleep(0.05)
    check("the server ends the request", time.time() < ends)


def errors(b, s):
    b.settings(**{"system": "too long " * 3000})
    b.say("Hello?")
    b.until(TROUBLE)
    b.faults.clear()  # Chromium logs each status 400 as a fault
    check("an error is shown in words", "token" in b.js(TROUBLE), b.js(TROUBLE))
    b.settings(**{"system": "", "max-tokens": "20"})
    b.js("document.querySelector('.trouble button').click()")
    check("Try again sends the request again", len(b.answered()) > 0 and not b.js(TROUBLE))
    s.stop()
    b.say("Are you there?")
    b.until(TROUBLE)
    check("a stopped server is reported", "cannot be reached" in b.js(TROUBLE), b.js(TROUBLE))
    s.start()
    b.js("document.querySelector('.trouble button').click()")
    check("Try again works when the server runs again", len(b.answered()) > 0)
    b.faults.clear()


FACTS = '''# Facts

Tea &amp; *two* **kinds** of `milk` &mdash; see [the list](https://example.org "t") or https://example.org/a_b_c.

1. First
   - inner *a*
   - inner b

   A second paragraph of the first.
2. Second, with $e^{i\\pi} + 1 = 0$ and \\(a_1 < b_2\\), for $5 and $6.
7) not the same list

- [x] done
- [ ] open

| left | right | middle |
|:-----|------:|:------:|
| 1    |  2.5  | `x|y`  |

> A quotation
> of two lines.

$$
\\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt\\pi}{2}
$$

\\[ \\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix} \\]

```python
def f(x: int) -> str:
    """Says x."""
    return f"{x} < 3"  # a comment
```

    indented code

~~old~~ new

### Deeper

***
'''


def rendering(b, s):
    b.store(
        {"id": "facts", "messages": [{"role": "user", "content": "Facts?"}, {"role": "assistant", "content": FACTS}]}
    )
    b.open(s.url)
    has = lambda what, q, n=1: check(
        what,
        b.js(f"document.querySelectorAll({json.dumps('.answer ' + q)}).length") == n,
        b.js(f"document.querySelectorAll({json.dumps('.answer ' + q)}).length"),
    )
    text = b.js("document.querySelector('.answer .body').textContent")
    if not b.js("!!parser"):
        check(
            "the plain page shows the text and its code",
            "Tea &amp; *two*" in text and b.js("!!document.querySelector('.answer .code')"),
        )
        b.forget("facts")
        b.open(s.url)
        return
    check("entities are letters", "Tea & two kinds of milk — see" in text, text[:60])
    has("lists are nested", "ol > li > ul > li", 2)
    has("lists begin anew with another mark and keep their number", "ol[start='7'] > li")
    has("a list item has paragraphs", "ol > li > p", 3)
    check("boxes of tasks", "☑ done" in text and "☐ open" in text)
    has("a table with aligned columns", "td.right")
    has("links", "a[target=_blank]", 2)
    has("a quotation", "blockquote")
    has("headings without gaps", "h3.size1")
    has("and at most one level deeper", "h4.size3")
    has("code blocks", ".code pre", 2)
    has("struck text", "s")
    check("prices are no formulas", "for $5 and $6" in text)
    if b.js("!!globalThis.katex"):
        has("formulas", ".math .katex", 4)
        has("with MathML for screen readers", ".math math", 4)
        has("two of them on lines of their own", ".math.display", 2)
        check(
            "in the fonts of KaTeX",
            b.until(
                "document.fonts.check('16px KaTeX_Main') && [...document.fonts].some("
                "f => f.family === 'KaTeX_Main' && f.status === 'loaded')"
            ),
        )
    if b.js("!!globalThis.hljs"):
        has("code has colours", ".code .hljs-keyword", 2)
        check(
            "and its text is unchanged",
            b.js("document.querySelector('.code code').textContent")
            == 'def f(x: int) -> str:\n    """Says x."""\n    return f"{x} < 3"  # a comment',
        )
    same = b.js("""(() => {
        const whole = document.createElement('div'), grown = document.createElement('div');
        const text = shown.nodes[1].text, html = e => new XMLSerializer().serializeToString(e);
        show_markdown(whole, text, true);
        for (let i = 1; i <= text.length; i++) show_markdown(grown, text.slice(0, i), false);
        const growing = html(grown) === html(whole);
        show_markdown(grown, text, true);
        return [growing, html(grown) === html(whole)] })()""")
    check("an answer that grows letter by letter looks the same", same == [True, True], same)
    b.forget("facts")
    b.open(s.url)


# Texts that a model could be made to write.  window.evil must never be set, no element may have a handler or an address
# of another kind, and the page must answer within seconds.
HOSTILE = {
    "script": "<script>window.evil=1</script>\n\n<ScRiPt src=https://evil.example/x.js></sCrIpT>",
    "handlers": "<img src=x onerror=window.evil=1> <body onload=evil=1> "
    "<details open ontoggle=evil=1> <input autofocus onfocus=evil=1>",
    "svg": "<svg onload=window.evil=1><script>window.evil=1</script><animate onbegin=evil=1 attributeName=x></svg>",
    "math markup": "<math><mtext><table><mglyph><style><img src=x onerror=evil=1>"
    "</style></mglyph></table></mtext></math>",
    "iframe": "<iframe srcdoc='<script>parent.evil=1</script>'></iframe>"
    "<object data=javascript:evil=1></object><embed src=x>",
    "links": "[a](javascript:window.evil=1) [b](JaVaScRiPt:evil=1) [c](java\tscript:evil=1) "
    "[d](&#106;avascript:evil=1) "
    "[e](data:text/html,<script>evil=1</script>) [f](vbscript:x) [g](file:///etc/passwd) <javascript:evil=1> "
    '[h](\x01javascript:evil=1) [i](//evil.example) [j](blob:x) [k](x "onclick=evil=1")',
    "references": '[r][1] [s]\n\n[1]: javascript:evil=1 "x"\n[s]: data:text/html;base64,PHNjcmlwdD4=',
    "images": "![a](https://evil.example/leak?x=1) ![b](javascript:evil=1) "
    "![c](data:image/svg+xml,<svg onload=evil=1>) "
    "![![d](x)](https://evil.example/y) [![e](https://evil.example/z)](https://evil.example/w)",
    "katex": r"$\href{javascript:window.evil=1}{x}$ $\url{javascript:evil=1}$ $\htmlData{onclick=evil}{x}$ "
    r"$\includegraphics{https://evil.example/x.png}$ $\html@mathml{a}{b}$ "
    r"$\class{x}{y}$ $\htmlStyle{position:fixed}{x}$",
    "katex bombs": r"$\def\a{\a\a}\a$ $\edef\a{x}\edef\a{\a\a\a\a\a\a\a\a}\a$ "
    r"$\newcommand\x[1]{#1#1}\x{\x{\x{\x{y}}}}$ "
    r"$\rule{9999999em}{9999999em}$ $\kern{9999999em}$ $\raise{9e9em}{x}$ "
    + "$"
    + "{" * 1500
    + "}" * 1500
    + "$ $"
    + r"\sqrt{" * 500
    + "}" * 500
    + "$ $"
    + r"\frac{a}{" * 300
    + "}" * 300
    + "$",
    "code info": '```" onclick=evil=1 x="\nx\n```\n\n```<img/src=x/onerror=evil=1>\n<b>x</b>\n```\n\n'
    "```html\n<script>evil=1</script>&lt;\n```\n\n"
    "```__proto__\nx\n```\n\n```constructor\ny\n```",
    "html table": "| <img src=x onerror=evil=1> | [x](javascript:evil=1) |\n|---|---|\n"
    "| <script>evil=1</script> | ${alert(1)} |",
    "controls": "\x00\x01\x02\u202e evil \u2066\ufeff\ud83d \x1b[31m \x7f",
    "quotes": ">" * 100000 + " x",
    "quotes by line": "".join("> " * i + "x\n" for i in range(1, 800)),
    "lists": "- " * 50000 + "x",
    "lists by line": "".join("  " * i + "- x\n" for i in range(800)),
    "brackets": "[" * 500000,
    "links unclosed": "[a](" * 100000,
    "images unclosed": "![" * 200000,
    "stars": "**a *b ~~c __d " * 40000,
    "stars closing": "a** b* c__ d~~ " * 40000,
    "stars, short lines": "".join("**a *b `c\n\n" for _ in range(20000)),
    "backticks": "`" * 1000000,
    "backticks apart": "` `` ``` " * 110000,
    "backticks growing": "a".join("`" * i for i in range(1, 1400)),
    "fences": "```\n" * 100001,
    "dollars": "$ $$ $a " * 100000,
    "formulas": r"\(x\) " * 20000,
    "formulas unclosed": "\\[\n\n$$\n\n" * 20000,
    "spaces": "a" + " " * 1000000 + "b\n",
    "entities": "&amp;&#x41;&#99999999;&bogus;" * 30000,
    "addresses": "http://a.b/" * 60000,
    "angles": "<" * 500000,
    "angles open": "<a " * 200000,
    "tables": "|a" * 100000 + "\n" + "|-" * 100000 + "\n" + "|b" * 100000,
    "table rows": "|a|b|\n|-|-|\n" + "|x|y|\n" * 50000,
    "references many": "".join(f"[{i}]: http://x.y/{i}\n" for i in range(20000)) + "[1] " * 20000,
    "headings": "# a\n" * 50000,
    "underlines": "a\n=\n" * 50000,
    "numbers": "1. a\n\n" * 40000,
    "backslashes": "\\" * 500001,
    "code of one line": "```javascript\n"
    + "/*" * 9000
    + "\n```\n```xml\n"
    + "<a " * 6000
    + "\n```\n```python\n"
    + "f'{" * 6000
    + "\n```\n```cpp\n"
    + "a<" * 9000
    + "\n```\n```bash\n"
    + "$(" * 9000
    + "\n```\n```markdown\n"
    + "*_" * 9000
    + "\n```\n```tex\n"
    + "\\{" * 9000
    + "\n```",
    "long code": "```json\n" + "[" * 900000 + "\n```",
}
HARMLESS = """(() => {
    const bad = [];
    for (const e of document.querySelectorAll('#thread *, #chats *, #said *')) {
        if (/^(script|style|iframe|object|embed|img|image|video|audio|source|link)$/i.test(e.localName) ||
            /^(meta|base|form|foreignobject|animate|set|use)$/i.test(e.localName)) bad.push(e.localName);
        for (const a of e.attributes) {
            if (/^(on.*|src|srcset|srcdoc|data|action|formaction|ping|background|poster)$/i.test(a.name))
                bad.push(a.name);
            if (/href$/i.test(a.name) &&
                !/^(https?:|mailto:)/.test(e.href?.baseVal ?? e.href ?? a.value)) bad.push(a.name + '=' + a.value);
            if (a.name === 'style' && /url|fixed/i.test(a.value)) bad.push(a.value);
        }
        const r = e.getBoundingClientRect();
        if (getComputedStyle(e).position === 'fixed') bad.push('fixed ' + e.localName);
        if (r.height > 1e7) bad.push('high ' + e.localName);
    }
    return bad.slice(0, 5).join(' ') + (window.evil === undefined ? '' : ' EVIL');
})()"""


def safety(b, s):
    b.loaded.clear()
    slowest = (0, "")
    for name, text in HOSTILE.items():
        b.js(f"window.evil = undefined")
        began = time.time()
        times = b.js(f"""(() => {{
            const text = {json.dumps(text)}, begin = performance.now(), chat = new_chat();
            add_node(chat, undefined, {{ role: 'user', text }});
            add_node(chat, chat.nodes[0], {{ role: 'assistant', text, thoughts: text }});
            chat.title = title_of(text);
            chats = [chat]; show_chat(chat);
            const shown = performance.now(), to = document.createElement('div');
            for (const part of [.4, .41, .42, .43, .999, 1])
                show_markdown(to, text.slice(0, text.length * part), false);
            return [shown - begin, performance.now() - shown] }})()""")
        b.js("document.querySelectorAll('#thread details').forEach(d => d.open = true); document.body.offsetHeight")
        for e in "a", "summary", "button":  # what a user could press
            b.js(
                f"[...document.querySelectorAll('#thread .body {e}')].slice(0, 20).forEach(x => "
                "{ x.addEventListener('click', e => e.preventDefault()); "
                "x.dispatchEvent(new MouseEvent('click', { bubbles: true, cancelable: true })); "
                "x.dispatchEvent(new MouseEvent('mouseover', { bubbles: true })) })"
            )
        bad = b.js(HARMLESS)
        took = time.time() - began
        slowest = max(slowest, (took, name))
        check(
            f"hostile: {name}",
            not bad and took < 10,
            f"{bad} shown {times[0]:.0f} ms, growing {times[1] / 6:.0f} ms each, with layout {took:.1f} s",
        )
        b.js("chats = []; show_chat(new_chat())")
    check(
        "nothing is loaded from elsewhere",
        not [u for u in b.loaded if not u.startswith((s.url, "blob:" + s.url, "data:", "about:"))],
        " ".join(u[:60] for u in b.loaded if not u.startswith((s.url, "data:", "about:")))
        or f"slowest: {slowest[1]}, {slowest[0]:.1f} s",
    )
    for what, code in {
        "innerHTML": "document.body.innerHTML = '<p>'",
        "insertAdjacentHTML": "document.body.insertAdjacentHTML('beforeend', '<b>')",
        "eval": "(0, eval)('1')",
        "Function": "new Function('1')",
        "a timer of text": "setTimeout('1')",
        "document.write": "document.write('x')",
        "a script's text": "document.createElement('script').text = '1'",
    }.items():
        refused = b.js(
            "new Promise(done => { "
            "document.addEventListener('securitypolicyviolation', () => done(true), { once: true }); "
            f"try {{ {code}; setTimeout(done, 300, false) }} catch {{ done(true) }} }})"
        )
        check(f"the Content-Security-Policy refuses {what}", refused)
    ran = b.js(
        "new Promise(done => { window.evil = 0; const s = document.createElement('script'); "
        "s.append('window.evil = 1'); "
        "try { document.head.append(s) } catch {} setTimeout(() => done(window.evil), 200) })"
    )
    check("and a script in the document", ran == 0)
    b.js("window.evil = undefined")
    b.faults.clear()
    b.open(s.url)


def settings(b, s):
    b.open(s.url)
    b.until("document.getElementById('top-p').placeholder")
    shown = b.js("[...document.querySelectorAll('#settings input[type=number]')].map(i => i.placeholder)")
    check("the model's defaults are shown", len(shown) == 17 and all(shown), " ".join(shown))
    b.js("window.sent = []; (f => { window.fetch = (u, o) => { sent.push(o?.body); return f(u, o) } })(window.fetch)")
    b.settings(
        **{
            "top-p": "0.9",
            "top-k": "40",
            "min-p": "0.05",
            "repeat-penalty": "1.1",
            "stop-texts": "END",
            "max-tokens": "8",
            "system": "Be brief.",
        }
    )
    b.say("Hi.")
    b.answered()
    body = json.loads([x for x in b.js("sent") if x and "stream" in x][-1])
    check(
        "the settings are sent",
        all(
            body.get(k) == v
            for k, v in {
                "top_p": 0.9,
                "top_k": 40,
                "min_p": 0.05,
                "repeat_penalty": 1.1,
                "stop": ["END"],
                "max_tokens": 8,
            }.items()
        )
        and body["messages"][0] == {"role": "system", "content": "Be brief."},
        json.dumps(body)[:200],
    )
    b.js(
        "document.getElementById('open-settings').click(); document.getElementById('reset').click(); "
        "document.getElementById('system').value = ''; document.querySelector('#settings .main').click()"
    )
    b.until("!document.getElementById('settings').open")
    check("and reset to the defaults", b.js("JSON.stringify(settings)") == "{}", b.js("JSON.stringify(settings)"))
    b.open(s.url)


def files(b, s):
    before = b.js("JSON.stringify(chats.map(c => chat_text(c)))")
    b.js(
        "(f => { URL.createObjectURL = blob => { window.blob = blob; return f.call(URL, blob) } })(URL.createObjectURL)"
    )
    b.js("document.getElementById('export').click()")
    text = b.until("window.blob?.text()")
    check(
        "conversations are exported as JSON",
        len(json.loads(text)["chats"]) == len(json.loads(before)) > 0,
        f"{len(text)} bytes",
    )
    b.js("chats.slice().forEach(forget_chat); show_chat(new_chat())")
    b.js(f"import_chats([new File([{json.dumps(text)}], 'x.json')])")
    check("and imported as they were", b.js("JSON.stringify(chats.map(c => chat_text(c)))") == before)
    b.js(f"import_chats([new File([{json.dumps(text)}], 'x.json')])")
    check("a second import adds none", b.js("chats.length") == len(json.loads(before)))
    other = json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    b.js(
        f"import_chats([new File([{json.dumps(other)}], 'm.json'), new File(['no'], 'n.json'), "
        'new File([\'{"nodes":[{"up":5,"pick":0},{"up":0,"pick":1,"text":7}],"pick":9}\'], \'o.json\')])'
    )
    check(
        "a list of messages is a conversation; a file without one is named",
        b.js("chats.length") == len(json.loads(before)) + 2
        and "1 file without" in b.js("document.querySelector('.notice').textContent"),
        b.js("document.querySelector('.notice')?.textContent"),
    )
    b.open(s.url)
    check("all are there after a reload", b.js("chats.length") == len(json.loads(before)) + 2)


def axe(b, s, script, what):
    """Names the findings of axe on the page as it is."""
    b.js(script + "; 0")
    found = b.js(
        "axe.run(document, { resultTypes: ['violations'] }).then(r => r.violations.map(v => v.id + ': ' + "
        "v.nodes.slice(0, 2).map(n => n.target + ' ' + n.failureSummary.slice(0, 200)).join('; ')))"
    )
    check(f"axe: {what}", not found, " | ".join(found))


def barriers(b, s, file):
    script = open(file).read()
    for wide in 1280, 390:
        b.size(wide, 820, wide < 1000)
        for is_dark in False, True:
            b.dark(is_dark)
            at = f"{wide} pixels, {'dark' if is_dark else 'light'}"
            b.js("localStorage.clear()")
            b.open(s.url)
            axe(b, s, script, "an empty page at " + at)
            b.store(
                {
                    "id": "facts",
                    "messages": [
                        {"role": "user", "content": "Facts?"},
                        {"role": "assistant", "content": FACTS, "thoughts": "Hm.", "meta": {"tokens": 5, "per_s": 7}},
                    ],
                }
            )
            b.open(s.url)
            b.settings(**{"max-tokens": "20"})
            b.press("Regenerate")
            b.answered()
            b.press("Previous version")
            b.js("document.querySelector('.thoughts').open = true")
            axe(b, s, script, "a conversation at " + at)
            b.js("document.getElementById('open-chats').click()")
            axe(b, s, script, "the list of conversations at " + at)
            b.js(
                "document.getElementById('thread').click(); document.getElementById('open-settings').click(); "
                "document.getElementById('more-settings').open = true"
            )
            axe(b, s, script, "the settings at " + at)
            b.js("document.getElementById('settings').close()")
            b.js(
                "shown.nodes[1].trouble = { why: 'The server failed', what: 'Try.', status: 500 }; "
                "show_chat(shown); document.querySelector('.user button:last-child').click()"
            )
            axe(b, s, script, "an error and an edited message at " + at)
            s.ask("Hello", 4)
            b.open(s.url + "#status")
            b.until(STATUS)
            axe(b, s, script, "the status at " + at)
    b.size(1280, 820)
    b.dark(False)
    b.faults.clear()


def many(b, s):
    text = "A line of text with **strong** words.\n\n- one\n- two\n\n```c\nint x = 1;\n```\n" * 4
    b.store({"id": "many", "messages": [{"role": "assistant" if i % 2 else "user", "text": text} for i in range(200)]})
    began = time.time()
    b.open(s.url)
    b.until("document.querySelectorAll('.message').length === 200")
    took = time.time() - began
    frame = b.js(
        "new Promise(done => { const t = performance.now(); show_chat(shown); "
        "requestAnimationFrame(() => done(performance.now() - t)) })"
    )
    check("200 messages", took < 5 and frame < 1000, f"page {took:.2f} s, all redrawn {frame:.0f} ms")
    check("the last message is on the screen", b.js("at_end()"))
    b.forget("many")


def keys(b, program):
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("sesame\n")
        f.flush()
        s = Server(program, "--api-key-file", f.name)
        b.open(s.url)
        b.settings(**{"max-tokens": "20"})
        b.say("Hello.")
        b.until(TROUBLE)
        check(
            "the page asks for a missing API key",
            "key" in b.js(TROUBLE) and b.js("!!document.querySelector('.trouble input')"),
            b.js(TROUBLE),
        )
        b.js("document.querySelector('.trouble input').focus()")
        b.type("sesame")
        b.key("Enter", 13)
        check("with the key the request is answered", len(b.answered()) > 0)
        check(
            "the key is stored for this tab only",
            b.js("sessionStorage.getItem('spillway.key')") == "sesame"
            and not b.js("JSON.stringify(localStorage).includes('sesame')"),
        )
        b.open(s.url + "#status")
        b.until(STATUS)
        check("the status stream uses the key", not b.js(TROUBLE))
        b.faults.clear()
        s.stop()


GRID = (
    "[...document.getElementById('grid').getContext('2d').getImageData(0, 0, 400, 80).data].reduce("
    "(h, x) => (h * 31 + x) | 0, 7)"
)


def status(b, s, pictures):
    b.open(s.url + "#status")
    b.until(STATUS)
    idle, cells = b.js("document.getElementById('speed').textContent"), b.js(GRID)
    busy = threading.Event()
    busy.set()

    def go_on(i):
        while busy.is_set():
            s.ask(f"Tell me story number {i}.", 300)

    asked = [threading.Thread(target=go_on, args=(i,)) for i in range(6)]
    for t in asked:
        t.start()
    try:
        b.until(
            f"document.getElementById('speed').textContent !== {json.dumps(idle)} && {GRID} !== {cells} && "
            "document.querySelectorAll('#calls tbody tr').length >= 4",
            15,
        )
        moves = True
    except RuntimeError:
        moves = False
    check("the status changes under load", moves, b.js("document.querySelector('.tiles').innerText").replace("\n", " "))
    check(
        "the status shows the controller's decision",
        len(b.js("document.getElementById('decided').textContent")) > 5,
        b.js("document.getElementById('decided').textContent"),
    )
    b.call(
        "Input.dispatchMouseEvent",
        type="mouseMoved",
        **b.js("(r => ({ x: r.x + 60, y: r.y + 5 }))(document.getElementById('grid').getBoundingClientRect())"),
    )
    check(
        "the status shows the expert under the pointer",
        "expert" in b.js("document.getElementById('spot').textContent"),
        b.js("document.getElementById('spot').textContent"),
    )
    if pictures:
        time.sleep(25)
        b.picture(pictures + "status.png")
        b.dark(True)
        b.picture(pictures + "status-dark.png")
        b.dark(False)
    busy.clear()
    for t in asked:
        t.join()


def phone(b, s):
    def fits(what):
        check(
            f"{what} fits a phone",
            b.js("document.documentElement.scrollWidth") <= 390
            and not b.js(
                "[...document.querySelectorAll('body *')].filter(e => e.offsetParent && "
                "!e.closest('.unseen, .scroll, pre')"
                " && e.getBoundingClientRect().right > 391).length"
            ),
        )

    b.size(390, 844, True)
    b.open(s.url)
    fits("the chat")
    b.js("document.getElementById('open-chats').click()")
    check("the list of conversations opens on a phone", b.js("document.getElementById('chats').offsetWidth") > 100)
    b.js("document.getElementById('thread').click()")
    b.js("document.getElementById('say').focus()")
    b.type("one")
    b.key("Enter", 13)
    b.type("two")
    check(
        "Enter makes a new line on a phone",
        b.js("document.getElementById('say').value") == "one\ntwo",
        b.js("document.getElementById('say').value"),
    )
    b.open(s.url + "#status")
    b.until(STATUS)
    fits("the status")
    b.size(1280, 820)


def dense(b, program):
    """A model without experts, of random weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "dense.gguf")
        subprocess.run([program, "synth", "--shape", "tiny-dense", "-o", path, "--quiet"], check=True)
        s = Server(program, model=path)
        b.open(s.url + "#status")
        b.until(STATUS)
        s.ask("Hello", 8)
        text = b.js("document.getElementById('status').innerText")
        check(
            "the status of a dense model names no experts and no disk",
            not any(w in text.lower() for w in ("expert", "disk")),
            text.replace("\n", " ")[:300],
        )
        b.faults.clear()
        s.stop()


def dark(b, s):
    b.open(s.url)
    light = b.js("getComputedStyle(document.body).backgroundColor")
    b.dark(True)
    check(
        "the page is dark if the browser prefers it", b.js("getComputedStyle(document.body).backgroundColor") != light
    )
    b.dark(False)


PLAN = """Here is a **plan** in three parts.

1. Read the file with `open()`:
   ```python
   with open(path, "rb") as f:
       header = f.read(64)   # the first bytes
       if header[:4] != b"GGUF":
           raise ValueError(f"{path} is no GGUF file")
   ```
2. Check the sizes:
   - the number of tensors
   - the alignment, at most $2^{16}$
3. Done.

The error is $\\sigma = \\sqrt{\\frac{1}{n}\\sum_{i=1}^n (x_i - \\mu)^2}$, or

$$\\hat f(\\xi) = \\int_{-\\infty}^{\\infty} f(x)\\, e^{-2\\pi i x \\xi}\\,dx \\qquad
A = \\begin{pmatrix} a_{11} & a_{12} & \\cdots & a_{1n} \\\\
\\vdots & & & \\vdots \\\\ a_{n1} & \\cdots & & a_{nn}\\end{pmatrix}$$

| model | parameters | tokens/s | note |
|:------|-----------:|---------:|:-----|
| small | 1.2 B | 83.1 | fits in memory |
| large | 235 B | 6.4 | experts are read from the disk |

> Measured on one machine; see [the notes](https://example.org/notes).

### Next steps

Use `make guard` for that.
"""


def pictures_of_chat(b, s, folder):
    b.open(s.url)
    b.js("localStorage.clear()")
    meta = {"tokens": 312, "prompt": 40, "first_s": 0.21, "per_s": 41.2}
    b.store(
        {
            "id": "x",
            "title": "How do I read the header of a GGUF file?",
            "messages": [
                {"role": "user", "content": "How do I read the header of a GGUF file?\nAnd how large is the error?"},
                {"role": "assistant", "content": PLAN, "thoughts": "A plan.", "meta": meta},
                {"role": "user", "content": "Write a Python function that counts the words of a text."},
            ],
        }
    )
    b.open(s.url)
    b.settings(**{"max-tokens": "60", "seed": "11", "temperature": "0.6"})
    b.js("answer(shown, path_of(shown).at(-1))")
    b.answered()
    b.settings(seed="12")
    b.press("Regenerate")
    b.answered()
    b.js("thread.scrollTop = 0")
    b.picture(folder + "chat.png")
    b.js("open_settings(); document.getElementById('more-settings').open = true")
    b.picture(folder + "settings.png")
    b.size(390, 844, True)
    b.dark(True)
    b.open(s.url)
    b.js("thread.scrollTop = 0")
    b.picture(folder + "phone-dark.png")
    b.size(1280, 820)
    b.dark(False)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("program")
    p.add_argument("--pictures", help="prefix of the picture files to write")
    p.add_argument("--axe", help="path of axe.min.js")
    p.add_argument("--chromium", default="chromium")
    a = p.parse_args()
    s, b = Server(a.program), Browser(a.chromium)
    try:
        b.size(1280, 820)
        chat(b, s)
        check("Chromium logged no fault", not b.faults, "; ".join(b.faults))
        stop(b, s)
        errors(b, s)
        settings(b, s)
        rendering(b, s)
        files(b, s)
        many(b, s)
        status(b, s, a.pictures)
        phone(b, s)
        dark(b, s)
        keys(b, a.program)
        dense(b, a.program)
        if a.axe:
            barriers(b, s, a.axe)
        safety(b, s)
        check("Chromium logged no fault until the end", not b.faults, "; ".join(b.faults))
        if a.pictures:
            pictures_of_chat(b, s, a.pictures)
    finally:
        b.close()
        s.stop()
    print(f"{len(failed)} failed")
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
