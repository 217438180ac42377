
/* ---- chat: the conversation on the screen ------------------------------------------------------- */

const thread = $("thread"), say = $("say");
const at_end = () => thread.scrollHeight - thread.scrollTop - thread.clientHeight < 60;
const to_end = () => {
  thread.scrollTop = thread.scrollHeight;
};
const tell = text => {
  $("said").textContent = text;
};

function show_notice(text) {
  const card = el("div", {className: "trouble notice", role: "alert"}, el("p", {}, text));
  card.append(tool("Close", () => card.remove()));
  thread.querySelector(".notice")?.remove();
  thread.append(card);
  to_end();
}

function meta_text(m) {
  const out = [];
  if (!m) return "";
  if (m.first_s !== undefined) out.push(m.first_s.toFixed(2) + " s to the first token");
  if (m.per_s > 0 && isFinite(m.per_s)) out.push(m.per_s.toFixed(1) + " tokens/s");
  if (m.tokens)
    out.push(plural(m.tokens, "token") +
      (m.prompt ? " after " + m.prompt + (m.cached ? " (" + m.cached + " cached)" : "") : ""));
  if (m.finish === "length") out.push("token limit reached");
  if (m.stopped) out.push("stopped");
  if (m.seed !== undefined) out.push("seed\u00a0" + m.seed);
  return out.join(" · ");
}

const tool = (name, f, label) =>
  el("button", {className: "plain", type: "button", onclick: f, ...(label && {ariaLabel: label, title: label})}, name);

/* A field for the API key; f is called with a key in place. */
function key_form(f) {
  const key = el("input", {type: "password", placeholder: "API key", autocomplete: "off", ariaLabel: "API key"});
  const take = e => {
    e.preventDefault();
    sessionStorage.setItem("spillway.key", key.value.trim());
    look();
    f();
  };
  return el("form", {onsubmit: take}, key, el("button", {className: "main"}, "Use it"));
}

function trouble_card(chat, message) {
  const t = message.trouble, again = () => answer_again(chat, message);
  const card =
    el("div", {className: "trouble", role: "alert"}, el("p", {}, el("span", {className: "why"}, t.why + ". "), t.what));
  if (t.status === 401) {
    card.append(key_form(again));
    setTimeout(() => card.querySelector("input").focus());
  } else
    card.append(el("button", {type: "button", onclick: again}, "Try again"));
  return card;
}

/* ‹ 1/3 ›, for a message with versions. */
function version_tools(chat, message) {
  const all = versions_of(chat, message), i = all.indexOf(message);
  if (all.length < 2) return [];
  const go = (step, sign, label) => {
    const button = tool(sign, () => {
      show_version(chat, all[i + step]);
      save_chat(chat);
      show_chat(chat, true);
    }, label);
    button.disabled = !all[i + step];
    return button;
  };
  const number = el("span", {}, i + 1 + "/" + all.length);
  return [el("span", {className: "versions"}, go(-1, "‹", "Previous version"), number, go(1, "›", "Next version"))];
}

/* Makes the DOM nodes of a message. view.refresh() updates them from the message. */
function make_view(chat, message) {
  const is_user = message.role === "user", body = el("div", {className: "body"}),
        tools = el("div", {className: "tools"});
  const root = el("article", {className: "message " + (is_user ? "user" : "answer")},
    el("h2", {className: "unseen"}, is_user ? "You" : "Answer"), body, tools);
  const view = {root, refresh() {}};
  message.view = view;
  if (is_user) {
    const copy = tool("Copy", () => copy_text(message.text, copy));
    body.textContent = message.text;
    tools.append(...version_tools(chat, message), copy, tool("Edit", () => edit(chat, message, body, tools)));
    return view;
  }
  const thoughts = el("details", {className: "thoughts", hidden: true}, el("summary", {}, "Thoughts"), el("div"));
  const waiting = el("div", {className: "waiting"}), meta = el("span", {className: "meta"});
  body.before(thoughts);
  const copy = tool("Copy", () => copy_text(message.text, copy));
  tools.append(...version_tools(chat, message), copy, tool("Regenerate", () => answer_again(chat, message)), meta);
  let card;
  view.refresh = note => {
    const busy = run?.message === message;
    thoughts.hidden = !message.thoughts;
    if (message.thoughts) {
      thoughts.lastChild.textContent = message.thoughts;
      thoughts.firstChild.textContent = busy && !message.text ? "Thinking…" : "Thoughts";
    }
    show_markdown(body, message.text, !busy);
    waiting.textContent = note ?? "Reading the prompt";
    if (busy && !message.text && !message.thoughts)
      body.after(waiting);
    else
      waiting.remove();
    tools.hidden = busy;
    copy.hidden = !message.text;
    meta.textContent = meta_text(message.meta);
    card?.remove();
    card = message.trouble && !busy ? trouble_card(chat, message) : undefined;
    if (card) body.after(card);
  };
  view.refresh();
  return view;
}

/* A field in place of the message; its text becomes a new version, which is answered. */
function edit(chat, message, body, tools) {
  const area = el("textarea", {value: message.text, ariaLabel: "Edit message"});
  const box = el("div", {}, area);
  const close = () => {
    box.replaceWith(body);
    tools.hidden = false;
  };
  const done = () => {
    const text = area.value.trim();
    if (!text || run) return;
    const path = path_of(chat), before = path[path.indexOf(message) - 1];
    const node = add_node(chat, before, {role: "user", text});
    if (!before) chat.title = title_of(text);
    answer(chat, node);
  };
  area.onkeydown = e => {
    if (e.key === "Enter" && sends(e)) {
      e.preventDefault();
      done();
    }
    if (e.key === "Escape") {
      e.stopPropagation();
      close();
    }
  };
  box.append(el("div", {className: "editing"}, el("button", {type: "button", onclick: close}, "Cancel"),
    el("button", {type: "button", className: "main", onclick: done}, "Send")));
  body.replaceWith(box);
  tools.hidden = true;
  area.style.height = Math.min(area.scrollHeight + 4, 400) + "px";
  area.focus();
}

function show_chat(chat, stay) {
  const top = thread.scrollTop, path = path_of(chat);
  shown = chat;
  thread.replaceChildren(...path.map(m => make_view(chat, m).root));
  if (!path.length)
    thread.append(el("div", {className: "hello"}, el("b", {}, "Ask something"), "Conversations stay in this browser."));
  list_chats();
  if (stay)
    thread.scrollTop = top;
  else
    to_end();
  show_latest();
  count_context();
}

function list_chats() {
  const open_chat = c => {
    show_chat(c);
    show_list(false);
    if (!is_phone()) say.focus();
  };
  $("chats").querySelector("ul").replaceChildren(...chats.map(c => {
    const title = el("button", {className: "title", type: "button", title: c.title, onclick: () => open_chat(c)},
      c.title || "New chat");
    if (c === shown) title.setAttribute("aria-current", "true");
    return el("li", {className: c === shown ? "open" : ""}, title,
      el("button", {
        className: "drop",
        type: "button",
        title: "Delete",
        ariaLabel: "Delete " + c.title,
        onclick: () => drop_chat(c)
      },
        "×"));
  }));
  $("export").disabled = !chats.length;
}

function drop_chat(chat) {
  if (!confirm("Delete “" + (chat.title || "New chat") + "”?")) return;
  if (run?.chat === chat) run.abort.abort();
  forget_chat(chat);
  if (shown === chat)
    show_chat(new_chat());
  else
    list_chats();
}

function show_list(on) {
  $("chats").classList.toggle("shown", on);
  $("open-chats").setAttribute("aria-expanded", on);
}

function send(text) {
  const chat = shown;
  if (run || !text) return;
  if (!chats.includes(chat)) chats.unshift(chat);
  if (!chat.nodes.length) chat.title = title_of(text);
  answer(chat, add_node(chat, path_of(chat).at(-1), {role: "user", text}));
}

/* A new version of an answer; an answer without text is replaced. */
function answer_again(chat, message) {
  if (run) return;
  const path = path_of(chat), at = path.indexOf(message);
  answer(chat, path[at - 1], message.text ? undefined : message);
}

/* Asks for an answer to the message `before`, in the place of `message` if that is given. */
async function answer(chat, before, message) {
  if (message) {
    delete message.trouble;
    delete message.thoughts;
    delete message.meta;
  } else
    message = add_node(chat, before, {role: "assistant", text: ""});
  const path = path_of(chat), body = body_of(path.slice(0, path.indexOf(message)));
  const abort = new AbortController();
  run = {chat, message, abort};
  chat.at = Date.now();
  show_chat(chat);
  save_chat(chat);
  show_run();
  tell("Answering");
  let due, note, next = 0;  // the time of the next drawing: at most a quarter of the time is spent on drawing
  const draw = () => {
    const end = at_end(), begin = performance.now();
    due = 0;
    message.view?.refresh(note);
    if (shown === chat && end) to_end();
    show_latest();
    next = begin + 4 * (performance.now() - begin);
  };
  const more = text => {
    note = text;
    due ||= setTimeout(draw, Math.max(16, next - performance.now()));
  };
  try {
    await ask(body, message, abort.signal, more);
  } catch (e) {
    if (e.name === "AbortError")
      (message.meta ??= {}).stopped = true;
    else
      message.trouble = e instanceof Trouble ? {why: e.why, what: e.message, status: e.status} :
                                               {why: "This page failed", what: String(e)};
  }
  clearTimeout(due);
  run = undefined;
  draw();
  show_run();
  count_context();
  if (chats.includes(chat)) save_chat(chat);
  tell(message.trouble ? message.trouble.why : message.text.slice(0, 2000) || "No answer");
}

function show_run() {
  $("stop").hidden = !run;
  $("send").hidden = !!run;
  document.body.classList.toggle("busy", !!run);
  show_hint();
}

/* ---- the gauge of the context ------------------------------------------------------------------- */

let n_count = 0;  // requests of tokens counted: an answer to an older one is ignored

/* Shows the tokens of the conversation beside the model's limit: those that its last answer reports, else the
   server counts them. */
async function count_context() {
  const path = path_of(shown), last = path.at(-1)?.meta, mine = ++n_count;
  if (!model.n_ctx || run) return;
  let n = last?.tokens && last.prompt ? last.prompt + last.tokens : 0;
  const messages = messages_of(path);
  if (!n && messages.length) {
    const answer = await open("tokenize", as_json({messages})).catch(() => undefined);
    if (answer?.ok) n = (await answer.json()).count;
  }
  if (mine !== n_count) return;
  const share = Math.min(1, n / model.n_ctx), gauge = $("context");
  gauge.hidden = !n;
  gauge.className = share > .9 ? "full" : "";
  gauge.ariaValueMax = model.n_ctx;
  gauge.ariaValueNow = n;
  gauge.ariaValueText = gauge.title =
    n.toLocaleString("en") + " of " + model.n_ctx.toLocaleString("en") + " tokens of context used";
  gauge.firstChild.style.setProperty("--share", share);
  gauge.lastChild.textContent = short_count(n) + " / " + short_count(model.n_ctx);
}

const short_count = n => n < 10000 ? String(n) : (n / 1024).toFixed(n < 102400 ? 1 : 0) + "k";

/* ---- the composer ------------------------------------------------------------------------------- */

const is_phone = () => matchMedia("(pointer: coarse)").matches;

/* Enter sends; with Shift, on phones and while an input method composes it makes a new line. */
const sends = e => (e.ctrlKey || e.metaKey || (!e.shiftKey && !is_phone())) && !e.isComposing;

function show_latest() { $("latest").hidden = at_end(); }

function grow() {
  say.style.height = "auto";
  say.style.height = say.scrollHeight + "px";
}

function submit() {
  const text = say.value.trim();
  if (run || !text) return;
  say.value = "";
  grow();
  send(text);
}
