// New training: upload dropped pictures, show them, and keep what was typed until it is submitted.
"use strict";
(() => {
  const form = document.querySelector("#train"), drop = document.querySelector("#drop");
  if (!form) return;
  const said = document.querySelector("#upload-said"), project = drop.dataset.project, kept = `train:${project}`;
  const AT_ONCE = 3, PICTURE = /\.(png|jpe?g|webp|heic|heif|avif|gif|bmp|tiff?)$/i;
  const say = (text) => { said.textContent = text; };

  const call = async (path, body) => {
    const headers = { "Content-Type": "application/json", "X-Project": project, "X-CSRF-Token": form.elements.csrf.value };
    const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
    const found = await reply.json();
    if (!reply.ok) throw new Error(found.faults?.map((each) => `${each.where}: ${each.message}`).join("; ") || found.detail || found.title);
    return found;
  };

  const upload = async (file) => {
    const bytes = await file.arrayBuffer();
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    const sha256 = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    const { items: [ticket] } = await call("/v1/uploads", { files: [{ sha256, size_bytes: bytes.byteLength, name: file.name }] });
    if (!ticket.exists) {
      if (!ticket.put) throw new Error("it is too large for this page");
      const to = new URL(ticket.put.url, location.href);
      // The address that the server knows itself by may be another than this page's; the signature is of the path.
      const url = to.pathname.startsWith("/v1/blobs/") ? to.pathname + to.search : to.href;
      const put = await fetch(url, { method: ticket.put.method, headers: ticket.put.headers, body: bytes });
      if (!put.ok) throw new Error(`storage answered ${put.status}`);
      await call(`/v1/uploads/${ticket.upload_id}/complete`, { etags: [] });
    }
    return { sha256, name: file.name };
  };

  const show = (values) => htmx.ajax("POST", drop.dataset.pictures, { source: form, target: "#pictures", values });

  const take = async (files) => {
    const wanted = files.filter((file) => file.type.startsWith("image/") || PICTURE.test(file.name));
    if (!wanted.length) return say("There is no picture among these files.");
    if (!crypto.subtle) return say("This browser uploads only over HTTPS, or from localhost.");
    const added = [], failed = [], queue = [...wanted];
    const work = async () => {
      for (let file = queue.shift(); file; file = queue.shift()) {
        try { added.push(await upload(file)); } catch (error) { failed.push(`${file.name}: ${error.message}`); }
        say(`${added.length + failed.length} of ${wanted.length} uploaded`);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    added.sort((a, b) => a.name.localeCompare(b.name));
    await show({ added: JSON.stringify(added) });
    say([`${added.length} of ${wanted.length} uploaded`, ...failed].join("; "));
    keep();
  };

  // Files of dropped folders too. readEntries gives at most a hundred at a time.
  const filesOf = async (entry) => {
    if (entry.isFile) return [await new Promise((done, refused) => entry.file(done, refused))];
    const reader = entry.createReader(), found = [];
    for (;;) {
      const some = await new Promise((done, refused) => reader.readEntries(done, refused));
      if (!some.length) return found;
      for (const each of some) found.push(...await filesOf(each));
    }
  };
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.dataset.over = "yes"; });
  drop.addEventListener("dragleave", () => { delete drop.dataset.over; });
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    delete drop.dataset.over;
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    const files = entries.length ? (await Promise.all(entries.map(filesOf))).flat() : [...event.dataTransfer.files];
    take(files);
  });
  document.querySelector("#files").addEventListener("change", (event) => take([...event.target.files]));

  // --- what was typed stays, also when the page is loaded again ---
  const keep = () => {
    const pairs = [...new FormData(form)].filter(([name, value]) => typeof value === "string" && !["csrf", "key", "find", "put"].includes(name));
    try { localStorage.setItem(kept, JSON.stringify(pairs)); } catch { /* it stays as long as the page */ }
  };
  form.addEventListener("input", keep);
  document.body.addEventListener("htmx:afterSwap", (event) => { if (event.detail.target.id === "pictures") keep(); });
  form.addEventListener("submit", () => { try { localStorage.removeItem(kept); } catch { /* nothing is kept */ } });
  const restore = async () => {
    let pairs = [];
    try { pairs = JSON.parse(localStorage.getItem(kept) ?? "[]"); } catch { return; }
    if (!pairs.length || form.querySelector('[name="picture"]')) return;
    const of = (wanted) => pairs.filter(([name]) => name === wanted).map(([, value]) => value);
    for (const [name, value] of pairs) if (form.elements[name] && !("length" in form.elements[name] && !form.elements[name].options)) form.elements[name].value = value;
    const shas = of("picture"), names = of("picture_name"), captions = of("caption");
    if (!shas.length) return;
    await show({ added: JSON.stringify(shas.map((sha256, index) => ({ sha256, name: names[index] }))) });
    form.querySelectorAll('[name="caption"]').forEach((field, index) => { field.value = captions[index] ?? ""; });
    say(`${shas.length} uploaded before`);
    keep();
  };
  restore();
})();
