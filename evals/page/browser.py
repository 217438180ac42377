"""A headless Chromium that a script drives through a pipe by the DevTools protocol, and a server to show it."""

import base64, json, os, shutil, socket, subprocess, sys, tempfile, time, urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODEL = os.path.join(ROOT, "evals/train/models/demo-target-q8_0.gguf")
FLAGS = [
    "--max-body",
    "256K",
    "--max-connections",
    "64",
    "--queue",
    "16",
    "--chunk",
    "64",
    "--parallel",
    "4",
    "--host-mem",
    "60M",
    "--draft",
    "ngram",
    "--quiet",
]


class Server:
    def __init__(self, program, *flags, model=MODEL):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.command = [program, "serve", "-m", model, "--port", str(self.port), *FLAGS, *flags]
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
        urllib.request.urlopen(
            urllib.request.Request(
                self.url + "v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
        ).read()


class Browser:
    """One page of a headless Chromium; messages go through file descriptors 3 and 4, ended by a zero byte."""

    def __init__(self, program):
        self.home = tempfile.mkdtemp()
        self.n, self.rest, self.faults, self.loaded = 0, b"", [], set()
        theirs_in, self.to = os.pipe()
        self.back, theirs_out = os.pipe()

        def files():
            a, b = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--no-first-run",
                f"--user-data-dir={self.home}",
                "--remote-debugging-pipe",
                "about:blank",
            ],
            preexec_fn=files,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log", "Network":
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
            if got.get("method") == "Network.requestWillBeSent":
                self.loaded.add(got["params"]["request"]["url"])
            if got.get("id") == self.n:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']}")
                return got["result"]

    def js(self, text):
        got = self.call(
            "Runtime.evaluate",
            expression=text,
            awaitPromise=True,
            returnByValue=True,
            allowUnsafeEvalBlockedByCSP=False,
        )
        if "exceptionDetails" in got:
            raise RuntimeError(got["exceptionDetails"]["exception"].get("description", text))
        return got["result"].get("value")

    def until(self, text, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            try:
                value = self.js(text)
            except RuntimeError:  # no document while the browser is between two pages
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
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}),
            )

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

    def press(self, name, where=".message:last-child"):
        """Presses the button of this text or label."""
        self.js(
            f"[...document.querySelectorAll({json.dumps(where + ' button')})].find("
            f"x => x.textContent === {json.dumps(name)} "
            f"|| x.ariaLabel === {json.dumps(name)}).click()"
        )

    def store(self, chat):
        """Puts a conversation in the page's storage, as the newest."""
        chat = {"at": 4e12, "title": chat["id"], **chat}
        self.js(f"localStorage.setItem('spillway.chat.{chat['id']}', {json.dumps(json.dumps(chat))})")

    def forget(self, name):
        self.js(f"localStorage.removeItem('spillway.chat.{name}')")

    def size(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def dark(self, on):
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}],
        )

    def picture(self, path):
        time.sleep(0.4)
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)
