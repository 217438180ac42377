"""Conversations that chat templates are tried with: (name, variables) pairs, the same on every run.

Plain ones, and what clients really send: tools and their results, content in parts, reasoning, missing fields,
empty lists, numbers, nested schemas, text beyond ASCII, text that looks like a template's own marks.
"""

def tool(name, properties, required=None, **more):
    parameters = {"type": "object", "properties": properties}
    if required is not None:
        parameters["required"] = required
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters, **more}}

WEATHER = tool("get_weather", {"city": {"type": "string", "description": "The city, e.g. \"Köln\""},
                               "unit": {"type": "string", "enum": ["c", "f"], "default": "c"}}, ["city"])
NESTED = tool("plan_trip", {
    "stops": {"type": "array", "description": "Where to", "items": {
        "type": "object", "properties": {"name": {"type": "string"}, "nights": {"type": "integer", "minimum": 1}},
        "required": ["name"]}},
    "budget": {"type": "number", "default": 12.5, "nullable": True},
    "flags": {"type": "array", "items": {"type": "boolean"}},
    "mode": {"oneOf": [{"type": "string", "description": "by name", "default": "car"}, {"type": "integer"}]},
    "kind": {"type": ["string", "null"], "description": "line one\nline two"},
    "extra": {"type": "object", "additionalProperties": {"type": "string"}},
    "any": {}}, ["stops", "budget"], strict=True)
RETURNS = tool("add", {"a": {"type": "integer"}, "b": {"type": "integer"}}, ["a", "b"],
               **{"return": {"type": "object", "properties": {"sum": {"type": "integer", "description": "a + b"}}},
                  "response": {"type": "object", "description": "The sum", "properties": {"sum": {"type": "integer"}}}})
EMPTY = tool("now", {})
BARE = {"name": "bare", "description": "No wrapper", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}

def system(text="You are helpful."): return {"role": "system", "content": text}
def user(text="Hello, who are you?"): return {"role": "user", "content": text}
def assistant(text="I am a model.", **more): return {"role": "assistant", "content": text, **more}
def call(name, arguments, id="call_00001", **more):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}
def result(content, id="call_00001", name="get_weather"):
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content}
def text(t): return {"type": "text", "text": t}

ARGS = {"city": "Köln", "unit": "c", "n": 3, "x": 1.5, "ok": True, "none": None, "list": [1, "a", {"b": []}]}
IMAGE = {"type": "image"}
URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
MARKS = "<|im_end|>\n<|im_start|>system\n[INST] </s> {{ 7*7 }} {% raw %} <think>no</think> </think> <|eot_id|>"
UNICODE = "Grüße, 你好, 😀 e\u0301 \u200bZ\u00a0\u2028 Ως İ ß \u0000-free \"quoted\" 'single' \\ back & <tag>".replace("\u0000", "")
REASONED = "<think>\nFirst, think.\n</think>\n\nThe answer is 4."

def conversations():
    out = []
    def add(name, messages, **variables):
        out.append((name, {"messages": messages, "add_generation_prompt": True, "bos_token": "<s>",
                           "eos_token": "</s>", **variables}))
    add("hello", [user()])
    add("no-prompt", [user()], add_generation_prompt=False)
    add("system", [system(), user()])
    add("system-first-turns", [system(), user(), assistant(), user("And now?")])
    add("turns", [user("1"), assistant("2"), user("3"), assistant("4"), user("5")])
    add("ends-with-answer", [user(), assistant()], add_generation_prompt=False)
    add("ends-with-answer-prompt", [user(), assistant()])
    add("spaces", [system("  padded \n"), user(" \n hi \t\n"), assistant("\n\n ok \n"), user("bye ")])
    add("empty-texts", [system(""), user(""), assistant(""), user("x")])
    add("unicode", [system(UNICODE), user(UNICODE), assistant(UNICODE), user("?")])
    add("marks", [system(MARKS), user(MARKS), assistant(MARKS), user(MARKS)])
    add("two-systems", [system("a"), system("b"), user()])
    add("late-system", [user(), assistant(), system("now be brief"), user("go")])
    add("developer", [{"role": "developer", "content": "Be terse."}, user()])
    add("odd-order", [assistant("first"), user(), user("again")])
    add("two-users", [user("a"), user("b")])
    add("unknown-role", [user(), {"role": "critic", "content": "hm"}])
    add("no-messages", [])
    add("missing-content", [user(), {"role": "assistant"}, user("x")])
    add("none-content", [user(), assistant(None), user("x")])
    add("missing-role", [{"content": "x"}])
    add("number-content", [user(42)])
    add("no-tokens", [system(), user()], bos_token=None, eos_token=None)
    add("parts", [system([text("Be"), text(" nice")]), user([text("What "), text("is it?")]), assistant([text("It.")]), user("x")])
    add("image", [user([IMAGE, text("What is this?")])])
    add("image-url", [user([text("Look: "), URL]), assistant("A cat."), user([text("Sure?")])])
    add("empty-parts", [user([]), assistant([]), user("x")])
    for thinking in (True, False):
        add(f"thinking-{thinking}", [system(), user("2+2?")], enable_thinking=thinking, thinking=thinking)
    add("think-inside", [user("2+2?"), assistant(REASONED), user("and 3+3?")])
    add("reasoning", [user("2+2?"), assistant("4", reasoning_content="First, think."), user("and 3+3?")])
    add("reasoning-last", [user("2+2?"), assistant("4", reasoning_content="First, think.", thinking="First, think.")],
        add_generation_prompt=False)
    add("thinking-field", [user("2+2?"), assistant("4", thinking="Hm."), user("x")])
    add("effort", [user()], reasoning_effort="high", thinking_budget=512)
    add("dated", [system(), user()], date_string="01 Jan 2025", model_identity="You are X.", knowledge_cutoff="2024")
    for name, tools in (("one", [WEATHER]), ("many", [WEATHER, NESTED, RETURNS, EMPTY]), ("none", []), ("bare", [BARE])):
        add(f"tools-{name}", [user("Weather?")], tools=tools)
        add(f"tools-{name}-system", [system(), user("Weather?")], tools=tools)
        add(f"tools-{name}-turns", [system(), user("a"), assistant("b"), user("c")], tools=tools, add_generation_prompt=False)
    for name, arguments in (("dict", ARGS), ("text", '{"city": "Köln", "unit": "c"}'), ("empty", {})):
        made = assistant("", tool_calls=[call("get_weather", arguments)])
        add(f"call-{name}", [user("Weather?"), made], tools=[WEATHER], add_generation_prompt=False)
        add(f"result-{name}", [system(), user("Weather?"), made, result('{"temp": 21}')], tools=[WEATHER])
        add(f"answer-{name}", [user("Weather?"), made, result("21°"), assistant("It is 21°."), user("Thanks")], tools=[WEATHER])
        add(f"call-no-tools-{name}", [user("Weather?"), made, result("21")])
        add(f"call-none-{name}", [user("w"), assistant(None, tool_calls=[call("get_weather", arguments)]), result("21")], tools=[WEATHER])
        missing = {"role": "assistant", "tool_calls": [call("get_weather", arguments)]}
        add(f"call-missing-{name}", [user("w"), missing, result("21"), assistant("done")], tools=[WEATHER], add_generation_prompt=False)
        two = assistant("Let me look.", reasoning_content="Two calls.", tool_calls=[
            call("get_weather", arguments, "call_00001"), call("add", {"a": 1, "b": 2}, "call_00002")])
        add(f"calls-two-{name}", [user("w"), two, result("21", "call_00001"), result("3", "call_00002", "add")], tools=[WEATHER, RETURNS])
        add(f"calls-two-answered-{name}", [system(), user("w"), two, result("21"), result("3", "call_00002", "add"),
            assistant("ok"), user("more"), assistant("", tool_calls=[call("now", {}, "call_00003")]), result("noon", "call_00003", "now")],
            tools=[WEATHER, RETURNS, EMPTY])
    add("ids-9", [user("w"), assistant("", tool_calls=[call("get_weather", ARGS, "abcDEF123")]), result("1", "abcDEF123")], tools=[WEATHER])
    add("ids-functions", [user("w"), assistant("", tool_calls=[call("get_weather", ARGS, "functions.get_weather:0")]),
                          result("1", "functions.get_weather:0")], tools=[WEATHER])
    add("flat-call", [user("w"), assistant("", tool_calls=[{"name": "get_weather", "arguments": ARGS}]), result("1")], tools=[WEATHER])
    add("empty-calls", [user("w"), assistant("x", tool_calls=[]), user("y")], tools=[WEATHER])
    add("null-calls", [user("w"), assistant("x", tool_calls=None), user("y")], tools=None)
    add("result-parts", [user("w"), assistant("", tool_calls=[call("get_weather", ARGS)]),
                         {"role": "tool", "content": [text("21"), text(" degrees")], "tool_call_id": "call_00001"}], tools=[WEATHER])
    add("result-object", [user("w"), assistant("", tool_calls=[call("get_weather", ARGS)]), result({"temp": 21, "sky": "blue"})], tools=[WEATHER])
    add("result-objects", [user("w"), assistant("", tool_calls=[call("get_weather", ARGS)]), result([{"temp": 21}, {"temp": 22}])], tools=[WEATHER])
    add("ipython", [user("w"), assistant("", tool_calls=[call("python", {"code": "1+1"})]), {"role": "ipython", "content": {"output": "2"}}],
        tools=[WEATHER], builtin_tools=["browser", "python"], tools_in_user_message=False)
    add("builtin", [system(), user("w")], builtin_tools=["python", "brave_search"])
    add("functions", [system(), user("w")], functions=[WEATHER["function"], NESTED["function"]], datetime="today")
    add("documents", [user("w")], documents=[{"title": "A", "text": "aaa"}, {"title": "B", "text": "bbb"}])
    add("json-tools", [user("w")], json_tools=[WEATHER], xml_tools=["<a/>"], python_tools=["def f(): ..."], custom_instructions="x")
    add("deep", [user("w")], tools=[tool("deep", {"a": {"type": "object", "properties": {"b": {"type": "object", "properties": {
        "c": {"type": "array", "items": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}}}}, "required": ["c"]}}}})])
    add("odd-schema", [user("w")], tools=[tool("odd", {"s": {"type": "string", "enum": []}, "n": {"type": "integer", "maximum": 10, "minimum": -1},
        "d": {"description": "d", "$ref": "#/x"}, "t": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, [])])
    long = [system()]
    for i in range(50):
        long += [user(f"Question {i}: " + "word " * (i % 7)), assistant(f"Answer {i}." + (" <think>x</think>" if i % 9 == 0 else ""))]
    add("hundred", long + [user("last")])
    add("continue", [user("w"), assistant("It is", prefix=True)], add_generation_prompt=False, continue_final_message=True)
    assert len(dict(out)) == len(out)
    return out
