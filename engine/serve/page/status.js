
/* ---- status ------------------------------------------------------------------------------------- */

const SECONDS = 180;  // points of the graph, one a second
const past = [];      // tokens/s of the last SECONDS seconds
const HEAT = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
let status_abort, last_status, cells;

const UNITS = [[1e12, "TB", 2], [1e9, "GB", 2], [1e6, "MB", 0], [1e3, "kB", 0]];
function bytes(n) {
  const [size, name, digits] = UNITS.find(([size]) => n >= size) ?? UNITS.at(-1);
  return (n / size).toFixed(digits) + " " + name;
}
const number = n => n >= 100 || n === 0 ? n.toFixed(0) : n.toFixed(1);
const percent = x => (100 * x).toFixed(x > .995 && x < 1 ? 1 : 0) + " %";
const wide = (id, share) => {
  $(id).style.width = Math.min(100, Math.max(0, 100 * share)) + "%";
};
const big = (id, text, unit) => $(id).replaceChildren(text, el("small", {}, " " + unit));
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/* Clears a canvas and sets its resolution to its size on the screen in device pixels. */
function sheet(canvas, height) {
  const w = canvas.clientWidth, h = height ?? canvas.clientHeight, r = devicePixelRatio || 1;
  if (canvas.width !== Math.round(w * r) || canvas.height !== Math.round(h * r)) {
    canvas.width = Math.round(w * r);
    canvas.height = Math.round(h * r);
  }
  if (height) canvas.style.height = h + "px";
  const g = canvas.getContext("2d");
  g.setTransform(r, 0, 0, r, 0, 0);
  g.clearRect(0, 0, w, h);
  return {g, w, h};
}

function shades(from, to, n) {
  const parse = c => [1, 3, 5].map(i => parseInt(c.slice(i, i + 2), 16)), a = parse(color(from)), b = parse(color(to));
  return Array.from(
    {length: n}, (_, i) => "rgb(" + a.map((x, k) => Math.round(x + (b[k] - x) * i / (n - 1))).join(" ") + ")");
}

function draw_history() {
  const {g, w, h} = sheet($("history")), most = Math.max(...past), top = Math.max(1, most) * 1.15;
  const x = i => w - 4 - (past.length - 1 - i) * (w - 4) / (SECONDS - 1), y = v => h - 4 - v / top * (h - 8);
  if (!past.length) return;
  g.beginPath();
  past.forEach((v, i) => i ? g.lineTo(x(i), y(v)) : g.moveTo(x(i), y(v)));
  g.strokeStyle = color("--accent");
  g.lineWidth = 1.6;
  g.stroke();
  g.lineTo(x(past.length - 1), h);
  g.lineTo(x(0), h);
  g.globalAlpha = .13;
  g.fillStyle = color("--accent");
  g.fill();
  g.globalAlpha = 1;
  g.fillStyle = color("--soft");
  g.font = "11px system-ui, sans-serif";
  g.fillText("highest " + number(most), 2, 11);
  $("history").ariaLabel = "Tokens per second: " + number(past.at(-1)) + " now, " + number(most) + " at the highest";
}

/* Draws the cells of each layer in one row, or in several rows if they do not fit the width. */
function draw_grid(x) {
  const canvas = $("grid"), layers = x.layers ?? [], label = 26, w = canvas.clientWidth - label;
  if (!layers.length || w < 10) {
    canvas.hidden = !layers.length;
    return;
  }
  const most = Math.max(...layers.map(l => l[1])), cw = Math.max(5, w / most),
        per_line = Math.min(most, Math.max(1, Math.floor(w / cw + .001)));
  const lines = Math.ceil(most / per_line), rows = layers.length * lines, gap = lines > 1 ? 3 : 0;
  const ch = rows > 40 ? 7 : Math.max(9, Math.min(18, 400 / rows)), space = cw > 7 ? 1.5 : .7, edge = color("--warm");
  const {g} = sheet(canvas, layers.length * (lines * ch + gap));
  const tint = {
    ".": shades("--disk0", "--disk1", 62),
    h: shades("--host0", "--host1", 62),
    d: shades("--device0", "--device1", 62)
  };
  g.font = "10px system-ui, sans-serif";
  cells = {at: [], cw, ch};
  for (let k = 0, e = 0; k < layers.length; k++) {
    const top = k * (lines * ch + gap);
    g.fillStyle = color("--soft");
    if (lines * ch >= 9 || k % 2 === 0) g.fillText(layers[k][0], 0, top + Math.min(ch, 12) - 1);
    for (let i = 0; i < layers[k][1]; i++, e++) {
      const cx = label + i % per_line * cw, cy = top + Math.floor(i / per_line) * ch, tier = x.tier[e],
            heat = HEAT.indexOf(x.heat[e]);
      g.fillStyle = (tint[tier] ?? tint["."])[heat];
      g.fillRect(cx, cy, cw - space, ch - space);
      if (tier === "r") {
        g.strokeStyle = edge;
        g.lineWidth = 1.5;
        g.strokeRect(cx + .75, cy + .75, cw - space - 1.5, ch - space - 1.5);
      }
      cells.at.push({x: cx, y: cy, layer: layers[k][0], expert: i, tier, heat});
    }
  }
  const there = [...x.tier].filter(t => t === "h" || t === "d").length;
  canvas.ariaLabel = there + " of " + x.total + " experts are in memory";
}

const TIERS = {
  ".": "on disk",
  r: "being read from disk",
  h: "in memory",
  d: "on the GPU"
};
function show_spot(e) {
  const box = $("grid").getBoundingClientRect(), px = e.clientX - box.left, py = e.clientY - box.top;
  const c = cells?.at.find(k => px >= k.x && px < k.x + cells.cw && py >= k.y && py < k.y + cells.ch);
  if (c)
    $("spot").textContent = "Layer " + c.layer + ", expert " + c.expert + ": " + TIERS[c.tier] + ", used by " +
      Math.round(100 * (c.heat / 61) ** 2) + " % of the latest steps";
}

/* d.explain is "draft: DECISION (REASON); FIGURES; FIGURES". */
function show_decision(d) {
  const [first, ...rest] = d.explain.split("; "), m = /^draft: (.*?)(?: \((.*)\))?$/.exec(first);
  $("decided").textContent = !d.explain ? "Nothing has run yet." :
    m                                   ? capital(m[1]) + (m[2] ? " – " + m[2] : "") :
                                          first;
  $("reasons").replaceChildren(...rest.map(t => el("div", {}, t)),
    el("div", {},
      d.drafted_per_s > 0 ?
        number(d.drafted_per_s) + " tokens guessed each second, " + number(d.kept_per_s) + " right" :
        ""),
    el("div", {},
      d.early_Bps > 0 ? bytes(d.early_Bps) + "/s of experts read ahead for the next tokens, " + bytes(d.hidden_Bps) +
          "/s used, " + bytes(d.wasted_Bps) + "/s dropped unused" :
                        ""));
}

const PARTS = {
  fixed: "program",
  dense: "weights used by all tokens",
  step: "work space",
  kv: "context (KV cache)",
  experts: "experts",
  states: "saved states"
};
function show_memory(m) {
  const split = m.split ?? {}, kv = m.kv_blocks ? m.kv_blocks_used / m.kv_blocks : 0;
  Object.keys(PARTS).forEach((k, i) => {
    $("split").children[i].style.width = 100 * (split[k] ?? 0) / m.budget_bytes + "%";
  });
  $("parts").replaceChildren(
    ...Object.entries(PARTS).map(([k, name]) => el("span", {hidden: !split[k]}, name + " " + bytes(split[k] ?? 0))),
    el("span", {hidden: !split.spare}, "unused " + bytes(split.spare ?? 0)));
  $("used").textContent = bytes(m.used_bytes) + " in use of the " + bytes(m.budget_bytes) + " that the server may use";
  big("used-big", bytes(m.used_bytes), "of " + bytes(m.budget_bytes));
  $("used-note").textContent = "in use, of the server's limit";
  wide("used-bar", m.used_bytes / m.budget_bytes);
  big("kv", percent(kv), "in use");
  wide("kv-bar", kv);
  $("kv-note").textContent =
    "room for " + plural(m.kv_blocks * m.kv_block_tokens, "token") + " of running conversations";
}

function show_calls(calls) {
  const row = c => [c.id.slice(0, 8), number(c.age_s) + " s", plural(c.prompt_tokens, "token"),
    c.tokens ? plural(c.tokens, "token") : "–", c.tokens_per_s ? number(c.tokens_per_s) : "–"];
  $("calls").tBodies[0].replaceChildren(
    ...calls.slice(0, 12).map(c => el("tr", {}, ...row(c).map(t => el("td", {}, t)))));
  $("idle").textContent = !calls.length ? "None now." : calls.length > 12 ? "and " + (calls.length - 12) + " more" : "";
  $("calls").hidden = !calls.length;
}

function show_status(s) {
  const r = s.rate, x = s.experts, b = s.batch;
  last_status = s;
  $("model").textContent = s.model + (s.state === "serving" ? "" : " · " + s.state);
  if (s.state !== "serving" && s.state !== "draining") return;
  $("status").classList.toggle("is-dense", !x.total);
  big("speed", number(r.tokens_per_s), "tokens/s");
  $("reading").textContent = number(r.prompt_tokens_per_s) + " prompt tokens/s read" +
    (r.passes_per_s > 0 ? " · " + number(r.passes_per_s) + " steps/s of " + number(r.rows_per_pass) + " tokens" : "");
  big("batch", b.running, b.waiting ? "running, " + b.waiting + " waiting" : "running");
  wide("batch-bar", b.running / b.parallel);
  $("queue").textContent = b.parallel + " at once, " + b.queue + " more may wait" +
    (s.refused ? " · " + s.refused + " refused since the start" : "");
  big("hits", x.total ? percent(x.hit_rate) : "–", "of uses");
  wide("hits-bar", x.hit_rate);
  $("slots").textContent =
    x.slots >= x.total ? "all " + x.total + " fit in memory" : "room for " + x.slots + " of " + x.total;
  big("disk", bytes(r.disk_Bps), "each second");
  wide("disk-bar", r.disk_limit_Bps ? r.disk_Bps / r.disk_limit_Bps : 0);
  $("limit").textContent = (r.disk_limit_Bps ? "the disk can " + bytes(r.disk_limit_Bps) + "/s" : "") +
    (r.stall > .01 ? " · waiting for it " + percent(Math.min(1, r.stall)) + " of the time" : "");
  $("on-device").hidden = !x.tier?.includes("d");
  past.push(r.tokens_per_s);
  if (past.length > SECONDS) past.shift();
  if (x.total) draw_grid(x);
  draw_history();
  show_decision(s.draft);
  show_memory(s.memory);
  show_calls(s.calls);
}

/* Reads the status stream until the status view is left. Connects again after an error. */
async function follow_status() {
  status_abort?.abort();
  const abort = status_abort = new AbortController();
  while (!abort.signal.aborted) {
    try {
      const answer = await open("status/stream", {signal: abort.signal});
      if (!answer.ok) throw await trouble_of(answer);
      $("lost").hidden = true;
      for await (const data of events(answer)) show_status(JSON.parse(data));
      throw new Trouble("The server has ended the connection", "Trying again.");
    } catch (e) {
      if (abort.signal.aborted) return;
      show_lost(e);
      if (e.status === 401) return;
    }
    await sleep(2000, abort.signal).catch(() => {});
  }
}

function show_lost(e) {
  $("lost").replaceChildren(
    el("p", {}, el("span", {className: "why"}, (e.why ?? "This page failed") + ". "), e.message));
  if (e.status === 401) $("lost").append(key_form(follow_status));
  $("lost").hidden = false;
}
