/* Joined by engine/serve/page/embed.sh from the scripts that page.html lists. */
"use strict";
const $ = id => document.getElementById(id);

/* An element with properties and children; strings become text nodes. */
function el(tag, props, ...children) {
  const e = document.createElement(tag);
  Object.assign(e, props);
  e.append(...children);
  return e;
}
const plural = (n, one) => n.toLocaleString("en") + " " + one + (n === 1 ? "" : "s");
const capital = text => text.slice(0, 1).toUpperCase() + text.slice(1);

/* ---- store: conversations and settings ---------------------------------------------------------- */

/* A conversation is {id, at, title, nodes, pick}: a tree of messages.  A node is {role, text, thoughts, meta,
   trouble, up, pick}: `up` is the index of the message that it follows, -1 for a first one, and `pick` the index of
   the message that follows it on the screen.  Nodes with the same `up` are versions of one message.  The
   conversation's `pick` is the first message on the screen. */
const CHAT = "spillway.chat.";
let settings = {};
let chats = [];  // newest first
let shown;       // the conversation on the screen
let run;         // the request in progress: {chat, message, abort}

const new_chat = () =>
  ({id: Date.now().toString(36) + Math.random().toString(36).slice(2, 8), at: Date.now(), title: "", nodes: []});

/* The messages on the screen, in order. */
function path_of(chat) {
  const path = [];
  for (let i = chat.pick; i !== undefined; i = chat.nodes[i].pick) path.push(chat.nodes[i]);
  return path;
}

const versions_of = (chat, node) => chat.nodes.filter(n => n.up === node.up);

function show_version(chat, node) { (chat.nodes[node.up] ?? chat).pick = chat.nodes.indexOf(node); }

/* Adds a message behind `before` (undefined: at the beginning), as its newest version. */
function add_node(chat, before, node) {
  node.up = before ? chat.nodes.indexOf(before) : -1;
  chat.nodes.push(node);
  show_version(chat, node);
  return node;
}

const text_of = x => typeof x === "string" ? x : undefined;
const index_of = (x, from, till) => Number.isInteger(x) && x >= from && x < till ? x : undefined;

/* A conversation made from an object that may be anything, as a file or an older page has it; undefined: it has no
   messages. Lists of {role, text} or of {role, content} become nodes that follow each other. */
function chat_from(x) {
  const list = Array.isArray(x) ? x : x?.nodes ?? x?.messages;
  if (!Array.isArray(list) || !list.length) return undefined;
  const chat = {...new_chat(), ...(text_of(x.id) && {id: x.id}), ...(Number.isFinite(x.at) && {at: x.at})};
  const is_tree = !!x.nodes;
  list.forEach((m, i) => {
    const node = {
      role: m?.role === "user" ? "user" : "assistant",
      text: text_of(m?.text) ?? text_of(m?.content) ?? "",
      up: is_tree ? index_of(m?.up, -1, i) ?? -1 : i - 1
    };
    if (text_of(m?.thoughts)) node.thoughts = m.thoughts;
    if (m?.meta && typeof m.meta === "object")
      node.meta = Object.fromEntries(Object.entries(m.meta).filter(([, v]) => typeof v !== "object"));
    if (text_of(m?.trouble?.why))
      node.trouble = {
        why: m.trouble.why,
        what: text_of(m.trouble.what) ?? "",
        status: index_of(m.trouble.status, 0, 1000)
      };
    node.pick = is_tree ? index_of(m?.pick, i + 1, list.length) : i + 1 < list.length ? i + 1 : undefined;
    chat.nodes.push(node);
  });
  chat.nodes.forEach((n, i) => {
    if (n.pick !== undefined && chat.nodes[n.pick].up !== i) delete n.pick;
  });
  chat.pick = is_tree ? index_of(x.pick, 0, list.length) ?? 0 : 0;
  if (chat.nodes[chat.pick].up !== -1) chat.pick = 0;
  chat.title = text_of(x.title) || title_of(chat.nodes[0].text);
  return chat;
}

const title_of = text => text.slice(0, 60).replace(/\s+/g, " ");

function load_chats() {
  try {
    settings = Object(JSON.parse(localStorage.getItem("spillway.settings") || "{}"));
  } catch { settings = {}; }
  chats = [];
  for (const name of Object.keys(localStorage)) {
    if (!name.startsWith(CHAT)) continue;
    let chat;
    try {
      chat = chat_from(JSON.parse(localStorage.getItem(name)));
    } catch { /* it is not of this page */
    }
    if (chat) chats.push(chat);
  }
  chats.sort((a, b) => b.at - a.at);
}

const chat_text = chat => JSON.stringify(chat, (name, value) => name === "view" ? undefined : value);

/* False: the browser's storage is full. */
function save_chat(chat) {
  try {
    localStorage.setItem(CHAT + chat.id, chat_text(chat));
  } catch {
    show_notice(
      "The browser's storage is full: this conversation is not saved. Export the conversations and delete old ones.");
    return false;
  }
  return true;
}

function forget_chat(chat) {
  localStorage.removeItem(CHAT + chat.id);
  chats = chats.filter(c => c !== chat);
}

/* ---- export and import -------------------------------------------------------------------------- */

function export_chats() {
  const text = '{"spillway":1,"chats":[\n' + chats.map(chat_text).join(",\n") + "\n]}\n";
  const url = URL.createObjectURL(new Blob([text], {type: "application/json"}));
  el("a", {href: url, download: "conversations-" + new Date().toISOString().slice(0, 10) + ".json"}).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/* Adds the conversations of files: an export of this page, one conversation, or a list of messages {role, content}.  A
   conversation that is here already is kept, and the file's is added beside it if it differs. */
async function import_chats(files) {
  let n = 0, bad = 0;
  for (const file of files) {
    let found = [];
    try {
      const x = JSON.parse(await file.text());
      found = (Array.isArray(x?.chats)    ? x.chats :
          Array.isArray(x) && !x[0]?.role ? x :
                                            [x])
                .map(chat_from)
                .filter(c => c);
    } catch { /* it is not JSON */
    }
    if (!found.length) bad++;
    for (const chat of found) {
      const here = chats.find(c => c.id === chat.id);
      if (here && chat_text(here) === chat_text(chat)) {
        n++;
        continue;
      }
      if (here) chat.id = new_chat().id;
      if (!save_chat(chat)) return;
      chats.push(chat);
      n++;
    }
  }
  chats.sort((a, b) => b.at - a.at);
  list_chats();
  show_notice((n ? plural(n, "conversation") + " imported. " : "") +
    (bad ? plural(bad, "file") + " without a conversation." : ""));
}
