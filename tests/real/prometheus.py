"""Debian's Prometheus scrapes a server under load, and evaluates every expression of the dashboard and of the alerts.

Usage: prometheus.py PROGRAM FOLDER        run by `make real`; skipped where prometheus is not installed

The server has the demo model, a quarter of its experts in memory, a draft model, five keys and a short queue. Clients send
more than the queue takes, with good, limited and wrong keys. Then: no expression gives an error or nothing; each panel
has a value other than 0 at some time, except the panels named in QUIET, which show faults; the expression of each alert
without its threshold has a value; the alert of a full queue is pending or firing. Last, promtool runs alerts_test.yml.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

LOAD_S = 25
QUIET = {"Faults", "Unsent bytes"}
MODELS = "evals/train/models/"
KEYS = """sk-alice label=alice
sk-bob label=bob tokens-per-minute=900
sk-carol label=carol requests=1
sk-dave
sk-scrape label=prometheus only=metrics
"""
CONFIG = """global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{alerts}]
scrape_configs:
  - job_name: spillway
    authorization: {{credentials: sk-scrape}}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
failures = []


def check(good, text):
    if not good:
        failures.append(text)
        print("prometheus: FAIL  " + text, flush=True)


def wait_for(what, reads, seconds=60):
    end = time.time() + seconds
    while time.time() < end:
        try:
            value = reads()
            if value:
                return value
        except (OSError, AttributeError, ValueError):
            pass
        time.sleep(0.2)
    sys.exit("prometheus: FAIL  no " + what)


# ---- the load --------------------------------------------------------------------------------------------

def send(port, key, n, words):
    body = json.dumps({"messages": [{"role": "user", "content": words}], "max_tokens": n, "stream": n % 2 == 0})
    request = urllib.request.Request("http://127.0.0.1:%d/v1/chat/completions" % port, body.encode(),
                                     {"Content-Type": "application/json", "Authorization": "Bearer " + key})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
    except urllib.error.HTTPError as refused:
        refused.read()
    except OSError:
        pass


def keep_sending(port, key, n, until, number):
    count = 0
    while time.time() < until:
        count += 1
        send(port, key, n, "Client %d has %d boxes with 12 apples each. How many apples are there?" % (number, count % 3))
        time.sleep(0.02)


def load(port):
    until = time.time() + LOAD_S
    keys = [("sk-alice", 40)] * 8 + [("sk-bob", 20)] * 2 + [("sk-carol", 30)] * 3 + [("sk-dave", 31)] * 4 + [("sk-no", 2)]
    threads = [threading.Thread(target=keep_sending, args=(port, key, n, until, i)) for i, (key, n) in enumerate(keys)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---- Prometheus ------------------------------------------------------------------------------------------

def ask(base, path, **fields):
    try:
        with urllib.request.urlopen(base + path + "?" + urllib.parse.urlencode(fields), timeout=30) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as wrong:
        return {"result": [], "error": json.load(wrong).get("error")}


def values_of(data):
    for series in data["result"]:
        for _, value in series.get("values") or [series["value"]]:
            if value not in ("NaN", "+Inf", "-Inf"):
                yield float(value)


def check_panels(base, start, end):
    with open("configs/grafana.json") as f:
        panels = [p for p in json.load(f)["panels"] if p["type"] != "row"]
    n = 0
    for panel in panels:
        moves = False
        for target in panel["targets"]:
            n += 1
            expression = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "10s")
            data = ask(base, "query_range", query=expression, start=start, end=end, step=1)
            values = list(values_of(data))
            check(values, "panel '%s' is empty: %s %s" % (panel["title"], expression, data.get("error") or ""))
            moves = moves or any(values)
        check(moves or panel["title"] in QUIET, "panel '%s' is always 0" % panel["title"])
    return len(panels), n


def check_alerts(base, start, end):
    rules = [r for group in ask(base, "rules")["groups"] for r in group["rules"]]
    for rule in rules:
        check(rule["health"] == "ok", "alert %s: %s" % (rule["name"], rule.get("lastError")))
        plain = re.sub(r"\s*(==|>|<)\s*[0-9.]+\s*$", "", rule["query"])
        plain = re.sub(r"\[[0-9]+[mh]\]", "[10s]", plain)
        check(plain != rule["query"], "alert %s has no threshold: %s" % (rule["name"], rule["query"]))
        data = ask(base, "query_range", query=plain, start=start, end=end, step=1)
        check(list(values_of(data)), "alert %s has no value: %s %s" % (rule["name"], plain, data.get("error") or ""))
    data = ask(base, "query_range", query='ALERTS{alertname="SpillwayQueueFull"}', start=start, end=end, step=1)
    check(data["result"], "a full queue raises no alert")
    data = ask(base, "query_range", query='ALERTS{alertname=~"SpillwayDown|SpillwayNotReady|SpillwayStalled"}',
               start=start, end=end, step=1)
    check(not data["result"], "a healthy server raises %s" % data["result"])
    return len(rules)


def main():
    program, folder = sys.argv[1:]
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        print("prometheus: skipped: prometheus is not installed")
        return 0
    folder = os.path.join(folder, "prometheus")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with open(folder + "/keys", "w") as f:
        f.write(KEYS)
    started = []
    log = open(folder + "/serve.log", "w+")
    try:
        started.append(subprocess.Popen(
            [program, "serve", MODELS + "demo-target-q8_0.gguf", "--port", "0", "--host-mem", "52M", "--ctx-size", "512",
             "--chunk", "64", "--parallel", "2", "--queue", "6", "--max-body", "256K", "--max-connections", "100",
             "--api-key-file", folder + "/keys", "--log-format", "json", "--draft", "model:" + MODELS + "demo-draft-q8_0.gguf"]
            + os.environ.get("SERVE_FLAGS", "").split(), stderr=log))
        port = int(wait_for("listening server", lambda: re.search(r"listening on http://127\.0\.0\.1:(\d+)",
                                                                  open(folder + "/serve.log").read()).group(1)))
        with open(folder + "/prometheus.yml", "w") as f:
            f.write(CONFIG.format(alerts=os.path.abspath("configs/alerts.yml"), port=port))
        subprocess.run(["promtool", "check", "config", folder + "/prometheus.yml"], check=True, stdout=subprocess.DEVNULL)
        with open(folder + "/prometheus.log", "w") as f:
            started.append(subprocess.Popen(
                ["prometheus", "--config.file=" + folder + "/prometheus.yml", "--storage.tsdb.path=" + folder + "/data",
                 "--web.listen-address=127.0.0.1:0"], stderr=f))
        listens = wait_for("Prometheus", lambda: re.search(r"Listening on.*address=127\.0\.0\.1:(\d+)",
                                                           open(folder + "/prometheus.log").read()).group(1))
        base = "http://127.0.0.1:%s/api/v1/" % listens
        wait_for("scrape", lambda: ask(base, "query", query='up{job="spillway"} == 1')["result"])
        start = time.time()
        load(port)
        end = time.time()
        n_panel, n_expression = check_panels(base, start, end)
        n_alert = check_alerts(base, start, end)
        text = open(folder + "/serve.log").read()
        check("sk-" not in text and "apples" not in text, "the log has a key or a prompt")
        check(text.count('"key":"alice"') > 0, "the log has no request of alice")
        for line in text.splitlines():
            json.loads(line)
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()
    done = subprocess.run(["promtool", "test", "rules", "tests/real/alerts_test.yml"], capture_output=True, text=True)
    check(done.returncode == 0, done.stdout + done.stderr)
    if failures:
        return 1
    print("%d panels with %d expressions and %d alerts have values on Prometheus" % (n_panel, n_expression, n_alert))
    return 0


sys.exit(main())
