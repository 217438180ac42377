"""openai-python against a running server with SmolLM2-135M-Instruct.  Usage: client.py PORT (run by run.sh where the package is)"""
import json
import sys
import time

import openai

client = openai.OpenAI(base_url=f"http://127.0.0.1:{sys.argv[1]}/v1", api_key="none")
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "What is 2+2?"}]

whole = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=40, logprobs=True, top_logprobs=3)
text = whole.choices[0].message.content
kept = len(whole.choices[0].logprobs.content)
assert "4" in text and whole.usage.completion_tokens - kept in (0, 1), whole       # the end token has no text
parts = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=40, stream=True)
assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == text

done = client.completions.create(model=model, prompt="The capital of France is", temperature=0, max_tokens=6)
assert "Paris" in done.choices[0].text, done
answer = client.responses.create(model=model, input="What is 2+2?", temperature=0, max_output_tokens=40)
assert answer.output_text == text, answer

schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
fixed = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=60, response_format={
    "type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}})
assert isinstance(json.loads(fixed.choices[0].message.content)["n"], int), fixed
try:
    client.chat.completions.create(model="other", messages=messages)
    raise AssertionError("another model's name was accepted")
except openai.NotFoundError:
    pass

# files and batches
bodies = [{"messages": messages, "max_tokens": 12, "temperature": 1, "seed": i} for i in range(5)] + [{"messages": messages, "n": 0}]
lines = [{"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": b} for i, b in enumerate(bodies)]
source = "".join(json.dumps(line) + "\n" for line in lines).encode()
file = client.files.create(file=("in.jsonl", source), purpose="batch")
assert file.bytes == len(source) and file.filename == "in.jsonl" and client.files.retrieve(file.id) == file
assert client.files.content(file.id).read() == source and file.id in [f.id for f in client.files.list()]


def run(status, **more):
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", **more)
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        if status == "cancelled" and batch.status != "cancelling":
            batch = client.batches.cancel(batch.id)
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == status, batch
    return batch


batch = run("completed", metadata={"job": "one"})
assert batch.metadata == {"job": "one"} and batch.completed_at and batch.expires_at - batch.created_at == 86400, batch
counts = batch.request_counts
assert (counts.total, counts.completed, counts.failed) == (6, 5, 1), counts
answers = {a["custom_id"]: a["response"] for a in map(json.loads, client.files.content(batch.output_file_id).text.splitlines())}
assert sorted(answers) == [f"r{i}" for i in range(5)]
for i in range(5):
    alone = client.chat.completions.create(model=model, **bodies[i])
    assert answers[f"r{i}"]["body"]["choices"][0]["message"]["content"] == alone.choices[0].message.content
failed = [json.loads(a) for a in client.files.content(batch.error_file_id).text.splitlines()]
assert [(a["custom_id"], a["response"]["status_code"]) for a in failed] == [("r5", 400)], failed
cancelled = run("cancelled")
assert cancelled.cancelled_at and [b.id for b in client.batches.list(limit=1)] == [cancelled.id, batch.id]
assert client.files.delete(file.id).deleted
try:
    client.files.retrieve(file.id)
    raise AssertionError("a deleted file was found")
except openai.NotFoundError:
    pass
print(f"openai-python {openai.__version__}: chat, stream, completions, responses, schema, errors, files, batches")
