// Home: pictures that are dropped are uploaded, kept as New training keeps its form, and shown there.
"use strict";
(() => {
  const drop = document.querySelector("#drop");
  if (!drop) return;
  const said = document.querySelector("#upload-said"), kept = `train:${drop.dataset.project}`;
  const say = (text) => { said.textContent = text; };
  let upload = null;
  const take = async (files) => {
    const added = [];
    const found = await uploadPictures(files, upload, say, (each) => added.push(each));
    if (!found?.count) return;
    added.sort((a, b) => a.name.localeCompare(b.name));
    try {
      const pairs = JSON.parse(localStorage.getItem(kept) ?? "[]");
      for (const each of added) pairs.push(["picture", each.sha256], ["picture_name", each.name], ["caption", ""]);
      localStorage.setItem(kept, JSON.stringify(pairs));
    } catch { return say("This browser keeps nothing for the next page. Drop the pictures on the page New training."); }
    // What failed is read here first; the others wait on the page New training.
    if (!found.failed.length) location.href = drop.dataset.train;
  };
  upload = globalThis.uploads(drop.dataset.csrf, take);
})();
