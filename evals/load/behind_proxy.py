"""Clients with large bodies at once, directly and behind nginx with request buffering on and off: which answers they get and
when, how long one more takes after as many have left unanswered, how long a short request beside them all waits, and the
server's peak of memory.

    python3 evals/load/behind_proxy.py build/release/spillway MODEL.gguf [CLIENTS [MEGABYTES]]

Needs nginx.  All addresses are 127.0.0.1, and all files of nginx are in a temporary folder.
"""
import collections
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

SERVER, PROXY = 18433, 18434
HOST_MEM, MAX_BODY = "400M", "9M"

CONFIG = """
daemon off; master_process off; pid {0}/pid; error_log {0}/error.log warn;
events {{ worker_connections 256; }}
http {{
    access_log off; client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fastcgi;
    uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi; client_max_body_size 9m;
    server {{
        listen 127.0.0.1:{1};
        location / {{
            proxy_pass http://127.0.0.1:{2}; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header Host $host; proxy_buffering off; proxy_request_buffering {3}; proxy_read_timeout 1h;
        }}
    }}
}}
"""


def post(port, text):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    begin = time.monotonic()
    try:
        c.request("POST", "/tokenize", json.dumps({"prompt": text}), {"Content-Type": "application/json"})
        r = c.getresponse()
        r.read()
        status = r.status
    except OSError as e:
        status = type(e).__name__
    c.close()
    return status, time.monotonic() - begin


def leave(port, text):
    """Sends a request as far as the server takes it within a second, and leaves."""
    body = json.dumps({"prompt": text}).encode()
    head = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    s = socket.create_connection(("127.0.0.1", port))
    s.settimeout(1)
    try:
        s.sendall(head.encode() + body)
        s.recv(1)
    except OSError:
        pass
    s.close()


def wait_for(port):
    for _ in range(600):
        try:
            if post(port, "hi")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit("the server does not answer")


def peak_mib(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


def measure(name, port, pid, n, text):
    large, short, over = [], [], threading.Event()

    def ask_shortly():
        while not over.is_set():
            short.append(post(port, "hi"))
            time.sleep(0.2)

    beside = threading.Thread(target=ask_shortly)
    clients = [threading.Thread(target=lambda: large.append(post(port, text))) for _ in range(n)]
    for t in [beside] + clients:
        t.start()
    for t in clients:
        t.join()
    leaving = [threading.Thread(target=leave, args=(port, text)) for _ in range(n)]
    for t in leaving:
        t.start()
    for t in leaving:
        t.join()
    after = post(port, text)
    over.set()
    beside.join()
    statuses = " ".join(f"{k}x{v}" for v, k in sorted(collections.Counter(s for s, _ in large).items(), key=str))
    bad = sum(s != 200 for s, _ in short)
    s = [t for _, t in short]
    print(f"| {name} | {statuses} | {min(t for _, t in large):.1f} | {max(t for _, t in large):.1f} | {after[0]} {after[1]:.1f} | {len(s)} | {bad} | "
          f"{statistics.median(s) * 1000:.0f} | {max(s) * 1000:.0f} | {peak_mib(pid):.0f} |", flush=True)


def main():
    program, model = sys.argv[1:3]
    n = int(sys.argv[3]) if len(sys.argv) > 3 else 12
    text = " " * (int(sys.argv[4]) * 1000000 if len(sys.argv) > 4 else 8000000)
    print(f"{n} clients of {len(text) / 1e6:.0f} MB of spaces to /tokenize at once, --host-mem {HOST_MEM} --max-body {MAX_BODY}\n")
    print("| way | answers | first s | last s | after as many have left, s | short ones | failed | median ms | longest ms | peak MiB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, buffering in ("direct", None), ("nginx, request buffering on", "on"), ("nginx, request buffering off", "off"):
        with tempfile.TemporaryDirectory() as folder:
            own = [subprocess.Popen([program, "serve", "-m", model, "--port", str(SERVER), "--host-mem", HOST_MEM,
                                     "--max-body", MAX_BODY], stderr=subprocess.DEVNULL)]
            try:
                if buffering:
                    config = os.path.join(folder, "nginx.conf")
                    with open(config, "w") as f:
                        f.write(CONFIG.format(folder, PROXY, SERVER, buffering))
                    own.append(subprocess.Popen(["nginx", "-p", folder, "-c", config, "-e", folder + "/error.log"]))
                port = PROXY if buffering else SERVER
                wait_for(port)
                measure(name, port, own[0].pid, n, text)
                if buffering:
                    with open(folder + "/error.log") as f:
                        for line, k in collections.Counter(l.split(" ", 5)[5].split("/")[0].split(",")[0].strip() for l in f).items():
                            print(f"<!-- nginx: {k} x {line} -->")
            finally:
                for p in own[::-1]:
                    p.terminate()
                    p.wait()


main()
