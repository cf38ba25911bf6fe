// One chart with the smoothed loss of several jobs.
"use strict";
(() => {
  const POINTS = 500, SMOOTHING = 0.95;
  const DASHES = [[], [8, 4], [2, 4]], PIGMENTS = ["terra", "lapis", "verdigris", "ochre", "violet", "umber"];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const shown = (plot, value) => value?.toPrecision(4) ?? "–";
  // Without a pointer on the chart its legend has the values of the last step.
  const atRest = (plot) => { if (plot.legend.idx == null) plot.setLegend({ idx: plot.data[0].length - 1 }, false); };
  const figure = document.querySelector("[data-curves]"), box = figure?.querySelector(".chart-plot");
  if (!figure) return;
  const curves = JSON.parse(figure.dataset.curves);

  const said = figure.querySelector(".chart-said");
  let most = 1; // steps for each of which there is one point, of the longest job
  const read = async (url) => {
    const points = new Map();
    const reply = await fetch(`${url}?points=${POINTS}`, { headers: { "X-Project": figure.dataset.project } });
    if (!reply.ok) return points;
    const { items, every } = await reply.json();
    most = Math.max(most, every ?? 1);
    let sum = 0, weight = 0;
    for (const { step, values } of items) {
      if (values.loss == null) continue;
      sum = sum * SMOOTHING + values.loss * (1 - SMOOTHING);
      weight = weight * SMOOTHING + 1 - SMOOTHING;
      points.set(step, sum / weight);
    }
    return points;
  };
  let plot = null, found = [];
  const draw = () => {
    plot?.destroy();
    const steps = [...new Set(found.flatMap((points) => [...points.keys()]))].sort((a, b) => a - b);
    figure.toggleAttribute("data-empty", !steps.length);
    if (!steps.length) { box.textContent = "No job has reported a loss yet."; return; }
    box.textContent = "";
    said.textContent = most > 1 ? `Of long jobs one point for up to ${most.toLocaleString("en")} steps is drawn.` : "";
    const axis = { stroke: css("soft"), grid: { stroke: css("line"), width: 1 }, ticks: { stroke: css("line"), width: 1 } };
    const series = curves.map((curve, index) => ({
      label: curve.name, stroke: css(PIGMENTS[index % PIGMENTS.length]), dash: DASHES[Math.floor(index / PIGMENTS.length)],
      width: 2, spanGaps: true, points: { show: false }, value: shown,
    }));
    const options = { width: box.clientWidth, height: 280, scales: { x: { time: false } }, series: [{ label: "step" }, ...series], axes: [axis, { ...axis, size: 56 }], hooks: { ready: [atRest], setLegend: [atRest] } };
    plot = new uPlot(options, [steps, ...found.map((points) => steps.map((step) => points.get(step) ?? null))], box);
  };
  const load = async () => {
    try { found = await Promise.all(curves.map((curve) => read(curve.url))); } catch { return; }
    draw();
  };
  load();
  document.addEventListener("theme", draw);
  let resizing = null;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(draw, 200); });
})();
