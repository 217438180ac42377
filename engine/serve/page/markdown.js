
/* ---- markdown: text to DOM nodes ---------------------------------------------------------------- */

/* markdown-it makes tokens; this page makes the nodes of them, from a fixed set of elements with text nodes in them: no
   string ever becomes markup.  Parts that would take long to parse are shown as they are. */
const LONGEST_INLINE = 20000, LONGEST_CODE = 20000, LONGEST_MATH = 4000, DEEPEST = 24, MOST_MATH_LINES = 200;
const DEEPEST_MATH = 120, MOST_MATH_NODES = 5000;
const MOST_TOKENS = 20000, MOST_BLOCKS = 5000, MOST_REFERENCES = 50, MOST_MS = 300;
const MATH_MARKS = [["\\(", "\\)", false], ["\\[", "\\]", true], ["$$", "$$", true], ["$", "$", false]];
/* Definitions let a short formula grow without end; the other commands are not for text of a model. */
const REFUSED = new RegExp("\\\\(?:[egx]?def|let|futurelet|(?:re|provide)?newcommand|global|long|char|expandafter|" +
    "html\\w*|href|url|includegraphics)(?![a-z])",
  "i");

/* A formula within a line.  $ opens before a character that is no space, and closes behind one and before no digit,
   so that prices stay text. */
function math_inline(state, silent) {
  const s = state.src, at = state.pos, mark = MATH_MARKS.find(([open]) => s.startsWith(open, at));
  if (!mark) return false;
  const [open, close, display] = mark, from = at + open.length, is_dollar = open === "$";
  if (is_dollar && /\s/.test(s[from] ?? " ")) return false;
  let end = s.indexOf(close, from);
  while (is_dollar && end > 0 && (/[\s\\]/.test(s[end - 1]) || /\d/.test(s[end + 1] ?? "")))
    end = s.indexOf(close, end + 1);
  if (end <= from || end + close.length > state.posMax) return false;
  if (!silent) {
    const token = state.push("math", "", 0);
    token.content = s.slice(from, end);
    token.info = s.slice(at, end + close.length);
    token.hidden = display;
  }
  state.pos = end + close.length;
  return true;
}

/* A formula of whole lines: from a line that begins with $$ or \[ to one that ends with $$ or \]. */
function math_block(state, first, last, silent) {
  const line = i => state.src.slice(state.bMarks[i] + state.tShift[i], state.eMarks[i]);
  const mark = MATH_MARKS.find(([open, , display]) => display && line(first).startsWith(open));
  if (!mark || state.sCount[first] - state.blkIndent >= 4) return false;
  const [open, close] = mark, text = [];
  for (let i = first; i < last && i < first + MOST_MATH_LINES; i++) {
    if (i > first && line(i) && state.sCount[i] < state.blkIndent) return false;
    const part = (i === first ? line(i).slice(open.length) : line(i)).trimEnd(), end = part.indexOf(close);
    if (end < 0) {
      text.push(part);
      continue;
    }
    if (end + close.length < part.length) return false;
    if (silent) return true;
    text.push(part.slice(0, end));
    const token = state.push("math_block", "", 0);
    token.content = text.join("\n");
    token.info = open + token.content + close;
    token.hidden = true;
    token.map = [first, i + 1];
    state.line = i + 1;
    return true;
  }
  return false;
}

function make_parser() {
  const md = globalThis.markdownit?.({html: false, linkify: true, typographer: false, maxNesting: DEEPEST});
  if (!md) return undefined;
  md.linkify.set({fuzzyLink: false, fuzzyEmail: false});
  md.inline.ruler.before("escape", "math", math_inline);
  md.block.ruler.before("fence", "math_block", math_block, {alt: ["paragraph", "reference", "blockquote", "list"]});
  const read_reference = md.block.ruler.__rules__.find(r => r.name === "reference").fn;
  md.block.ruler.at("reference", (state, ...lines) => {  // each one copies the rest of its paragraph
    const is_one = (state.env.n_reference ?? 0) < MOST_REFERENCES && read_reference(state, ...lines);
    if (is_one) state.env.n_reference = (state.env.n_reference ?? 0) + 1;
    return is_one;
  });
  md.core.ruler.at("inline", state => {
    for (const t of state.tokens) {
      if (t.type !== "inline") continue;
      if (t.content.length <= LONGEST_INLINE)
        state.md.inline.parse(t.content, state.md, state.env, t.children);
      else
        t.children.push(Object.assign(new state.Token("plain", "", 0), {content: t.content}));
    }
  });
  return md;
}
const parser = make_parser();

/* The element of a link or of an image, which is not loaded but linked; text where the address is no web address. */
function link(address, alt) {
  const props = /^(?:https?:\/\/|mailto:)/i.test(address) ?
    {href: address, title: address, target: "_blank", rel: "noopener noreferrer"} :
    undefined;
  return el(props ? "a" : "span", props, ...(alt === undefined ? [] : [alt]));
}

let spent_ms;  // on formulas and colours in this call of show_markdown: beyond MOST_MS they stay text

function timed(f) {
  const begin = performance.now();
  if (spent_ms > MOST_MS) return undefined;
  try {
    return f();
  } catch { return undefined; } finally {
    spent_ms += performance.now() - begin;
  }
}

/* Whether a formula's nodes are few and not nested too deep for the browser's layout, whose time grows with both. */
function is_light(node) {
  const walk = document.createTreeWalker(node);
  for (let depth = 0, n = 0; depth < DEEPEST_MATH && n < MOST_MATH_NODES; n++) {
    if (walk.firstChild()) {
      depth++;
      continue;
    }
    for (; !walk.nextSibling(); depth--)
      if (!walk.parentNode()) return true;
  }
  return false;
}

const formulas = new Map();  // nodes of formulas by their text: an answer that grows is shown many times

function math_node(token) {
  const source = token.content, display = token.hidden, key = display + token.info;
  if (formulas.has(key)) return formulas.get(key).cloneNode(true);
  const node = el("span", {className: display ? "math display" : "math"});
  if (display) node.tabIndex = 0;
  const options =
    {displayMode: display, throwOnError: true, trust: false, strict: "ignore", maxSize: 20, maxExpand: 200};
  const is_short = globalThis.katex && source.length <= LONGEST_MATH && !REFUSED.test(source);
  const render = () => {
    katex.render(source, node, options);
    return is_light(node);
  };
  if (!is_short || !timed(render)) {
    node.replaceChildren(el("code", {}, token.info));
    return node;
  }
  if (formulas.size > 500) formulas.clear();
  formulas.set(key, node);
  return node.cloneNode(true);
}

/* Appends code to an element, with the colours of highlight.js.  Its output is text with spans and three entities, from
   which this function makes nodes. */
function color_code(to, text, language) {
  const is_known = text.length <= LONGEST_CODE && globalThis.hljs?.getLanguage(language);
  const html = is_known ? timed(() => hljs.highlight(language, text, true).value) : undefined;
  if (html === undefined) return to.append(text);
  const entities = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'", "&#39;": "'"};
  let depth = 0;
  for (const [part, name] of html.matchAll(/<span class="([\w -]*)">|<\/span>|&[#\w]+;|[^<&]+|[<&]/g)) {
    if (name !== undefined) {
      if (++depth > DEEPEST) continue;
      const span = el("span", {className: name});
      to.append(span);
      to = span;
    } else if (part !== "</span>")
      to.append(entities[part] ?? part);
    else if (depth-- <= DEEPEST)
      to = to.parentNode;
  }
}

function code_node(text, language) {
  const copy = el("button", {className: "plain", type: "button", onclick: () => copy_text(text, copy)}, "Copy");
  const code = el("code");
  color_code(code, text, language.toLowerCase());
  return el("div", {className: "code"}, el("div", {}, el("span", {}, language || "code"), copy),
    el("pre", {tabIndex: 0}, code));
}

/* Makes the nodes of tokens.  level: the deepest heading before them; returns that after them.  The headings of an
   answer follow those of the page without a gap. */
function write_tokens(to, tokens, level) {
  const open = [to];
  const push = (node, inner) => {
    open.at(-1).append(node);
    open.push(inner ?? node);
  };
  for (const t of tokens) {
    const top = open.at(-1);
    if (t.type === "inline")
      write_tokens(top, task_tokens(top, t.children), level);
    else if (t.type === "text" || t.type === "plain")
      top.append(t.content);
    else if (t.type === "softbreak")
      top.append("\n");
    else if (t.type === "hardbreak")
      top.append(el("br"));
    else if (t.type === "code_inline")
      top.append(el("code", {}, t.content));
    else if (t.type === "math" || t.type === "math_block")
      top.append(math_node(t));
    else if (t.type === "image")
      top.append(link(top.closest("a") ? "" : t.attrGet("src") ?? "", t.content || t.attrGet("src") || "image"));
    else if (t.type === "fence" || t.type === "code_block")
      top.append(code_node(t.content.replace(/\n$/, ""), t.info.trim().split(/\s+/)[0]));
    else if (t.type === "hr")
      top.append(el("hr"));
    else if (t.nesting < 0)
      open.pop();
    else if (t.type === "link_open")
      push(link(t.attrGet("href") ?? ""));
    else if (t.type === "heading_open") {
      const wanted = +t.tag[1];
      level = Math.min(wanted + 2, level + 1, 6);
      push(el("h" + level, {className: "size" + Math.min(wanted, 4)}));
    } else if (t.type === "table_open") {
      const table = el("table");
      push(el("div", {className: "scroll", tabIndex: 0}, table), table);
    } else if (t.type === "th_open" || t.type === "td_open")
      push(el(t.tag, {className: /center|right/.exec(t.attrGet("style") ?? "")?.[0] ?? ""}));
    else if (t.type === "ordered_list_open")
      push(el("ol", t.attrGet("start") ? {start: +t.attrGet("start")} : {}));
    else if (t.nesting > 0) {
      if (t.hidden)
        open.push(top);
      else
        push(el(t.tag));
    } else
      top.append(t.content);
  }
  return level;
}

/* [ ] and [x] at the beginning of a list item become boxes. */
function task_tokens(top, tokens) {
  const box = top.closest("li") && !top.textContent && tokens[0]?.type === "text" ?
    /^\[([ xX])\] /.exec(tokens[0].content) :
    null;
  if (box) tokens[0].content = (box[1] === " " ? "☐ " : "☑ ") + tokens[0].content.slice(4);
  return tokens;
}

const plain_block = (at, source) => ({
  at,
  source,
  make: (to, level) => {
    to.append(el("p", {}, source.trimEnd()));
    return level;
  }
});

/* Splits text from offset `from` into its outermost blocks, at most `most`: {at, source, make}.  make(to, level)
   appends the nodes.  Text of blocks beyond that and blocks of too many tokens are shown as they are. */
function blocks_of(text, from, most) {
  const part = text.slice(from), out = [];
  if (!parser) {  // fenced code, and all other text as it is
    for (const m of part.matchAll(
           /^```[ \t]*([^\s`]*)[^\n`]*\n([^]*?)(?:^```[ \t]*$|(?![^]))|(?:(?!^```)[^])+?(?=^```|(?![^]))/gm))
      out.push({
        at: from + m.index,
        source: m[0],
        make: (to, level) => {
          to.append(m[2] === undefined ? el("p", {}, m[0].trim()) : code_node(m[2].replace(/\n$/, ""), m[1]));
          return level;
        }
      });
    return limited(out, text, most);
  }
  const starts = [0], env = {};
  for (let i = part.indexOf("\n"); i >= 0; i = part.indexOf("\n", i + 1)) starts.push(i + 1);
  let block;
  for (const t of parser.parse(part, env)) {
    if (!block) {
      const begin = starts[t.map[0]] ?? part.length, end = starts[t.map[1]] ?? part.length;
      block = {at: from + begin, source: part.slice(begin, end), tokens: []};
    }
    block.tokens.push(t);
    if (t.level === 0 && t.nesting <= 0) {
      out.push(block);
      block = undefined;
    }
  }
  const references = Object.keys(env.references ?? {}).length;
  for (const b of out) {
    const tokens = b.tokens, n = tokens.reduce((sum, t) => sum + 1 + (t.children?.length ?? 0), 0);
    if (n > MOST_TOKENS)
      Object.assign(b, plain_block(b.at, b.source));
    else
      b.make = (to, level) => write_tokens(to, tokens, level);
    if (references) b.source += "\0" + references;
    delete b.tokens;
  }
  return limited(out, text, most);
}

const limited = (blocks, text, most) => blocks.length <= most ?
  blocks :
  [...blocks.slice(0, most - 1), plain_block(blocks[most - 1].at, text.slice(blocks[most - 1].at))];

/* Shows text in an element that may show the beginning of it already: a block whose source is unchanged keeps its
   nodes. While text grows, only its last block is parsed again; whole: all of it is. */
function show_markdown(to, text, whole) {
  text = text.replace(/\r\n?/g, "\n");
  spent_ms = 0;
  const was = to.shown ?? {text: "", blocks: []};
  if (was.text === text && was.whole === whole) return;
  const kept = !whole && was.blocks.length > 1 && text.startsWith(was.text) ? was.blocks.slice(0, -1) : [];
  const blocks = kept.concat(blocks_of(text, kept.length ? was.blocks.at(-1).at : 0, MOST_BLOCKS - kept.length));
  let level = 2;
  blocks.forEach((b, i) => {
    const old = was.blocks[i];
    if (old && old.source === b.source && old.before === level)
      Object.assign(b, {node: old.node, after: old.after, before: level});
    else {
      b.before = level;
      b.node = el("div", {className: "block"});
      b.after = b.make(b.node, level);
      if (old)
        old.node.replaceWith(b.node);
      else
        to.append(b.node);
    }
    level = b.after;
    delete b.make;
  });
  was.blocks.slice(blocks.length).forEach(b => b.node.remove());
  to.shown = {text, blocks, whole};
}

async function copy_text(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // browsers have this API on https and localhost only
    const area = el("textarea", {value: text, className: "unseen"});
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const was = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => button.textContent = was, 1200);
}
