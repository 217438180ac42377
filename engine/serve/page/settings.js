
/* ---- settings: what a request sets, and the model's defaults ------------------------------------ */

/* off: the value with which a default does nothing, shown as "off". */
const PARAMETERS = [
  {name: "temperature", label: "Temperature", min: 0, max: 100, note: "0: always the likeliest token"},
  {name: "max_tokens", label: "Longest answer", min: 1, whole: true, off: -1, note: "tokens"},
  {name: "seed", label: "Random seed", whole: true, note: "same seed, same answer"},
  {name: "top_p", label: "Top P", min: 0, max: 1, off: 1, note: "likeliest tokens with this probability", more: true},
  {name: "top_k", label: "Top K", min: 0, whole: true, off: 0, note: "only the K likeliest tokens", more: true},
  {
    name: "min_p",
    label: "Min P",
    min: 0,
    max: 1,
    off: 0,
    note: "least share of the likeliest token's probability",
    more: true
  },
  {
    name: "typical_p",
    label: "Typical P",
    min: 0,
    max: 1,
    off: 1,
    note: "tokens about as likely as expected",
    more: true
  },
  {
    name: "top_n_sigma",
    label: "Top N sigma",
    min: -1,
    max: 1000,
    off: -1,
    note: "deviations below the likeliest",
    more: true
  },
  {
    name: "repeat_penalty",
    label: "Repetition penalty",
    min: .01,
    max: 100,
    off: 1,
    note: "above 1: fewer repetitions",
    more: true
  },
  {name: "repeat_last_n", label: "Penalised tokens", min: -1, whole: true, note: "the last N; -1: all", more: true},
  {
    name: "presence_penalty",
    label: "Presence penalty",
    min: -2,
    max: 2,
    off: 0,
    note: "for each token used before",
    more: true
  },
  {
    name: "frequency_penalty",
    label: "Frequency penalty",
    min: -2,
    max: 2,
    off: 0,
    note: "for each use before",
    more: true
  },
  {
    name: "dry_multiplier",
    label: "DRY strength",
    min: 0,
    max: 100,
    off: 0,
    note: "against repeated passages",
    more: true
  },
  {name: "dry_base", label: "DRY base", min: 1, max: 100, note: "growth with their length", more: true},
  {name: "dry_allowed_length", label: "DRY length", min: 0, whole: true, note: "tokens that may repeat", more: true},
  {
    name: "xtc_probability",
    label: "XTC probability",
    min: 0,
    max: 1,
    off: 0,
    note: "of leaving out likely tokens",
    more: true
  },
  {name: "xtc_threshold", label: "XTC threshold", min: 0, max: 1, note: "probability of a likely token", more: true},
];
let model = {params: {}};  // of /props: {params, n_ctx}

for (const p of PARAMETERS) {
  const id = p.name.replaceAll("_", "-");
  p.input = el("input", {id, type: "number", step: p.whole ? "1" : "any", min: p.min ?? "", max: p.max ?? ""});
  $(p.more ? "more-fields" : "common-fields").append(el("label", {}, p.label, p.input, el("span", {}, p.note)));
}

const number_text = x => String(+(+x).toPrecision(4));

/* Reads the model's defaults; where that fails the fields show none. */
async function read_defaults() {
  const answer = await open("props").catch(() => undefined);
  if (!answer?.ok) return;
  const {n_ctx, params} = (await answer.json()).default_generation_settings;
  model = {n_ctx, params};
  for (const p of PARAMETERS) {
    const value = params[p.name];
    p.input.placeholder = p.name === "seed"   ? "random" :
      p.name === "max_tokens" && !(value > 0) ? "no limit" :
      value === undefined                     ? "" :
                                                number_text(value) + (value === p.off ? " (off)" : "");
  }
  count_context();
}

function show_settings() {
  $("system").value = settings.system ?? "";
  $("stop-texts").value = (settings.stop ?? []).join("\n");
  $("key").value = sessionStorage.getItem("spillway.key") ?? "";
  for (const p of PARAMETERS) p.input.value = settings[p.name] ?? "";
  $("more-settings").open = PARAMETERS.some(p => p.more && settings[p.name] !== undefined) || !!settings.stop;
}

function open_settings() {
  show_settings();
  $("settings").returnValue = "";
  $("settings").showModal();
}

/* A field whose value is not valid keeps its setting. */
function take_settings() {
  const next = {};
  if ($("system").value.trim()) next.system = $("system").value.trim();
  const stop = $("stop-texts").value.split("\n").filter(s => s);
  if (stop.length) next.stop = stop;
  for (const p of PARAMETERS) {
    const value = p.input.validity.valid ? p.input.valueAsNumber : settings[p.name];
    if (Number.isFinite(value)) next[p.name] = value;
  }
  settings = next;
  try {
    localStorage.setItem("spillway.settings", JSON.stringify(settings));
  } catch { /* they hold until the tab closes */
  }
  sessionStorage.setItem("spillway.key", $("key").value.trim());
  show_hint();
  look();
  count_context();
}

function body_of(path) {
  const body = {messages: messages_of(path), stream: true, stream_options: {include_usage: true}};
  for (const {name} of PARAMETERS)
    if (settings[name] !== undefined) body[name] = settings[name];
  if (settings.stop) body.stop = settings.stop;
  return body;
}

function show_hint() {
  const set =
    PARAMETERS.filter(p => settings[p.name] !== undefined).map(p => p.label.toLowerCase() + " " + settings[p.name]);
  if (settings.system) set.push("system prompt");
  $("hint").textContent = run ? "Esc stops" : set.join(" · ");
  $("hint").title = $("hint").textContent;
}
