#!/usr/bin/env python3
"""Tests the server's page in a real browser.

    evals/page/check.py build/release/spillway [--pictures FOLDER] [--chromium PROGRAM]

Starts the server with the small trained model and a budget that leaves most experts on disk, and drives a
headless Chromium through a pipe by the DevTools protocol.  Prints a line for each
check and ends with 1 if any failed.  Needs Python 3 and Chromium (apt install chromium), nothing else;
--pictures also writes PNGs."""
import argparse, base64, json, os, shutil, socket, subprocess, sys, tempfile, threading, time, urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODEL = os.path.join(ROOT, "evals/train/models/demo-target-q8_0.gguf")
FLAGS = ["--max-body", "256K", "--max-connections", "64", "--queue", "16", "--chunk", "64", "--parallel", "4",
         "--host-mem", "44M", "--draft", "ngram", "--quiet"]


class Server:
    def __init__(self, program, *flags):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.command = [program, "serve", "-m", MODEL, "--port", str(self.port), *FLAGS, *flags]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command)
        for _ in range(100):
            try:
                urllib.request.urlopen(self.url + "health").read()
                return
            except OSError:
                time.sleep(0.1)
        sys.exit("the server does not answer")

    def stop(self):
        self.process.kill()
        self.process.wait()

    def ask(self, text, tokens):
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        urllib.request.urlopen(urllib.request.Request(self.url + "v1/chat/completions", json.dumps(body).encode(),
                                                      {"Content-Type": "application/json"})).read()


class Browser:
    """One page of a headless Chromium; messages go through file descriptors 3 and 4, ended by a zero byte."""

    def __init__(self, program):
        self.home = tempfile.mkdtemp()
        self.n, self.rest, self.faults = 0, b"", []
        theirs_in, self.to = os.pipe()
        self.back, theirs_out = os.pipe()

        def files():
            a, b = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", f"--user-data-dir={self.home}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=files, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log":
            self.call(domain + ".enable")

    def call(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                self.rest += os.read(self.back, 1 << 20)
            one, self.rest = self.rest.split(b"\0", 1)
            got = json.loads(one)
            if got.get("method") == "Runtime.exceptionThrown":
                self.faults.append(json.dumps(got["params"]["exceptionDetails"])[:300])
            if got.get("method") == "Log.entryAdded" and got["params"]["entry"]["level"] == "error":
                self.faults.append(got["params"]["entry"]["text"][:300])
            if got.get("id") == self.n:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']}")
                return got["result"]

    def js(self, text):
        got = self.call("Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in got:
            raise RuntimeError(got["exceptionDetails"]["exception"].get("description", text))
        return got["result"].get("value")

    def until(self, text, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            try:
                value = self.js(text)
            except RuntimeError:                # no document while the browser is between two pages
                value = None
            if value:
                return value
            time.sleep(0.1)
        raise RuntimeError("never came true: " + text)

    def open(self, url):
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href.startsWith('http')")

    def key(self, key, code):
        for kind in "keyDown", "keyUp":
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def type(self, text):
        self.call("Input.insertText", text=text)

    def say(self, text):
        self.js("document.getElementById('say').focus()")
        self.type(text)
        self.key("Enter", 13)

    def answered(self, seconds=90):
        self.until("document.getElementById('stop').hidden && !!document.querySelector('.answer:last-child')", seconds)
        return self.js("document.querySelector('.answer:last-child .body').textContent")

    def settings(self, **values):
        self.js("document.getElementById('open-settings').click()")
        for name, value in values.items():
            self.js(f"document.getElementById('{name}').value = {json.dumps(value)}")
        self.js("document.querySelector('#settings .main').click()")
        self.until("!document.getElementById('settings').open")

    def size(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def dark(self, on):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def picture(self, path):
        time.sleep(0.4)
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


META = "document.querySelector('.answer:last-child .meta').textContent"
TROUBLE = "document.querySelector('.trouble:not([hidden])')?.textContent ?? ''"
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
    check("with its timing and seed", "s to the first token" in meta and "tokens/s" in meta and "seed\xa07" in meta, meta)
    b.js("[...document.querySelectorAll('.answer:last-child button')].find(x => x.textContent === 'Regenerate').click()")
    check("Regenerate with the same seed gives the same bytes", b.answered() == first)
    b.js("document.querySelector('.user button').click()")
    b.js("document.querySelector('.user textarea').select()")
    b.type("Tell me about a boat.")
    b.key("Enter", 13)
    second = b.answered()
    check("an edited question replaces the old one and its answer", second != first and
          b.js("document.querySelectorAll('.message').length") == 2)
    b.say("And then?")
    b.answered()
    b.open(s.url)
    check("a conversation is there after a reload", b.js("document.querySelectorAll('.message').length") == 4)
    b.js("document.getElementById('new').click()")
    check("a new conversation is empty and the old one is listed", b.js("document.querySelectorAll('.message').length") == 0 and
          b.js("document.querySelectorAll('#chats li').length") == 1)


def stop(b, s):
    b.settings(**{"max-tokens": "1500", "seed": ""})
    b.say("Tell me a very long story.")
    b.until("document.querySelector('.answer:last-child .body').textContent.length > 30")
    b.key("Escape", 27)
    text = b.answered(5)
    check("Escape stops the answer and keeps the text received", len(text) > 30 and "stopped" in b.js(META), b.js(META))
    ends = time.time() + 5
    while json.load(urllib.request.urlopen(s.url + "status"))["calls"] and time.time() < ends:
        time.sleep(0.05)
    check("the server ends the request", time.time() < ends)


def errors(b, s):
    b.settings(**{"system": "too long " * 3000})
    b.say("Hello?")
    b.until(TROUBLE)
    b.faults.clear()                            # Chromium logs each status 400 as a fault
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


def safety(b, s):
    evil = ("<img src=x onerror='window.evil=1'> <script>window.evil=1</script> [a](javascript:window.evil=1) "
            "**bold** `code` [b](https://example.org)\n\n```html\n<b>x</b>\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
            "- one\n  - two\n- three\n\n" + "**a *b `" * 3000)
    messages = [{"role": "user", "text": "<b>mine</b>"}, {"role": "assistant", "text": evil, "thoughts": "<i>hm</i>"}]
    item = {"id": "evil", "at": 4e12, "title": "evil", "messages": messages}
    b.js(f"localStorage.setItem('spillway.chat.evil', {json.dumps(json.dumps(item))})")
    b.open(s.url)
    check("text of a model never becomes markup", not b.js("window.evil") and b.js(
        "document.querySelectorAll('#thread img, #thread script, #thread b, #thread i, a[href^=javascript]').length") == 0)
    check("Markdown is rendered", b.js(
        "['strong', 'a', '.code pre', 'td', 'li li', '.thoughts'].every(q => document.querySelector('#thread ' + q))"))
    refused = b.js("(() => { try { document.body.innerHTML = '<p>'; return false } catch { return true } })()")
    check("the Content-Security-Policy refuses innerHTML", refused)
    b.js("localStorage.removeItem('spillway.chat.evil')")
    b.faults.clear()


def many(b, s):
    text = "A line of text with **strong** words.\n\n- one\n- two\n\n```c\nint x = 1;\n```\n" * 4
    item = {"id": "many", "at": 4e12, "title": "many",
            "messages": [{"role": "assistant" if i % 2 else "user", "text": text} for i in range(200)]}
    b.js(f"localStorage.setItem('spillway.chat.many', {json.dumps(json.dumps(item))})")
    began = time.time()
    b.open(s.url)
    b.until("document.querySelectorAll('.message').length === 200")
    took = time.time() - began
    frame = b.js("new Promise(done => { const t = performance.now(); show_chat(shown); "
                 "requestAnimationFrame(() => done(performance.now() - t)) })")
    check("200 messages", took < 5 and frame < 1000, f"page {took:.2f} s, all redrawn {frame:.0f} ms")
    check("the last message is on the screen", b.js("at_end()"))
    b.js("localStorage.removeItem('spillway.chat.many')")


def keys(b, program):
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("sesame\n")
        f.flush()
        s = Server(program, "--api-key-file", f.name)
        b.open(s.url)
        b.settings(**{"max-tokens": "20"})
        b.say("Hello.")
        b.until(TROUBLE)
        check("the page asks for a missing API key", "key" in b.js(TROUBLE) and b.js("!!document.querySelector('.trouble input')"),
              b.js(TROUBLE))
        b.js("document.querySelector('.trouble input').focus()")
        b.type("sesame")
        b.key("Enter", 13)
        check("with the key the request is answered", len(b.answered()) > 0)
        check("the key is stored for this tab only", b.js("sessionStorage.getItem('spillway.key')") == "sesame" and
              not b.js("JSON.stringify(localStorage).includes('sesame')"))
        b.open(s.url + "#status")
        b.until("document.getElementById('speed').textContent !== '–'")
        check("the status stream uses the key", not b.js(TROUBLE))
        b.faults.clear()
        s.stop()


GRID = ("[...document.getElementById('grid').getContext('2d').getImageData(0, 0, 400, 80).data].reduce("
        "(h, x) => (h * 31 + x) | 0, 7)")


def status(b, s, pictures):
    b.open(s.url + "#status")
    b.until("document.getElementById('speed').textContent !== '–'")
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
        b.until(f"document.getElementById('speed').textContent !== {json.dumps(idle)} && {GRID} !== {cells} && "
                "document.querySelectorAll('#calls tbody tr').length >= 4", 15)
        moves = True
    except RuntimeError:
        moves = False
    check("the status changes under load", moves, b.js("document.querySelector('.tiles').innerText").replace("\n", " "))
    check("the status shows the controller's decision", len(b.js("document.getElementById('decided').textContent")) > 5,
          b.js("document.getElementById('decided').textContent"))
    b.call("Input.dispatchMouseEvent", type="mouseMoved", **b.js(
        "(r => ({ x: r.x + 60, y: r.y + 5 }))(document.getElementById('grid').getBoundingClientRect())"))
    check("the status shows the expert under the pointer", "expert" in b.js("document.getElementById('spot').textContent"),
          b.js("document.getElementById('spot').textContent"))
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
        check(f"{what} fits a phone", b.js("document.documentElement.scrollWidth") <= 390 and not b.js(
            "[...document.querySelectorAll('body *')].filter(e => e.offsetParent && !e.closest('.unseen, .scroll, pre')"
            " && e.getBoundingClientRect().right > 391).length"))
    b.size(390, 844, True)
    b.open(s.url)
    fits("the chat")
    b.js("document.getElementById('open-chats').click()")
    check("the list of conversations opens on a phone", b.js("document.getElementById('chats').offsetWidth") > 100)
    b.js("document.getElementById('thread').click()")
    b.open(s.url + "#status")
    b.until("document.getElementById('speed').textContent !== '–'")
    fits("the status")
    b.size(1280, 820)


def dark(b, s):
    b.open(s.url)
    light = b.js("getComputedStyle(document.body).backgroundColor")
    b.dark(True)
    check("the page is dark if the browser prefers it", b.js("getComputedStyle(document.body).backgroundColor") != light)
    b.dark(False)


def pictures_of_chat(b, s, folder):
    b.open(s.url)
    b.js("localStorage.clear()")
    b.open(s.url)
    b.settings(**{"max-tokens": "110", "seed": "11", "temperature": "0.6"})
    for text in "A train runs 60 miles an hour for 4 hours. How far does it go?", "Write a Python function that counts the words of a text.":
        b.say(text)
        b.answered()
    b.picture(folder + "chat.png")
    b.size(390, 844, True)
    b.dark(True)
    b.open(s.url)
    b.picture(folder + "phone-dark.png")
    b.size(1280, 820)
    b.dark(False)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("program")
    p.add_argument("--pictures", help="prefix of the picture files to write")
    p.add_argument("--chromium", default="chromium")
    a = p.parse_args()
    s, b = Server(a.program), Browser(a.chromium)
    try:
        b.size(1280, 820)
        chat(b, s)
        check("Chromium logged no fault", not b.faults, "; ".join(b.faults))
        stop(b, s)
        errors(b, s)
        safety(b, s)
        many(b, s)
        status(b, s, a.pictures)
        phone(b, s)
        dark(b, s)
        keys(b, a.program)
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
