// Sets the chosen theme before the page is drawn. Without a choice the system decides.
(() => {
  const root = document.documentElement;
  const kept = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  root.dataset.scripts = "on";
})();
