// Upload files that are chosen or dropped, by the routes that the API has. A page calls `uploads(csrf, take)`.
"use strict";
// Upload the pictures among the files, three at a time. `add` gets each; null: there is nothing that could be uploaded.
globalThis.uploadPictures = async (files, upload, say, add) => {
  const AT_ONCE = 3, PICTURE = /\.(png|jpe?g|webp|heic|heif|avif|gif|bmp|tiff?)$/i;
  const wanted = files.filter((file) => file.type.startsWith("image/") || PICTURE.test(file.name));
  const trouble = !wanted.length ? "There is no picture among these files." : crypto.subtle ? "" : "This browser uploads only over HTTPS, or from localhost.";
  if (trouble) return say(trouble), null;
  const failed = [], queue = [...wanted];
  let count = 0;
  const work = async () => {
    for (let file = queue.shift(); file; file = queue.shift()) {
      try { add(await upload(file)); count += 1; } catch (error) { failed.push(`${file.name}: ${error.message}`); }
      say(`${count + failed.length} of ${wanted.length} uploaded`);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  say([`${count} of ${wanted.length} uploaded`, ...failed].join("; "));
  return { count, failed };
};
globalThis.uploads = (csrf, take) => {
  const drop = document.querySelector("#drop"), project = drop.dataset.project;

  const call = async (path, body) => {
    const headers = { "Content-Type": "application/json", "X-Project": project, "X-CSRF-Token": csrf };
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
      const put = to.pathname.startsWith("/v1/blobs/")
        ? await fetch(to.pathname + to.search, { method: ticket.put.method, headers: ticket.put.headers, body: bytes })
        // The storage is another origin, which the policy of the page refuses: the server passes the bytes on.
        : await fetch(`/dashboard/projects/${project}/uploads/${ticket.upload_id}`, { method: "PUT", headers: { "X-CSRF-Token": csrf }, body: bytes });
      if (!put.ok) throw new Error(`storage answered ${put.status}`);
      await call(`/v1/uploads/${ticket.upload_id}/complete`, { etags: [] });
    }
    return { sha256, name: file.name };
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
  drop.addEventListener("change", (event) => take([...event.target.files]));
  return upload;
};
