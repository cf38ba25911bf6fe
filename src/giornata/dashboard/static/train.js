// New training: upload dropped pictures, show them, and keep what was typed until it is submitted.
"use strict";
(() => {
  const form = document.querySelector("#train"), drop = document.querySelector("#drop");
  if (!form) return;
  const said = document.querySelector("#upload-said"), kept = `train:${drop.dataset.project}`;
  // A form with the settings of a job takes the place of what was typed before.
  if (drop.dataset.like) { try { localStorage.removeItem(kept); } catch { /* nothing is kept */ } }
  const say = (text) => { said.textContent = text; };

  const show = (values) => htmx.ajax("POST", drop.dataset.pictures, { source: form, target: "#pictures", values });

  let upload = null;
  const waiting = []; // uploaded, and not shown yet
  const take = async (files) => {
    if (!await uploadPictures(files, upload, say, (each) => { waiting.push(each); keep(); })) return;
    const words = said.textContent;
    waiting.sort((a, b) => a.name.localeCompare(b.name));
    await show({ added: JSON.stringify(waiting) });
    waiting.length = 0;
    say(words);
    keep();
  };

  // --- what was typed stays, also when the page is loaded again ---
  const keep = () => {
    const pairs = [...new FormData(form)].filter(([name, value]) => typeof value === "string" && !["csrf", "key", "find", "put"].includes(name));
    for (const each of waiting) pairs.push(["picture", each.sha256], ["picture_name", each.name], ["caption", ""]);
    try { localStorage.setItem(kept, JSON.stringify(pairs)); } catch { /* it stays as long as the page */ }
  };
  form.addEventListener("input", keep);
  document.body.addEventListener("htmx:afterSwap", (event) => { if (event.detail.target.id === "pictures") keep(); });
  // It stays until the job is there: a refusal, an ended session or a lost connection loses nothing. See dashboard.js.
  form.addEventListener("submit", () => { keep(); try { sessionStorage.setItem("sent", kept); } catch { /* it stays */ } });
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
  upload = globalThis.uploads(form.elements.csrf.value, take);
  restore();
})();
