"""What a batch of /v1/batches costs someone who waits for an answer: time per token of one streamed answer alone, beside a
batch that runs, and alone again, in turns; the ratio is of the middle one to the mean of the others.

    python3 evals/load/beside_batch.py build/release/spillway MODEL.gguf [PAIRS]
"""
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time

PORT, TOKENS, LINES = 18431, 1800, 400


def ask(method, path, body=None, headers={}):
    c = http.client.HTTPConnection("127.0.0.1", PORT)
    c.request(method, path, body, headers)
    r = c.getresponse()
    answer = r.status, r.read()
    c.close()
    return answer


def wait(test, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if test():
                return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit("the server does not answer as it should")


def ms_per_token():
    c = http.client.HTTPConnection("127.0.0.1", PORT)
    body = {"prompt": "Once upon a time", "max_tokens": TOKENS, "stream": True, "seed": 5, "ignore_eos": True}
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    times = [time.perf_counter() for line in c.getresponse() if line.startswith(b"data: {")]
    c.close()
    return (times[-1] - times[0]) / (len(times) - 1) * 1000


def start_batch():
    lines = "".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                                "body": {"prompt": f"Once {i}", "max_tokens": 400, "seed": i, "ignore_eos": True}}) + "\n"
                    for i in range(LINES))
    part = "--part\r\nContent-Disposition: form-data; "
    body = f'{part}name="purpose"\r\n\r\nbatch\r\n{part}name="file"; filename="in.jsonl"\r\n\r\n{lines}\r\n--part--\r\n'
    file = json.loads(ask("POST", "/v1/files", body.encode(), {"Content-Type": "multipart/form-data; boundary=part"})[1])
    batch = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return json.loads(ask("POST", "/v1/batches", json.dumps(batch), {"Content-Type": "application/json"})[1])["id"]


def status(batch):
    return json.loads(ask("GET", "/v1/batches/" + batch)[1])["status"]


def main():
    program, model, pairs = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 24
    ratios = []
    with tempfile.TemporaryDirectory() as files:
        server = subprocess.Popen([program, "serve", "-m", model, "--port", str(PORT), "--files", files, "--parallel", "8",
                                   "--quiet"])
        try:
            wait(lambda: ask("GET", "/ready")[0] == 200, 60)
            ms_per_token()
            for _ in range(pairs):
                before, batch = ms_per_token(), start_batch()
                time.sleep(1)
                beside = ms_per_token()
                assert status(batch) == "in_progress", "the batch ended too early: more LINES are needed"
                ask("POST", f"/v1/batches/{batch}/cancel", b"")
                wait(lambda: status(batch) == "cancelled", 60)
                after = ms_per_token()
                ratios.append(beside / ((before + after) / 2))
                print(f"{before:.3f} {beside:.3f} {after:.3f} ms, ratio {ratios[-1]:.3f}", flush=True)
        finally:
            server.terminate()
            server.wait()
    mean, spread = statistics.mean(ratios), statistics.stdev(ratios) / len(ratios) ** 0.5
    print(f"median {statistics.median(ratios):.3f}, mean {mean:.3f} +- {1.96 * spread:.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


main()
