
/* ---- ask: a request and its streamed answer ----------------------------------------------------- */

const key_headers = () => {
  const key = sessionStorage.getItem("spillway.key");
  return key ? {Authorization: "Bearer " + key} : {};
};
const sleep = (ms, signal) => new Promise((done, fail) => {
  const timer = setTimeout(done, ms);
  signal?.addEventListener("abort", () => {
    clearTimeout(timer);
    fail(signal.reason);
  }, {once: true});
});

class Trouble extends Error {
  constructor(why, what, status) {
    super(what);
    this.why = why;
    this.status = status;
  }
}

const WHYS = {
  400: "The server refused the request",
  401: "An API key is needed",
  403: "Not allowed",
  413: "Too long",
  429: "The server is busy",
  503: "The server is not ready"
};

async function trouble_of(answer) {
  let what = "";
  try {
    what = (await answer.json()).error.message;
  } catch { what = "HTTP status " + answer.status + " " + answer.statusText; }
  const after = answer.status === 429 && answer.headers.get("Retry-After");
  return new Trouble(WHYS[answer.status] ?? "The server failed",
    capital(what) + (after ? " (in about " + after + " s)" : "") + ".", answer.status);
}

/* Paths are relative, so that the page works behind a proxy that serves it in a folder. */
async function open(path, options) {
  try {
    return await fetch(path, {...options, headers: {...options?.headers, ...key_headers()}});
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Trouble(
      "The server cannot be reached", "It may have been stopped, or the network is down. Nothing here is lost.");
  }
}

const as_json = (body, signal) =>
  ({method: "POST", signal, headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)});

/* Yields the data of each server-sent event. */
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "";;) {
    let got;
    try {
      got = await reader.read();
    } catch (e) {
      if (e.name === "AbortError") throw e;
      throw new Trouble("The connection was lost", "The text received so far is kept.");
    }
    if (got.done) return;
    const lines = (rest + got.value).split("\n");
    rest = lines.pop();
    for (const l of lines)
      if (l.startsWith("data: ")) yield l.slice(6);
  }
}

/* The messages of a path as the API takes them. */
function messages_of(path) {
  const messages = path.filter(m => m.text).map(m => ({role: m.role, content: m.text}));
  if (settings.system) messages.unshift({role: "system", content: settings.system});
  return messages;
}

/* Sends body and fills message from the streamed answer; calls on_more after each event that adds text. */
async function ask(body, message, signal, on_more) {
  let answer, began = performance.now(), first, last, seen = 0;
  while ((answer = await open("v1/chat/completions", as_json(body, signal))).status === 503) {
    const trouble = await answer.clone().json().catch(() => ({}));
    if (trouble.error?.code !== "loading") break;
    on_more("The model is loading. Your message will be sent when it is ready.");
    await sleep(1500, signal);
    began = performance.now();
  }
  if (!answer.ok) throw await trouble_of(answer);
  const meta = message.meta = {};
  try {
    for await (const data of events(answer)) {
      if (data === "[DONE]") {
        meta.done = true;
        break;
      }
      const e = JSON.parse(data), choice = e.choices?.[0], delta = choice?.delta ?? {}, usage = e.usage;
      const thoughts = delta.reasoning_content ?? delta.reasoning;
      if (e.error) throw new Trouble("The answer was interrupted", capital(e.error.message) + ".", e.error.code);
      if (e.seed !== undefined) meta.seed = e.seed;
      if (thoughts) message.thoughts = (message.thoughts ?? "") + thoughts;
      if (delta.content) message.text += delta.content;
      if (choice?.finish_reason) meta.finish = choice.finish_reason;
      if (usage)
        Object.assign(meta, {
          tokens: usage.completion_tokens,
          prompt: usage.prompt_tokens,
          cached: usage.prompt_tokens_details?.cached_tokens
        });
      if (thoughts || delta.content) {
        last = performance.now();
        first ??= last;
        seen++;
        on_more();
      }
    }
    if (!meta.done) throw new Trouble("The connection was lost", "The text received so far is kept.");
  } finally {
    if (first) {
      meta.first_s = (first - began) / 1000;
      meta.per_s = ((meta.tokens ?? seen) - 1) / ((last - first) / 1000);
    }
  }
}
