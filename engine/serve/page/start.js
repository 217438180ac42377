
/* ---- start -------------------------------------------------------------------------------------- */

/* Shows the model's name and reads its defaults; asks again every 2 seconds while the model is loading. */
async function look() {
  try {
    const answer = await open("v1/models");
    if (answer.ok) $("model").textContent = (await answer.json()).data[0].id;
    const health = await open("health");
    if (health.status === 503) {
      $("model").textContent += " · loading";
      setTimeout(look, 2000);
      return;
    }
  } catch {
    $("model").textContent = "not connected";
    return;
  }
  read_defaults();
}

function show_view() {
  const status = location.hash === "#status";
  $("chat").hidden = status;
  $("status").hidden = !status;
  for (const [id, on] of [["to-chat", !status], ["to-status", status]])
    if (on)
      $(id).setAttribute("aria-current", "page");
    else
      $(id).removeAttribute("aria-current");
  $("open-chats").hidden = status;
  if (status && !document.hidden)
    follow_status();
  else
    status_abort?.abort();
  if (!status && !is_phone()) say.focus();
}

$("composer").querySelector("form").onsubmit = e => {
  e.preventDefault();
  submit();
};
say.enterKeyHint = is_phone() ? "enter" : "send";
say.oninput = grow;
say.onkeydown = e => {
  if (e.key === "Enter" && sends(e)) {
    e.preventDefault();
    submit();
  }
};
document.onkeydown = e => {
  if (e.key === "Escape" && !$("settings").open) {
    show_list(false);
    run?.abort.abort();
  }
};
$("stop").onclick = () => {
  run?.abort.abort();
  say.focus();
};
$("new").onclick = () => {
  show_chat(new_chat());
  show_list(false);
  say.focus();
};
$("open-chats").onclick = e => {
  e.stopPropagation();
  show_list(!$("chats").classList.contains("shown"));
};
$("talk").onclick = () => show_list(false);
$("export").onclick = export_chats;
$("import").onclick = () => $("import-file").click();
$("import-file").onchange = async e => {
  await import_chats([...e.target.files]);
  e.target.value = "";
};
$("open-settings").onclick = open_settings;
$("settings").querySelector("form").onsubmit = take_settings;
$("settings").onclose = () => {
  if ($("settings").returnValue !== "done") take_settings();  // closed by Escape
};
$("reset").onclick = () => {
  const key = $("key").value;
  settings = {system: $("system").value};
  show_settings();
  $("key").value = key;
};
$("latest").onclick = to_end;
thread.onscroll = show_latest;
$("to-chat").onclick = () => {
  location.hash = "";
};
$("to-status").onclick = () => {
  location.hash = "status";
};
$("grid").onpointermove = show_spot;
$("grid").onpointerleave = () => {
  $("spot").textContent = "";
};
onhashchange = show_view;
onresize = () => {
  if (last_status && !$("status").hidden) {
    if (last_status.experts.total) draw_grid(last_status.experts);
    draw_history();
  }
};
document.onvisibilitychange = show_view;
matchMedia("(prefers-color-scheme: dark)").onchange = onresize;

load_chats();
show_chat(chats[0] ?? new_chat());
show_run();
look();
show_view();
