"""openai-python against a running server with SmolLM2-135M-Instruct.  Usage: client.py PORT (run by run.sh where the package is)"""
import json
import sys

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
print(f"openai-python {openai.__version__}: chat, stream, completions, responses, schema, errors")
