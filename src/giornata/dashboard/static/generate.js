// Generate: a file that is dropped or chosen fills the form with its settings.
"use strict";
(() => {
  const drop = document.querySelector("#drop"), said = document.querySelector("#upload-said");
  const upload = globalThis.uploads(drop.dataset.csrf, async (files) => {
    said.textContent = "Reading the file …";
    try {
      const { sha256 } = await upload(files[0]);
      location.assign(`${drop.dataset.generate}?file=${sha256}`);
    } catch (error) { said.textContent = error.message; }
  });
})();
