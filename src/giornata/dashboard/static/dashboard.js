// What pages need besides HTML: the theme, confirmations, the slider of samples, and what keeps a page live.
"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // --- theme ---
  $("#theme")?.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* the choice lasts as long as the page */ }
    document.dispatchEvent(new Event("theme"));
  });

  // --- messages, menus, confirmations, choices ---
  document.addEventListener("click", (event) => {
    const target = event.target;
    if (target.closest("[data-dismiss]")) target.closest(".toast").remove();
    const asking = target.closest("[data-confirm]");
    if (asking && !confirm(asking.dataset.confirm)) event.preventDefault();
    $$("details.menu[open]").filter((menu) => !menu.contains(target)).forEach((menu) => { menu.open = false; });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    $$("details.menu[open]").forEach((menu) => { menu.open = false; $("summary", menu).focus(); });
  });
  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-choose-all]")) return;
    const name = event.target.dataset.chooseAll || "job";
    $$(`input[name="${name}"]`, event.target.closest("form")).forEach((box) => { box.checked = event.target.checked; });
  });

  // --- the secret of an invitation, which stands behind the # of its link ---
  const secret = $("[data-from-hash]");
  if (secret && location.hash.length > 1) secret.value = decodeURIComponent(location.hash.slice(1));

  // --- what New training keeps of a form is forgotten when the job of that form is there ---
  try {
    const sent = sessionStorage.getItem("sent");
    sessionStorage.removeItem("sent");
    if (sent && new URLSearchParams(location.search).get("said") === "submitted") localStorage.removeItem(sent);
  } catch { /* nothing is kept */ }

  // --- samples by step ---
  const showStep = (range) => {
    const sheet = range.closest("[data-sheet]"), rows = $$(".sheet-row", sheet);
    rows.forEach((row, index) => { row.hidden = index !== Number(range.value); });
    const step = rows[range.value].dataset.step;
    range.setAttribute("aria-valuetext", `step ${step}`);
    $("output", sheet).value = step;
    $$("[data-step-link]").forEach((link) => { link.hidden = link.dataset.stepLink !== step; });
  };
  document.addEventListener("input", (event) => {
    if (event.target.matches("[data-sheet] input[type=range]")) showStep(event.target);
  });

  // --- live ---
  // A page is live while its stream is open and its fragments load. It says so, and goes on by itself.
  const sign = $("#liveness");
  const lost = new Set();
  const setLive = (what, isLive) => {
    if (isLive) lost.delete(what); else lost.add(what);
    if (!sign) return;
    sign.hidden = false;
    sign.dataset.state = lost.size ? "lost" : "live";
    sign.textContent = lost.size ? "not live" : "live";
  };
  for (const failed of ["htmx:sendError", "htmx:timeout"]) document.body.addEventListener(failed, () => setLive("pages", false));
  document.body.addEventListener("htmx:afterRequest", (event) => {
    const status = event.detail.xhr?.status ?? 0;
    if (status) setLive("pages", status < 500);
  });

  const SILENCE_MS = 30000;
  // A part that somebody uses, or that nobody sees, is not replaced.
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    const part = event.detail.elt, began = event.detail.requestConfig?.triggeringEvent?.type === "load";
    if (!part.hasAttribute("data-poll") || began) return;
    const used = part.contains(document.activeElement) || part.querySelector("input:checked, details[open]");
    if (document.hidden || (used && part.innerHTML)) event.preventDefault();
  });

  // What a part is like is remembered by its entity tag: the server sends nothing while it is the same.
  const tags = new Map();
  document.body.addEventListener("htmx:configRequest", ({ detail }) => {
    if (detail.elt.hasAttribute("data-poll") && tags.has(detail.path)) detail.headers["If-None-Match"] = tags.get(detail.path);
  });
  document.body.addEventListener("htmx:beforeSwap", ({ detail }) => {
    const path = detail.requestConfig.path, tag = detail.xhr.getResponseHeader("ETag");
    if (detail.xhr.status === 304) detail.shouldSwap = false;
    else if (tag) tags.set(path, tag); else tags.delete(path);
  });

  // --- ages: they go on by the server's clock, for the server sends no part that differs in nothing else ---
  const aheadMs = Date.now() - Date.parse($("#main")?.dataset.now) || 0;
  const inWords = (s) => {
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min${s % 60 ? ` ${s % 60} s` : ""}`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
  };
  const tellAges = () => $$("time[datetime]").forEach((each) => {
    const s = Math.trunc((Date.now() - aheadMs - Date.parse(each.dateTime)) / 1000);
    const words = s === 0 ? "now" : s > 0 ? `${inWords(s)} ago` : `in ${inWords(-s)}`;
    if (each.textContent !== words) each.textContent = words;
  });
  setInterval(() => { if (!document.hidden) tellAges(); }, 5000);

  // --- logs: the last lines, which go on while the page is open ---
  const LINES = 1000;
  const readLog = async (box) => {
    if (box.dataset.busy) { box.dataset.again = "yes"; return; }
    box.dataset.busy = "yes";
    try {
      for (let more = true; more;) {
        delete box.dataset.again;
        const url = `${box.dataset.log}?limit=500&after=${box.dataset.after ?? 0}`;
        const reply = await fetch(url, { headers: { "X-Project": box.dataset.project } });
        if (!reply.ok) break;
        const { items, next } = await reply.json();
        const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 20;
        for (const item of items) { box.append(`${item.line}\n`); box.dataset.after = item.id; }
        while (box.childNodes.length > LINES) box.firstChild.remove();
        if (atEnd) box.scrollTop = box.scrollHeight;
        more = Boolean(next) || "again" in box.dataset;
      }
      if (!box.childNodes.length) box.dataset.empty = "yes"; else delete box.dataset.empty;
    } catch { /* the next event reads what is missing */ }
    delete box.dataset.busy;
  };
  const readLogs = () => $$("[data-log]").forEach(readLog);
  readLogs();
  document.body.addEventListener("fresh", readLogs);

  let wake = null;
  const wait = (ms) => new Promise((done) => { wake = done; setTimeout(done, ms); });
  // After an event the page's head and log are loaded within a second, and its heavier parts within five.
  const pending = {};
  // A part that is being loaded when its time has come may show what was before: it is told when it has come. htmx would
  // keep the second load for the element that the first one replaces, and then forget it.
  const tell = (name, ms) => {
    pending[name] ??= setTimeout(() => {
      delete pending[name];
      if ($(`.htmx-request[hx-trigger*="${name} from:body"]`)) tell(name, 200);
      else if (!document.hidden) document.body.dispatchEvent(new Event(name));
    }, ms);
  };
  const refresh = () => { tell("fresh", 1000); tell("changed", 5000); };
  // What a page did not load while nobody saw it, it loads when somebody does.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    tellAges();
    document.body.dispatchEvent(new Event("shown"));
    refresh();
  });

  addEventListener("offline", () => setLive("network", false));
  addEventListener("online", () => { setLive("network", true); wake?.(); refresh(); });

  // Follow the events of a job. A stream that closes without the message `end` is taken up again behind its last event.
  const follow = async (url, project, after) => {
    let pause = 1000;
    for (;;) {
      const cut = new AbortController();
      // The server says something every ten seconds. A connection that is silent for longer is dead.
      let silence = setTimeout(() => cut.abort(), SILENCE_MS);
      try {
        const headers = { Accept: "text/event-stream", "X-Project": project, "Last-Event-ID": String(after) };
        const reply = await fetch(url, { headers, signal: cut.signal });
        if (reply.status === 204) { setLive("events", true); refresh(); return; }
        if (!reply.ok) throw new Error(`status ${reply.status}`);
        setLive("events", true);
        refresh();
        pause = 1000;
        const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
        for (let rest = ""; ;) {
          const { value, done } = await reader.read();
          if (done) break;
          clearTimeout(silence);
          silence = setTimeout(() => cut.abort(), SILENCE_MS);
          const lines = (rest + value).split("\n");
          rest = lines.pop();
          for (const line of lines) {
            if (line.startsWith("id: ")) { after = Number(line.slice(4)); refresh(); }
            if (line === ": step") tell("fresh", 1000);
            if (line === "event: end") { refresh(); return; }
          }
        }
      } catch { setLive("events", false); } finally { clearTimeout(silence); }
      await wait(pause);
      pause = Math.min(pause * 2, 10000);
    }
  };
  $$("[data-follow]").forEach((each) => follow(each.dataset.follow, each.dataset.project, Number(each.dataset.after)));
})();
